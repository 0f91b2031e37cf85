//! Rules of RFC 9114 and RFC 9204 that a server must enforce, each with the error code that the client sees.

use tw_testkit::quic::{QuicClient, UdpClient};

use crate::support::http3::{Http3Server, closed, frame, headers, send_bidi, send_on, send_uni, start_http3};

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/a.txt")];

fn code_of(udp: &mut UdpClient) -> u64 {
    udp.until(|client| closed(client)).unwrap()
}

/// The server is still there for others.
fn check(server: &Http3Server) {
    assert_eq!(server.client().get("/a.txt").text(), "hello");
}

#[test]
fn control_stream_rules() {
    let server = start_http3("");
    for (name, bytes, code) in [
        ("a first frame that is not SETTINGS", &[0, 7, 1, 0][..], 0x10a),
        ("a second SETTINGS", &[0, 4, 0, 4, 0], 0x105),
        ("DATA", &[0, 4, 0, 0, 0], 0x105),
        ("HEADERS", &[0, 4, 0, 1, 0], 0x105),
        ("PUSH_PROMISE", &[0, 4, 0, 5, 1, 0], 0x105),
        ("a setting of HTTP/2", &[0, 4, 2, 2, 0], 0x109),
        ("a duplicate setting", &[0, 4, 4, 6, 1, 6, 1], 0x109),
        ("SETTINGS that are cut", &[0, 4, 1, 6], 0x106),
        ("a frame of HTTP/2", &[0, 4, 0, 6, 0], 0x105),
        ("a larger GOAWAY", &[0, 4, 0, 7, 1, 0, 7, 1, 1], 0x108),
        ("a smaller MAX_PUSH_ID", &[0, 4, 0, 13, 1, 2, 13, 1, 1], 0x108),
        ("CANCEL_PUSH for no push", &[0, 4, 0, 3, 1, 0], 0x108),
        ("a frame that is too large", &[0, 4, 0x80, 1, 0, 0], 0x107),
        ("a push stream", &[1, 0], 0x103),
        ("an invalid instruction of QPACK", &[2, 0x3f, 0xe2, 0x1f], 0x201),
        ("an acknowledgement of nothing", &[3, 0x80], 0x202),
        ("an increment of the insert count by 0", &[3, 0], 0x202),
    ] {
        let mut udp = server.raw();
        send_uni(&mut udp, bytes);
        assert_eq!(code_of(&mut udp), code, "{name}");
    }
    check(&server);
}

#[test]
fn critical_streams_are_opened_once_and_never_closed() {
    let server = start_http3("");
    for kind in [0, 2, 3] {
        let mut udp = server.raw();
        send_uni(&mut udp, &[kind]);
        send_uni(&mut udp, &[kind]);
        assert_eq!(code_of(&mut udp), 0x103, "a second one");
        let mut udp = server.raw();
        let stream = send_uni(&mut udp, &[kind]);
        send_on(&mut udp, stream, b"", true);
        assert_eq!(code_of(&mut udp), 0x104, "the end of it");
        let mut udp = server.raw();
        let stream = send_uni(&mut udp, &[kind]);
        // The response shows that the type of the stream was read.
        let request = send_bidi(&mut udp, &headers(&GET), true);
        udp.until(|client| client.ended.get(&request).copied()).unwrap();
        udp.until(|client| {
            client.reset(stream, 0x100);
            Some(())
        })
        .unwrap();
        assert_eq!(code_of(&mut udp), 0x104, "its reset");
    }
    // The server's own streams, too.
    let mut udp = server.raw();
    let control = udp.until(|client| client.opened.first().copied()).unwrap();
    udp.until(|client| {
        client.stop(control, 0x100);
        Some(())
    })
    .unwrap();
    send_uni(&mut udp, &[0, 4, 0]);
    check(&server);
}

#[test]
fn request_stream_rules() {
    let server = start_http3("");
    let head = headers(&GET);
    let trailers = headers(&[("x", "y")]);
    for (name, bytes, fin, code) in [
        ("DATA first", frame(0, b"x"), false, 0x105),
        ("SETTINGS", frame(4, b""), false, 0x105),
        ("GOAWAY", frame(7, &[0]), false, 0x105),
        ("MAX_PUSH_ID", frame(13, &[0]), false, 0x105),
        ("CANCEL_PUSH", frame(3, &[0]), false, 0x105),
        ("PUSH_PROMISE", frame(5, &[0]), false, 0x105),
        ("a frame of HTTP/2", frame(8, &[0]), false, 0x105),
        ("a frame that is cut", head[..head.len() - 1].to_vec(), true, 0x106),
        ("a section without a prefix", frame(1, b""), false, 0x200),
        ("a reference to no entry", frame(1, &[0, 0, 0x80]), false, 0x200),
        ("an invalid insert count", frame(1, &[0xff, 0x7f, 0]), false, 0x200),
        ("an index beyond the static table", frame(1, &[0, 0, 0xff, 0x24]), false, 0x200),
    ] {
        let mut udp = server.raw();
        send_bidi(&mut udp, &bytes, fin);
        assert_eq!(code_of(&mut udp), code, "{name}");
    }
    // After the head, frames are read only as far as the body is wanted.
    let server = start_http3("location / { proxy_pass http://127.0.0.1:1; }");
    for (name, bytes, code) in [
        ("DATA behind trailers", [&head[..], &trailers, &frame(0, b"x")].concat(), 0x105),
        ("HEADERS behind trailers", [&head[..], &trailers, &trailers].concat(), 0x105),
        ("SETTINGS behind the head", [&head[..], &frame(4, b"")].concat(), 0x105),
    ] {
        let mut udp = server.raw();
        send_bidi(&mut udp, &bytes, false);
        assert_eq!(code_of(&mut udp), code, "{name}");
    }
}

