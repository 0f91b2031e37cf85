//! HTTP/2 to clients, over TLS and with prior knowledge: requests, responses, connections and settings.

use std::sync::mpsc;

use bytes::Bytes;
use h2::Reason;
use h2::client::Builder as Settings;
use tokio::sync::mpsc::unbounded_channel;
use tw_testkit::http2::{
    END_HEADERS, END_STREAM, Frames, Http2, exchange, frame, get as get_frame, head, hpack, kind, take,
};
use tw_testkit::origin::{counting, origin};
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Signal, wait};

use crate::support::cache::wait_stored;
use crate::support::http2::{connect, post_frame, start_http2};
use crate::support::{page, refusal_of, server, start, start_server};

#[test]
fn requests_look_like_http1_to_handlers() {
    let server = start_http2(
        "location /said { return 200 \"$request|$server_protocol|$http2|$host|$http_host|$scheme|$request_uri|$http_cookie|$connection_requests\"; }",
    );
    let mut client = connect(&server);
    let answer = client.get("/a.txt").unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    assert_eq!(answer.field("content-length"), Some("5"));
    assert_eq!(answer.field("content-type"), Some("text/plain"));
    assert!(answer.field("etag").is_some() && answer.field("connection").is_none());
    let cookies = [("cookie", "a=1"), ("cookie", "b=2")];
    let said = client.request("GET", "/said?x", &cookies, b"").unwrap().text();
    assert_eq!(said, "GET /said?x HTTP/2.0|HTTP/2.0|h2c|localhost|localhost|http|/said?x|a=1; b=2|2");
}

#[test]
fn access_log_has_a_line_for_each_request() {
    let server = start(
        server().file("html/a.txt", "hello"),
        "log_format all '$request $status $body_bytes_sent $http2 $connection_requests';
         server { listen 127.0.0.1:{port}; http2 on; root html; access_log logs/access.log all; }",
    );
    let mut client = connect(&server);
    client.get("/a.txt").unwrap();
    client.get("/none").unwrap();
    let lines = server.access_log(2).unwrap();
    assert_eq!(lines[0], "GET /a.txt HTTP/2.0 200 5 h2c 1");
    assert!(lines[1].starts_with("GET /none HTTP/2.0 404 "), "{lines:?}");
}

#[test]
fn http1_and_http2_share_a_plain_port() {
    let server = start_http2("");
    assert_eq!(page(&server, "/a.txt"), (200, "hello".to_owned()));
    assert_eq!(connect(&server).get("/a.txt").unwrap().text(), "hello");
    let mut slow = server.connect().unwrap();
    slow.send_split(["P", "OST /a.txt HTTP/1.1\r\nHost: a\r\n", "Content-Length: 0\r\n\r\n"]).unwrap();
    assert_eq!(slow.read_response().unwrap().status, 405);
    let plain = start_server(server_with_file(), "");
    let mut frames = Frames::connect(plain.addr()).unwrap();
    assert_eq!(frames.wait(kind::GOAWAY).unwrap(), None, "it speaks HTTP/1 only");
}

fn server_with_file() -> tw_testkit::server::Builder {
    server().file("html/a.txt", "hello")
}

