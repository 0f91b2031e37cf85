//! Malformed, hostile and odd requests: each gets the status of nginx, and has one reading only.

use std::time::{Duration, Instant};

use tw_testkit::{Client, wait};

use crate::support::{raw, server, start, start_server};

const CLOSE: &str = "Connection: close\r\n\r\n";

/// The status of the only answer to `bytes`; 0 if there is none. HTTP/0.9 answers have no status: 9.
fn status(text: &str) -> u16 {
    if text.is_empty() {
        return 0;
    }
    let Some(rest) = text.strip_prefix("HTTP/1.1 ") else { return 9 };
    rest.get(..3).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

fn site() -> tw_testkit::Server {
    let builder =
        server().file("html/a.txt", "inside").file("html/index.html", "index").file("html/dir/x", "x");
    let builder = builder.file("secret", "outside").file("html-secret", "outside");
    start_server(builder, "location /upper/ { alias html/; } location /noslash { alias html/dir; }")
}

#[test]
fn malformed_request_lines_are_refused() {
    let server = site();
    let table: [(&[u8], u16); 71] = [
        (b"GET /a.txt HTTP/1.1", 200),
        (b"GET  /a.txt  HTTP/1.1 ", 200),
        (b"GET /a.txt HTTP/1.2", 200),
        (b"GET /a.txt HTTP/1.999", 200),
        (b"GET /a.txt HTTP/1.1000", 400),
        (b"GET /a.txt HTTP/1.0", 200),
        (b"GET /a.txt HTTP/2.0", 505),
        (b"GET /a.txt HTTP/3.0", 505),
        (b"GET /a.txt HTTP/0.9", 400),
        (b"GET /a.txt HTTP/1", 400),
        (b"GET /a.txt HTTP/1.", 400),
        (b"GET /a.txt HTTP/.1", 400),
        (b"GET /a.txt HTTPS/1.1", 400),
        (b"GET /a.txt http/1.1", 400),
        (b"GET /a.txt HTTP/1.1x", 400),
        (b"GET /a.txt HTTP/1.1 x", 400),
        (b"GET /a.txt\tHTTP/1.1", 400),
        (b"GET /a.txt HTTP/1.1\r", 400),
        (b" GET /a.txt HTTP/1.1", 400),
        (b"GET\t/a.txt HTTP/1.1", 400),
        (b"get /a.txt HTTP/1.1", 400),
        (b"G<T /a.txt HTTP/1.1", 400),
        (b"GET_OR_NOT /a.txt HTTP/1.1", 405),
        (b"FROB /a.txt HTTP/1.1", 405),
        (b"FROB-NICATE /a.txt HTTP/1.1", 405),
        (b"TRACE /a.txt HTTP/1.1", 405),
        (b"CONNECT a:80 HTTP/1.1", 405),
        (b"PRI * HTTP/2.0", 400),
        (b"GET a.txt HTTP/1.1", 400),
        (b"GET * HTTP/1.1", 400),
        (b"GET # HTTP/1.1", 400),
        (b"GET ? HTTP/1.1", 400),
        (b"GET /a b HTTP/1.1", 400),
        (b"GET /\x00 HTTP/1.1", 400),
        (b"GET /\x01 HTTP/1.1", 400),
        (b"GET /\x7f HTTP/1.1", 400),
        (b"GET /\xff HTTP/1.1", 404),
        (b"GET /%00 HTTP/1.1", 400),
        (b"GET /a.txt%00.html HTTP/1.1", 400),
        (b"GET /a.txt?%00 HTTP/1.1", 200),
        (b"GET /% HTTP/1.1", 400),
        (b"GET /%2 HTTP/1.1", 400),
        (b"GET /%zz HTTP/1.1", 400),
        (b"GET /a.txt% HTTP/1.1", 400),
        (b"GET /a%2etxt HTTP/1.1", 200),
        (b"GET /a.txt#x HTTP/1.1", 200),
        (b"GET /#/../../../secret HTTP/1.1", 200),
        (b"GET http://a/a.txt HTTP/1.1", 200),
        (b"GET HTTP://a/a.txt HTTP/1.1", 200),
        (b"GET http://a?x HTTP/1.1", 200),
        (b"GET http://a HTTP/1.1", 200),
        (b"GET http://a:80/a.txt HTTP/1.1", 200),
        (b"GET http://a:x/ HTTP/1.1", 400),
        (b"GET http://a:999999/ HTTP/1.1", 400),
        (b"GET http://[::1]/a.txt HTTP/1.1", 200),
        (b"GET http://[::1/ HTTP/1.1", 400),
        (b"GET http:/a HTTP/1.1", 400),
        (b"GET http:// HTTP/1.1", 400),
        (b"GET http:///x HTTP/1.1", 400),
        (b"GET http://us er@a/ HTTP/1.1", 400),
        // No path leads out of the root.
        (b"GET /.. HTTP/1.1", 400),
        (b"GET /../secret HTTP/1.1", 400),
        (b"GET /dir/../../secret HTTP/1.1", 400),
        (b"GET /%2e%2e/secret HTTP/1.1", 400),
        (b"GET /.%2E/secret HTTP/1.1", 400),
        (b"GET /..%2fsecret HTTP/1.1", 400),
        (b"GET /dir%2f..%2f..%2fsecret HTTP/1.1", 400),
        (b"GET //../secret HTTP/1.1", 400),
        (b"GET http://a/../secret HTTP/1.1", 400),
        (b"GET /dir/%2e%2e/a.txt HTTP/1.1", 200),
        (b"GET /dir%2f..%2fa.txt HTTP/1.1", 200),
    ];
    for (line, expected) in table {
        let request = [line, b"\r\nHost: a\r\n", CLOSE.as_bytes()].concat();
        let text = raw(&server, request);
        assert_eq!(status(&text), expected, "{}: {text}", line.escape_ascii());
        assert!(!text.contains("outside"), "{}: {text}", line.escape_ascii());
    }
}

#[test]
fn path_traversal_never_leaves_the_root() {
    let server = site();
    let dots =
        ["..", "%2e%2e", ".%2e", "%2e.", "%252e%252e", "..%00", "...", "..;", "\u{2025}", "%c0%ae%c0%ae"];
    let slashes = ["/", "%2f", "%5c", "\\", "//", "/./", "%252f", "%c0%af"];
    let starts = ["/", "/dir/", "/dir/x/", "/upper/", "/noslash", "/noslash/", "//", "/a.txt/"];
    for start in starts {
        for dot in dots {
            for slash in slashes {
                for depth in 1..=2 {
                    for name in ["secret", "html-secret", "conf/nginx.conf"] {
                        let target = format!("{start}{}{name}", format!("{dot}{slash}").repeat(depth));
                        let text = raw(&server, format!("GET {target} HTTP/1.0\r\n\r\n"));
                        assert!(
                            !text.contains("outside") && !text.contains("loop_guard"),
                            "{target}: {text}"
                        );
                        // nginx's own trap of an alias without a slash ends inside html.
                        assert_ne!(text, "", "{target}");
                    }
                }
            }
        }
    }
}

#[test]
fn odd_line_ends_are_read_as_by_nginx() {
    let server = site();
    let table: [(&[u8], u16); 19] = [
        (b"GET /a.txt HTTP/1.1\nHost: a\nConnection: close\n\n", 200),
        (b"GET /a.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\n", 200),
        (b"GET /a.txt HTTP/1.1\r\nHost: a\nConnection: close\n\r\n", 200),
        (b"\r\n\r\nGET /a.txt HTTP/1.0\r\n\r\n", 200),
        (b"\n\nGET /a.txt HTTP/1.0\r\n\r\n", 200),
        (b"GET /a.txt\r\n", 9),
        (b"GET /a.txt\n", 9),
        (b"GET /a.txt \r\n", 9),
        (b"GET\r\n", 400),
        (b"GET \r\n", 400),
        (b" \r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"\x00\x00", 400),
        (b"\xff\xff\xff\xff", 400),
        (b"SSH-2.0-x\r\n", 400),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\nGET / HTTP/1.0\r\n\r\n", 400),
        (b"HTTP/1.1 200 OK\r\n\r\n", 400),
        (b"GET /a.txt HTTP/1.1\r\n\r\n", 400),
    ];
    for (bytes, expected) in table {
        let text = raw(&server, bytes);
        assert_eq!(status(&text), expected, "{}: {text}", bytes.escape_ascii());
    }
}

#[test]
fn malformed_fields_are_refused() {
    let server = site();
    let host = "Host: a";
    let table: [(&[&str], u16); 54] = [
        (&[], 400),
        (&["Host:"], 400),
        (&["Host: a", "Host: a"], 400),
        (&["Host: a", "host: b"], 400),
        (&["Host: a/b"], 400),
        (&["Host: a b"], 400),
        (&["Host: a\tb"], 400),
        (&["Host: a..b"], 400),
        (&["Host: ."], 400),
        (&["Host: a\u{1}"], 400),
        (&["Host: a\0"], 400),
        (&["Host: [::1"], 400),
        (&["Host: [::1]:80"], 200),
        (&["Host: a:80"], 200),
        (&["Host: a:"], 200),
        (&["Host: a:x"], 400),
        (&["Host: a:99999"], 400),
        (&["Host: a:80:80"], 400),
        (&["Host : a"], 400),
        (&[" Host: a"], 400),
        (&["Host:a"], 200),
        (&["Host: a."], 200),
        (&[host, " folded"], 400),
        (&[host, "\tfolded"], 400),
        (&[host, "X"], 200),
        (&[host, "X y"], 400),
        (&[host, "X : y"], 400),
        (&[host, ": y"], 400),
        (&[host, "X_Y: z"], 200),
        (&[host, "X\u{1}: y"], 400),
        (&[host, "X\0: y"], 400),
        (&[host, "X: a\0b"], 400),
        (&[host, "X: a\rb"], 400),
        (&[host, "X: \u{1}\u{7f}\u{e4}"], 200),
        (&[host, "Content-Length: x"], 400),
        (&[host, "Content-Length: -1"], 400),
        (&[host, "Content-Length: +1"], 400),
        (&[host, "Content-Length: 1, 1"], 400),
        (&[host, "Content-Length: 0x1"], 400),
        (&[host, "Content-Length: 9999999999999999999999"], 400),
        (&[host, "Content-Length: 9223372036854775807"], 413),
        (&[host, "Content-Length: 0", "Content-Length: 0"], 400),
        (&[host, "Content-Length: 0", "Transfer-Encoding: chunked"], 400),
        (&[host, "Transfer-Encoding: chunked", "Content-Length: 0"], 400),
        (&[host, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], 400),
        (&[host, "Transfer-Encoding: gzip"], 501),
        (&[host, "Transfer-Encoding: identity"], 501),
        (&[host, "Transfer-Encoding: gzip, chunked"], 501),
        (&[host, "Transfer-Encoding: chunked, chunked"], 501),
        (&[host, "Transfer-Encoding: xchunked"], 501),
        (&[host, "Transfer-Encoding:\u{b}chunked"], 501),
        (&[host, "Transfer-Encoding:"], 501),
        (&[host, "User-Agent: a", "User-Agent: b"], 200),
        (&[host, "If-None-Match: a", "If-None-Match: b"], 400),
    ];
    for (fields, expected) in table {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let text = raw(&server, format!("GET /a.txt HTTP/1.1\r\n{fields}{CLOSE}"));
        assert_eq!(status(&text), expected, "{fields:?}: {text}");
    }
    let text = raw(&server, "GET /a.txt HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(status(&text), 400, "{text}");
}

#[test]
fn too_large_heads_are_refused() {
    let server = start_server(
        server().file("html/a.txt", "x"),
        "client_header_buffer_size 1k; large_client_header_buffers 2 2k; max_headers 10;",
    );
    let field = |size: usize| format!("X: {}\r\n", "y".repeat(size));
    let table = [
        (format!("GET /a.txt?{} HTTP/1.1\r\nHost: a\r\n", "x".repeat(500)), 200),
        (format!("GET /a.txt?{} HTTP/1.1\r\nHost: a\r\n", "x".repeat(1500)), 200),
        (format!("GET /a.txt?{} HTTP/1.1\r\nHost: a\r\n", "x".repeat(2500)), 414),
        (format!("GET /a.txt?{}", "x".repeat(100_000)), 414),
        (format!("{} /a.txt HTTP/1.1\r\n", "X".repeat(5000)), 414),
        (format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{}", field(1500)), 200),
        (format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{}", field(2500)), 400),
        (format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{}", field(100_000)), 400),
        (format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{}", field(1500).repeat(2)), 200),
        (format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{}", field(1500).repeat(4)), 400),
        (format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{}", field(1).repeat(8)), 200),
        (format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{}", field(1).repeat(9)), 400),
        (format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{}", field(1).repeat(100_000)), 400),
    ];
    for (head, expected) in table {
        let shown = head.get(..60).unwrap_or(&head);
        let mut client = server.connect().unwrap();
        // The server may be done with the request before it has all of it.
        let _ = client.send(format!("{head}{CLOSE}"));
        assert_eq!(client.read_response().unwrap().status, expected, "{shown:?}");
    }
    // nginx's word for it, which error pages are written for.
    server.wait_error_log("client sent too long URI").unwrap();
    server.wait_error_log("client sent too long header line").unwrap();
}

#[test]
fn head_in_pieces_is_parsed() {
    let server = site();
    let head = "GET /a.txt HTTP/1.1\r\nHost: a\r\nX-Long: y\r\nConnection: close\r\n\r\n";
    let mut client = server.connect().unwrap();
    client.send_split(head.as_bytes().chunks(1)).unwrap();
    assert_eq!(client.read_response().unwrap().text(), "inside");
    for cut in 1..head.len() {
        let (first, second) = head.split_at(cut);
        let mut client = server.connect().unwrap();
        client.send_split([first, second]).unwrap();
        assert_eq!(client.read_response().unwrap().text(), "inside", "{cut}");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = site();
    let one = "GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n";
    let last = format!("GET /dir/x HTTP/1.1\r\nHost: a\r\n{CLOSE}");
    let text = raw(&server, format!("{}{last}", one.repeat(100)));
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 101);
    assert!(text.ends_with("\r\n\r\nx"));

    let mut client = server.connect().unwrap();
    let two = format!("{one}GET /missing HTTP/1.1\r\nHost: a\r\n\r\n{one}");
    for cut in (0..two.len()).step_by(7) {
        let (first, second) = two.split_at(cut);
        client.send_split([first, second]).unwrap();
        let statuses = [(); 3].map(|()| client.read_response().unwrap().status);
        assert_eq!(statuses, [200, 404, 200], "{cut}");
    }
    // Empty lines between requests are ignored. Anything else ends the connection after the valid requests were
    // answered.
    let text = raw(&server, format!("{one}\r\n\r\n{last}"));
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2, "{text}");
    let text = raw(&server, format!("{one}garbage\r\n\r\n{last}"));
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 1, "{text}");
    assert_eq!(text.matches("HTTP/1.1 400 Bad Request").count(), 1, "{text}");
    // A request after `Connection: close` is not answered.
    let text = raw(&server, format!("{last}{one}"));
    assert_eq!(text.matches("HTTP/1.1").count(), 1, "{text}");
}

#[test]
fn smuggling_attempts_get_one_response_and_a_close() {
    let server = start_server(server().file("html/a.txt", "x"), "location /ok { return 200 ok; }");
    let hidden = "GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n";
    for framing in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 6",
        "Content-Length: 0\r\nContent-Length: 35",
        "Content-Length: 35\r\nContent-Length: 0",
        "Content-Length: 0, 35",
        "Content-Length: 0 35",
        "Content-Length : 35",
        "Content-Length:\r\n 35",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding\t: chunked",
        "Transfer-Encoding:\u{b}chunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "X: y\rContent-Length: 35",
        "X: y\0\r\nContent-Length: 35",
    ] {
        let text =
            raw(&server, format!("POST /ok HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n0\r\n\r\n{hidden}"));
        assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{framing:?}: {text}");
        assert!(!text.contains("\r\n\r\nx"), "{framing:?}: {text}");
    }
}

#[test]
fn broken_chunks_end_the_connection() {
    let server = start_server(server(), "client_body_early_read 1; return 200 \"[$request_body]\";");
    let tail = "GET /after HTTP/1.1\r\nHost: a\r\n\r\n";
    for (chunks, expected) in [
        ("5\r\nhello\r\n0\r\n\r\n", "[hello]"),
        ("5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n", "[hello]"),
        ("5 \r\nhello\r\n0\r\n\r\n", "[hello]"),
        ("A\r\n0123456789\r\n0\r\n\r\n", "[0123456789]"),
        ("00000005\r\nhello\r\n000\r\n\r\n", "[hello]"),
        ("x\r\n", ""),
        ("5\r\nhellox\r\n0\r\n\r\n", ""),
        ("5\r\nhello0\r\n\r\n", ""),
        ("-5\r\nhello\r\n0\r\n\r\n", ""),
        ("+5\r\nhello\r\n0\r\n\r\n", ""),
        ("0x5\r\nhello\r\n0\r\n\r\n", ""),
        ("5\r\r\nhello\r\n0\r\n\r\n", ""),
        ("fffffffffffffffff\r\nhello", ""),
        ("\r\n5\r\nhello\r\n0\r\n\r\n", ""),
        ("5\0\r\nhello\r\n0\r\n\r\n", ""),
    ] {
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        let mut client = server.connect().unwrap();
        client.send(request + tail).unwrap();
        let response = client.read_response().unwrap();
        if expected.is_empty() {
            assert_eq!(response.status, 400, "{chunks:?}");
            assert_eq!(client.read_until_close().unwrap_or_default(), b"", "{chunks:?}");
        } else {
            assert_eq!((response.status, response.text()), (200, expected.into()), "{chunks:?}");
            assert_eq!(client.read_response().unwrap().text(), "[]", "{chunks:?}");
        }
    }
}

#[test]
fn client_header_timeout_ends_slow_heads() {
    // Clients that get a response have a longer timeout, because a busy machine may take a second to send their head.
    let server = start(
        server().file("html/a.txt", "x"),
        "root html; keepalive_timeout 1s;
         server { listen 127.0.0.1:{port}; client_header_timeout 1s; } server { listen 127.0.0.1:{port1}; }",
    );
    // Clients that sent nothing, half a head, or nothing after a first request are closed without a response.
    let mut silent = server.connect().unwrap();
    let mut half = server.connect().unwrap();
    half.send("GET /a.txt HTTP/1.1\r\nHo").unwrap();
    let mut kept = Client::connect(server.addr_of(1)).unwrap();
    kept.send("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(kept.read_response().unwrap().status, 200);
    for client in [&mut silent, &mut half, &mut kept] {
        assert_eq!(client.read_until_close().unwrap(), b"");
    }
    // The timeout is that of the whole head, so a byte now and then does not extend it.
    let mut slow = server.connect().unwrap();
    let closed = wait::until(wait::TIMEOUT, || {
        slow.send("G").is_err() || !slow.silent_for(Duration::from_millis(100)).unwrap_or(false)
    });
    assert!(closed);
    server
        .wait_error_log("client timed out (110: Connection timed out) while reading client request headers")
        .unwrap();
    assert_eq!(server.access_log(3).unwrap().iter().filter(|line| line.contains(" 408 ")).count(), 2);
    assert_eq!(Client::get(server.addr_of(1), "/a.txt").unwrap().status, 200);
}

#[test]
fn client_header_timeout_includes_the_time_before_the_first_byte() {
    let server = start_server(server(), "client_header_timeout 3s;");
    let began = Instant::now();
    for first in ["G", "\r\n"] {
        let mut client = server.connect().unwrap();
        assert!(client.silent_for(Duration::from_millis(2500)).unwrap());
        client.send(first).unwrap();
        assert_eq!(client.read_until_close().unwrap(), b"");
    }
    // If the timeout began with the first byte, the two clients would take 11 seconds.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn closed_client_connections_are_harmless() {
    let server = site();
    for bytes in [
        "",
        "G",
        "GET /a.txt HTTP/1.1\r\n",
        "POST /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx",
    ] {
        let mut client = server.connect().unwrap();
        client.send(bytes).unwrap();
        drop(client);
    }
    let mut client = server.connect().unwrap();
    client.send("GET /a.txt HTTP/1.1\r\n").unwrap();
    client.finish_sending().unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"");
    server
        .wait_error_log("client prematurely closed connection while reading client request headers")
        .unwrap();
    // A client that closes only its sending side after a request gets its response.
    let mut client = Client::connect(server.addr()).unwrap();
    client.send("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.finish_sending().unwrap();
    assert_eq!(client.read_response().unwrap().text(), "inside");
}
