//! Field sections of HTTP/2 and HTTP/3, without I/O: the parts that HPACK (RFC 7541) and QPACK (RFC 9204) share, and the rules
//! for malformed messages, which are the same in both versions.
//!
//! | file | what |
//! |---|---|
//! | `integer.rs` | integers with a prefix |
//! | `huffman.rs` | the code for texts |
//! | `text.rs` | string literals |
//! | `table.rs` | the dynamic table |
//! | `field_section.rs` | a received section, checked field by field |
//! | `field_writer.rs` | a section that is written |
//! | `rules.rs` | malformed messages |

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod field_section;
mod field_writer;
pub mod huffman;
pub mod integer;
mod rules;
mod table;
#[cfg(test)]
mod tests;
pub mod text;

pub use field_section::FieldSection;
pub use field_writer::{FieldCoding, FieldWriter, encode_section, status_digits};
pub use rules::{MalformedReason, Message, Pseudo};
pub use table::{DynamicTable, ENTRY_OVERHEAD};
pub use text::Text;

/// Error in the encoding of integers and texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodingError {
    /// The input ends within an integer or a text.
    Short,
    /// An integer that is too large or too long.
    Integer,
    /// A text that holds EOS or ends within a code.
    Huffman,
}
