//! Both ends of a connection speak with each other, or somebody who knows no rules speaks with one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;

use crate::config::{ERRORS_MAX, RESETS_UNSEEN_MAX};
use crate::frame::{HEAD_SIZE, Head, PREFACE, flag, kind};
use crate::hpack::encode;
use crate::{
    Config, Connection, ConnectionError, ErrorCode, Event, FieldSection, Incoming, MalformedReason, Pseudo,
    Stream, StreamError,
};

const CONFIG: Config = Config {
    streams_max: 10,
    window: 65_536,
    connection_window: 1 << 20,
    list_max: 4096,
    out_max: usize::MAX,
};

/// Returns all bytes that one end has to send.
fn said(connection: &Connection) -> Vec<u8> {
    let mut said = Vec::new();
    while connection.out_len() > 0 {
        let write = |slices: &[std::io::IoSlice<'_>]| {
            let before = said.len();
            slices.iter().for_each(|slice| said.extend_from_slice(slice));
            Ok(said.len() - before)
        };
        connection.write(write).unwrap();
    }
    said
}

/// The frames of it.
fn frames(said: &[u8]) -> Vec<(Head, Vec<u8>)> {
    let mut rest = said.strip_prefix(PREFACE).unwrap_or(said);
    let mut frames = Vec::new();
    while let Some((head, behind)) = rest.split_first_chunk::<HEAD_SIZE>() {
        let head = Head::parse(*head);
        let (payload, behind) = behind.split_at(head.len);
        frames.push((head, payload.to_vec()));
        rest = behind;
    }
    frames
}

/// The kinds of frames it says, in short.
fn kinds(connection: &Connection) -> Vec<(u8, u32)> {
    frames(&said(connection)).into_iter().map(|(head, _)| (head.kind, head.stream)).collect()
}

/// The reason of the last frame, which has one at its end.
fn last_reason(connection: &Connection) -> Option<(u8, ErrorCode)> {
    let frames = frames(&said(connection));
    let (head, payload) = frames.last()?;
    let code = payload.last_chunk().copied().map(u32::from_be_bytes)?;
    Some((head.kind, ErrorCode::from(code)))
}

/// Both say what they have to say, in pieces of this size, until there is no more.
fn talk(one: &Connection, other: &Connection, size: usize) {
    loop {
        let from_one = said(one);
        let from_other = said(other);
        if from_one.is_empty() && from_other.is_empty() {
            return;
        }
        from_one.chunks(size).for_each(|piece| other.receive(piece).unwrap());
        from_other.chunks(size).for_each(|piece| one.receive(piece).unwrap());
    }
}

fn send_request(client: &Connection, ends: bool) -> Result<Stream, StreamError> {
    client.send_request(
        |fields| {
            fields.push(b":method", b"POST");
            fields.push(b":scheme", b"http");
            fields.push(b":path", b"/path?x");
            fields.push(b":authority", b"a.example");
            fields.push(b"X-Some", b"thing");
        },
        ends,
    )
}

