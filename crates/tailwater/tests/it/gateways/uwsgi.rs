//! `uwsgi_pass` and its kin, in front of scripted applications.

use std::net::SocketAddr;

use tw_testkit::application::ApplicationRequest;
use tw_testkit::origin::{origin, secured};
use tw_testkit::tls::Authority;

use crate::support::{get, page, raw, refusal, request, server, start, start_server};

/// An application that answers every request by `answer`, and closes.
fn application(answer: impl Fn(ApplicationRequest) -> String + Send + Sync + Clone + 'static) -> SocketAddr {
    origin(move |mut conn| {
        if let Some(request) = conn.uwsgi() {
            conn.send(answer(request));
        }
    })
}

fn echo_application() -> SocketAddr {
    application(|request| {
        let [one, two] = request.modifiers;
        format!("Status: 200 OK\r\n\r\n{one} {two}\n{}[{}]", request.lines(), request.body.escape_ascii())
    })
}

#[test]
fn configured_parameters_are_sent() {
    let addr = echo_application();
    let server = start(
        server(),
        &format!(
            "uwsgi_param REQUEST_URI $request_uri; uwsgi_param CONTENT_LENGTH $content_length;
             uwsgi_modifier1 5;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ uwsgi_pass {addr}; }}
                 location /two {{ uwsgi_pass uwsgi://{addr}; uwsgi_modifier2 255; }}
                 location /off {{ uwsgi_pass {addr}; uwsgi_request_buffering off; }} }}"
        ),
    );
    let text = request(&server, "GET /a?b", &["X-Two: 1", "X-Two: 2"]).text();
    assert_eq!(
        text,
        "5 0\nREQUEST_URI=/a?b\nCONTENT_LENGTH=\nHTTP_HOST=localhost\nHTTP_CONNECTION=close\nHTTP_X_TWO=1, 2\n[]"
    );
    assert!(page(&server, "/two").1.starts_with("5 255\n"));
    // The protocol has no end of a body but its length.
    for target in ["/", "/off"] {
        let mut client = server.connect().unwrap();
        let body = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        client.send(format!("POST {target} HTTP/1.1\r\nHost: x\r\n{body}")).unwrap();
        let text = client.read_response().unwrap().text();
        assert!(text.contains("CONTENT_LENGTH=3\n") && text.ends_with("[abc]"), "{text}");
    }
}

#[test]
fn status_line_is_optional() {
    let addr = application(|request| {
        request.param("QUERY_STRING").unwrap_or_default().replace('|', "\r\n").replace('_', " ")
            + "\r\n\r\nbody"
    });
    let server = start_server(
        server(),
        &format!("location / {{ uwsgi_pass {addr}; uwsgi_param QUERY_STRING $query_string; }}"),
    );
    for (head, status, body) in [
        ("A:b", 200, "body"),
        ("HTTP/1.1_404_Not_Found|A:b", 404, "body"),
        ("HTTP/1.0_200_OK|Content-Length:2", 200, "bo"),
        ("Status:201_Made", 201, "body"),
        ("Location:/x", 302, "body"),
        ("HTTP/1.1_200_OK|Transfer-Encoding:chunked", 200, "body"),
    ] {
        let response = get(&server, &format!("/?{head}"));
        assert_eq!((response.status, &*response.text()), (status, body), "{head}");
    }
    for (head, line) in [
        ("HTTP/2_200", "upstream sent no valid HTTP/1.0 header"),
        ("Status:x", "upstream sent invalid status \"x\""),
        ("no_field", "upstream sent invalid header: "),
    ] {
        assert_eq!(get(&server, &format!("/?{head}")).status, 502, "{head}");
        server.wait_error_log(line).unwrap();
    }
    // A body that is shorter than announced.
    let text = raw(&server, "GET /?Content-Length:9 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(text.ends_with("body"), "{text}");
    server.wait_error_log("upstream prematurely closed connection while reading upstream").unwrap();
}

#[test]
fn too_many_parameters_are_refused() {
    let server = start(
        server(),
        &format!(
            "large_client_header_buffers 8 64k;
             server {{ listen 127.0.0.1:{{port}}; location / {{ uwsgi_pass {}; }} }}",
            echo_application()
        ),
    );
    let one = format!("A: {}", "x".repeat(40_000));
    let two = format!("B: {}", "x".repeat(40_000));
    assert_eq!(request(&server, "GET /", &[&one]).status, 200);
    assert_eq!(request(&server, "GET /", &[&one, &two]).status, 500);
    server.wait_error_log("uwsgi request is too big: ").unwrap();
}

#[test]
fn websocket_is_bidirectional() {
    let addr = origin(|mut conn| {
        let _ = conn.uwsgi();
        conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n");
        let mut byte = [0];
        while std::io::Read::read_exact(&mut conn.reader, &mut byte).is_ok() {
            conn.send(byte);
        }
    });
    let server = start_server(server(), &format!("location / {{ uwsgi_pass {addr}; }}"));
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: x\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 101);
    client.send("hello").unwrap();
    assert_eq!(client.read_bytes(5).unwrap(), b"hello");
}

#[test]
fn uwsgi_over_tls_works() {
    let authority = Authority::new();
    let config = Authority::server(rustls::ALL_VERSIONS, &authority.certify(&["app.test"]));
    let addr = secured(config, |mut conn| {
        if conn.uwsgi().is_some() {
            conn.send("\r\nsecured");
            conn.close_notify();
        }
    });
    let server = start_server(
        server().file("conf/ca.pem", authority.pem()),
        &format!(
            "uwsgi_ssl_verify on; uwsgi_ssl_trusted_certificate ca.pem;
             location / {{ uwsgi_pass suwsgi://{addr}; uwsgi_ssl_name app.test; }}
             location /other {{ uwsgi_pass suwsgi://{addr}; uwsgi_ssl_name other.test; }}
             location /variable {{ uwsgi_pass $arg_to; uwsgi_ssl_name app.test; }}"
        ),
    );
    assert_eq!(page(&server, "/"), (200, "secured".to_owned()));
    assert_eq!(get(&server, "/other").status, 502);
    assert_eq!(page(&server, &format!("/variable?to=suwsgi://{addr}")).1, "secured");
    let log = server.wait_error_log("upstream SSL").unwrap();
    assert!(log.contains(&format!("upstream: \"suwsgi://{addr}\"")), "{log}");
}

#[test]
fn malformed_directives_are_refused() {
    for (conf, expected) in [
        ("uwsgi_modifier1 256;", "value must be between 0 and 255"),
        ("uwsgi_modifier2 x;", "invalid number"),
        ("location / { uwsgi_pass uwsgi://app; }", "no port in upstream \"app\""),
        ("uwsgi_cache none;", "\"uwsgi_cache\" zone \"none\" is unknown"),
    ] {
        let said = refusal(conf);
        assert!(said.contains(expected), "{conf}: {said}");
    }
}
