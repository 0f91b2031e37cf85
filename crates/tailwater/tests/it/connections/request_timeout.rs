//! `request_timeout`: the time of a whole request.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use tw_testkit::http2::{head, take};
use tw_testkit::origin::origin;
use tw_testkit::{Client, Server, wait};

use crate::support::download::{LARGE, with_large_file};
use crate::support::http2::connect;
use crate::support::http3::start_http3;
use crate::support::{count_in_error_log, get, page, refusal, request, server, start};

const BEFORE: &str = "\"request_timeout\" is over before the response has begun";
const SENDING: &str = "\"request_timeout\" is over while sending response to client";
const READING: &str = "\"request_timeout\" is over while reading client request body";

/// Origin that reads requests and never answers.
fn silent() -> SocketAddr {
    origin(|mut conn| while conn.head().is_some() {})
}

/// Origin that sends the begin of a response, and then a byte now and then for ever.
fn dripping() -> SocketAddr {
    origin(|mut conn| {
        let _ = conn.head();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegin");
        while std::io::Write::write_all(conn.reader.get_mut(), b".").is_ok() {
            wait::pause(Duration::from_millis(20));
        }
    })
}

/// Lines of the access log once there are `count`.
fn logged(server: &Server, count: usize) -> Vec<String> {
    server.access_log(count).unwrap()
}

