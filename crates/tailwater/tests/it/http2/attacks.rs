//! Attacks by clients of HTTP/2: each has its limit and its line in the log, and affects no other connection.

use std::sync::mpsc;

use bytes::Bytes;
use h2::Reason;
use h2::client::Builder as Settings;
use tw_testkit::http2::{END_HEADERS, Frames, Http2, frame, get as get_frame, head, hpack, kind};
use tw_testkit::origin::origin;
use tw_testkit::{Server, wait};

use crate::support::http2::{connect, post_frame, start_http2};
use crate::support::{server, start_server};

const ENHANCE_YOUR_CALM: u32 = 11;

/// Code of the GOAWAY that the server sends before it closes; checks that other connections are not affected.
fn goaway_code(server: &Server, attack: impl FnOnce(&mut Frames) -> std::io::Result<()>) -> Option<u32> {
    let mut neighbour = connect(server);
    assert_eq!(neighbour.get("/a.txt").unwrap().text(), "hello");
    let mut frames = Frames::connect(server.addr()).unwrap();
    let attacker = frames.try_clone().unwrap();
    let (begun, code) = std::thread::scope(|scope| {
        // A client that reads nothing may not get the GOAWAY, so another thread reads.
        let goaway = scope.spawn(|| frames.wait(kind::GOAWAY).unwrap().and_then(|frame| frame.code()));
        let mut attacker = attacker;
        // A client whose connection is closed during the attack cannot send the rest.
        (attack(&mut attacker), goaway.join().unwrap())
    });
    drop(begun);
    assert_eq!(neighbour.get("/a.txt").unwrap().text(), "hello");
    code
}

#[test]
fn rapid_reset_is_bounded() {
    let server = start_http2("keepalive_requests 100000;");
    let code = goaway_code(&server, |frames| {
        let mut burst = Vec::new();
        for stream in (1..201).step_by(2) {
            burst.extend(get_frame(stream, "/a.txt", &[]));
            burst.extend(frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        frames.send(burst)
    });
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
    server.wait_error_log("client took back requests as fast as it made them").unwrap();
}

#[test]
fn delayed_resets_are_bounded() {
    let (begin_request, may_begin) = mpsc::channel();
    let origin = origin(move |mut conn| {
        while conn.head().is_some() {
            begin_request.send(()).unwrap();
        }
    });
    let server =
        start_http2(&format!("keepalive_requests 100000; location /to {{ proxy_pass http://{origin}; }}"));
    let code = goaway_code(&server, |frames| {
        for at in 0..200 {
            let stream = 1 + 2 * at;
            frames.send(get_frame(stream, "/to", &[]))?;
            // The server has looked at it.
            may_begin.recv_timeout(wait::TIMEOUT).map_err(std::io::Error::other)?;
            frames.send(frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes()))?;
        }
        Ok(())
    });
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
    server.wait_error_log("client took back too many requests").unwrap();
}

#[test]
fn stream_errors_are_bounded() {
    let server = start_http2("keepalive_requests 100000; location /to { proxy_pass http://127.0.0.1:1; }");
    let code = goaway_code(&server, |frames| {
        for at in 0..200 {
            let stream = 1 + 2 * at;
            frames.send(post_frame(stream, "/to", &[]))?;
            // A window must grow (RFC 9113 section 6.9).
            frames.send(frame(kind::WINDOW_UPDATE, 0, stream, &[0; 4]))?;
        }
        Ok(())
    });
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
    server.wait_error_log("client broke too many http2 streams").unwrap();
}

#[test]
fn floods_of_control_frames_are_bounded() {
    let server = start_http2("");
    let ping = frame(kind::PING, 0, 0, &[0; 8]);
    let settings = frame(kind::SETTINGS, 0, 0, b"");
    let priority = frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 16]);
    let update = frame(kind::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
    let empty = frame(kind::DATA, 0, 1, b"").repeat(2);
    for (name, one) in [
        ("ping", ping),
        ("settings", settings),
        ("priority", priority),
        ("update", update),
        ("empty pieces of a body", empty),
    ] {
        let code = goaway_code(&server, |frames| {
            frames.send(post_frame(1, "/a.txt", &[]))?;
            let many = one.repeat(4096);
            // 17 bytes and more each, of which 8 MiB are borne.
            for _ in 0..400 {
                frames.send(&many)?;
            }
            Ok(())
        });
        // The GOAWAY may be lost: the kernel may discard it with a reset if the client goes on sending.
        assert!(matches!(code, Some(ENHANCE_YOUR_CALM) | None), "{name}: {code:?}");
    }
    let are_told = || server.error_log().matches("http2 flood detected").count() >= 5;
    assert!(wait::until(wait::TIMEOUT, are_told), "{}", server.error_log());
}

