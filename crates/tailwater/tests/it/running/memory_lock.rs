//! `worker_memory_lock`: the program stays in memory.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, geteuid, getrlimit};
use tw_testkit::tls::Authority;
use tw_testkit::{Lacks, Server, leave_out, wait};

use crate::support::metrics::metric;
use crate::support::process;
use crate::support::reload::reload;
use crate::support::{get, server};

fn started(main: &str) -> Server {
    let conf = "http { server { listen 127.0.0.1:{port}; location / { return 204; } } }";
    let server = server().with_master().start(&format!("{main} {conf}")).unwrap();
    // All notices precede this line.
    server.wait_error_log("start worker 0").unwrap();
    server
}

/// Worker process, which has locked memory before it answers.
fn worker(server: &Server) -> u32 {
    assert_eq!(get(server, "/").status, 204);
    process::worker(server)
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
    /// Part of it that is private to the process and not in the file.
    own_kib: u64,
    is_locked: bool,
}

fn program(pid: u32) -> Vec<Mapped> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let mut results: Vec<Mapped> = Vec::new();
    let mut is_program = false;
    for line in smaps.lines() {
        let (first, rest) = line.split_once(char::is_whitespace).unwrap();
        if !first.ends_with(':') {
            is_program = line.ends_with(program.to_str().unwrap());
            if is_program {
                results.push(Mapped { rights: rest[..4].to_owned(), ..Mapped::default() });
            }
            continue;
        }
        let number = || rest.trim().trim_end_matches(" kB").parse().unwrap();
        match (results.last_mut().filter(|_| is_program), first) {
            (Some(mapped), "Size:") => mapped.size_kib = number(),
            (Some(mapped), "Rss:") => mapped.resident_kib = number(),
            (Some(mapped), "Anonymous:") => mapped.own_kib = number(),
            (Some(mapped), "VmFlags:") => mapped.is_locked = rest.split_whitespace().any(|flag| flag == "lo"),
            _ => {}
        }
    }
    results
}

/// Permission of the tests' user to lock memory.
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

/// True if the server may end up without a limit.
fn is_unlimited() -> bool {
    has(Right::Raise) || getrlimit(Resource::Memlock).maximum.is_none()
}

/// Number of lines in the log about memory that could not be locked. The stacks of loops are locked later, when
/// privileges are gone.
fn count_complaints(server: &Server) -> usize {
    let log = server.error_log();
    log.lines()
        .filter(|line| line.contains("\"worker_memory_lock ") && !line.contains("for the stacks of"))
        .count()
}

/// Log text about a program that is copied because the limit is too small.
const COPIED: &str = " KB of the program are copied into memory and not locked, so only swapping can remove them, because RLIMIT_MEMLOCK is ";

#[test]
fn program_stays_in_memory_and_a_missing_lock_is_logged() {
    for main in ["worker_processes 2;", "sandbox on;", "worker_memory_lock on;"] {
        let server = started(main);
        let pid = worker(&server);
        let wants_all = main.contains("lock on");
        let may_all = is_unlimited();
        let is_copied = server.error_log().contains(COPIED);
        assert_eq!(count_complaints(&server), usize::from(is_copied || wants_all && !may_all), "{main}");
        assert!(!is_copied || !wants_all && !may_all, "{main}");
        if wants_all && !may_all {
            let line =
                server.wait_error_log("to lock all memory takes no limit, RLIMIT_MEMLOCK is ").unwrap();
            assert!(line.contains("[alert]"), "{line}");
            if !has(Right::Lock) {
                leave_out(
                    Lacks::Run,
                    format_args!("little memory may be locked: all of the program ({main})"),
                );
                continue;
            }
        }
        let mapped = program(pid);
        let code = mapped.iter().find(|mapped| mapped.rights == "r-xp").unwrap();
        assert!(code.size_kib > 1000, "{mapped:?}");
        // Before kernel 5.14, writable pages are not copied in advance.
        let stays = |mapped: &Mapped| {
            let is_own = mapped.own_kib == mapped.size_kib && !mapped.is_locked;
            let is_locked = mapped.resident_kib == mapped.size_kib && mapped.is_locked;
            if is_copied { is_own || is_locked && mapped.rights == "rw-p" } else { is_locked }
        };
        assert!(mapped.iter().all(stays), "{main} {mapped:?}");
        assert!(!wants_all || !may_all || status(pid, "VmLck") > status(pid, "VmRSS"), "{main}");
    }
}

/// Command that starts a program with this limit of locked memory and without a privilege to exceed it. `None`, with a
/// message, if that is not possible.
fn with_limit(kib: u64) -> Option<Vec<String>> {
    let mut words = vec!["prlimit".to_owned(), format!("--memlock={0}:{0}", kib << 10)];
    if geteuid().is_root() {
        words.extend(["setpriv", "--bounding-set=-sys_resource,-ipc_lock"].map(str::to_owned));
    }
    let may_lower = getrlimit(Resource::Memlock).maximum.is_none_or(|hard| hard >= kib << 10);
    let is_there =
        |program: &String| ["/bin", "/usr/bin"].iter().any(|dir| Path::new(dir).join(program).exists());
    if !may_lower || !words.iter().filter(|word| !word.starts_with('-')).all(is_there) {
        leave_out(Lacks::Machine, format_args!("not possible here: {words:?}"));
        return None;
    }
    Some(words)
}

