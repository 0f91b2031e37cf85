//! `tunnel_pass`: tunnels for CONNECT requests, and the targets they may reach.

use std::io::{self, BufRead, Read};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use tw_testkit::dns::{Data, DnsServer, kind};
use tw_testkit::origin::origin;
use tw_testkit::{Client, Response, Server, wait};

use crate::support::{raw, server, start};

/// An origin that echoes every line in brackets, and says goodbye at the end.
pub(super) fn echo_origin() -> SocketAddr {
    origin(|mut conn| {
        let mut line = String::new();
        while conn.reader.read_line(&mut line).is_ok_and(|read| read > 0) {
            conn.send(format!("<{}>", line.trim_end()));
            line.clear();
        }
        conn.send("bye");
    })
}

/// Sends CONNECT for `to`, with `early` right behind the request.
pub(super) fn connect(server: &Server, to: &str, early: &str) -> (Client, Response) {
    let mut client = server.connect().unwrap();
    client.send(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n{early}")).unwrap();
    let head = client.read_head().unwrap();
    (client, head)
}

pub(super) fn status(server: &Server, to: &str) -> u16 {
    connect(server, to, "").1.status
}

#[test]
fn connect_opens_a_tunnel() {
    let addr = echo_origin();
    let server = start(
        server(),
        &format!(
            "log_format t '$request_method $request_uri $status $upstream_addr $upstream_status $body_bytes_sent \
                 $upstream_bytes_sent $upstream_bytes_received'; access_log logs/access.log t;
             add_header X-Told $upstream_addr; gzip on; gzip_types *; add_before_body /part; addition_types *;
             upstream group {{ server {addr}; }}
             server {{ listen 127.0.0.1:{{port}}; server_name {}; tunnel_pass; }}
             server {{ listen 127.0.0.1:{{port}}; server_name group; tunnel_pass group; }}
             server {{ listen 127.0.0.1:{{port}}; server_name named;
                 location / {{ if ($request_method = CONNECT) {{ tunnel_pass {addr}; break; }} return 200 page; }} }}",
            addr.ip()
        ),
    );
    for (nth, to) in [addr.to_string(), "group:1".to_owned(), "named:1".to_owned()].iter().enumerate() {
        let (mut client, head) = connect(&server, to, "one\n");
        assert_eq!((head.status, head.field("X-Told")), (200, Some(&*addr.to_string())), "{to}");
        for field in ["Content-Length", "Transfer-Encoding", "Content-Encoding", "Content-Type"] {
            assert_eq!(head.field(field), None, "{to}: {field}");
        }
        assert_eq!(client.read_bytes(5).unwrap(), b"<one>");
        client.send("two\nthree\n").unwrap();
        assert_eq!(client.read_bytes(12).unwrap(), b"<two><three>");
        // One side of the tunnel may end before the other.
        client.finish_sending().unwrap();
        assert_eq!(client.read_until_close().unwrap(), b"bye");
        let lines = server.access_log(nth + 1).unwrap();
        let uri = lines[nth].split(' ').nth(1).unwrap();
        assert_eq!(lines[nth], format!("CONNECT {uri} 200 {addr} 200 20 14 20"), "{to}");
    }
    assert!(raw(&server, "GET / HTTP/1.1\r\nHost: named\r\nConnection: close\r\n\r\n").contains("page"));
    let get = raw(&server, "GET / HTTP/1.1\r\nHost: group\r\nConnection: close\r\n\r\n");
    assert!(get.starts_with("HTTP/1.1 405 "), "{get}");
}

#[test]
fn refused_connect_closes_the_connection() {
    let request_count = Arc::new(AtomicUsize::new(0));
    let counted = request_count.clone();
    let addr = origin(move |mut conn| {
        while conn.head().is_some() {
            counted.fetch_add(1, SeqCst);
            conn.answer("", "origin");
        }
    });
    let server = start(
        server(),
        &format!(
            "error_log logs/error.log info;
             server {{ listen 127.0.0.1:{{port}}; server_name without; location / {{ proxy_pass http://{addr}; }} }}
             server {{ listen 127.0.0.1:{{port}}; server_name elsewhere; root html;
                 location /tunnel {{ tunnel_pass; }} location / {{ proxy_pass http://{addr}; }} }}
             server {{ listen 127.0.0.1:{{port}}; server_name files; root html; location /tunnel {{ tunnel_pass; }} }}
             server {{ listen 127.0.0.1:{{port}}; server_name unix closed.test; tunnel_pass; }}
             server {{ listen 127.0.0.1:{{port}}; server_name refused; tunnel_pass; deny all; }}"
        ),
    );
    let behind = "GET /smuggled HTTP/1.1\r\nHost: without\r\n\r\n";
    for (target, version, expected) in [
        ("without:80", "1.1", 405),
        ("elsewhere:80", "1.1", 405),
        ("files:80", "1.1", 405),
        ("refused:80", "1.1", 403),
        ("refused:80", "1.0", 405),
        ("refused", "1.1", 400),
        ("refused:", "1.1", 400),
        (":80", "1.1", 400),
        ("refused:65536", "1.1", 400),
        ("refused:80/", "1.1", 400),
        ("user@refused:80", "1.1", 400),
        ("http://refused:80", "1.1", 400),
        // No port, and paths of sockets chosen by the client.
        ("unix:0", "1.1", 500),
        ("unix:80", "1.1", 500),
        ("UNIX:80", "1.1", 500),
    ] {
        let host = target.split(':').next().unwrap();
        let said = raw(&server, format!("CONNECT {target} HTTP/{version}\r\nHost: {host}\r\n\r\n{behind}"));
        assert!(said.starts_with(&format!("HTTP/1.1 {expected} ")), "{target}: {said}");
        // Bytes that a client has sent into a refused tunnel are not taken for a request.
        assert_eq!(said.matches("HTTP/1.1 ").count(), 1, "{target}: {said}");
    }
    let body = "CONNECT refused:80 HTTP/1.1\r\nHost: refused\r\nContent-Length: 1\r\n\r\nx";
    assert!(raw(&server, body).starts_with("HTTP/1.1 400 "));
    assert_eq!(request_count.load(SeqCst), 0);
    server
        .wait_error_log("Unix socket that the configuration does not name in upstream \"unix:80\"")
        .unwrap();
}

/// A server that counts connections, and an allowed one: on the same port of two loopback addresses, so that only the
/// address differs.
fn secret_and_open_origins() -> (SocketAddr, Arc<AtomicUsize>) {
    // A port that is free at one address may be in use at the other.
    let (secret, open) = wait::some(wait::TIMEOUT, || {
        let secret = TcpListener::bind("127.0.0.2:0").unwrap();
        let open = TcpListener::bind(("127.0.0.1", secret.local_addr().unwrap().port())).ok()?;
        Some((secret, open))
    })
    .expect("no port is free at both addresses");
    let addr = secret.local_addr().unwrap();
    let reached = Arc::new(AtomicUsize::new(0));
    let counted = reached.clone();
    thread::spawn(move || secret.incoming().for_each(|_| _ = counted.fetch_add(1, SeqCst)));
    thread::spawn(move || open.incoming().for_each(drop));
    (addr, reached)
}

#[test]
fn tunnels_reach_allowed_targets_only() {
    let (secret, reached) = secret_and_open_origins();
    let port = secret.port();
    let is_turned = Arc::new(AtomicBool::new(false));
    let turns = is_turned.clone();
    let dns = DnsServer::start(move |request_count, out| {
        let mut answer = request_count.answer();
        let addrs: &[[u8; 4]] = match (&*request_count.name, request_count.kind) {
            ("good.test" | "unlisted.example", kind::A) => &[[127, 0, 0, 1]],
            ("evil.test", kind::A) => &[[127, 0, 0, 2]],
            // The name resolves to an allowed address and to a forbidden one in turns.
            (name, kind::A) if name.starts_with("turn") => {
                if turns.fetch_xor(true, SeqCst) {
                    &[[127, 0, 0, 1]]
                } else {
                    &[[127, 0, 0, 2]]
                }
            }
            // Nothing listens at the first address, which is allowed.
            ("mixed.test", kind::A) => &[[127, 0, 0, 3], [127, 0, 0, 2]],
            ("mapped.test", kind::AAAA) => {
                answer = answer.record("mapped.test", 0, Data::Aaaa("::ffff:127.0.0.2".parse().unwrap()));
                &[]
            }
            _ => &[],
        };
        for addr in addrs {
            answer = answer.record(&request_count.name, 0, Data::A((*addr).into()));
        }
        out.send(answer.bytes());
    });
    let server = start(
        server(),
        &format!(
            "error_log logs/error.log info; resolver {}; resolver_timeout 5s;
             map $host:$request_port $is_named {{ default 0; ~^[a-z0-9]+\\.test:{port}$ 1; ~^(\\[|\\d) 1; }}
             geo $upstream_last_addr $is_there {{ default 0; 127.0.0.1 1; 127.0.0.3 1; }}
             server {{ listen 127.0.0.1:{{port}}; tunnel_allow_upstream $is_named $is_there;
                 tunnel_next_upstream error timeout denied;
                 # What was computed before there was a server says nothing of it.
                 set $seen $is_there; tunnel_pass; }}",
            dns.addr()
        ),
    );
    assert_eq!(status(&server, &format!("good.test:{port}")), 200);
    assert_eq!(status(&server, &format!("127.0.0.1:{port}")), 200);
    for (to, expected) in [
        (format!("unlisted.example:{port}"), 403),
        ("good.test:1".to_owned(), 403),
        (format!("evil.test:{port}"), 403),
        (format!("127.0.0.2:{port}"), 403),
        (format!("[::ffff:127.0.0.2]:{port}"), 403),
        (format!("mapped.test:{port}"), 403),
        (format!("mixed.test:{port}"), 403),
        // Spellings of an address that some resolvers accept.
        (format!("2130706434:{port}"), 403),
        (format!("0x7f000002:{port}"), 403),
        (format!("127.2:{port}"), 403),
        (format!("none.test:{port}"), 502),
    ] {
        let value = status(&server, &to);
        // The status is 502 if the name could not be resolved on this machine.
        assert!(value == expected || value == 502, "{to}: {value}");
    }
    // Answers are kept for a second: each time it is another name.
    let results: Vec<u16> = (0..20).map(|nth| status(&server, &format!("turn{nth}.test:{port}"))).collect();
    assert!(results.contains(&200) && results.contains(&403), "{results:?}");
    assert!(results.iter().all(|status| matches!(status, 200 | 403)), "{results:?}");
    assert_eq!(reached.load(SeqCst), 0, "{results:?}");
    server.wait_error_log("access to upstream denied while connecting to upstream").unwrap();
}

#[test]
fn idle_tunnel_times_out() {
    let addr = origin(|mut conn| {
        conn.send("hello");
        let _ = conn.reader.read_to_end(&mut Vec::new());
    });
    let server = start(
        server(),
        &format!(
            "error_log logs/error.log info;
             server {{ listen 127.0.0.1:{{port}}; tunnel_pass {addr}; tunnel_read_timeout 100ms; }}"
        ),
    );
    let (mut client, _) = connect(&server, "any:1", "");
    // The bytes of the server may come too late to be read.
    client.read_until_close().unwrap();
    server
        .wait_error_log("upstream timed out (110: Connection timed out) while proxying upgraded connection")
        .unwrap();
}

#[test]
fn stalled_side_times_out() {
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    // The origin reads nothing, and sends whenever it can.
    let addr = origin(move |mut conn| {
        let mut said = Ok(());
        while said.is_ok() && !over.load(SeqCst) {
            said = io::Write::write_all(conn.reader.get_mut(), &[b'.'; 1024]);
        }
    });
    let server = start(
        server(),
        &format!(
            "error_log logs/error.log info;
             server {{ listen 127.0.0.1:{{port}}; tunnel_pass {addr}; tunnel_send_timeout 100ms; tunnel_buffer_size 4k; }}"
        ),
    );
    let (mut client, head) = connect(&server, "any:1", "");
    assert_eq!(head.status, 200);
    let error = client.send(vec![b'x'; 256 << 20]).unwrap_err();
    is_over.store(true, SeqCst);
    assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    server.wait_error_log("timed out").unwrap();
}

#[test]
fn unrestricted_tunnel_pass_is_warned_of() {
    for (settings, is_warned) in [
        ("tunnel_pass;", true),
        ("tunnel_pass $host:443;", true),
        ("tunnel_pass; tunnel_allow_upstream $arg_a;", false),
        ("tunnel_pass 127.0.0.1:443;", false),
    ] {
        let conf = format!("http {{ server {{ listen 127.0.0.1:{{port}}; {settings} }} }}");
        let output = server().arg("-t").run(&conf).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.contains("opens tunnels to whatever this machine can reach"), is_warned, "{said}");
        assert!(output.status.success(), "{said}");
    }
}
