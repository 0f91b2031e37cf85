//! The chunked transfer coding (RFC 9112 section 7.1): a decoder that stops and resumes at any byte, and the few
//! bytes an encoder needs.
//!
//! Stricter than nginx 1.31: only CRLF ends a line, the size is digits at once, `;` begins an extension, which is
//! skipped, and nothing but a tab in what is skipped is a control character.
//!
//! ```text
//! SizeStart ─ Size ─┬─ Blank ─ Extension ─ SizeLf ─ Data ─ DataCr ─ DataLf ─ SizeStart …
//!                   └─ (size 0) ─── SizeLf ─ TrailerStart ─┬─ Trailer ─ TrailerLf ─ TrailerStart …
//!                                                          └─ EndLf ─ Done
//! ```

use std::fmt;
use std::ops::Range;

use crate::{num, scan};

/// The largest chunk: nginx refuses a size whose next digit could overflow an `off_t`.
const CHUNK_MAX: u64 = i64::MAX as u64 / 16;

/// Hexadecimal digits of a size that do not count as overhead; more can only be leading zeros.
const FREE_DIGITS: u8 = 16;

/// Treatment of the trailer section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailers {
    /// Checked for its syntax and skipped.
    Skip,
    /// Decoding stops in front of it; the caller parses it as fields.
    Keep,
}

/// Why a chunked body is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkError {
    /// The coding is broken.
    Invalid,
    /// Extensions or trailers are longer than the limit.
    TooMuchOverhead,
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChunkError::Invalid => "invalid chunked body",
            ChunkError::TooMuchOverhead => "too long chunk extensions or trailers",
        })
    }
}

impl std::error::Error for ChunkError {}

/// Result of one decoding step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// The input is used up and the body continues.
    NeedMore,
    /// Body bytes: a range of the input.
    Data(Range<usize>),
    /// The body is complete, or its trailer section follows if it is kept.
    End,
}

/// Decodes one body.
#[derive(Clone, Debug)]
pub struct ChunkedDecoder {
    stage: Stage,
    trailers: Trailers,
    /// Size of the current chunk, then the remaining bytes of it.
    size: u64,
    digits: u8,
    /// Limit of further bytes of extensions, leading zeros and skipped trailers.
    overhead_left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    SizeStart,
    Size,
    /// After the size.
    Blank,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

tw_base::limits! {
    /// The limits kept here.
    pub(crate) const LIMITS;

    /// Bytes of chunk extensions and skipped trailers of one chunked body.
    ///
    /// RFC 9112 section 7.1.1: a recipient ought to limit the total length of chunk extensions. 16 KiB is what hyper
    /// allows, and far beyond anything that is in use.
    // DIFF(nginx): nginx skips extensions and trailers of any length.
    pub const OVERHEAD_MAX: usize = 16 * 1024, bytes, "400, or the end of the upstream response";
}

impl ChunkedDecoder {
    /// A decoder for one body that allows `overhead_max` bytes of extensions and skipped trailers.
    pub const fn new(trailers: Trailers, overhead_max: usize) -> Self {
        ChunkedDecoder { stage: Stage::SizeStart, trailers, size: 0, digits: 0, overhead_left: overhead_max }
    }

    /// Returns `true` once the body is complete.
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// Remaining bytes of the current chunk; 0 between chunks. They are known with the size line, before the data
    /// arrives, so a body can be refused early.
    pub fn chunk_left(&self) -> u64 {
        if self.stage == Stage::Data { self.size } else { 0 }
    }

    /// Decodes `input`, the bytes not yet consumed, up to the next piece of the body. Returns the number of consumed
    /// bytes and the result; the data of a [`Chunk::Data`] is part of the consumed bytes.
    ///
    /// # Errors
    /// [`ChunkError`]; the body and the connection are then unusable.
    pub fn decode(&mut self, input: &[u8]) -> Result<(usize, Chunk), ChunkError> {
        let mut at = 0;
        while self.stage != Stage::Done {
            let Some(&byte) = input.get(at) else { return Ok((at, Chunk::NeedMore)) };
            if self.stage == Stage::Data {
                let remaining = usize::try_from(self.size).unwrap_or(usize::MAX);
                let end = at + remaining.min(input.len() - at);
                self.size -= (end - at) as u64;
                if self.size == 0 {
                    self.stage = Stage::DataCr;
                }
                return Ok((end, Chunk::Data(at..end)));
            }
            self.stage = self.next(byte)?;
            at += 1;
        }
        Ok((at, Chunk::End))
    }

