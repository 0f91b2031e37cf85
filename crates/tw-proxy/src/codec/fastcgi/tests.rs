//! Every response below is read whole, byte by byte, and split at every byte: what comes out is always the same.

use super::*;

/// A record of the application.
fn record(kind: u8, content: &[u8], padding: u8) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
    let head = [1, kind, 0, 1, high, low, padding, 0];
    [&head[..], content, &vec![0; padding.into()]].concat()
}

fn out(content: &[u8]) -> Vec<u8> {
    record(STDOUT, content, 0)
}

fn err(content: &[u8]) -> Vec<u8> {
    record(STDERR, content, 3)
}

fn end() -> Vec<u8> {
    record(END_REQUEST, &[0; 8], 0)
}

fn terms(keeps_open: bool) -> FastCgiSettings {
    FastCgiSettings { keeps_open, caught: [b"fatal".as_slice().into()].into() }
}

/// Outcome of reading a response.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    status: u16,
    fields: Vec<String>,
    body: Vec<u8>,
    said: Vec<String>,
    /// `Ok` says whether the connection can be used again.
    end: Result<bool, String>,
}

fn read_of(codec: &mut FastCgiCodec, pieces: &[&[u8]]) -> Read {
    let mut answer = UpstreamResponse::default();
    let mut read = Read { status: 0, fields: Vec::new(), body: Vec::new(), said: Vec::new(), end: Ok(false) };
    let mut say = |answer: &mut UpstreamResponse| {
        read.said.extend(answer.warnings.drain(..).map(|said| said.text.into()))
    };
    for piece in pieces {
        let mut input = Bytes::copy_from_slice(piece);
        loop {
            let event = codec.read(&mut input, &mut answer);
            say(&mut answer);
            match event {
                Ok(Event::NeedMore) => {
                    assert!(input.is_empty());
                    break;
                }
                Ok(Event::Interim) => panic!("there are none in FastCGI"),
                Ok(Event::Head) => {
                    read.status = answer.status;
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let fields = answer.fields.iter();
                    read.fields = fields.map(|(name, value)| text(name) + ": " + &text(value)).collect();
                }
                Ok(Event::Body(piece)) => {
                    assert!(!piece.is_empty());
                    read.body.extend_from_slice(&piece);
                }
                Ok(Event::End) => {
                    read.end = Ok(codec.keeps_alive() && input.is_empty());
                    return read;
                }
                Err(failure) => {
                    read.end = Err(failure.cause().unwrap().to_string());
                    return read;
                }
            }
        }
    }
    let closed = codec.closed();
    read.end = closed.map(|()| false).map_err(|failure| failure.cause().unwrap().to_string());
    read
}

