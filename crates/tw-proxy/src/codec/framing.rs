//! Framing of request bodies for upstream servers.

use bytes::Bytes;
use tw_http::chunked::{BODY_END, CHUNK_END, ChunkHead};

use super::fastcgi::{RECORD_MAX, STDIN_END, record_head, record_padding};

/// Framing of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFraming {
    /// Length given in the head.
    Plain,
    /// Chunks.
    Chunked,
    /// Records of FastCGI, also of a body that is empty.
    Records,
}

impl BodyFraming {
    /// Adds `pieces` of a body, `size` bytes in all and more than none, to what is sent.
    pub(crate) fn push(self, pieces: Vec<Bytes>, size: usize, parts: &mut Vec<Bytes>) {
        match self {
            Self::Plain => parts.extend(pieces),
            Self::Chunked => {
                parts.push(Bytes::copy_from_slice(ChunkHead::new(size as u64).as_bytes()));
                parts.extend(pieces);
                parts.push(Bytes::from_static(CHUNK_END));
            }
            Self::Records => push_records(pieces, size, parts),
        }
    }

    /// End mark of the body, also of an empty one.
    pub fn end(self) -> Bytes {
        match self {
            Self::Plain => Bytes::new(),
            Self::Chunked => Bytes::from_static(BODY_END),
            Self::Records => Bytes::from_static(STDIN_END),
        }
    }
}

fn push_records(pieces: Vec<Bytes>, size: usize, parts: &mut Vec<Bytes>) {
    let mut remaining = size;
    // Bytes that the current record can still take.
    let mut room = 0;
    let mut padding = Bytes::new();
    for mut piece in pieces {
        while !piece.is_empty() {
            if room == 0 {
                room = remaining.min(RECORD_MAX);
                remaining -= room;
                if !padding.is_empty() {
                    parts.push(padding);
                }
                parts.push(record_head(room));
                padding = record_padding(room);
            }
            let taken = piece.split_to(room.min(piece.len()));
            room -= taken.len();
            parts.push(taken);
        }
    }
    if !padding.is_empty() {
        parts.push(padding);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(framing: BodyFraming, pieces: &[usize]) -> Vec<u8> {
        let mut parts = Vec::new();
        let bytes = pieces.iter().map(|size| vec![b'x'; *size].into()).collect();
        framing.push(bytes, pieces.iter().sum(), &mut parts);
        parts.push(framing.end());
        parts.concat()
    }

    #[test]
    fn bodies_are_marked() {
        assert_eq!(framed(BodyFraming::Plain, &[2, 1]), b"xxx");
        assert_eq!(framed(BodyFraming::Chunked, &[2, 1]), b"3\r\nxxx\r\n0\r\n\r\n");
        let expected = b"\x01\x05\0\x01\0\x03\x05\0xxx\0\0\0\0\0\x01\x05\0\x01\0\0\0\0";
        assert_eq!(framed(BodyFraming::Records, &[2, 1]), expected);
    }

    /// The content of records, each with its length and that of its padding.
    fn records(mut bytes: &[u8]) -> Vec<(usize, usize)> {
        let mut results = Vec::new();
        while let [1, 5, 0, 1, high, low, padding, 0, rest @ ..] = bytes {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            let padding = usize::from(*padding);
            assert!(rest[..len].iter().all(|byte| *byte == b'x'));
            assert!(rest[len..len + padding].iter().all(|byte| *byte == 0));
            results.push((len, padding));
            bytes = &rest[len + padding..];
        }
        assert_eq!(bytes, b"");
        results
    }

    #[test]
    fn a_body_of_any_size_becomes_records() {
        for (pieces, expected) in [
            (&[8][..], &[(8, 0), (0, 0)][..]),
            (&[RECORD_MAX], &[(RECORD_MAX, 0), (0, 0)]),
            (&[RECORD_MAX, 1], &[(RECORD_MAX, 0), (1, 7), (0, 0)]),
            (&[RECORD_MAX - 1, 2, 9], &[(RECORD_MAX, 0), (10, 6), (0, 0)]),
            (&[2 * RECORD_MAX + 3], &[(RECORD_MAX, 0), (RECORD_MAX, 0), (3, 5), (0, 0)]),
        ] {
            assert_eq!(records(&framed(BodyFraming::Records, pieces)), expected, "{pieces:?}");
        }
    }
}
