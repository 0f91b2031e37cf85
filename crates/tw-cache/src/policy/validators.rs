//! Validators with which a stored response can be validated.

use tw_http::{Fields, HeaderName, Validators, date};

use crate::format::ETAG_MAX;

/// Validators of a stored response. Origins evaluate conditions only for statuses 200 and 206 (RFC 9110 section
/// 13.2.1; nginx has the same). An entity tag longer than [`ETAG_MAX`] is not used.
#[must_use]
pub fn validators(status: u16, fields: &Fields) -> Validators<'_> {
    if !matches!(status, 200 | 206) {
        return Validators { etag: None, last_modified: None };
    }
    Validators {
        etag: fields.get_known(HeaderName::ETag).filter(|etag| !etag.is_empty() && etag.len() <= ETAG_MAX),
        last_modified: fields.get_known(HeaderName::LastModified).and_then(date::parse),
    }
}
