//! `listen … ssl`: handshakes, certificates, the choice of the server, and TLS to upstream servers.

use std::sync::Arc;

use rustls::version::{TLS12, TLS13};
use rustls::{ALL_VERSIONS, ClientConfig};
use tw_testkit::tls::{Authority, Certificate};
use tw_testkit::{Client, Server};

use super::{echo, upstream};
use crate::support::{refusal_of, server};

const LISTEN: &str = "listen 127.0.0.1:{port} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;";

/// Starts a server in a `stream` block with this content, and these certificates beside it.
fn start<'a>(certificates: impl IntoIterator<Item = (&'a str, &'a Certificate)>, stream: &str) -> Server {
    let with = certificates.into_iter().fold(server(), |server, (name, made)| server.certificate(name, made));
    with.start(&format!("stream {{ {stream} }}")).unwrap()
}

/// Text that a session over TLS gets.
fn text(server: &Server, config: &Arc<ClientConfig>, name: &str) -> String {
    let mut client = Client::connect_tls(server.addr(), config, name).unwrap();
    String::from_utf8(client.read_until_close().unwrap()).unwrap()
}

/// Returns true if a session is refused: in its handshake, or behind it without a byte.
fn is_refused(server: &Server, config: &Arc<ClientConfig>, name: &str) -> bool {
    match Client::connect_tls(server.addr(), config, name) {
        Ok(mut client) => client.read_until_close().map_or(true, |bytes| bytes.is_empty()),
        Err(_) => true,
    }
}

#[test]
fn handshake_has_variables() {
    let authority = Authority::new();
    for made in [authority.certify(&["localhost"]), authority.certify_rsa(&["localhost"])] {
        let server = start(
            [("one", &made)],
            &format!(
                "server {{ {LISTEN} return '$ssl_protocol $ssl_server_name $ssl_session_reused $remote_addr'; }}"
            ),
        );
        for (version, name) in [(&TLS12, "TLSv1.2"), (&TLS13, "TLSv1.3")] {
            let config = authority.client(&[version]);
            assert_eq!(text(&server, &config, "localhost"), format!("{name} localhost . 127.0.0.1"));
            assert_eq!(text(&server, &config, "localhost"), format!("{name} localhost r 127.0.0.1"));
        }
    }
}

#[test]
fn bytes_are_relayed_behind_a_handshake() {
    let authority = Authority::new();
    let addr = upstream(echo);
    let server = start(
        [("one", &authority.certify(&["localhost"]))],
        &format!(
            "log_format l '$bytes_received $bytes_sent $upstream_bytes_sent'; access_log logs/access.log l;
             server {{ {LISTEN} proxy_pass {addr}; }}"
        ),
    );
    let mut client =
        Client::connect_tls(server.addr(), &authority.client(ALL_VERSIONS), "localhost").unwrap();
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    for part in bytes.chunks(50_000) {
        client.send(part).unwrap();
        assert_eq!(client.read_bytes(part.len()).unwrap(), part);
    }
    drop(client);
    assert_eq!(server.access_log(1).unwrap(), ["300000 300000 300000"]);
}

#[test]
fn server_name_selects_the_server() {
    let authority = Authority::new();
    let names = ["one.example", "a.b.example", "two.example", "other.example"];
    let server = start(
        [("one", &authority.certify(&names)), ("two", &authority.certify(&["two.example"]))],
        &format!(
            "log_format l '$ssl_server_name'; log_format m 'two';
             access_log logs/access.log l;
             server {{ listen 127.0.0.1:{{port}} ssl; server_name one.example; return one; }}
             server {{ listen 127.0.0.1:{{port}} ssl; server_name *.b.example; return wild; }}
             server {{ {LISTEN} listen 127.0.0.1:{{port1}}; return default; }}
             server {{ listen 127.0.0.1:{{port}} ssl; server_name ~^(?<word>t)wo\\.; return $word-$1;
                       ssl_certificate two.crt; ssl_certificate_key two.key; access_log logs/access.log m; }}"
        )
        .replacen("ssl; ssl_certificate", "ssl default_server; ssl_certificate", 1),
    );
    let config = authority.client(ALL_VERSIONS);
    assert_eq!(text(&server, &config, "one.example"), "one");
    assert_eq!(text(&server, &config, "a.b.example"), "wild");
    assert_eq!(text(&server, &config, "two.example"), "t-t");
    assert_eq!(text(&server, &config, "other.example"), "default");
    let expected = ["one.example", "a.b.example", "two", "other.example"];
    assert_eq!(server.access_log(4).unwrap(), expected);
}

