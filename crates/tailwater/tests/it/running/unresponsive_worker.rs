//! Worker process without a sign of life: another one serves in its place.

use tw_testkit::{Signal, wait};

use super::master::{conf, started};
use crate::support::download::{LARGE, begin_download};
use crate::support::process::{children, is_gone, kill, worker};
use crate::support::reload::reload;
use crate::support::{page, server};

/// The server waits [`wait::TIMEOUT`] itself before it believes in a silence.
const LONG: std::time::Duration = wait::TIMEOUT.saturating_mul(4);

#[test]
fn stopped_worker_is_replaced_and_finishes_when_continued() {
    let server = started("worker_processes 2;");
    let before = worker(&server);
    let mut download = begin_download(&server);
    kill(before, Signal::STOP);
    let line = wait::some(LONG, || server.wait_error_log("has given no sign of life").ok()).unwrap();
    assert!(line.contains("[alert]") && line.contains(&format!("worker process {before} ")), "{line}");
    let another = || children(server.pid()).into_iter().find(|pid| *pid != before);
    let after = wait::some(wait::TIMEOUT, another).unwrap();
    // No connection goes to the stopped worker.
    for _ in 0..32 {
        assert_eq!(page(&server, "/old").1, "old");
    }
    assert!(!is_gone(before), "it may still go on");
    kill(before, Signal::CONT);
    assert_eq!(download.read_bytes(LARGE).unwrap().len(), LARGE);
    assert!(wait::until(wait::TIMEOUT, || is_gone(before)), "{}", server.error_log());
    assert_eq!(worker(&server), after);
    assert!(!server.error_log().contains("exited on signal"), "{}", server.error_log());
}

#[test]
fn worker_with_a_hung_loop_is_replaced() {
    if !cfg!(debug_assertions) {
        return tw_testkit::leave_out(tw_testkit::Lacks::Run, "a release has no traps");
    }
    let server = server()
        .with_master()
        .start(
            "worker_processes 2; loop_watchdog 200ms; http { server { listen 127.0.0.1:{port};
             location / { return 200 served; } location /spin { trap spin; } } }",
        )
        .unwrap();
    assert_eq!(page(&server, "/").1, "served");
    let before = worker(&server);
    let mut hanging = server.connect().unwrap();
    hanging.send("GET /spin HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let another = || children(server.pid()).into_iter().any(|pid| pid != before);
    assert!(wait::until(LONG, another), "{}", server.error_log());
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/").1 == "served"));
    server.wait_error_log(&format!("worker process {before} has given no sign of life")).unwrap();
}

#[test]
fn worker_stopped_during_a_reload_is_replaced_with_the_new_configuration() {
    let mut server = started("worker_processes 2;");
    let before = worker(&server);
    kill(before, Signal::STOP);
    reload(&mut server, &conf("worker_processes 2;", "location /new { return 200 new; }"));
    let line = wait::some(LONG, || server.wait_error_log("has given no sign of life").ok()).unwrap();
    assert!(line.contains("[alert]") && line.contains(&format!("worker process {before} ")), "{line}");
    server.wait_error_log("the configuration is taken over").unwrap();
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/new").1 == "new"), "{}", server.error_log());
    // The worker was replaced for being stopped, not for loading its configuration too slowly.
    assert!(!server.error_log().contains("does not answer"), "{}", server.error_log());
    kill(before, Signal::CONT);
    assert!(wait::until(wait::TIMEOUT, || is_gone(before)), "{}", server.error_log());
    assert!(!server.error_log().contains("exited on signal"), "{}", server.error_log());
}
