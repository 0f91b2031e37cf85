//! Offsets and limits of a header. Numbers are little-endian.

use tw_http::origin;

use super::sums::BLOCKS_MAX;
use crate::policy::VARY_MAX;

/// First bytes of our files: no text, and no number that nginx's files begin with.
pub(super) const MAGIC: [u8; 8] = *b"\xf7twcache";

/// The version of the format.
pub(super) const VERSION: u16 = 2;
/// The version without checksums of bodies. Its files are read, and their headers are replaced by others of that version.
pub(super) const VERSION_UNSUMMED: u16 = 1;

/// Bytes in front of the texts.
pub(super) const FIXED: usize = 144;

pub(super) const VERSION_AT: usize = 8;
pub(super) const DUTIES_AT: usize = 10;
pub(super) const FLAGS_AT: usize = 11;
pub(super) const HEADER_SIZE_AT: usize = 12;
pub(super) const USED_AT: usize = 16;
pub(super) const CHECKSUM_AT: usize = 20;
/// The state: what [`patch`](super::patch) writes.
pub(super) const BODY_LEN_AT: usize = 24;
pub(super) const STATE_CHECKSUM_AT: usize = 32;
pub(super) const BODY_SUM_AT: usize = 36;
pub(super) const STATE_END: usize = 40;
pub(super) const KEY_AT: usize = 40;
pub(super) const VARIANT_AT: usize = 56;
pub(super) const SEQUENCE_AT: usize = 72;
pub(super) const RESPONDED_AT: usize = 80;
pub(super) const VALID_UNTIL_AT: usize = 88;
pub(super) const DATE_AT: usize = 96;
pub(super) const LAST_MODIFIED_AT: usize = 104;
pub(super) const WHILE_REVALIDATE_AT: usize = 112;
pub(super) const IF_ERROR_AT: usize = 116;
pub(super) const INITIAL_AGE_AT: usize = 120;
pub(super) const STATUS_AT: usize = 124;
pub(super) const ETAG_LEN_AT: usize = 126;
pub(super) const STATUS_LINE_LEN_AT: usize = 128;
pub(super) const VARY_LEN_AT: usize = 130;
pub(super) const KEY_TEXT_LEN_AT: usize = 132;
pub(super) const TAGS_LEN_AT: usize = 136;
pub(super) const FIELD_COUNT_AT: usize = 140;
pub(super) const RESERVED_AT: usize = 142;

pub(super) const HAS_DATE: u8 = 1;
pub(super) const HAS_LAST_MODIFIED: u8 = 1 << 1;
pub(super) const HAS_VARIANT: u8 = 1 << 2;
pub(super) const ALL_FLAGS: u8 = HAS_DATE | HAS_LAST_MODIFIED | HAS_VARIANT;

/// The length of a body that is being written.
pub(super) const UNFINISHED: u64 = u64::MAX;

/// The longest body: what a file can have.
pub(super) const BODY_LEN_MAX: u64 = i64::MAX as u64;

/// The size of a header is a multiple of this. A small response and its header share a block of 4096 bytes.
pub const HEADER_UNIT: u32 = 512;

/// Room reserved after a new header, in bytes: a 304 may bring a longer form of `Date`, `Expires` or an entity tag.
pub(super) const ROOM: usize = 96;

/// Fields of a response.
pub const FIELDS_MAX: usize = origin::FIELDS_MAX;

tw_base::limits! {
    /// The limits kept here.
    pub(crate) const LIMITS;

    /// Bytes in front of the body in a cache file.
    pub const HEADER_MAX: u32 = 1 << 20, bytes, "the response is not cached; a file with more is damaged";
    /// Blocks of 64 KiB of a cached response that have checksums.
    constant count BLOCKS_MAX, "the bytes behind them are served without a check";
    /// Bytes of the key of a cached response.
    pub const KEY_TEXT_MAX: usize = 64 << 10, bytes, "the response is not cached";
    /// Bytes of the entity tag that a cached response is validated with.
    pub const ETAG_MAX: usize = 1024, bytes, "the response is not cached";
    /// Bytes of the status line of a cached response.
    pub const STATUS_LINE_MAX: usize = 1024, bytes, "the response is not cached";
    /// Bytes of a tag of a cached response.
    pub const TAG_MAX: usize = 255, bytes, "the response is not cached";
    /// Bytes of all tags of a cached response.
    pub const TAGS_MAX: usize = 16 << 10, bytes, "the response is not cached";
}

/// Returns `true` if the lengths of all texts are within their limits.
pub(super) fn fits(key_text: usize, etag: usize, status_line: usize, vary: usize, tags: usize) -> bool {
    key_text <= KEY_TEXT_MAX
        && etag <= ETAG_MAX
        && status_line <= STATUS_LINE_MAX
        && vary <= VARY_MAX
        && tags <= TAGS_MAX
}

/// Returns `true` for a status that a stored response can have: final, and not about another response (304).
pub(super) fn is_status(status: u16) -> bool {
    (200..=999).contains(&status) && status != 304
}

/// Returns `true` if a field can be sent: its name has no blanks and neither part ends a line.
pub(super) fn is_field(name: &[u8], value: &[u8]) -> bool {
    is_field_name(name) && is_line(value)
}

/// Returns `true` if a name has only bytes that it can have in a line.
pub(super) fn is_field_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&byte| byte.is_ascii_graphic() && byte != b':')
}

/// Returns `true` if a text has no byte that ends a line.
pub(super) fn is_line(text: &[u8]) -> bool {
    memchr::memchr3(b'\r', b'\n', 0, text).is_none()
}
