//! Faults of the program itself: panics, panics that hold shared state, and hung loops. The directive `trap`, which
//! causes them, exists with debug assertions only.

use tw_testkit::server::Builder;
use tw_testkit::{Lacks, Server, Signal, leave_out, wait};

use crate::support::count_in_error_log;
use crate::support::{get, page, raw, refusal_of, server};

/// True if the server has traps; leaves the test out if not.
fn has_traps() -> bool {
    let has_traps = cfg!(debug_assertions);
    if !has_traps {
        leave_out(Lacks::Run, "a release has no traps");
    }
    has_traps
}

fn start(main: &str) -> Server {
    start_as(server().in_one_process(), main)
}

fn start_as(server: Builder, main: &str) -> Server {
    // The standard library may not make a backtrace of its own: for that it would open files.
    server
        .env("RUST_BACKTRACE", "full")
        .file("html/a.txt", "content")
        .start(&format!(
            "{main}
             http {{ server {{ listen 127.0.0.1:{{port}}; root html;
                 location /panic {{ trap panic; }} location /break {{ trap break; }}
                 location /tear {{ trap tear; }}
                 location /spin {{ trap spin; }} location /wait {{ trap wait; }}
                 location = /metrics {{ metrics; }} }} }}"
        ))
        .unwrap()
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

#[test]
fn panic_ends_its_connection_only() {
    if !has_traps() {
        return;
    }
    let server = start("");
    let mut other = server.connect().unwrap();
    other.send(request("/a.txt")).unwrap();
    assert_eq!(other.read_response().unwrap().text(), "content");
    for count in 1..=3 {
        assert_eq!(raw(&server, request("/panic")), "", "the connection is closed without an answer");
        assert!(get(&server, "/metrics").text().contains(&format!("\ntailwater_panics_total {count}\n")));
        assert!(
            wait::until(wait::TIMEOUT, || count_in_error_log(&server, "panicked") == count),
            "{}",
            server.error_log()
        );
    }
    for line in server.error_log().lines().filter(|line| line.contains("panicked")) {
        for part in [
            " [alert] ",
            ": *",
            "thread \"loop-0\" panicked at crates/tw-modules/src/content/trap.rs:",
            ": the trap was sprung, stack: tw_modules::content::trap::panics (tw-modules/src/content/trap.rs:",
            " < tw_modules::content::trap::Trap::handle (tw-modules/src/content/trap.rs:",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
    assert!(!server.stderr().contains("panicked"), "{}", server.stderr());
    other.send(request("/a.txt")).unwrap();
    assert_eq!(other.read_response().unwrap().text(), "content");
}

#[test]
fn panic_holding_shared_state_ends_the_process() {
    if !has_traps() {
        return;
    }
    for (path, function, what) in
        [("/break", "breaks", "u64"), ("/tear", "tears", "tw_request::files::open_file_cache::FileTable")]
    {
        let mut server = start("worker_processes 2;");
        assert_eq!(raw(&server, request(path)), "");
        assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(70), "{path}");
        let log = server.error_log();
        let panic = log.find("panicked at crates/tw-modules/src/content/trap.rs").unwrap();
        let stack = log.find(&format!("stack: tw_modules::content::trap::{function} (")).unwrap();
        let text = format!("a panic left data that others use half changed ({what}), exiting");
        let end = log.find("[alert]").and_then(|_| log.find(&text));
        assert!(end.is_some_and(|end| panic < stack && stack < end), "{log}");
    }
}

#[test]
fn hung_loop_is_logged_once_with_all_threads() {
    if !has_traps() {
        return;
    }
    let server = start("worker_processes 3; loop_watchdog 300ms;");
    // A C library that is part of the program has no tables by which its callers are found.
    let waits = if cfg!(target_feature = "crt-static") {
        "sleeps in futex"
    } else {
        "tw_modules::content::trap::waits ("
    };
    let cases =
        [("/spin", "tw_modules::content::trap::spins (", "runs"), ("/wait", waits, "sleeps in futex")];
    for (path, logged, state) in cases {
        let mut hanging = server.connect().unwrap();
        hanging.send(request(path)).unwrap();
        let line = || {
            let log = server.error_log();
            log.lines().find(|line| line.contains(logged) && line.contains(" \"loop-")).map(str::to_owned)
        };
        assert!(wait::until(wait::TIMEOUT, || line().is_some()), "{logged}: {}", server.error_log());
        let line = line().unwrap();
        assert!(line.contains("[alert]"), "{line}");
        assert!(line.contains(&format!("\" {state}")), "{line}");
        // Loops that turn are listed as well, and go on.
        for name in ["loop-0", "loop-1", "loop-2"] {
            server.wait_error_log(&format!(" \"{name}\" ")).unwrap();
        }
        assert_eq!(page(&server, "/a.txt"), (200, "content".to_owned()));
    }
    let logged = server.error_log();
    let logged: Vec<_> = logged.lines().filter(|line| line.contains("has not turned for")).collect();
    assert_eq!(logged.len(), 2, "once for each: {logged:?}");
    assert!(
        logged.iter().all(|line| line.contains(" s in connection ") && line.ends_with(" (trap)")),
        "{logged:?}"
    );
}

#[test]
fn hung_loop_ends_the_process_if_configured() {
    if !has_traps() {
        return;
    }
    for path in ["/spin", "/wait"] {
        let mut server = start("loop_watchdog 200ms restart;");
        let mut hanging = server.connect().unwrap();
        hanging.send(request(path)).unwrap();
        assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(71), "{path}");
        assert!(server.error_log().contains("an event loop hangs, exiting"));
    }
}

#[test]
fn master_replaces_a_failed_worker() {
    if !has_traps() {
        return;
    }
    let server = start_as(server().with_master(), "worker_processes 2; loop_watchdog 200ms restart;");
    // A worker process that breaks before all its loops run would be a start that failed.
    server.signal(Signal::USR1).unwrap();
    server.wait_error_log("reopening logs").unwrap();
    for (path, logged, status) in [
        ("/break", "a panic left data that others use half changed", 70),
        ("/spin", "tw_modules::content::trap::spins (tw-modules/src/content/trap.rs:", 71),
    ] {
        let mut last = server.connect().unwrap();
        last.send(request(path)).unwrap();
        server.wait_error_log(logged).unwrap();
        server.wait_error_log(&format!(" exited with code {status}")).unwrap();
        assert_eq!(last.read_until_close().unwrap(), b"", "{path}");
        // The master holds the listening sockets, so clients wait until the next worker serves.
        assert_eq!(page(&server, "/a.txt"), (200, "content".to_owned()), "{path}");
    }
}

#[test]
fn invalid_watchdog_settings_are_refused() {
    for (arguments, text) in [
        ("0", "\"loop_watchdog\" directive invalid value"),
        ("soon", "\"loop_watchdog\" directive invalid value"),
        ("10s again", "invalid parameter \"again\""),
        ("off restart", "\"restart\" needs a time after which an event loop hangs"),
        ("10s; loop_watchdog off", "\"loop_watchdog\" directive is duplicate"),
    ] {
        let said =
            refusal_of(&format!("loop_watchdog {arguments}; http {{ server {{ listen {{port}}; }} }}"));
        assert!(said.contains(text), "{arguments}: {said}");
    }
}
