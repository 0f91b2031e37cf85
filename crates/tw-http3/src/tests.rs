//! Both ends of a connection speak with each other, or a peer breaks a rule.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use tw_fields::encode_section;

use crate::config::{
    BLOCKED_BYTES_MAX, BLOCKED_STREAMS_MAX, CONTROL_FRAME_MAX, ERRORS_MAX, PRIORITY_MAX, RESETS_UNSEEN_MAX,
    UNKNOWN_STREAMS_MAX,
};
use crate::frame::{Head, kind};
use crate::{
    Config, Connection, ConnectionError, ErrorCode, Event, FIELD_CODING, FieldSection, Incoming, LocalStream,
    MalformedReason, Pseudo, Signal, Stream, StreamError,
};

const CONFIG: Config = Config { list_max: 4096 };

/// Streams of a client: control, QPACK encoder, QPACK decoder, another one.
const CONTROL: u64 = 2;
const ENCODER: u64 = 6;
const DECODER: u64 = 10;
const OTHER: u64 = 14;

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|digit| !digit.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    Head { kind, len: payload.len() as u64 }.put(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

/// A frame whose payload is one integer.
fn number(kind: u64, value: u64) -> Vec<u8> {
    crate::frame::number(kind, value)
}

fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    encode_section(
        &FIELD_CODING,
        |writer| fields.iter().for_each(|(name, value)| writer.push(name.as_bytes(), value.as_bytes())),
        |section| frame(kind::HEADERS, section),
    )
}

const GET: &[(&str, &str)] =
    &[(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/x")];

fn post(more: &[(&str, &str)]) -> Vec<u8> {
    headers(&[&[(":method", "POST")], &GET[1..], more].concat())
}

fn receive(connection: &Connection, stream: u64, bytes: &[u8], fin: bool) -> Result<(), ConnectionError> {
    connection.receive(stream, Bytes::copy_from_slice(bytes), fin)
}

/// A server that has got the settings of its client.
fn server() -> Connection {
    let server = Connection::server(CONFIG);
    receive(&server, CONTROL, &[0, 4, 0], false).unwrap();
    server
}

fn next_request(connection: &Connection) -> Option<(Stream, FieldSection)> {
    match connection.next()? {
        Event::Request(stream, list) => Some((stream, list)),
        _ => None,
    }
}

fn said(connection: &Connection, stream: LocalStream) -> Vec<u8> {
    let mut said = Vec::new();
    while connection.out_len(stream) > 0 {
        connection.write(stream, |bytes| {
            said.extend_from_slice(bytes);
            bytes.len()
        });
    }
    said
}

fn signals(connection: &Connection) -> Vec<Signal> {
    std::iter::from_fn(|| connection.next_signal()).collect()
}

/// All bytes that a stream has to send, and its end.
fn output(stream: &Stream) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    while let Some(part) = stream.output() {
        bytes.extend_from_slice(&part);
        stream.consume(part.len());
    }
    (bytes, stream.is_finished())
}

/// Everything that has come of a message, in short: names of heads and trailers, bytes of data.
fn message(stream: &Stream) -> (Vec<String>, Poll<Result<(), StreamError>>) {
    let mut parts = Vec::<String>::new();
    let mut data = Vec::new();
    let end = loop {
        let part = stream.poll_incoming(&cx());
        if !matches!(part, Poll::Ready(Ok(Some(Incoming::Data(_))))) && !data.is_empty() {
            parts.push(String::from_utf8(std::mem::take(&mut data)).unwrap());
        }
        match part {
            Poll::Ready(Ok(Some(Incoming::Data(bytes)))) => data.extend_from_slice(&bytes),
            Poll::Ready(Ok(Some(Incoming::Head(list)))) => parts.push(list.status().to_string()),
            Poll::Ready(Ok(Some(Incoming::Trailers(list)))) => {
                let names = list.iter().map(|(name, _)| String::from_utf8(name.to_vec()).unwrap());
                parts.push(names.collect::<Vec<_>>().join(","));
            }
            Poll::Ready(Ok(None)) => break Poll::Ready(Ok(())),
            Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
            Poll::Pending => break Poll::Pending,
        }
    };
    (parts, end)
}

fn code<T>(result: Result<T, ConnectionError>) -> Option<ErrorCode> {
    match result {
        Err(ConnectionError::Local(code, words)) => {
            assert!(!words.is_empty());
            Some(code)
        }
        _ => None,
    }
}

#[test]
fn connection_begins_with_settings() {
    let server = Connection::server(CONFIG);
    let client = Connection::client(CONFIG);
    let settings = said(&server, LocalStream::Control);
    assert_eq!(settings, hex("00 04 0a 015000 0710 065000 0801"));
    assert_eq!(said(&client, LocalStream::Control), hex("00 04 08 015000 0710 065000"));
    assert!(said(&server, LocalStream::QpackDecoder).is_empty());
    assert!(!client.has_connect_protocol());
    receive(&client, 3, &settings, false).unwrap();
    assert_eq!((client.has_connect_protocol(), client.peer_list_max()), (true, Some(4096)));
}

#[test]
fn request_and_response_pass_in_any_split() {
    for size in [1, 2, 3, 7, 100, usize::MAX] {
        let server = server();
        let client = Connection::client(CONFIG);
        receive(&client, 3, &said(&server, LocalStream::Control), false).unwrap();
        let write = |fields: &mut tw_fields::FieldWriter<'_>| {
            [(":method", "POST")].iter().chain(&GET[1..]).chain(&[("x-a", "b")]).for_each(|(name, value)| {
                fields.push(name.as_bytes(), value.as_bytes());
            });
        };
        let request = client.send_request(0, write, false).unwrap();
        request.send_data(Bytes::from_static(b"hello "), false).unwrap();
        request.send_data(Bytes::from_static(b"world"), false).unwrap();
        request.send_head(|fields| fields.push(b"x-t", b"1"), true).unwrap();
        let (bytes, is_finished) = output(&request);
        assert!(is_finished);
        let mut served = None;
        let pieces = bytes.chunks(size.min(bytes.len()));
        let count = pieces.len();
        for (at, piece) in pieces.enumerate() {
            receive(&server, 0, piece, at + 1 == count).unwrap();
            served = served.or_else(|| next_request(&server));
        }
        let (stream, list) = served.unwrap();
        assert_eq!((stream.id(), list.malformed(), list.ends()), (0, None, false));
        assert_eq!(list.pseudo(Pseudo::Path), Some(&b"/x"[..]));
        assert_eq!(list.iter().collect::<Vec<_>>(), [(&b"x-a"[..], &b"b"[..])]);
        let expected = vec!["hello world".to_string(), "x-t".to_string()];
        assert_eq!(message(&stream), (expected, Poll::Ready(Ok(()))), "in pieces of {size}");
        assert!(!stream.is_malformed() && stream.has_ended());

        stream.send_head(|fields| fields.status(103), false).unwrap();
        stream.send_head(|fields| fields.status(200), false).unwrap();
        stream.send_data(Bytes::from(vec![b'x'; 5000]), true).unwrap();
        let (bytes, is_finished) = output(&stream);
        assert!(is_finished);
        let pieces = bytes.chunks(size.min(bytes.len()));
        let count = pieces.len();
        for (at, piece) in pieces.enumerate() {
            receive(&client, 0, piece, at + 1 == count).unwrap();
        }
        let expected = vec!["103".to_string(), "200".to_string(), "x".repeat(5000)];
        assert_eq!(message(&request), (expected, Poll::Ready(Ok(()))));
        assert_eq!((server.streams(), client.streams()), (0, 0));
        drop((stream, request));
        assert_eq!((signals(&server), signals(&client)), (vec![], vec![]));
    }
}

