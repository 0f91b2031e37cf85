//! Upstream groups of `stream`: limits, states of servers, names, and state files.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use tw_testkit::dns::{Data, DnsServer, kind};
use tw_testkit::ports::Port;
use tw_testkit::{Client, Server, wait};

use super::metrics::start;
use super::{echo, text, upstream};
use crate::support::{get, request};

/// An upstream server that sends its name.
fn named(name: &'static str) -> SocketAddr {
    upstream(move |mut stream| stream.write_all(name.as_bytes()).unwrap())
}

/// Names of the servers of so many sessions.
fn names(server: &Server, count: usize) -> String {
    (0..count).map(|_| text(server.addr_of(1))).collect()
}

#[test]
fn max_conns_counts_sessions() {
    let first = upstream(echo);
    let second = named("second");
    let server = start(&format!(
        "upstream u {{ server {first} max_conns=1; server {second} backup; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; }}"
    ));
    let mut session = Client::connect(server.addr_of(1)).unwrap();
    session.send("x").unwrap();
    assert_eq!(session.read_bytes(1).unwrap(), b"x");
    assert_eq!(names(&server, 2), "secondsecond");
    drop(session);
    let is_free = || {
        let mut session = Client::connect(server.addr_of(1)).unwrap();
        session.send("y").unwrap();
        session.read_bytes(1).is_ok_and(|byte| byte == b"y")
    };
    assert!(wait::until(wait::TIMEOUT, is_free), "{}", server.error_log());
}

#[test]
fn backup_down_and_drained_servers() {
    let [a, b, c] = ["a", "b", "c"].map(named);
    let server = start(&format!(
        "upstream u {{ zone u 64k; server {a} drain; server {b} down; server {c} backup slow_start=30s; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; }}"
    ));
    assert_eq!(names(&server, 3), "ccc");
    let view = get(&server, "/api/stream/upstreams/u/servers").text();
    for expected in ["\"drain\":true", "\"down\":true", "\"slow_start\":\"30s\"", "\"backup\":true"] {
        assert!(view.contains(expected), "{expected}: {view}");
    }
}

#[test]
fn slow_start_after_an_outage_raises_the_weight_gradually() {
    let a = named("a");
    let port = Port::reserve().unwrap();
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
    let server = start(&format!(
        "upstream u {{ server {a}; server {addr} slow_start=1h; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; health_check interval=20ms; }}"
    ));
    let state = || get(&server, "/api/stream/upstreams/u").text();
    assert!(wait::until(wait::TIMEOUT, || state().contains("\"state\":\"unhealthy\"")));
    drop(port);
    let listener = TcpListener::bind(addr).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"b");
        }
    });
    assert!(wait::until(wait::TIMEOUT, || !state().contains("\"state\":\"unhealthy\"")));
    // The server has a small part of its weight for an hour.
    let names = names(&server, 20);
    assert!(names.matches('b').count() <= 1, "{names}");
}

#[test]
fn names_of_servers_are_followed() {
    let server_a = named("a");
    let port = server_a.port();
    let dns = DnsServer::start(move |query, out| match (&*query.name, query.kind) {
        ("_db._tcp.app.test", kind::SRV) => {
            let srv = Data::Srv(1, 1, port, "host.test");
            out.send(query.answer().record(&query.name, 60, srv).bytes());
        }
        ("host.test" | "app.test", kind::A) => {
            let address = Data::A(Ipv4Addr::LOCALHOST);
            out.send(query.answer().record(&query.name, 60, address).bytes());
        }
        _ => out.send(query.answer().bytes()),
    });
    let server = start(&format!(
        "resolver {};
         upstream u {{ zone u 64k; server app.test:{port} resolve; }}
         upstream v {{ zone v 64k; server app.test service=db resolve; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; }}
         server {{ listen 127.0.0.1:{{port2}}; proxy_pass v; }}",
        dns.addr()
    ));
    assert_eq!(text(server.addr_of(1)), "a", "{}", server.error_log());
    assert_eq!(text(server.addr_of(2)), "a", "{}", server.error_log());
    let view = get(&server, "/api/stream/upstreams/v/servers").text();
    assert!(view.contains("\"service\":\"db\"") && view.contains("\"host\":\"app.test\""), "{view}");
}

#[test]
fn state_file_keeps_the_servers_of_the_api() {
    let a = named("a");
    let conf = "http { server { listen 127.0.0.1:{port}; location /api/ { api write=on; } } }
        stream { upstream u { state state/u.conf; } server { listen 127.0.0.1:{port1}; proxy_pass u; } }";
    let user = if rustix::process::geteuid().is_root() { "user root root; " } else { "" };
    let conf = format!("{user}{conf}");
    let mut server = crate::support::server().file("state/keep", "").start(&conf).unwrap();
    assert_eq!(text(server.addr_of(1)), "");
    let mut client = server.connect().unwrap();
    let body = format!("{{\"server\":\"{a}\",\"weight\":2}}");
    client
        .send(format!(
            "POST /api/stream/upstreams/u/servers HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .unwrap();
    assert_eq!(client.read_response().unwrap().status, 201);
    assert_eq!(text(server.addr_of(1)), "a");
    let saved = std::fs::read_to_string(server.prefix().join("state/u.conf")).unwrap();
    assert_eq!(saved, format!("server {a} weight=2;\n"));
    crate::support::reload::reload(&mut server, &conf);
    assert_eq!(text(server.addr_of(1)), "a");
    assert_eq!(request(&server, "DELETE /api/stream/upstreams/u/servers/0", &[]).status, 200);
    assert_eq!(std::fs::read_to_string(server.prefix().join("state/u.conf")).unwrap(), "");
}
