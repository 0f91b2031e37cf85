//! Before an upstream server is asked: what the cache has.

use tw_http::Known;

use super::answer;
use super::exchange::Rewrite;
use super::settings::Gateway;
use crate::http::cache::{Visit, Visited};
use crate::http::plan::Outcome;
use crate::http::request::Request;

/// What came of it.
pub enum Recalled {
    /// This answers.
    Answer(Outcome),
    /// The upstream server is asked; the cache has to do with it.
    Ask(Box<Visit>),
    /// It is asked as if there were no cache.
    Pass,
}

/// Asks the cache of `gateway` for a response to `r`. `usual` is the key where none is configured. Waits for the disk, and for
/// other requests for the same.
pub async fn recall(
    r: &mut Request,
    gateway: &Gateway,
    rewrite: &dyn Rewrite,
    usual: impl FnOnce(&Request, &mut Vec<u8>),
) -> Recalled {
    match Visit::begin(r, &gateway.cache, usual).await {
        Visited::None => Recalled::Pass,
        Visited::Ready(ready) => Recalled::Answer(answer::ready(r, gateway, rewrite, ready)),
        Visited::Ask(visit) => Recalled::Ask(visit),
        Visited::Status(status) => Recalled::Answer(Outcome::Status(status)),
    }
}

/// Fields of a request that ask for a part of a response, or for nothing if nothing has changed: what is kept is asked for
/// whole, and for one's own reasons.
pub const CONDITIONAL: [Known; 6] = [
    Known::IfModifiedSince,
    Known::IfUnmodifiedSince,
    Known::IfNoneMatch,
    Known::IfMatch,
    Known::Range,
    Known::IfRange,
];