#[test]
fn end_of_stream_behind_the_head_ends_the_request() {
    let server = server();
    receive(&server, 0, &headers(GET), true).unwrap();
    receive(&server, 4, &headers(GET), false).unwrap();
    receive(&server, 4, &[], true).unwrap();
    receive(&server, 8, &headers(GET), false).unwrap();
    receive(&server, 12, &[headers(GET), frame(0x21, b"grease")].concat(), true).unwrap();
    for (id, ends) in [(0, true), (4, true), (8, false), (12, false)] {
        let (stream, list) = next_request(&server).unwrap();
        assert_eq!((stream.id(), list.ends()), (id, ends));
        assert_eq!(stream.has_ended(), ends);
        assert_eq!(stream.wants_bytes(), id == 8);
        if id == 12 {
            assert_eq!(message(&stream), (vec![], Poll::Ready(Ok(()))));
        }
    }
}

#[test]
fn reserved_frames_and_streams_are_ignored() {
    let server = Connection::server(CONFIG);
    let grease = frame(0x1f * 1000 + 0x21, &[0xaa; 300]);
    // A stream may end before its type.
    receive(&server, OTHER, &[], true).unwrap();
    receive(&server, OTHER + 4, &[0x40], false).unwrap();
    receive(&server, OTHER + 4, &[0x21, 1, 2, 3], false).unwrap();
    receive(&server, OTHER + 4, &[0; 1000], true).unwrap();
    assert_eq!(
        signals(&server),
        [Signal::StopSending { stream: OTHER + 4, code: ErrorCode::STREAM_CREATION_ERROR }]
    );
    receive(
        &server,
        CONTROL,
        &[&[0][..], &frame(4, &hex("21 07 40ff 01")), &grease, &grease].concat(),
        false,
    )
    .unwrap();
    let request =
        [&grease[..], &headers(GET), &grease, &frame(0, b"a"), &grease, &frame(0, b"b"), &grease].concat();
    receive(&server, 0, &request, true).unwrap();
    let (stream, _) = next_request(&server).unwrap();
    assert_eq!(message(&stream), (vec!["ab".to_string()], Poll::Ready(Ok(()))));
}