fn request(server: &Connection) -> (Stream, FieldSection) {
    match server.next() {
        Some(Event::Request(stream, list)) => (stream, list),
        _ => panic!("no request"),
    }
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn next_event(stream: &Stream) -> Option<Incoming> {
    match stream.poll_incoming(&cx()) {
        Poll::Ready(next_event) => next_event.unwrap(),
        Poll::Pending => panic!("nothing came"),
    }
}

fn data(stream: &Stream) -> Bytes {
    match next_event(stream) {
        Some(Incoming::Data(data)) => data,
        other => panic!("{other:?} is no data"),
    }
}

fn ends(size: usize) -> (Connection, Connection) {
    let client = Connection::client(CONFIG);
    let server = Connection::server(CONFIG);
    talk(&client, &server, size);
    (client, server)
}

#[test]
fn messages_are_exchanged_in_both_directions() {
    for size in [1, 5, 9, 100, usize::MAX] {
        let (client, server) = ends(size);
        let sent_stream = send_request(&client, false).unwrap();
        sent_stream.send_data(Bytes::from_static(b"body"), false).unwrap();
        sent_stream.send_head(|fields| fields.push(b"x-end", b"1"), true).unwrap();
        talk(&client, &server, size);
        let (stream, list) = request(&server);
        assert_eq!((list.malformed(), list.is_truncated(), list.ends()), (None, false, false));
        assert_eq!(list.pseudo(Pseudo::Path), Some(&b"/path?x"[..]));
        assert_eq!(list.get(b"x-some"), Some(&b"thing"[..]));
        assert_eq!(data(&stream), "body");
        assert!(
            matches!(next_event(&stream), Some(Incoming::Trailers(list)) if list.get(b"x-end").is_some())
        );
        assert!(next_event(&stream).is_none() && stream.has_ended());
        stream.send_head(|fields| fields.status(103), false).unwrap();
        stream.send_head(|fields| fields.status(200), false).unwrap();
        stream.send_data(Bytes::from(vec![7; 40_000]), true).unwrap();
        talk(&client, &server, size);
        for status in [103, 200] {
            assert!(
                matches!(next_event(&sent_stream), Some(Incoming::Head(list)) if list.status() == status)
            );
        }
        assert_eq!(data(&sent_stream), vec![7; 40_000]);
        assert!(next_event(&sent_stream).is_none());
        assert_eq!((client.streams(), server.streams()), (0, 0));
    }
}

#[test]
fn data_stops_at_the_window_and_resumes() {
    let (client, server) = ends(1000);
    let sent_stream = send_request(&client, false).unwrap();
    talk(&client, &server, 1000);
    let (stream, _) = request(&server);
    let mut sent = 0;
    while sent_stream.send_capacity(1000) > 0 {
        sent_stream.send_data(Bytes::from(vec![0; sent_stream.send_capacity(1000)]), false).unwrap();
        sent += 1000;
    }
    assert!((65_536..66_536).contains(&sent));
    assert!(sent_stream.poll_send_capacity(&cx()).is_pending());
    talk(&client, &server, 1000);
    assert_eq!(sent_stream.send_capacity(1000), 0, "nothing was used up");
    assert_eq!(data(&stream).len(), 65_536);
    stream.release(30_000);
    talk(&client, &server, 1000);
    assert_eq!(sent_stream.send_capacity(1000), 0, "less than half of a window says nothing");
    stream.release(35_536);
    talk(&client, &server, 1000);
    assert_eq!(sent_stream.send_capacity(usize::MAX), 65_536);
    stream.raise_window(100_000);
    talk(&client, &server, 1000);
    assert_eq!(sent_stream.send_capacity(usize::MAX), 100_000);
}

#[test]
fn waiting_tasks_are_woken() {
    #[derive(Default)]
    struct Calls(AtomicUsize);
    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let calls = Arc::new(Calls::default());
    let called = || calls.0.swap(0, Ordering::Relaxed);
    let waker = Waker::from(calls.clone());
    let cx = Context::from_waker(&waker);
    let small = Config { connection_window: 0, ..CONFIG };
    let client = Connection::client(CONFIG);
    let server = Connection::server(small);
    talk(&client, &server, 100);
    client.set_driver(Some(&waker));
    let streams = [send_request(&client, false).unwrap(), send_request(&client, false).unwrap()];
    assert_eq!(called(), 1, "the driver, once");
    streams[0].send_data(Bytes::from(vec![0; 65_535]), false).unwrap();
    talk(&client, &server, 100);
    assert!(streams[1].poll_send_capacity(&cx).is_pending(), "the connection has no room");
    let (first, _) = request(&server);
    assert!(first.poll_incoming(&cx).is_ready());
    assert!(first.poll_incoming(&cx).is_pending());
    first.release(65_535);
    talk(&client, &server, 100);
    assert_eq!(called(), 1);
    assert_eq!(streams[1].send_capacity(usize::MAX), 65_535);
    assert!(first.poll_error(&cx).is_pending());
    streams[0].reset(ErrorCode::CANCEL);
    talk(&client, &server, 100);
    assert_eq!(called(), 2, "for what comes and for the cut");
    assert_eq!(first.poll_error(&cx), Poll::Ready(StreamError::Reset(ErrorCode::CANCEL)));
    assert!(streams[1].poll_incoming(&cx).is_pending());
    client.fail(ConnectionError::Closed);
    assert_eq!(called(), 1);
    assert!(matches!(
        streams[1].poll_incoming(&cx),
        Poll::Ready(Err(StreamError::Connection(ConnectionError::Closed)))
    ));
}

#[test]
fn driver_is_woken_when_capacity_is_released() {
    let client = Connection::client(Config { out_max: 1000, ..CONFIG });
    let server = Connection::server(CONFIG);
    talk(&client, &server, 100);
    let sent_stream = send_request(&client, false).unwrap();
    let room = sent_stream.send_capacity(usize::MAX);
    assert!(room < 1000);
    sent_stream.send_data(Bytes::from(vec![0; room]), false).unwrap();
    assert!(sent_stream.poll_send_capacity(&cx()).is_pending());
    said(&client);
    assert!(matches!(sent_stream.poll_send_capacity(&cx()), Poll::Ready(Ok(1000))));
}

#[test]
fn dropping_a_stream_resets_it() {
    let (client, server) = ends(100);
    let sent_stream = [false, true].map(|ends| send_request(&client, ends).unwrap());
    talk(&client, &server, 100);
    let (first, _) = request(&server);
    let (second, _) = request(&server);
    first.send_head(|fields| fields.status(413), true).unwrap();
    drop((first, second));
    talk(&client, &server, 100);
    // The response has been written before.
    assert!(sent_stream[0].poll_error(&cx()).is_pending() && server.has_unwanted());
    server.reset_unwanted();
    talk(&client, &server, 100);
    let reset = |stream: &Stream| match stream.poll_error(&cx()) {
        Poll::Ready(StreamError::Reset(reason)) => reason,
        _ => panic!("no reset"),
    };
    assert_eq!(sent_stream.each_ref().map(reset), [ErrorCode::NO_ERROR, ErrorCode::CANCEL]);
    assert!(matches!(next_event(&sent_stream[0]), Some(Incoming::Head(_))));
    assert!(next_event(&sent_stream[0]).is_none(), "a response that has ended is good");
}

#[test]
fn unread_data_is_released() {
    let (client, server) = ends(1000);
    for _ in 0..40 {
        let sent_stream = send_request(&client, false).unwrap();
        talk(&client, &server, 1000);
        let (stream, _) = request(&server);
        sent_stream.send_data(Bytes::from(vec![0; 60_000]), false).unwrap();
        talk(&client, &server, 1000);
        drop(stream);
        talk(&client, &server, 1000);
    }
    assert!(send_request(&client, false).unwrap().send_capacity(usize::MAX) == 65_536);
}

#[test]
fn unread_streams_do_not_stop_the_others() {
    let config = Config { connection_window: 3 * 65_536, ..CONFIG };
    let client = Connection::client(config);
    let server = Connection::server(config);
    talk(&client, &server, 1000);
    let streams: Vec<_> = (0..3).map(|_| send_request(&client, false).unwrap()).collect();
    talk(&client, &server, 1000);
    let received: Vec<_> = (0..3).map(|_| request(&server).0).collect();
    // Two of these bodies take more than half of the window of the connection.
    for stream in &streams[..2] {
        stream.send_data(Bytes::from(vec![0; 65_535]), false).unwrap();
    }
    talk(&client, &server, 1000);
    for _ in 0..100 {
        let room = streams[2].send_capacity(usize::MAX);
        assert!(room > 0);
        streams[2].send_data(Bytes::from(vec![0; room]), false).unwrap();
        talk(&client, &server, 1000);
        received[2].release(data(&received[2]).len());
        talk(&client, &server, 1000);
    }
}

#[test]
fn graceful_shutdown_serves_requests_in_transit() {
    let (client, server) = ends(100);
    let first = send_request(&client, true).unwrap();
    server.send_goaway();
    let output = said(&server);
    let on_its_way = send_request(&client, true).unwrap();
    server.receive(&said(&client)).unwrap();
    client.receive(&output).unwrap();
    assert!(
        !client.is_open()
            && matches!(send_request(&client, true), Err(StreamError::Refused(ErrorCode::NO_ERROR)))
    );
    talk(&client, &server, 100);
    assert!(!server.is_over());
    for _ in 0..2 {
        request(&server).0.send_head(|fields| fields.status(204), true).unwrap();
    }
    talk(&client, &server, 100);
    for stream in [first, on_its_way] {
        assert!(matches!(next_event(&stream), Some(Incoming::Head(list)) if list.status() == 204));
    }
    assert!(client.is_over() && server.is_over());
}

#[test]
fn streams_after_goaway_are_ignored() {
    let server = server();
    server.send_goaway();
    server.receive(&frame(kind::PING, flag::ACK, 0, &crate::state::LEAVING)).unwrap();
    let post = frame(kind::HEADERS, flag::END_HEADERS, 1, &fields(&[]));
    for late in [post, frame(kind::DATA, 0, 1, b"x"), frame(kind::DATA, flag::END_STREAM, 1, b"y")] {
        server.receive(&late).unwrap();
    }
    assert!(server.next().is_none() && server.is_over());
}

#[test]
fn client_learns_unprocessed_streams() {
    let (client, _) = ends(100);
    let streams = [send_request(&client, true).unwrap(), send_request(&client, true).unwrap()];
    client.receive(&crate::frame::go_away(1, ErrorCode::NO_ERROR)).unwrap();
    assert!(streams[0].poll_error(&cx()).is_pending());
    assert_eq!(streams[1].poll_error(&cx()), Poll::Ready(StreamError::Refused(ErrorCode::NO_ERROR)));
    assert_eq!((client.received_goaway(), client.is_over()), (Some(ErrorCode::NO_ERROR), false));
}

/// A frame of somebody who knows no rules.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&Head { len: payload.len(), kind, flags, stream }.bytes()[..], payload].concat()
}

