//! `mirror`: copies of requests in the background.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use crate::support::{get, refusal, server, start};

/// Reads a request with a body of this length.
fn read_request(connection: &mut TcpStream, body_len: usize) -> String {
    connection.set_read_timeout(Some(tw_testkit::wait::TIMEOUT)).unwrap();
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&all);
        if text.find("\r\n\r\n").is_some_and(|at| all.len() >= at + 4 + body_len) {
            return text.into_owned();
        }
        let read = connection.read(&mut piece).unwrap();
        assert!(read > 0, "ends early: {text}");
        all.extend_from_slice(&piece[..read]);
    }
}

#[test]
fn each_mirror_location_gets_a_copy() {
    let server = start(
        server()
            .file("html/index.html", "page")
            .file("html/off", "")
            .file("html/many", "")
            .file("html/own", ""),
        "log_format copies '$uri $args $request_method $status'; \
         server { listen 127.0.0.1:{port}; root html; \
           location / { mirror /mirror; location /off { mirror off; } location /own { mirror /mirror/own; } } \
           location /many { mirror /mirror/1; mirror /mirror/2; } \
           location /mirror { internal; log_subrequest on; access_log logs/copies.log copies; return 418; } }",
    );
    let mut count = 0;
    for (target, expected) in [
        ("/index.html?1", &["/mirror 1 GET 418"][..]),
        ("/?2", &["/mirror 2 GET 418", "/mirror 2 GET 418"]),
        ("/off?3", &[]),
        ("/many?4", &["/mirror/1 4 GET 418", "/mirror/2 4 GET 418"]),
        ("/own", &["/mirror/own - GET 418"]),
    ] {
        assert_eq!(get(&server, target).status, 200, "{target}");
        count += expected.len();
        let log = server.log("logs/copies.log", count).unwrap();
        assert_eq!(log[count - expected.len()..], *expected, "{target}");
    }
}

#[test]
fn slow_mirror_delays_no_response() {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = origin.local_addr().unwrap().port();
    let server = start(
        server().file("html/a", "one").file("html/b", "two"),
        &format!(
            "log_format copies '$uri $status $request_completion $upstream_status'; \
             server {{ listen 127.0.0.1:{{port}}; root html; mirror /mirror; \
               location /b {{ mirror off; }} \
               location /mirror {{ log_subrequest on; access_log logs/copies.log copies; \
                 proxy_pass http://127.0.0.1:{port}; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("GET /a?x HTTP/1.1\r\nHost: a\r\nX-Own: own\r\n\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().text(), "one");
    let (mut connection, _) = origin.accept().unwrap();
    let request = read_request(&mut connection, 0);
    assert!(
        request.starts_with("GET /mirror?x HTTP/1.1\r\n") && request.contains("\r\nX-Own: own\r\n"),
        "{request}"
    );
    // The origin takes its time; the next request does not wait, and the connection ends.
    client.send("GET /b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().text(), "two");
    assert!(client.read_until_close().unwrap().is_empty());
    drop(client);
    connection.write_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok").unwrap();
    assert_eq!(server.log("logs/copies.log", 1).unwrap(), ["/mirror 202 OK 202"]);
}

#[test]
fn mirror_request_body_decides_whether_copies_have_a_body() {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = origin.local_addr().unwrap().port();
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; client_body_buffer_size 1k; mirror /mirror; \
               location / {{ trap echo; }} location /off {{ mirror_request_body off; trap echo; }} \
               location /proxied {{ proxy_request_buffering off; proxy_pass http://127.0.0.1:{{port1}}; }} \
               location /mirror {{ proxy_pass http://127.0.0.1:{port}; }} }} \
             server {{ listen 127.0.0.1:{{port1}}; location / {{ trap echo; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    for len in [0, 10, 5000] {
        let body = "b".repeat(len);
        for (method, target, framing, is_copied) in [
            ("POST", "/", format!("Content-Length: {len}\r\n\r\n{body}"), true),
            ("PUT", "/", format!("Content-Length: {len}\r\n\r\n{body}"), true),
            ("POST", "/off", format!("Content-Length: {len}\r\n\r\n{body}"), false),
            ("POST", "/proxied", format!("Content-Length: {len}\r\n\r\n{body}"), true),
            ("POST", "/", format!("Transfer-Encoding: chunked\r\n\r\n{len:x}\r\n{body}\r\n0\r\n\r\n"), true),
        ] {
            if len == 0 && framing.contains("chunked") {
                continue;
            }
            let what = format!("{method} {target} {len}");
            client.send(format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{framing}")).unwrap();
            assert_eq!(client.read_response().unwrap().text(), body, "{what}");
            let (mut connection, _) = origin.accept().unwrap();
            let copy = read_request(&mut connection, if is_copied { len } else { 0 });
            assert!(copy.starts_with(&format!("{method} /mirror HTTP/1.1\r\n")), "{what}: {copy}");
            let announced = copy.contains(&format!("\r\nContent-Length: {len}\r\n"));
            assert_eq!(announced, is_copied, "{what}: {copy}");
            assert!(!copy.contains("Transfer-Encoding"), "{what}: {copy}");
            assert!(copy.ends_with(if is_copied { &body } else { "\r\n\r\n" }), "{what}: {copy}");
        }
    }
}

#[test]
fn concurrent_copies_are_bounded() {
    let mirrors = "mirror /slow; ".repeat(1025);
    let server = server()
        .file("html/a", "one")
        .start(&format!(
            "events {{ worker_connections 4096; }} http {{ limit_req_zone $server_name zone=slow:1m rate=1r/m; \
             server {{ listen 127.0.0.1:{{port}}; root html; location /a {{ {mirrors} }} \
               location /slow {{ internal; limit_req zone=slow burst=5000; return 204; }} }} }}"
        ))
        .unwrap();
    assert_eq!(get(&server, "/a").text(), "one");
    server.wait_error_log("too many requests beside others while processing \"/slow\"").unwrap();
    assert_eq!(get(&server, "/a").text(), "one");
}

#[test]
fn malformed_directives_are_refused() {
    for conf in ["mirror off; mirror /a;", "mirror /a; mirror off;", "mirror off; mirror off;"] {
        assert!(refusal(conf).contains("\"mirror\" directive is duplicate"), "{conf}");
    }
}
