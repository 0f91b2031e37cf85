//! Head of a request as its stream has brought it.

use bytes::Bytes;
use tw_fields::FieldSection;

/// Head of a request.
pub(crate) enum ReceivedHead {
    /// List of fields (HTTP/2, HTTP/3).
    Fields(FieldSection),
    /// Request line (HTTP/0.9 over QUIC).
    Line(Bytes),
}