#[test]
fn heads_are_bounded() {
    let server = start_http2("large_client_header_buffers 4 1k; max_headers 50;");
    let mut client = connect(&server);
    // The field is larger than the buffer even in Huffman coding, which needs at most seven bits for each of these.
    let large = "x".repeat(1200);
    assert_eq!(client.request("GET", "/a.txt", &[("x", &large)], b"").unwrap().status, 400);
    let fields: Vec<_> = (0..60).map(|at| (format!("x-{at}"), "y")).collect();
    let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, *value)).collect();
    assert_eq!(client.request("GET", "/a.txt", &fields, b"").unwrap().status, 400);
    // The header list exceeds what the server decodes at all.
    let some = "x".repeat(900);
    let many: Vec<_> = (0..10).map(|at| (format!("x-{at}"), &*some)).collect();
    let many: Vec<_> = many.iter().map(|(name, value)| (&**name, *value)).collect();
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(get_frame(1, "/a.txt", &many)).unwrap();
    assert!(frames.wait(kind::HEADERS).unwrap().is_some());
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn continuation_flood_is_cut_off() {
    let server = start_http2("large_client_header_buffers 4 1k; max_headers 50;");
    let code = goaway_code(&server, |frames| {
        frames.send(frame(kind::HEADERS, 0, 1, &hpack(&[(":method", "GET")])))?;
        let field = hpack(&[("x", "y")]);
        for _ in 0..10_000 {
            frames.send(frame(kind::CONTINUATION, 0, 1, &field))?;
        }
        Ok(())
    });
    assert_eq!(code, Some(ENHANCE_YOUR_CALM));
    server.wait_error_log("client sent too large header block").unwrap();
}

#[test]
fn hpack_bomb_is_refused() {
    let server = start_http2("large_client_header_buffers 4 1k; max_headers 50;");
    let mut frames = Frames::connect(server.addr()).unwrap();
    // One field goes into the table, and is named again and again by one byte (RFC 7541 section 6.1).
    let mut block = hpack(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")]);
    let mut indexed = hpack(&[("x", &"y".repeat(4000))]);
    indexed[0] = 0x40;
    block.extend(indexed);
    block.extend([0x80 | 62; 8000]);
    frames.send(frame(kind::HEADERS, END_HEADERS | 1, 1, &block)).unwrap();
    assert_eq!(frames.wait(kind::HEADERS).unwrap().unwrap().payload[0], 0x8c, "400");
    server.wait_error_log("client sent too large request while reading client request headers").unwrap();
    // The entry is in the dynamic table all the same.
    let mut block =
        hpack(&[(":method", "GET"), (":scheme", "http"), (":path", "/a.txt"), (":authority", "a")]);
    block.extend([0x80 | 62; 1]);
    frames.send(frame(kind::HEADERS, END_HEADERS | 1, 3, &block)).unwrap();
    assert_eq!(frames.wait(kind::HEADERS).unwrap().unwrap().stream, 3);
}

#[test]
fn send_timeout_ends_a_client_with_closed_windows() {
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
fn minimum_rates_end_slow_clients() {
    let server = start_server(
        server().file("html/big", vec![b'x'; 4_000_000]).file("html/a.txt", "hello"),
        "http2 on; send_min_rate 1m grace=300ms; client_body_min_rate 1m grace=300ms;
         location /to { client_body_in_file_only clean; proxy_pass http://127.0.0.1:1; }",
    );
    let mut settings = Settings::new();
    settings.initial_window_size(0);
    let mut client = Http2::connect_with(server.addr(), &settings).unwrap();
    assert!(client.get("/big").unwrap_err().is_reset());
    server.wait_error_log("client is slower than \"send_min_rate\" while sending response").unwrap();
    let mut client = connect(&server);
    let status = client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut body) = requests.send_request(head("POST", "/to", &[]), false).unwrap();
        body.send_data(Bytes::from_static(b"so far"), false).unwrap();
        response.await.map(|response| response.status().as_u16())
    });
    server.wait_error_log("client is slower than \"client_body_min_rate\"").unwrap();
    assert!(matches!(status, Ok(408) | Err(_)), "{status:?}");
    assert_eq!(connect(&server).get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn client_body_timeout_ends_a_stalled_body() {
    let server = start_http2(
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
    let large = client.request("POST", "/to", &[], &[b'x'; 200]).unwrap();
    assert_eq!(large.status, 413);
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let origin = origin(|mut conn| while conn.head().is_some() {});
    let server = start_http2(&format!(
        "http2_max_concurrent_streams 4; location /to {{ proxy_pass http://{origin}; }}"
    ));
    let mut frames = Frames::connect(server.addr()).unwrap();
    for at in 0..5 {
        frames.send(get_frame(1 + 2 * at, "/to", &[])).unwrap();
    }
    let refused = frames.wait(kind::RST_STREAM).unwrap().unwrap();
    assert_eq!((refused.stream, refused.code()), (9, Some(7)));
}
