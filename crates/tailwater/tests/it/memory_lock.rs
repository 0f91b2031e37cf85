//! `worker_memory_lock`: the program stays in memory.

use std::fs;

use rustix::process::{Resource, getrlimit};
use tw_testkit::{Lacks, Server, leave_out, wait};

use crate::{get, server};

fn started(main: &str) -> Server {
    let conf = "http { server { listen 127.0.0.1:{port}; location / { return 204; } } }";
    let server = server().with_master().start(&format!("{main} {conf}")).unwrap();
    // It has said all there is to say.
    server.wait_error_log("start worker 0").unwrap();
    server
}

/// The process that serves, which has done what it can by now.
fn worker(server: &Server) -> u32 {
    assert_eq!(get(server, "/").status, 204);
    let master = server.pid();
    let children = || fs::read_to_string(format!("/proc/{master}/task/{master}/children")).ok();
    wait::some(wait::PATIENCE, || children()?.split_whitespace().next()?.parse().ok()).unwrap()
}

/// A number of `/proc/PID/status`, in KiB.
fn status(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// A mapping of the server's program.
#[derive(Debug, Default)]
struct Mapped {
    rights: String,
    size_kib: u64,
    resident_kib: u64,
    is_locked: bool,
}

fn program(pid: u32) -> Vec<Mapped> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let mut found: Vec<Mapped> = Vec::new();
    let mut is_program = false;
    for line in smaps.lines() {
        let (first, rest) = line.split_once(char::is_whitespace).unwrap();
        if !first.ends_with(':') {
            is_program = line.ends_with(program.to_str().unwrap());
            if is_program {
                found.push(Mapped { rights: rest[..4].to_owned(), ..Mapped::default() });
            }
            continue;
        }
        let number = || rest.trim().trim_end_matches(" kB").parse().unwrap();
        match (found.last_mut().filter(|_| is_program), first) {
            (Some(mapped), "Size:") => mapped.size_kib = number(),
            (Some(mapped), "Rss:") => mapped.resident_kib = number(),
            (Some(mapped), "VmFlags:") => mapped.is_locked = rest.split_whitespace().any(|flag| flag == "lo"),
            _ => {}
        }
    }
    found
}

/// What the tests' user may do that matters here.
#[derive(Clone, Copy)]
enum Right {
    /// Lock more than the limit (`CAP_IPC_LOCK`).
    Lock = 14,
    /// Raise the limit (`CAP_SYS_RESOURCE`).
    Raise = 24,
}

fn has(right: Right) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    u64::from_str_radix(line, 16).unwrap() >> right as u32 & 1 != 0
}

/// Whether the server may end up without a limit.
fn is_unlimited() -> bool {
    has(Right::Raise) || getrlimit(Resource::Memlock).maximum.is_none()
}

/// How often a server's log says that it could not do it.
fn complaints(server: &Server) -> usize {
    server.error_log().matches("\"worker_memory_lock ").count()
}

#[test]
fn the_program_is_locked_or_the_log_says_once_why_not() {
    let may_program = is_unlimited() || has(Right::Lock);
    for main in ["worker_processes 2;", "sandbox on;", "worker_memory_lock on;"] {
        let server = started(main);
        let pid = worker(&server);
        let (wants_all, may_all) = (main.contains("lock on"), is_unlimited());
        assert_eq!(complaints(&server), usize::from(!may_program || wants_all && !may_all), "{main}");
        if wants_all && !may_all {
            let line =
                server.wait_error_log("to lock all memory takes no limit, RLIMIT_MEMLOCK is ").unwrap();
            assert!(line.contains("[alert]"), "{line}");
        } else if !may_program {
            let line =
                server.wait_error_log("KB of the program failed (12: Cannot allocate memory)").unwrap();
            assert!(line.contains("[notice]"), "{line}");
        }
        if !may_program {
            leave_out(Lacks::Run, format_args!("little memory may be locked: all of the program ({main})"));
            continue;
        }
        let mapped = program(pid);
        let code = mapped.iter().find(|mapped| mapped.rights == "r-xp").unwrap();
        assert!(code.size_kib > 1000, "{mapped:?}");
        let stays = |mapped: &Mapped| mapped.is_locked && mapped.resident_kib == mapped.size_kib;
        assert!(mapped.iter().all(stays), "{main} {mapped:?}");
        assert!(!wants_all || !may_all || status(pid, "VmLck") > status(pid, "VmRSS"), "{main}");
    }
}

#[test]
fn off_is_nothing() {
    let off = started("worker_memory_lock off;");
    assert_eq!(status(worker(&off), "VmLck"), 0);
    assert_eq!(complaints(&off), 0);
}
