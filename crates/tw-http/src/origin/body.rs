//! Decoder for response bodies of every framing, which stops and resumes at any byte and returns slices of its input.
//!
//! ```text
//! Length ────────────────────────┬─ Done
//! Chunked ─┬─────────────────────┤
//!          └─ Trailers (if kept) ┤
//! Close ───── (origin closes) ───┘
//! ```

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::ResponseFraming;
use super::trailer::{TrailerError, TrailerParser};
use crate::chunked::{Chunk, ChunkError, ChunkedDecoder, OVERHEAD_MAX, Trailers};
use crate::fields::Fields;
use crate::head::PeerBytes;

/// Why there is no more of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The chunked coding is broken, or has too much besides data.
    Chunked(ChunkError),
    /// A line of the trailer section is no field.
    InvalidTrailer,
    /// The trailer section is longer than its limit, or has too many fields.
    TooBigTrailers,
    /// The origin closed before the end.
    PrematureClose,
}

/// Result of one decoding step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The input is used up and the body continues.
    NeedMore,
    /// Body bytes: a range of the input, never empty.
    Data(Range<usize>),
    /// The body is complete; [`BodyDecoder::take_trailers`] has what followed it.
    End,
}

/// Decodes one body.
#[derive(Debug)]
pub struct BodyDecoder {
    framing: ResponseFraming,
    stage: Stage,
    /// Parser of the trailer section, if trailers are kept.
    trailers: Option<Box<TrailerParser>>,
}

#[derive(Debug)]
enum Stage {
    /// Remaining bytes, more than 0.
    Length(u64),
    Chunked(ChunkedDecoder),
    Trailers,
    Close,
    Done,
}

impl BodyDecoder {
    /// Makes a decoder for the body after a head with this framing. Trailers are kept if they may have
    /// `trailers_size` bytes (`proxy_buffer_size` with `proxy_pass_trailers on`), else they are skipped. A tunnel has
    /// no body: its bytes are not HTTP. Cost: one allocation if trailers are kept and possible.
    pub fn new(framing: ResponseFraming, trailers_size: Option<usize>) -> Self {
        let (stage, trailers) = match framing {
            ResponseFraming::None | ResponseFraming::Tunnel | ResponseFraming::Length(0) => {
                (Stage::Done, None)
            }
            ResponseFraming::Length(length) => (Stage::Length(length), None),
            ResponseFraming::Close => (Stage::Close, None),
            ResponseFraming::Chunked => {
                let fate = if trailers_size.is_some() { Trailers::Keep } else { Trailers::Skip };
                let parser = trailers_size.map(|size| Box::new(TrailerParser::new(size)));
                (Stage::Chunked(ChunkedDecoder::new(fate, OVERHEAD_MAX)), parser)
            }
        };
        BodyDecoder { framing, stage, trailers }
    }

    /// Returns `true` once the body is complete.
    #[inline]
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Known remaining bytes: of the body, or of the current chunk.
    pub fn remaining(&self) -> u64 {
        match &self.stage {
            Stage::Length(remaining_len) => *remaining_len,
            Stage::Chunked(decoder) => decoder.chunk_left(),
            Stage::Trailers | Stage::Close | Stage::Done => 0,
        }
    }

    /// Decodes `input`, the bytes not yet consumed, up to the next piece of the body. Returns the number of consumed
    /// bytes and the result; the data of a [`Piece::Data`] is the end of the consumed bytes. The rest of the input at
    /// [`Piece::End`] is not part of the response, see [`excess`](Self::excess).
    ///
    /// # Errors
    /// [`BodyError`]; the body and the connection are then unusable.
    #[inline]
    pub fn decode(&mut self, input: &[u8]) -> Result<(usize, Piece), BodyError> {
        match &mut self.stage {
            Stage::Done => Ok((0, Piece::End)),
            _ if input.is_empty() => Ok((0, Piece::NeedMore)),
            Stage::Close => Ok((input.len(), Piece::Data(0..input.len()))),
            Stage::Length(remaining) => {
                let len = usize::try_from(*remaining).unwrap_or(usize::MAX).min(input.len());
                *remaining -= len as u64;
                if *remaining == 0 {
                    self.stage = Stage::Done;
                }
                Ok((len, Piece::Data(0..len)))
            }
            Stage::Chunked(_) | Stage::Trailers => self.decode_chunked(input),
        }
    }