/// The packed fields of a request, and more.
fn fields(more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")] {
        encode::field(&mut block, name.as_bytes(), value.as_bytes());
    }
    for (name, value) in more {
        encode::field(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}

const WHOLE: u8 = flag::END_HEADERS | flag::END_STREAM;

/// A server whose client has greeted it.
fn server() -> Connection {
    let server = Connection::server(CONFIG);
    server.receive(PREFACE).unwrap();
    server.receive(&frame(kind::SETTINGS, 0, 0, &[])).unwrap();
    server.receive(&frame(kind::SETTINGS, flag::ACK, 0, &[])).unwrap();
    said(&server);
    server
}

#[test]
fn server_of_another_protocol_is_named() {
    let settings = frame(kind::SETTINGS, 0, 0, &[]);
    for (first, expected) in [
        (b"HTTP/1.1 400 Bad Request\r\n".as_slice(), Some("sent HTTP/1 instead of frames")),
        (&[21, 3, 3, 0, 2, 2, 10], Some("sent TLS instead of frames")),
        (b"220 mail.example", Some("sent no SETTINGS frame first")),
        (&settings, None),
        (&settings[..4], None),
    ] {
        let client = Connection::client(CONFIG);
        let words = match client.receive(first) {
            Ok(()) => None,
            Err(ConnectionError::Local(ErrorCode::PROTOCOL_ERROR, words)) => Some(words),
            Err(error) => panic!("{first:?}: {error:?}"),
        };
        assert_eq!(words.map(|words| words.split(';').next().unwrap_or_default()), expected, "{first:?}");
    }
}

#[test]
fn connection_errors() {
    let get = frame(kind::HEADERS, flag::END_HEADERS, 1, &fields(&[]));
    let large = vec![0; 200_000];
    let cases: &[(Vec<u8>, ErrorCode)] = &[
        (frame(kind::DATA, 0, 0, b"x"), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::DATA, 0, 3, b"x"), ErrorCode::PROTOCOL_ERROR),
        ([&get[..], &frame(kind::DATA, flag::PADDED, 1, &[3, 0, 0])].concat(), ErrorCode::PROTOCOL_ERROR),
        ([&get[..], &frame(kind::DATA, flag::PADDED, 1, &[])].concat(), ErrorCode::FRAME_SIZE_ERROR),
        ([&get[..], &frame(kind::DATA, 0, 1, &vec![0; 16_385])].concat(), ErrorCode::FRAME_SIZE_ERROR),
        (frame(kind::PRIORITY, 0, 3, &[0x80, 0, 0, 3, 1]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::HEADERS, WHOLE, 2, &fields(&[])), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::HEADERS, WHOLE, 0, &fields(&[])), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::HEADERS, WHOLE | flag::PADDED, 1, &[9, 0x82]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::HEADERS, WHOLE | flag::PRIORITY, 1, &[9; 4]), ErrorCode::FRAME_SIZE_ERROR),
        (frame(kind::HEADERS, WHOLE, 1, &[0x80]), ErrorCode::COMPRESSION_ERROR),
        (frame(kind::HEADERS, 0, 1, &large), ErrorCode::FRAME_SIZE_ERROR),
        (
            [frame(kind::HEADERS, 0, 1, &large[..16_384]), frame(kind::CONTINUATION, 0, 1, b"x")].concat(),
            ErrorCode::ENHANCE_YOUR_CALM,
        ),
        (
            [frame(kind::HEADERS, 0, 1, &[]), frame(kind::PING, 0, 0, &[0; 8])].concat(),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            [frame(kind::HEADERS, 0, 1, &[]), frame(kind::CONTINUATION, 0, 3, &[])].concat(),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (frame(kind::CONTINUATION, 0, 1, &[]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::PRIORITY, 0, 0, &[0; 5]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::PRIORITY, 0, 1, &[0; 4]), ErrorCode::FRAME_SIZE_ERROR),
        (frame(kind::RST_STREAM, 0, 1, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::RST_STREAM, 0, 1, &[0; 3]), ErrorCode::FRAME_SIZE_ERROR),
        (frame(kind::SETTINGS, 0, 1, &[]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::SETTINGS, 0, 0, &[0; 5]), ErrorCode::FRAME_SIZE_ERROR),
        (frame(kind::SETTINGS, flag::ACK, 0, &[0; 6]), ErrorCode::FRAME_SIZE_ERROR),
        (frame(kind::PUSH_PROMISE, 0, 1, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::PING, 0, 0, &[0; 7]), ErrorCode::FRAME_SIZE_ERROR),
        (frame(kind::PING, 0, 1, &[0; 8]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::GOAWAY, 0, 0, &[0; 7]), ErrorCode::FRAME_SIZE_ERROR),
        (frame(kind::GOAWAY, 0, 1, &[0; 8]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), ErrorCode::FLOW_CONTROL_ERROR),
        (frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3]), ErrorCode::FRAME_SIZE_ERROR),
        (frame(kind::PRIORITY_UPDATE, 0, 1, &[0, 0, 0, 1]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::PRIORITY_UPDATE, 0, 0, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::PRIORITY_UPDATE, 0, 0, &[0; 3]), ErrorCode::FRAME_SIZE_ERROR),
    ];
    for (number, (bytes, reason)) in cases.iter().enumerate() {
        for size in [1, usize::MAX] {
            let server = server();
            let ended = bytes.chunks(size).try_for_each(|piece| server.receive(piece));
            assert!(
                matches!(ended, Err(ConnectionError::Local(code, words)) if code == *reason && !words.is_empty()),
                "case {number}: {ended:?}"
            );
            assert_eq!(last_reason(&server), Some((kind::GOAWAY, *reason)), "case {number}");
            assert!(server.is_over() && server.receive(b"").is_err());
        }
    }
}

