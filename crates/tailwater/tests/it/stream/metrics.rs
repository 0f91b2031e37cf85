//! Counters of sessions, of servers and of upstream groups: metrics, and the API.

use std::net::SocketAddr;

use tw_testkit::tls::Authority;
use tw_testkit::{Client, Server, wait};

use super::{echo, text, upstream};
use crate::support::get;
use crate::support::metrics::{metric, metrics_text, try_metric};

/// Starts a server with metrics on its first address, beside a `stream` block with this content.
pub(super) fn start(stream: &str) -> Server {
    let http = "http { access_log off; upstream u { server 127.0.0.1:9; }
        server { listen 127.0.0.1:{port}; location = /metrics { metrics; } location = /status { status_page; }
        location /api/ { api write=on; } location / { proxy_pass http://u; } } }";
    crate::support::server().start(&format!("{http} stream {{ {stream} }}")).unwrap()
}

/// Waits until a sample has this value: a session may be over for its client first.
fn becomes(server: &Server, series: &str, expected: u64) {
    let is_found = wait::until(wait::TIMEOUT, || try_metric(server, series).unwrap_or(0) == expected);
    assert!(is_found, "{series} is not {expected}: {}", metrics_text(server));
}

fn peer(addr: SocketAddr, name: &str) -> String {
    format!(
        "upstream_peer_{name}{{protocol=\"stream\",upstream=\"u\",peer=\"{addr}\",server=\"{addr}\",id=\"0\"}}"
    )
}

#[test]
fn counters_grow_while_a_session_runs() {
    let addr = upstream(echo);
    let server = start(&format!(
        "upstream u {{ server {addr}; }}
         server {{ listen 127.0.0.1:{{port1}}; status_zone site; proxy_pass u; }}"
    ));
    let mut session = Client::connect(server.addr_of(1)).unwrap();
    for round in 1..=3 {
        session.send("hello").unwrap();
        assert_eq!(session.read_bytes(5).unwrap(), b"hello");
        becomes(&server, "stream_zone_received_bytes_total{zone=\"site\"}", 5 * round);
        becomes(&server, "stream_zone_sent_bytes_total{zone=\"site\"}", 5 * round);
        assert_eq!(metric(&server, &peer(addr, "sent_bytes_total")), 5 * round);
        assert_eq!(metric(&server, &peer(addr, "received_bytes_total")), 5 * round);
    }
    assert_eq!(metric(&server, &peer(addr, "connections")), 1);
    assert_eq!(metric(&server, &peer(addr, "requests_total")), 1);
    for (name, count) in [("connect", 1), ("header", 1), ("response", 0)] {
        let series = peer(addr, &format!("{name}_seconds_count"));
        assert_eq!(metric(&server, &series), count, "{name}");
    }
    assert_eq!(metric(&server, "stream_zone_connections_total{zone=\"site\"}"), 1);
    assert_eq!(metric(&server, "stream_zone_active{zone=\"site\"}"), 1);
    drop(session);
    becomes(&server, "stream_zone_active{zone=\"site\"}", 0);
    becomes(&server, "stream_zone_sessions_total{zone=\"site\",class=\"2xx\"}", 1);
    assert_eq!(metric(&server, "stream_zone_session_seconds_count{zone=\"site\"}"), 1);
    becomes(&server, &peer(addr, "connections"), 0);
    becomes(&server, &peer(addr, "response_seconds_count"), 1);
    // The group of http with the same name is another one.
    let other = "upstream_peer_requests_total{protocol=\"http\",upstream=\"u\",peer=\"127.0.0.1:9\",server=\"127.0.0.1:9\",id=\"0\"}";
    assert_eq!(metric(&server, other), 0);
}

#[test]
fn sessions_are_counted_by_class() {
    let server = start(
        "upstream u { server 127.0.0.1:9; server 127.0.0.1:9 backup; }
         server { listen 127.0.0.1:{port1}; status_zone site; return hello; }
         server { listen 127.0.0.1:{port2}; status_zone site; deny all; return hello; }
         server { listen 127.0.0.1:{port3}; status_zone site; proxy_pass u; }
         server { listen 127.0.0.1:{port4} proxy_protocol; status_zone other; proxy_protocol_timeout 50ms; return hello; }",
    );
    assert_eq!(text(server.addr_of(1)), "hello");
    assert_eq!(text(server.addr_of(2)), "");
    assert_eq!(text(server.addr_of(3)), "");
    assert_eq!(text(server.addr_of(4)), "");
    for class in ["2xx", "4xx", "5xx"] {
        becomes(&server, &format!("stream_zone_sessions_total{{zone=\"site\",class=\"{class}\"}}"), 1);
    }
    assert_eq!(metric(&server, "stream_zone_connections_total{zone=\"site\"}"), 3);
    assert_eq!(metric(&server, "stream_zone_sent_bytes_total{zone=\"site\"}"), 5);
    assert_eq!(metric(&server, "stream_zone_discarded_total{zone=\"site\"}"), 0);
    becomes(&server, "stream_zone_discarded_total{zone=\"other\"}", 1);
    assert_eq!(metric(&server, "stream_zone_active{zone=\"other\"}"), 0);
    let failed = peer("127.0.0.1:9".parse().unwrap(), "failures_total");
    assert_eq!(metric(&server, &failed), 1);
    let view = get(&server, "/api/9/stream/server_zones").text();
    let site = "\"site\":{\"processing\":0,\"connections\":3,\"sessions\":{\"2xx\":1,\"4xx\":1,\"5xx\":1,\"total\":3},\
                \"discarded\":0,\"received\":0,\"sent\":5}";
    assert!(view.contains(site), "{view}");
    assert_eq!(format!("\"site\":{}", get(&server, "/api/stream/server_zones/site").text()), site);
    assert_eq!(get(&server, "/api/stream/server_zones/none").status, 404);
}

#[test]
fn metrics_of_both_protocols_stand_once() {
    let server = start("server { listen 127.0.0.1:{port1}; return x; }");
    let text = metrics_text(&server);
    let mut heads: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let count = heads.len();
    heads.sort_unstable();
    heads.dedup();
    assert_eq!(heads.len(), count, "{text}");
}

#[test]
fn counters_grow_while_datagrams_are_exchanged() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..count], from);
        }
    });
    let server = start(&format!(
        "upstream u {{ server {addr}; }}
         server {{ listen 127.0.0.1:{{port1}} udp; status_zone site; proxy_pass u; }}"
    ));
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    for round in 1..=3 {
        client.send_to(b"hello", server.addr_of(1)).unwrap();
        assert_eq!(client.recv(&mut [0; 64]).unwrap(), 5);
        becomes(&server, "stream_zone_received_bytes_total{zone=\"site\"}", 5 * round);
        becomes(&server, "stream_zone_sent_bytes_total{zone=\"site\"}", 5 * round);
        assert_eq!(metric(&server, &peer(addr, "received_bytes_total")), 5 * round);
    }
    assert_eq!(metric(&server, "stream_zone_active{zone=\"site\"}"), 1);
    assert_eq!(metric(&server, &peer(addr, "header_seconds_count")), 1);
}