#[test]
fn frames_on_request_streams_that_break_a_rule() {
    let head = headers(GET);
    let trailers = headers(&[("x", "y")]);
    for (bytes, fin, expected) in [
        (frame(kind::DATA, b"x"), false, ErrorCode::FRAME_UNEXPECTED),
        ([&head[..], &trailers, &frame(kind::DATA, b"x")].concat(), false, ErrorCode::FRAME_UNEXPECTED),
        ([&head[..], &trailers, &trailers].concat(), false, ErrorCode::FRAME_UNEXPECTED),
        (frame(kind::SETTINGS, b""), false, ErrorCode::FRAME_UNEXPECTED),
        (number(kind::GOAWAY, 0), false, ErrorCode::FRAME_UNEXPECTED),
        (number(kind::MAX_PUSH_ID, 0), false, ErrorCode::FRAME_UNEXPECTED),
        (number(kind::CANCEL_PUSH, 0), false, ErrorCode::FRAME_UNEXPECTED),
        (number(kind::PUSH_PROMISE, 0), false, ErrorCode::FRAME_UNEXPECTED),
        (number(kind::PRIORITY_UPDATE, 0), false, ErrorCode::FRAME_UNEXPECTED),
        (frame(2, b"xxxxx"), false, ErrorCode::FRAME_UNEXPECTED),
        (frame(6, b"12345678"), false, ErrorCode::FRAME_UNEXPECTED),
        (frame(8, b"1234"), false, ErrorCode::FRAME_UNEXPECTED),
        (frame(9, b""), false, ErrorCode::FRAME_UNEXPECTED),
        ([&head[..], &frame(kind::SETTINGS, b"")].concat(), false, ErrorCode::FRAME_UNEXPECTED),
        (head[..head.len() - 1].to_vec(), true, ErrorCode::FRAME_ERROR),
        ([&head[..], &frame(kind::DATA, b"xyz")[..3]].concat(), true, ErrorCode::FRAME_ERROR),
        ([&head[..], &[0x40]].concat(), true, ErrorCode::FRAME_ERROR),
        (frame(kind::HEADERS, b""), false, ErrorCode::QPACK_DECOMPRESSION_FAILED),
        (frame(kind::HEADERS, &hex("0000 80")), false, ErrorCode::QPACK_DECOMPRESSION_FAILED),
        (frame(kind::HEADERS, &hex("ff7f 00")), false, ErrorCode::QPACK_DECOMPRESSION_FAILED),
    ] {
        let server = server();
        let received = receive(&server, 0, &bytes, fin);
        let stream = next_request(&server);
        if let Some((stream, _)) = &stream {
            while let Poll::Ready(Ok(Some(_))) = stream.poll_incoming(&cx()) {}
        }
        let error = received.and(server.error().map_or(Ok(()), Err));
        assert_eq!(code(error), Some(expected), "{bytes:x?}");
        assert_eq!(server.streams(), 0);
        assert!(receive(&server, 4, &headers(GET), true).is_err(), "nothing is served any more");
    }
}

#[test]
fn streams_without_a_request_are_reset() {
    for bytes in [vec![], frame(0x21, b"grease")] {
        let server = server();
        receive(&server, 0, &bytes, true).unwrap();
        assert!(server.next().is_none());
        let code = ErrorCode::REQUEST_INCOMPLETE;
        assert_eq!(signals(&server), [Signal::Reset { stream: 0, code }]);
        assert_eq!(server.streams(), 0);
    }
    let server = server();
    let broken = (0..200).map(|stream| receive(&server, 4 * stream, b"", true)).position(|end| end.is_err());
    assert_eq!(broken, Some(ERRORS_MAX));
    assert!(matches!(server.error(), Some(ConnectionError::Local(ErrorCode::EXCESSIVE_LOAD, _))));
}