#[test]
fn tls_negotiates_h2_by_alpn() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost", "other"]);
    let files = server_with_file().certificate("one", &made);
    let server = start(
        files,
        "ssl_certificate one.crt; ssl_certificate_key one.key; root html;
         server { listen 127.0.0.1:{port} ssl; http2 on; server_name localhost;
                  location /said { return 200 \"$http2 $ssl_alpn_protocol $scheme\"; } }
         server { listen 127.0.0.1:{port}; server_name other; }
         server { listen 127.0.0.1:{port1} ssl http2; }",
    );
    let config = authority.client(rustls::ALL_VERSIONS);
    let mut client = Http2::connect_tls(server.addr(), &config, "localhost").unwrap();
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
    assert_eq!(client.get("/said").unwrap().text(), "h2 h2 https");
    let mut other = Http2::connect_tls(server.addr_of(1), &config, "localhost").unwrap();
    assert_eq!(other.get("/a.txt").unwrap().text(), "hello");
    let error = Http2::connect_tls(server.addr(), &config, "other").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    // The name of the handshake selected a server with HTTP/2; requests for a server without it are misdirected.
    let misled = client.run(|requests| {
        let request = http::Request::get("https://other/a.txt").body(()).unwrap();
        exchange(requests, request, Bytes::new())
    });
    assert_eq!(misled.unwrap().status, 421);
    let mut old = Client::connect_tls(server.addr(), &config, "localhost").unwrap();
    old.send("GET /said HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(old.read_response().unwrap().text(), "  https");
}

#[test]
fn head_204_and_304_have_no_body() {
    let server = start_http2("location /none { return 204; } location /there { return 301 /here; }");
    let mut client = connect(&server);
    let first = client.get("/a.txt").unwrap();
    let head_only = client.request("HEAD", "/a.txt", &[], b"").unwrap();
    assert_eq!((head_only.status, head_only.body.len()), (200, 0));
    assert_eq!(head_only.field("content-length"), Some("5"));
    let tag = first.field("etag").unwrap();
    let fresh = client.request("GET", "/a.txt", &[("if-none-match", tag)], b"").unwrap();
    assert_eq!((fresh.status, fresh.body.len(), fresh.field("content-length")), (304, 0, None));
    assert_eq!(client.get("/none").unwrap().status, 204);
    let moved = client.get("/there").unwrap();
    assert_eq!(moved.status, 301);
    let location = format!("http://localhost:{}/here", server.addr().port());
    assert_eq!(moved.field("location"), Some(&*location));
    let part = client.request("GET", "/a.txt", &[("range", "bytes=1-2")], b"").unwrap();
    assert_eq!((part.status, part.text().as_str()), (206, "el"));
    let parts = client.request("GET", "/a.txt", &[("range", "bytes=0-0,4-4")], b"").unwrap();
    assert_eq!(parts.status, 206);
    assert_eq!(parts.field("content-length"), Some(&*parts.body.len().to_string()));
}

#[test]
fn large_bodies_respect_windows_both_ways() {
    let (origin, _) = counting(|conn, head, _| {
        let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let mut body = vec![0; len.parse().unwrap()];
        std::io::Read::read_exact(&mut conn.reader, &mut body).unwrap();
        conn.answer("", body);
    });
    let big: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let server = start_server(
        server().file("html/big", &big),
        &format!("http2 on; client_max_body_size 10m; location /to {{ proxy_pass http://{origin}; }}"),
    );
    let mut client = connect(&server);
    assert!(client.get("/big").unwrap().body == big);
    for _ in 0..2 {
        assert!(client.request("POST", "/to", &[], &big).unwrap().body == big);
    }
    let too_large = client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let head = head("POST", "/big", &[("content-length", "20000000")]);
        let (response, _body) = requests.send_request(head, false).unwrap();
        response.await.unwrap().status()
    });
    assert_eq!(too_large, 413);
    assert_eq!(client.get("/none").unwrap().status, 404, "the connection goes on");
}

#[test]
fn request_body_without_length_is_passed() {
    let (sender, receiver) = mpsc::channel();
    let (origin, _) = counting(move |conn, head, _| {
        let mut body = vec![0; 5];
        std::io::Read::read_exact(&mut conn.reader, &mut body).unwrap();
        sender.send((head.to_owned(), String::from_utf8(body).unwrap())).unwrap();
        conn.answer("", "done");
    });
    let server = start_http2(&format!("location /to {{ proxy_pass http://{origin}; }}"));
    let mut client = connect(&server);
    let answer = client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut body) = requests.send_request(head("POST", "/to", &[]), false).unwrap();
        body.send_data(Bytes::from_static(b"he"), false).unwrap();
        body.send_data(Bytes::from_static(b"llo"), false).unwrap();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-end", http::HeaderValue::from_static("yes"));
        body.send_trailers(trailers).unwrap();
        take(response.await.unwrap().into_body()).await.unwrap()
    });
    assert_eq!(answer.0, b"done");
    let (head, body) = receiver.recv_timeout(wait::TIMEOUT).unwrap();
    assert!(head.contains("Content-Length: 5\r\n") && !head.contains("HTTP/2"), "{head}");
    assert_eq!(body, "hello");
}

