//! Request bodies: discarded, buffered, written to files, refused.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tw_testkit::{Client, Response, Server, wait};

use crate::support::files::files_below;
use crate::support::{raw, server, start, start_server};

/// A server that reads bodies and echoes them.
fn echo(directives: &str) -> Server {
    let body = "client_body_early_read 1;";
    start_server(
        server(),
        &format!(
            "{body} {directives} location / {{ return 200 \"[$request_body]\"; }}
             location /len {{ return 200 \"$content_length $request_length\"; }}
             location /file {{ return 200 \"$request_body_file\"; }}"
        ),
    )
}

fn post(client: &mut Client, target: &str, fields: &str, body: impl AsRef<[u8]>) -> Response {
    client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).unwrap();
    client.send(body).unwrap();
    client.read_response().unwrap()
}

fn chunked(body: &str, size: usize) -> String {
    let chunks = body.as_bytes().chunks(size);
    let text: String =
        chunks.map(|c| format!("{:x}\r\n{}\r\n", c.len(), String::from_utf8_lossy(c))).collect();
    text + "0\r\n\r\n"
}

#[test]
fn condition_of_an_early_read_decides_or_fails() {
    let server = start(
        server(),
        "map $uri $hard { \"~^/((a|aa)+)+(?!x)\\1c$\" 1; }
         server {
           listen 127.0.0.1:{port}; client_body_early_read $arg_a $arg_b $hard;
           location / { return 200 \"[$request_body]\"; }
         }",
    );
    let mut client = server.connect().unwrap();
    for (target, expected) in
        [("/", "[]"), ("/?a=0&b=", "[]"), ("/?a=0&b=1", "[hello]"), ("/?a=00", "[hello]")]
    {
        assert_eq!(post(&mut client, target, "Content-Length: 5\r\n", "hello").text(), expected, "{target}");
    }
    let hard = format!("/{}", "a".repeat(64));
    assert_eq!(post(&mut client, &hard, "Content-Length: 5\r\n", "hello").status, 500);
}

#[test]
fn unread_bodies_are_discarded() {
    let server = start_server(
        server().file("html/a.txt", "file"),
        "location /ret { return 200 ret; } location /page { error_page 405 /a.txt; return 405; }",
    );
    let mut client = server.connect().unwrap();
    let big = "x".repeat(300_000);
    for (target, status) in [("/a.txt", 405), ("/missing", 404), ("/ret", 200), ("/page", 405), ("/", 403)] {
        for body in ["", "hello", &big] {
            let length = format!("Content-Length: {}\r\n", body.len());
            assert_eq!(post(&mut client, target, &length, body).status, status, "{target}");
            let coding = "Transfer-Encoding: chunked\r\n";
            assert_eq!(post(&mut client, target, coding, chunked(body, 70_000)).status, status, "{target}");
        }
    }
    // Bytes behind a body are the next request, wherever the segments are cut.
    let request = "POST /ret HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789";
    let both = request.repeat(2);
    for cut in (0..both.len()).step_by(3) {
        let (first, second) = both.split_at(cut);
        client.send_split([first, second]).unwrap();
        for _ in 0..2 {
            assert_eq!(client.read_response().unwrap().text(), "ret", "{cut}");
        }
    }
}

#[test]
fn bodies_are_read_before_the_response() {
    let server = echo("");
    let mut client = server.connect().unwrap();
    for body in ["", "x", "hello", &"y".repeat(1000), &"z".repeat(2_000)] {
        let expected = format!("[{body}]");
        let length = format!("Content-Length: {}\r\n", body.len());
        assert_eq!(post(&mut client, "/", &length, body).text(), expected);
        for size in [7, 5000] {
            let coding = "Transfer-Encoding: chunked\r\n";
            assert_eq!(post(&mut client, "/", coding, chunked(body, size)).text(), expected);
        }
    }
    // Cut at every place.
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: u\r\n\r\n";
    for cut in 1..request.len() {
        let (first, second) = request.split_at(cut);
        client.send_split([first, second]).unwrap();
        assert_eq!(client.read_response().unwrap().text(), "[abcde]", "{cut}");
    }
}

#[test]
fn expect_100_continue_is_answered() {
    let server = echo("location /small { client_max_body_size 1; return 200; }");
    let expect = "Expect: 100-continue\r\nContent-Length: 5\r\n";
    let mut client = server.connect().unwrap();
    for _ in 0..2 {
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{expect}\r\n")).unwrap();
        let interim = client.read_response().unwrap();
        assert_eq!((interim.status, interim.fields.len()), (100, 0));
        client.send("hello").unwrap();
        assert_eq!(client.read_response().unwrap().text(), "[hello]");
    }
    // A client that did not wait need not get `100 Continue`.
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{expect}\r\nhello")).unwrap();
    let mut response = client.read_response().unwrap();
    if response.status == 100 {
        response = client.read_response().unwrap();
    }
    assert_eq!(response.text(), "[hello]");
    // HTTP/1.0 does not know `100 Continue`.
    let text = raw(&server, format!("POST / HTTP/1.0\r\n{expect}\r\nhello"));
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    // A client with an empty body may wait for `100 Continue`, too.
    let mut client = server.connect().unwrap();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().status, 100);
    assert_eq!(client.read_response().unwrap().text(), "[]");
    // A body that is too large is refused at once.
    let mut client = server.connect().unwrap();
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n")
        .unwrap();
    let response = client.read_response().unwrap();
    assert_eq!((response.status, response.field("Connection")), (413, Some("close")));
}

#[test]
fn body_without_100_continue_may_never_arrive() {
    let server = start_server(server(), "return 200 ok;");
    let mut client = server.connect().unwrap();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n").unwrap();
    let mut response = client.read_response().unwrap();
    // Either the server asks for the body, or it closes the connection after the response.
    if response.status == 100 {
        client.send("hello").unwrap();
        response = client.read_response().unwrap();
        assert_eq!((response.status, response.field("Connection")), (200, Some("keep-alive")));
    } else {
        assert_eq!((response.status, response.field("Connection")), (200, Some("close")));
    }
}

#[test]
fn too_large_bodies_are_413() {
    let server = echo(
        "client_max_body_size 10; error_page 413 /413.html; location = /413.html { return 200 'too large'; }
         location /unlimited { client_max_body_size 0; return 200 ok; } location /less { client_max_body_size 5; return 200 ok; }",
    );
    for (target, size, status) in
        [("/", 10, 200), ("/", 11, 413), ("/", 1_000_000, 413), ("/less", 5, 200), ("/less", 6, 413)]
    {
        let body = "x".repeat(size);
        for (fields, body) in [
            (format!("Content-Length: {size}\r\n"), body.clone()),
            ("Transfer-Encoding: chunked\r\n".to_owned(), chunked(&body, 100_000)),
        ] {
            let mut client = server.connect().unwrap();
            client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).unwrap();
            // The server may have closed before all of it was sent.
            let _ = client.send(body);
            let response = client.read_response().unwrap();
            assert_eq!(response.status, status, "{target} {size} {fields}");
            if status == 413 {
                assert_eq!(response.text(), "too large", "{target} {size} {fields}");
                assert_eq!(response.field("Connection"), Some("close"));
            }
        }
    }
    server.wait_error_log("client intended to send too large body: 11 bytes").unwrap();
    server.wait_error_log("client intended to send too large chunked body: 0+11 bytes").unwrap();
}

#[test]
fn too_large_chunk_is_refused_at_its_size_line() {
    let server = echo("client_max_body_size 10; client_body_timeout 60s; lingering_timeout 60s;");
    for (sent, name) in [
        ("b\r\n", "0+11"),
        ("4\r\nabcd\r\n7;x=y\r\n", "4+7"),
        ("7ffffffffffffff\r\nab", "0+576460752303423487"),
    ] {
        let mut client = server.connect().unwrap();
        client
            .send(format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{sent}"))
            .unwrap();
        // The client sends no data of the chunk: its size line is enough for the refusal.
        let response = client.read_response().unwrap();
        assert_eq!((response.status, response.field("Connection")), (413, Some("close")), "{sent}");
        let message = format!("client intended to send too large chunked body: {name} bytes");
        server.wait_error_log(&message).unwrap();
    }
    let mut client = server.connect().unwrap();
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n6\r\nefghij\r\n0\r\n\r\n")
        .unwrap();
    assert_eq!(client.read_response().unwrap().text(), "[abcdefghij]");
}

#[test]
fn large_bodies_go_to_temporary_files() {
    let server = echo("client_max_body_size 0; client_body_buffer_size 8k; client_body_temp_path temp 1 2;");
    let body = "0123456789".repeat(100_000);
    let mut client = server.connect().unwrap();
    for (fields, sent) in [
        (format!("Content-Length: {}\r\n", body.len()), body.clone()),
        ("Transfer-Encoding: chunked\r\n".to_owned(), chunked(&body, 77_777)),
    ] {
        // A body that is not in memory has no value as a variable.
        assert_eq!(post(&mut client, "/", &fields, &sent).text(), "[]");
        let text = post(&mut client, "/len", &fields, &sent).text();
        assert!(text.starts_with("1000000 "), "{text}");
    }
    assert!(wait::until(wait::TIMEOUT, || files_below(&server.prefix().join("temp")).is_empty()));
    // A body that fits needs no file.
    assert_eq!(post(&mut client, "/file", "Content-Length: 5\r\n", "hello").text(), "");
}

/// nginx honours this of bodies that are read early only in the server's own location, which is none.
#[test]
fn client_body_in_file_only_writes_every_body() {
    let file_only = |value| {
        let directives = format!("client_body_temp_path temp 1 2; client_body_in_file_only {value};");
        let answer = "location / { return 200 \"$request_body_file\"; }";
        start_server(server(), &format!("client_body_early_read 1; {directives} {answer}"))
    };
    let server = file_only("on");
    let temp = server.prefix().join("temp");
    let mut client = server.connect().unwrap();
    for (fields, body) in
        [("Content-Length: 5\r\n", "hello"), ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n")]
    {
        let name = post(&mut client, "/", fields, body).text();
        assert_eq!(fs::read(&name).unwrap_or_default(), b"hello", "{name}");
        // Two levels of directories: the last digit, then the two before it.
        let rest: Vec<_> = name.strip_prefix(&*temp.to_string_lossy()).unwrap().split('/').collect();
        let ["", one, two, file] = rest[..] else { panic!("{name}") };
        assert!(file.len() == 10 && file.ends_with(one) && file[..9].ends_with(two), "{name}");
    }
    assert_eq!(files_below(&temp).len(), 2);
    server.wait_error_log("a client request body is buffered to a temporary file").unwrap();

    let server = file_only("clean");
    let name = post(&mut server.connect().unwrap(), "/", "Content-Length: 5\r\n", "hello").text();
    assert!(name.contains("/temp/"), "{name}");
    assert!(wait::until(wait::TIMEOUT, || !fs::exists(&name).unwrap()), "{name}");
}

#[test]
fn length_variables_count_body_and_request() {
    let server = echo("");
    let mut client = server.connect().unwrap();
    for (fields, body) in
        [("Content-Length: 5\r\n", "hello"), ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n")]
    {
        let text = post(&mut client, "/len", fields, body).text();
        let sent = format!("POST /len HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}").len();
        assert_eq!(text, format!("5 {sent}"), "{fields}");
    }
}

#[test]
fn client_body_timeout_ends_slow_bodies() {
    let server = echo("client_body_timeout 1s;");
    let mut client = server.connect().unwrap();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe").unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"");
    assert!(server.access_log(1).unwrap()[0].contains(" 408 "));
    // The time is that between two reads, not of the whole. A machine that stands still between them gets another try.
    let is_read = || {
        let mut client = server.connect().unwrap();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n").unwrap();
        let are_sent = ["h", "e", "l", "l", "o"].iter().all(|piece| {
            wait::pause(Duration::from_millis(250));
            client.send(piece).is_ok()
        });
        are_sent && client.read_response().is_ok_and(|response| response.text() == "[hello]")
    };
    assert!(wait::until(wait::TIMEOUT, is_read));
}

#[test]
fn truncated_body_ends_the_request() {
    let server = echo("");
    for body in ["Content-Length: 10\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhel"] {
        let mut client = server.connect().unwrap();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{body}")).unwrap();
        client.finish_sending().unwrap();
        let answer = client.read_until_close().unwrap_or_default();
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    server.wait_error_log("client prematurely closed connection").unwrap();
}

/// Only where debug assertions are on, which is where the suite runs.
#[test]
fn body_is_read_while_the_response_is_sent() {
    let server = start_server(server(), "client_max_body_size 1000; location /echo { trap echo; }");
    let mut client = server.connect().unwrap();
    let head = |target: &str, fields: &str| format!("POST {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    client.send(head("/echo", "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n")).unwrap();
    // Only the head of the request was sent, and the response has begun.
    let mut seen_text = client.read_bytes("HTTP/1.1 100 Continue\r\n\r\n".len()).unwrap();
    for piece in ["one", "two", "three"] {
        client.send(format!("{:x}\r\n{piece}\r\n", piece.len())).unwrap();
        let sent = format!("{:x}\r\n{piece}\r\n", piece.len());
        while !String::from_utf8_lossy(&seen_text).ends_with(&sent) {
            seen_text.extend(client.read_bytes(1).unwrap());
        }
    }
    // The end, and the next request behind it.
    client.send(format!("0\r\n\r\n{}again", head("/echo", "Content-Length: 5\r\n"))).unwrap();
    assert_eq!(client.read_bytes(5).unwrap(), b"0\r\n\r\n");
    assert_eq!(client.read_response().unwrap().text(), "again");
    // A body that exceeds the limit ends the response early.
    let body = chunked(&"x".repeat(1001), 100);
    client.send(head("/echo", "Transfer-Encoding: chunked\r\n")).unwrap();
    client.send(body).unwrap();
    let sent = client.read_until_close().unwrap();
    assert!(!sent.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&sent));
    server.wait_error_log("client intended to send too large chunked body").unwrap();
}

#[test]
fn buffered_body_is_read_from_memory_or_file() {
    for directives in ["", "client_body_in_file_only clean;", "client_body_buffer_size 1k;"] {
        let server = start_server(
            server(),
            &format!("client_body_early_read 1; {directives} location / {{ trap echo; }}"),
        );
        let mut client = server.connect().unwrap();
        for body in ["", "kept", &"k".repeat(100_000), &"l".repeat(300_000)] {
            let length = format!("Content-Length: {}\r\n", body.len());
            assert_eq!(post(&mut client, "/", &length, body).text(), body, "{directives}");
        }
    }
}

/// A client that has sent half of a body that is written to a named file, and the directory of that.
fn half_an_upload(server: &Server) -> (Client, PathBuf) {
    let mut client = server.connect().unwrap();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n").unwrap();
    client.send("x".repeat(100_000)).unwrap();
    let temp = server.prefix().join("temp");
    assert!(wait::until(wait::TIMEOUT, || temp.is_dir() && !files_below(&temp).is_empty()));
    (client, temp)
}

#[test]
fn temporary_files_are_removed_with_client_and_server() {
    let conf = "client_body_temp_path temp 1 2; client_body_in_file_only clean;";
    let mut server = echo(conf);
    let (client, temp) = half_an_upload(&server);
    drop(client);
    assert!(wait::until(wait::TIMEOUT, || files_below(&temp).is_empty()), "the client has left");
    let (_client, temp) = half_an_upload(&server);
    server.stop().unwrap();
    assert_eq!(files_below(&temp), [] as [PathBuf; 0], "the loops have ended");
}