#[test]
fn control_streams_that_break_a_rule() {
    let settings = frame(kind::SETTINGS, b"");
    let after = |frame: Vec<u8>| [&settings[..], &frame].concat();
    for (bytes, expected) in [
        (number(kind::GOAWAY, 0), ErrorCode::MISSING_SETTINGS),
        (frame(0x21, b""), ErrorCode::MISSING_SETTINGS),
        (after(settings.clone()), ErrorCode::FRAME_UNEXPECTED),
        (after(frame(kind::DATA, b"")), ErrorCode::FRAME_UNEXPECTED),
        (after(headers(GET)), ErrorCode::FRAME_UNEXPECTED),
        (after(number(kind::PUSH_PROMISE, 0)), ErrorCode::FRAME_UNEXPECTED),
        (after(frame(6, b"12345678")), ErrorCode::FRAME_UNEXPECTED),
        (frame(kind::SETTINGS, &[2, 0]), ErrorCode::SETTINGS_ERROR),
        (frame(kind::SETTINGS, &[6, 1, 6, 1]), ErrorCode::SETTINGS_ERROR),
        (frame(kind::SETTINGS, &[6]), ErrorCode::FRAME_ERROR),
        (after(frame(kind::GOAWAY, b"")), ErrorCode::FRAME_ERROR),
        (after(frame(kind::GOAWAY, &[0, 0])), ErrorCode::FRAME_ERROR),
        (after(frame(kind::MAX_PUSH_ID, &[0x40])), ErrorCode::FRAME_ERROR),
        (after([number(kind::GOAWAY, 4), number(kind::GOAWAY, 5)].concat()), ErrorCode::ID_ERROR),
        (after([number(kind::MAX_PUSH_ID, 4), number(kind::MAX_PUSH_ID, 3)].concat()), ErrorCode::ID_ERROR),
        (after(number(kind::CANCEL_PUSH, 0)), ErrorCode::ID_ERROR),
        (after(frame(kind::PRIORITY_UPDATE, &[2, b'i'])), ErrorCode::ID_ERROR),
        (after(frame(kind::PRIORITY_UPDATE_PUSH, &[0, b'i'])), ErrorCode::ID_ERROR),
        (after(frame(kind::GOAWAY, &[0; CONTROL_FRAME_MAX as usize + 1])), ErrorCode::EXCESSIVE_LOAD),
    ] {
        for size in [1, usize::MAX] {
            let server = Connection::server(CONFIG);
            receive(&server, CONTROL, &[0], false).unwrap();
            let mut pieces = bytes.chunks(size.min(bytes.len()));
            let received = pieces.try_for_each(|piece| receive(&server, CONTROL, piece, false));
            assert_eq!(code(received), Some(expected), "{bytes:x?}");
        }
    }
}

#[test]
fn clients_do_not_accept_frames_of_clients() {
    let settings = frame(kind::SETTINGS, b"");
    for (bytes, expected) in [
        (number(kind::MAX_PUSH_ID, 0), ErrorCode::FRAME_UNEXPECTED),
        (frame(kind::PRIORITY_UPDATE, &[0, b'i']), ErrorCode::FRAME_UNEXPECTED),
        (number(kind::GOAWAY, 2), ErrorCode::ID_ERROR),
        ([number(kind::GOAWAY, 8), number(kind::GOAWAY, 12)].concat(), ErrorCode::ID_ERROR),
    ] {
        let client = Connection::client(CONFIG);
        let received = receive(&client, 3, &[&[0][..], &settings, &bytes].concat(), false);
        assert_eq!(code(received), Some(expected), "{bytes:x?}");
    }
    let client = Connection::client(CONFIG);
    assert_eq!(code(receive(&client, 1, b"x", false)), Some(ErrorCode::STREAM_CREATION_ERROR));
    let client = Connection::client(CONFIG);
    assert_eq!(code(receive(&client, 3, &[1, 0], false)), Some(ErrorCode::ID_ERROR), "a push stream");
    let client = Connection::client(CONFIG);
    let request = client.send_request(0, |fields| fields.push(b":method", b"GET"), true).unwrap();
    receive(&client, 0, &number(kind::PUSH_PROMISE, 0), false).unwrap();
    assert!(matches!(
        request.poll_incoming(&cx()),
        Poll::Ready(Err(StreamError::Connection(ConnectionError::Local(ErrorCode::ID_ERROR, _))))
    ));
}

