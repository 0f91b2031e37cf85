//! `listen … ssl`: handshakes, certificates, sessions, client certificates, and plain HTTP on such a port.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ALL_VERSIONS, ClientConfig, ClientConnection, HandshakeKind, SupportedProtocolVersion};
use tw_testkit::origin::counting;
use tw_testkit::server::Builder;
use tw_testkit::tls::{Authority, Certificate};
use tw_testkit::{Client, Response, Server, wait};

use crate::support::reload::reload;
use crate::support::{refusal_of, server, start};

/// A server with these certificates, each in `NAME.crt` and `NAME.key` beside its configuration.
fn with<'a>(certificates: impl IntoIterator<Item = (&'a str, &'a Certificate)>) -> Builder {
    certificates.into_iter().fold(server(), |server, (name, made)| server.certificate(name, made))
}

fn get(client: &mut Client, target: &str) -> Response {
    client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
    client.read_response().unwrap()
}

fn connect(server: &Server, config: &Arc<ClientConfig>) -> Client {
    Client::connect_tls(server.addr(), config, "localhost").unwrap()
}

/// One request on a connection of its own.
fn text_of(server: &Server, config: &Arc<ClientConfig>, target: &str) -> String {
    get(&mut connect(server, config), target).text()
}

const LISTEN: &str = "listen 127.0.0.1:{port} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;";

