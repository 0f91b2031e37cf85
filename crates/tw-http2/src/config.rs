//! Settings that one end announces, and its own limits.

use tw_base::Limit;

/// Settings that this end announces to its peer, and limits of its own.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Streams that the peer may have open at once. A client says none, because its peer begins none.
    pub streams_max: u32,
    /// Bytes of one body that the peer may send before some are used up.
    pub window: u32,
    /// Receive window of the whole connection, in bytes; at least 65,535.
    pub connection_window: u32,
    /// Bytes of one list of fields, each with 32 more (RFC 9113 section 6.5.2).
    pub list_max: u32,
    /// Bytes that wait to be written, from which on streams have no room.
    pub out_max: usize,
}

/// Frames of one list of fields may have so many times as many bytes as the list may: as packed they are shorter, mostly.
const BLOCK_FACTOR: usize = 4;
/// Bytes of a list of fields in frames that everybody may send.
const BLOCK_USUAL: usize = 16 << 10;
/// Requests that one call takes which were reset as soon as they were made.
pub(crate) const RESETS_UNSEEN_MAX: usize = 20;
/// Streams that this end resets for what is wrong with them.
pub(crate) const ERRORS_MAX: usize = 100;
/// Heads in front of a response that nobody has taken.
pub(crate) const INTERIM_MAX: usize = 16;
/// Streams that have ended here before their peer could know.
pub(crate) const LOST_MAX: usize = 256;
/// Bytes of the value of a `PRIORITY_UPDATE`: its members take a few. What is longer says nothing.
pub(crate) const PRIORITY_MAX: usize = 64;

/// Limits of a connection besides its [`Config`].
pub const LIMITS: &[Limit] = &[
    Limit::count(
        "RESETS_UNSEEN_MAX",
        RESETS_UNSEEN_MAX as u64,
        "Requests in HTTP/2 that a client takes back as fast as it makes them, before a loop has looked at them",
        "the connection is closed (ENHANCE_YOUR_CALM)",
    ),
    Limit::count(
        "ERRORS_MAX",
        ERRORS_MAX as u64,
        "Streams of one connection of HTTP/2 that are reset because they break the protocol",
        "the connection is closed (ENHANCE_YOUR_CALM)",
    ),
    Limit::count(
        "INTERIM_MAX",
        INTERIM_MAX as u64,
        "Heads (1xx) in front of a response in HTTP/2 that were not taken yet",
        "the stream is reset (ENHANCE_YOUR_CALM)",
    ),
    Limit::count(
        "BLOCK_FACTOR",
        BLOCK_FACTOR as u64,
        "Bytes of the frames of one head in HTTP/2, in sizes of the list of fields that is allowed",
        "the connection is closed (ENHANCE_YOUR_CALM)",
    ),
    Limit::bytes(
        "PRIORITY_MAX",
        PRIORITY_MAX as u64,
        "Length of the value of a PRIORITY_UPDATE",
        "it is ignored",
    ),
    Limit::count(
        "LOST_MAX",
        LOST_MAX as u64,
        "Streams of HTTP/2 that have ended here first, and of which the peer may still send content and trailers",
        "trailers of the oldest ones end the connection (PROTOCOL_ERROR), content of any is passed over",
    ),
];

impl Config {
    /// Bytes of the frames of one list of fields.
    pub(crate) fn block_max(&self) -> usize {
        (self.list_max as usize).saturating_mul(BLOCK_FACTOR).max(BLOCK_USUAL)
    }
}
