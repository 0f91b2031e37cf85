//! What peers send in HTTP/2, behind the preface of a client: frames in any order, fields of any kind.
//!
//! Both ends take it. What comes of it is the same however it is cut, nothing that was said is longer than what came, and what is
//! said to it are whole frames. A request that is not malformed becomes a head or is refused.

use std::io::IoSlice;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tw_http::{Content, HeadError, HeadLimits, Pseudo as Line, RequestHead};
use tw_http2::{Config, Connection, Event, FieldSection, Incoming, PREFACE, Pseudo, Stream};

const CONFIG: Config =
    Config { streams_max: 8, window: 1000, connection_window: 1 << 16, list_max: 1 << 12, out_max: 1 << 16 };
/// Head of a frame.
const HEAD_SIZE: usize = 9;

pub(crate) fn check(data: &[u8]) {
    let whole = serve(data, usize::MAX);
    let asked = ask(data, usize::MAX);
    for size in [1, 9, 10] {
        assert_eq!(serve(data, size), whole, "a server, in pieces of {size}");
        assert_eq!(ask(data, size), asked, "a client, in pieces of {size}");
    }
}

/// What a server hears, and says.
fn serve(data: &[u8], size: usize) -> (Vec<String>, Vec<u8>) {
    let server = Connection::server(CONFIG);
    let (mut heard, mut streams) = (Vec::new(), Vec::new());
    let mut ended = server.receive(PREFACE);
    for piece in data.chunks(size.min(data.len().max(1))) {
        ended = ended.and_then(|()| server.receive(piece));
    }
    while let Some(event) = server.next() {
        match event {
            Event::Request(stream, list) => {
                heard.push(format!("{} {list:?}", stream.id()));
                look(&list);
                let _ = stream.send_head(|fields| fields.status(200), false);
                let _ = stream.send_data(Bytes::from(vec![0; stream.send_capacity(2000)]), true);
                hear(&stream, &mut heard);
                streams.push(stream);
            }
            Event::RequestCanceled => heard.push("taken back".into()),
            Event::Priority { stream, value } => heard.push(format!("{stream} {value:?}")),
        }
    }
    heard.push(format!("{ended:?}"));
    drop(streams);
    (heard, said(&server))
}

/// What a client hears that has asked twice, and says.
fn ask(data: &[u8], size: usize) -> (Vec<String>, Vec<u8>) {
    let client = Connection::client(CONFIG);
    let ask = |ends| client.send_request(|fields| fields.push(b":method", b"GET"), ends);
    let (mut heard, streams) = (Vec::new(), [ask(false), ask(true)]);
    let mut ended = Ok(());
    for piece in data.chunks(size.min(data.len().max(1))) {
        ended = ended.and_then(|()| client.receive(piece));
    }
    streams.iter().flatten().for_each(|stream| hear(stream, &mut heard));
    heard.push(format!("{ended:?}"));
    drop(streams);
    (heard, said(&client).split_off(PREFACE.len()))
}

fn hear(stream: &Stream, heard: &mut Vec<String>) {
    let cx = Context::from_waker(Waker::noop());
    loop {
        match stream.poll_incoming(&cx) {
            Poll::Ready(Ok(Some(came))) => {
                if let Incoming::Data(data) = &came {
                    stream.release(data.len());
                }
                heard.push(format!("{came:?}"));
            }
            Poll::Ready(end) => return heard.push(format!("{end:?}")),
            Poll::Pending => return heard.push(format!("more to come, cut: {:?}", stream.poll_error(&cx))),
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

fn look(list: &FieldSection) {
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
    };
    head.begin_list(&line, &limits)?;
    for (name, value) in list.iter() {
        head.push_listed(name, value, &limits)?;
    }
    head.end_list(if list.ends() { Content::None } else { Content::Follows }, &limits)?;
    Ok(head)
}
