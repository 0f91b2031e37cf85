//! Warnings of codecs.

use tw_connect::AttemptStage;

use tw_request::request::Request;
use tw_request::upstream_response::Warning;

/// Writes the warnings of a codec to the error log. Most responses have none.
#[inline]
pub(super) fn log_warnings(r: &Request, warnings: Vec<Warning>, stage: AttemptStage) {
    if !warnings.is_empty() {
        write_warnings(r, warnings, stage);
    }
}

#[cold]
fn write_warnings(r: &Request, warnings: Vec<Warning>, stage: AttemptStage) {
    for Warning { level, text } in warnings {
        r.log(level, format_args!("{text} {stage}"));
    }
}
