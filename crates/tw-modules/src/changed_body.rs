//! Changes of the head of a response whose body a filter changes: length, ranges, validators.

use tw_http::{Known, ResponseHead};
use tw_server::http::request::{Ranges, Request};

/// Removes the length, which is unknown now.
pub(crate) fn remove_length(r: &mut Request) {
    r.out.fields.remove_known(Known::ContentLength);
}

/// Refuses ranges of the response.
pub(crate) fn refuse_ranges(r: &mut Request) {
    r.state.ranges = Ranges::Refused;
    r.out.fields.remove_known(Known::AcceptRanges);
}

/// Treatment of `Last-Modified` and `ETag` (`ssi_last_modified`, `sub_filter_last_modified`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validators {
    /// Removes both: the time of the last change of the whole is unknown.
    Remove,
    /// The time stays, the tag becomes a weak one.
    Keep,
}

impl Validators {
    /// Treatment for a flag that keeps the time.
    pub(crate) fn of(keep: bool) -> Self {
        if keep { Self::Keep } else { Self::Remove }
    }

    /// Changes the head accordingly.
    pub(crate) fn apply(self, head: &mut ResponseHead) {
        match self {
            Self::Keep => head.weaken_etag(),
            Self::Remove => {
                head.last_modified = None;
                head.fields.remove_known(Known::LastModified);
                head.fields.remove_known(Known::ETag);
            }
        }
    }
}