    fn next(&mut self, byte: u8) -> Result<Stage, ChunkError> {
        match (self.stage, byte) {
            (Stage::SizeStart, _) => {
                self.size = u64::from(scan::hex(byte).ok_or(ChunkError::Invalid)?);
                self.digits = 1;
                Ok(Stage::Size)
            }
            (Stage::Size, _) if self.size > CHUNK_MAX => Err(ChunkError::Invalid),
            (Stage::Size, b'\r') => Ok(Stage::SizeLf),
            (Stage::Size | Stage::Blank, b';') => self.overhead(Stage::Extension),
            (Stage::Size | Stage::Blank, b' ' | b'\t') => self.overhead(Stage::Blank),
            (Stage::Size, _) => {
                let digit = scan::hex(byte).ok_or(ChunkError::Invalid)?;
                self.size = self.size * 16 + u64::from(digit);
                if self.digits == FREE_DIGITS {
                    return self.overhead(Stage::Size);
                }
                self.digits += 1;
                Ok(Stage::Size)
            }
            (Stage::Blank | Stage::Extension, b'\r') => Ok(Stage::SizeLf),
            // DIFF(nginx): nginx skips whatever follows a blank, and any byte but LF.
            (Stage::Extension, _) if is_control(byte) => Err(ChunkError::Invalid),
            (Stage::Extension, _) => self.overhead(Stage::Extension),
            (Stage::SizeLf, b'\n') if self.size > 0 => Ok(Stage::Data),
            (Stage::SizeLf, b'\n') if self.trailers == Trailers::Keep => Ok(Stage::Done),
            (Stage::SizeLf, b'\n') => Ok(Stage::TrailerStart),
            (Stage::DataCr, b'\r') => Ok(Stage::DataLf),
            (Stage::DataLf, b'\n') => Ok(Stage::SizeStart),
            (Stage::TrailerStart, b'\r') => Ok(Stage::EndLf),
            (Stage::Trailer, b'\r') => Ok(Stage::TrailerLf),
            (Stage::TrailerStart | Stage::Trailer, _) if is_control(byte) => Err(ChunkError::Invalid),
            (Stage::TrailerStart | Stage::Trailer, _) => self.overhead(Stage::Trailer),
            (Stage::TrailerLf, b'\n') => Ok(Stage::TrailerStart),
            (Stage::EndLf, b'\n') => Ok(Stage::Done),
            _ => Err(ChunkError::Invalid),
        }
    }

    fn overhead(&mut self, stage: Stage) -> Result<Stage, ChunkError> {
        self.overhead_left = self.overhead_left.checked_sub(1).ok_or(ChunkError::TooMuchOverhead)?;
        Ok(stage)
    }
}

/// Returns `true` for bytes that are invalid in a line or could be taken for its end.
fn is_control(byte: u8) -> bool {
    byte.is_ascii_control() && byte != b'\t'
}

/// The line in front of a chunk: its size and CRLF.
#[derive(Clone, Copy, Debug)]
pub struct ChunkHead {
    bytes: [u8; num::HEX_MAX + 2],
    len: u8,
}

impl ChunkHead {
    /// The line for a chunk of `size` bytes; `size` must not be 0, which would end the body.
    pub fn new(size: u64) -> Self {
        debug_assert_ne!(size, 0, "an empty chunk ends the body");
        let mut digits = [0; num::HEX_MAX];
        let text = num::hex(size, &mut digits);
        let mut bytes = [0; num::HEX_MAX + 2];
        let line = text.iter().chain(b"\r\n");
        let len = bytes.iter_mut().zip(line).map(|(to, &from)| *to = from).count();
        ChunkHead { bytes, len: len as u8 }
    }

    /// The bytes of the line.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(b"")
    }
}

/// Line end after the data of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// The last chunk; the trailer section or an empty line follows.
pub const LAST_CHUNK: &[u8] = b"0\r\n";

