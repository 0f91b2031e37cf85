//! `auth_request`: access by a subrequest, and values kept from it.

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::thread;

use tw_testkit::wait;

use crate::support::{get, page, raw, refusal, request, server, start, start_server};

#[test]
fn subrequest_status_decides() {
    let server = start_server(
        server().file("html/page", "content").file("html/yes", "INVISIBLE"),
        "location /open { alias html/page; auth_request /204; } location /202 { return 202 INVISIBLE; } \
         location /static { alias html/page; auth_request /yes; } \
         location /accepted { alias html/page; auth_request /202; } \
         location /challenged { alias html/page; auth_request /401; } location /401 { return 401; } \
         location /forbidden { alias html/page; auth_request /403; } \
         location /missing { alias html/page; auth_request /none; } \
         location /redirected { alias html/page; auth_request /301; } location /301 { return 301 /; } \
         location /silent { alias html/page; auth_request /444; } location /444 { return 444; } \
         location /on/ { auth_request /403; location /on/off { alias html/page; auth_request off; } \
           location /on/inner { alias html/page; } } \
         location /itself { alias html/page; auth_request /itself; } \
         location /204 { return 204; } location /403 { internal; return 403; }",
    );
    for (target, status) in [
        ("/open", 200),
        ("/static", 200),
        ("/accepted", 200),
        ("/challenged", 401),
        ("/forbidden", 403),
        ("/missing", 500),
        ("/redirected", 500),
        ("/on/inner", 403),
        ("/on/off", 200),
        ("/itself", 200),
    ] {
        let (got, text) = page(&server, target);
        assert_eq!(got, status, "{target}");
        assert_eq!(text == "content", status == 200, "{target}: {text}");
    }
    assert_eq!(raw(&server, "GET /silent HTTP/1.0\r\n\r\n"), "");
    server.wait_error_log("auth request unexpected status: 404, client: ").unwrap();
    server.wait_error_log("auth request unexpected status: 301, client: ").unwrap();
}

#[test]
fn satisfy_combines_auth_request_and_addresses() {
    let server = start_server(
        server().file("html/page", "content"),
        "location /all { alias html/page; deny all; auth_request /204; } \
         location /any { alias html/page; satisfy any; deny all; auth_request /204; } \
         location /none { alias html/page; satisfy any; deny all; auth_request /401; } \
         location /either { alias html/page; satisfy any; allow all; auth_request /403; } \
         location /204 { return 204; } location /401 { return 401; } location /403 { return 403; }",
    );
    for (target, status) in [("/all", 403), ("/any", 200), ("/none", 401), ("/either", 200)] {
        assert_eq!(get(&server, target).status, status, "{target}");
    }
}

#[test]
fn www_authenticate_of_the_subrequest_reaches_the_client() {
    let server = start(
        server().file("html/page", ""),
        "server { listen 127.0.0.1:{port}; root html; \
           location /plain { auth_request /ask; } location /hidden { auth_request /ask-hidden; } \
           location /forbidden { auth_request /ask-403; } \
           location /ask { proxy_pass http://127.0.0.1:{port1}/; } \
           location /ask-hidden { proxy_pass http://127.0.0.1:{port1}/; proxy_hide_header WWW-Authenticate; } \
           location /ask-403 { proxy_pass http://127.0.0.1:{port1}/403; } } \
         server { listen 127.0.0.1:{port1}; add_header WWW-Authenticate one always; \
           add_header WWW-Authenticate two always; location / { return 401; } location /403 { return 403; } }",
    );
    for (target, status, challenges) in
        [("/plain", 401, &["one", "two"][..]), ("/hidden", 401, &["one", "two"]), ("/forbidden", 403, &[])]
    {
        let response = get(&server, target);
        assert_eq!(response.status, status, "{target}");
        assert_eq!(response.values("WWW-Authenticate").collect::<Vec<_>>(), challenges, "{target}");
    }
}