#[test]
fn critical_streams_are_opened_once_and_never_closed() {
    for which in [0, 2, 3] {
        let server = Connection::server(CONFIG);
        receive(&server, CONTROL, &[which], false).unwrap();
        let second = receive(&server, ENCODER, &[which], false);
        assert_eq!(code(second), Some(ErrorCode::STREAM_CREATION_ERROR), "{which}");

        let server = Connection::server(CONFIG);
        receive(&server, CONTROL, &[which], false).unwrap();
        assert_eq!(code(receive(&server, CONTROL, &[], true)), Some(ErrorCode::CLOSED_CRITICAL_STREAM));

        let server = Connection::server(CONFIG);
        receive(&server, CONTROL, &[which], false).unwrap();
        let reset = server.receive_reset(CONTROL, ErrorCode::NO_ERROR);
        assert_eq!(code(reset), Some(ErrorCode::CLOSED_CRITICAL_STREAM));
    }
    let server = server();
    assert_eq!(code(server.local_stream_stopped()), Some(ErrorCode::CLOSED_CRITICAL_STREAM));
    let server = Connection::server(CONFIG);
    assert_eq!(code(receive(&server, OTHER, &[1], false)), Some(ErrorCode::STREAM_CREATION_ERROR));
}

#[test]
fn unknown_streams_have_a_limit() {
    let server = server();
    let broken = (4..).position(|stream| receive(&server, 4 * stream + 2, &[0x21], true).is_err());
    assert_eq!(broken, Some(UNKNOWN_STREAMS_MAX));
    assert!(matches!(server.error(), Some(ConnectionError::Local(ErrorCode::EXCESSIVE_LOAD, _))));
}

#[test]
fn qpack_streams_that_break_a_rule() {
    for (stream, bytes, expected) in [
        (ENCODER, hex("02 3fe21f"), ErrorCode::QPACK_ENCODER_STREAM_ERROR),
        (ENCODER, hex("02 00"), ErrorCode::QPACK_ENCODER_STREAM_ERROR),
        (DECODER, hex("03 80"), ErrorCode::QPACK_DECODER_STREAM_ERROR),
        (DECODER, hex("03 01"), ErrorCode::QPACK_DECODER_STREAM_ERROR),
    ] {
        assert_eq!(code(receive(&server(), stream, &bytes, false)), Some(expected), "{bytes:x?}");
    }
    receive(&server(), DECODER, &hex("03 40 7f00"), false).unwrap();
}

/// Fields of a request, with a path that the first insertion of [`INSERTIONS`] has.
fn blocked_request() -> Vec<u8> {
    // :method GET, :scheme https, :authority "a", and the entry 0.
    frame(kind::HEADERS, &hex("0200 d1 d7 50 0161 80"))
}

/// The type of the stream, a capacity, and `:path: /dyn`.
const INSERTIONS: &str = "02 3fe11f c104 2f64 796e";

#[test]
fn blocked_sections_wait_for_insertions() {
    for size in [1, 3, usize::MAX] {
        let server = server();
        receive(&server, 0, &blocked_request(), true).unwrap();
        assert!(server.next().is_none() && !server.wants_bytes(0) && server.wants_bytes(4));
        let insertions = hex(INSERTIONS);
        for piece in insertions.chunks(size.min(insertions.len())) {
            receive(&server, ENCODER, piece, false).unwrap();
        }
        let (stream, list) = next_request(&server).unwrap();
        assert_eq!(
            (list.pseudo(Pseudo::Path), list.ends(), list.malformed()),
            (Some(&b"/dyn"[..]), true, None)
        );
        assert_eq!(stream.id(), 0);
        // Type of the stream; acknowledgement of the section and one insertion, in any order.
        let mut acknowledgements = said(&server, LocalStream::QpackDecoder);
        acknowledgements[1..].sort_unstable();
        assert_eq!(acknowledgements, hex("03 01 80"));
    }
}

#[test]
fn blocked_trailers_wait_for_insertions() {
    let server = server();
    receive(&server, 0, &[post(&[]), frame(0, b"abc"), frame(kind::HEADERS, &hex("0200 80"))].concat(), true)
        .unwrap();
    let (stream, _) = next_request(&server).unwrap();
    let calls = Arc::new(Calls::default());
    let waker = Waker::from(calls.clone());
    assert_eq!(message(&stream), (vec!["abc".to_string()], Poll::Pending));
    assert!(!stream.wants_bytes() && !stream.has_ended());
    assert!(stream.poll_incoming(&Context::from_waker(&waker)).is_pending());
    receive(&server, ENCODER, &hex("02 3fe11f 4178 0179"), false).unwrap();
    assert_eq!(calls.0.load(Ordering::Relaxed), 1);
    assert_eq!(message(&stream), (vec!["x".to_string()], Poll::Ready(Ok(()))));
}

#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn blocked_streams_have_a_limit() {
    let server = server();
    let broken = (0..).position(|stream| receive(&server, 4 * stream, &blocked_request(), true).is_err());
    assert_eq!(broken, Some(BLOCKED_STREAMS_MAX));
    let expected = Some(ErrorCode::QPACK_DECOMPRESSION_FAILED);
    assert_eq!(code(server.error().map_or(Ok(()), Err)), expected);
}