/// The end of a body without trailers.
pub const BODY_END: &[u8] = b"0\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body in two pieces split at `at`: the data and the number of consumed bytes, `None` if the body
    /// continues.
    fn decoded(body: &[u8], at: usize, trailers: Trailers) -> Result<(Vec<u8>, Option<usize>), ChunkError> {
        let mut decoder = ChunkedDecoder::new(trailers, 100);
        let mut data = Vec::new();
        let mut consumed = 0;
        for end in [at, body.len()] {
            loop {
                let input = &body[consumed..end];
                let (used, chunk) = decoder.decode(input)?;
                consumed += used;
                match chunk {
                    Chunk::NeedMore => break,
                    Chunk::Data(range) => data.extend_from_slice(&input[range]),
                    Chunk::End => {
                        assert!(decoder.is_done());
                        return Ok((data, Some(consumed)));
                    }
                }
            }
        }
        Ok((data, None))
    }

    #[test]
    fn bodies() {
        let table: &[(&str, Result<&str, ChunkError>)] = &[
            ("4\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\n", Ok("Wikipedia")),
            ("0\r\n\r\n", Ok("")),
            ("00\r\n\r\n", Ok("")),
            ("0;a=b\r\n\r\n", Ok("")),
            ("1;a=\"b;c\"\r\nx\r\n0\r\n\r\n", Ok("x")),
            ("1 ; a\r\nx\r\n0\r\n\r\n", Ok("x")),
            ("1\t\r\nx\r\n0 \r\n\r\n", Ok("x")),
            ("A\r\n0123456789\r\n0\r\n\r\n", Ok("0123456789")),
            ("a\r\n0123456789\r\n0\r\n\r\n", Ok("0123456789")),
            ("0000000000000000000002\r\nab\r\n0\r\n\r\n", Ok("ab")),
            ("2\r\n\r\n\r\n0\r\n\r\n", Ok("\r\n")),
            ("0\r\nX: y\r\nZ: w\r\n\r\n", Ok("")),
            ("0\r\n: any\tthing\u{e4}\r\n\r\n", Ok("")),
            ("1 \t ;a\tb\r\nx\r\n0\r\n\r\n", Ok("x")),
            ("", Err(ChunkError::Invalid)),
            ("\r\n", Err(ChunkError::Invalid)),
            (" 1\r\nx\r\n0\r\n\r\n", Err(ChunkError::Invalid)),
            ("g\r\n", Err(ChunkError::Invalid)),
            ("0x1\r\nx\r\n0\r\n\r\n", Err(ChunkError::Invalid)),
            ("+1\r\nx\r\n", Err(ChunkError::Invalid)),
            ("-1\r\nx\r\n", Err(ChunkError::Invalid)),
            ("1_0\r\n", Err(ChunkError::Invalid)),
            ("1\nx\n0\n\n", Err(ChunkError::Invalid)),
            ("1\r\nx\n0\r\n\r\n", Err(ChunkError::Invalid)),
            ("1;a\nx\r\n0\r\n\r\n", Err(ChunkError::Invalid)),
            ("1 1\r\nx\r\n0\r\n\r\n", Err(ChunkError::Invalid)),
            ("1 a;b\r\nx\r\n0\r\n\r\n", Err(ChunkError::Invalid)),
            ("1;\0\r\nx\r\n0\r\n\r\n", Err(ChunkError::Invalid)),
            ("1;\u{b}\r\nx\r\n0\r\n\r\n", Err(ChunkError::Invalid)),
            ("0\r\n\0\r\n\r\n", Err(ChunkError::Invalid)),
            ("0\r\nX: \u{7f}\r\n\r\n", Err(ChunkError::Invalid)),
            ("1\rx", Err(ChunkError::Invalid)),
            ("1\r\r\nx\r\n", Err(ChunkError::Invalid)),
            ("1;a\rb\r\nx\r\n", Err(ChunkError::Invalid)),
            ("1\r\nxy\r\n", Err(ChunkError::Invalid)),
            ("1\r\nx0\r\n\r\n", Err(ChunkError::Invalid)),
            ("0\r\n\n", Err(ChunkError::Invalid)),
            ("0\r\nX: y\n\r\n", Err(ChunkError::Invalid)),
            ("0\r\nX: y\rz\r\n\r\n", Err(ChunkError::Invalid)),
            ("0\r\n\rX", Err(ChunkError::Invalid)),
            ("0\n\r\n", Err(ChunkError::Invalid)),
            ("7fffffffffffffff\r\n", Err(ChunkError::Invalid)),
            ("800000000000000\r\n", Err(ChunkError::Invalid)),
            ("10000000000000000\r\n", Err(ChunkError::Invalid)),
            ("ffffffffffffffffffff\r\n", Err(ChunkError::Invalid)),
        ];
        for (body, expected) in table {
            let whole = decoded(body.as_bytes(), 0, Trailers::Skip);
            let got = match &whole {
                Ok((data, Some(consumed))) => {
                    assert_eq!(*consumed, body.len(), "{body:?}");
                    Ok(std::str::from_utf8(data).unwrap())
                }
                Ok((_, None)) => Err(ChunkError::Invalid),
                Err(error) => Err(*error),
            };
            assert_eq!(got, *expected, "{body:?}");
            for at in 0..body.len() {
                assert_eq!(decoded(body.as_bytes(), at, Trailers::Skip), whole, "{body:?} split at {at}");
            }
        }
    }

    #[test]
    fn bytes_after_the_body_are_not_consumed() {
        let body = b"1\r\nx\r\n0\r\n\r\nGET / HTTP/1.1\r\n";
        assert_eq!(decoded(body, 3, Trailers::Skip), Ok((b"x".to_vec(), Some(11))));
    }

    #[test]
    fn kept_trailers_are_left_to_the_caller() {
        let body = b"1\r\nx\r\n0\r\nX: y\r\n\r\n";
        assert_eq!(decoded(body, 3, Trailers::Keep), Ok((b"x".to_vec(), Some(9))));
    }

    #[test]
    fn overhead_is_limited() {
        let long = "x".repeat(101);
        for body in [format!("1;{long}"), format!("0\r\n{long}"), "0".repeat(16 + 101)] {
            assert_eq!(
                decoded(body.as_bytes(), 0, Trailers::Skip),
                Err(ChunkError::TooMuchOverhead),
                "{body}"
            );
        }
        let many = "1;1234567890123456789\r\nx\r\n".repeat(5);
        assert!(decoded(many.as_bytes(), 0, Trailers::Skip).is_ok());
        let more = many + "1;\r\n";
        assert_eq!(decoded(more.as_bytes(), 0, Trailers::Skip), Err(ChunkError::TooMuchOverhead));
    }

    #[test]
    fn huge_chunk_is_returned_as_it_arrives() {
        let mut decoder = ChunkedDecoder::new(Trailers::Skip, 0);
        assert_eq!(decoder.decode(b"7ffffffffffffff\r\nabc"), Ok((20, Chunk::Data(17..20))));
        assert_eq!(decoder.decode(b""), Ok((0, Chunk::NeedMore)));
        assert_eq!(decoder.decode(b"de"), Ok((2, Chunk::Data(0..2))));
    }

    #[test]
    fn chunk_size_is_known_before_its_data() {
        let mut decoder = ChunkedDecoder::new(Trailers::Skip, 100);
        for (input, expected, remaining) in [
            (&b""[..], Chunk::NeedMore, 0),
            // A size is not known before its line has ended.
            (b"00", Chunk::NeedMore, 0),
            (b"1", Chunk::NeedMore, 0),
            (b"2;ext", Chunk::NeedMore, 0),
            (b"\r", Chunk::NeedMore, 0),
            (b"\n", Chunk::NeedMore, 18),
            (b"", Chunk::NeedMore, 18),
            (b"abc", Chunk::Data(0..3), 15),
            (b"0123456789abcde", Chunk::Data(0..15), 0),
            (b"\r\n", Chunk::NeedMore, 0),
            (b"7ffffffffffffff\r\nxy", Chunk::Data(17..19), 0x7ff_ffff_ffff_fffd),
        ] {
            let result = decoder.decode(input).map(|(_, chunk)| (chunk, decoder.chunk_left()));
            assert_eq!(result, Ok((expected, remaining)), "{input:?}");
        }
        let mut decoder = ChunkedDecoder::new(Trailers::Skip, 0);
        assert_eq!(decoder.decode(b"0\r\n"), Ok((3, Chunk::NeedMore)));
        assert_eq!(decoder.chunk_left(), 0);
        assert_eq!(decoder.decode(b"\r\n"), Ok((2, Chunk::End)));
        assert_eq!(decoder.chunk_left(), 0);
    }

    #[test]
    fn heads() {
        let table = [(1, "1\r\n"), (10, "a\r\n"), (0x1234, "1234\r\n"), (u64::MAX, "ffffffffffffffff\r\n")];
        for (size, expected) in table {
            assert_eq!(ChunkHead::new(size).as_bytes(), expected.as_bytes());
        }
    }
}
