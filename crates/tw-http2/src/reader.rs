//! Splits received bytes into frames. A payload is passed on in the pieces in which it arrives.

use crate::frame::{HEAD_SIZE, Head, PREFACE};
use crate::settings::End;
use crate::{ConnectionError, ErrorCode};

/// Position of the reader in the stream of frames.
#[derive(Debug)]
pub(crate) struct Reader {
    stage: Stage,
    head: [u8; HEAD_SIZE],
    /// Received bytes of the frame header.
    came: usize,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Number of bytes of the preface still to come.
    Preface(usize),
    Head,
    /// Number of bytes of the payload still to come.
    Payload(usize),
}

/// Kind of the next bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// A frame begins.
    Head(Head),
    /// Part of its payload, and whether that is the last one. A frame without payload has one empty piece.
    Payload(&'a [u8], bool),
}

impl Reader {
    pub(crate) fn new(end: End) -> Self {
        let stage = match end {
            End::Server => Stage::Preface(PREFACE.len()),
            End::Client => Stage::Head,
        };
        Self { stage, head: [0; HEAD_SIZE], came: 0 }
    }

    /// Received bytes of a frame header that is not complete.
    pub(crate) fn partial_head(&self) -> &[u8] {
        self.head.get(..self.came).unwrap_or_default()
    }

    /// Takes the next piece off `bytes`; `None` if more have to come.
    ///
    /// # Errors
    /// The bytes are not those of an HTTP/2 client.
    pub(crate) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, ConnectionError> {
        loop {
            match self.stage {
                Stage::Preface(rest) => {
                    let (some, behind) = bytes.split_at(bytes.len().min(rest));
                    let expected = PREFACE.get(PREFACE.len() - rest..).unwrap_or_default();
                    if !expected.starts_with(some) {
                        return Err(ConnectionError::Local(
                            ErrorCode::PROTOCOL_ERROR,
                            "sent invalid http2 preface",
                        ));
                    }
                    *bytes = behind;
                    match rest - some.len() {
                        0 => self.stage = Stage::Head,
                        rest => {
                            self.stage = Stage::Preface(rest);
                            return Ok(None);
                        }
                    }
                }
                Stage::Head => {
                    let head = match bytes.split_first_chunk() {
                        Some((head, behind)) if self.came == 0 => {
                            *bytes = behind;
                            *head
                        }
                        _ => {
                            let (some, behind) = bytes.split_at(bytes.len().min(HEAD_SIZE - self.came));
                            self.head.iter_mut().skip(self.came).zip(some).for_each(|(to, from)| *to = *from);
                            self.came += some.len();
                            *bytes = behind;
                            if self.came < HEAD_SIZE {
                                return Ok(None);
                            }
                            self.came = 0;
                            self.head
                        }
                    };
                    let head = Head::parse(head);
                    self.stage = Stage::Payload(head.len);
                    return Ok(Some(Piece::Head(head)));
                }
                Stage::Payload(rest) => {
                    if bytes.is_empty() && rest > 0 {
                        return Ok(None);
                    }
                    let (some, behind) = bytes.split_at(bytes.len().min(rest));
                    *bytes = behind;
                    let rest = rest - some.len();
                    self.stage = if rest == 0 { Stage::Head } else { Stage::Payload(rest) };
                    return Ok(Some(Piece::Payload(some, rest == 0)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::kind;

    /// Reads everything in pieces of this size.
    fn read(all: &[u8], size: usize) -> Result<Vec<(Head, Vec<u8>)>, ConnectionError> {
        let mut reader = Reader::new(End::Server);
        let mut frames = Vec::<(Head, Vec<u8>)>::new();
        for mut bytes in all.chunks(size) {
            while let Some(piece) = reader.next(&mut bytes)? {
                match piece {
                    Piece::Head(head) => frames.push((head, Vec::new())),
                    Piece::Payload(some, is_last) => {
                        let (head, payload) = frames.last_mut().unwrap();
                        payload.extend_from_slice(some);
                        assert_eq!(is_last, payload.len() == head.len);
                    }
                }
            }
        }
        Ok(frames)
    }

    #[test]
    fn frames_are_read_in_any_split() {
        let frames =
            [(kind::DATA, 1, 5), (kind::SETTINGS, 0, 0), (77, u32::MAX >> 1, 300), (kind::PING, 0, 8)];
        let mut all = PREFACE.to_vec();
        let mut expected = Vec::new();
        for (kind, stream, len) in frames {
            let head = Head { len, kind, flags: 3, stream };
            let payload = vec![kind; len];
            all.extend_from_slice(&head.bytes());
            all.extend_from_slice(&payload);
            expected.push((head, payload));
        }
        for size in (1..50).chain([1000]) {
            assert_eq!(read(&all, size).as_ref(), Ok(&expected), "in pieces of {size}");
        }
    }

    #[test]
    fn other_protocols_are_detected_early() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", b"X"] {
            assert!(read(bytes, 4).is_err());
        }
        assert_eq!(read(b"PRI", 1), Ok(Vec::new()));
    }
}
