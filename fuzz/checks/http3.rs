//! Invariants for HTTP/3 input: streams of any types in any order, frames and fields of any kind.
//!
//! Both ends take it. The results are equal however the bytes of a stream are cut, nothing decoded is longer than its limit,
//! and the output is whole frames. The same input is that of HTTP/0.9, whose output is nothing but bodies.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tw_http3::{Config, Connection, Event, FieldSection, Incoming, LocalStream, Stream};

const CONFIG: Config = Config { list_max: 1 << 12 };
/// Streams of each end: requests, then unidirectional ones.
const OF_CLIENT: [u64; 8] = [0, 4, 8, 2, 6, 10, 14, 18];
const OF_SERVER: [u64; 8] = [0, 4, 1, 3, 7, 11, 15, 19];
/// Bits of the first byte of an operation.
const FIN: u8 = 0x08;
const KIND: u8 = 0x30;
const RESET: u8 = 0x20;
const STOP: u8 = 0x30;

pub(crate) fn check(data: &[u8]) {
    let whole = serve(data, usize::MAX);
    let client_events = read_as_client(data, usize::MAX);
    let hq_events = serve_hq(data, usize::MAX);
    for size in [1, 2, 9] {
        assert_eq!(serve(data, size), whole, "a server, in pieces of {size}");
        assert_eq!(read_as_client(data, size), client_events, "a client, in pieces of {size}");
        assert_eq!(serve_hq(data, size), hq_events, "HTTP/0.9, in pieces of {size}");
    }
}

/// Carries out an operation: a byte that tells stream and kind, one with a length, so many bytes.
fn operate(connection: &Connection, ids: [u64; 8], size: usize, data: &mut &[u8]) -> Option<String> {
    let (&[first, len], rest) = data.split_first_chunk()?;
    let (bytes, rest) = rest.split_at(rest.len().min(len.into()));
    *data = rest;
    let (stream, fin) = (ids[usize::from(first & 7)], first & FIN != 0);
    let done = match first & KIND {
        RESET => connection.receive_reset(stream, u64::from(len).into()),
        STOP => connection.receive_stop_sending(stream, u64::from(len).into()),
        _ if bytes.is_empty() => connection.receive(stream, Bytes::new(), fin),
        _ => {
            let pieces = bytes.chunks(size.min(bytes.len()));
            let last = pieces.len() - 1;
            let mut pieces = pieces.enumerate();
            pieces.try_for_each(|(at, piece)| {
                connection.receive(stream, Bytes::copy_from_slice(piece), fin && at == last)
            })
        }
    };
    Some(plain(format!("{done:?}")))
}

/// Errors of QPACK are alike: of a section and an instruction that are both invalid, the first one that is complete counts.
fn plain(text: String) -> String {
    if text.contains("QPACK_") { "error of qpack".into() } else { text }
}

/// Events of a server, and its output.
fn serve(mut data: &[u8], size: usize) -> (Vec<String>, Vec<u8>) {
    let server = Connection::server(CONFIG);
    let (mut events, mut streams) = (Vec::new(), Vec::new());
    while let Some(done) = operate(&server, OF_CLIENT, size, &mut data) {
        events.push(done);
        while let Some(event) = server.next() {
            match event {
                Event::Request(stream, list) => {
                    events.push(format!("{} {list:?}", stream.id()));
                    inspect(&list);
                    let _ = stream.send_head(|fields| fields.status(200), false);
                    let _ = stream.send_data(Bytes::from(vec![0; 2000]), true);
                    streams.push(stream);
                }
                Event::RequestLine(..) => unreachable!("a line without HTTP/0.9"),
                Event::RequestCanceled => events.push("taken back".into()),
                Event::Priority { stream, value } => events.push(format!("{stream} {value:?}")),
            }
        }
        streams.iter().for_each(|stream| record(stream, &mut events));
    }
    let mut out: Vec<u8> = streams.iter().flat_map(said_on).collect();
    events.push(plain(format!("{:?}", server.error())));
    drop(streams);
    out.extend(said(&server, &mut events));
    (events, out)
}

