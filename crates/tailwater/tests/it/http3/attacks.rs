//! Clients that cost more than they are worth: each limit, and that neighbours do not notice.

use tw_testkit::quic::UdpClient;

use crate::support::http3::{Http3Server, closed, send_bidi, send_on, send_uni, start_http3};

/// `H3_EXCESSIVE_LOAD`
const EXCESSIVE_LOAD: u64 = 0x107;

fn code_of(udp: &mut UdpClient) -> u64 {
    udp.until(|client| closed(client)).unwrap()
}

fn check(server: &Http3Server, text: &str) {
    assert_eq!(server.client().get("/a.txt").text(), "hello");
    server.server.wait_error_log(text).unwrap();
}

#[test]
fn too_many_blocked_sections_end_the_connection() {
    let server = start_http3("");
    let mut udp = server.raw();
    for _ in 0..17 {
        // The section needs an insertion that never comes.
        send_bidi(&mut udp, &[1, 3, 2, 0, 0x80], true);
    }
    assert_eq!(code_of(&mut udp), 0x200);
    check(&server, "sent too many blocked header blocks");
}

#[test]
fn unknown_frames_without_end_are_a_flood() {
    let server = start_http3("");
    let mut udp = server.raw();
    let control = send_uni(&mut udp, &[0, 4, 0]);
    // One frame of 2^30 bytes of an unknown type.
    send_on(&mut udp, control, &[0x21, 0xc0, 0, 0, 0, 0x40, 0, 0, 0], false);
    let piece = vec![0; 64 << 10];
    while closed(&udp.client).is_none() {
        send_on(&mut udp, control, &piece, false);
    }
    assert_eq!(code_of(&mut udp), EXCESSIVE_LOAD);
    check(&server, "has flooded http3");
}

#[test]
fn endless_instruction_ends_the_connection() {
    let server = start_http3("");
    let mut udp = server.raw();
    // A name of 2^30 bytes.
    let encoder = send_uni(&mut udp, &[2, 0x3f, 0xe1, 0x1f, 0x5f, 0xe1, 0xff, 0xff, 0xff, 3]);
    send_on(&mut udp, encoder, &[b'a'; 20_000], false);
    assert_eq!(code_of(&mut udp), 0x201);
    check(&server, "sent too long instruction on qpack encoder stream");
}

#[test]
fn oversized_header_section_costs_its_request_only() {
    let server = start_http3("large_client_header_buffers 4 1k;");
    let mut client = server.client();
    let long = "x".repeat(3000);
    let response = client.request("GET", "/a.txt", &[("x-long", &long)], b"");
    assert_eq!(response.status, 400);
    let many: Vec<_> = (0..200).map(|n| (format!("x-{n}"), "y".repeat(60))).collect();
    let fields: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(client.request("GET", "/a.txt", &fields, b"").status, 400);
    assert_eq!(client.get("/a.txt").status, 200);
}

#[test]
fn table_references_do_not_multiply_memory() {
    let server = start_http3("");
    let mut udp = server.raw();
    // An entry of 2,000 bytes, and heads that repeat it 16,000 times.
    let mut insertion = vec![2, 0x3f, 0xe1, 0x1f, 0x41, b'x', 0x7f, 0xd1, 0x0e];
    insertion.extend_from_slice(&[b'y'; 2000]);
    send_uni(&mut udp, &insertion);
    let mut head = vec![1, 0x80, 0, 0x3e, 0x82, 2, 0];
    head.extend_from_slice(&vec![0x80; 16_000]);
    let stream = send_bidi(&mut udp, &head, true);
    udp.until(|client| client.ended.get(&stream).copied()).unwrap();
    // 400 as an index of the static table.
    let response = &udp.client.received[&stream];
    assert!(response[2..].starts_with(&[0, 0, 0xff, 4]), "{response:x?}");
    check(&server, "client sent too large request");
}

#[test]
fn requests_taken_back_at_once_end_the_connection() {
    let server = start_http3("location / { proxy_pass http://127.0.0.1:1; }");
    let mut client = server.client();
    let mut count = 0;
    let head = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", "/"),
        ("content-length", "5"),
    ];
    while let Some(id) = client.open() {
        client.begin_on(id, &head, false);
        client.cancel(id);
        count += 1;
        assert!(count < 5000);
    }
    assert_eq!(client.closed(), EXCESSIVE_LOAD);
    assert!(count < 1000);
    server.server.wait_error_log("took back").unwrap();
}

#[test]
fn head_that_never_ends_is_given_up() {
    let server = start_http3("client_header_timeout 1s;");
    let mut udp = server.raw();
    let stream = send_bidi(&mut udp, &[1, 30, 0], false);
    let end = udp.until(|client| client.ended.get(&stream).copied()).unwrap();
    assert_eq!(end, Some(0x10d));
    check(&server, "while reading client request headers");
}
