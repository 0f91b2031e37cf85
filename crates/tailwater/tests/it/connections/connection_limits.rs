//! Behaviour when `worker_connections` or file descriptors run out: idle connections and unused files are closed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use h2::server::Builder as Settings;
use tw_testkit::http2::{Http2, head};
use tw_testkit::http2_origin::http2_origin;
use tw_testkit::origin::{counting, origin};
use tw_testkit::{Client, Server, wait};

use crate::support::download::{LARGE, begin_download};
use crate::support::{get, server};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const GET_UP: &str = "GET /up HTTP/1.1\r\nHost: a\r\n\r\n";
const BEGUN: &str = "GET / HTTP/1.1\r\nHost: a\r\n";

fn is_answered(client: &mut Client, rest: &str) {
    client.send(rest).unwrap();
    assert_eq!(client.read_response().unwrap().text(), "ok");
}

fn start_ok(events: &str, http: &str) -> Server {
    let conf = format!(
        "worker_rlimit_nofile 128; {events}
         http {{ keepalive_timeout 1h; client_header_timeout 1h; {http}
                 server {{ listen 127.0.0.1:{{port}}; root html; location = / {{ return 200 ok; }} }} }}"
    );
    (0..300).fold(server(), |server, n| server.file(format!("html/{n}"), "x")).start(&conf).unwrap()
}

#[test]
fn longest_idle_connection_is_closed_when_descriptors_run_out() {
    for multi_accept in ["off", "on"] {
        let events =
            format!("worker_processes 1; events {{ worker_connections 4096; multi_accept {multi_accept}; }}");
        let server = start_ok(&events, "");
        let mut clients = Vec::new();
        for _ in 0..200 {
            let mut client = server.connect().unwrap();
            is_answered(&mut client, GET);
            clients.push(client);
        }
        assert_eq!(clients[0].read_until_close().unwrap(), b"");
        is_answered(clients.last_mut().unwrap(), GET);
        server.wait_error_log("accept4() failed (24: Too many open files), reusing connections").unwrap();
    }
}

/// Clients that have begun a request, each on an accepted or queued connection.
fn begin_requests(server: &Server, count: usize) -> Vec<Client> {
    let client = |_| {
        let mut client = server.connect().unwrap();
        client.send(BEGUN).unwrap();
        client
    };
    (0..count).map(client).collect()
}

#[test]
fn loop_at_its_limit_pauses_accepting() {
    // All clients have begun a request, so no idle connection can be closed.
    let server = start_ok("worker_processes 1; events { worker_connections 4096; multi_accept on; }", "");
    let mut busy = begin_requests(&server, 150);
    server.wait_error_log("[crit]").unwrap();
    // Accepted clients are served, and the others when these have gone.
    while !busy.is_empty() {
        let rest = busy.split_off(busy.len().min(50));
        for client in &mut busy {
            is_answered(client, "Connection: close\r\n\r\n");
        }
        busy = rest;
    }
}

/// Clients that have begun a request. Accepted ones whose first bytes arrive later may be closed.
fn begun(server: &Server, count: usize) -> Vec<Client> {
    let client = |_| {
        let mut client = server.connect().unwrap();
        let _ = client.send(BEGUN);
        client
    };
    (0..count).map(client).collect()
}

/// Completes the requests, one after the other, and returns the number of responses.
fn complete_requests(clients: Vec<Client>) -> usize {
    let is_served = |mut client: Client| {
        let answer = client.send("Connection: close\r\n\r\n").and_then(|()| client.read_response());
        answer.is_ok_and(|response| response.text() == "ok")
    };
    clients.into_iter().map(is_served).filter(|is_served| *is_served).count()
}

#[test]
fn queued_connections_are_accepted_when_descriptors_are_free() {
    const DESCRIPTORS: usize = 128;
    const CLIENTS: usize = 170;
    for multi_accept in ["off", "on"] {
        let conf = format!(
            "worker_rlimit_nofile {DESCRIPTORS}; worker_processes 1;
             events {{ worker_connections 4096; multi_accept {multi_accept}; }}
             http {{ client_header_timeout 1h;
                     server {{ listen 127.0.0.1:{{port}} backlog={CLIENTS}; location = / {{ return 200 ok; }} }} }}"
        );
        let server = server().start(&conf).unwrap();
        let refusals = || server.error_log().matches("accept4() failed (24: Too many open files)").count();
        for round in 0..3 {
            let before = refusals();
            let clients = begun(&server, CLIENTS);
            assert!(wait::until(wait::TIMEOUT, || refusals() > before), "{round}: {}", server.error_log());
            // No further client wakes the loop: waiting clients are accepted when earlier connections close.
            let served = complete_requests(clients);
            assert!(served > DESCRIPTORS, "{round}: {served} {}", server.error_log());
        }
        assert_eq!(get(&server, "/").text(), "ok");
    }
}

