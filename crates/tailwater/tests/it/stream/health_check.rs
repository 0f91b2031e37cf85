//! `health_check` and `match`: unhealthy servers get no sessions.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use tw_testkit::ports::Port;
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Server, wait};

use super::metrics::start;
use super::{echo, text, upstream};
use crate::support::metrics::metrics_text;
use crate::support::{refusal_of, request, server};

/// An upstream server that answers each text with the one that a test sets, and a session that sends nothing with its name.
#[derive(Clone)]
struct TestPeer {
    addr: SocketAddr,
    answer: Arc<Mutex<Vec<u8>>>,
    asked: Arc<Mutex<Vec<u8>>>,
}

fn test_peer(answer: &[u8]) -> TestPeer {
    let answer = Arc::new(Mutex::new(answer.to_vec()));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let said = (answer.clone(), asked.clone());
    let addr = upstream(move |mut stream: TcpStream| {
        let mut buffer = [0; 1024];
        if let Ok(n @ 1..) = stream.read(&mut buffer) {
            *said.1.lock().unwrap() = buffer[..n].to_vec();
            let answer = said.0.lock().unwrap().clone();
            // The check may be over.
            let _ = stream.write_all(&answer);
        }
    });
    TestPeer { addr, answer, asked }
}

/// State of a peer in the metrics.
fn state(server: &Server, peer: SocketAddr) -> String {
    let text = metrics_text(server);
    let head = "tailwater_upstream_peer_info{protocol=\"stream\",";
    let is_its = |line: &&str| line.starts_with(head) && line.contains(&format!("peer=\"{peer}\""));
    let line = text.lines().find(is_its).unwrap_or_else(|| panic!("no {peer} in {text}"));
    line.split("state=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

fn wait_state(server: &Server, peer: SocketAddr, expected: &str) {
    let is_found = wait::until(wait::TIMEOUT, || state(server, peer) == expected);
    assert!(is_found, "{peer} is not {expected}: {}", server.error_log());
}

#[test]
fn unreachable_server_gets_no_sessions_until_it_is_back() {
    let port = Port::reserve().unwrap();
    let away = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let addr = upstream(|mut stream| stream.write_all(b"a").unwrap());
    let server = start(&format!(
        "error_log logs/error.log info; upstream u {{ server {addr}; server {away}; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; health_check interval=20ms; }}"
    ));
    wait_state(&server, away, "unhealthy");
    wait_state(&server, addr, "up");
    let line = server.wait_error_log("peer is unhealthy").unwrap();
    let expected = format!(
        "peer is unhealthy: connect() failed (111: Connection refused) while connecting to upstream, health check \"\" of peer {away} in upstream \"u\""
    );
    assert!(line.contains("[error]") && line.ends_with(&expected), "{line}");
    assert_eq!((0..4).map(|_| text(server.addr_of(1))).collect::<String>(), "aaaa");
    drop(port);
    let listener = TcpListener::bind(away).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"b");
        }
    });
    wait_state(&server, away, "up");
    let names = || (0..2).map(|_| text(server.addr_of(1))).collect::<String>();
    assert!(wait::until(wait::TIMEOUT, || names().contains('b')));
    assert!(server.wait_error_log("peer is healthy").unwrap().contains("[notice]"));
}

