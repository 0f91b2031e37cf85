//! Field compression of HTTP/2: HPACK (RFC 7541).
//!
//! | file | what |
//! |---|---|
//! | `integer.rs` | integers with a prefix (section 5.1) |
//! | `huffman.rs` | the code for texts (section 5.2, appendix B) |
//! | `statics.rs` | the static table (appendix A) |
//! | `table.rs` | the dynamic table (sections 2.3.2 and 4) |
//! | `decode.rs` | blocks of the peer → fields, with a dynamic table |
//! | `encode.rs` | fields → blocks for the peer, without one |
//!
//! The two directions are not alike. The peer may index what it likes, up to the size it was told, so decoding keeps a
//! table. Encoding never indexes, as nginx: nothing of a message is kept, an idle connection costs nothing, and no
//! secret can be guessed from the length of a later block (section 7.1).

mod decode;
pub(crate) mod encode;
mod huffman;
mod integer;
mod statics;
mod table;

#[cfg(test)]
mod tests;

pub(crate) use decode::Decoder;

/// Errors of a header block. The two tables may differ afterwards, so the connection ends with COMPRESSION_ERROR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Error {
    /// The block ends within a field or a size update.
    Short,
    /// An integer above `integer::INTEGER_MAX`, or longer than `integer::INTEGER_OCTETS_MAX`.
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