#[test]
fn stream_errors() {
    let get = fields(&[]);
    let body = frame(kind::HEADERS, flag::END_HEADERS, 1, &get);
    for (bytes, reason) in [
        (frame(kind::DATA, 0, 1, &[0; 16_384]).repeat(5), ErrorCode::FLOW_CONTROL_ERROR),
        (frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 1]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::HEADERS, flag::END_HEADERS, 1, &[]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        (frame(kind::WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]), ErrorCode::FLOW_CONTROL_ERROR),
        (
            [frame(kind::DATA, flag::END_STREAM, 1, &[]), frame(kind::DATA, 0, 1, b"x")].concat(),
            ErrorCode::STREAM_CLOSED,
        ),
        (
            [frame(kind::DATA, flag::END_STREAM, 1, &[]), frame(kind::HEADERS, WHOLE, 1, &get)].concat(),
            ErrorCode::STREAM_CLOSED,
        ),
    ] {
        let server = server();
        server.receive(&body).unwrap();
        let (stream, _) = request(&server);
        server.receive(&bytes).unwrap();
        assert_eq!(last_reason(&server), Some((kind::RST_STREAM, reason)));
        assert!(
            matches!(stream.poll_error(&cx()), Poll::Ready(StreamError::Local(code, _)) if code == reason)
        );
        // The connection goes on.
        server.receive(&frame(kind::HEADERS, WHOLE, 3, &get)).unwrap();
        assert_eq!(request(&server).0.id(), 3);
    }
}

