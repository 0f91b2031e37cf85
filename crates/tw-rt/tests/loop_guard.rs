//! The loop guard, seen from outside: each case is this program once more, with a loop under the guard that makes
//! one system call. `enforce` must name the call and abort; what a loop needs must pass.

#![allow(clippy::unwrap_used, reason = "a test, though without the harness that clippy knows")]

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::net::{Ipv4Addr, ToSocketAddrs};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::ReadWriteFlags;
use rustix::time::{ClockId, Timespec};
use tokio::net::TcpListener;
use tw_rt::{
    Deadline, FirstBytes, Heap, LoopGuard, LoopOptions, LoopThread, SendFile, Socket, Subject, spawn_local,
};

#[global_allocator]
static ALLOCATOR: Heap = Heap;

const SIGABRT: i32 = 6;
const SIGSYS: i32 = 31;

/// Operation of a loop on a file that was opened before the guard was on, and the call it is caught at, which differs
/// between C libraries and architectures. None where more than its name is up to the C library, which may also block
/// all signals around it: the kernel then kills the process.
struct Caught {
    case: &'static str,
    calls: &'static [&'static str],
    run: fn(File),
}

const CAUGHT: &[Caught] = &[
    Caught { case: "open", calls: &["openat", "open"], run: |_| drop(File::open("/etc/hostname")) },
    Caught { case: "stat", calls: &["statx", "stat", "newfstatat"], run: |_| drop(fs::metadata("/etc")) },
    Caught { case: "read", calls: &["read"], run: |mut file| drop(file.read(&mut [0; 64])) },
    Caught { case: "pread", calls: &["pread64"], run: |file| drop(file.read_at(&mut [0; 64], 0)) },
    Caught {
        case: "preadv2",
        calls: &["preadv2"],
        run: |file| _ = read_at_start(&file, ReadWriteFlags::empty()),
    },
    Caught { case: "write", calls: &["write"], run: |mut file| drop(file.write(b"a line of a log")) },
    Caught {
        case: "writev",
        calls: &["writev"],
        run: |mut file| drop(file.write_vectored(&[IoSlice::new(b"x")])),
    },
    Caught { case: "seek", calls: &["lseek"], run: |mut file| drop(file.rewind()) },
    Caught { case: "fsync", calls: &["fsync"], run: |file| drop(file.sync_all()) },
    Caught {
        case: "rename",
        calls: &["rename", "renameat", "renameat2"],
        run: |_| drop(fs::rename("/nowhere/a", "/nowhere/b")),
    },
    Caught { case: "unlink", calls: &["unlink", "unlinkat"], run: |_| drop(fs::remove_file("/nowhere/a")) },
    Caught { case: "list", calls: &["openat", "open"], run: |_| drop(fs::read_dir("/")) },
    Caught { case: "resolve", calls: &[], run: |_| drop(("a.invalid", 80).to_socket_addrs()) },
    Caught { case: "thread", calls: &[], run: |_| drop(std::thread::spawn(|| ())) },
    Caught { case: "sendfile", calls: &["sendfile"], run: send },
    Caught { case: "sleep", calls: &["clock_nanosleep"], run: |_| sleep() },
];

fn read_at_start(file: &File, flags: ReadWriteFlags) -> rustix::io::Result<usize> {
    rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut [0; 16])], 0, flags)
}

fn send(file: File) {
    let _ = rustix::fs::sendfile(&file, &file, Some(&mut 0), 4);
}

fn sleep() {
    let millisecond = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let _ = rustix::thread::clock_nanosleep_relative(ClockId::Monotonic, &millisecond);
}

