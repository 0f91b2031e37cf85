//! Parts that HTTP/2 and HTTP/3 have in common, without I/O: field sections as HPACK (RFC 7541) and QPACK (RFC 9204) share them,
//! and received messages with the rules for malformed ones.
//!
//! | file | what |
//! |---|---|
//! | `integer.rs` | integers with a prefix |
//! | `huffman.rs` | the code for texts |
//! | `text.rs` | string literals |
//! | `table.rs` | the dynamic table |
//! | `field_section.rs` | a received section, checked field by field |
//! | `field_writer.rs` | a section that is written |
//! | `message.rs` | parts of received messages, length of content |
//! | `rules.rs` | malformed messages |
//! | `task_waker.rs` | waker of a task that waits for a stream |

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod field_section;
mod field_writer;
pub mod huffman;
pub mod integer;
mod message;
mod rules;
mod table;
mod task_waker;
#[cfg(test)]
mod tests;
pub mod text;

pub use field_section::FieldSection;
pub use field_writer::{FieldCoding, FieldWriter, encode_section, status_digits};
pub use message::{Incoming, MessageCheck};
pub use rules::{MalformedReason, Message, Pseudo};
pub use table::{DynamicTable, ENTRY_OVERHEAD};
pub use task_waker::TaskWaker;
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