    fn decode_chunked(&mut self, input: &[u8]) -> Result<(usize, Piece), BodyError> {
        let mut used = 0;
        if let Stage::Chunked(decoder) = &mut self.stage {
            let (len, chunk) = decoder.decode(input).map_err(BodyError::Chunked)?;
            match chunk {
                Chunk::NeedMore => return Ok((len, Piece::NeedMore)),
                Chunk::Data(range) => return Ok((len, Piece::Data(range))),
                Chunk::End => {}
            }
            used = len;
            self.stage = Stage::Trailers;
        }

        if let Some(parser) = &mut self.trailers {
            let rest = input.get(used..).unwrap_or(b"");
            let (len, is_complete) = parser.advance(rest).map_err(|error| match error {
                TrailerError::Invalid => BodyError::InvalidTrailer,
                TrailerError::TooBig => BodyError::TooBigTrailers,
            })?;
            used += len;
            if !is_complete {
                return Ok((used, Piece::NeedMore));
            }
        }
        self.stage = Stage::Done;
        Ok((used, Piece::End))
    }

    /// As [`decode`](Self::decode), for input that is shared: takes the next piece out of it without copying, `None`
    /// when the input is used up or the body is complete. Input that is left then is not part of the response.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn take(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, BodyError> {
        let (used, piece) = self.decode(input)?;
        let consumed = input.split_to(used.min(input.len()));
        match piece {
            // A slice would be one more owner, which costs an allocation.
            Piece::Data(range) if range == (0..consumed.len()) => Ok(Some(consumed)),
            Piece::Data(range) => Ok(Some(consumed.slice(range))),
            Piece::NeedMore | Piece::End => Ok(None),
        }
    }

    /// Handles the close by the origin, which ends a body without other framing.
    ///
    /// # Errors
    /// [`BodyError::PrematureClose`] if the body is incomplete.
    pub fn close(&mut self) -> Result<(), BodyError> {
        match self.stage {
            Stage::Done => Ok(()),
            Stage::Close => {
                self.stage = Stage::Done;
                Ok(())
            }
            Stage::Length(_) | Stage::Chunked(_) | Stage::Trailers => Err(BodyError::PrematureClose),
        }
    }

    /// Trailers that are permitted and were kept; `None` if there are none, they were skipped, or the body has not
    /// ended.
    pub fn take_trailers(&mut self) -> Option<Fields> {
        if !self.is_done() {
            return None;
        }
        self.trailers.take().map(|parser| parser.into_fields()).filter(|fields| !fields.is_empty())
    }

    /// Text of the `warn` log line about bytes after the end of the body. Such a connection cannot be reused.
    pub fn excess(&self) -> &'static str {
        match self.framing {
            ResponseFraming::Chunked => "upstream sent data after final chunk",
            _ => "upstream sent more data than specified in \"Content-Length\" header",
        }
    }

    /// Log line of an error of this body, in nginx's words.
    pub fn error_text(&self, error: BodyError) -> BodyErrorText<'_> {
        BodyErrorText { decoder: self, error }
    }
}

/// Log line in nginx's words; see [`OriginErrorText`](super::OriginErrorText) for its contents.
#[derive(Debug)]
pub struct BodyErrorText<'a> {
    decoder: &'a BodyDecoder,
    error: BodyError,
}

impl fmt::Display for BodyErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            BodyError::Chunked(ChunkError::Invalid) => f.write_str("upstream sent invalid chunked response"),
            BodyError::Chunked(error @ ChunkError::TooMuchOverhead) => write!(f, "upstream sent {error}"),
            BodyError::InvalidTrailer => {
                let (line, byte) =
                    self.decoder.trailers.as_ref().map_or((&b""[..], 0), |parser| parser.fault());
                write!(f, "upstream sent invalid trailer: \"{}\\x{byte:02x}...\"", PeerBytes(line))
            }
            BodyError::TooBigTrailers => f.write_str("upstream sent too big trailers"),
            BodyError::PrematureClose => f.write_str("upstream prematurely closed connection"),
        }
    }
}
