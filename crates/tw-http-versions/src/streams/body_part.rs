//! Parts of a request behind its head.

use bytes::Bytes;
use tw_fields::MalformedReason;

/// Received part of a request behind its head.
pub(crate) enum BodyPart {
    /// Bytes of the body.
    Data(Bytes),
    /// Trailers, and the reason if they break a rule.
    Trailers(Option<MalformedReason>),
    /// Nothing that a request can have.
    Other,
}