fn read(bytes: &[u8], method: Method, keeps_open: bool) -> Read {
    let codec = || FastCgiCodec::new(method, 4096, terms(keeps_open));
    let whole = read_of(&mut codec(), &[bytes]);
    for at in 0..bytes.len() {
        let (first, second) = bytes.split_at(at);
        assert_eq!(read_of(&mut codec(), &[first, second]), whole, "split at {at}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(read_of(&mut codec(), &single), whole, "byte by byte");
    whole
}

/// Reads it for GET on a connection that stays.
fn get(parts: &[Vec<u8>]) -> Read {
    read(&parts.concat(), Method::Get, true)
}

const CLOSED: &str = "connection closed before the answer was complete";

#[test]
fn responses() {
    let read = get(&[out(b"Content-Type: a/b\r\n\r\nbody"), out(b""), end()]);
    assert_eq!((read.status, &*read.body, read.end), (200, &b"body"[..], Ok(true)));
    assert_eq!(read.fields, ["Content-Type: a/b"]);

    for (head, status) in [
        ("Status: 404 Not Found\r\n\r\n", 404),
        ("Status: 599\n\n", 599),
        ("Location: /a\r\n\r\n", 302),
        ("Status: 201 Made\r\nLocation: /a\r\n\r\n", 201),
        ("\r\n", 200),
    ] {
        let read = get(&[out(head.as_bytes()), end()]);
        assert_eq!((read.status, read.end), (status, Ok(true)), "{head}");
    }
}

#[test]
fn records_of_any_size_and_padding() {
    let text = b"Status: 200 OK\r\nX-A: b\r\nContent-Length: 5\r\n\r\nhello";
    for size in 1..=text.len() {
        for padding in [0, 1, 7, 255] {
            let records = text.chunks(size).map(|chunk| record(STDOUT, chunk, padding));
            let parts: Vec<u8> = records
                .chain([record(STDOUT, b"", padding), record(END_REQUEST, &[0; 8], padding)])
                .flatten()
                .collect();
            let read = read_of(&mut FastCgiCodec::new(Method::Get, 4096, terms(true)), &[&parts]);
            assert_eq!(
                (read.status, &*read.body, read.end),
                (200, &b"hello"[..], Ok(true)),
                "{size} {padding}"
            );
        }
    }
}

#[test]
fn stderr_of_the_application_is_logged() {
    let read = get(&[err(b"one. \r\n"), out(b"A: b\r\n\r\n"), err(b"two"), out(b"x"), err(b""), end()]);
    let said = ["one", "two"].map(|text| format!("FastCGI sent in stderr: \"{text}\""));
    assert_eq!((read.said, &*read.body, read.end), (said.to_vec(), &b"x"[..], Ok(true)));

    let read = get(&[err(b"PHP: fatal error")]);
    assert_eq!(read.end, Err("upstream said in stderr what \"fastcgi_catch_stderr\" names".to_owned()));
    // The response has begun.
    assert_eq!(get(&[out(b"\r\n"), err(b"fatal"), end()]).end, Ok(true));
}

#[test]
fn a_flood_of_complaints_is_cut() {
    let mut codec = FastCgiCodec::new(Method::Get, 4096, terms(true));
    let flood = record(STDERR, &[b'x'; 5000], 0).repeat(1000);
    let read = read_of(&mut codec, &[&flood, &out(b"\r\n"), &end()]);
    let logged: usize = read.said.iter().map(String::len).sum();
    assert!(logged < 2 * STDERR_MAX && read.said.iter().all(|line| line.len() < STDERR_LINE_MAX + 100));
    assert!(read.said.last().unwrap().contains("the rest is not logged"), "{:?}", read.said.last());
    assert_eq!(read.end, Ok(true));
}

#[test]
fn lies() {
    let head = out(b"Content-Length: 4\r\n\r\n");
    for (parts, expected) in [
        (
            vec![b"HTTP/1.1 200 OK".to_vec()],
            "upstream sent unsupported FastCGI protocol version: 72: the answer is HTTP/1; does the server speak only HTTP?",
        ),
        (vec![vec![1, 9]], CLOSED),
        (vec![record(9, b"", 0)], "upstream sent invalid FastCGI record type: 9"),
        (vec![vec![1, 6, 2, 1, 0, 0, 0, 0]], "upstream sent unexpected FastCGI request id high byte: 2"),
        (vec![vec![1, 6, 0, 0, 0, 0, 0, 0]], "upstream sent unexpected FastCGI request id low byte: 0"),
        (vec![end()], "upstream sent unexpected FastCGI record: 3"),
        (vec![out(b"")], "upstream prematurely closed FastCGI stdout"),
        (vec![out(b"Status: 2\r\n\r\n")], "upstream sent invalid status \"2\""),
        (vec![out(b"Status: 099\r\n\r\n")], "upstream sent invalid status \"099\""),
        (vec![out(b"Status: 2000\r\n\r\n")], "upstream sent invalid status \"2000\""),
        (vec![out(b"Status: 100\r\n\r\n")], "upstream sent invalid status \"100\""),
        (vec![out(b"Status: 101 X\r\n\r\n")], "upstream sent invalid status \"101\""),
        (vec![out(b"no field\r\n")], "upstream sent invalid header: \"no\\x20...\""),
        (
            vec![out(b"Content-Length: x\r\n")],
            "upstream sent invalid \"Content-Length\" header: \"Content-Length: x\"",
        ),
        (vec![head.clone(), out(b"abc"), end()], "upstream prematurely closed FastCGI request"),
        (vec![head.clone(), out(b"abc"), out(b"")], "upstream prematurely closed FastCGI stdout"),
        (vec![head.clone(), out(b"abc")], CLOSED),
        (vec![out(b"A: b\r\n\r\n"), out(b"abc")], CLOSED),
        (vec![out(b"A: b\r\n")], CLOSED),
        (vec![], CLOSED),
    ] {
        assert_eq!(get(&parts).end, Err(expected.to_owned()), "{parts:?}");
    }
    let too_big = out(format!("A: {}\r\n\r\n", "x".repeat(5000)).as_bytes());
    let read = read_of(&mut FastCgiCodec::new(Method::Get, 4096, terms(true)), &[&too_big]);
    assert_eq!(read.end, Err("upstream sent too big header".to_owned()));
}

#[test]
fn more_than_was_announced_is_cut_off() {
    let read = get(&[out(b"Content-Length: 4\r\n\r\nabcdefgh"), end()]);
    assert_eq!((&*read.body, read.end), (&b"abcd"[..], Ok(false)));
    assert_eq!(read.said, ["upstream sent more data than specified in \"Content-Length\" header"]);
    // Two statuses: the first one counts.
    let read = get(&[out(b"Status: 201 A\r\nStatus: 404 B\r\n\r\n"), end()]);
    assert!(read.status == 201 && read.said[0].contains("duplicate header line"), "{read:?}");
}

#[test]
fn responses_without_a_body_ignore_further_output() {
    for (method, head) in [
        (Method::Head, "Content-Length: 9\r\n\r\n"),
        (Method::Get, "Status: 304\r\n\r\n"),
        (Method::Get, "Status: 204\r\n\r\n"),
    ] {
        let bytes = [out(head.as_bytes()), out(b"something"), out(b""), end()].concat();
        let read = read(&bytes, method, true);
        assert_eq!((&*read.body, read.end), (&b""[..], Ok(true)), "{head}");
    }
}

#[test]
fn a_connection_that_does_not_stay_ends_with_the_output() {
    let bytes = [out(b"\r\nbody"), out(b"")].concat();
    assert_eq!(read(&bytes, Method::Get, false).end, Ok(false));
    assert_eq!(read(&[out(b"\r\nbody"), end()].concat(), Method::Get, false).end, Ok(false));
    // Neither the end of the output nor a length marks the end of the body, so the response is truncated.
    assert_eq!(read(&out(b"\r\nbody"), Method::Get, false).end, Err(CLOSED.to_owned()));
    // `Content-Length` marks the end of the body.
    assert_eq!(read(&out(b"Content-Length: 4\r\n\r\nbody"), Method::Get, false).end, Ok(false));
}

#[test]
fn whole_response_at_hand_is_taken_at_once() {
    for (rest, expected) in [
        (vec![out(b""), end()], Some("body")),
        (vec![end()], Some("body")),
        (vec![record(STDOUT, b"", 9), record(STDERR, b"", 1), record(END_REQUEST, &[0; 8], 7)], Some("body")),
        (vec![out(b"more"), end()], None),
        (vec![err(b"x"), end()], None),
        (vec![out(b"")], None),
        (vec![], None),
        (vec![vec![2; 8]], None),
    ] {
        let bytes = [out(b"A: b\r\n\r\nbody"), rest.concat()].concat();
        let mut codec = FastCgiCodec::new(Method::Get, 4096, terms(true));
        let mut input = Bytes::from(bytes);
        let mut answer = UpstreamResponse::default();
        assert!(matches!(codec.read(&mut input, &mut answer), Ok(Event::Head)));
        let whole = codec.whole(&mut input, &mut answer).unwrap();
        assert_eq!(whole.as_deref(), expected.map(str::as_bytes), "{rest:?}");
        assert_eq!(codec.keeps_alive() && input.is_empty(), expected.is_some());
    }
    // The last piece of a body with a length is followed by its end.
    let bytes = [out(b"Content-Length: 4\r\n\r\n"), out(b"bo"), out(b"dy"), end()].concat();
    let mut codec = FastCgiCodec::new(Method::Get, 4096, terms(true));
    let mut input = Bytes::from(bytes);
    let mut answer = UpstreamResponse::default();
    assert!(matches!(codec.read(&mut input, &mut answer), Ok(Event::Head)));
    assert!(codec.whole(&mut input, &mut answer).unwrap().is_none());
    for last in [false, true] {
        assert!(!codec.ends(&mut input, &mut answer));
        assert!(matches!(codec.read(&mut input, &mut answer), Ok(Event::Body(_))));
        if last {
            assert!(codec.ends(&mut input, &mut answer) && codec.keeps_alive());
        }
    }
}

fn param(head: &mut FastCgiRequest, name: &[u8], value: &[u8]) {
    let room = head.begin_param(name);
    let value_at = head.out().len();
    head.out().extend_from_slice(value);
    head.end_param(room, value_at);
}

#[test]
fn requests() {
    let mut head = FastCgiRequest::begin(100, true);
    param(&mut head, b"A", b"b");
    param(&mut head, b"C", &[b'd'; 200]);
    let bytes = head.end();
    assert_eq!(bytes[..16], [1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]);
    let len = 2 + 2 + 1 + 4 + 1 + 200;
    assert_eq!(bytes[16..24], [1, 4, 0, 1, 0, len as u8, padding_of(len) as u8, 0]);
    assert_eq!(&bytes[24..28], b"\x01\x01Ab");
    assert_eq!(&bytes[28..34], [1, 0x80, 0, 0, 200, b'C']);
    assert!(bytes.ends_with(&PARAMS_END) && bytes.len().is_multiple_of(8));

    assert_eq!(FastCgiRequest::begin(0, false).end().len(), BEGIN.len() + RECORD_HEAD);
    let mut large = FastCgiRequest::begin(0, false);
    param(&mut large, b"X", &vec![b'y'; 100_000]);
    let bytes = large.end();
    let mut rest = &bytes[16..];
    let mut params = Vec::new();
    while let [1, 4, 0, 1, high, low, padding, 0, more @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        params.extend_from_slice(&more[..len]);
        rest = &more[len + usize::from(*padding)..];
    }
    assert!(rest.is_empty() && params.len() == 1 + 4 + 1 + 100_000, "{}", params.len());
}