#[test]
fn client_certificates_are_checked() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let certificate = authority.certify(&["localhost"]);
    let none = authority.client(ALL_VERSIONS);
    let good = authority.client_with(ALL_VERSIONS, &authority.certify(&["client.example"]));
    let bad = authority.client_with(ALL_VERSIONS, &stranger.certify(&["client.example"]));
    for (value, allowed) in [("on", [false, true, false]), ("optional", [true, true, false])] {
        let server = server()
            .certificate("one", &certificate)
            .file("conf/ca.crt", authority.pem())
            .start(&format!(
                "stream {{ server {{ {LISTEN} ssl_client_certificate ca.crt; ssl_verify_client {value};
                 return '$ssl_client_verify $ssl_client_s_dn'; }} }}"
            ))
            .unwrap();
        for (config, is_allowed) in [&none, &good, &bad].into_iter().zip(allowed) {
            assert_eq!(!is_refused(&server, config, "localhost"), is_allowed, "{value}");
        }
        assert_eq!(text(&server, &good, "localhost"), "SUCCESS CN=client.example");
        server.wait_error_log("client SSL certificate verify error: ").unwrap();
        if value == "on" {
            server.wait_error_log("client sent no required SSL certificate while SSL handshaking").unwrap();
        }
    }
}

#[test]
fn handshake_of_an_unknown_name_is_rejected() {
    let authority = Authority::new();
    let server = start(
        [("one", &authority.certify(&["one.example", "other.example"]))],
        &format!(
            "log_format l $status; access_log logs/access.log l;
             server {{ listen 127.0.0.1:{{port}} ssl; ssl_reject_handshake on; }}
             server {{ {LISTEN} server_name one.example; return one; }}"
        ),
    );
    let config = authority.client(ALL_VERSIONS);
    assert_eq!(text(&server, &config, "one.example"), "one");
    assert!(is_refused(&server, &config, "other.example"));
    assert_eq!(server.access_log(2).unwrap(), ["200", "500"]);
}

#[test]
fn alpn_is_agreed_on() {
    let authority = Authority::new();
    let server = start(
        [("one", &authority.certify(&["localhost"]))],
        &format!("server {{ {LISTEN} ssl_alpn first second; return '[$ssl_alpn_protocol]'; }}"),
    );
    let offering = |protocols: &[&str]| {
        let mut config = ClientConfig::clone(&authority.client(ALL_VERSIONS));
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    };
    assert_eq!(text(&server, &offering(&[]), "localhost"), "[]");
    assert_eq!(text(&server, &offering(&["x", "second"]), "localhost"), "[second]");
    assert_eq!(text(&server, &offering(&["second", "first"]), "localhost"), "[first]");
    assert!(is_refused(&server, &offering(&["x"]), "localhost"));
}

#[test]
fn variables_name_the_certificate() {
    let authority = Authority::new();
    let server = start(
        [("a.example", &authority.certify(&["a.example"])), ("b.example", &authority.certify(&["b.example"]))],
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate $ssl_server_name.crt; ssl_certificate_key $ssl_server_name.key;
         return $ssl_server_name; }",
    );
    let config = authority.client(ALL_VERSIONS);
    assert_eq!(text(&server, &config, "a.example"), "a.example");
    assert_eq!(text(&server, &config, "b.example"), "b.example");
    assert!(is_refused(&server, &config, "c.example"));
}

#[test]
fn client_without_tls_ends_with_500() {
    let authority = Authority::new();
    let server = start(
        [("one", &authority.certify(&["localhost"]))],
        &format!(
            "log_format l $status; access_log logs/access.log l;
             server {{ {LISTEN} ssl_handshake_timeout 300ms; return x; }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(client.read_until_close().unwrap_or_default(), b"");
    let mut silent = server.connect().unwrap();
    assert_eq!(silent.read_until_close().unwrap(), b"");
    assert_eq!(server.access_log(2).unwrap(), ["500", "500"]);
    server
        .wait_error_log("client timed out (110: Connection timed out) while SSL handshaking, client: ")
        .unwrap();
}

#[test]
fn proxy_protocol_header_stands_before_the_handshake() {
    let authority = Authority::new();
    let server = start(
        [("one", &authority.certify(&["localhost"]))],
        "server { listen 127.0.0.1:{port} ssl proxy_protocol; ssl_certificate one.crt; ssl_certificate_key one.key;
         set_real_ip_from 127.0.0.1;
         return '$remote_addr:$remote_port $realip_remote_addr $proxy_protocol_addr'; }",
    );
    let config = authority.client(ALL_VERSIONS);
    let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 5 6\r\n";
    let mut client = Client::connect_tls_behind(server.addr(), header, &config, "localhost").unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"192.0.2.1:5 127.0.0.1 192.0.2.1");
}

#[test]
fn upstream_server_is_connected_to_over_tls() {
    let authority = Authority::new();
    let server = server()
        .certificate("one", &authority.certify(&["one.example"]))
        .file("conf/ca.crt", authority.pem())
        .start(
            "stream {
             server { listen 127.0.0.1:{port3} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                      ssl_alpn first second; return '$ssl_server_name $ssl_alpn_protocol $ssl_session_reused'; }
             proxy_ssl on; proxy_ssl_trusted_certificate ca.crt; proxy_ssl_server_name on;
             server { listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{port3}; proxy_ssl_name one.example;
                      proxy_ssl_verify on; proxy_ssl_alpn $protocol second; }
             server { listen 127.0.0.1:{port1}; proxy_pass 127.0.0.1:{port3}; proxy_ssl_name two.example;
                      proxy_ssl_verify on; }
             server { listen 127.0.0.1:{port2}; proxy_pass 127.0.0.1:{port3}; proxy_ssl_server_name off;
                      proxy_ssl_session_reuse off; }
             }",
        )
        .unwrap();
    let text = |index| super::text(server.addr_of(index));
    assert_eq!(text(0), "one.example second .");
    assert_eq!(text(0), "one.example second r");
    assert_eq!(text(1), "");
    server.wait_error_log("while SSL handshaking to upstream, client: 127.0.0.1, server: ").unwrap();
    assert_eq!(text(2), "  .");
}

