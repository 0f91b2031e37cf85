//! Configuration of one end: its settings and limits.

/// Settings that this end announces to its peer, and limits of its own.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Largest field section in bytes, 32 for each field included (RFC 9114 section 4.2.2).
    pub list_max: u32,
}

/// Size of an encoded field section that every peer may send, in bytes.
const BLOCK_USUAL: usize = 16 << 10;

tw_base::limits! {
    /// Limits of a connection besides its [`Config`].
    pub const LIMITS;

    section "HTTP/3";

    /// Bytes of the frame of one head in HTTP/3, in sizes of the list of fields that is allowed.
    ///
    /// Factor between the size of a field section and that of its frame. An encoded section is shorter, mostly.
    const BLOCK_FACTOR: usize = 4, count, "the head is passed over, and its request is answered with an error";
    /// Fields that a client of HTTP/3 lets us remember (QPACK).
    ///
    /// Largest capacity of the dynamic table that the peer may use, in bytes (as in nginx).
    pub(crate) const TABLE_CAPACITY: usize = 4096, bytes,
        "older fields are forgotten; a table that is larger ends the connection (QPACK_ENCODER_STREAM_ERROR)";
    /// Streams of one connection of HTTP/3 whose heads refer to fields that did not arrive yet (QPACK).
    pub(crate) const BLOCKED_STREAMS_MAX: usize = 16, count, "the connection is closed (QPACK_DECOMPRESSION_FAILED)";
    /// Encoded heads of one connection of HTTP/3 that refer to fields that did not arrive yet.
    pub(crate) const BLOCKED_BYTES_MAX: usize = 64 << 10, bytes, "the connection is closed (H3_EXCESSIVE_LOAD)";
    /// One instruction for the table of fields (QPACK).
    ///
    /// Bytes of an instruction for the dynamic table. Its texts fit into the table when they are decoded; a code has at most 30
    /// bits for 8.
    pub(crate) const INSTRUCTION_MAX: usize = 4 * TABLE_CAPACITY, bytes, "the connection is closed (QPACK_ENCODER_STREAM_ERROR)";
    /// Acknowledgements (QPACK) that a client of HTTP/3 does not take.
    pub(crate) const DECODER_OUT_MAX: usize = 16 << 10, bytes, "the connection is closed (H3_EXCESSIVE_LOAD)";
    /// Frames of the control stream of HTTP/3 (SETTINGS and others) whose types are known.
    pub(crate) const CONTROL_FRAME_MAX: u64 = 4 << 10, bytes, "the connection is closed (H3_EXCESSIVE_LOAD)";
    /// Unidirectional streams of unknown types of one connection of HTTP/3.
    pub(crate) const UNKNOWN_STREAMS_MAX: usize = 100, count, "the connection is closed (H3_EXCESSIVE_LOAD)";
    /// Streams of one connection of HTTP/3 that are reset because they break the protocol.
    pub(crate) const ERRORS_MAX: usize = 100, count, "the connection is closed (H3_EXCESSIVE_LOAD)";
    /// Requests in HTTP/3 in a row that a client takes back before a loop has looked at them.
    pub(crate) const RESETS_UNSEEN_MAX: usize = 100, count, "the connection is closed (H3_EXCESSIVE_LOAD)";
    /// Length of the value of a PRIORITY_UPDATE in HTTP/3.
    ///
    /// Largest value of a `PRIORITY_UPDATE`, in bytes: its members take a few. A longer one is ignored.
    pub(crate) const PRIORITY_MAX: usize = 64, bytes, "it is ignored";
}

impl Config {
    /// Largest size of the frame of one field section, in bytes.
    pub(crate) fn block_max(&self) -> usize {
        (self.list_max as usize).saturating_mul(BLOCK_FACTOR).max(BLOCK_USUAL)
    }
}
