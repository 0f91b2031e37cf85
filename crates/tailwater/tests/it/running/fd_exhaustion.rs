//! Worker process without free descriptors, and logs on a full disk.

use std::fs;

use tw_testkit::{Client, Server, Signal, wait};

use super::master::{builder, conf, new_location, start, started};
use crate::support::page;
use crate::support::process::{children, is_gone, kill, worker};
use crate::support::reload::reload_until;
use crate::support::text_on;

#[test]
fn reloads_reopens_and_respawns_leak_no_descriptors() {
    let mut server = builder()
        .start(
            "worker_processes 2; http { access_log logs/a.log; server { listen 127.0.0.1:{port} reuseport; \
                location /old { return 200 old; } location /new { access_log logs/b.log; return 200 0; } } }",
        )
        .unwrap();
    let count = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).map(|fds| fds.count());
    let cycle = |server: &mut Server, number: u32| {
        let main = if number.is_multiple_of(3) { "env A=b;" } else { "" };
        let text = format!(
            "worker_processes 2; {main} http {{ access_log logs/a.log; server {{ listen 127.0.0.1:{{port}} reuseport; \
             location /old {{ return 200 old; }} location /new {{ access_log logs/b.log; return 200 {number}; }} }} }}"
        );
        reload_until(server, &text, "/new", &number.to_string());
        server.signal(Signal::USR1).unwrap();
        kill(worker(server), Signal::USR1);
        if number.is_multiple_of(5) {
            let before = worker(server);
            kill(before, Signal::KILL);
            assert!(wait::until(wait::TIMEOUT, || is_gone(before)));
            assert_eq!(page(server, "/old").0, 200);
        }
    };
    (1..=6).for_each(|number| cycle(&mut server, number));
    let steady = |server: &Server| {
        let worker = worker(server);
        assert_eq!(page(server, "/old").0, 200);
        [count(server.pid()).unwrap(), count(worker).unwrap_or(usize::MAX)]
    };
    // Logs are closed and reopened, and descriptors that are being closed still count. The most frequent of many counts
    // is steady.
    let mut looks: Vec<_> = (0..50).map(|_| steady(&server)).collect();
    looks.sort_unstable();
    let count_of = |look: &[usize; 2]| looks.iter().filter(|other| *other == look).count();
    let before = *looks.iter().max_by_key(|look| count_of(look)).unwrap();
    (7..=24).for_each(|number| cycle(&mut server, number));
    let is_as_before = || steady(&server).iter().zip(before).all(|(now, before)| *now <= before);
    assert!(wait::until(wait::TIMEOUT, is_as_before), "{before:?}, now {:?}", steady(&server));
    assert!(server.stop().unwrap().success());
}

#[test]
fn descriptor_table_has_room_for_all_connections_from_the_start() {
    for (main, expected) in [("", 1024), ("worker_processes 2; worker_rlimit_nofile 20000;", 2048)] {
        let conf = format!("{main} http {{ server {{ listen 127.0.0.1:{{port}}; return 200 0; }} }}");
        let server = builder().start(&conf).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", worker(&server))).unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        assert!(size.trim().parse::<u64>().unwrap() >= expected, "{main}: {size}");
    }
}

/// A server whose worker has no descriptor left, and as many incomplete requests.
fn start_without_descriptors() -> (Server, Vec<Client>) {
    const LIMIT: usize = 60;
    let server = started(&format!("worker_processes 1; worker_rlimit_nofile {LIMIT};"));
    let begun = (0..LIMIT - 10).map(|_| {
        let mut client = server.connect().unwrap();
        client.send("GET /old HTTP/1.1\r\n").unwrap();
        client
    });
    let begun = begun.collect();
    server.wait_error_log("accept4() failed (24: Too many open files)").unwrap();
    (server, begun)
}

/// Completes the requests and checks the responses, whichever process has them.
fn complete_requests(begun: Vec<Client>) {
    for mut client in begun {
        client.send("Host: localhost\r\nConnection: close\r\n\r\n").unwrap();
        assert_eq!(client.read_response().unwrap().text(), "old");
    }
}

#[test]
fn worker_out_of_descriptors_is_replaced_without_loss() {
    let (mut server, begun) = start_without_descriptors();
    let before = worker(&server);
    reload_until(
        &mut server,
        &conf("worker_rlimit_nofile 60; worker_processes 1;", &new_location("1")),
        "/new",
        "1",
    );
    assert!(!is_gone(before), "{}", server.error_log());
    server.wait_error_log("so another worker process is needed").unwrap();
    complete_requests(begun);
    assert!(wait::until(wait::TIMEOUT, || is_gone(before)), "{}", server.error_log());
    assert!(!server.error_log().contains("exited on signal"), "{}", server.error_log());

    let (server, begun) = start_without_descriptors();
    let before = worker(&server);
    let logs = server.prefix().join("logs");
    fs::rename(logs.join("access.log"), logs.join("access.1")).unwrap();
    server.signal(Signal::USR1).unwrap();
    let other = || children(server.pid()).into_iter().any(|pid| pid != before);
    assert!(wait::until(wait::TIMEOUT, other), "{}", server.error_log());
    let arrives =
        || page(&server, "/old").0 == 200 && fs::metadata(logs.join("access.log")).unwrap().len() > 0;
    assert!(wait::until(wait::TIMEOUT, arrives));
    complete_requests(begun);
    assert!(wait::until(wait::TIMEOUT, || is_gone(before)), "{}", server.error_log());
    assert!(!server.error_log().contains("exited on signal"), "{}", server.error_log());
}

#[test]
fn logs_on_a_full_disk_block_nothing() {
    let full = "error_log /dev/full info;";
    let text = |number: u32| {
        format!(
            "{full} http {{ access_log /dev/full; access_log logs/access.log; server {{ listen 127.0.0.1:{{port}}; \
             location /old {{ return 200 old; }} location /new {{ return 200 {number}; }} }} }}"
        )
    };
    let mut server = start(builder(), &text(0));
    let mut kept = server.connect().unwrap();
    for number in 1..4 {
        assert_eq!(text_on(&mut kept, "/old").unwrap(), "old");
        reload_until(&mut server, &text(number), "/new", &number.to_string());
        server.signal(Signal::USR1).unwrap();
        assert_eq!(page(&server, "/old").0, 200);
    }
    server.wait_error_log("write() to \"/dev/full\" failed (28: No space left on device)").unwrap();
    assert!(server.stop().unwrap().success());
}