#[test]
fn proxy_protocol_header_goes_before_a_handshake_with_the_server() {
    let authority = Authority::new();
    let server = start(
        [("one", &authority.certify(&["localhost"]))],
        "server { listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{port1}; proxy_ssl on; proxy_protocol on; }
         server { listen 127.0.0.1:{port1} ssl proxy_protocol; ssl_certificate one.crt; ssl_certificate_key one.key;
                  return '$proxy_protocol_addr $proxy_protocol_server_port'; }",
    );
    assert_eq!(super::text(server.addr()), format!("127.0.0.1 {}", server.addr().port()));
}

#[test]
fn proxy_protocol_v2_has_the_facts_of_the_handshake() {
    let authority = Authority::new();
    let server = server()
        .certificate("one", &authority.certify_rsa(&["localhost"]))
        .file("conf/ca.crt", authority.pem())
        .start(&format!(
            "stream {{
             server {{ {LISTEN} ssl_alpn first; ssl_client_certificate ca.crt; ssl_verify_client optional;
                       proxy_pass 127.0.0.1:{{port1}}; proxy_protocol v2; }}
             server {{ listen 127.0.0.1:{{port1}} proxy_protocol;
                       return '$proxy_protocol_addr $proxy_protocol_tlv_authority $proxy_protocol_tlv_alpn \
                               $proxy_protocol_tlv_ssl_version [$proxy_protocol_tlv_ssl_cn] $proxy_protocol_tlv_ssl_verify \
                               $proxy_protocol_tlv_ssl_cipher $proxy_protocol_tlv_ssl_sig_alg $proxy_protocol_tlv_ssl_key_alg'; }} }}"
        ))
        .unwrap();
    let facts = |config: &ClientConfig, version: &str, cn: &str, verify: u32, cipher: &str| {
        let mut config = config.clone();
        config.alpn_protocols = vec![b"first".to_vec()];
        let expected =
            format!("127.0.0.1 localhost first {version} [{cn}] {verify} {cipher} ecdsa-with-SHA256 RSA2048");
        assert_eq!(text(&server, &Arc::new(config), "localhost"), expected);
    };
    facts(&authority.client(&[&TLS13]), "TLSv1.3", "", 1, "TLS_AES_256_GCM_SHA384");
    let client = authority.client_with(&[&TLS12], &authority.certify(&["client.example"]));
    facts(&client, "TLSv1.2", "client.example", 0, "ECDHE-RSA-AES256-GCM-SHA384");
}

#[test]
fn mistakes_are_refused_in_the_words_of_nginx() {
    for (conf, expected) in [
        (
            "server { listen 127.0.0.1:{port} ssl; return x; }",
            "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive",
        ),
        ("server { listen 127.0.0.1:{port}; server_name a..b; }", "invalid server name or wildcard \"a..b\""),
        ("server { listen 127.0.0.1:{port}; ssl_early_data on; }", "directive is not allowed here"),
        (
            "server { listen 127.0.0.1:{port}; proxy_ssl on; proxy_ssl_verify on; proxy_pass 127.0.0.1:1; }",
            "no proxy_ssl_trusted_certificate for proxy_ssl_verify",
        ),
        ("server { listen 127.0.0.1:{port}; pass localhost:80; }", "\"pass\" directive has no addresses"),
        ("server { listen 127.0.0.1:{port}; pass 127.0.0.1; }", "\"pass\" directive has no port"),
    ] {
        let refused = refusal_of(&format!("stream {{ {conf} }}"));
        assert!(refused.contains(expected), "{conf}: {refused}");
    }
}