#[test]
fn ended_stream_is_not_reopened() {
    let head = frame(kind::HEADERS, WHOLE, 1, &fields(&[]));
    let first = server();
    first.receive(&head).unwrap();
    request(&first).0.send_head(|fields| fields.status(204), true).unwrap();
    assert!(matches!(first.receive(&head), Err(ConnectionError::Local(ErrorCode::PROTOCOL_ERROR, _))));
    // The client need not know that its stream has ended here.
    let second = server();
    second.receive(&frame(kind::HEADERS, flag::END_HEADERS, 1, &fields(&[]))).unwrap();
    drop(request(&second));
    for late in [frame(kind::DATA, 0, 1, b"x"), frame(kind::RST_STREAM, 0, 1, &[0; 4]), head] {
        second.receive(&late).unwrap();
    }
    assert!(second.next().is_none());
}

#[test]
fn stream_errors_are_limited() {
    let server = server();
    let mut taken = 0;
    let connection_error = loop {
        let id = 1 + 2 * taken as u32;
        let head = frame(kind::HEADERS, flag::END_HEADERS, id, &fields(&[]));
        if let Err(connection_error) =
            server.receive(&[head, frame(kind::WINDOW_UPDATE, 0, id, &[0; 4])].concat())
        {
            break connection_error;
        }
        while server.next().is_some() {}
        taken += 1;
    };
    assert_eq!(taken, ERRORS_MAX);
    assert!(matches!(connection_error, ConnectionError::Local(ErrorCode::ENHANCE_YOUR_CALM, _)));
}

