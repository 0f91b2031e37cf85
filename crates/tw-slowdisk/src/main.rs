//! `tailwater-slowdisk`: a directory as a disk that is slow or fails, to rehearse that with any server.

use std::io::{self, BufRead as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tw_slowdisk::{Access, Command, Directory, Mount, Options, help, parse, parse_line};
use tw_sys::signal::SignalFd;

/// Threads that answer the kernel; operations that wait have threads of their own.
const THREADS: usize = 4;
/// Interval of the look whether somebody else has unmounted the disk.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

fn main() -> ExitCode {
    match parse(std::env::args_os().skip(1)) {
        Ok(Some(options)) => match run(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => fail(&message),
        },
        Ok(None) => {
            say(&help());
            ExitCode::SUCCESS
        }
        Err(message) => fail(&format!("{message}\n    = tailwater-slowdisk --help")),
    }
}

fn run(options: &Options) -> Result<(), String> {
    // Signals are blocked before any other thread exists.
    let signals = [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    let signals = SignalFd::new(&signals).map_err(|error| format!("signals: {error}"))?;
    raise_descriptors();
    let shown = options.directory.display();
    let directory = Directory::open(&options.directory)
        .map_err(|error| format!("\"{shown}\" cannot be opened ({})", tw_base::Errno::from(&error)))?;
    let mount = Mount::new(directory, &options.mount, Access::Checked, THREADS);
    let mount = Arc::new(mount.map_err(|why| why.to_string())?);
    mount.set(options.settings.clone());
    say(&format!("\"{shown}\" is mounted on \"{}\": {}\n", options.mount.display(), options.settings));
    follow_lines(&mount);
    wait(&signals, &mount);
    let report = mount.report();
    // The thread that reads lines ends with the process, and holds no other handle by then.
    mount.unmount();
    say(&report);
    Ok(())
}

/// Reads lines from standard input on a thread of their own, and obeys them.
fn follow_lines(mount: &Arc<Mount<Directory>>) {
    let mount = Arc::downgrade(mount);
    // If no thread can be started, the settings stay.
    let _ = thread::Builder::new().name("lines".to_owned()).spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let Some(mount) = mount.upgrade() else { return };
            match parse_line(&line, &mount.settings()) {
                Ok(Command::Empty) => {}
                Ok(Command::Set(settings)) => {
                    say(&format!("{settings}\n"));
                    mount.set(*settings);
                }
                Ok(Command::Show) => say(&format!("{}\n{}", mount.settings(), mount.report())),
                Err(message) => complain(&message),
            }
        }
    });
}

/// Waits for a signal, or for the end of the mount.
fn wait(signals: &SignalFd, mount: &Mount<Directory>) {
    while !mount.has_ended() {
        // An interruption is as good as an end of the time.
        let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&LOOK));
        if signals.read().is_ok() {
            return;
        }
    }
}

/// Lets the process have as many files open as it may: each file that is open on the disk is open below it.
fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // A refusal leaves it as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Writes to standard output. A reader that closes the pipe early is no failure.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes a message to standard error.
fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "tailwater-slowdisk: {message}");
}

fn fail(message: &str) -> ExitCode {
    complain(message);
    ExitCode::FAILURE
}
