//! HTTP/2 to clients: over TLS and with prior knowledge, what requests and responses are made of, and what clients may not do.

use std::sync::mpsc;

use bytes::Bytes;
use h2::Reason;
use h2::client::Builder as Settings;
use tokio::sync::mpsc::unbounded_channel;
use tw_testkit::http2::{
    END_HEADERS, Frames, Http2, exchange, frame, get as get_frame, head, hpack, kind, take,
};
use tw_testkit::origin::{counting, origin};
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Server, Signal, wait};

use crate::{page, refusal_of, server, start, start_server};

const ENHANCE_YOUR_CALM: u32 = 11;
/// What the log says of who was sent away by the crate `h2`.
const SENT_AWAY: &str = "connection error detected: detected excessive load generating behavior";

/// A server that speaks HTTP/2 on a plain port, with this in its `server` block.
fn speaking(content: &str) -> Server {
    start_server(server().file("html/a.txt", "hello"), &format!("http2 on; {content}"))
}

fn connect(server: &Server) -> Http2 {
    Http2::connect(server.addr()).unwrap()
}

#[test]
fn files_are_sent_and_requests_look_as_ever() {
    let server = speaking(
        "location /said { return 200 \"$request|$server_protocol|$http2|$host|$http_host|$scheme|$request_uri|$http_cookie|$connection_requests\"; }",
    );
    let mut client = connect(&server);
    let answer = client.get("/a.txt").unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    assert_eq!(answer.field("content-length"), Some("5"));
    assert_eq!(answer.field("content-type"), Some("text/plain"));
    assert!(answer.field("etag").is_some() && answer.field("connection").is_none());
    let cookies = [("cookie", "a=1"), ("cookie", "b=2")];
    let said = client.ask("GET", "/said?x", &cookies, b"").unwrap().text();
    assert_eq!(said, "GET /said?x HTTP/2.0|HTTP/2.0|h2c|localhost|localhost|http|/said?x|a=1; b=2|2");
}

