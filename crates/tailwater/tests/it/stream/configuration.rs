//! Configurations of `stream`: what may be written, and what is refused.

use tw_testkit::Client;

use super::{start, text};
use crate::support::{refusal_of, server};

#[test]
fn stream_and_http_stand_beside_each_other() {
    let server = server()
        .file("html/index.html", "page")
        .start(
            "http { server { listen 127.0.0.1:{port}; root html; } }
             stream { server { listen 127.0.0.1:{port1}; return session; } }",
        )
        .unwrap();
    assert_eq!(Client::get(server.addr(), "/").unwrap().text(), "page");
    assert_eq!(text(server.addr_of(1)), "session");
}

#[test]
fn wildcard_of_one_protocol_and_an_address_of_the_other_share_a_port() {
    let server = server()
        .start(
            "http { server { listen {port}; return 200 http; } }
             stream { server { listen 127.0.0.1:{port}; return session; } }",
        )
        .unwrap();
    assert_eq!(text(server.addr()), "session");
    let other = std::net::SocketAddr::from(([127, 0, 0, 2], server.addr().port()));
    assert_eq!(Client::get(other, "/").unwrap().text(), "http");
}

#[test]
fn range_of_ports_has_one_server() {
    let server =
        start("server { listen 127.0.0.1:{port}; listen 127.0.0.1:23400-23403; return $server_port; }");
    for port in 23400..=23403 {
        assert_eq!(text(([127, 0, 0, 1], port).into()), port.to_string());
    }
    drop(server);
}

#[test]
fn unix_socket_takes_sessions() {
    use std::io::Read;
    let server = start(
        "server { listen 127.0.0.1:{port}; listen unix:{prefix}/s; return $server_addr:$remote_addr; }",
    );
    let mut stream = std::os::unix::net::UnixStream::connect(server.prefix().join("s")).unwrap();
    let mut came = String::new();
    stream.read_to_string(&mut came).unwrap();
    assert_eq!(came, format!("unix:{}/s:unix:", server.prefix().display()));
}

#[test]
fn mistakes_are_refused_in_the_words_of_nginx() {
    let address = "listen 127.0.0.1:{port};";
    for (conf, expected) in [
        (format!("server {{ {address} }} server {{ }}"), "no \"listen\" is defined for server"),
        (
            format!("server {{ {address} }} server {{ listen 127.0.0.1; }}"),
            "no port in \"127.0.0.1\" of the \"listen\" directive",
        ),
        (format!("server {{ {address} {address} }}"), "a duplicate listen 127.0.0.1:"),
        (format!("server {{ {address} proxy_pass 127.0.0.1; }}"), "no port in upstream \"127.0.0.1\""),
        (
            format!("server {{ {address} proxy_pass u; }} upstream u {{ }}"),
            "no servers are inside upstream \"u\"",
        ),
        (format!("server {{ {address} return $nothing; }}"), "unknown \"nothing\" variable"),
        (format!("server {{ {address} location / {{ }} }}"), "\"location\" directive is not allowed here"),
        (format!("server {{ {address} proxi_pass a:1; }}"), "unknown directive \"proxi_pass\""),
        (format!("access_log logs/a.log; server {{ {address} return x; }}"), "log format is not specified"),
        ("server { listen 127.0.0.1:{port} http2; }".to_owned(), "invalid parameter \"http2\""),
        (
            format!("server {{ {address} proxy_pass u; }} upstream u {{ server 127.0.0.1:1 route=a; }}"),
            "invalid parameter \"route=a\"",
        ),
        (
            format!("server {{ {address} ssl_ech_file a; return x; }}"),
            "\"ssl_ech_file\" (ngx_stream_ssl_module) is not supported",
        ),
    ] {
        let refused = refusal_of(&format!("stream {{ {conf} }}"));
        assert!(refused.contains(expected), "{conf}: {refused}");
    }
}

#[test]
fn one_address_in_two_protocols_is_refused() {
    let refused = refusal_of(
        "http { server { listen 127.0.0.1:{port}; } }
         stream { server { listen 127.0.0.1:{port}; return x; } }",
    );
    assert!(
        refused.contains("duplicate \"127.0.0.1:") && refused.contains("\" address and port pair"),
        "{refused}"
    );
}

#[test]
fn resolver_is_missed_only_where_a_name_may_come() {
    for (map, expected) in [("a 127.0.0.1:1; default u", 0), ("a 127.0.0.1:1; default app.test:1", 1)] {
        let output = server().arg("-t").run(&format!(
            "stream {{ upstream u {{ server 127.0.0.1:1; }} map $remote_addr $to {{ {map}; }}
             server {{ listen 127.0.0.1:8391; proxy_pass $to; }} }}"
        ));
        let said = String::from_utf8(output.unwrap().stderr).unwrap();
        let warnings = said.matches("no resolver is defined for the names in \"$to\"").count();
        assert_eq!(warnings, expected, "{map}: {said}");
    }
}