#[test]
fn match_block_decides() {
    let peer = test_peer(b"+PO");
    let server = start(&format!(
        "error_log logs/error.log info;
         match redis {{ send \"\\x50ING\\r\\n\"; expect +PONG; }}
         match http {{ send \"GET / HTTP/1.0\\r\\n\\r\\n\"; expect ~ \"200 OK\"; }}
         upstream u {{ server {addr}; }} upstream v {{ server {addr}; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; health_check match=redis interval=20ms; }}
         server {{ listen 127.0.0.1:{{port2}}; proxy_pass v; health_check match=http interval=1h; }}",
        addr = peer.addr
    ));
    server.wait_error_log("peer is unhealthy: upstream prematurely closed connection while reading upstream, health check \"redis\" of peer").unwrap();
    *peer.answer.lock().unwrap() = b"+PONG\r\n".to_vec();
    server.wait_error_log("peer is healthy, health check \"redis\"").unwrap();
    assert!(wait::until(wait::TIMEOUT, || *peer.asked.lock().unwrap() == b"PING\r\n"));
    *peer.answer.lock().unwrap() = b"-ERR\r\n".to_vec();
    server.wait_error_log("peer is unhealthy: unexpected answer, health check \"redis\"").unwrap();
}

#[test]
fn health_check_timeout_ends_a_check() {
    let addr = upstream(echo);
    let server = start(&format!(
        "error_log logs/error.log info; health_check_timeout 50ms;
         match m {{ expect never; }} upstream u {{ server {addr}; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; health_check match=m interval=20ms; }}"
    ));
    server
        .wait_error_log(
            "peer is unhealthy: upstream timed out (110: Connection timed out) while reading upstream",
        )
        .unwrap();
    assert_eq!(text(server.addr_of(1)), "");
}

#[test]
fn datagrams_are_checked() {
    let answers = UdpSocket::bind("127.0.0.1:0").unwrap();
    let is_well = Arc::new(AtomicBool::new(true));
    let addr = answers.local_addr().unwrap();
    let is_up = is_well.clone();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((count, from)) = answers.recv_from(&mut buffer) {
            *seen.lock().unwrap() = buffer[..count].to_vec();
            let answer: &[u8] = if is_up.load(SeqCst) { b"\x80yes" } else { b"no" };
            let _ = answers.send_to(answer, from);
        }
    });
    // No socket is bound to this port, so the kernel reports it as closed.
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let quiet = silent.local_addr().unwrap();
    let server = start(&format!(
        "error_log logs/error.log info; health_check_timeout 200ms;
         match m {{ send ask; expect \\x80; }}
         upstream u {{ server {addr}; }} upstream v {{ server {quiet}; server {closed}; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; health_check udp match=m interval=20ms; }}
         server {{ listen 127.0.0.1:{{port2}}; proxy_pass v; health_check udp mandatory interval=20ms; }}"
    ));
    wait_state(&server, closed, "unhealthy");
    wait_state(&server, quiet, "up");
    server
        .wait_error_log("peer is unhealthy: recv() failed (111: Connection refused) while reading upstream")
        .unwrap();
    assert!(wait::until(wait::TIMEOUT, || *asked.lock().unwrap() == b"ask"));
    let mut buffer = [0; 64];
    let count = silent.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..count], b"nginx health check");
    is_well.store(false, SeqCst);
    wait_state(&server, addr, "unhealthy");
    is_well.store(true, SeqCst);
    wait_state(&server, addr, "up");
}

#[test]
fn mandatory_server_gets_sessions_after_its_first_check() {
    let peer = test_peer(b"no");
    let server = start(&format!(
        "match m {{ send x; expect yes; }} upstream u {{ server {}; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; health_check match=m mandatory interval=20ms; }}",
        peer.addr
    ));
    let mut client = Client::connect(server.addr_of(1)).unwrap();
    client.send("hello").unwrap();
    assert_eq!(client.read_until_close().unwrap_or_default(), b"");
    *peer.answer.lock().unwrap() = b"yes".to_vec();
    wait_state(&server, peer.addr, "up");
    let mut client = Client::connect(server.addr_of(1)).unwrap();
    client.send("hello").unwrap();
    assert_eq!(client.read_bytes(3).unwrap(), b"yes");
}