#[test]
fn session_counts_for_the_server_that_sni_selects() {
    let authority = Authority::new();
    let http =
        "http { access_log off; server { listen 127.0.0.1:{port}; location = /metrics { metrics; } } }";
    let server = crate::support::server()
        .certificate("one", &authority.certify(&["one.example", "two.example"]))
        .start(&format!(
            "{http} stream {{ ssl_certificate one.crt; ssl_certificate_key one.key; ssl_preread on;
             server {{ listen 127.0.0.1:{{port1}} ssl; status_zone default; ssl_preread off; return default; }}
             server {{ listen 127.0.0.1:{{port1}} ssl; server_name one.example; status_zone one; ssl_preread off; return one; }}
             server {{ listen 127.0.0.1:{{port2}}; status_zone default; proxy_pass 127.0.0.1:{{port1}}; }}
             server {{ listen 127.0.0.1:{{port2}}; server_name two.example; status_zone two; proxy_pass 127.0.0.1:{{port1}}; }} }}"
        ))
        .unwrap();
    let config = authority.client(rustls::ALL_VERSIONS);
    let text = |at, name| {
        let mut client = Client::connect_tls(server.addr_of(at), &config, name).unwrap();
        String::from_utf8(client.read_until_close().unwrap()).unwrap()
    };
    let zone = |zone: &str, name: &str| format!("stream_zone_{name}{{zone=\"{zone}\"}}");
    assert_eq!(text(1, "one.example"), "one");
    becomes(&server, "stream_zone_sessions_total{zone=\"one\",class=\"2xx\"}", 1);
    becomes(&server, &zone("one", "sent_bytes_total"), 3);
    assert_eq!(metric(&server, &zone("one", "connections_total")), 1);
    assert_eq!(metric(&server, &zone("default", "connections_total")), 0);
    // The second server of the other address is selected by a client hello that nothing answers there.
    assert_eq!(text(2, "two.example"), "default");
    becomes(&server, "stream_zone_sessions_total{zone=\"two\",class=\"2xx\"}", 1);
    becomes(&server, &zone("default", "connections_total"), 1);
    assert!(metric(&server, &zone("two", "received_bytes_total")) > 100);
    // A client that leaves before it has named a server belongs to the default server.
    Client::connect(server.addr_of(2)).unwrap().finish_sending().unwrap();
    becomes(&server, &zone("default", "discarded_total"), 1);
    for name in ["default", "one", "two"] {
        becomes(&server, &zone(name, "active"), 0);
    }
    assert_eq!(metric(&server, &zone("two", "discarded_total")), 0);
}

#[test]
fn passed_session_is_not_discarded() {
    let server = start(
        "server { listen 127.0.0.1:{port1}; status_zone first; pass 127.0.0.1:{port2}; }
         server { listen 127.0.0.1:{port2}; status_zone second; return hello; }",
    );
    assert_eq!(text(server.addr_of(1)), "hello");
    for zone in ["first", "second"] {
        becomes(&server, &format!("stream_zone_sessions_total{{zone=\"{zone}\",class=\"2xx\"}}"), 1);
        assert_eq!(metric(&server, &format!("stream_zone_discarded_total{{zone=\"{zone}\"}}")), 0);
        assert_eq!(metric(&server, &format!("stream_zone_active{{zone=\"{zone}\"}}")), 0);
    }
}