#[test]
fn auth_request_set_keeps_values_of_the_subrequest() {
    let server = start(
        server().file("html/page", "content"),
        "server { listen 127.0.0.1:{port}; root html; \
           auth_request_set $user $upstream_http_x_user; auth_request_set $code $upstream_status; \
           add_header X-User $user always; add_header X-Code $code always; \
           location = /page { auth_request /ask; } \
           location = /refused { auth_request /ask-403; } \
           location = /moved { auth_request /ask; error_page 404 = /after; } \
           location = /named { auth_request /ask; error_page 404 = @after; } \
           location = /twice { auth_request /ask; error_page 404 = /other; } \
           location = /other { auth_request /ask-other; return 200 late; error_page 404 = /after; } \
           location = /after { return 200 after; } location @after { return 200 named; } \
           location = /args { auth_request /ask; auth_request_set $args a=$upstream_http_x_user; \
             proxy_pass http://127.0.0.1:{port1}/args; } \
           location = /unset { return 200 <$user>; } \
           location /ask { proxy_pass http://127.0.0.1:{port1}; } } \
         server { listen 127.0.0.1:{port1}; \
           location /ask { add_header X-User me; return 204; } \
           location /ask-other { add_header X-User other; return 204; } \
           location /ask-403 { add_header X-User nobody always; return 403; } \
           location /args { return 200 $args; } }",
    );
    for (target, status, user, code) in [
        ("/page", 200, Some("me"), Some("204")),
        ("/refused", 403, Some("nobody"), Some("403")),
        ("/moved", 200, Some("me"), Some("204")),
        ("/named", 200, Some("me"), Some("204")),
        ("/unset", 200, None, None),
    ] {
        let response = get(&server, target);
        let said = (response.status, response.field("X-User"), response.field("X-Code"));
        assert_eq!(said, (status, user, code), "{target}");
    }
    assert_eq!(get(&server, "/unset").text(), "<>");
    assert_eq!(get(&server, "/args").text(), "a=me");
}

#[test]
fn subrequest_has_no_body_and_the_request_keeps_its_own() {
    let server = start(
        server(),
        "server { listen 127.0.0.1:{port}; client_body_buffer_size 1k; \
           location / { auth_request /ask; auth_request_set $seen $upstream_http_x_seen; \
             add_header X-Seen $seen; proxy_pass http://127.0.0.1:{port1}/echo; } \
           location /unbuffered { auth_request /ask; proxy_request_buffering off; \
             proxy_pass http://127.0.0.1:{port1}/echo; } \
           location /ask { proxy_pass http://127.0.0.1:{port1}; } } \
         server { listen 127.0.0.1:{port1}; location /echo { trap echo; } \
           location /ask { add_header X-Seen '$request_method <$content_length> <$http_transfer_encoding> $http_x_own'; \
             return 204; } }",
    );
    for body in ["1234567890".to_owned(), "x".repeat(5000)] {
        for target in ["/", "/unbuffered"] {
            let length = format!("Content-Length: {}", body.len());
            let mut client = server.connect().unwrap();
            client
                .send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nX-Own: own\r\n{length}\r\n\r\n{body}"))
                .unwrap();
            let response = client.read_response().unwrap();
            assert_eq!((response.status, response.text()), (200, body.clone()), "{target}");
            if target == "/" {
                assert_eq!(response.field("X-Seen"), Some("GET <> <> own"));
            }
            let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
            client
                .send(format!(
                    "PUT {target} HTTP/1.1\r\nHost: a\r\nX-Own: own\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}"
                ))
                .unwrap();
            let response = client.read_response().unwrap();
            assert_eq!((response.status, response.text()), (200, body.clone()), "{target} in chunks");
        }
    }
}

#[test]
fn closed_client_connection_ends_the_subrequest() {
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = origin.local_addr().unwrap().port();
    let server = start_server(
        server().file("html/page", ""),
        &format!(
            "location / {{ auth_request /ask; }} location /ask {{ proxy_pass http://127.0.0.1:{port}; }}"
        ),
    );
    let (sender, receiver) = channel();
    let subrequest = thread::spawn(move || {
        let (mut connection, _) = origin.accept().unwrap();
        let mut all = Vec::new();
        let mut byte = [0];
        while !all.ends_with(b"\r\n\r\n") && connection.read(&mut byte).unwrap() == 1 {
            all.push(byte[0]);
        }
        sender.send(()).unwrap();
        // The server closes the connection when the subrequest is over.
        connection.read_to_end(&mut all).unwrap();
        String::from_utf8(all).unwrap()
    });
    let mut client = server.connect().unwrap();
    client.send("GET /page HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    receiver.recv_timeout(wait::TIMEOUT).unwrap();
    drop(client);
    assert!(subrequest.join().unwrap().starts_with("GET /ask HTTP/1.1\r\n"));
    let log = server.access_log(1).unwrap();
    assert!(log[0].contains("\" 499 0 "), "{log:?}");
}

#[test]
fn malformed_directives_are_refused() {
    assert!(refusal("auth_request /a; auth_request /b;").contains("\"auth_request\" directive is duplicate"));
    assert!(refusal("auth_request_set a b;").contains("invalid variable name \"a\""));
    assert!(refusal("auth_request_set $uri b;").contains("the duplicate \"uri\" variable"));
    let fields = ["Range: bytes=0-0"];
    let server = start_server(
        server().file("html/page", "content"),
        "location / { auth_request /ask; } location /ask { alias html/page; }",
    );
    assert_eq!(request(&server, "GET /page", &fields).text(), "c");
}