#[test]
fn loop_accepts_again_when_connections_close() {
    const CONNECTIONS: usize = 16;
    for multi_accept in ["off", "on"] {
        let events = format!("worker_connections {CONNECTIONS}; multi_accept {multi_accept};");
        let server = start_ok(&format!("worker_processes 1; events {{ {events} }}"), "");
        for round in 0..3 {
            let clients = begun(&server, 2 * CONNECTIONS);
            // Clients beyond the limit are closed without a response.
            server.wait_error_log("worker_connections are not enough").unwrap();
            assert!(complete_requests(clients) > 0, "{round}: {}", server.error_log());
            // The last connections may still be closing.
            let answers = || Client::get(server.addr(), "/").is_ok_and(|response| response.text() == "ok");
            assert!(wait::until(wait::TIMEOUT, answers), "{round}: {}", server.error_log());
        }
    }
}

#[test]
fn unused_open_files_are_closed_for_connections() {
    let server = start_ok(
        "worker_processes 1; events { worker_connections 4096; }",
        "open_file_cache max=10000 inactive=1h; open_file_cache_valid 1h;",
    );
    for n in 0..300 {
        assert_eq!(get(&server, &format!("/{n}")).text(), "x");
    }
    let mut busy = begin_requests(&server, 40);
    for client in &mut busy {
        is_answered(client, "\r\n");
    }
    server.wait_error_log("Too many open files), reusing connections").unwrap();
    assert!(!server.error_log().contains("[crit]"), "{}", server.error_log());
}

