//! `proxy_pass https://…` and `proxy_ssl_*`: handshakes with upstream servers, verification, reuse of connections and
//! sessions, truncated responses.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rustls::version::{TLS12, TLS13};
use rustls::{ALL_VERSIONS, HandshakeKind, ServerConfig};
use tw_testkit::origin::{Conn, TlsConn, origin, secured};
use tw_testkit::server::Builder;
use tw_testkit::tls::{Authority, Certificate};
use tw_testkit::{Client, Server, wait};

use crate::support::cache::wait_stored;
use crate::support::get;
use crate::support::{refusal_of, server, start};

/// Number of a connection, server name sent, and session reuse.
fn connection_facts(conn: &Conn<TlsConn>) -> String {
    let session = conn.session();
    let kind = match session.handshake_kind() {
        Some(HandshakeKind::Resumed) => "resumed",
        _ => "full",
    };
    let shown = if session.peer_certificates().is_some() { "shown" } else { "nobody" };
    format!("{} {} {kind} {shown}", conn.nth, session.server_name().unwrap_or("-"))
}

/// An origin that answers with facts about its connection and the `Host` of the request, as long as the connection
/// lasts.
fn tls_origin(config: Arc<ServerConfig>) -> SocketAddr {
    secured(config, |mut conn| {
        while let Some(head) = conn.head() {
            let host = head.lines().find_map(|line| line.strip_prefix("Host: ")).unwrap().to_owned();
            let text = format!("{} {host}", connection_facts(&conn));
            conn.answer("", text);
        }
    })
}

/// [`tls_origin`] with one request on each connection.
fn tls_origin_once(config: Arc<ServerConfig>) -> SocketAddr {
    secured(config, |mut conn| {
        if conn.head().is_some() {
            let text = connection_facts(&conn);
            conn.answer("Connection: close\r\n", text);
            conn.close_notify();
        }
    })
}

fn with(files: &[(&str, &str)]) -> Builder {
    files.iter().fold(server(), |server, (name, text)| server.file(format!("conf/{name}"), text))
}

/// A server with one loop, so that kept connections are reused.
fn start_front(builder: Builder, http: &str, locations: &str) -> Server {
    let server = format!("server {{ listen 127.0.0.1:{{port}}; {locations} }}");
    builder.start(&format!("worker_processes 1; http {{ {http} {server} }}")).unwrap()
}

fn text_of(server: &Server, target: &str) -> String {
    let response = get(server, target);
    assert_eq!(response.status, 200, "{}", server.error_log());
    response.text()
}

fn certified(names: &[&str]) -> (Authority, Certificate) {
    let authority = Authority::new();
    let made = authority.certify(names);
    (authority, made)
}