#[test]
fn the_log_has_a_line_for_each_request() {
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
fn both_protocols_share_a_plain_port() {
    let server = speaking("");
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
fn over_tls_it_is_agreed_on() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost", "other"]);
    let files = server_with_file().file("conf/one.crt", &made.pem).file("conf/one.key", &made.key);
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
    // Who came for one server does not get another one that speaks no HTTP/2.
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
fn what_has_no_body_has_none() {
    let server = speaking("location /none { return 204; } location /there { return 301 /here; }");
    let mut client = connect(&server);
    let first = client.get("/a.txt").unwrap();
    let head_only = client.ask("HEAD", "/a.txt", &[], b"").unwrap();
    assert_eq!((head_only.status, head_only.body.len()), (200, 0));
    assert_eq!(head_only.field("content-length"), Some("5"));
    let tag = first.field("etag").unwrap();
    let fresh = client.ask("GET", "/a.txt", &[("if-none-match", tag)], b"").unwrap();
    assert_eq!((fresh.status, fresh.body.len(), fresh.field("content-length")), (304, 0, None));
    assert_eq!(client.get("/none").unwrap().status, 204);
    let moved = client.get("/there").unwrap();
    assert_eq!(moved.status, 301);
    let location = format!("http://localhost:{}/here", server.addr().port());
    assert_eq!(moved.field("location"), Some(&*location));
    let part = client.ask("GET", "/a.txt", &[("range", "bytes=1-2")], b"").unwrap();
    assert_eq!((part.status, part.text().as_str()), (206, "el"));
    let parts = client.ask("GET", "/a.txt", &[("range", "bytes=0-0,4-4")], b"").unwrap();
    assert_eq!(parts.status, 206);
    assert_eq!(parts.field("content-length"), Some(&*parts.body.len().to_string()));
}

#[test]
fn large_bodies_pass_both_ways_within_their_windows() {
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
        assert!(client.ask("POST", "/to", &[], &big).unwrap().body == big);
    }
    let too_large = client.ask("POST", "/big", &[("content-length", "20000000")], b"");
    assert!(
        matches!(too_large, Ok(ref answer) if answer.status == 413) || too_large.is_err(),
        "{too_large:?}"
    );
    assert_eq!(client.get("/none").unwrap().status, 404, "the connection goes on");
}

#[test]
fn a_body_without_length_is_passed_on() {
    let (tell, told) = mpsc::channel();
    let (origin, _) = counting(move |conn, head, _| {
        let mut body = vec![0; 5];
        std::io::Read::read_exact(&mut conn.reader, &mut body).unwrap();
        tell.send((head.to_owned(), String::from_utf8(body).unwrap())).unwrap();
        conn.answer("", "done");
    });
    let server = speaking(&format!("location /to {{ proxy_pass http://{origin}; }}"));
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
    let (head, body) = told.recv_timeout(wait::PATIENCE).unwrap();
    assert!(head.contains("Content-Length: 5\r\n") && !head.contains("HTTP/2"), "{head}");
    assert_eq!(body, "hello");
}

#[test]
fn streams_do_not_hold_each_other_up() {
    let big = vec![b'x'; 200_000];
    let server = start_server(server().file("html/big", &big).file("html/a.txt", "hello"), "http2 on;");
    // The window of the connection has room beside that of a stream.
    let mut settings = Settings::new();
    settings.initial_window_size(16 << 10);
    let mut client = Http2::connect_with(server.addr(), &settings).unwrap();
    let (small, large) = client.run(|requests| async move {
        let mut first = requests.clone().ready().await.unwrap();
        // Nobody takes what comes: its window stays full.
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
    let server = speaking("http2_max_concurrent_streams 100;");
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
fn trailers_follow_the_body() {
    let server = speaking("location / { root html; add_trailer X-Sent $status; }");
    let answer = connect(&server).get("/a.txt").unwrap();
    assert_eq!(answer.text(), "hello");
    assert_eq!(answer.trailers.unwrap()["x-sent"], "200");
}

#[test]
fn bodies_that_are_made_have_an_end() {
    let text = "compress me ".repeat(10_000);
    let server = start_server(
        server().file("html/t.txt", &text).file("html/ssi.html", "<!--#include virtual=\"/t.txt\" -->!"),
        "http2 on; location /t.txt { gzip on; gzip_types text/plain; } location /ssi.html { ssi on; }",
    );
    let mut client = connect(&server);
    let packed = client.ask("GET", "/t.txt", &[("accept-encoding", "gzip")], b"").unwrap();
    assert_eq!(packed.field("content-encoding"), Some("gzip"));
    assert!(packed.body.len() < text.len() && packed.field("content-length").is_none());
    assert!(client.get("/ssi.html").unwrap().text() == format!("{text}!"));
}

#[test]
fn a_client_that_resets_its_stream_is_gone() {
    let (tell, mut told) = unbounded_channel();
    let origin = origin(move |mut conn| {
        let _ = conn.head();
        tell.send("asked").unwrap();
        // Until the proxy hangs up.
        let _ = conn.head();
        tell.send("left").unwrap();
    });
    let server = speaking(&format!("location /to {{ proxy_pass http://{origin}; }}"));
    let mut client = connect(&server);
    client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut stream) = requests.send_request(head("GET", "/to", &[]), true).unwrap();
        assert_eq!(told.recv().await, Some("asked"));
        stream.send_reset(Reason::CANCEL);
        drop(response);
        assert_eq!(told.recv().await, Some("left"));
    });
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn a_cache_answers() {
    let (origin, asked) = counting(|conn, _, _| conn.answer("Cache-Control: max-age=100\r\n", "kept"));
    let server = start(
        server(),
        &format!(
            "proxy_cache_path cache keys_zone=c:1m;
             server {{ listen 127.0.0.1:{{port}}; http2 on;
                       location / {{ proxy_pass http://{origin}; proxy_cache c; add_header X-Cache $upstream_cache_status; }} }}"
        ),
    );
    let mut client = connect(&server);
    assert_eq!(client.get("/").unwrap().field("x-cache"), Some("MISS"));
    assert!(wait::until(wait::PATIENCE, || {
        let answer = client.get("/").unwrap();
        assert_eq!(answer.text(), "kept");
        answer.field("x-cache") == Some("HIT")
    }));
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn a_connection_ends_after_so_many_requests() {
    let server = speaking("keepalive_requests 3;");
    let mut client = connect(&server);
    for _ in 0..3 {
        assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
    }
    client.ended().unwrap();
}

#[test]
fn a_connection_without_streams_ends_in_time() {
    let server = speaking("keepalive_timeout 1s; client_header_timeout 1s;");
    let mut client = connect(&server);
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
    client.ended().unwrap();
    let mut frames = Frames::connect(server.addr()).unwrap();
    assert_eq!(frames.wait(kind::GOAWAY).unwrap().unwrap().code(), Some(0));
    // Half a head is no request.
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(frame(kind::HEADERS, 0, 1, &hpack(&[(":method", "GET")]))).unwrap();
    assert_eq!(frames.wait(kind::GOAWAY).unwrap().unwrap().code(), Some(0));
}

#[test]
fn who_quits_answers_what_was_begun() {
    let (tell, mut told) = unbounded_channel();
    let (go, gone) = mpsc::channel();
    let gone = std::sync::Arc::new(std::sync::Mutex::new(gone));
    let origin = origin(move |mut conn| {
        let _ = conn.head();
        tell.send(()).unwrap();
        gone.lock().unwrap().recv_timeout(wait::PATIENCE).unwrap();
        conn.answer("", "at last");
    });
    let mut server = speaking(&format!("location /to {{ proxy_pass http://{origin}; }}"));
    let mut client = connect(&server);
    let answer = client.run(|requests| {
        let server = &server;
        async move {
            let asked = tokio::spawn(exchange(requests, head("GET", "/to", &[]), Bytes::new()));
            told.recv().await.unwrap();
            server.signal(Signal::QUIT).unwrap();
            go.send(()).unwrap();
            asked.await.unwrap().unwrap()
        }
    });
    assert_eq!(answer.text(), "at last");
    client.ended().unwrap();
    assert!(server.wait_exit(wait::PATIENCE).unwrap().success());
}

#[test]
fn the_header_of_the_proxy_protocol_comes_first() {
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

// What clients may not do.

/// What the server says before it closes, and that its neighbours notice nothing.
fn sent_away(server: &Server, attack: impl FnOnce(&mut Frames) -> std::io::Result<()>) -> Option<u32> {
    let mut neighbour = connect(server);
    assert_eq!(neighbour.get("/a.txt").unwrap().text(), "hello");
    let mut frames = Frames::connect(server.addr()).unwrap();
    let attacker = frames.try_clone().unwrap();
    let (begun, code) = std::thread::scope(|scope| {
        // Who takes nothing of what is said may not be told.
        let told = scope.spawn(|| frames.wait(kind::GOAWAY).unwrap().and_then(|frame| frame.code()));
        let mut attacker = attacker;
        // Who is sent away in the middle of it cannot send the rest.
        (attack(&mut attacker), told.join().unwrap())
    });
    drop(begun);
    assert_eq!(neighbour.get("/a.txt").unwrap().text(), "hello");
    code
}

#[test]
fn requests_that_are_taken_back_at_once_are_bounded() {
    let server = speaking("keepalive_requests 100000;");
    let code = sent_away(&server, |frames| {
        let mut burst = Vec::new();
        for stream in (1..201).step_by(2) {
            burst.extend(get_frame(stream, "/a.txt", &[]));
            burst.extend(frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        frames.send(burst)
    });
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
    server.wait_error_log(SENT_AWAY).unwrap();
}

#[test]
fn requests_that_are_taken_back_later_are_bounded() {
    let (ask, asked) = mpsc::channel();
    let origin = origin(move |mut conn| {
        while conn.head().is_some() {
            ask.send(()).unwrap();
        }
    });
    let server =
        speaking(&format!("keepalive_requests 100000; location /to {{ proxy_pass http://{origin}; }}"));
    let code = sent_away(&server, |frames| {
        for at in 0..200 {
            let stream = 1 + 2 * at;
            frames.send(get_frame(stream, "/to", &[]))?;
            // The server has looked at it.
            asked.recv_timeout(wait::PATIENCE).map_err(std::io::Error::other)?;
            frames.send(frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes()))?;
        }
        Ok(())
    });
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
    server.wait_error_log("client took back too many requests").unwrap();
}

#[test]
fn streams_that_break_the_protocol_are_bounded() {
    let server = speaking("keepalive_requests 100000;");
    let code = sent_away(&server, |frames| {
        for at in 0..200 {
            // No field of a connection may be there (RFC 9113 section 8.2.2).
            frames.send(get_frame(1 + 2 * at, "/a.txt", &[("connection", "close")]))?;
        }
        Ok(())
    });
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
}

#[test]
fn frames_that_nobody_needs_are_bounded() {
    let server = speaking("");
    let ping = frame(kind::PING, 0, 0, &[0; 8]);
    let settings = frame(kind::SETTINGS, 0, 0, b"");
    let priority = frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 16]);
    let update = frame(kind::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
    for (name, one) in [("ping", ping), ("settings", settings), ("priority", priority), ("update", update)] {
        let code = sent_away(&server, |frames| {
            let many = one.repeat(4096);
            // 17 bytes and more each, of which 8 MiB are borne.
            for _ in 0..400 {
                frames.send(&many)?;
            }
            Ok(())
        });
        // The kernel may drop what was said when the client goes on sending.
        assert!(matches!(code, Some(ENHANCE_YOUR_CALM) | None), "{name}: {code:?}");
    }
    assert!(server.error_log().matches("http2 flood detected").count() >= 4);
}

#[test]
fn heads_are_bounded() {
    let server = speaking("large_client_header_buffers 4 1k; max_headers 50;");
    let mut client = connect(&server);
    // Beyond what the server has room for.
    let large = "x".repeat(1100);
    assert_eq!(client.ask("GET", "/a.txt", &[("x", &large)], b"").unwrap().status, 400);
    let fields: Vec<_> = (0..60).map(|at| (format!("x-{at}"), "y")).collect();
    let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, *value)).collect();
    assert_eq!(client.ask("GET", "/a.txt", &fields, b"").unwrap().status, 400);
    // Beyond what is decoded at all.
    let some = "x".repeat(900);
    let many: Vec<_> = (0..10).map(|at| (format!("x-{at}"), &*some)).collect();
    let many: Vec<_> = many.iter().map(|(name, value)| (&**name, *value)).collect();
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(get_frame(1, "/a.txt", &many)).unwrap();
    assert!(frames.wait(kind::HEADERS).unwrap().is_some());
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn heads_that_never_end_are_cut_off() {
    let server = speaking("large_client_header_buffers 4 1k; max_headers 50;");
    let code = sent_away(&server, |frames| {
        frames.send(frame(kind::HEADERS, 0, 1, &hpack(&[(":method", "GET")])))?;
        let field = hpack(&[("x", "y")]);
        for _ in 0..10_000 {
            frames.send(frame(kind::CONTINUATION, 0, 1, &field))?;
        }
        Ok(())
    });
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
    server.wait_error_log(SENT_AWAY).unwrap();
}

#[test]
fn small_heads_that_become_large_are_cut_off() {
    let server = speaking("large_client_header_buffers 4 1k; max_headers 50;");
    let code = sent_away(&server, |frames| {
        // One field goes into the table, and is named again and again by one byte (RFC 7541 section 6.1).
        let mut block =
            hpack(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")]);
        let mut indexed = hpack(&[("x", &"y".repeat(4000))]);
        indexed[0] = 0x40;
        block.extend(indexed);
        block.extend([0x80 | 62; 8000]);
        frames.send(frame(kind::HEADERS, END_HEADERS | 1, 1, &block))
    });
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
}

#[test]
fn empty_pieces_of_a_body_are_bounded() {
    let server = speaking("location /to { proxy_pass http://127.0.0.1:1; }");
    let code = sent_away(&server, |frames| {
        let post = hpack(&[(":method", "POST"), (":scheme", "http"), (":path", "/to"), (":authority", "a")]);
        frames.send(frame(kind::HEADERS, END_HEADERS, 1, &post))?;
        frames.send(frame(kind::DATA, 0, 1, b"").repeat(1000))
    });
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
}

#[test]
fn a_client_that_takes_nothing_is_not_waited_for() {
    let server = start_server(
        server().file("html/big", vec![b'x'; 4_000_000]).file("html/a.txt", "hello"),
        "http2 on; send_timeout 1s;",
    );
    let mut settings = Settings::new();
    settings.initial_window_size(0);
    let mut client = Http2::connect_with(server.addr(), &settings).unwrap();
    let error = client.get("/big").unwrap_err();
    assert!(error.is_reset(), "{error}");
    server.wait_error_log("client timed out (110: Connection timed out) while sending response").unwrap();
    assert_eq!(connect(&server).get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn a_client_that_pauses_in_a_body_is_not_waited_for() {
    let server = speaking(
        "client_body_timeout 1s; location /to { proxy_pass http://127.0.0.1:1; client_max_body_size 100; }",
    );
    let mut client = connect(&server);
    let error = client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut body) = requests.send_request(head("POST", "/to", &[]), false).unwrap();
        body.send_data(Bytes::from_static(b"so far"), false).unwrap();
        response.await.unwrap_err()
    });
    assert_eq!(error.reason(), Some(Reason::PROTOCOL_ERROR));
    let large = client.ask("POST", "/to", &[], &[b'x'; 200]).unwrap();
    assert_eq!(large.status, 413);
}

#[test]
fn a_crowd_of_streams_is_refused() {
    let origin = origin(|mut conn| while conn.head().is_some() {});
    let server =
        speaking(&format!("http2_max_concurrent_streams 4; location /to {{ proxy_pass http://{origin}; }}"));
    let mut frames = Frames::connect(server.addr()).unwrap();
    for at in 0..5 {
        frames.send(get_frame(1 + 2 * at, "/to", &[])).unwrap();
    }
    let refused = frames.wait(kind::RST_STREAM).unwrap().unwrap();
    assert_eq!((refused.stream, refused.code()), (9, Some(7)));
}

// What is written.

#[test]
fn what_is_obsolete_is_told() {
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
fn the_old_parameter_works_with_a_warning() {
    let server = start(server_with_file(), "server { listen 127.0.0.1:{port} http2; root html; }");
    let warning = "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead";
    assert!(server.stderr().contains(warning));
    assert_eq!(connect(&server).get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn what_is_wrong_is_refused() {
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