#[test]
fn sessions_of_a_lost_server_are_dropped() {
    let kept = upstream(echo);
    let other = upstream(echo);
    let server = start(&format!(
        "log_format l $status; access_log logs/access.log l;
         upstream u {{ server {kept}; server {other} backup; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; proxy_session_drop on; }}
         server {{ listen 127.0.0.1:{{port2}}; proxy_pass u; }}"
    ));
    let [mut dropped, mut stays] = [1, 2].map(|nth| {
        let mut client = Client::connect(server.addr_of(nth)).unwrap();
        client.send("hello").unwrap();
        assert_eq!(client.read_bytes(5).unwrap(), b"hello");
        client
    });
    let answer = request(&server, "DELETE /api/stream/upstreams/u/servers/0", &[]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The session ends without another byte from either side.
    assert_eq!(dropped.read_until_close().unwrap_or_default(), b"");
    assert_eq!(server.access_log(1).unwrap(), ["502"]);
    stays.send("again").unwrap();
    assert_eq!(stays.read_bytes(5).unwrap(), b"again");
}

#[test]
fn mistakes() {
    for (conf, expected) in [
        (
            "server { listen 127.0.0.1:{port}; health_check; }",
            "there is no server to check: this server has no \"proxy_pass\"",
        ),
        (
            "server { listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:9; health_check; }",
            "\"health_check\" needs a group: \"127.0.0.1:9\" is no \"upstream\"",
        ),
        (
            "server { listen 127.0.0.1:{port}; proxy_pass $remote_addr:9; health_check; }",
            "\"health_check\" needs an address without variables",
        ),
        ("server { listen 127.0.0.1:{port}; proxy_pass u; health_check match=m; }", "unknown match \"m\""),
        ("server { listen 127.0.0.1:{port}; proxy_pass u; health_check tcp; }", "invalid parameter \"tcp\""),
        (
            "server { listen 127.0.0.1:{port}; proxy_pass u; health_check uri=/; }",
            "invalid parameter \"uri=/\"",
        ),
        (
            "server { listen 127.0.0.1:{port}; proxy_pass u; health_check persistent; }",
            "\"persistent\" of \"health_check\" needs \"mandatory\"",
        ),
        (
            "match m { send a; } match m { } server { listen 127.0.0.1:{port}; return x; }",
            "duplicate match \"m\"",
        ),
    ] {
        let said = refusal_of(&format!("stream {{ upstream u {{ server 127.0.0.1:9; }} {conf} }}"));
        assert!(said.contains(expected), "{conf}: {said}");
    }
}

#[test]
fn tls_check_has_the_settings_of_the_proxy() {
    let authority = Authority::new();
    let server = server()
        .certificate("one", &authority.certify(&["one.example"]))
        .certificate("client", &authority.certify(&["client.example"]))
        .file("conf/ca.crt", authority.pem())
        .start(
            "http { access_log off; server { listen 127.0.0.1:{port}; location = /metrics { metrics; } } }
             stream { match named { send \"x\"; expect ~ \"^one.example CN=client.example \"; }
             server { listen 127.0.0.1:{port3} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                      ssl_client_certificate ca.crt; ssl_verify_client optional;
                      return '$ssl_server_name $ssl_client_s_dn '; }
             proxy_ssl on; proxy_ssl_trusted_certificate ca.crt; proxy_ssl_server_name on; proxy_ssl_verify on;
             upstream good { server 127.0.0.1:{port3}; }
             upstream other { server 127.0.0.1:{port3}; }
             upstream wrong { server 127.0.0.1:{port3}; }
             upstream plain { server 127.0.0.1:{port3}; }
             server { listen 127.0.0.1:{port1}; proxy_pass good; health_check mandatory match=named interval=20ms;
                      proxy_ssl_certificate client.crt; proxy_ssl_certificate_key client.key; proxy_ssl_name one.example; }
             server { listen 127.0.0.1:{port2}; proxy_pass other; health_check match=named interval=20ms;
                      proxy_ssl_name one.example; }
             server { listen 127.0.0.1:{port4}; proxy_pass wrong; health_check interval=20ms;
                      proxy_ssl_name two.example; }
             server { listen 127.0.0.1:{port5}; proxy_pass plain; health_check match=named interval=20ms; proxy_ssl off; }
             }",
        )
        .unwrap();
    for (group, expected) in
        [("good", "up"), ("other", "unhealthy"), ("wrong", "unhealthy"), ("plain", "unhealthy")]
    {
        let is_found = wait::until(wait::TIMEOUT, || state_in(&server, group) == expected);
        assert!(is_found, "{group} is not {expected}: {}", server.error_log());
    }
    assert_eq!(text(server.addr_of(1)), "one.example CN=client.example ");
    server.wait_error_log("while SSL handshaking to upstream, health check").unwrap();
}

/// State of the only peer of a group.
fn state_in(server: &Server, group: &str) -> String {
    let metrics = metrics_text(server);
    let head = "tailwater_upstream_peer_info{protocol=\"stream\",";
    let is_its = |line: &&str| line.starts_with(head) && line.contains(&format!("upstream=\"{group}\""));
    let line = metrics.lines().find(is_its).unwrap_or_else(|| panic!("no {group} in {metrics}"));
    line.split("state=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

#[test]
fn check_sends_the_proxy_protocol_header_of_sessions() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    let datagrams = socket.local_addr().unwrap();
    let server = start(&format!(
        "match ok {{ send x; expect hello; }}
         upstream u {{ server 127.0.0.1:{{port2}}; }} upstream v {{ server {datagrams}; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; proxy_protocol on; health_check match=ok interval=20ms; }}
         server {{ listen 127.0.0.1:{{port2}} proxy_protocol; return hello; }}
         server {{ listen 127.0.0.1:{{port3}} udp; proxy_pass v; proxy_protocol v2; health_check udp interval=20ms; }}"
    ));
    wait_state(&server, server.addr_of(2), "up");
    assert_eq!(text(server.addr_of(1)), "hello");
    let mut buffer = [0; 256];
    let len = socket.recv(&mut buffer).unwrap();
    // A header without addresses, as of a connection of the proxy itself (LOCAL).
    assert!(buffer[..len].starts_with(b"\r\n\r\n\0\r\nQUIT\n\x20\0"), "{:?}", &buffer[..len]);
    assert!(buffer[..len].ends_with(b"nginx health check"));
}