#[test]
fn stalled_stream_does_not_block_others() {
    let big = vec![b'x'; 200_000];
    let server = start_server(server().file("html/big", &big).file("html/a.txt", "hello"), "http2 on;");
    // The connection window has room for a second stream while the window of the first one is used up.
    let mut settings = Settings::new();
    settings.initial_window_size(16 << 10);
    let mut client = Http2::connect_with(server.addr(), &settings).unwrap();
    let (small, large) = client.run(|requests| async move {
        let mut first = requests.clone().ready().await.unwrap();
        // The client does not read this body, so its window stays full.
        let (response, _) = first.send_request(head("GET", "/big", &[]), true).unwrap();
        let stuck = response.await.unwrap();
        let mut small = Vec::new();
        for _ in 0..20 {
            small.push(exchange(requests.clone(), head("GET", "/a.txt", &[]), Bytes::new()).await);
        }
        (small, take(stuck.into_body()).await.unwrap())
    });
    assert!(small.into_iter().all(|answer| answer.unwrap().text() == "hello"));
    assert!(large.0 == big);
}

#[test]
fn many_streams_run_at_once() {
    let server = start_http2("http2_max_concurrent_streams 100;");
    let mut client = connect(&server);
    let answers = client.run(|requests| async move {
        let all: Vec<_> = (0..100)
            .map(|_| tokio::spawn(exchange(requests.clone(), head("GET", "/a.txt", &[]), Bytes::new())))
            .collect();
        let mut answers = Vec::new();
        for one in all {
            answers.push(one.await.unwrap().unwrap().text());
        }
        answers
    });
    assert_eq!(answers, vec!["hello"; 100]);
}

#[test]
fn response_trailers_follow_the_body() {
    let server = start_http2("location / { root html; add_trailer X-Sent $status; }");
    let answer = connect(&server).get("/a.txt").unwrap();
    assert_eq!(answer.text(), "hello");
    assert_eq!(answer.trailers.unwrap()["x-sent"], "200");
}

#[test]
fn filtered_bodies_end() {
    let text = "compress me ".repeat(10_000);
    let server = start_server(
        server().file("html/t.txt", &text).file("html/ssi.html", "<!--#include virtual=\"/t.txt\" -->!"),
        "http2 on; location /t.txt { gzip on; gzip_types text/plain; } location /ssi.html { ssi on; }",
    );
    let mut client = connect(&server);
    let packed = client.request("GET", "/t.txt", &[("accept-encoding", "gzip")], b"").unwrap();
    assert_eq!(packed.field("content-encoding"), Some("gzip"));
    assert!(packed.body.len() < text.len() && packed.field("content-length").is_none());
    assert!(client.get("/ssi.html").unwrap().text() == format!("{text}!"));
}