#[test]
fn blocked_bytes_have_a_limit() {
    let server = server();
    let section = [hex("0200"), vec![0xd1; 15_000]].concat();
    let broken =
        (0..).position(|stream| receive(&server, 4 * stream, &frame(kind::HEADERS, &section), true).is_err());
    assert_eq!(broken, Some(BLOCKED_BYTES_MAX / section.len()));
    assert_eq!(code(server.error().map_or(Ok(()), Err)), Some(ErrorCode::EXCESSIVE_LOAD));
}

#[test]
fn reset_streams_are_no_longer_blocked() {
    let server = server();
    receive(&server, ENCODER, &hex("02 3fe11f 4178 0179"), false).unwrap();
    for stream in 0..3 * BLOCKED_STREAMS_MAX as u64 {
        receive(&server, 4 * stream, &frame(kind::HEADERS, &hex("0500 80")), false).unwrap();
        server.receive_reset(4 * stream, ErrorCode::REQUEST_CANCELLED).unwrap();
    }
    let said = said(&server, LocalStream::QpackDecoder);
    assert_eq!(said[..4], [3, 1, 0x40, 0x44], "streams are cancelled");
}

#[test]
fn stream_that_is_not_read_to_its_end_is_canceled_for_qpack() {
    let server = server();
    receive(&server, 0, &post(&[]), false).unwrap();
    let (stream, _) = next_request(&server).unwrap();
    stream.send_head(|fields| fields.status(200), true).unwrap();
    output(&stream);
    drop(stream);
    receive(&server, 4, &headers(GET), true).unwrap();
    let (stream, _) = next_request(&server).unwrap();
    stream.send_head(|fields| fields.status(200), true).unwrap();
    output(&stream);
    drop(stream);
    assert_eq!(said(&server, LocalStream::QpackDecoder), [3, 0x40], "only the first one");
}

#[test]
fn section_of_table_references_is_cut_at_the_limit() {
    let server = server();
    // An entry of 2,000 bytes, to which one octet each refers.
    let mut insertions = hex("02 3fe11f 4178 7fd10e");
    insertions.extend_from_slice(&[b'y'; 2000]);
    receive(&server, ENCODER, &insertions, false).unwrap();
    let section = [hex("0200"), vec![0x80; 16_000]].concat();
    receive(&server, 0, &frame(kind::HEADERS, &section), true).unwrap();
    let (_, list) = next_request(&server).unwrap();
    assert!(list.is_truncated());
    assert_eq!(list.iter().count(), 2, "as many as fit into 4,096 bytes");
}

#[test]
fn oversized_section_costs_its_request_only() {
    let server = server();
    let size = 4 * CONFIG.list_max as usize + 1;
    for piece in frame(kind::HEADERS, &vec![0; size]).chunks(1000) {
        receive(&server, 0, piece, false).unwrap();
    }
    let (stream, list) = next_request(&server).unwrap();
    assert_eq!((list.is_truncated(), list.block_len(), list.iter().count()), (true, size, 0));
    assert!(stream.wants_bytes());
    receive(&server, 4, &headers(GET), true).unwrap();
    assert!(next_request(&server).is_some());
}

#[test]
fn malformed_requests_are_events() {
    for (fields, malformed) in [
        (&[(":method", "GET")][..], MalformedReason::NoPseudo(Pseudo::Scheme)),
        (&[(":status", "200")], MalformedReason::UnknownPseudo),
        (&[(":method", "GET"), (":method", "GET")], MalformedReason::PseudoTwice(Pseudo::Method)),
        (&[(":method", "CONNECT")], MalformedReason::NoPseudo(Pseudo::Authority)),
        (&[("x", "y"), (":method", "GET")], MalformedReason::PseudoBehind),
    ] {
        let server = server();
        receive(&server, 0, &headers(fields), true).unwrap();
        let (stream, list) = next_request(&server).unwrap();
        assert_eq!((list.malformed(), stream.is_malformed()), (Some(malformed), true));
        stream.send_head(|fields| fields.status(400), true).unwrap();
        assert!(output(&stream).1);
        drop(stream);
        assert_eq!(signals(&server), [], "the response is not taken back");
    }
    let names = [("connection", "close"), ("te", "gzip"), ("X-Capital", "1"), ("x y", "")];
    for field in names {
        let server = server();
        let mut list = GET.to_vec();
        list.push(field);
        // Names are written in lower case: the capital is put in later.
        let mut bytes = headers(&list);
        if field.0 == "X-Capital" {
            let section = [&hex("0000 d1 d7 50 0161 c1")[..], b"\x27\x02X-Capital\x011"].concat();
            bytes = frame(kind::HEADERS, &section);
        }
        receive(&server, 0, &bytes, true).unwrap();
        assert!(next_request(&server).unwrap().1.malformed().is_some(), "{field:?}");
    }
}

