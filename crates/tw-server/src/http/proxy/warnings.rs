//! Warnings of codecs.

use tw_connect::AttemptStage;

use crate::http::request::Request;
use crate::http::upstream_response::Warning;

/// Writes the warnings of a codec to the error log.
pub(super) fn log_warnings(r: &Request, warnings: Vec<Warning>, stage: AttemptStage) {
    for Warning { level, text } in warnings {
        r.log(level, format_args!("{text} {stage}"));
    }
}
