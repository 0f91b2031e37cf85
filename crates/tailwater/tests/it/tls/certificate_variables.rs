//! `ssl_certificate` and `proxy_ssl_certificate` with variables, and `data:`.

use std::sync::Arc;

use rustls::{ALL_VERSIONS, ClientConfig};
use tw_testkit::origin::secured;
use tw_testkit::tls::{Authority, Certificate};
use tw_testkit::{Client, Server};

use crate::support::tls::try_get_tls;
use crate::support::{refusal_of, server};

/// A server with these certificates. Files are opened and parsed in a pool: the loop guard is on.
fn start(http: &str, made: &[(&str, &Certificate)]) -> Server {
    let builder = made.iter().fold(server(), |server, (name, made)| server.certificate(name, made));
    builder.start(&format!("worker_processes 1; http {{ {http} }}")).unwrap()
}

fn request(server: &Server, config: &Arc<ClientConfig>, name: &str) -> std::io::Result<String> {
    Ok(try_get_tls(server, config, name)?.1.text())
}

fn replace(server: &Server, name: &str, made: &Certificate) {
    std::fs::write(server.prefix().join(format!("conf/{name}.crt")), &made.pem).unwrap();
    std::fs::write(server.prefix().join(format!("conf/{name}.key")), &made.key).unwrap();
}

#[test]
fn server_name_selects_the_certificate_file() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let one = authority.certify(&["one.example"]);
    let two = authority.certify_rsa(&["two.example"]);
    let server = start(
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate $ssl_server_name.crt;
                  ssl_certificate_key $ssl_server_name.key; return 200 \"$ssl_server_name $ssl_session_reused\"; }",
        &[("one.example", &one), ("two.example", &two)],
    );
    let config = authority.client(ALL_VERSIONS);
    assert_eq!(request(&server, &config, "one.example").unwrap(), "one.example .");
    assert_eq!(request(&server, &config, "ONE.example").unwrap(), "one.example r");
    assert_eq!(request(&server, &config, "two.example").unwrap(), "two.example .");
    assert!(request(&server, &config, "three.example").unwrap_err().to_string().contains("InternalError"));
    server.wait_error_log("cannot load certificate \"three.example.crt\": open() \"").unwrap();
    // Files are read for each handshake: a key that does not match affects no other name, and a new certificate is used
    // at once.
    replace(&server, "one.example", &Certificate { key: two.key.clone(), ..one.clone() });
    let config = authority.client(ALL_VERSIONS);
    assert!(request(&server, &config, "one.example").is_err());
    server.wait_error_log("cannot use certificate key \"one.example.key\" with certificate \"").unwrap();
    assert!(request(&server, &config, "two.example").is_ok());
    replace(&server, "one.example", &stranger.certify(&["one.example"]));
    assert!(request(&server, &stranger.client(ALL_VERSIONS), "one.example").is_ok());
}

#[test]
fn ssl_certificate_cache_keeps_up_to_max_certificates() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let one = authority.certify(&["one.example"]);
    let two = authority.certify(&["two.example"]);
    let old = authority.client(ALL_VERSIONS);
    let new = stranger.client(ALL_VERSIONS);
    let server = start(
        "ssl_certificate_cache max=1;
         server { listen 127.0.0.1:{port} ssl; ssl_certificate $ssl_server_name.crt;
                  ssl_certificate_key $ssl_server_name.key; return 200 here; }",
        &[("one.example", &one), ("two.example", &two)],
    );
    assert!(request(&server, &old, "one.example").is_ok());
    replace(&server, "one.example", &stranger.certify(&["one.example"]));
    assert!(request(&server, &old, "one.example").is_ok(), "it is kept");
    assert!(request(&server, &new, "one.example").is_err());
    // The cache has room for one certificate.
    assert!(request(&server, &old, "two.example").is_ok());
    assert!(request(&server, &new, "one.example").is_ok(), "it was read again");
}

#[test]
fn data_prefix_holds_the_certificate() {
    let authority = Authority::new();
    let Certificate { pem, key } = authority.certify(&["one.example"]);
    let config = authority.client(ALL_VERSIONS);
    let both = format!("listen 127.0.0.1:{{port}} ssl; ssl_certificate 'data:{pem}';");
    let server = start(&format!("server {{ {both} ssl_certificate_key 'data:{key}'; return 200 a; }}"), &[]);
    assert_eq!(request(&server, &config, "one.example").unwrap(), "a");
    // A variable that is the content.
    let server = start(
        &format!(
            "map $ssl_server_name $key {{ one.example 'data:{key}'; }}
             server {{ {both} ssl_certificate_key $key; return 200 b; }}"
        ),
        &[],
    );
    assert_eq!(request(&server, &config, "one.example").unwrap(), "b");
    assert!(request(&server, &config, "two.example").is_err());
    server.wait_error_log("cannot load certificate key \"\"").unwrap();
}

#[test]
fn proxy_ssl_certificate_takes_variables() {
    let authority = Authority::new();
    let own = authority.certify(&["localhost"]);
    let one = authority.certify(&["one"]);
    let two = authority.certify_rsa(&["two"]);
    let addr = secured(authority.server_for_known(ALL_VERSIONS, &own), |mut conn| {
        while conn.head().is_some() {
            let shown = conn.session().peer_certificates().map_or(0, |chain| chain[0].len());
            conn.answer("", format!("{} {shown}", conn.nth));
        }
    });
    let front = |more: &str| {
        start(
            &format!(
                "upstream u {{ server {addr}; keepalive 8; }}
                 server {{ listen 127.0.0.1:{{port}}; proxy_ssl_certificate $arg_who.crt; proxy_ssl_certificate_key $arg_who.key;
                   {more} location / {{ proxy_pass https://u; proxy_http_version 1.1; proxy_set_header Connection ''; }} }}"
            ),
            &[("one", &one), ("two", &two)],
        )
    };
    for server in [front(""), front("proxy_ssl_certificate_cache max=10 valid=10s inactive=5s;")] {
        let get = |who: &str| Client::get(server.addr(), &format!("/?who={who}")).unwrap();
        let first = get("one");
        let second = get("two");
        assert_eq!((first.status, second.status), (200, 200), "{}", server.error_log());
        let first = first.text();
        let second = second.text();
        assert_ne!(first.split(' ').nth(1), second.split(' ').nth(1));
        // Requests with different certificates share no connection.
        assert_eq!((get("one").text(), get("two").text()), (first, second));
        assert_eq!(get("three").status, 500);
        server.wait_error_log("cannot load certificate \"three.crt\"").unwrap();
    }
}

#[test]
fn malformed_directives_are_refused() {
    for (words, expected) in [
        ("ssl_certificate_cache on;", "invalid parameter \"on\""),
        ("ssl_certificate_cache inactive=1s;", "\"ssl_certificate_cache\" must have the \"max\" parameter"),
        ("ssl_certificate_cache max=0;", "invalid parameter \"max=0\""),
        ("proxy_ssl_certificate_cache max=1 valid=x;", "invalid parameter \"valid=x\""),
        ("ssl_certificate $nothing.crt; ssl_certificate_key a;", "unknown \"nothing\" variable"),
    ] {
        let said = refusal_of(&format!("http {{ server {{ listen 127.0.0.1:{{port}} ssl; {words} }} }}"));
        assert!(said.contains(expected), "{words}: {said}");
    }
}