#[test]
fn rapidly_reset_requests_are_limited() {
    let pair = |id| {
        let head = frame(kind::HEADERS, WHOLE, id, &fields(&[]));
        [head, frame(kind::RST_STREAM, 0, id, &[0, 0, 0, 8])].concat()
    };
    let pairs = |count: usize| (0..count as u32).flat_map(|n| pair(1 + 2 * n)).collect::<Vec<_>>();
    let first = server();
    first.receive(&pairs(RESETS_UNSEEN_MAX)).unwrap();
    let mut canceled = 0;
    while let Some(event) = first.next() {
        assert!(matches!(event, Event::RequestCanceled));
        canceled += 1;
    }
    assert_eq!((canceled, first.streams()), (RESETS_UNSEEN_MAX, 0));
    let second = server();
    assert!(second.receive(&pairs(RESETS_UNSEEN_MAX + 1)).is_err());
    assert!(second.next().is_none());
}

#[test]
fn concurrent_streams_are_limited() {
    let server = server();
    for n in 0..12 {
        server.receive(&frame(kind::HEADERS, WHOLE, 1 + 2 * n, &fields(&[]))).unwrap();
    }
    let mut streams = Vec::new();
    while let Some(Event::Request(stream, _)) = server.next() {
        streams.push(stream);
    }
    assert_eq!(streams.len(), 10);
    assert_eq!(kinds(&server), [(kind::RST_STREAM, 21), (kind::RST_STREAM, 23)]);
    drop(streams);
    assert_eq!(server.streams(), 0);
}