#[test]
fn idle_connections_are_closed_for_files() {
    // The open file is not kept, so each request needs a descriptor.
    let server = start_ok("worker_processes 1; events { worker_connections 4096; }", "disable_symlinks on;");
    let mut asking = server.connect().unwrap();
    let mut waiting = Vec::new();
    for n in 0..150 {
        let mut client = server.connect().unwrap();
        is_answered(&mut client, GET);
        waiting.push(client);
        asking.send(format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
        let response = asking.read_response().unwrap();
        assert_eq!((response.status, response.text()), (200, "x".to_owned()), "{n}: {}", server.error_log());
    }
}

#[test]
fn idle_connections_are_closed_for_listings_and_temporary_files() {
    let listing = "autoindex on;";
    let upload = "dav_methods PUT; create_full_put_path on; client_body_in_file_only clean;";
    let conf = format!(
        "worker_rlimit_nofile 128; worker_processes 1; user root; events {{ worker_connections 4096; }}
         http {{ keepalive_timeout 1h;
                 server {{ listen 127.0.0.1:{{port}}; root html; location = / {{ return 200 ok; }}
                           location /list/ {{ {listing} }} location /put/ {{ {upload} }} }} }}"
    );
    for (request, status) in [
        ("GET /list/ HTTP/1.1\r\nHost: a\r\n\r\n", [200, 200]),
        ("PUT /put/file HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", [201, 204]),
    ] {
        let server = server().file("html/list/name", "x").start(&conf).unwrap();
        let mut asking = server.connect().unwrap();
        let mut waiting = Vec::new();
        for n in 0..150 {
            let mut client = server.connect().unwrap();
            is_answered(&mut client, GET);
            waiting.push(client);
            asking.send(request).unwrap();
            let response = asking.read_response().unwrap();
            assert!(status.contains(&response.status), "{n}: {} {}", response.status, server.error_log());
        }
    }
}

/// Two loops, one with idle clients and one with busy clients.
#[test]
fn loop_has_other_loops_free_a_descriptor_for_a_file() {
    let conf = "worker_rlimit_nofile 128; worker_processes 2; error_log logs/error.log debug;
        events { worker_connections 4096; connection_balance off; }
        http { client_header_timeout 1h; keepalive_timeout 1h; disable_symlinks on;
               server { listen 127.0.0.1:{port} reuseport; root html; location = / { return 200 ok; } } }";
    let server = server().file("html/file", "x").start(conf).unwrap();
    let mut asking = server.connect().unwrap();
    let stingy = loop_of(&server, &asking);
    // A request is always in progress on this connection, so it is never closed as idle.
    asking.send("G").unwrap();
    let mut clients = Vec::new();
    let mut others = 0;
    for n in 0..300 {
        let mut client = server.connect().unwrap();
        // Clients of the stingy loop always have a request in progress, so it can never close one of its own.
        if loop_of(&server, &client) == stingy {
            client.send(BEGUN).unwrap()
        } else {
            others += 1
        }
        clients.push(client);
        asking.send("ET /file HTTP/1.1\r\nHost: a\r\n\r\nG").unwrap();
        let response = asking.read_response().unwrap();
        assert_eq!((response.status, response.text()), (200, "x".to_owned()), "{n}: {}", server.error_log());
        if server.error_log().contains("another loop has no descriptor left, reusing connections") {
            break;
        }
    }
    assert!(others > 0, "of forty connections of two sockets one at least is the other's");
    server.wait_error_log("another loop has no descriptor left, reusing connections").unwrap();
}

/// Loop of a client: the thread that logs its connection.
fn loop_of(server: &Server, client: &Client) -> String {
    let line = server.wait_error_log(&format!("accept: {}", client.local_addr().unwrap())).unwrap();
    line.split('#').nth(1).unwrap().split(':').next().unwrap().to_owned()
}

#[test]
fn loop_has_other_loops_free_a_descriptor_for_a_connection() {
    let conf = "worker_rlimit_nofile 128; worker_processes 2; error_log logs/error.log debug;
        events { worker_connections 4096; connection_balance off; }
        http { client_header_timeout 1h;
               server { listen 127.0.0.1:{port} reuseport; location = / { return 200 ok; } } }";
    let server = server().start(conf).unwrap();
    let expected = "another loop has no descriptor left, reusing connections";
    let mut clients: Vec<(Client, String)> = Vec::new();
    // A connection of the other loop that it closes for itself is followed by others, so it always has some.
    while clients.len() < 1000 && !server.error_log().contains(expected) {
        let mut client = server.connect().unwrap();
        let at = loop_of(&server, &client);
        // No connection on the loop of the first client is idle.
        if clients.first().is_none_or(|(_, stingy)| *stingy == at) {
            client.send(BEGUN).unwrap();
        }
        clients.push((client, at));
    }
    server.wait_error_log(expected).unwrap();
    let stingy = clients[0].1.clone();
    for (client, _) in clients.iter_mut().filter(|(_, at)| *at == stingy) {
        is_answered(client, "Connection: close\r\n\r\n");
    }
}

#[test]
fn lingering_connections_are_closed_for_new_ones() {
    let server = start_ok(
        "worker_processes 1; events { worker_connections 16; }",
        "lingering_close always; lingering_time 1h; lingering_timeout 1h;",
    );
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = server.connect().unwrap();
        is_answered(&mut client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        clients.push(client);
    }
    // A busy machine makes turns of a loop long, which adds other warnings.
    server.wait_error_log("16 worker_connections are not enough, reusing connections").unwrap();
    assert!(!server.error_log().contains("[alert]"), "{}", server.error_log());
}

#[test]
fn connection_without_a_proxy_protocol_header_is_closed_for_new_ones() {
    let conf = "worker_processes 1; events { worker_connections 16; }
        http { client_header_timeout 1h;
               server { listen 127.0.0.1:{port} proxy_protocol; location = / { return 200 ok; } } }";
    let server = server().start(conf).unwrap();
    let silent: Vec<Client> = (0..50).map(|_| server.connect().unwrap()).collect();
    let mut client = server.connect().unwrap();
    is_answered(&mut client, &format!("PROXY UNKNOWN\r\n{GET}"));
    assert!(!server.error_log().contains("[alert]"), "{}", server.error_log());
    drop(silent);
}

/// A server with 16 connections that passes requests for `/up` to `addr`.
fn start_proxy(addr: SocketAddr, location: &str) -> Server {
    let conf = format!(
        "worker_processes 1; events {{ worker_connections 16; }}
         http {{ keepalive_timeout 1h; client_header_timeout 1h; upstream up {{ server {addr}; keepalive 16; }}
                 server {{ listen 127.0.0.1:{{port}}; http2 on; root html; location = / {{ return 200 ok; }}
                           location /up {{ proxy_pass http://up; {location} }} }} }}"
    );
    server().file("html/large", vec![b'x'; LARGE]).start(&conf).unwrap()
}

/// Busy clients: each is in the middle of a download.
fn busy(server: &Server, count: usize) -> Vec<Client> {
    (0..count).map(|_| begin_download(server)).collect()
}

/// Statuses of `count` requests for `/up`, sent at once on one connection.
fn statuses(client: &mut Http2, count: usize) -> Vec<u16> {
    let mut statuses = client.run(|mut requests| async move {
        let mut responses = Vec::new();
        for _ in 0..count {
            requests = requests.ready().await.unwrap();
            responses.push(requests.send_request(head("GET", "/up", &[]), true).unwrap().0);
        }
        let mut statuses = Vec::new();
        for response in responses {
            statuses.push(response.await.unwrap().status().as_u16());
        }
        statuses
    });
    statuses.sort_unstable();
    statuses
}

#[test]
fn upstream_connections_count_as_worker_connections() {
    let released = Arc::new(AtomicBool::new(false));
    let opened = Arc::new(AtomicUsize::new(0));
    let is_released = released.clone();
    let open = opened.clone();
    let addr = origin(move |mut conn| {
        open.fetch_add(1, SeqCst);
        while conn.head().is_some() {
            assert!(wait::until(wait::TIMEOUT, || is_released.load(SeqCst)));
            conn.answer("", "ok");
        }
    });
    let server = start_proxy(addr, "");
    let mut client = Http2::connect(server.addr()).unwrap();
    const REFUSED: &str = "16 worker_connections are not enough while connecting to upstream";
    // One of the connections is the client's.
    let statuses = thread::scope(|scope| {
        scope.spawn(|| {
            let is_full = || server.error_log().matches(REFUSED).count() == 5 && opened.load(SeqCst) == 15;
            assert!(wait::until(wait::TIMEOUT, is_full), "{}", server.error_log());
            released.store(true, SeqCst);
        });
        statuses(&mut client, 20)
    });
    assert_eq!(statuses, [[200; 15].as_slice(), &[500; 5]].concat());
    assert!(server.wait_error_log(REFUSED).unwrap().contains("[alert]"));
    // The lack of connections does not count as a failure of the upstream server.
    assert!(!server.error_log().contains("temporarily disabled"), "{}", server.error_log());
    assert_eq!(get(&server, "/up").status, 200);
}

#[test]
fn idle_clients_are_closed_for_an_upstream_connection() {
    let (addr, _) = counting(|conn, _, _| conn.answer("", "ok"));
    let server = start_proxy(addr, "");
    let mut clients: Vec<Client> = (0..16).map(|_| server.connect().unwrap()).collect();
    clients.iter_mut().for_each(|client| is_answered(client, GET));
    is_answered(clients.last_mut().unwrap(), GET_UP);
    assert_eq!(clients[0].read_until_close().unwrap(), b"");
    server.wait_error_log("16 worker_connections are not enough, reusing connections").unwrap();
    assert!(!server.error_log().contains("[alert]"), "{}", server.error_log());
}

#[test]
fn idle_upstream_connections_are_closed_for_clients() {
    let came = Arc::new(AtomicUsize::new(0));
    let closed = Arc::new(AtomicUsize::new(0));
    let connected = came.clone();
    let ended = closed.clone();
    let addr = origin(move |mut conn| {
        connected.fetch_add(1, SeqCst);
        while conn.head().is_some() {
            // All four requests are held at the same time, so each needs a connection of its own.
            assert!(wait::until(wait::TIMEOUT, || connected.load(SeqCst) == 4));
            conn.answer("", "ok");
        }
        ended.fetch_add(1, SeqCst);
    });
    let server = start_proxy(addr, "");
    let mut asking: Vec<Client> = (0..4).map(|_| server.connect().unwrap()).collect();
    asking.iter_mut().for_each(|client| client.send(GET_UP).unwrap());
    asking.iter_mut().for_each(|client| assert_eq!(client.read_response().unwrap().text(), "ok"));
    // With four connections of each kind in use, four more clients have no room.
    let mut others = busy(&server, 8);
    assert_eq!(closed.load(SeqCst), 0);
    for count in 1..=4 {
        others.extend(busy(&server, 1));
        assert!(wait::until(wait::TIMEOUT, || closed.load(SeqCst) == count), "{}", server.error_log());
    }
    asking.iter_mut().for_each(|client| is_answered(client, GET));
    assert!(!server.error_log().contains("[alert]"), "{}", server.error_log());
}

#[test]
fn http2_upstream_connection_counts_once_for_all_requests() {
    let addr = http2_origin(Settings::new(), |mut request| async move { request.answer(&[], "ok") });
    let server = start_proxy(addr, "proxy_http_version 2;");
    let mut client = Http2::connect(server.addr()).unwrap();
    let mut others = busy(&server, 14);
    assert_eq!(statuses(&mut client, 8), [200; 8]);
    // The upstream connection is idle now, and is closed for one more client.
    others.extend(busy(&server, 1));
    assert_eq!(statuses(&mut client, 8), [500; 8]);
    server.wait_error_log("16 worker_connections are not enough while connecting to upstream").unwrap();
    others.truncate(14);
    assert!(wait::until(wait::TIMEOUT, || statuses(&mut client, 1) == [200]), "{}", server.error_log());
}
