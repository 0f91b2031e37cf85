//! Configuration of one end: its settings and limits.

use tw_base::Limit;

/// Settings that this end announces to its peer, and limits of its own.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Largest field section in bytes, 32 for each field included (RFC 9114 section 4.2.2).
    pub list_max: u32,
}

/// Factor between the size of a field section and that of its frame. An encoded section is shorter, mostly.
const BLOCK_FACTOR: usize = 4;
/// Size of an encoded field section that every peer may send, in bytes.
const BLOCK_USUAL: usize = 16 << 10;
/// Largest capacity of the dynamic table that the peer may use, in bytes (as in nginx).
pub(crate) const TABLE_CAPACITY: usize = 4096;
/// Streams that may wait for insertions into the dynamic table.
pub(crate) const BLOCKED_STREAMS_MAX: usize = 16;
/// Bytes of all encoded sections that wait for insertions.
pub(crate) const BLOCKED_BYTES_MAX: usize = 64 << 10;
/// Bytes of an instruction for the dynamic table. Its texts fit into the table when they are decoded; a code has at most 30
/// bits for 8.
pub(crate) const INSTRUCTION_MAX: usize = 4 * TABLE_CAPACITY;
/// Acknowledgements of field sections and insertions that the peer has not taken, in bytes.
pub(crate) const DECODER_OUT_MAX: usize = 16 << 10;
/// Largest payload of a frame of the control stream that is known here, in bytes.
pub(crate) const CONTROL_FRAME_MAX: u64 = 4 << 10;
/// Largest number of unidirectional streams of unknown types, in all.
pub(crate) const UNKNOWN_STREAMS_MAX: usize = 100;
/// Largest number of streams that this end resets for errors of the peer.
pub(crate) const ERRORS_MAX: usize = 100;
/// Largest number of requests that were reset before their owner got them, without one in between that was not.
pub(crate) const RESETS_UNSEEN_MAX: usize = 100;
/// Largest value of a `PRIORITY_UPDATE`, in bytes: its members take a few. A longer one is ignored.
pub(crate) const PRIORITY_MAX: usize = 64;

/// Limits of a connection besides its [`Config`].
pub const LIMITS: &[Limit] = &[
    Limit::count(
        "BLOCK_FACTOR",
        BLOCK_FACTOR as u64,
        "Bytes of the frame of one head in HTTP/3, in sizes of the list of fields that is allowed",
        "the head is passed over, and its request is answered with an error",
    ),
    Limit::bytes(
        "TABLE_CAPACITY",
        TABLE_CAPACITY as u64,
        "Fields that a client of HTTP/3 lets us remember (QPACK)",
        "older fields are forgotten; a table that is larger ends the connection (QPACK_ENCODER_STREAM_ERROR)",
    ),
    Limit::count(
        "BLOCKED_STREAMS_MAX",
        BLOCKED_STREAMS_MAX as u64,
        "Streams of one connection of HTTP/3 whose heads refer to fields that did not arrive yet (QPACK)",
        "the connection is closed (QPACK_DECOMPRESSION_FAILED)",
    ),
    Limit::bytes(
        "BLOCKED_BYTES_MAX",
        BLOCKED_BYTES_MAX as u64,
        "Encoded heads of one connection of HTTP/3 that refer to fields that did not arrive yet",
        "the connection is closed (H3_EXCESSIVE_LOAD)",
    ),
    Limit::bytes(
        "INSTRUCTION_MAX",
        INSTRUCTION_MAX as u64,
        "One instruction for the table of fields (QPACK)",
        "the connection is closed (QPACK_ENCODER_STREAM_ERROR)",
    ),
    Limit::bytes(
        "DECODER_OUT_MAX",
        DECODER_OUT_MAX as u64,
        "Acknowledgements (QPACK) that a client of HTTP/3 does not take",
        "the connection is closed (H3_EXCESSIVE_LOAD)",
    ),
    Limit::bytes(
        "CONTROL_FRAME_MAX",
        CONTROL_FRAME_MAX,
        "Frames of the control stream of HTTP/3 (SETTINGS and others) whose types are known",
        "the connection is closed (H3_EXCESSIVE_LOAD)",
    ),
    Limit::count(
        "UNKNOWN_STREAMS_MAX",
        UNKNOWN_STREAMS_MAX as u64,
        "Unidirectional streams of unknown types of one connection of HTTP/3",
        "the connection is closed (H3_EXCESSIVE_LOAD)",
    ),
    Limit::count(
        "ERRORS_MAX",
        ERRORS_MAX as u64,
        "Streams of one connection of HTTP/3 that are reset because they break the protocol",
        "the connection is closed (H3_EXCESSIVE_LOAD)",
    ),
    Limit::count(
        "RESETS_UNSEEN_MAX",
        RESETS_UNSEEN_MAX as u64,
        "Requests in HTTP/3 in a row that a client takes back before a loop has looked at them",
        "the connection is closed (H3_EXCESSIVE_LOAD)",
    ),
    Limit::bytes(
        "PRIORITY_MAX",
        PRIORITY_MAX as u64,
        "Length of the value of a PRIORITY_UPDATE in HTTP/3",
        "it is ignored",
    ),
];

impl Config {
    /// Largest size of the frame of one field section, in bytes.
    pub(crate) fn block_max(&self) -> usize {
        (self.list_max as usize).saturating_mul(BLOCK_FACTOR).max(BLOCK_USUAL)
    }
}