#[test]
fn time_without_a_response_ends_with_504() {
    let (silent, tries) = (silent(), [silent(), silent(), silent(), silent(), silent(), silent()]);
    let peers: String = tries.iter().map(|addr| format!("server {addr};")).collect();
    let server = start(
        server().file("html/sorry", "sorry"),
        &format!(
            "upstream many {{ {peers} }}
             log_format s '$uri $status $upstream_status $upstream_faults'; access_log logs/access.log s;
             request_timeout 300ms; proxy_read_timeout 1h;
             server {{ listen 127.0.0.1:{{port}}; root html;
                 location /plain {{ proxy_pass http://{silent}; }}
                 location /page {{ proxy_pass http://{silent}; error_page 504 /sorry; }}
                 location /tries {{ proxy_pass http://many; proxy_read_timeout 100ms; }}
                 location /auth {{ auth_request /check; try_files /x =204; }}
                 location = /check {{ internal; request_timeout 1h; proxy_pass http://{silent}; }}
                 location /again {{ error_page 418 = /plain; return 418; }}
                 location /stuck {{ proxy_pass http://{silent}; error_page 504 /slow; }}
                 location /slow {{ proxy_pass http://{silent}; }} }}"
        ),
    );
    let response = get(&server, "/plain");
    assert_eq!((response.status, response.field("Connection")), (504, Some("close")));
    assert_eq!(page(&server, "/page"), (504, "sorry".into()));
    assert_eq!(get(&server, "/tries").status, 504);
    assert_eq!(get(&server, "/auth").status, 504);
    assert_eq!(get(&server, "/again").status, 504);
    // The time for the error page is limited, too.
    let mut client = server.connect().unwrap();
    client.send("GET /stuck HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(client.read_until_close().unwrap_or_default(), b"");
    server.wait_error_log("and so is the time for its error page").unwrap();
    let is_logged = || count_in_error_log(&server, BEFORE) == 6;
    assert!(wait::until(wait::TIMEOUT, is_logged), "{}", server.error_log());
    let lines = logged(&server, 6);
    assert_eq!(lines[0], format!("/plain 504 504 {silent}: request timed out"));
    assert_eq!(lines[1], format!("/sorry 504 504 {silent}: request timed out"));
    let attempts = lines[2].matches("504,").count() + 1;
    assert!((1..6).contains(&attempts), "{}", lines[2]);
    assert_eq!(lines[5].split(' ').nth(1), Some("504"), "{}", lines[5]);
}

#[test]
fn begun_response_is_cut() {
    let dripping = dripping();
    let silent = silent();
    let server = start(
        with_large_file(),
        &format!(
            "request_timeout 500ms; send_timeout 1h;
             server {{ listen 127.0.0.1:{{port}} sndbuf=16k; root html; http2 on; error_log logs/error.log warn;
                 location /drip {{ proxy_pass http://{dripping}; proxy_buffering off; }}
                 location /silent {{ proxy_pass http://{silent}; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("GET /drip HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    let rest = client.read_until_close().map(|rest| rest.len());
    assert!(rest.is_err(), "a reset, no end: {rest:?}");
    // A client that does not read.
    let mut client = server.connect().unwrap();
    client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(wait::until(wait::TIMEOUT, || count_in_error_log(&server, SENDING) == 2));
    assert!(client.read_until_close().map_or(0, |rest| rest.len()) < LARGE);

    let mut client = connect(&server);
    let error = client.get("/drip").unwrap_err();
    assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
    // The connection goes on.
    assert_eq!(client.get("/silent").unwrap().status, 504);
    assert_eq!(client.get("/small").unwrap().text(), "small");
}

#[test]
fn incomplete_request_ends_with_408() {
    let silent = silent();
    let server = start(
        server(),
        &format!(
            "log_format s '$uri $status'; access_log logs/access.log s;
             request_timeout 300ms; client_body_timeout 1h; client_header_timeout 1h;
             server {{ listen 127.0.0.1:{{port}}; http2 on; error_log logs/error.log info;
                 location /buffered {{ proxy_pass http://{silent}; }}
                 location /streamed {{ proxy_pass http://{silent}; proxy_http_version 1.1; proxy_request_buffering off; }} }}"
        ),
    );
    for target in ["/buffered", "/streamed"] {
        for framing in ["Content-Length: 5\r\n\r\nhel", "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n"] {
            let mut client = server.connect().unwrap();
            client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\n{framing}")).unwrap();
            let response = client.read_response().unwrap();
            assert_eq!(
                (response.status, response.field("Connection")),
                (408, Some("close")),
                "{target} {framing}"
            );
        }
        // The client is done, and the server is not.
        let response = request_with_body(&server, target);
        assert_eq!(response, 504, "{target}");
        let (status, _) = connect(&server).run(|requests| async move {
            let mut requests = requests.ready().await.unwrap();
            let (response, mut body) = requests.send_request(head("POST", target, &[]), false).unwrap();
            body.send_data(Bytes::from_static(b"hel"), false).unwrap();
            let response = response.await.unwrap();
            (response.status().as_u16(), take(response.into_body()).await)
        });
        assert_eq!(status, 408, "{target}");
    }
    // A line follows the response.
    let is_logged = || count_in_error_log(&server, READING) == 6;
    assert!(wait::until(wait::TIMEOUT, is_logged), "{}", server.error_log());
    // A head that never ends.
    let mut client = server.connect().unwrap();
    client.send("GET /buffered HTTP/1.1\r\nHo").unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"");
    let lines = logged(&server, 9);
    assert_eq!(lines[8], "/buffered 408", "{lines:?}");
}

fn request_with_body(server: &Server, target: &str) -> u16 {
    let mut client = server.connect().unwrap();
    client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")).unwrap();
    client.read_response().unwrap().status
}

#[test]
fn http3_request_has_the_same_limit() {
    let silent = silent();
    let dripping = dripping();
    let http3 = start_http3(&format!(
        "request_timeout 400ms;
         location /silent {{ proxy_pass http://{silent}; }}
         location /drip {{ proxy_pass http://{dripping}; proxy_buffering off; }}"
    ));
    let mut client = http3.client();
    assert_eq!(client.get("/silent").status, 504);
    let id = client.begin("GET", "/drip", &[], true);
    assert!(client.finish(id).is_err());
    let id = client.begin("POST", "/silent", &[], false);
    client.send(id, b"hel", false);
    assert_eq!(client.finish(id).unwrap().status, 408);
    assert_eq!(client.get("/a.txt").status, 200);
}

#[test]
fn location_decides_from_the_begin_of_the_request() {
    let slow = origin(|mut conn| {
        while conn.head().is_some() {
            wait::pause(Duration::from_millis(600));
            conn.answer("", "late");
        }
    });
    let echo = origin(|mut conn| {
        let _ = conn.head();
        conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n");
        let mut line = String::new();
        while std::io::BufRead::read_line(&mut conn.reader, &mut line).is_ok_and(|read| read > 0) {
            conn.send(std::mem::take(&mut line));
        }
    });
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; request_timeout 300ms;
                 location / {{ proxy_pass http://{slow}; }}
                 location /off {{ request_timeout off; proxy_pass http://{slow}; }}
                 location /zero {{ request_timeout 0; proxy_pass http://{slow}; }}
                 location /long {{ request_timeout 1h; proxy_pass http://{slow}; }}
                 location /redirected {{ error_page 418 = /long; return 418; }}
                 location /echo {{ proxy_pass http://{echo}; proxy_http_version 1.1;
                     proxy_set_header Upgrade echo; proxy_set_header Connection upgrade; }} }}"
        ),
    );
    assert_eq!(get(&server, "/").status, 504);
    for target in ["/off", "/zero", "/long", "/redirected"] {
        assert_eq!(page(&server, target), (200, "late".into()), "{target}");
    }
    // A session in a tunnel has no limit.
    let mut client = server.connect().unwrap();
    client.send("GET /echo HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 101);
    wait::pause(Duration::from_millis(600));
    echoes(&mut client);
    // The next request of a connection does not inherit the time of the previous one.
    let mut client = server.connect().unwrap();
    for _ in 0..2 {
        client.send("GET /off HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(client.read_response().unwrap().text(), "late");
    }
}

fn echoes(client: &mut Client) {
    client.send("hello\n").unwrap();
    assert_eq!(client.read_bytes(6).unwrap(), b"hello\n");
}

#[test]
fn default_and_wrong_values() {
    for value in ["5x", "on", "-1s", ""] {
        let error = refusal(&format!("request_timeout \"{value}\";"));
        assert!(error.contains("\"request_timeout\" directive invalid value"), "{value}: {error}");
    }
    let error = refusal("request_timeout 5s; request_timeout 6s;");
    assert!(error.contains("is duplicate"), "{error}");
    let server = start(server(), "server { listen 127.0.0.1:{port}; location / { return 200 ok; } }");
    assert_eq!(request(&server, "GET /", &[]).text(), "ok");
}
