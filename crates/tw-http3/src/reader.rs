//! Splits received bytes of one stream into frames. A payload is passed on in the pieces in which it arrives.

use bytes::{Buf, Bytes};

use crate::frame::Head;
use crate::varint;

/// Size of the longest frame header, in bytes.
const HEAD_MAX: usize = 2 * varint::SIZE_MAX;

/// Position of the reader in a stream of frames.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Beginning of a frame header, and the number of its bytes.
    head: [u8; HEAD_MAX],
    came: usize,
    /// Number of bytes of the payload still to come; `None` between frames.
    remaining: Option<u64>,
}

/// Kind of the next bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A frame begins.
    Head(Head),
    /// Part of its payload, and whether that is the last one. A frame without payload has one empty piece.
    Payload(Bytes, bool),
}

impl Reader {
    pub(crate) const fn new() -> Self {
        Self { head: [0; HEAD_MAX], came: 0, remaining: None }
    }

    /// Returns true between two frames.
    pub(crate) fn is_between(&self) -> bool {
        self.came == 0 && self.remaining.is_none()
    }

    /// Takes the next piece off `bytes`; `None` if more have to come.
    pub(crate) fn next(&mut self, bytes: &mut Bytes) -> Option<Piece> {
        let Some(remaining) = self.remaining else {
            let head = self.head(bytes)?;
            self.remaining = Some(head.len);
            return Some(Piece::Head(head));
        };
        if bytes.is_empty() && remaining > 0 {
            return None;
        }
        let some = bytes.split_to(usize::try_from(remaining).unwrap_or(usize::MAX).min(bytes.len()));
        let remaining = remaining - some.len() as u64;
        self.remaining = (remaining > 0).then_some(remaining);
        Some(Piece::Payload(some, remaining == 0))
    }

    /// Takes a frame header, which may be split at any position.
    fn head(&mut self, bytes: &mut Bytes) -> Option<Head> {
        if self.came == 0 {
            let mut rest = &**bytes;
            if let Some(head) = parse(&mut rest) {
                let len = bytes.len() - rest.len();
                bytes.advance(len);
                return Some(head);
            }
        }
        while let Some((first, _)) = bytes.split_first() {
            if let Some(place) = self.head.get_mut(self.came) {
                *place = *first;
            }
            self.came += 1;
            bytes.advance(1);
            let mut rest = self.head.get(..self.came).unwrap_or(&self.head);
            if let Some(head) = parse(&mut rest) {
                self.came = 0;
                return Some(head);
            }
        }
        None
    }
}

fn parse(rest: &mut &[u8]) -> Option<Head> {
    let kind = varint::take(rest)?;
    let len = varint::take(rest)?;
    Some(Head { kind, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads everything in pieces of this size.
    fn read(all: &[u8], size: usize) -> (Vec<(Head, Vec<u8>)>, bool) {
        let mut reader = Reader::new();
        let mut frames = Vec::<(Head, Vec<u8>)>::new();
        for bytes in all.chunks(size) {
            let mut bytes = Bytes::copy_from_slice(bytes);
            while let Some(piece) = reader.next(&mut bytes) {
                match piece {
                    Piece::Head(head) => frames.push((head, Vec::new())),
                    Piece::Payload(some, is_last) => {
                        let (head, payload) = frames.last_mut().unwrap();
                        payload.extend_from_slice(&some);
                        assert_eq!(is_last, payload.len() as u64 == head.len);
                    }
                }
            }
            assert!(bytes.is_empty());
        }
        (frames, reader.is_between())
    }

    #[test]
    fn frames_are_read_in_any_split() {
        let mut all = Vec::new();
        let mut expected = Vec::new();
        for (kind, len) in [(0, 5), (4, 0), (0xf_0700, 300), (varint::MAX, 70_000), (1 << 20, 0), (13, 1)] {
            let head = Head { kind, len: len as u64 };
            let payload = vec![kind as u8; len];
            head.put(&mut all);
            all.extend_from_slice(&payload);
            expected.push((head, payload));
        }
        for size in (1..50).chain([1000, usize::MAX]) {
            assert_eq!(read(&all, size), (expected.clone(), true), "in pieces of {size}");
        }
        for cut in 1..all.len().min(400) {
            let (frames, is_between) = read(&all[..cut], usize::MAX);
            let len = frames.iter().map(|(head, payload)| {
                let mut bytes = Vec::new();
                head.put(&mut bytes);
                bytes.len() + payload.len()
            });
            let is_whole = frames.iter().all(|(head, payload)| payload.len() as u64 == head.len);
            assert_eq!(is_between, is_whole && len.sum::<usize>() == cut, "{cut}");
        }
    }
}
