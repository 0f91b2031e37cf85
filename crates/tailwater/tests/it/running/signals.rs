//! Signals: stop, quit, reload and reopened logs.

use tw_testkit::{Client, Server, Signal, ports, wait};

use crate::support::download::{LARGE, begin_download, with_large_file};
use crate::support::reload::reload;
use crate::support::reload::reload_until;
use crate::support::text_on;
use crate::support::{page, server};

/// `location`s of every server here.
const LOCATIONS: &str = "location /old { return 200 old; } location / { root html; }";

fn http(more: &str) -> String {
    format!("http {{ server {{ listen 127.0.0.1:{{port}}; {LOCATIONS} {more} }} }}")
}

/// Starts a server of two loops with a large file. As root it stays root, or it could not open its logs again.
fn started(main: &str) -> Server {
    with_large_file().start(&format!("user root; {main} {}", http(""))).unwrap()
}

/// An idle keep-alive connection.
fn idle(server: &Server) -> Client {
    let mut client = server.connect().unwrap();
    assert_eq!(text_on(&mut client, "/small").unwrap(), "small");
    client
}

#[test]
fn signals_are_obeyed_as_soon_as_a_socket_listens() {
    // The first socket is there long before the last one.
    let more: String = (0..300).map(|n| format!("listen unix:{{prefix}}/{n};")).collect();
    let conf = format!("http {{ server {{ listen 127.0.0.1:{{port}}; {more} return 200 served; }} }}");
    for builder in [server(), server().with_master()] {
        let mut server = builder.start(&conf).unwrap();
        server.signal(Signal::HUP).unwrap();
        server.wait_error_log("the configuration is taken over").unwrap();
        assert_eq!(page(&server, "/").1, "served");
        assert!(server.stop().unwrap().success());
    }
}

#[test]
fn term_and_int_end_at_once() {
    for (signal, line) in [
        (Signal::TERM, "signal 15 (SIGTERM) received from "),
        (Signal::INT, "signal 2 (SIGINT) received from "),
    ] {
        let mut server = started("worker_processes 2;");
        let mut download = begin_download(&server);
        let mut idle = idle(&server);
        server.signal(signal).unwrap();
        assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
        assert!(idle.read_until_close().unwrap().is_empty());
        assert!(download.read_bytes(LARGE).is_err());
        let log = server.error_log();
        assert!(log.contains(line) && log.contains(": exit\n"), "{log}");
        assert!(!server.prefix().join("logs/server.pid").exists());
    }
}

#[test]
fn quit_finishes_requests() {
    let mut server = started("worker_processes 2;");
    let mut download = begin_download(&server);
    let mut idle = idle(&server);
    server.signal(Signal::QUIT).unwrap();
    server.wait_error_log("gracefully shutting down").unwrap();
    assert!(idle.read_until_close().unwrap().is_empty());
    let port = server.addr().port();
    assert!(wait::until(wait::TIMEOUT, || !ports::listening(port)), "another server may have the address");
    assert!(!server.error_log().contains(": exit\n"));
    assert_eq!(download.read_bytes(LARGE).unwrap().len(), LARGE);
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
    assert!(server.error_log().contains(": exit\n"), "{}", server.error_log());
}

#[test]
fn keepalive_min_timeout_outlasts_a_graceful_shutdown() {
    let mut server = server().file("html/small", "small").start(&http("keepalive_min_timeout 60s;")).unwrap();
    let mut kept = idle(&server);
    server.signal(Signal::QUIT).unwrap();
    server.wait_error_log("gracefully shutting down").unwrap();
    assert_eq!(text_on(&mut kept, "/small").unwrap(), "small");
    assert_eq!(text_on(&mut kept, "/small").unwrap(), "small");
    drop(kept);
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
}

