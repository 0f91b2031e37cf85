//! What a filter that changes a body does to the head of the response.

use tw_http::{Known, ResponseHead};
use tw_server::http::request::{Ranges, Request};

/// The length is not known any more.
pub(crate) fn forget_length(r: &mut Request) {
    r.out.fields.remove_known(Known::ContentLength);
}

/// No part of the response can be asked for.
pub(crate) fn refuse_ranges(r: &mut Request) {
    r.state.ranges = Ranges::Refused;
    r.out.fields.remove_known(Known::AcceptRanges);
}

/// What becomes of `Last-Modified` and `ETag` (`ssi_last_modified`, `sub_filter_last_modified`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validators {
    /// They go: nobody knows when the whole was last changed.
    Remove,
    /// The time stays, the tag becomes a weak one.
    Keep,
}

impl Validators {
    /// The meaning of the flag that says whether the time stays.
    pub(crate) fn kept(keep: bool) -> Self {
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
