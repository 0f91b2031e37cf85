//! Field compression of HTTP/2: HPACK (RFC 7541).
//!
//! | file | what |
//! |---|---|
//! | `statics.rs` | the static table (appendix A) |
//! | `decode.rs` | blocks of the peer → fields, with a dynamic table |
//! | `encode.rs` | fields → blocks for the peer, without one |
//!
//! Integers, texts and the dynamic table are in `tw-fields`, because QPACK has the same.
//!
//! The two directions are not alike. The peer may index what it likes, up to the size it was told, so decoding keeps a
//! table. Encoding never indexes, as nginx: nothing of a message is kept, an idle connection costs nothing, and no
//! secret can be guessed from the length of a later block (section 7.1).

mod decode;
pub(crate) mod encode;
mod statics;

#[cfg(test)]
mod tests;

pub(crate) use decode::Decoder;
use tw_fields::CodingError;

/// Bits of the largest integer: above every window and table of HTTP/2.
const INTEGER_BITS: u32 = 31;

/// Errors of a header block. The two tables may differ afterwards, so the connection ends with COMPRESSION_ERROR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Error {
    /// The block ends within a field or a size update.
    Short,
    /// An integer that is too large or too long.
    Integer,
    /// A field with the index 0.
    IndexZero,
    /// An index beyond both tables.
    Index,
    /// A table larger than the peer was told to keep.
    TableSize,
    /// A size update after a field, or the third of a block.
    LateTableSize,
    /// A text that holds EOS or ends within a code.
    Huffman,
}

impl From<CodingError> for Error {
    fn from(error: CodingError) -> Self {
        match error {
            CodingError::Short => Self::Short,
            CodingError::Integer => Self::Integer,
            CodingError::Huffman => Self::Huffman,
        }
    }
}

impl Error {
    /// Returns a verb and its object, without a subject, that describe the peer's error in the error log.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Short => "sent header block with incorrect length",
            Self::Integer => "sent header block with too long value",
            Self::IndexZero => "sent invalid hpack table index 0",
            Self::Index => "sent out of bound hpack table index",
            Self::TableSize => "sent invalid table size update",
            Self::LateTableSize => "sent misplaced table size update",
            Self::Huffman => "sent invalid encoded header field",
        }
    }
}