/// A server with `auto` and `sendfile on`, with this limit of locked memory and without a privilege to exceed it.
/// `None`, with a message, if that is not possible.
fn limited(kib: u64, loops: usize) -> Option<Server> {
    let words = with_limit(kib)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let conf = format!(
        "worker_processes {loops}; http {{ server {{ listen 127.0.0.1:{{port}}; root html; sendfile on;
         location = /metrics {{ metrics; }} }} }}"
    );
    let content: Vec<_> = (0..500_000_u32).map(|at| (at >> 4) as u8).collect();
    let files = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let files = files.iter().fold(server(), |files, name| files.file(format!("html/{name}"), &content));
    Some(files.with_master().by(&words).start(&conf).unwrap())
}

#[test]
fn lock_limit_is_shared_and_the_rest_logged() {
    for (kib, loops) in [(0, 1), (64, 2), (8192, 1), (8192, 4)] {
        let Some(server) = limited(kib, loops) else { return };
        let limit = format!("RLIMIT_MEMLOCK is {kib} KB");
        let notice = |what: &str| {
            let line = server.wait_error_log(what).unwrap();
            assert!(line.contains("[notice]") && line.contains(&limit), "{line}");
            assert_eq!(server.error_log().matches(what).count(), 1, "{what}");
        };
        // A program for tests is larger than all that, and takes nothing of it.
        notice(COPIED);
        notice("\"hot_lock_size\": files ");
        let stacks = "for the stacks of ";
        if kib < 1024 {
            notice(stacks);
        }
        let allowed = metric(&server, "locked_files_limit_bytes");
        let stacks_kib = 384 * loops as u64;
        let room = kib.saturating_sub(stacks_kib) << 10;
        assert!(allowed <= room && allowed + (128 << 10) > room, "{kib} {loops} {allowed}");
        // Frequently requested files are locked up to the limit reported at the start, and the rest is copied.
        let is_done = || {
            for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
                assert_eq!(get(&server, &format!("/{name}")).body.len(), 500_000);
            }
            allowed < 500_000 || metric(&server, "locked_files_bytes") > 0
        };
        assert!(wait::until(wait::TIMEOUT, is_done), "{allowed}");
        assert_eq!(
            metric(&server, "locked_files_limit_bytes"),
            allowed,
            "nobody has taken the room of another"
        );
        assert!(status(process::worker(&server), "VmLck") <= kib, "{kib}");
        let log = server.error_log();
        assert!(!log.contains("mlock() of a file") && !log.contains("[alert]"), "{log}");
        if !log.contains(stacks) {
            assert!(!log.contains("mlock() of the stack"), "{log}");
        }
    }
}

/// Memory that a server with TLS locks besides `worker_memory_lock`.
#[test]
fn private_keys_are_locked_even_with_lock_off() {
    if !is_unlimited() && getrlimit(Resource::Memlock).maximum.is_some_and(|most| most < 64 << 10) {
        return leave_out(Lacks::Machine, "little memory may be locked");
    }
    let made = Authority::new().certify_rsa(&["localhost"]);
    let conf = "worker_memory_lock off; http { server { listen 127.0.0.1:{port}; return 204; }
        server { listen 127.0.0.1:{port1} ssl; ssl_certificate one.crt; ssl_certificate_key one.key; } }";
    let builder = server().with_master().certificate("one", &made);
    let server = builder.start(conf).unwrap();
    // The parsed key, and nothing else of note: the texts of files are gone.
    assert_eq!(status(worker(&server), "VmLck"), 64);
}

/// A process that has keys may not open its own memory once it has given up its rights.
#[test]
fn single_process_locks_its_program_on_reload() {
    let made = Authority::new().certify(&["localhost"]);
    let builder = server().in_one_process().certificate("one", &made);
    let conf = |word: &str| {
        format!(
            "worker_memory_lock {word}; http {{ server {{ listen 127.0.0.1:{{port}}; return 200 {word}; }}
             server {{ listen 127.0.0.1:{{port1}} ssl; ssl_certificate one.crt; ssl_certificate_key one.key; }} }}"
        )
    };
    let Some(words) = with_limit(8192) else { return };
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut server = builder.by(&words).start(&conf("off")).unwrap();
    reload(&mut server, &conf("auto"));
    let line = server.wait_error_log("\"worker_memory_lock auto\": ").unwrap();
    assert!(line.contains(COPIED), "{line}");
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/").text() == "auto"));
}

#[test]
fn lock_off_locks_nothing() {
    let off = started("worker_memory_lock off;");
    assert_eq!(status(worker(&off), "VmLck"), 0);
    assert_eq!(count_complaints(&off), 0);
}