/// Everyday operations of loops; must pass.
async fn a_loops_work(file: File) {
    // Files: from memory or not at all.
    let page_cached = read_at_start(&file, ReadWriteFlags::NOWAIT);
    assert!(matches!(page_cached, Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::OPNOTSUPP)));
    rustix::fs::fstat(&file).unwrap();
    drop(file);
    let cached = rustix::fs::openat2(CWD, "/etc", OFlags::PATH, Mode::empty(), ResolveFlags::CACHED);
    assert!(matches!(cached, Ok(_) | Err(rustix::io::Errno::AGAIN)));

    // Sockets, tasks and timers.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let echo = spawn_local(Subject { kind: "echo", id: 1 }, async move {
        let (stream, peer) = listener.accept().await.unwrap();
        let stream = Socket::tcp(stream.into_std().unwrap().into(), FirstBytes::Likely);
        stream.set_nodelay();
        assert_eq!(stream.peer_addr().unwrap(), Some(peer.into()));
        let mut buf = Vec::with_capacity(64);
        stream.readable().await.unwrap();
        stream.try_read(&mut buf).unwrap();
        stream.try_write_vectored(&[IoSlice::new(&buf), IoSlice::new(b"!")]).unwrap();
        stream.shutdown_write().unwrap();
    });
    let client = tokio::net::TcpStream::connect(addr).await.unwrap().into_std().unwrap();
    let client = Socket::tcp(client.into(), FirstBytes::Later);
    client.try_write(b"hello").unwrap();
    let mut deadline = Deadline::new();
    deadline.set(Duration::from_secs(10));
    deadline.guard(client.readable()).await.unwrap().unwrap();
    let mut buf = Vec::with_capacity(64);
    client.try_read(&mut buf).unwrap();
    assert_eq!(buf, b"hello!");
    echo.await.unwrap();
    deadline.set(Duration::from_millis(2));
    deadline.elapsed().await;

    // A loop may allocate memory beyond what malloc keeps, and get hash seeds.
    drop(vec![1_u8; 64 << 20]);
    drop(std::collections::HashMap::from([(1, 2)]));

    // A panic of one task must reach standard error and end nothing else.
    assert!(spawn_local(Subject { kind: "broken", id: 2 }, async { panic!("expected") }).await.is_err());
}

fn on_guarded_loop(guard: LoopGuard, case: &str) {
    let path = std::env::temp_dir().join(format!("tw-loop-guard-{}", std::process::id()));
    fs::write(&path, [0; 4096]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    // A loop that may send files can do so, and all other rules stay.
    let (case, send_file) = match case.strip_prefix("may ") {
        Some(case) => (case, SendFile::Locked),
        None => (case, SendFile::Never),
    };
    let caught = CAUGHT.iter().find(|caught| caught.case == case);
    let options = LoopOptions { guard, send_file, ..LoopOptions::new(0) };
    let worker = LoopThread::<()>::start(options, move |mut inbox| async move {
        inbox.recv().await;
        match caught {
            Some(caught) => (caught.run)(file),
            None => a_loops_work(file).await,
        }
    })
    .unwrap();
    // A message wakes the loop through its eventfd.
    worker.send(()).unwrap();
    worker.join().unwrap();
}

fn child(guard: &str, case: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--case", guard, case]).env_remove("RUST_BACKTRACE").output().unwrap()
}

fn check(what: &str, output: &Output, as_expected: bool) -> bool {
    let verdict = if as_expected { "ok" } else { "FAILED" };
    let mut out = io::stdout().lock();
    writeln!(out, "test {what} ... {verdict}").unwrap();
    if !as_expected {
        let said = String::from_utf8_lossy(&output.stderr);
        writeln!(out, "  {}, stderr: {said}", output.status).unwrap();
    }
    as_expected
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, guard, case] = &args[..]
        && flag == "--case"
    {
        let guard = match guard.as_str() {
            "log" => LoopGuard::Log,
            "enforce" => LoopGuard::Enforce,
            _ => LoopGuard::Off,
        };
        on_guarded_loop(guard, case);
        return ExitCode::SUCCESS;
    }
    let mut passed = true;
    for Caught { case, calls, .. } in CAUGHT {
        let output = child("enforce", case);
        let said = String::from_utf8_lossy(&output.stderr);
        let names = |call: &&str| said.contains(&format!("loop guard: system call {call} ("));
        let stopped = match output.status.signal() {
            Some(SIGABRT) if calls.is_empty() => said.contains("loop guard: system call "),
            Some(SIGABRT) => calls.iter().any(names),
            Some(SIGSYS) => calls.is_empty(),
            _ => false,
        };
        passed &= check(&format!("enforce {case}"), &output, stopped);
        for guard in ["off", "log"] {
            let output = child(guard, case);
            passed &= check(&format!("{guard} {case}"), &output, output.status.success());
        }
    }
    for case in ["work", "may work", "may sendfile"] {
        for guard in ["off", "log", "enforce"] {
            let output = child(guard, case);
            passed &= check(&format!("{guard} {case}"), &output, output.status.success());
        }
    }
    let output = child("enforce", "may pread");
    passed &= check("enforce may pread", &output, output.status.signal() == Some(SIGABRT));
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
