//! Invariants for any bytes of an application or memcached: no panic, and the same response however they are split.

use bytes::Bytes;
use tw_http::Method;
use tw_proxy::codec::fastcgi::{FastCgiCodec, FastCgiSettings};
use tw_proxy::codec::http1::Http1Codec;
use tw_proxy::codec::memcached::MemcachedCodec;
use tw_proxy::codec::{Codec, Event};
use tw_request::upstream_response::UpstreamResponse;

/// Longest input that is split at every byte; longer ones are split at some.
const SPLIT_EVERYWHERE_MAX: usize = 200;
/// Bytes that a head may have.
const HEAD_SIZE: usize = 300;

pub(crate) fn fastcgi(data: &[u8]) {
    for method in [Method::Get, Method::Head] {
        let terms = FastCgiSettings { keeps_open: true, caught: [b"fatal".as_slice().into()].into() };
        check(data, || FastCgiCodec::new(method, HEAD_SIZE, terms.clone()));
    }
}

pub(crate) fn application(data: &[u8]) {
    check(data, || Http1Codec::of_application(Method::Get, HEAD_SIZE));
}

pub(crate) fn memcached(data: &[u8]) {
    check(data, || MemcachedCodec::new(Bytes::from_static(b"key"), HEAD_SIZE, 2, false));
}

fn check<C: Codec>(data: &[u8], codec: impl Fn() -> C) {
    let whole = outcome(&[data], codec());
    let step = if data.len() <= SPLIT_EVERYWHERE_MAX { 1 } else { data.len() / 16 };
    for at in (0..data.len()).step_by(step) {
        let (first, second) = data.split_at(at);
        assert_eq!(outcome(&[first, second], codec()), whole, "split at {at}");
    }
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    assert_eq!(outcome(&bytes, codec()), whole, "byte by byte");
    at_once(data, codec(), &whole);
}

/// Visible parts of a response, as text, with its end exactly once.
fn outcome<C: Codec>(pieces: &[&[u8]], mut codec: C) -> String {
    let (mut seen, mut body, mut answer) = (String::new(), Vec::new(), UpstreamResponse::default());
    for piece in pieces {
        let mut input = Bytes::copy_from_slice(piece);
        loop {
            match codec.read(&mut input, &mut answer) {
                Ok(Event::NeedMore) => {
                    assert!(input.is_empty());
                    break;
                }
                Ok(Event::Interim) => seen.push_str("interim\n"),
                Ok(Event::Head) => seen.push_str(&head(&answer)),
                Ok(Event::Body(piece)) => {
                    assert!(!piece.is_empty());
                    body.extend_from_slice(&piece);
                }
                Ok(Event::End) => return format!("{seen}{} end", body.escape_ascii()),
                Err(fault) => return format!("{seen}{} {fault:?}", body.escape_ascii()),
            }
        }
    }
    format!("{seen}{} {:?}", body.escape_ascii(), codec.closed())
}

fn head(answer: &UpstreamResponse) -> String {
    assert!((100..=999).contains(&answer.status));
    let is_clean = |bytes: &[u8]| !bytes.iter().any(|&byte| byte < b' ' && byte != b'\t' || byte == 0x7f);
    assert!(answer.fields.iter().all(|(_, value)| is_clean(value)) && is_clean(&answer.status_line));
    let fields: Vec<_> = answer
        .fields
        .iter()
        .map(|(name, value)| format!("{}: {}", name.escape_ascii(), value.escape_ascii()))
        .collect();
    format!("{} {:?} {fields:?}\n", answer.status, answer.content_length)
}

/// A body that is taken at once is the same as one that is read.
fn at_once<C: Codec>(data: &[u8], mut codec: C, whole: &str) {
    let (mut input, mut answer) = (Bytes::copy_from_slice(data), UpstreamResponse::default());
    loop {
        match codec.read(&mut input, &mut answer) {
            Ok(Event::Interim) => {}
            Ok(Event::Head) => break,
            _ => return,
        }
    }
    if let Ok(Some(body)) = codec.whole(&mut input, &mut answer) {
        assert!(whole.contains(&body.escape_ascii().to_string()), "{whole}");
    }
}