/// Events of a server of HTTP/0.9.
fn serve_hq(mut data: &[u8], size: usize) -> Vec<String> {
    let server = Connection::hq_server(CONFIG);
    let (mut events, mut streams) = (Vec::new(), Vec::new());
    while let Some(done) = operate(&server, OF_CLIENT, size, &mut data) {
        events.push(done);
        while let Some(event) = server.next() {
            match event {
                Event::RequestLine(stream, line) => {
                    events.push(format!("{} {line:?}", stream.id()));
                    let end = line.iter().position(|byte| *byte == b'\n');
                    assert!(end.map_or(CONFIG.list_max as usize, |end| end + 1) == line.len());
                    let _ = stream.send_head(|fields| fields.status(200), false);
                    let is_sent = stream.send_data(Bytes::from_static(b"body"), true).is_ok();
                    assert_eq!(stream.output().as_deref(), is_sent.then_some(&b"body"[..]));
                    stream.consume(4);
                    streams.push(stream);
                }
                Event::RequestCanceled => events.push("taken back".into()),
                Event::Request(..) | Event::Priority { .. } => unreachable!("frames of HTTP/0.9"),
            }
        }
        streams.iter().for_each(|stream| record(stream, &mut events));
    }
    events.push(format!("{:?}", server.error()));
    drop(streams);
    assert!(said(&server, &mut events).is_empty());
    assert_eq!(server.out_len(LocalStream::QpackDecoder), 0);
    events
}

/// Events of a client that has sent two requests, and its output.
fn read_as_client(mut data: &[u8], size: usize) -> (Vec<String>, Vec<u8>) {
    let client = Connection::client(CONFIG);
    let request = |id, ends| client.send_request(id, |fields| fields.push(b":method", b"GET"), ends);
    let (mut events, streams) = (Vec::new(), [request(0, false), request(4, true)]);
    while let Some(done) = operate(&client, OF_SERVER, size, &mut data) {
        events.push(done);
        streams.iter().flatten().for_each(|stream| record(stream, &mut events));
    }
    let mut out: Vec<u8> = streams.iter().flatten().flat_map(said_on).collect();
    events.push(plain(format!("{:?}", client.error())));
    drop(streams);
    out.extend(said(&client, &mut events));
    (events, out)
}

/// Parts of a message that have arrived, pieces of data put together.
fn record(stream: &Stream, events: &mut Vec<String>) {
    let cx = Context::from_waker(Waker::noop());
    let mut data = Vec::new();
    let end = loop {
        match stream.poll_incoming(&cx) {
            Poll::Ready(Ok(Some(Incoming::Data(bytes)))) => data.extend_from_slice(&bytes),
            Poll::Ready(Ok(Some(Incoming::Head(list)))) => {
                inspect(&list);
                events.push(format!("{list:?}"));
            }
            Poll::Ready(Ok(Some(Incoming::Trailers(list)))) => {
                inspect(&list);
                events.push(format!("{} bytes, then {list:?}", data.len()));
            }
            end => break format!("{end:?}"),
        }
    };
    events.push(format!(
        "{data:?} {end}, failed: {:?}, malformed: {}",
        stream.error(),
        stream.is_malformed()
    ));
}

/// Everything that a stream has to send, which is made of whole frames.
fn said_on(stream: &Stream) -> Vec<u8> {
    let mut said = Vec::new();
    while let Some(part) = stream.output() {
        said.extend_from_slice(&part);
        stream.consume(part.len());
    }
    let mut rest = &said[..];
    while !rest.is_empty() {
        let _kind = integer(&mut rest);
        let len = integer(&mut rest) as usize;
        rest = &rest[len..];
    }
    said
}

/// Everything that the control stream has to send. Acknowledgements are cut as the insertions are.
fn said(connection: &Connection, events: &mut Vec<String>) -> Vec<u8> {
    let mut said = Vec::new();
    while connection.out_len(LocalStream::Control) > 0 {
        connection.write(LocalStream::Control, |bytes| {
            said.extend_from_slice(bytes);
            bytes.len()
        });
    }
    assert!(connection.out_len(LocalStream::QpackDecoder) < 20_000);
    while let Some(signal) = connection.next_signal() {
        events.push(format!("{signal:?}"));
    }
    said
}

fn integer(bytes: &mut &[u8]) -> u64 {
    let len = 1 << (bytes[0] >> 6);
    let (octets, rest) = bytes.split_at(len);
    *bytes = rest;
    let value = octets.iter().fold(0, |value, octet| value << 8 | u64::from(*octet));
    value & (u64::MAX >> (64 - 8 * len + 2))
}

fn inspect(list: &FieldSection) {
    let size: usize = list.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
    assert!(size <= CONFIG.list_max as usize);
}
