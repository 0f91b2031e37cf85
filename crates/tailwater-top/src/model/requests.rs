//! The slowest requests of the last minute.

use crate::source::Snapshot;
use crate::source::snapshot::SlowRequest;

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestRow {
    /// The request.
    pub request: SlowRequest,
    /// Seconds since its end.
    pub age: Option<f64>,
}

pub(super) fn rows(new: &Snapshot) -> Option<Vec<RequestRow>> {
    let all = new.slow_requests.as_ref()?.iter();
    let age = |at: f64| new.now.map(|now| (now - at).max(0.0));
    Some(all.map(|request| RequestRow { age: age(request.at), request: request.clone() }).collect())
}
