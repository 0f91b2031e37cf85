//! The program: its start and end, lines on standard input, and what it says of mistakes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tw_testkit::wait::{TIMEOUT, until};
use tw_testkit::{Lacks, TempDir, leave_out};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tailwater-slowdisk");

/// The running program.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it; `None` if no disk can be mounted here.
    fn start(words: &[&str]) -> Option<Self> {
        let mut child = Command::new(PROGRAM)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = child.stdout.take().unwrap();
        let mut program = Self { child, input, output: BufReader::new(output) };
        if program.line().contains("is mounted on") {
            return Some(program);
        }
        let mut said = String::new();
        std::io::Read::read_to_string(program.child.stderr.as_mut().unwrap(), &mut said).unwrap();
        leave_out(Lacks::Machine, format_args!("there is no slow disk: {said}"));
        None
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn ends_well(&mut self) -> bool {
        let ended = until(TIMEOUT, || self.child.try_wait().unwrap().is_some());
        ended && self.child.wait().unwrap().success()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A failed test leaves the program running: it unmounts when it is told to end.
        if self.child.try_wait().unwrap().is_none() {
            self.signal(Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

fn run(words: &[&str]) -> Output {
    Command::new(PROGRAM).args(words).stdin(Stdio::null()).output().unwrap()
}

fn is_mounted(point: &Path) -> bool {
    let (point, above) = (fs::metadata(point).unwrap(), fs::metadata(point.join("..")).unwrap());
    std::os::unix::fs::MetadataExt::dev(&point) != std::os::unix::fs::MetadataExt::dev(&above)
}

#[test]
fn lines_change_the_disk_until_a_signal_unmounts_it() {
    let below = TempDir::new("below").unwrap();
    let point = TempDir::new("point").unwrap();
    below.write("f", "content").unwrap();
    let words = [below.path(), point.path()].map(|path| path.to_str().unwrap().to_owned());
    let Some(mut program) = Program::start(&[&words[0], &words[1], "--eio", "100%"]) else { return };
    assert!(fs::read(point.join("f")).is_err());
    program.say("off");
    assert_eq!(program.line(), "no faults");
    assert!(until(TIMEOUT, || fs::read(point.join("f")).is_ok_and(|text| text == b"content")));
    program.say("--open 1h --seed 5");
    assert_eq!(program.line(), "--open 3600000ms");
    program.say("nonsense");
    program.say("show");
    assert_eq!(program.line(), "--open 3600000ms");
    assert!(program.line().starts_with("open     "));
    // Operations that wait do not keep the program from ending.
    let path = point.join("f");
    let opener = std::thread::spawn(move || fs::read(path));
    assert!(is_mounted(point.path()));
    program.signal(Signal::TERM);
    assert!(program.ends_well());
    assert!(!is_mounted(point.path()));
    let _ = opener.join().unwrap();
    assert_eq!(fs::read(below.join("f")).unwrap(), b"content");
}

#[test]
fn program_ends_when_the_disk_is_unmounted() {
    let below = TempDir::new("below").unwrap();
    let point = TempDir::new("point").unwrap();
    let words = [below.path(), point.path()].map(|path| path.to_str().unwrap().to_owned());
    let Some(mut program) = Program::start(&[&words[0], &words[1]]) else { return };
    if !rustix::process::geteuid().is_root() {
        return leave_out(Lacks::Run, format_args!("only root may unmount"));
    }
    rustix::mount::unmount(point.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(program.ends_well());
}

#[test]
fn mistakes_end_the_program_with_a_message() {
    let dir = TempDir::new("below").unwrap();
    let file = dir.write("file", "").unwrap();
    let dir = dir.path().to_str().unwrap();
    let file = file.to_str().unwrap();
    let has_fuse = Path::new("/dev/fuse").exists();
    for (words, message) in [
        (&[][..], "a directory and a mount point are needed"),
        (&[dir, dir, "--read", "slow"], "invalid value \"slow\" of \"read\""),
        (&["/none", dir], "\"/none\" cannot be opened (2: No such file or directory)"),
        (&[file, dir], "cannot be opened (20: Not a directory)"),
        (
            &[dir, "/none"],
            if has_fuse { "the mount point \"/none\" does not exist" } else { "there is no /dev/fuse" },
        ),
        (&[dir, file], if has_fuse { "is no directory" } else { "there is no /dev/fuse" }),
    ] {
        let output = run(words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(message), "{words:?}: {said}");
    }
    let help = run(&["--help"]);
    assert!(
        help.status.success() && help.stdout.starts_with(b"Usage: tailwater-slowdisk directory mount-point")
    );
}
