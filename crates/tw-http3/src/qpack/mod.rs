//! Field compression of HTTP/3: QPACK (RFC 9204).
//!
//! | file | what |
//! |---|---|
//! | `statics.rs` | the static table (appendix A) |
//! | `decode.rs` | the encoder stream → dynamic table; sections of the peer → fields |
//! | `encode.rs` | fields → sections for the peer, without the dynamic table |
//! | `decoder_stream.rs` | acknowledgements of the peer, for a table that this end never fills |
//!
//! Integers, texts and the storage of the dynamic table are in `tw-fields`, because HPACK has the same. As with HPACK, encoding
//! never inserts: nothing of a message is kept, an idle connection costs nothing, no response waits for another stream, and
//! no secret can be guessed from the length of a later section.

mod decode;
pub(crate) mod decoder_stream;
mod encode;
mod statics;
#[cfg(test)]
mod tests;

pub use decode::{DecodedSection, Decoder};
pub use encode::FIELD_CODING;
use tw_fields::CodingError;

use crate::ErrorCode;

/// Bits of the largest integer (RFC 9204 section 4.1.1).
const INTEGER_BITS: u32 = 62;

/// Errors of the peer's encoding; each of them ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// A field section that cannot be decoded.
    Section(&'static str),
    /// An invalid instruction on the encoder stream.
    EncoderStream(&'static str),
    /// An invalid instruction on the decoder stream.
    DecoderStream(&'static str),
    /// More than this end is ready to keep.
    Excessive(&'static str),
}

impl Error {
    /// Returns the error code for the peer, and a verb and its object, without a subject, for the error log.
    pub const fn parts(self) -> (ErrorCode, &'static str) {
        match self {
            Self::Section(words) => (ErrorCode::QPACK_DECOMPRESSION_FAILED, words),
            Self::EncoderStream(words) => (ErrorCode::QPACK_ENCODER_STREAM_ERROR, words),
            Self::DecoderStream(words) => (ErrorCode::QPACK_DECODER_STREAM_ERROR, words),
            Self::Excessive(words) => (ErrorCode::EXCESSIVE_LOAD, words),
        }
    }
}

/// Words for an error of integers and texts within a section.
const fn section_error(error: CodingError) -> Error {
    Error::Section(match error {
        CodingError::Short => "sent header block with incorrect length",
        CodingError::Integer => "sent header block with too long value",
        CodingError::Huffman => "sent invalid encoded header field",
    })
}
