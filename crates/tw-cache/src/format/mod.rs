//! The file of an entry: a header of our own, and behind it the body. `docs/on-disk-format.md` has its bytes.
//!
//! ```text
//! place ─► encode ─► written in front of the body ─► patch, when the body is complete
//!             ▲                                          │
//!             └── a 304: in place, if it fits ◄── decode ◄┘
//! ```
//!
//! The size of a header is fixed when its file is made, with some room behind it, because the body follows. What a
//! 304 makes of it is written over it, whole and in one write. If it does not fit ([`EncodeError::NoRoom`]), the
//! entry gets a new file.
//!
//! A file that a crash has left, or that somebody has changed, is told by checksums: one of the header, one of what
//! [`patch`] writes, and one for each block of the body ([`BodySums`], [`BlockSums`]). Nothing in a file is believed before: decoding never panics, and takes no more memory than
//! the file gives bytes. Checksums are no secret, so what goes to clients is looked at as if an origin had sent it.

mod decode;
mod encode;
mod layout;
mod meta;
pub mod nginx;
mod sums;

pub use decode::{decode, needed};
pub use encode::{EncodeError, Patch, encode, patch, place};
pub(crate) use layout::LIMITS;
pub use layout::{
    ETAG_MAX, FIELDS_MAX, HEADER_MAX, HEADER_UNIT, KEY_TEXT_MAX, STATUS_LINE_MAX, TAG_MAX, TAGS_MAX,
};
pub use meta::{Meta, Tags, WrittenBy};
pub use sums::{BLOCKS_MAX, BODY_BLOCK, BlockSums, BodySums, FinishedSums, table_len};

use std::fmt;

/// Why a file is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatError {
    /// The first bytes are not those of our files.
    Magic,
    /// Another version of the format.
    Version,
    /// The input ends inside the header.
    Short,
    /// The header's checksum is another.
    Checksum,
    /// The checksum of the bytes written at the end of a fill does not match.
    StateChecksum,
    /// The fill did not complete.
    Unfinished,
    /// The lengths of the parts of the header do not add up, or one is beyond its limit.
    Length,
    /// Bits or bytes that have no meaning are set.
    Reserved,
    /// The status cannot be that of a stored response.
    Status,
    /// A field has a name or a value that no field can have.
    Field,
    /// The length of the file differs from that in the header.
    Size,
    /// A block of the body has another checksum.
    Body,
    /// The table of checksums behind the body has another checksum.
    Table,
    /// In a file of nginx: the key is not where it should be, or has another checksum.
    KeyText,
    /// In a file of nginx: the head of the response is none of HTTP. FastCGI, SCGI and uwsgi have others.
    Head,
}

impl FormatError {
    /// Word for logs, e.g. `checksum`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            FormatError::Magic => "magic",
            FormatError::Version => "version",
            FormatError::Short => "short",
            FormatError::Checksum => "checksum",
            FormatError::StateChecksum => "state-checksum",
            FormatError::Unfinished => "unfinished",
            FormatError::Length => "length",
            FormatError::Reserved => "reserved",
            FormatError::Status => "status",
            FormatError::Field => "field",
            FormatError::Size => "size",
            FormatError::Body => "body-checksum",
            FormatError::Table => "table-checksum",
            FormatError::KeyText => "key-text",
            FormatError::Head => "head",
        }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