#[test]
fn both_tls_versions_and_key_types_work() {
    let authority = Authority::new();
    for made in [authority.certify(&["localhost"]), authority.certify_rsa(&["localhost"])] {
        for version in [&TLS12, &TLS13] {
            let addr = tls_origin(Authority::server(&[version], &made));
            let server = start_front(
                server(),
                &format!("upstream u {{ server {addr}; }}"),
                &format!(
                    "location /a {{ proxy_pass https://{addr}; }}
                     location /b {{ proxy_pass https://u/x; }}
                     location /c {{ set $to {addr}; proxy_pass https://$to; }}
                     location /d {{ set $to u; proxy_pass https://$to; }}"
                ),
            );
            for (path, host) in
                [("/a", addr.to_string()), ("/b", "u".into()), ("/c", addr.to_string()), ("/d", "u".into())]
            {
                let text = text_of(&server, path);
                assert!(text.contains(" - ") && text.ends_with(&format!("nobody {host}")), "{path}: {text}");
            }
        }
    }
}

#[test]
fn proxy_ssl_protocols_and_ciphers_are_used() {
    let (_, made) = certified(&["localhost"]);
    let addr = secured(Authority::server(ALL_VERSIONS, &made), |mut conn| {
        while conn.head().is_some() {
            let session = conn.session();
            let suite = session.negotiated_cipher_suite().unwrap().suite();
            let text = format!("{:?} {suite:?}", session.protocol_version().unwrap());
            conn.answer("", text);
        }
    });
    let server = start_front(
        server(),
        "",
        &format!(
            "location /12 {{ proxy_pass https://{addr}; proxy_ssl_protocols TLSv1.2; proxy_ssl_ciphers ECDHE-ECDSA-CHACHA20-POLY1305; }}
             location /13 {{ proxy_pass https://{addr}; proxy_ssl_conf_command Ciphersuites TLS_CHACHA20_POLY1305_SHA256; }}
             location /min {{ proxy_pass https://{addr}; proxy_ssl_conf_command MinProtocol TLSv1.3; }}"
        ),
    );
    let chacha = "TLSv1_2 TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
    assert_eq!(text_of(&server, "/12"), chacha);
    assert_eq!(text_of(&server, "/13"), "TLSv1_3 TLS13_CHACHA20_POLY1305_SHA256");
    assert!(text_of(&server, "/min").starts_with("TLSv1_3 "));
}

#[test]
fn proxy_ssl_verify_verifies_certificates() {
    let (authority, good) = certified(&["origin.example"]);
    let stranger = Authority::new();
    let addrs = [good, authority.certify_expired(&["origin.example"]), stranger.certify(&["origin.example"])]
        .map(|made| tls_origin(Authority::server(ALL_VERSIONS, &made)));
    let [good, expired, unknown] = addrs;
    let server = start_front(
        with(&[("ca.pem", &authority.pem())]),
        "proxy_ssl_trusted_certificate ca.pem; proxy_ssl_name origin.example;",
        &format!(
            "location /off/ {{
                 location /off/expired {{ proxy_pass https://{expired}; }}
                 location /off/unknown {{ proxy_pass https://{unknown}; }}
                 location /off/name {{ proxy_pass https://{good}; proxy_ssl_name other.example; }}
             }}
             location /on/ {{
                 proxy_ssl_verify on;
                 location /on/good {{ proxy_pass https://{good}; }}
                 location /on/expired {{ proxy_pass https://{expired}; }}
                 location /on/unknown {{ proxy_pass https://{unknown}; }}
                 location /on/name {{ proxy_pass https://{good}; proxy_ssl_name other.example; }}
                 location /on/odd {{ proxy_pass https://{good}; proxy_ssl_name \"no name\"; }}
             }}"
        ),
    );
    for path in ["/off/expired", "/off/unknown", "/off/name", "/on/good"] {
        text_of(&server, path);
    }
    for (path, expected) in [
        ("/on/expired", "upstream SSL certificate verify error: (10:certificate has expired)"),
        ("/on/unknown", "upstream SSL certificate verify error: (21:unable to verify the first certificate)"),
        ("/on/name", "upstream SSL certificate does not match \"other.example\""),
        ("/on/odd", "upstream SSL certificate does not match \"no name\""),
    ] {
        assert_eq!(get(&server, path).status, 502, "{path}");
        let line = server.wait_error_log(expected).unwrap();
        let expected = format!("{expected} while SSL handshaking to upstream, client: 127.0.0.1");
        assert!(line.contains(&expected), "{line}");
        assert!(
            line.contains(&format!("{path}\", host: ")) && line.contains("upstream: \"https://"),
            "{line}"
        );
    }
}

#[test]
fn proxy_ssl_server_name_sends_sni() {
    let (_, made) = certified(&["origin.example"]);
    let addr = tls_origin(Authority::server(ALL_VERSIONS, &made));
    let server = start_front(
        server(),
        &format!("upstream origin.example {{ server {addr}; }} proxy_ssl_server_name on;"),
        &format!(
            "location /group {{ proxy_pass https://origin.example; }}
             location /off {{ proxy_pass https://origin.example; proxy_ssl_server_name off; }}
             location /named {{ proxy_pass https://origin.example; proxy_ssl_name other.example:8443; }}
             location /variable {{ proxy_pass https://origin.example; proxy_ssl_name $arg_name; }}
             location /address {{ proxy_pass https://{addr}; }}"
        ),
    );
    for (path, expected) in [
        ("/group", " origin.example "),
        ("/off", " - "),
        ("/named", " other.example "),
        ("/variable?name=a.example", " a.example "),
        ("/variable?name=b.example", " b.example "),
        ("/variable?name=not%20a%20name", " - "),
        ("/variable", " - "),
        ("/address", " - "),
    ] {
        let text = text_of(&server, path);
        assert!(text.contains(expected), "{path}: {text}");
    }
}

#[test]
fn proxy_ssl_certificate_is_presented() {
    let (authority, made) = certified(&["origin.example"]);
    let addr = tls_origin(authority.server_for_known(ALL_VERSIONS, &made));
    let own = authority.certify(&["proxy.example"]);
    let rsa = authority.certify_rsa(&["proxy.example"]);
    let server = start_front(
        with(&[
            ("own.pem", &own.pem),
            ("own.key", &own.key),
            ("rsa.pem", &rsa.pem),
            ("rsa.key", &rsa.key),
        ]),
        "",
        &format!(
            "location /ecdsa {{ proxy_pass https://{addr}; proxy_ssl_certificate own.pem; proxy_ssl_certificate_key own.key; }}
             location /rsa {{ proxy_pass https://{addr}; proxy_ssl_certificate rsa.pem; proxy_ssl_certificate_key rsa.key; }}
             location /none {{ proxy_pass https://{addr}; }}"
        ),
    );
    for path in ["/ecdsa", "/rsa"] {
        let text = text_of(&server, path);
        assert!(text.contains(" shown "), "{text}");
    }
    assert_eq!(get(&server, "/none").status, 502);
    server.wait_error_log("(SSL: received fatal alert: CertificateRequired)").unwrap();
}

#[test]
fn kept_connections_are_reused_only_for_equal_settings() {
    let (authority, made) = certified(&["one.example", "two.example"]);
    let addr = tls_origin(Authority::server(ALL_VERSIONS, &made));
    let server = start_front(
        with(&[("ca.pem", &authority.pem()), ("own.pem", &made.pem), ("own.key", &made.key)]),
        &format!(
            "upstream u {{ server {addr}; keepalive 9; }}
             proxy_ssl_trusted_certificate ca.pem; proxy_ssl_name one.example; proxy_ssl_server_name on;"
        ),
        "location /a { proxy_pass https://u; }
         location /same { proxy_pass https://u; }
         location /name { proxy_pass https://u; proxy_ssl_name $arg_name; }
         location /verified { proxy_pass https://u; proxy_ssl_verify on; }
         location /known { proxy_pass https://u; proxy_ssl_certificate own.pem; proxy_ssl_certificate_key own.key; }",
    );
    for (path, expected) in [
        ("/a", "0 one.example"),
        ("/a", "0 one.example"),
        ("/same", "0 one.example"),
        ("/name?name=two.example", "1 two.example"),
        ("/name?name=two.example", "1 two.example"),
        ("/name?name=one.example", "0 one.example"),
        ("/verified", "2 one.example"),
        ("/known", "3 one.example"),
        ("/a", "0 one.example"),
        ("/verified", "2 one.example"),
    ] {
        let text = text_of(&server, path);
        assert!(text.starts_with(expected), "{path}: {text}, not {expected}");
    }
}

#[test]
fn sessions_are_resumed() {
    let (authority, made) = certified(&["one.example"]);
    for version in [&TLS12, &TLS13] {
        let addrs = [(); 2].map(|()| tls_origin_once(Authority::server(&[version], &made)));
        let server = start_front(
            with(&[("ca.pem", &authority.pem())]),
            &format!("upstream u {{ server {}; server {}; }}", addrs[0], addrs[1]),
            "location / { proxy_pass https://u; }
             location /verified { proxy_pass https://u; proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.pem;
                                  proxy_ssl_name one.example; }
             location /off { proxy_pass https://u; proxy_ssl_session_reuse off; }",
        );
        let kinds = |path: &str| -> Vec<bool> {
            (0..6).map(|_| text_of(&server, path).contains(" resumed ")).collect()
        };
        // Each of the two servers has its own session.
        assert_eq!(kinds("/"), [false, false, true, true, true, true], "{:?}", version.version);
        assert_eq!(kinds("/verified"), [false, false, true, true, true, true], "{:?}", version.version);
        assert_eq!(kinds("/off"), [false; 6], "{:?}", version.version);
    }
}

#[test]
fn bodies_pass_both_ways() {
    let (_, made) = certified(&["localhost"]);
    let addr = secured(Authority::server(ALL_VERSIONS, &made), |mut conn| {
        while let Some(head) = conn.head() {
            let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
            let mut body = vec![0; len.parse().unwrap()];
            conn.reader.read_exact(&mut body).unwrap();
            conn.answer("", body);
        }
    });
    let server = start_front(
        server(),
        "client_max_body_size 10m;",
        &format!(
            "location / {{ proxy_pass https://{addr}; }}
             location /unbuffered {{ proxy_pass https://{addr}; proxy_request_buffering off; proxy_buffering off; }}"
        ),
    );
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    for path in ["/", "/unbuffered", "/"] {
        let mut client = server.connect().unwrap();
        client
            .send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()))
            .unwrap();
        client.send(&body).unwrap();
        assert!(client.read_response().unwrap().body == body, "{path}");
    }
}

#[test]
fn response_without_close_notify_is_truncated() {
    let (_, made) = certified(&["localhost"]);
    let request_count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&request_count);
    let addr = secured(Authority::server(ALL_VERSIONS, &made), move |mut conn| {
        let Some(head) = conn.head() else { return };
        counted.fetch_add(1, SeqCst);
        let has_length = head.starts_with("GET /length");
        let length = if has_length { "Content-Length: 4\r\n" } else { "" };
        conn.send(format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{length}\r\nhere"));
        if head.starts_with("GET /whole") {
            conn.close_notify();
        }
    });
    let server = start_front(
        server(),
        "proxy_cache_path cache keys_zone=one:1m; proxy_cache_valid 1h;",
        &format!(
            "location / {{ proxy_pass https://{addr}; proxy_cache one; }}
             location /cut/uncached {{ proxy_pass https://{addr}; }} location = /metrics {{ metrics; }}"
        ),
    );
    let mut kept = 0;
    for (path, expected) in [("/whole", 1), ("/length", 1), ("/cut", 2), ("/cut/uncached", 2)] {
        let before = request_count.load(SeqCst);
        kept += usize::from(expected == 1);
        for _ in 0..2 {
            let mut client = server.connect().unwrap();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).unwrap();
            let said = String::from_utf8(client.read_until_close().unwrap()).unwrap();
            assert!(said.contains("here"), "{said}");
            // A chunked response that is cut reaches the client without the last chunk, too.
            assert_eq!(said.ends_with("0\r\n\r\n"), path == "/whole" && said.contains("chunked"), "{said}");
            // The client may have the whole response before the cache has stored it.
            wait_stored(&server, kept);
        }
        assert_eq!(request_count.load(SeqCst) - before, expected, "{path}");
    }
    server
        .wait_error_log("upstream prematurely closed connection while reading upstream, client: 127.0.0.1")
        .unwrap();
    let count = || server.error_log().matches("upstream prematurely closed connection").count();
    assert!(wait::until(wait::TIMEOUT, || count() == 4), "{}", server.error_log());
}

#[test]
fn failed_handshake_is_retried_on_the_next_server() {
    let (authority, made) = certified(&["one.example"]);
    let good = tls_origin(Authority::server(ALL_VERSIONS, &made));
    let stranger = tls_origin(Authority::server(ALL_VERSIONS, &Authority::new().certify(&["one.example"])));
    let plain = origin(|mut conn| {
        let mut hello = [0; 5];
        let _ = conn.reader.read_exact(&mut hello);
        conn.send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let closing = origin(|mut conn| {
        let _ = conn.reader.read(&mut [0; 4096]);
    });
    for (bad, expected) in [
        (stranger, "upstream SSL certificate verify error: ("),
        (plain, "SSL_do_handshake() failed (SSL: "),
        (closing, "peer closed connection in SSL handshake while SSL handshaking to upstream"),
    ] {
        let server = start_front(
            with(&[("ca.pem", &authority.pem())]),
            &format!(
                "upstream u {{ server {bad}; server {good} backup; }} upstream alone {{ server {bad}; }}
                 proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.pem; proxy_ssl_name one.example;"
            ),
            "location / { proxy_pass https://u; add_header X-Status \"$upstream_status\"; }
             location /off { proxy_pass https://alone; }",
        );
        let response = get(&server, "/");
        assert_eq!((response.status, response.field("X-Status")), (200, Some("502, 200")), "{expected}");
        server.wait_error_log(expected).unwrap();
        assert_eq!(get(&server, "/off").status, 502, "{expected}");
    }
}

#[test]
fn proxy_connect_timeout_covers_the_handshake() {
    let silent = origin(|mut conn| {
        let _ = conn.reader.read_to_end(&mut Vec::new());
    });
    let server = start_front(
        server(),
        "",
        &format!("location / {{ proxy_pass https://{silent}; proxy_connect_timeout 200ms; }}"),
    );
    assert_eq!(get(&server, "/").status, 504);
    server
        .wait_error_log("upstream timed out (110: Connection timed out) while SSL handshaking to upstream")
        .unwrap();
}

#[test]
fn proxy_redirect_applies_to_https() {
    let (_, made) = certified(&["localhost"]);
    let addr = secured(Authority::server(ALL_VERSIONS, &made), |mut conn| {
        while let Some(head) = conn.head() {
            let host = head.lines().find_map(|line| line.strip_prefix("Host: ")).unwrap().to_owned();
            conn.answer(&format!("Location: https://{host}/there\r\n"), "");
        }
    });
    let server = start_front(
        server(),
        &format!("upstream u {{ server {addr}; }} absolute_redirect off;"),
        "location /a/ { proxy_pass https://u/; add_header X-Port $proxy_port; }
         location /b/ { proxy_pass https://u; proxy_redirect https://u/ /c/; }",
    );
    let response = get(&server, "/a/x");
    assert_eq!((response.field("Location"), response.field("X-Port")), (Some("/a/there"), Some("443")));
    assert_eq!(get(&server, "/b/x").field("Location"), Some("/c/there"));
}

#[test]
fn upgrade_opens_a_tunnel_over_tls_on_both_sides() {
    let (authority, made) = certified(&["localhost"]);
    let addr = secured(Authority::server(ALL_VERSIONS, &made), |mut conn| {
        let Some(_) = conn.head() else { return };
        conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nhello ");
        let mut bytes = [0; 4096];
        while let Ok(n) = conn.reader.read(&mut bytes) {
            if n == 0 {
                break;
            }
            conn.reader.get_mut().write_all(&bytes[..n]).unwrap();
        }
        conn.send("bye");
        conn.close_notify();
    });
    let server = start(
        with(&[("one.crt", &made.pem), ("one.key", &made.key)]),
        &format!(
            "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                       location / {{ proxy_pass https://{addr}; proxy_set_header Upgrade $http_upgrade;
                                     proxy_set_header Connection upgrade; }} }}"
        ),
    );
    let mut client =
        Client::connect_tls(server.addr(), &authority.client(ALL_VERSIONS), "localhost").unwrap();
    client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nearly ").unwrap();
    assert_eq!(client.read_head().unwrap().status, 101);
    assert_eq!(client.read_bytes(12).unwrap(), b"hello early ");
    let big = "0123456789".repeat(10_000);
    for text in ["more", &big] {
        client.send(text).unwrap();
        assert!(client.read_bytes(text.len()).unwrap() == text.as_bytes());
    }
}

#[test]
fn health_checks_use_tls() {
    let (authority, made) = certified(&["one.example"]);
    let addr = tls_origin(Authority::server(ALL_VERSIONS, &made));
    let locations = |name: &str| {
        format!(
            "location / {{ proxy_pass https://u; proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.pem;
                           proxy_ssl_name {name}; proxy_ssl_server_name on; health_check interval=20ms mandatory; }}"
        )
    };
    let started = |name: &str| {
        start_front(
            with(&[("ca.pem", &authority.pem())]),
            &format!("upstream u {{ zone u 64k; server {addr}; }}"),
            &locations(name),
        )
    };
    let server = started("one.example");
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/").status == 200), "{}", server.error_log());
    let server = started("two.example");
    server.wait_error_log("upstream SSL certificate does not match \"two.example\"").unwrap();
    assert_eq!(get(&server, "/").status, 502);
}

#[test]
fn malformed_directives_are_refused() {
    let (authority, made) = certified(&["localhost"]);
    let other = authority.certify(&["localhost"]);
    let refused = |location: &str| {
        let builder = with(&[("own.pem", &made.pem), ("own.key", &made.key), ("other.key", &other.key)]);
        let conf = format!("http {{ server {{ listen 127.0.0.1:{{port}}; location / {{ {location} }} }} }}");
        match builder.start(&conf) {
            Ok(_) => panic!("is not refused: {location}"),
            Err(error) => error.to_string(),
        }
    };
    let pass = "proxy_pass https://127.0.0.1:1;";
    for (conf, expected) in [
        ("proxy_ssl_verify on;", "no proxy_ssl_trusted_certificate for proxy_ssl_verify"),
        ("proxy_ssl_certificate own.pem;", "no \"proxy_ssl_certificate_key\" is defined for certificate \""),
        (
            "proxy_ssl_certificate own.pem; proxy_ssl_certificate_key other.key;",
            "it does not belong to the certificate",
        ),
        (
            "proxy_ssl_certificate none.pem; proxy_ssl_certificate_key own.key;",
            "open() failed (2: No such file or directory)",
        ),
        ("proxy_ssl_certificate $host.pem;", "no \"proxy_ssl_certificate_key\" is defined for certificate"),
        (
            "proxy_ssl_verify on; proxy_ssl_trusted_certificate own.key;",
            "there is a private key in it, and no certificate",
        ),
        ("proxy_ssl_protocols TLSv1;", "invalid value in \"proxy_ssl_protocols\""),
        ("proxy_ssl_ciphers RC4-MD5;", "SSL_CTX_set_cipher_list(\"RC4-MD5\") failed"),
        ("proxy_ssl_conf_command Nothing x;", "SSL_CONF_cmd(\"Nothing\", \"x\") failed"),
        ("proxy_ssl_certificate_cache nothing;", "invalid parameter \"nothing\""),
    ] {
        let said = refused(&format!("{pass} {conf}"));
        assert!(said.contains(expected), "{conf}: {said}");
    }
    // Files that no location needs are not looked for.
    let said = refusal_of(
        "http { server { listen 127.0.0.1:{port}; location / { proxy_ssl_verify on; proxy_pass htps://a; } } }",
    );
    assert!(said.contains("invalid URL prefix"), "{said}");
    let builder = with(&[("own.pem", &made.pem)]);
    start(
        builder,
        "server { listen 127.0.0.1:{port}; location / { proxy_ssl_verify on; proxy_pass http://127.0.0.1:1; } }",
    );
}