#[test]
fn content_of_another_length_is_malformed() {
    for (length, content, is_malformed) in
        [("3", &b"abc"[..], false), ("2", b"abc", true), ("4", b"abc", true), ("0", b"", false)]
    {
        let server = server();
        receive(&server, 0, &post(&[("content-length", length)]), false).unwrap();
        let (stream, _) = next_request(&server).unwrap();
        receive(&server, 0, &frame(kind::DATA, content), true).unwrap();
        assert!(message(&stream).1.is_ready());
        assert_eq!(stream.is_malformed(), is_malformed, "{length}");
    }
    let server = server();
    receive(&server, 0, &[post(&[]), headers(&[(":status", "200")])].concat(), true).unwrap();
    let (stream, _) = next_request(&server).unwrap();
    let _ = message(&stream);
    assert!(stream.is_malformed(), "trailers with a pseudo-field");
}

#[test]
fn canceled_requests_are_counted() {
    let server = server();
    receive(&server, 0, &headers(GET), false).unwrap();
    server.receive_reset(0, ErrorCode::REQUEST_CANCELLED).unwrap();
    assert!(matches!(server.next(), Some(Event::RequestCanceled)));
    assert_eq!(signals(&server), [Signal::Reset { stream: 0, code: ErrorCode::REQUEST_CANCELLED }]);
    let broken = (1..).position(|stream| {
        receive(&server, 4 * stream, &headers(GET), false).unwrap();
        server.receive_reset(4 * stream, ErrorCode::REQUEST_CANCELLED).is_err()
    });
    assert_eq!(broken, Some(RESETS_UNSEEN_MAX - 1));
}

#[test]
fn stream_without_a_head_is_canceled() {
    let server = server();
    receive(&server, 0, &headers(GET)[..5], false).unwrap();
    for stream in [0, 4] {
        // No bytes of the second request have arrived.
        server.receive_reset(stream, ErrorCode::REQUEST_CANCELLED).unwrap();
        assert_eq!(signals(&server), [Signal::Reset { stream, code: ErrorCode::REQUEST_CANCELLED }]);
        assert!(matches!(server.next(), Some(Event::RequestCanceled)));
    }
    assert_eq!(server.streams(), 0);
    assert_eq!(said(&server, LocalStream::QpackDecoder), [3, 0x40, 0x44]);
}

#[test]
fn reset_and_stop_end_a_stream() {
    for has_stopped in [false, true] {
        let server = server();
        receive(&server, 0, &post(&[]), false).unwrap();
        let (stream, _) = next_request(&server).unwrap();
        stream.send_head(|fields| fields.status(200), false).unwrap();
        assert!(stream.poll_error(&cx()).is_pending());
        let code = ErrorCode::REQUEST_CANCELLED;
        if has_stopped {
            server.receive_stop_sending(0, code).unwrap();
        } else {
            server.receive_reset(0, code).unwrap();
        }
        assert_eq!(stream.poll_error(&cx()), Poll::Ready(StreamError::Reset(code)));
        assert!(stream.send_data(Bytes::from_static(b"x"), true).is_err());
        assert_eq!(stream.output(), None);
        let mut expected = vec![Signal::Reset { stream: 0, code }];
        if has_stopped {
            expected.push(Signal::StopSending { stream: 0, code });
        }
        assert_eq!(signals(&server), expected);
        drop(stream);
        assert_eq!(signals(&server), []);
    }
}

#[test]
fn dropped_streams_are_reset() {
    // A response that is complete, while the request is not; then one that is not complete.
    for (is_complete, expected) in [
        (true, vec![Signal::StopSending { stream: 0, code: ErrorCode::NO_ERROR }]),
        (
            false,
            vec![
                Signal::Reset { stream: 0, code: ErrorCode::REQUEST_CANCELLED },
                Signal::StopSending { stream: 0, code: ErrorCode::REQUEST_CANCELLED },
            ],
        ),
    ] {
        let server = server();
        receive(&server, 0, &post(&[]), false).unwrap();
        let (stream, _) = next_request(&server).unwrap();
        stream.send_head(|fields| fields.status(200), is_complete).unwrap();
        output(&stream);
        drop(stream);
        assert_eq!(signals(&server), expected);
        assert_eq!(server.streams(), 0);
    }
}