/// Response to a client that sends a request on an idle connection just after a graceful shutdown has begun; `None` if
/// the test was too slow for that, or sent it before its loop knew.
fn asked_while_shutting_down() -> Option<(u16, Option<String>)> {
    let mut server = started("worker_processes 2;");
    let mut kept = idle(&server);
    server.signal(Signal::QUIT).unwrap();
    server.wait_error_log("gracefully shutting down").unwrap();
    kept.send("GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
    let response = kept.read_response().ok()?;
    assert!(kept.read_until_close().unwrap().is_empty());
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
    let connection = response.field("Connection").map(str::to_owned);
    (connection.as_deref() != Some("keep-alive")).then_some((response.status, connection))
}

#[test]
fn request_at_the_beginning_of_a_graceful_shutdown_is_answered() {
    // The request has to be sent within half a second, between two threads; a busy machine may need another try.
    let answer = (0..5).find_map(|_| asked_while_shutting_down());
    assert_eq!(answer, Some((200, Some("close".to_owned()))));
}

/// `Some` if a client that sends a request after its idle connection was closed by a graceful shutdown sees a close and
/// no reset; `None` if the test was too slow for that.
fn asked_too_late() -> Option<()> {
    let mut server = started("worker_processes 2;");
    let mut kept = idle(&server);
    server.signal(Signal::QUIT).unwrap();
    assert!(kept.read_until_close().unwrap().is_empty());
    for _ in 0..3 {
        kept.send("GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        assert!(kept.read_until_close().ok()?.is_empty());
    }
    drop(kept);
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
    Some(())
}

#[test]
fn request_after_the_close_of_a_graceful_shutdown_causes_no_reset() {
    assert_eq!((0..5).find_map(|_| asked_too_late()), Some(()));
}

#[test]
fn term_ends_a_graceful_shutdown() {
    let mut server = started("worker_processes 2;");
    let mut download = begin_download(&server);
    server.signal(Signal::QUIT).unwrap();
    server.wait_error_log("gracefully shutting down").unwrap();
    server.signal(Signal::TERM).unwrap();
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
    assert!(download.read_bytes(LARGE).is_err());
}

#[test]
fn worker_shutdown_timeout_ends_a_graceful_shutdown() {
    let mut server = started("worker_shutdown_timeout 50ms;");
    let mut download = begin_download(&server);
    server.signal(Signal::QUIT).unwrap();
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
    assert!(download.read_bytes(LARGE).is_err());
}

#[test]
fn reload_drops_no_connection() {
    let mut server = started("worker_processes 2;");
    let mut download = begin_download(&server);
    let mut idle = idle(&server);
    reload_until(
        &mut server,
        &format!("user root; worker_processes 2; {}", http("location /new { return 200 new; }")),
        "/new",
        "new",
    );
    assert_eq!(download.read_bytes(LARGE).unwrap().len(), LARGE);
    for (what, client) in [("idle", &mut idle), ("download", &mut download)] {
        let is_new = || text_on(client, "/new").unwrap() == "new";
        assert!(wait::until(wait::TIMEOUT, is_new), "the next requests of an old connection: {what}");
    }
    assert!(server.stop().unwrap().success());
}

#[test]
fn reload_changes_the_number_of_loops_and_their_settings() {
    let mut server = started("worker_processes 1;");
    let conf = |main: &str, answer: &str| {
        format!("user root; {main} {}", http(&format!("location /new {{ return 200 {answer}; }}")))
    };
    let mut download = begin_download(&server);
    for (main, answer, line) in [
        ("worker_processes 3;", "three", "start worker 2"),
        ("worker_processes 2;", "two", "reconfiguring"),
        ("worker_processes 2; stall_threshold 1s;", "others", "start worker 1"),
        (
            "worker_processes 1; thread_pool default threads=4; thread_pool other threads=2;",
            "pools",
            "start worker 0",
        ),
    ] {
        reload_until(&mut server, &conf(main, answer), "/new", answer);
        server.wait_error_log(line).unwrap();
    }
    assert_eq!(download.read_bytes(LARGE).unwrap().len(), LARGE, "its loop ends after it");
    assert!(server.stop().unwrap().success());
}

#[test]
fn reload_opens_and_closes_addresses() {
    // A file in a new directory is more than the sandbox of a single process allows.
    let mut server = started("sandbox off;");
    let two = "user root; sandbox off; http { server { listen 127.0.0.1:{port}; listen 127.0.0.1:{port1} reuseport; \
        listen unix:{prefix}/socket; return 200 two; } }";
    reload_until(&mut server, two, "/", "two");
    let second = server.addr_of(1);
    assert_eq!(Client::get(second, "/").unwrap().text(), "two");
    assert!(server.prefix().join("socket").exists());
    let one = "user root; sandbox off; http { server { listen 127.0.0.1:{port}; return 200 one; } }";
    reload_until(&mut server, one, "/", "one");
    assert!(wait::until(wait::TIMEOUT, || !ports::listening(second.port())));
    assert!(!server.prefix().join("socket").exists());
    assert!(server.stop().unwrap().success());
}

#[test]
fn failed_reload_changes_nothing() {
    let mut server = started("");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let bad = [
        ("http { servr {} }".to_owned(), "[emerg] "),
        (http(&format!("listen {taken};")), "still could not bind()"),
        (http("access_log /proc/none/access.log;"), "[emerg] "),
    ];
    for (count, (conf, line)) in bad.iter().enumerate() {
        reload(&mut server, &format!("user root; {conf}"));
        let kept = || server.error_log().matches("the configuration stays as it was").count() > count;
        assert!(wait::until(wait::TIMEOUT, kept), "{}", server.error_log());
        server.wait_error_log(line).unwrap();
        assert_eq!(page(&server, "/old"), (200, "old".to_owned()), "{conf}");
    }
    assert!(server.stop().unwrap().success());
}

#[test]
fn usr1_reopens_logs() {
    let mut server = started("");
    assert_eq!(page(&server, "/old"), (200, "old".to_owned()));
    assert_eq!(server.access_log(1).unwrap().len(), 1);
    for log in ["access", "error"] {
        let name = |suffix| server.prefix().join(format!("logs/{log}.{suffix}"));
        std::fs::rename(name("log"), name("1")).unwrap();
    }
    server.signal(Signal::USR1).unwrap();
    let opened =
        || ["access", "error"].iter().all(|log| server.prefix().join(format!("logs/{log}.log")).exists());
    assert!(wait::until(wait::TIMEOUT, opened), "{}", server.stderr());
    // The worker process is told only after that.
    let arrives = || {
        assert_eq!(page(&server, "/old"), (200, "old".to_owned()));
        std::fs::metadata(server.prefix().join("logs/access.log")).is_ok_and(|log| log.len() > 0)
    };
    assert!(wait::until(wait::TIMEOUT, arrives), "{}", server.error_log());
    assert!(server.stop().unwrap().success());
    assert!(server.error_log().contains(": exit\n"));
}

#[test]
fn winch_without_a_daemon_is_ignored() {
    let mut server = started("");
    server.signal(Signal::WINCH).unwrap();
    server.wait_error_log("(SIGWINCH) received").unwrap();
    assert_eq!(page(&server, "/old"), (200, "old".to_owned()));
    assert!(server.stop().unwrap().success());
}

/// `-s reload` in a process of its own: its success and output.
fn order_reload(server: &Server) -> (bool, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let command = command.arg("-p").arg(server.prefix()).args(["-s", "reload"]);
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn reload_command_reports_the_result() {
    for builder in [server(), server().with_master()] {
        let mut server = builder.start(&http("")).unwrap();
        // The server listens before its pid file is there, and serves after that.
        page(&server, "/");
        server.write_conf(&http("location /new { return 200 new; }")).unwrap();
        assert_eq!(order_reload(&server), (true, String::new()), "{}", server.error_log());
        assert_eq!(page(&server, "/new"), (200, "new".to_owned()));

        // Only the running server can detect this error.
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = format!("listen {}; location /new {{ return 200 newer; }}", taken.local_addr().unwrap());
        server.write_conf(&http(&busy)).unwrap();
        let (is_done, said) = order_reload(&server);
        assert!(!is_done && said.contains("still could not bind()"), "{said}");
        assert_eq!(page(&server, "/new"), (200, "new".to_owned()));

        // A warning is printed once, either by the command or by the server.
        server.write_conf(&http("server_name a a; location /new { return 200 newest; }")).unwrap();
        let (is_done, said) = order_reload(&server);
        assert!(is_done && said.matches("conflicting server name").count() <= 1, "{said}");
        assert_eq!(page(&server, "/new"), (200, "newest".to_owned()));
        assert!(server.stop().unwrap().success());
    }
}

#[test]
fn reload_refused_by_the_command_is_logged_with_its_reason() {
    for builder in [server(), server().with_master()] {
        let mut server = builder.start(&http("")).unwrap();
        page(&server, "/");
        for (wrong, reason) in [
            ("location /new { retrun 200 new; }", "[emerg] unknown directive \"retrun\" in "),
            ("location /new { return 200 new;", "[emerg] unexpected end of file, expecting \"}\" in "),
        ] {
            server.write_conf(&http(wrong)).unwrap();
            let (is_done, said) = order_reload(&server);
            assert!(!is_done && said.contains(reason), "{said}");
            let line = server.wait_error_log(&reason.replace("[emerg] ", "")).unwrap();
            assert!(line.contains("[emerg]"), "{line}");
        }
        server.wait_error_log("orders no reload for that, the configuration stays as it was").unwrap();
        assert_eq!(server.error_log().matches("unknown directive").count(), 1, "{}", server.error_log());
        assert_eq!(page(&server, "/new").0, 404);
        assert!(server.stop().unwrap().success());
    }
}