#[test]
fn both_tls_versions_and_key_types_work() {
    let authority = Authority::new();
    let ecdsa = authority.certify(&["localhost"]);
    let rsa = authority.certify_rsa(&["localhost"]);
    let big = "0123456789".repeat(300_000);
    let of = |made: &Certificate| {
        let builder = with([("one", made)]).file("html/big", &big);
        start(builder, &format!("server {{ {LISTEN} root html; sendfile on;
            location /said {{ return 200 \"$scheme $https $ssl_protocol $ssl_cipher $ssl_server_name $ssl_session_reused\"; }}
            location /moved {{ return 301 /there; }} }}"))
    };
    let servers = [("ECDSA", of(&ecdsa)), ("RSA", of(&rsa))];
    let versions: [(&str, &'static SupportedProtocolVersion); 2] = [("TLSv1.2", &TLS12), ("TLSv1.3", &TLS13)];
    for (key, server) in &servers {
        for (name, version) in versions {
            let config = authority.client(&[version]);
            let mut client = connect(server, &config);
            let suite = if name == "TLSv1.3" { "TLS_AES".to_owned() } else { format!("ECDHE-{key}-AES") };
            let said = get(&mut client, "/said").text();
            assert!(said.starts_with(&format!("https on {name} {suite}")), "{said}");
            assert!(said.ends_with(" localhost ."), "{said}");
            assert!(get(&mut client, "/big").text() == big);
            let port = server.addr().port();
            client.send(format!("GET /moved HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")).unwrap();
            let location = format!("https://localhost:{port}/there");
            assert_eq!(client.read_response().unwrap().field("location"), Some(&*location));
        }
    }
}

#[test]
fn bodies_pass_both_ways() {
    let authority = Authority::new();
    let (origin, _) = counting(|conn, head, _| {
        let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let mut body = vec![0; len.parse().unwrap()];
        conn.reader.read_exact(&mut body).unwrap();
        conn.answer("", body);
    });
    let server = start(
        with([("one", &authority.certify(&["localhost"]))]),
        &format!(
            "server {{ {LISTEN} location / {{ proxy_pass http://{origin}; client_max_body_size 10m; }} }}"
        ),
    );
    let mut client = connect(&server, &authority.client(ALL_VERSIONS));
    let body: Vec<u8> = (0..2_000_000_u32).map(|at| (at % 253) as u8).collect();
    for _ in 0..3 {
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len())).unwrap();
        client.send(&body).unwrap();
        assert!(client.read_response().unwrap().body == body);
    }
}

#[test]
fn ssl_directives_are_inherited_from_http() {
    let authority = Authority::new();
    let server = start(
        with([("one", &authority.certify(&["localhost"]))]),
        "ssl_certificate one.crt; ssl_certificate_key one.key; ssl_protocols TLSv1.2;
         server { listen 127.0.0.1:{port} ssl; return 200 $ssl_protocol; }
         server { listen 127.0.0.1:{port1} ssl; ssl_protocols TLSv1.3; return 200 $ssl_protocol; }",
    );
    let config = authority.client(ALL_VERSIONS);
    assert_eq!(text_of(&server, &config, "/"), "TLSv1.2");
    let mut other = Client::connect_tls(server.addr_of(1), &config, "localhost").unwrap();
    assert_eq!(get(&mut other, "/").text(), "TLSv1.3");
}

#[test]
fn sni_selects_the_server() {
    let authority = Authority::new();
    let one = authority.certify(&["one.example"]);
    let two = authority.certify(&["two.example"]);
    let server = start(
        with([("one", &one), ("two", &two)]),
        "server { listen 127.0.0.1:{port} ssl default_server; ssl_reject_handshake on; }
         server { listen 127.0.0.1:{port}; server_name one.example *.one.example; ssl_protocols TLSv1.2;
                  ssl_certificate one.crt; ssl_certificate_key one.key; return 200 \"one $ssl_protocol\"; }
         server { listen 127.0.0.1:{port}; server_name two.example;
                  ssl_certificate two.crt; ssl_certificate_key two.key; return 200 \"two $ssl_protocol\"; }",
    );
    let config = authority.client(ALL_VERSIONS);
    for (name, expected) in [("one.example", "one TLSv1.2"), ("TWO.example", "two TLSv1.3")] {
        let mut client = Client::connect_tls(server.addr(), &config, name).unwrap();
        client.send(format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n")).unwrap();
        assert_eq!(client.read_response().unwrap().text(), expected);
    }
    let refused = Client::connect_tls(server.addr(), &config, "three.example").unwrap_err();
    assert!(refused.to_string().contains("UnrecognisedName"), "{refused}");
    server
        .wait_error_log("rejected by \"ssl_reject_handshake\") while SSL handshaking, client: 127.0.0.1")
        .unwrap();
}

#[test]
fn sessions_are_resumed_by_any_loop_and_after_reload() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let conf = |more: &str| {
        format!("worker_processes 3; http {{ server {{ {LISTEN} {more} return 200 $ssl_session_reused; }} }}")
    };
    for (more, version) in [
        ("", &TLS13),
        ("", &TLS12),
        ("ssl_session_tickets off; ssl_session_cache shared:SSL:1m;", &TLS12),
        ("ssl_session_tickets off; ssl_session_cache shared:SSL:1m;", &TLS13),
        ("ssl_session_tickets off; ssl_session_cache builtin:100;", &TLS12),
        ("ssl_session_tickets off; ssl_session_cache builtin;", &TLS13),
    ] {
        let mut server = with([("one", &made)]).start(&conf(more)).unwrap();
        let config = authority.client(&[version]);
        assert_eq!(text_of(&server, &config, "/"), ".");
        let mut tries = (0..12).map(|_| text_of(&server, &config, "/"));
        assert!(tries.all(|reused| reused == "r"), "{more} {:?}", version.version);
        if !more.contains("builtin") {
            let reloaded = conf(more).replace("return 200 ", "return 200 new,");
            reload(&mut server, &reloaded);
            // Some loops switch to the new configuration later than others. Sessions are resumed by all of them
            // throughout.
            let is_new = || {
                let said = text_of(&server, &config, "/");
                assert!(said.ends_with('r'), "{more} {said}");
                said.starts_with("new")
            };
            assert!(wait::until(wait::TIMEOUT, || (0..12).all(|_| is_new())));
        }
    }
    // Without a cache and without tickets, no session can be resumed.
    let server = with([("one", &made)]).start(&conf("ssl_session_tickets off;")).unwrap();
    let config = authority.client(ALL_VERSIONS);
    assert!((0..3).all(|_| text_of(&server, &config, "/") == "."));
    let client = connect(&server, &config);
    assert_eq!(client.session().unwrap().handshake_kind(), Some(HandshakeKind::Full));
}

#[test]
fn ssl_verify_client_verifies_certificates() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let made = authority.certify(&["localhost"]);
    let builder = || with([("one", &made)]).file("conf/ca.crt", authority.pem());
    let says = "return 200 \"$ssl_client_verify $ssl_client_s_dn\";";
    let config = |more: &str| {
        format!("server {{ {LISTEN} ssl_client_certificate ca.crt; {more} location / {{ {says} }} }}")
    };
    let none = authority.client(ALL_VERSIONS);
    let good = authority.client_with(ALL_VERSIONS, &authority.certify(&["client.example"]));
    let bad = authority.client_with(ALL_VERSIONS, &stranger.certify(&["client.example"]));
    let success = "SUCCESS CN=client.example";
    let failed = "The SSL certificate error";
    let missing = "No required SSL certificate was sent";
    for (value, expected) in [
        ("off", ["NONE ", "NONE ", "NONE "]),
        ("on", [missing, success, failed]),
        ("optional", ["NONE ", success, failed]),
        (
            "optional_no_ca",
            ["NONE ", success, "FAILED:unable to verify the first certificate CN=client.example"],
        ),
    ] {
        let server = start(builder(), &config(&format!("ssl_verify_client {value};")));
        for (client, expected) in [&none, &good, &bad].into_iter().zip(expected) {
            // The second time the session is taken up again, and the certificate is judged again.
            for _ in 0..2 {
                let said = text_of(&server, client, "/");
                assert!(said.contains(expected), "{value}: {said}, not {expected}");
            }
        }
    }
    let server = start(
        builder(),
        &config(
            "ssl_verify_client on; error_page 495 =403 /bad; error_page 496 =403 /none; location = /bad { return 200 bad; } location = /none { return 200 none; }",
        ),
    );
    assert_eq!(text_of(&server, &none, "/"), "none");
    assert_eq!(text_of(&server, &bad, "/"), "bad");
    server
        .wait_error_log("client sent no required SSL certificate while reading client request headers")
        .unwrap();
    server
        .wait_error_log("client SSL certificate verify error: (21:unable to verify the first certificate)")
        .unwrap();
}

#[test]
fn client_certificate_of_one_server_is_not_valid_for_another() {
    let authority = Authority::new();
    let made = authority.certify(&[
        "open.example",
        "closed.example",
        "bare.example",
        "unknown.example",
        "a.closed.example",
    ]);
    let both = "listen 127.0.0.1:{port} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;";
    let server = start(
        with([("one", &made)]).file("conf/ca.crt", authority.pem()),
        &format!(
            "server {{ {both} server_name open.example; return 200 open; }}
             server {{ {both} server_name closed.example *.closed.example; ssl_verify_client on; ssl_client_certificate ca.crt; return 200 closed; }}
             server {{ listen 127.0.0.1:{{port}}; server_name bare.example; ssl_verify_client on; ssl_client_certificate ca.crt;
                       return 200 bare; }}"
        ),
    );
    let config = authority.client_with(ALL_VERSIONS, &authority.certify(&["client.example"]));
    let request = |name: &str, host: &str| {
        let mut client = Client::connect_tls(server.addr(), &config, name).unwrap();
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
        let response = client.read_response().unwrap();
        (response.status, response.text())
    };
    assert_eq!(request("open.example", "open.example"), (200, "open".into()));
    assert_eq!(request("closed.example", "closed.example"), (200, "closed".into()));
    assert_eq!(request("open.example", "closed.example").0, 421);
    assert_eq!(request("unknown.example", "closed.example").0, 421);
    // Names of one server share its authorities.
    assert_eq!(request("closed.example", "a.closed.example"), (200, "closed".into()));
    assert_eq!(request("a.closed.example", "b.closed.example"), (200, "closed".into()));
    // A server without its own certificate requires the client's certificate, too.
    assert_eq!(request("bare.example", "bare.example").0, 400);
    server
        .wait_error_log(
            "client attempted to request the server name different from the one that was negotiated",
        )
        .unwrap();
}

fn plain(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    socket.write_all(bytes).unwrap();
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    all
}

#[test]
fn plain_http_on_a_tls_port_is_400() {
    let authority = Authority::new();
    let server = start(
        with([("one", &authority.certify(&["localhost"]))]),
        &format!(
            "server {{ {LISTEN} return 200 secret; }}
             server {{ listen 127.0.0.1:{{port1}} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                       error_page 497 =301 https://$host/; }}"
        ),
    );
    let response = Client::get(server.addr(), "/").unwrap();
    assert_eq!(response.status, 400);
    assert!(response.text().contains("The plain HTTP request was sent to HTTPS port"), "{}", response.text());
    server
        .wait_error_log("client sent plain HTTP request to HTTPS port while reading client request headers")
        .unwrap();
    let moved = Client::get(server.addr_of(1), "/").unwrap();
    assert_eq!((moved.status, moved.field("location")), (301, Some("https://localhost/")));

    // A record that is no handshake, one that never ends, one too long, and a hello that is cut.
    assert_eq!(plain(server.addr(), b"\x16\x03\x01\x00\x04\x02\x00\x00\x00").first(), Some(&21));
    server.wait_error_log("SSL_do_handshake() failed (SSL: ").unwrap();
    assert_eq!(plain(server.addr(), b"\x16\x03\x01\xff\xff\x01\x00\x00\x00").first(), Some(&21));
    let mut socket = TcpStream::connect(server.addr()).unwrap();
    socket.write_all(b"\x16\x03\x01\x02\x00\x01\x00").unwrap();
    drop(socket);
    server.wait_error_log("peer closed connection in SSL handshake while SSL handshaking").unwrap();
    // Other clients are not affected.
    assert_eq!(text_of(&server, &authority.client(ALL_VERSIONS), "/"), "secret");
}

#[test]
fn client_header_timeout_ends_a_handshake() {
    let authority = Authority::new();
    let server = start(
        with([("one", &authority.certify(&["localhost"]))]),
        &format!("server {{ {LISTEN} client_header_timeout 200ms; return 200 here; }}"),
    );
    assert_eq!(plain(server.addr(), b"\x16\x03\x01"), b"");
    server.wait_error_log("client timed out (110: Connection timed out) while SSL handshaking").unwrap();
}

#[test]
fn proxy_protocol_header_precedes_the_handshake() {
    let authority = Authority::new();
    let server = start(
        with([("one", &authority.certify(&["localhost"]))]),
        "server { listen 127.0.0.1:{port} ssl proxy_protocol; ssl_certificate one.crt; ssl_certificate_key one.key;
                  return 200 \"$scheme $proxy_protocol_addr\"; }",
    );
    let header = b"PROXY TCP4 192.0.2.7 192.0.2.8 1234 443\r\n";
    let config = authority.client(ALL_VERSIONS);
    let mut client = Client::connect_tls_behind(server.addr(), header, &config, "localhost").unwrap();
    assert_eq!(get(&mut client, "/").text(), "https 192.0.2.7");
    // The header is followed in the same segment by plain HTTP in place of a handshake.
    let said = plain(
        server.addr(),
        &[header, &b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"[..]].concat(),
    );
    assert!(String::from_utf8_lossy(&said).starts_with("HTTP/1.1 400 "));
}

#[test]
fn malformed_directives_are_refused() {
    let authority = Authority::new();
    let one = authority.certify(&["localhost"]);
    let two = authority.certify(&["localhost"]);
    let refused = |server: &str| {
        let builder = with([("one", &one), ("two", &two)]).file("conf/empty", "").file("conf/key", [7; 47]);
        match builder.start(&format!("http {{ server {{ listen 127.0.0.1:{{port}} ssl; {server} }} }}")) {
            Ok(_) => panic!("is not refused: {server}"),
            Err(error) => error.to_string(),
        }
    };
    let good = "ssl_certificate one.crt; ssl_certificate_key one.key;";
    for (conf, expected) in [
        ("\n", "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in "),
        ("ssl_certificate one.crt;", "no \"ssl_certificate_key\" is defined for certificate \""),
        (
            "ssl_certificate none.crt; ssl_certificate_key one.key;",
            "open() failed (2: No such file or directory)",
        ),
        ("ssl_certificate empty; ssl_certificate_key one.key;", "cannot load certificate \""),
        ("ssl_certificate one.crt; ssl_certificate_key one.crt;", "cannot load certificate key \""),
        ("ssl_certificate one.crt; ssl_certificate_key two.key;", "it does not belong to the certificate"),
        (
            "ssl_certificate one.crt; ssl_certificate_key engine:x:y;",
            "are not supported by this version of Tailwater",
        ),
        (&format!("{good} ssl_protocols TLSv1;"), "invalid value in \"ssl_protocols\""),
        (&format!("{good} ssl_ciphers RC4-MD5;"), "SSL_CTX_set_cipher_list(\"RC4-MD5\") failed"),
        (&format!("{good} ssl_ecdh_curve nothing;"), "SSL_CTX_set1_curves_list(\"nothing\") failed"),
        (&format!("{good} ssl_conf_command Nothing x;"), "SSL_CONF_cmd(\"Nothing\", \"x\") failed"),
        (&format!("{good} ssl_session_ticket_key key;"), "must be 48 or 80 bytes"),
        (&format!("{good} ssl_session_cache shared:SSL;"), "invalid session cache \"shared:SSL\""),
        (&format!("{good} ssl_session_cache shared:SSL:1k;"), "is too small"),
        (&format!("{good} ssl_verify_client on;"), "for ssl_verify_client"),
        (&format!("{good} ssl_sign_pool nowhere;"), "unknown thread pool \"nowhere\""),
    ] {
        let said = refused(conf);
        assert!(said.contains(expected), "{conf}: {said}");
    }
    let said = refusal_of(
        "http { server {\n listen 127.0.0.1:{port};\n server_name a;\n\n listen 127.0.0.1:{port1} ssl;\n } }",
    );
    assert!(said.contains("nginx.conf:") && said.contains("listen 127.0.0.1"), "{said}");
    // The check warns of a command that has no effect.
    let conf = format!("http {{ server {{ {LISTEN} ssl_conf_command Options KTLS; }} }}");
    let said = with([("one", &one)]).arg("-t").run(&conf).unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.status.success() && text.contains("[warn]") && text.contains("\"KTLS\" has no effect"),
        "{text}"
    );
    let said = refusal_of("http { server { listen 127.0.0.1:{port} quic; } }");
    assert!(
        said.contains("no \"ssl_certificate\" is defined for the \"listen ... quic\" directive"),
        "{said}"
    );
}

#[test]
fn reload_with_a_mismatched_key_changes_nothing() {
    let authority = Authority::new();
    let one = authority.certify(&["localhost"]);
    let two = authority.certify(&["localhost"]);
    let mut server =
        start(with([("one", &one), ("two", &two)]), &format!("server {{ {LISTEN} return 200 before; }}"));
    let config = authority.client(ALL_VERSIONS);
    let mismatch = LISTEN.replace("one.key", "two.key");
    reload(&mut server, &format!("http {{ server {{ {mismatch} return 200 after; }} }}"));
    server.wait_error_log("it does not belong to the certificate").unwrap();
    assert_eq!(text_of(&server, &config, "/"), "before");
    // Files that have changed are read again.
    std::fs::write(server.prefix().join("conf/one.key"), &two.key).unwrap();
    std::fs::write(server.prefix().join("conf/one.crt"), &two.pem).unwrap();
    reload(&mut server, &format!("http {{ server {{ {LISTEN} return 200 after; }} }}"));
    assert!(wait::until(wait::TIMEOUT, || text_of(&server, &config, "/") == "after"));
}

/// Configurations of Mozilla's generator, and the one that Debian installs.
#[test]
fn common_configurations_work() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let common = "http2 on; add_header Strict-Transport-Security \"max-age=63072000\" always;
        ssl_session_timeout 1d; ssl_session_cache shared:MozSSL:10m; ssl_stapling on; ssl_stapling_verify on;
        ssl_trusted_certificate ca.crt; resolver 127.0.0.1;";
    let modern =
        "ssl_protocols TLSv1.3; ssl_ecdh_curve X25519:prime256v1:secp384r1; ssl_prefer_server_ciphers off;";
    let intermediate = "ssl_protocols TLSv1.2 TLSv1.3; ssl_ecdh_curve X25519:prime256v1:secp384r1; ssl_dhparam dhparam;
        ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:DHE-RSA-CHACHA20-POLY1305;
        ssl_prefer_server_ciphers off;";
    let old = "ssl_protocols TLSv1 TLSv1.1 TLSv1.2 TLSv1.3; ssl_ecdh_curve X25519:prime256v1:secp384r1; ssl_dhparam dhparam;
        ssl_ciphers @SECLEVEL=0:ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-CHACHA20-POLY1305:DHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-SHA256:ECDHE-RSA-AES128-SHA:AES128-GCM-SHA256:AES256-SHA256:AES128-SHA:DES-CBC3-SHA;
        ssl_prefer_server_ciphers on;";
    let debian = "sendfile on; tcp_nopush on; types_hash_max_size 2048; server_tokens build; include mime.types;
        default_type application/octet-stream; ssl_protocols TLSv1 TLSv1.1 TLSv1.2 TLSv1.3; ssl_prefer_server_ciphers on;
        access_log logs/access.log; gzip on; include conf.d/*.conf; include sites-enabled/*;";
    let debian_main = "worker_processes auto; worker_cpu_affinity auto; include modules-enabled/*.conf;";
    for (main, http, server_block, versions) in [
        ("", "", modern, &[&TLS13][..]),
        ("", "", intermediate, &[&TLS13, &TLS12]),
        ("", "", old, &[&TLS13, &TLS12]),
        (debian_main, debian, "", &[&TLS13, &TLS12]),
    ] {
        let builder = with([("one", &made)])
            .file("conf/ca.crt", authority.pem())
            .file(
                "conf/dhparam",
                "-----BEGIN DH PARAMETERS-----\nMAYCAQUCAQI=\n-----END DH PARAMETERS-----\n",
            )
            .file("conf/mime.types", "types { text/html html; }");
        let conf = format!(
            "{main} http {{ {http}
               server {{ {LISTEN} {server_block} {common} return 200 $ssl_protocol; }}
               server {{ listen 127.0.0.1:{{port1}} default_server; return 301 https://$host$request_uri; }} }}"
        );
        let server = builder.start(&conf).unwrap();
        for version in versions {
            let mut client = connect(&server, &authority.client(&[version]));
            let response = get(&mut client, "/");
            let expected = if version.version == TLS13.version { "TLSv1.3" } else { "TLSv1.2" };
            assert_eq!(response.text(), expected);
            assert_eq!(response.field("strict-transport-security"), Some("max-age=63072000"));
        }
        let moved = Client::get(server.addr_of(1), "/there").unwrap();
        assert_eq!((moved.status, moved.field("location")), (301, Some("https://localhost/there")));
    }
}

#[test]
fn signature_and_session_variables_and_the_key_log_work() {
    let authority = Authority::new();
    let ecdsa = authority.certify(&["localhost"]);
    let rsa = authority.certify_rsa(&["localhost"]);
    let says = "return 200 \"$ssl_sigalg,$ssl_client_sigalg,$ssl_session_id,$ssl_sigalgs\";";
    for (made, scheme) in [(&ecdsa, "ecdsa_secp256r1_sha256"), (&rsa, "rsa_pss_rsae_")] {
        let server = start(
            with([("one", made)]).file("conf/ca.crt", authority.pem()),
            &format!(
                "server {{ {LISTEN} ssl_client_certificate ca.crt; ssl_verify_client optional; ssl_key_log keys;
                   ssl_session_cache shared:SSL:1m; ssl_session_tickets off; location / {{ {says} }} }}"
            ),
        );
        for version in [&TLS12, &TLS13] {
            let own = authority.certify(&["client.example"]);
            let config = authority.client_with(&[version], &own);
            let words = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
            let first = words(&text_of(&server, &config, "/"));
            assert!(first[0].starts_with(scheme), "{first:?}");
            assert_eq!(first[1], "ecdsa_secp256r1_sha256");
            assert_eq!(first[2].len(), 64, "{first:?}");
            assert!(first[3].contains("ecdsa_secp256r1_sha256:"), "{first:?}");
            // A session that is taken up again is not signed.
            let second = words(&text_of(&server, &config, "/"));
            assert_eq!((&*second[0], &*second[1], second[2].len()), ("", "", 64));
            assert_eq!(second[2] == first[2], version.version == TLS12.version);
        }
        let lines = server.log("keys", 8).unwrap();
        assert!(lines.iter().any(|line| line.starts_with("CLIENT_RANDOM ")), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("SERVER_TRAFFIC_SECRET_0 ")), "{lines:?}");
        assert!(lines.iter().all(|line| line.split(' ').nth(1).is_some_and(|random| random.len() == 64)));
    }
}

#[test]
fn certificates_are_compressed_if_the_client_supports_it() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    // The same certificate again and again compresses well.
    let long = Certificate { pem: made.pem.repeat(20), ..made };
    let server = start(
        with([("one", &long)]),
        "ssl_certificate one.crt; ssl_certificate_key one.key; ssl_certificate_compression on;
         server { listen 127.0.0.1:{port} ssl; return 200 here; }
         server { listen 127.0.0.1:{port1} ssl; ssl_certificate_compression off; return 200 here; }",
    );
    // Bytes of the server's first flight.
    let flight = |addr: SocketAddr, config: &Arc<ClientConfig>| {
        let name = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(config.clone(), name).unwrap();
        let mut socket = TcpStream::connect(addr).unwrap();
        socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        let mut read = 0;
        let mut wrote = 0;
        while session.is_handshaking() {
            let (more, sent) = session.complete_io(&mut socket).unwrap();
            (read, wrote) = (read + more, wrote + sent);
        }
        assert!(wrote > 0);
        read
    };
    let config = authority.client(&[&TLS13]);
    let mut without = ClientConfig::clone(&config);
    without.cert_decompressors = Vec::new();
    let without = Arc::new(without);
    let compressed = flight(server.addr(), &config);
    let plain = flight(server.addr_of(1), &config);
    assert!(compressed * 3 < plain, "{compressed} {plain}");
    assert!(flight(server.addr(), &without) > compressed * 3);
    assert_eq!(text_of(&server, &config, "/"), "here");
}

/// Client that sends a request as early data.
struct EarlyClient {
    session: ClientConnection,
    socket: TcpStream,
}

impl EarlyClient {
    fn session(config: &Arc<ClientConfig>, request: &str) -> ClientConnection {
        let name = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(config.clone(), name).unwrap();
        session.early_data().expect("a session to take up").write_all(request.as_bytes()).unwrap();
        session
    }

    /// First flight of such a client.
    fn bytes(config: &Arc<ClientConfig>, request: &str) -> Vec<u8> {
        let mut session = Self::session(config, request);
        let mut bytes = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    fn request(addr: SocketAddr, config: &Arc<ClientConfig>, request: &str) -> Self {
        let mut session = Self::session(config, request);
        let mut socket = TcpStream::connect(addr).unwrap();
        socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        while session.wants_write() {
            session.write_tls(&mut socket).unwrap();
        }
        Self { session, socket }
    }

    /// Reads a response up to this end of its body, and sends nothing meanwhile.
    fn read(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(end) {
            assert!(self.session.read_tls(&mut self.socket).unwrap() > 0, "{text}");
            self.session.process_new_packets().unwrap();
            match self.session.reader().read_to_string(&mut text) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
        text
    }

    fn go_on(&mut self, request: &str) {
        self.session.writer().write_all(request.as_bytes()).unwrap();
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket).unwrap();
        }
    }
}

#[test]
fn early_data_is_accepted_for_safe_requests() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let says =
        "location / { add_header X-Early \"$ssl_early_data\"; return 200 \"early=$ssl_early_data.\"; }";
    for (value, unsafe_status) in [("on", "425 Too Early"), ("any", "200 OK")] {
        let server = with([("one", &made)])
            .start(&format!(
                "worker_processes 2; http {{ server {{ {LISTEN} ssl_early_data {value}; {says} }} }}"
            ))
            .unwrap();
        let config = authority.client(&[&TLS13]);
        let mut early = ClientConfig::clone(&config);
        early.enable_early_data = true;
        let early = Arc::new(early);
        // The first one is as usual.
        let mut first = connect(&server, &early);
        assert_eq!(get(&mut first, "/").text(), "early=.");
        let request = |method: &str| format!("{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        for method in ["GET", "HEAD"] {
            let mut client = EarlyClient::request(server.addr(), &early, &request(method));
            let end = if method == "GET" { "early=1." } else { "\r\n\r\n" };
            let said = client.read(end);
            assert!(said.starts_with("HTTP/1.1 200 OK") && said.contains("X-Early: 1\r\n"), "{said}");
            client.go_on(&request("GET"));
            let said = client.read("early=.");
            assert!(!said.contains("X-Early"), "{said}");
        }
        let unsafe_request = "DELETE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut client = EarlyClient::request(server.addr(), &early, unsafe_request);
        let said = client.read(if value == "on" { "</html>\r\n" } else { "early=1." });
        assert!(said.starts_with(&format!("HTTP/1.1 {unsafe_status}\r\n")), "{said}");
        // A replay of the same bytes: a session is resumed only once, so the early data of the second attempt is not
        // accepted.
        let copied = EarlyClient::bytes(&early, "GET /copied HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut first = TcpStream::connect(server.addr()).unwrap();
        first.write_all(&copied).unwrap();
        let lines_of = |path: &str| -> Option<usize> {
            let lines = server.access_log(1).ok()?;
            Some(lines.iter().filter(|line| line.contains(path)).count())
        };
        // The client sends no more of its handshake, and is answered.
        wait::some(wait::TIMEOUT, || lines_of("/copied").filter(|count| *count > 0)).unwrap();
        for _ in 0..2 {
            let mut socket = TcpStream::connect(server.addr()).unwrap();
            socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
            socket.write_all(&copied).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
            socket.read_to_end(&mut Vec::new()).unwrap();
        }
        // A line is written when its request is over: these are those before the last one.
        assert_eq!(get(&mut connect(&server, &authority.client(&[&TLS13])), "/last").status, 200);
        wait::some(wait::TIMEOUT, || lines_of("/last").filter(|count| *count > 0)).unwrap();
        assert_eq!(lines_of("/copied"), Some(1));
        drop(first);
    }
    // Without the directive, no early data is accepted.
    let server = start(with([("one", &made)]), &format!("server {{ {LISTEN} {says} }}"));
    let mut config = ClientConfig::clone(&authority.client(&[&TLS13]));
    config.enable_early_data = true;
    let config = Arc::new(config);
    assert_eq!(text_of(&server, &config, "/"), "early=.");
    let name = ServerName::try_from("localhost").unwrap();
    let mut session = ClientConnection::new(config, name).unwrap();
    assert!(session.early_data().is_none());
}
