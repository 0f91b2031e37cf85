//! Parts of bodies, and what they cost.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use tw_http_testkit::with_request;
use tw_request::body::{Body, Pull};
use tw_request::plan::LocalFuture;
use tw_request::request::Request;

/// Makes bytes of which each is known by its place, and counts those that were asked for.
struct Alphabet {
    rest: Range<u8>,
    parts: CanPart,
    made: Rc<Cell<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CanPart {
    Yes,
    No,
}

impl Pull for Alphabet {
    fn next<'a>(&'a mut self, _: usize, _: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        let piece = self.rest.next().map(|byte| Bytes::copy_from_slice(&[byte]));
        self.made.set(self.made.get() + usize::from(piece.is_some()));
        Box::pin(async { Ok(piece) })
    }

    fn remaining(&self) -> Option<u64> {
        Some(self.rest.len() as u64)
    }

    fn part(&self, start: u64, len: u64) -> Option<Box<dyn Pull>> {
        let at = |n: u64| self.rest.start.saturating_add(n as u8).min(self.rest.end);
        let rest = at(start)..at(start + len);
        let made = self.made.clone();
        (self.parts == CanPart::Yes)
            .then(|| Box::new(Self { rest, parts: self.parts, made }) as Box<dyn Pull>)
    }
}

/// The letters, and how many of them have been made.
fn stream(parts: CanPart) -> (Body, Rc<Cell<usize>>) {
    let made = Rc::new(Cell::new(0));
    (Body::Pull(Box::new(Alphabet { rest: b'a'..b'z' + 1, parts, made: made.clone() })), made)
}

fn parts() -> Body {
    let bytes = |text: &'static str| Body::Bytes(Bytes::from_static(text.as_bytes()));
    Body::Parts([bytes("ab"), Body::Empty, Body::Parts([bytes("cd"), bytes("")].into()), bytes("ef")].into())
}

fn read(r: &mut Request, mut body: Body, want: usize) -> String {
    let mut all = Vec::new();
    loop {
        let remaining = body.len().unwrap();
        let Poll::Ready(piece) = body.next(want, r).as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("nothing here waits");
        };
        let Some(piece) = piece.unwrap() else { break };
        assert_eq!(body.len().unwrap(), remaining - piece.len() as u64);
        all.extend_from_slice(&piece);
    }
    assert!(body.is_empty());
    String::from_utf8(all).unwrap()
}

#[test]
fn any_part_of_any_body() {
    with_request("server { }", "GET / HTTP/1.0\r\n\r\n", |r| {
        for (start, len, expected) in
            [(0, 6, "abcdef"), (1, 4, "bcde"), (2, 2, "cd"), (5, 9, "f"), (3, 0, ""), (7, 1, "")]
        {
            for want in [1, 2, 100] {
                let part = parts().part(start, len).unwrap();
                assert_eq!(read(r, part, want), expected, "{start} {len}");
            }
            let of_bytes = Body::Bytes(Bytes::from_static(b"abcdef")).part(start, len).unwrap();
            assert_eq!(read(r, of_bytes, 4), expected, "{start} {len}");
        }
        assert!(Body::Empty.part(3, 4).unwrap().is_empty());
    });
}

#[test]
fn parts_of_streams_cost_their_bytes() {
    with_request("server { }", "GET / HTTP/1.0\r\n\r\n", |r| {
        let bytes = |text: &'static str| Body::Bytes(Bytes::from_static(text.as_bytes()));
        for (start, len, expected) in [(0, 2, "ab"), (24, 2, "yz"), (25, 9, "z"), (3, 0, "")] {
            let (whole, made) = stream(CanPart::Yes);
            assert_eq!(read(r, whole.part(start, len).unwrap(), 4), expected, "{start} {len}");
            assert_eq!(made.get(), expected.len(), "{start} {len}");
        }
        let (letters, made) = stream(CanPart::Yes);
        let mixed = Body::Parts([bytes("<"), letters, bytes(">")].into());
        for (start, len, expected) in [(0, 2, "<a"), (26, 2, "z>"), (26, 1, "z"), (27, 1, ">")] {
            assert_eq!(read(r, mixed.part(start, len).unwrap(), 4), expected, "{start} {len}");
        }
        assert_eq!(made.get(), 3);
        assert_eq!(read(r, mixed, 4), "<abcdefghijklmnopqrstuvwxyz>");
    });
}

#[test]
fn stream_that_cannot_skip_has_no_parts() {
    let (letters, made) = stream(CanPart::No);
    assert!(letters.part(0, 1).is_none());
    let mixed = Body::Parts([Body::Bytes(Bytes::from_static(b"<")), letters].into());
    assert_eq!(mixed.part(0, 1).unwrap().len(), Some(1));
    assert!(mixed.part(0, 2).is_none());
    assert_eq!(made.get(), 0);
}