#[test]
fn field_sections_span_any_number_of_frames() {
    let block = fields(&[("x-long", &"y".repeat(300))]);
    let server = server();
    let padded = [&[4][..], &[0; 5], &block[..7], &[0; 4]].concat();
    let mut bytes = frame(kind::HEADERS, flag::PADDED | flag::PRIORITY | flag::END_STREAM, 1, &padded);
    let pieces: Vec<_> = block[7..].chunks(10).collect();
    for (n, piece) in pieces.iter().enumerate() {
        let flags = if n + 1 == pieces.len() { flag::END_HEADERS } else { 0 };
        bytes.extend(frame(kind::CONTINUATION, flags, 1, piece));
    }
    bytes.chunks(3).for_each(|piece| server.receive(piece).unwrap());
    let (stream, list) = request(&server);
    assert_eq!(list.get(b"x-long").map(<[u8]>::len), Some(300));
    assert_eq!((list.block_len(), list.malformed(), stream.has_ended()), (block.len(), None, true));
}

#[test]
fn oversized_field_section_fails_only_its_stream() {
    let server = server();
    let long = fields(&[("x-long", &"y".repeat(5000)), ("x-more", "1")]);
    server.receive(&frame(kind::HEADERS, WHOLE, 1, &long)).unwrap();
    server.receive(&frame(kind::HEADERS, WHOLE, 3, &fields(&[("Connection", "close")]))).unwrap();
    let (_first, list) = request(&server);
    assert_eq!(
        (list.is_truncated(), list.malformed(), list.pseudo(Pseudo::Path)),
        (true, None, Some(&b"/"[..]))
    );
    let (_second, list) = request(&server);
    assert_eq!((list.is_truncated(), list.malformed()), (false, Some(MalformedReason::OfConnection)));
}

#[test]
fn small_windows_hold_once_acknowledged() {
    let server = Connection::server(Config { window: 10, ..CONFIG });
    server.receive(PREFACE).unwrap();
    server.receive(&frame(kind::SETTINGS, 0, 0, &[])).unwrap();
    let post = |id| frame(kind::HEADERS, flag::END_HEADERS, id, &fields(&[]));
    server.receive(&post(1)).unwrap();
    assert_eq!(last_reason(&server), Some((kind::RST_STREAM, ErrorCode::REFUSED_STREAM)));
    server.receive(&frame(kind::SETTINGS, flag::ACK, 0, &[])).unwrap();
    server.receive(&post(3)).unwrap();
    let (stream, _) = request(&server);
    server.receive(&frame(kind::DATA, 0, 3, &[0; 10])).unwrap();
    stream.raise_window(1000);
    assert_eq!(kinds(&server), [(kind::WINDOW_UPDATE, 3)]);
    server.receive(&frame(kind::DATA, 0, 3, &[0; 990])).unwrap();
    assert_eq!(data(&stream).len(), 1000);
    server.receive(&frame(kind::DATA, 0, 3, &[0])).unwrap();
    assert_eq!(last_reason(&server), Some((kind::RST_STREAM, ErrorCode::FLOW_CONTROL_ERROR)));
}

#[test]
fn settings_change_windows_of_streams() {
    let server = server();
    server.receive(&frame(kind::HEADERS, WHOLE, 1, &fields(&[]))).unwrap();
    let (stream, _) = request(&server);
    let window = |size: u32| frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &size.to_be_bytes()].concat());
    stream.send_head(|fields| fields.status(200), false).unwrap();
    stream.send_data(Bytes::from(vec![0; 60_000]), false).unwrap();
    server.receive(&window(1000)).unwrap();
    assert_eq!(stream.send_capacity(usize::MAX), 0);
    server.receive(&window(61_000)).unwrap();
    assert_eq!(stream.send_capacity(usize::MAX), 1000);
    server.receive(&frame(kind::WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0, 0])).unwrap();
    assert!(matches!(
        server.receive(&window(u32::MAX >> 1)),
        Err(ConnectionError::Local(ErrorCode::FLOW_CONTROL_ERROR, _))
    ));
}

