//! Invariants for HTTP/2 input after the client's preface: frames in any order, fields of any kind.
//!
//! Both ends take it. The results are equal however the input is cut, nothing decoded is longer than the input, and
//! the output is whole frames. A request that is not malformed becomes a head or is refused.

use std::io::IoSlice;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tw_http::{Content, HeadError, HeadLimits, PseudoFields as Line, RequestHead, Version};
use tw_http2::{Config, Connection, Event, FieldSection, Incoming, PREFACE, Pseudo, Stream};

const CONFIG: Config =
    Config { streams_max: 8, window: 1000, connection_window: 1 << 16, list_max: 1 << 12, out_max: 1 << 16 };
/// Head of a frame.
const HEAD_SIZE: usize = 9;

pub(crate) fn check(data: &[u8]) {
    let whole = serve(data, usize::MAX);
    let client_events = read_as_client(data, usize::MAX);
    for size in [1, 9, 10] {
        assert_eq!(serve(data, size), whole, "a server, in pieces of {size}");
        assert_eq!(read_as_client(data, size), client_events, "a client, in pieces of {size}");
    }
}

/// Events of a server, and its output.
fn serve(data: &[u8], size: usize) -> (Vec<String>, Vec<u8>) {
    let server = Connection::server(CONFIG);
    let (mut events, mut streams) = (Vec::new(), Vec::new());
    let mut ended = server.receive(PREFACE);
    for piece in data.chunks(size.min(data.len().max(1))) {
        ended = ended.and_then(|()| server.receive(piece));
    }
    while let Some(event) = server.next() {
        match event {
            Event::Request(stream, list) => {
                events.push(format!("{} {list:?}", stream.id()));
                inspect(&list);
                let _ = stream.send_head(|fields| fields.status(200), false);
                let _ = stream.send_data(Bytes::from(vec![0; stream.send_capacity(2000)]), true);
                record(&stream, &mut events);
                streams.push(stream);
            }
            Event::RequestCanceled => events.push("taken back".into()),
            Event::Priority { stream, value } => events.push(format!("{stream} {value:?}")),
        }
    }
    events.push(format!("{ended:?}"));
    drop(streams);
    (events, said(&server))
}

/// Events of a client that has sent two requests, and its output.
fn read_as_client(data: &[u8], size: usize) -> (Vec<String>, Vec<u8>) {
    let client = Connection::client(CONFIG);
    let request = |ends| client.send_request(|fields| fields.push(b":method", b"GET"), ends);
    let (mut events, streams) = (Vec::new(), [request(false), request(true)]);
    let mut ended = Ok(());
    for piece in data.chunks(size.min(data.len().max(1))) {
        ended = ended.and_then(|()| client.receive(piece));
    }
    streams.iter().flatten().for_each(|stream| record(stream, &mut events));
    events.push(format!("{ended:?}"));
    drop(streams);
    (events, said(&client).split_off(PREFACE.len()))
}

fn record(stream: &Stream, events: &mut Vec<String>) {
    let cx = Context::from_waker(Waker::noop());
    loop {
        match stream.poll_incoming(&cx) {
            Poll::Ready(Ok(Some(came))) => {
                if let Incoming::Data(data) = &came {
                    stream.release(data.len());
                }
                events.push(format!("{came:?}"));
            }
            Poll::Ready(end) => return events.push(format!("{end:?}")),
            Poll::Pending => return events.push(format!("more to come, cut: {:?}", stream.poll_error(&cx))),
        }
    }
}

/// All of what is to be written, which is made of whole frames.
fn said(connection: &Connection) -> Vec<u8> {
    let mut said = Vec::new();
    while connection.out_len() > 0 {
        let write = |slices: &[IoSlice<'_>]| {
            slices.iter().for_each(|slice| said.extend_from_slice(slice));
            Ok(slices.iter().map(|slice| slice.len()).sum())
        };
        assert!(connection.write(write).is_ok_and(|taken| taken > 0));
    }
    let mut rest = said.strip_prefix(PREFACE).unwrap_or(&said);
    while !rest.is_empty() {
        let len = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
        rest = &rest[HEAD_SIZE + len..];
    }
    said
}

fn inspect(list: &FieldSection) {
    let size: usize = list.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(size <= CONFIG.list_max as usize);
    if list.malformed().is_some() || list.is_truncated() {
        return;
    }
    if let Ok(head) = head(list) {
        // What was taken has a method, a path from the root, and a host.
        assert!(!head.request_line().is_empty() && head.host().is_some());
        assert!(head.path().starts_with(b"/"));
    }
}

fn head(list: &FieldSection) -> Result<RequestHead, HeadError> {
    let limits = HeadLimits::default();
    let mut head = RequestHead::new();
    let line = Line {
        method: list.pseudo(Pseudo::Method).unwrap_or_default(),
        target: list.pseudo(Pseudo::Path).unwrap_or_default(),
        authority: list.pseudo(Pseudo::Authority),
        version: Version::HTTP_2,
    };
    head.begin_list(&line, &limits)?;
    for (name, value) in list.iter() {
        head.push_listed(name, value, &limits)?;
    }
    head.end_list(if list.ends() { Content::None } else { Content::Follows }, &limits)?;
    Ok(head)
}