#[test]
fn reset_stream_closes_the_upstream_connection() {
    let (sender, mut receiver) = unbounded_channel();
    let origin = origin(move |mut conn| {
        let _ = conn.head();
        sender.send("asked").unwrap();
        // The read ends when the proxy closes the connection.
        let _ = conn.head();
        sender.send("left").unwrap();
    });
    let server = start_http2(&format!("location /to {{ proxy_pass http://{origin}; }}"));
    let mut client = connect(&server);
    client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut stream) = requests.send_request(head("GET", "/to", &[]), true).unwrap();
        assert_eq!(receiver.recv().await, Some("asked"));
        stream.send_reset(Reason::CANCEL);
        drop(response);
        assert_eq!(receiver.recv().await, Some("left"));
    });
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn cache_hit_is_sent() {
    let (origin, request_count) =
        counting(|conn, _, _| conn.answer("Cache-Control: max-age=100\r\n", "kept"));
    let server = start(
        server(),
        &format!(
            "proxy_cache_path cache keys_zone=c:1m;
             server {{ listen 127.0.0.1:{{port}}; http2 on; location = /metrics {{ metrics; }}
                       location / {{ proxy_pass http://{origin}; proxy_cache c; add_header X-Cache $upstream_cache_status; }} }}"
        ),
    );
    let mut client = connect(&server);
    assert_eq!(client.get("/").unwrap().field("x-cache"), Some("MISS"));
    wait_stored(&server, 1);
    let answer = client.get("/").unwrap();
    assert_eq!((answer.text().as_str(), answer.field("x-cache")), ("kept", Some("HIT")));
    assert_eq!(request_count.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn keepalive_requests_ends_the_connection() {
    let server = start_http2("keepalive_requests 3;");
    let mut client = connect(&server);
    for _ in 0..3 {
        assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
    }
    client.ended().unwrap();
}

#[test]
fn keepalive_timeout_ends_an_idle_connection() {
    let server = start_http2("keepalive_timeout 1s; client_header_timeout 1s;");
    // A client that is held up for a second has come in vain.
    let answered = || {
        let mut client = Http2::connect(server.addr()).ok()?;
        client.get("/a.txt").ok().filter(|answer| answer.text() == "hello").map(|_| client)
    };
    wait::some(wait::TIMEOUT, answered).unwrap().ended().unwrap();
    let mut frames = Frames::connect(server.addr()).unwrap();
    assert_eq!(frames.wait(kind::GOAWAY).unwrap().unwrap().code(), Some(0));
    // Half a head is no request.
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(frame(kind::HEADERS, 0, 1, &hpack(&[(":method", "GET")]))).unwrap();
    assert_eq!(frames.wait(kind::GOAWAY).unwrap().unwrap().code(), Some(0));
}

#[test]
fn graceful_shutdown_finishes_streams() {
    let (sender, mut receiver) = unbounded_channel();
    let (go, end_signal) = mpsc::channel();
    let end_signal = std::sync::Arc::new(std::sync::Mutex::new(end_signal));
    let origin = origin(move |mut conn| {
        let _ = conn.head();
        sender.send(()).unwrap();
        end_signal.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
        conn.answer("", "at last");
    });
    let mut server = start_http2(&format!("location /to {{ proxy_pass http://{origin}; }}"));
    let mut client = connect(&server);
    let answer = client.run(|requests| {
        let server = &server;
        async move {
            let request = tokio::spawn(exchange(requests, head("GET", "/to", &[]), Bytes::new()));
            receiver.recv().await.unwrap();
            server.signal(Signal::QUIT).unwrap();
            go.send(()).unwrap();
            request.await.unwrap().unwrap()
        }
    });
    assert_eq!(answer.text(), "at last");
    client.ended().unwrap();
    assert!(server.wait_exit(wait::TIMEOUT).unwrap().success());
}

#[test]
fn proxy_protocol_header_precedes_the_preface() {
    let server = start(
        server(),
        "server { listen 127.0.0.1:{port} proxy_protocol; http2 on; return 200 $proxy_protocol_addr; }",
    );
    let mut client = server.connect().unwrap();
    client.send("PROXY TCP4 192.0.2.1 192.0.2.2 123 456\r\n").unwrap();
    client.send(tw_testkit::http2::PREFACE).unwrap();
    client.send(frame(kind::SETTINGS, 0, 0, b"")).unwrap();
    client.send(get_frame(1, "/", &[])).unwrap();
    client.send(frame(kind::GOAWAY, 0, 0, &[0; 8])).unwrap();
    let all = client.read_until_close().unwrap();
    assert!(all.windows(9).any(|bytes| bytes == b"192.0.2.1"), "{all:?}");
}

#[test]
fn malformed_request_is_answered_with_its_status() {
    let server = start_http2("location /to { proxy_pass http://127.0.0.1:1; client_max_body_size 1k; }");
    let mut frames = Frames::connect(server.addr()).unwrap();
    let mut next = 1;
    let mut status = |bytes: &dyn Fn(u32) -> Vec<u8>| {
        frames.send(bytes(next)).unwrap();
        let head = frames.wait(kind::HEADERS).unwrap().unwrap();
        assert_eq!(head.stream, next);
        next += 2;
        head.payload[0]
    };
    let body = |stream, length: &str, content: &str| {
        let head = post_frame(stream, "/to", &[("content-length", length)]);
        [head, frame(kind::DATA, END_STREAM, stream, content.as_bytes())].concat()
    };
    const BAD_REQUEST: u8 = 0x8c;
    for (said, bytes) in [
        (
            "client sent connection-specific header",
            (&|stream| get_frame(stream, "/", &[("connection", "close")])) as &dyn Fn(u32) -> Vec<u8>,
        ),
        ("client sent header with invalid value", &|stream| get_frame(stream, "/", &[("x", "a\nb")])),
        ("client sent invalid header name", &|stream| get_frame(stream, "/", &[("X-Large", "a")])),
        ("client prematurely closed stream: only 4 out of 5 bytes of request body received", &|stream| {
            body(stream, "5", "four")
        }),
        ("client intended to send body data larger than declared", &|stream| body(stream, "3", "four")),
        ("client prematurely closed stream while", &|stream| {
            get_frame(stream, "/", &[("content-length", "5")])
        }),
        ("client sent unknown pseudo-header in trailers", &|stream| {
            let trailers = frame(kind::HEADERS, END_STREAM | END_HEADERS, stream, &hpack(&[(":path", "/")]));
            [post_frame(stream, "/to", &[]), trailers].concat()
        }),
        ("client sent \":authority\" and \"Host\" headers with different values", &|stream| {
            get_frame(stream, "/", &[("host", "other")])
        }),
    ] {
        assert_eq!(status(bytes), BAD_REQUEST, "{said}");
        server.wait_error_log(said).unwrap();
    }
    assert_eq!(status(&|stream| get_frame(stream, "/a.txt", &[])), 0x88, "the connection goes on");
}

#[test]
fn logged_sizes_are_those_on_the_wire() {
    let server = start(
        server().file("html/a.txt", vec![b'x'; 40_000]),
        "log_format sizes '$request_length $body_bytes_sent $bytes_sent'; access_log logs/access.log sizes;
         server { listen 127.0.0.1:{port}; http2 on; root html;
                  location /to { proxy_pass http://127.0.0.1:1; } }",
    );
    let mut frames = Frames::connect(server.addr()).unwrap();
    let block = get_frame(1, "/a.txt", &[("x", "y")]);
    frames.send(&block).unwrap();
    let mut sent = 0;
    loop {
        let frame = frames.next_frame().unwrap().unwrap();
        if frame.stream == 1 {
            sent += 9 + frame.payload.len();
        }
        if frame.kind == kind::DATA && frame.flags & END_STREAM != 0 {
            break;
        }
    }
    let body = frame(kind::DATA, END_STREAM, 3, b"hello");
    let post = post_frame(3, "/to", &[]);
    frames.send([&post[..], &body].concat()).unwrap();
    let lines = server.access_log(2).unwrap();
    assert_eq!(lines[0], format!("{} 40000 {sent}", block.len() - 9));
    assert!(lines[1].starts_with(&format!("{} ", post.len() - 9 + 5)), "{lines:?}");
}

#[test]
fn frames_respect_the_maximum_frame_size() {
    let server = start(
        server().file("html/large", vec![b'x'; 40_000]),
        "http2 on; root html;
         server { listen 127.0.0.1:{port}; location / { } location /small/ { alias html/; http2_chunk_size 8k; }
                  location /big/ { alias html/; http2_chunk_size 30k; } }",
    );
    for (path, window, expected) in [
        ("/large", 16 << 10, [16_384, 16_384, 7_232].as_slice()),
        ("/large", 1 << 20, &[16_384, 16_384, 7_232]),
        ("/small/large", 1 << 20, &[8192, 8192, 8192, 8192, 7_232]),
        // No frame is larger than its client allows.
        ("/big/large", 16 << 10, &[16_384, 16_384, 7_232]),
        ("/big/large", 1 << 20, &[30_720, 9_280]),
    ] {
        let mut frames = Frames::connect(server.addr()).unwrap();
        // SETTINGS_MAX_FRAME_SIZE.
        let setting = [&[0, 5][..], &u32::to_be_bytes(window)].concat();
        frames.send([frame(kind::SETTINGS, 0, 0, &setting), get_frame(1, path, &[])].concat()).unwrap();
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < 40_000 {
            sizes.push(frames.wait(kind::DATA).unwrap().unwrap().payload.len());
        }
        assert_eq!(sizes, expected, "{path} {window}");
    }
}

#[test]
fn body_waits_for_100_continue() {
    let (origin, _) = counting(|conn, head, _| {
        let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let mut body = vec![0; len.parse().unwrap()];
        std::io::Read::read_exact(&mut conn.reader, &mut body).unwrap();
        conn.answer("", body);
    });
    for size in ["0", "10", "1m"] {
        let server = start_http2(&format!(
            "http2_body_preread_size {size}; client_max_body_size 10m; location /to {{ proxy_pass http://{origin}; }}"
        ));
        let mut client = connect(&server);
        // The client has applied the settings of the server.
        assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
        for len in [1, 10, 65_536, 1_000_000] {
            let body = vec![b'x'; len];
            assert!(client.request("POST", "/to", &[], &body).unwrap().body == body, "{size} {len}");
        }
    }
    // A client that sent data before it received the small windows is told to retry: REFUSED_STREAM.
    let server = start_http2("http2_body_preread_size 10;");
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(post_frame(1, "/a.txt", &[])).unwrap();
    assert_eq!(frames.wait(kind::RST_STREAM).unwrap().unwrap().code(), Some(7));
}

#[test]
fn obsolete_directives_are_warned_of() {
    let server = start_server(
        server_with_file(),
        "http2 on; http2_max_requests 5; http2_idle_timeout 3m; http2_push /a; http2_push_preload on; \
         http2_pool_size 4k; http2_streams_index_size 32;",
    );
    let said = server.stderr();
    for line in [
        "the \"http2_max_requests\" directive is obsolete, use the \"keepalive_requests\" directive instead",
        "the \"http2_idle_timeout\" directive is obsolete, use the \"keepalive_timeout\" directive instead",
        "the \"http2_push\" directive is obsolete, ignored",
        "the \"http2_push_preload\" directive is obsolete, ignored",
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
    assert_eq!(connect(&server).get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn http2_parameter_of_listen_works_with_a_warning() {
    let server = start(server_with_file(), "server { listen 127.0.0.1:{port} http2; root html; }");
    let warning = "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead";
    assert!(server.stderr().contains(warning));
    assert_eq!(connect(&server).get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn malformed_directives_are_refused() {
    for (line, error) in [
        ("http2 maybe;", "invalid value \"maybe\" in \"http2\" directive"),
        ("http2_chunk_size 0;", "the http2 chunk size cannot be zero"),
        ("http2_recv_buffer_size 16;", "\"http2_recv_buffer_size\" directive value is too small"),
        ("http2_body_preread_size 3000m;", "the maximum body preread buffer size is 2147483647"),
        ("http2_streams_index_size 3;", "\"http2_streams_index_size\" directive must be a power of two"),
        ("http2_pool_size 100;", "the pool size must be no less than 256"),
    ] {
        let said = refusal_of(&format!("http {{ {line} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(said.contains(error), "{line}: {said}");
    }
}