#[test]
fn long_field_sections_are_sent_in_several_frames() {
    let server = server();
    // A table that is smaller than usual has to be confirmed.
    server.receive(&frame(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0])).unwrap();
    server.receive(&frame(kind::HEADERS, WHOLE, 1, &fields(&[]))).unwrap();
    let (stream, _) = request(&server);
    said(&server);
    let long = "\u{7f}".repeat(40_000);
    stream.send_head(|fields| fields.push(b"x-long", long.as_bytes()), true).unwrap();
    let frames = frames(&said(&server));
    let heads: Vec<_> = frames.iter().map(|(head, _)| (head.kind, head.flags)).collect();
    let first = (kind::HEADERS, flag::END_STREAM);
    let more = (kind::CONTINUATION, 0);
    assert_eq!(heads, [first, more, (kind::CONTINUATION, flag::END_HEADERS)]);
    let block: Vec<u8> = frames.into_iter().flat_map(|(_, payload)| payload).collect();
    assert_eq!(block[0], 0x20, "the table is gone");
    let mut found_value = 0;
    let mut decoder = crate::hpack::Decoder::new(0);
    let mut field = |name: &[u8], value: &[u8]| {
        assert_eq!((name, value.len()), (&b"x-long"[..], 40_000));
        found_value += 1;
        std::ops::ControlFlow::Continue(())
    };
    decoder.decode(&block, &mut field).unwrap();
    assert_eq!(found_value, 1);
}

#[test]
fn priorities_are_reported() {
    let server = server();
    let update = |stream: u32, value: &str| {
        frame(kind::PRIORITY_UPDATE, 0, 0, &[&stream.to_be_bytes()[..], value.as_bytes()].concat())
    };
    server.receive(&update(5, "u=1")).unwrap();
    server.receive(&update(7, &"x".repeat(65))).unwrap();
    server.receive(&update(9, &"x".repeat(64))).unwrap();
    let mut output = Vec::new();
    while let Some(Event::Priority { stream, value }) = server.next() {
        output.push((stream, value.len()));
    }
    assert_eq!(output, [(5, 3), (9, 64)]);
}

#[test]
fn unknown_frames_are_ignored() {
    let server = server();
    for bytes in [frame(0xee, 0xff, 77, &[1; 300]), frame(kind::PRIORITY, 0, 9, &[0; 5])] {
        bytes.chunks(7).for_each(|piece| server.receive(piece).unwrap());
    }
    server.receive(&frame(kind::PING, 0, 0, b"12345678")).unwrap();
    assert_eq!(frames(&said(&server))[0].1, b"12345678");
}

#[test]
fn idle_connection_holds_little_memory() {
    let (client, server) = ends(100);
    let sent_stream = send_request(&client, true).unwrap();
    talk(&client, &server, 100);
    drop(request(&server));
    talk(&client, &server, 100);
    drop(sent_stream);
    server.shrink();
    assert_eq!((server.out_len(), server.streams()), (0, 0));
    assert!(size_of::<crate::connection::Shared>() < 1200, "{}", size_of::<crate::connection::Shared>());
    // The connection goes on as before.
    let _stream = send_request(&client, true).unwrap();
    talk(&client, &server, 100);
    request(&server);
}

/// A generator that is good enough for nonsense.
struct Dice(u64);

impl Dice {
    fn next_below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

#[test]
fn invalid_input_ends_the_connection_cleanly() {
    let mut dice = Dice(0x5eed);
    for _ in 0..2000 {
        let connection = server();
        let mut streams = Vec::new();
        for _ in 0..30 {
            let kind = dice.next_below(18) as u8;
            let len = [0, 1, 4, 5, 6, 8, 12, 100][dice.next_below(8) as usize];
            let mut payload: Vec<u8> = (0..len).map(|_| dice.next_below(4) as u8).collect();
            if kind == kind::HEADERS && dice.next_below(3) > 0 {
                payload = fields(&[]);
            }
            let flags = [0, 1, 4, 5, 8, 13, 32][dice.next_below(7) as usize];
            let bytes = frame(kind, flags, dice.next_below(6) as u32, &payload);
            if connection.receive(&bytes).is_err() {
                break;
            }
            while let Some(event) = connection.next() {
                if let Event::Request(stream, list) = event {
                    let _ = (list.iter().count(), list.malformed());
                    streams.push(stream);
                }
            }
            for stream in &streams {
                if let Poll::Ready(Ok(Some(Incoming::Data(data)))) = stream.poll_incoming(&cx()) {
                    stream.release(data.len());
                }
            }
            if dice.next_below(4) == 0 {
                streams.pop();
            }
        }
        drop(streams);
        assert!(connection.streams() <= 10);
        // The output of the connection consists of whole frames.
        frames(&said(&connection));
    }
}
