//! `memcached_pass` and its kin, in front of scripted servers, and of memcached if it is installed.

use std::io::{BufRead, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tw_testkit::origin::{Conn, origin};
use tw_testkit::ports::Port;
use tw_testkit::process::Group;
use tw_testkit::{Lacks, leave_out, wait};

use crate::support::{get, page, request, server, start, start_server};

/// A server that answers every line by `answer`.
fn memcached(answer: impl Fn(&mut Conn, &str) + Send + Sync + Clone + 'static) -> SocketAddr {
    origin(move |mut conn| {
        let mut line = String::new();
        while conn.reader.read_line(&mut line).is_ok_and(|read| read > 0) {
            answer(&mut conn, line.trim_end());
            line.clear();
        }
    })
}

/// Response of memcached with a value.
fn value(key: &str, flags: u32, value: &str) -> String {
    format!("VALUE {key} {flags} {}\r\n{value}\r\nEND\r\n", value.len())
}

#[test]
fn value_is_the_response() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let addr = memcached(move |conn, line| {
        counted.fetch_max(conn.nth + 1, SeqCst);
        match line {
            "get /a.html" => conn.send(value("/a.html", 0, "<p>one")),
            "get /a%20b%25" => conn.send(value("/a%20b%25", 0, "escaped")),
            "get /empty" => conn.send(value("/empty", 0, "")),
            "get /large" => conn.send(value("/large", 0, &"x".repeat(1 << 20))),
            _ => conn.send("END\r\n"),
        }
    });
    let server = start(
        server(),
        &format!(
            "types {{ text/html html; }}
             upstream values {{ server {addr}; keepalive 1; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ set $memcached_key $uri; memcached_pass values; error_page 404 = @app; }}
                 location /plain/ {{ set $memcached_key $uri; memcached_pass values; }}
                 location /unset {{ set $memcached_key \"\"; memcached_pass values; }}
                 location @app {{ return 200 \"not there\"; }} }}"
        ),
    );
    let response = get(&server, "/a.html");
    assert_eq!((response.status, &*response.text()), (200, "<p>one"));
    assert_eq!(
        (response.field("Content-Type"), response.field("Content-Length")),
        (Some("text/html"), Some("6"))
    );
    assert_eq!(page(&server, "/a%20b%25"), (200, "escaped".to_owned()));
    assert_eq!(page(&server, "/empty"), (200, String::new()));
    assert_eq!(page(&server, "/other").1, "not there");
    assert_eq!(get(&server, "/plain/other").status, 404);
    assert_eq!(get(&server, "/large").body.len(), 1 << 20);
    assert_eq!(request(&server, "HEAD /a.html", &[]).field("Content-Length"), Some("6"));
    assert_eq!(request(&server, "POST /a.html", &["Content-Length: 0"]).status, 405);
    assert_eq!(get(&server, "/unset").status, 500);
    server.wait_error_log("the \"$memcached_key\" variable is not set").unwrap();
    server.wait_error_log("key: \"/other\" was not found by memcached").unwrap();
    assert_eq!(connections.load(SeqCst), 1, "one connection is used again");
}

#[test]
fn memcached_gzip_flag_sets_content_encoding() {
    let addr = memcached(|conn, line| {
        let key = line.trim_start_matches("get ");
        conn.send(value(key, if key == "/gzip" { 2 } else { 1 }, "bytes"));
    });
    let server = start_server(
        server(),
        &format!("location / {{ set $memcached_key $uri; memcached_pass {addr}; memcached_gzip_flag 2; }}"),
    );
    let coding = |target| {
        request(&server, target, &["Accept-Encoding: gzip"]).field("Content-Encoding").map(str::to_owned)
    };
    assert_eq!(coding("GET /gzip").as_deref(), Some("gzip"));
    assert_eq!(coding("GET /plain"), None);
}

#[test]
fn malformed_answer_is_502_or_retried() {
    for (answer, line) in [
        ("ERROR\r\n", "memcached sent invalid response: \"ERROR\""),
        (
            "VALUE other 0 1\r\nx\r\nEND\r\n",
            "memcached sent invalid key in response \"VALUE other 0 1\" for key \"/a\"",
        ),
        ("VALUE /a 0 x\r\n", "memcached sent invalid length in response"),
        ("", "upstream prematurely closed connection while reading response header"),
    ] {
        let bad = origin(move |mut conn| {
            let mut line = String::new();
            let _ = conn.reader.read_line(&mut line);
            conn.send(answer);
        });
        let good = memcached(|conn, _| conn.send(value("/a", 0, "good")));
        let server = start(
            server(),
            &format!(
                "upstream both {{ server {bad} max_fails=0; server {good} backup; }}
                 server {{ listen 127.0.0.1:{{port}}; set $memcached_key /a;
                     location / {{ memcached_pass {bad}; }}
                     location /both {{ memcached_pass both; memcached_next_upstream error invalid_response; }} }}"
            ),
        );
        assert_eq!(get(&server, "/").status, 502, "{line}");
        server.wait_error_log(line).unwrap();
        assert_eq!(page(&server, "/both").1, "good");
    }
    let none = memcached(|conn, _| conn.send("END\r\n"));
    let good = memcached(|conn, _| conn.send(value("/a", 0, "good")));
    let server = start(
        server(),
        &format!(
            "upstream both {{ server {none}; server {good} backup; }}
             server {{ listen 127.0.0.1:{{port}}; set $memcached_key /a;
                 location / {{ memcached_pass both; memcached_next_upstream not_found; }} }}"
        ),
    );
    assert_eq!(page(&server, "/").1, "good");
    // A value is good whatever comes behind it.
    let odd = memcached(|conn, _| conn.send("VALUE /a 0 5\r\nvalueSOMETHING ELSE\r\n"));
    let server = start_server(
        crate::support::server(),
        &format!("set $memcached_key /a; location / {{ memcached_pass {odd}; }}"),
    );
    assert_eq!(page(&server, "/").1, "value");
    server.wait_error_log("memcached sent invalid trailer").unwrap();
}

#[test]
fn real_memcached_answers() {
    let port = Port::reserve().unwrap();
    let child = Command::new("memcached")
        .args(["-l", "127.0.0.1", "-p", &port.number().to_string(), "-U", "0", "-u", "nobody"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let _group = match child {
        Ok(child) => Group::new(child),
        Err(error) => {
            return leave_out(Lacks::Machine, format_args!("memcached behind memcached_pass: {error}"));
        }
    };
    let addr = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let stream = wait::some(wait::TIMEOUT, || TcpStream::connect(addr).ok()).unwrap();
    let mut conn = Conn { reader: std::io::BufReader::new(stream), nth: 0 };
    for (key, value) in [("/page", "a page".to_owned()), ("/large", "x".repeat(900_000))] {
        let mut stored = String::new();
        write!(conn.reader.get_mut(), "set {key} 0 0 {}\r\n{value}\r\n", value.len()).unwrap();
        conn.reader.read_line(&mut stored).unwrap();
        assert_eq!(stored, "STORED\r\n");
    }
    let server =
        start_server(server(), &format!("location / {{ set $memcached_key $uri; memcached_pass {addr}; }}"));
    for _ in 0..3 {
        assert_eq!(page(&server, "/page"), (200, "a page".to_owned()));
        assert_eq!(get(&server, "/large").body.len(), 900_000);
        assert_eq!(get(&server, "/none").status, 404);
    }
}