#[test]
fn goaway_lets_requests_in_transit_arrive() {
    let server = server();
    said(&server, LocalStream::Control);
    receive(&server, 0, &headers(GET), true).unwrap();
    server.send_goaway();
    server.send_goaway();
    assert_eq!(said(&server, LocalStream::Control), hex("07 08 fffffffffffffffc"));
    receive(&server, 4, &headers(GET), true).unwrap();
    server.settle_goaway();
    assert_eq!(said(&server, LocalStream::Control), hex("07 01 08"));
    receive(&server, 8, &headers(GET), true).unwrap();
    let code = ErrorCode::REQUEST_REJECTED;
    assert_eq!(
        signals(&server),
        [Signal::StopSending { stream: 8, code }, Signal::Reset { stream: 8, code }]
    );
    let streams: Vec<_> = std::iter::from_fn(|| next_request(&server)).map(|(stream, _)| stream).collect();
    assert_eq!(streams.len(), 2);
    assert!(!server.is_open() && !server.is_over());
    drop(streams);
    assert!(server.is_over());
}

#[test]
fn goaway_refuses_later_requests_of_a_client() {
    let client = Connection::client(CONFIG);
    receive(&client, 3, &[0, 4, 0], false).unwrap();
    let requests: Vec<_> = [0, 4, 8]
        .iter()
        .map(|id| client.send_request(*id, |fields| fields.push(b":method", b"GET"), true).unwrap())
        .collect();
    receive(&client, 3, &number(kind::GOAWAY, 4), false).unwrap();
    assert!(requests[0].poll_error(&cx()).is_pending());
    for request in &requests[1..] {
        assert_eq!(request.poll_error(&cx()), Poll::Ready(StreamError::Refused));
    }
    assert!(client.send_request(12, |_| {}, true).is_err() && !client.is_over());
    receive(&client, 0, &headers(&[(":status", "200")]), true).unwrap();
    output(&requests[0]);
    assert_eq!(message(&requests[0]), (vec!["200".to_string()], Poll::Ready(Ok(()))));
    assert!(client.is_over());
}

#[test]
fn priorities_are_events() {
    let server = server();
    let update = |value: &[u8]| frame(kind::PRIORITY_UPDATE, &[&[0x44, 0][..], value].concat());
    receive(&server, CONTROL, &update(b"u=1, i"), false).unwrap();
    receive(&server, CONTROL, &update(&[b' '; PRIORITY_MAX + 1]), false).unwrap();
    receive(&server, CONTROL, &update(b""), false).unwrap();
    for expected in [&b"u=1, i"[..], b""] {
        let Some(Event::Priority { stream, value }) = server.next() else { panic!("no priority") };
        assert_eq!((stream, &*value), (0x400, expected));
    }
    assert!(server.next().is_none());
}

#[test]
fn failed_connection_ends_its_streams() {
    let server = server();
    receive(&server, 0, &post(&[]), false).unwrap();
    let (stream, _) = next_request(&server).unwrap();
    let calls = Arc::new(Calls::default());
    let waker = Waker::from(calls.clone());
    server.set_driver(Some(&waker));
    assert!(stream.poll_error(&Context::from_waker(&waker)).is_pending());
    server.fail(ConnectionError::Peer(ErrorCode::NO_ERROR));
    assert_eq!(calls.0.load(Ordering::Relaxed), 1);
    let error = StreamError::Connection(ConnectionError::Peer(ErrorCode::NO_ERROR));
    assert_eq!(stream.poll_error(&cx()), Poll::Ready(error));
    assert!(server.is_over());
}

#[test]
fn driver_is_woken_by_streams() {
    let server = server();
    said(&server, LocalStream::Control);
    receive(&server, 0, &post(&[]), false).unwrap();
    let (stream, _) = next_request(&server).unwrap();
    let calls = Arc::new(Calls::default());
    let waker = Waker::from(calls.clone());
    server.set_driver(Some(&waker));
    stream.send_data(Bytes::from_static(b"x"), false).unwrap();
    assert_eq!(calls.0.load(Ordering::Relaxed), 0, "the stream's owner writes its bytes");
    stream.reset(ErrorCode::INTERNAL_ERROR);
    assert_eq!(calls.0.load(Ordering::Relaxed), 1);
    assert_eq!(signals(&server).len(), 2);
}

#[test]
fn integers_of_other_lengths_are_accepted() {
    let server = Connection::server(CONFIG);
    // Type, frame type and length take eight bytes each.
    let long = |value: u64| (value | 0xc0 << 56).to_be_bytes();
    receive(&server, CONTROL, &[long(0), long(4), long(0)].concat(), false).unwrap();
    let mut head = headers(GET);
    let section = head.split_off(2);
    receive(&server, 0, &[&long(1)[..], &long(section.len() as u64), &section].concat(), true).unwrap();
    assert!(next_request(&server).is_some());
}
