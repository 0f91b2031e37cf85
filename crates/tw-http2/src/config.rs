//! Configuration of one end: its settings and limits.

/// Settings that this end announces to its peer, and limits of its own.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Largest number of streams that the peer may have open at once. A client does not announce it, because a server
    /// opens none.
    pub streams_max: u32,
    /// Receive window of a stream, in bytes.
    pub window: u32,
    /// Receive window of the whole connection, in bytes; at least 65,535.
    pub connection_window: u32,
    /// Largest field section in bytes, 32 for each field included (RFC 9113 section 6.5.2).
    pub list_max: u32,
    /// Bytes of pending output from which on streams may not send.
    pub out_max: usize,
}

/// Size of a field block that every peer may send, in bytes.
const BLOCK_USUAL: usize = 16 << 10;

tw_base::limits! {
    /// Limits of a connection besides its [`Config`].
    pub const LIMITS;

    section "HTTP/2";

    /// Requests in HTTP/2 that a client takes back as fast as it makes them, before a loop has looked at them.
    pub(crate) const RESETS_UNSEEN_MAX: usize = 20, count, "the connection is closed (ENHANCE_YOUR_CALM)";
    /// Streams of one connection of HTTP/2 that are reset because they break the protocol.
    pub(crate) const ERRORS_MAX: usize = 100, count, "the connection is closed (ENHANCE_YOUR_CALM)";
    /// Heads (1xx) in front of a response in HTTP/2 that were not taken yet.
    pub(crate) const INTERIM_MAX: usize = 16, count, "the stream is reset (ENHANCE_YOUR_CALM)";
    /// Bytes of the frames of one head in HTTP/2, in sizes of the list of fields that is allowed.
    ///
    /// Factor between the size of a field section and that of its frames. An encoded section is shorter, mostly.
    const BLOCK_FACTOR: usize = 4, count, "the connection is closed (ENHANCE_YOUR_CALM)";
    /// Length of the value of a PRIORITY_UPDATE.
    ///
    /// Largest value of a `PRIORITY_UPDATE`, in bytes: its members take a few. A longer one is ignored.
    pub(crate) const PRIORITY_MAX: usize = 64, bytes, "it is ignored";
    /// Streams of HTTP/2 that have ended here first, and of which the peer may still send content and trailers.
    pub(crate) const LOST_MAX: usize = 256, count,
        "trailers of the oldest ones end the connection (PROTOCOL_ERROR), content of any is passed over";
}

impl Config {
    /// Largest size of the frames of one field section, in bytes.
    pub(crate) fn block_max(&self) -> usize {
        (self.list_max as usize).saturating_mul(BLOCK_FACTOR).max(BLOCK_USUAL)
    }
}