#[test]
fn incomplete_request_is_reset() {
    let server = start_http3("");
    let mut udp = server.raw();
    let stream = send_bidi(&mut udp, b"", true);
    let end = udp.until(|client| client.ended.get(&stream).copied()).unwrap();
    assert_eq!(end, Some(0x10d));
    check(&server);
}

#[test]
fn reset_ends_a_request_that_waits_for_insertions() {
    let server = start_http3("");
    let mut udp = server.raw();
    // A reference to the first entry, which is never inserted.
    let stream = send_bidi(&mut udp, &frame(1, &[2, 0, 0x80]), false);
    // The response shows that the blocked request was read.
    let request = send_bidi(&mut udp, &headers(&GET), true);
    udp.until(|client| client.ended.get(&request).copied()).unwrap();
    udp.client.reset(stream, 0x10c);
    let end = udp.until(|client| client.ended.get(&stream).copied()).unwrap();
    assert_eq!(end, Some(0x10c));
    // RFC 9204 section 2.2.2.2
    let is_canceled =
        |client: &mut QuicClient| client.received.values().any(|bytes| bytes == &[3, 0x40]).then_some(());
    udp.until(is_canceled).unwrap();
}

#[test]
fn malformed_requests_are_answered_with_400() {
    let server = start_http3("");
    let with = |field: (&'static str, &'static str)| [&GET[..], &[field]].concat();
    for fields in [
        vec![(":method", "GET"), (":scheme", "https"), (":authority", "localhost")],
        vec![(":method", "GET"), (":path", "/a.txt"), (":authority", "localhost")],
        vec![(":scheme", "https"), (":path", "/a.txt"), (":authority", "localhost")],
        vec![(":method", "GET"), (":scheme", "https"), (":path", "/a.txt")],
        with((":path", "/b")),
        with((":unknown", "x")),
        with((":status", "200")),
        with(("connection", "close")),
        with(("transfer-encoding", "chunked")),
        with(("te", "gzip")),
        with(("x y", "z")),
        with(("x", "a\rb")),
        with(("host", "other")),
        [&[("x", "y")][..], &GET].concat(),
    ] {
        let mut client = server.client();
        let id = client.begin_with(&fields, true);
        assert_eq!(client.finish(id).unwrap().status, 400, "{fields:?}");
        assert_eq!(client.get("/a.txt").status, 200);
    }
}

#[test]
fn reserved_streams_frames_and_settings_are_ignored() {
    let server = start_http3("");
    let mut udp = server.raw();
    send_uni(&mut udp, &[0, 4, 2, 0x21, 7, 0x21, 3, 1, 2, 3]);
    let grease = send_uni(&mut udp, &[0x40, 0x40, b'x']);
    let request = [frame(0x21, b"grease"), headers(&GET), frame(0x3f, b"")].concat();
    let stream = send_bidi(&mut udp, &request, true);
    udp.until(|client: &mut QuicClient| client.ended.get(&stream).copied()).unwrap();
    assert!(udp.client.received[&stream].ends_with(b"hello"));
    let stopped = udp.until(|client| client.stopped.get(&grease).copied()).unwrap();
    assert_eq!(stopped, 0x103, "an unknown stream is not read");
}

#[test]
fn dynamic_table_of_clients_is_used() {
    let server = start_http3("location /dyn { return 200 $http_x_long; }");
    let mut udp = server.raw();
    // The head comes before the insertions that it needs: `:path: /dyn` and `x-long: value`.
    let head = frame(
        1,
        &[3, 0, 0xd1, 0xd7, 0x50, 9, b'l', b'o', b'c', b'a', b'l', b'h', b'o', b's', b't', 0x81, 0x80],
    );
    let stream = send_bidi(&mut udp, &head, true);
    let encoder = send_uni(&mut udp, &[2, 0x3f, 0xe1, 0x1f, 0xc1, 4, b'/', b'd', b'y', b'n']);
    send_on(&mut udp, encoder, b"\x46x-long\x05value", false);
    udp.until(|client: &mut QuicClient| client.ended.get(&stream).copied()).unwrap();
    assert!(udp.client.received[&stream].ends_with(b"value"));
    // Type of the decoder stream, increments, and the acknowledgement of the section.
    let is_decoder = |bytes: &Vec<u8>| bytes.first() == Some(&3) && bytes.contains(&0x80);
    udp.until(|client| client.received.values().any(is_decoder).then_some(())).unwrap();
}
