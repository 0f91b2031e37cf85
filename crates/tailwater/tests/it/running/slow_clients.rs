//! Clients that take their responses slowly or not at all, or send nothing: what they make a server hold is bounded, and others are served
//! meanwhile.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tw_testkit::http2::{END_HEADERS, END_STREAM, PREFACE, frame, hpack, kind};
use tw_testkit::quic::ClientSettings;
use tw_testkit::server::Builder;
use tw_testkit::{Server, wait};

use crate::support::cgroup::Cgroup;
use crate::support::content::noise;
use crate::support::http3::{Http3Client, start_http3_with};
use crate::support::metrics::{metric, metrics_text};
use crate::support::process::children;
use crate::support::{connect_slowly, get, refusal, refusal_of, server};

/// Bytes of a large response.
const BIG: usize = 1 << 20;

/// A client of HTTP/1.1 that does not read its response.
fn slow_client(server: &Server, from: [u8; 4], target: &str) -> TcpStream {
    let mut client = connect_slowly(server, from);
    client.write_all(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
    client
}

/// A client of HTTP/2 whose streams have no window.
fn slow_streams(server: &Server, from: [u8; 4], target: &str, count: u32) -> TcpStream {
    /// `SETTINGS_INITIAL_WINDOW_SIZE` of 0.
    const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
    let head = hpack(&[(":method", "GET"), (":scheme", "http"), (":path", target), (":authority", "a")]);
    let mut bytes = PREFACE.to_vec();
    bytes.extend_from_slice(&frame(kind::SETTINGS, 0, 0, &NO_WINDOW));
    for n in 0..count {
        bytes.extend_from_slice(&frame(kind::HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &head));
    }
    let mut client = connect_slowly(server, from);
    client.write_all(&bytes).unwrap();
    client
}

/// Bytes that the process that serves has allocated, in memory.
fn anonymous(server: &Server) -> u64 {
    let pid = children(server.pid()).first().copied().unwrap_or(server.pid());
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn upstream() -> Server {
    let conf = "events { worker_connections 8000; }
        http { server { listen 127.0.0.1:{port} backlog=1000; root html; keepalive_timeout 300s; } }";
    server().file("html/big", noise(BIG)).file("html/a", "hello").start(conf).unwrap()
}

/// Configuration of a server that passes requests on: with temporary files below `/p/`, in memory only below `/memory/`.
fn proxy_conf(of: &Server, main: &str) -> String {
    let of = of.addr();
    format!(
        "worker_memory_lock off; {main} events {{ worker_connections 8000; }}
         http {{ proxy_http_version 1.1; proxy_set_header Connection \"\";
         server {{ listen 127.0.0.1:{{port}} sndbuf=8k backlog=1000; http2 on; root html; location /metrics {{ metrics; }}
         location /p/ {{ proxy_pass http://{of}/; }}
         location /memory/ {{ proxy_pass http://{of}/; proxy_max_temp_file_size 0; }} }} }}"
    )
}

fn builder() -> Builder {
    server().with_master().file("html/a", "hello").file("html/big", noise(BIG))
}

#[test]
fn requests_of_clients_that_hold_much_wait_and_are_refused() {
    const BUDGET: u64 = 48 << 20;
    let of = upstream();
    let server = builder().start(&proxy_conf(&of, &format!("memory_budget {BUDGET};"))).unwrap();
    assert_eq!(metric(&server, "memory_budget_bytes"), BUDGET);
    assert_eq!((metric(&server, "memory_level"), metric(&server, "memory_refused_requests_total")), (0, 0));
    let held_count = || metric(&server, "memory_held_bytes{protocol=\"HTTP/2\"}");
    let mut clients = Vec::new();
    for last in 0..40 {
        clients.push(slow_streams(&server, [127, 0, 1, last], "/memory/big", 100));
        // A client of another protocol is served all the time.
        assert_eq!(get(&server, "/p/a").text(), "hello", "{}", metrics_text(&server));
        assert!(anonymous(&server) < BUDGET, "{} of {BUDGET}: {}", anonymous(&server), metrics_text(&server));
    }
    let refused = || metric(&server, "memory_refused_requests_total");
    assert!(wait::until(wait::TIMEOUT, || refused() > 0), "{}", metrics_text(&server));
    assert!(held_count() > BUDGET / 16, "{}", metrics_text(&server));
    server.wait_error_log("requests are refused for want of memory").unwrap();
    assert!(anonymous(&server) < BUDGET);
    drop(clients);
    let is_free = || held_count() < 1 << 20 && metric(&server, "memory_level") == 0;
    assert!(wait::until(wait::TIMEOUT, is_free), "{}", metrics_text(&server));
    assert_eq!(get(&server, "/memory/big").body.len(), BIG);
}

#[test]
fn wrong_budgets_are_refused() {
    for (wrong, message) in [
        ("memory_budget;", "invalid number of arguments in \"memory_budget\" directive"),
        ("memory_budget 1m;", "invalid value \"1m\""),
        ("memory_budget much;", "invalid value"),
        ("memory_budget off; memory_budget auto;", "\"memory_budget\" directive is duplicate"),
    ] {
        let said = refusal_of(&format!("{wrong} http {{ server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(said.contains(message), "{wrong}: {said}");
    }
    let said = refusal("memory_budget off;");
    assert!(said.contains("\"memory_budget\" directive is not allowed here"), "{said}");
}

#[test]
fn refused_request_of_http1_gets_503() {
    let of = upstream();
    let server = builder().start(&proxy_conf(&of, "memory_budget 16m;")).unwrap();
    let mut clients = Vec::new();
    let refused = wait::until(wait::TIMEOUT, || {
        clients.push(slow_client(&server, [127, 0, 1, 1], "/memory/big"));
        metric(&server, "memory_refused_requests_total") > 0
    });
    assert!(refused, "{}", metrics_text(&server));
    let has_503 = |client: &mut TcpStream| {
        let mut head = [0; 13];
        client.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        client.read_exact(&mut head).unwrap();
        &head == b"HTTP/1.1 503 "
    };
    assert!(clients.iter_mut().any(has_503));
}

#[test]
fn slow_clients_of_all_kinds_fit_into_a_cgroup() {
    const LIMIT: u64 = 128 << 20;
    let Some(group) = Cgroup::new("slow-clients", LIMIT) else { return };
    let of = upstream();
    let server = group.start(builder(), &proxy_conf(&of, "worker_processes 2;"));
    assert_eq!(metric(&server, "memory_budget_bytes"), LIMIT - LIMIT / 16);
    let mut clients = Vec::new();
    let check = |clients: Vec<TcpStream>, what: &str| {
        assert_eq!(get(&server, "/p/a").text(), "hello", "{what}");
        assert_eq!(group.killed(), 0, "{what}: {} KB at most, {}", group.peak() >> 10, metrics_text(&server));
        clients
    };
    for (target, what) in [("/p/big", "proxied"), ("/memory/big", "in memory"), ("/big", "files")] {
        for part in 0..4 {
            let from = [127, 0, 2, part];
            clients.extend(check((0..100).map(|_| slow_client(&server, from, target)).collect(), what));
            let of_http2 = (0..8).map(|_| slow_streams(&server, [127, 0, 3, part], target, 100)).collect();
            clients.extend(check(of_http2, what));
        }
    }
    for part in 0..10 {
        clients
            .extend(check((0..150).map(|_| connect_slowly(&server, [127, 0, 4, part])).collect(), "silent"));
    }
    drop(clients);
    check(Vec::new(), "gone");
}

#[test]
fn silent_connection_costs_no_more_than_an_idle_one() {
    const COUNT: usize = 1500;
    let conf = "worker_memory_lock off; events { worker_connections 8000; }
        http { server { listen 127.0.0.1:{port} backlog=1000; http2 on; root html; keepalive_timeout 300s; } }";
    let cost = |request: &str| {
        let server = builder().start(conf).unwrap();
        assert_eq!(get(&server, "/a").text(), "hello");
        let before = anonymous(&server);
        let clients: Vec<_> = (0..COUNT)
            .map(|_| {
                let mut client = connect_slowly(&server, [127, 0, 0, 1]);
                client.write_all(request.as_bytes()).unwrap();
                if !request.is_empty() {
                    let mut end = [0; 5];
                    while &end != b"hello" {
                        end.rotate_left(1);
                        client.read_exact(&mut end[4..]).unwrap();
                    }
                }
                client
            })
            .collect();
        // The last of them was accepted.
        assert_eq!(get(&server, "/a").text(), "hello");
        let after = anonymous(&server);
        drop(clients);
        after.saturating_sub(before) / COUNT as u64
    };
    let silent = cost("");
    let idle = cost("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(silent <= idle + 300, "{silent} bytes for a silent connection, {idle} for an idle one");
}

#[test]
fn http3_makes_no_pieces_for_streams_without_room() {
    const STREAMS: usize = 100;
    let content = "location /metrics { metrics; } http3_max_concurrent_streams 128;";
    let files = server().file("html/big", noise(BIG)).file("html/a", "hello");
    let http3 = start_http3_with(files, "", content);
    // Room for a head and a few bytes.
    let settings = ClientSettings { stream_window: Some(400), ..http3.settings() };
    // The process that serves has begun.
    assert_eq!(http3.client().get("/a").text(), "hello");
    let before = anonymous(&http3.server);
    let mut client = Http3Client::connect(&settings, http3.server.addr()).unwrap();
    let ids: Vec<_> = (0..STREAMS).map(|_| client.begin("GET", "/big", &[], true)).collect();
    for id in ids {
        assert!(!client.body(id, 1).is_empty());
    }
    let more = anonymous(&http3.server).saturating_sub(before);
    assert!(more < 8 << 20, "{} KB for {STREAMS} streams", more >> 10);
}
