//! Before an upstream server is asked: the body of the request, and what the cache has.

use tw_http::{Framing, Known};

use super::response;
use super::settings::ProxySettings;
use super::upstream_request::RewriteFields;
use crate::http::cache::{Lookup, LookupResult};
use crate::http::plan::Outcome;
use crate::http::request::Request;
use crate::http::request_body;

/// Reads the body of `r` to its end where the configuration wants that before a server is asked. With `must_end` that is also
/// done with a body whose length only its end tells. The error is the status.
pub async fn read_body(r: &mut Request, settings: &ProxySettings, must_end: bool) -> Result<(), u16> {
    let waits = settings.request.buffering || must_end && r.head.framing() == Framing::Chunked;
    if !(settings.request.pass_body && waits && r.body.has_source()) {
        return Ok(());
    }
    // Apart: most requests have no body, and are smaller without what this needs.
    Box::pin(request_body::read(r)).await
}

/// Looks the request up in the cache, if one is configured; the error is a finished response. `usual` writes the key where none
/// is configured. Waits for the disk, and for other requests for the same resource.
pub async fn find_cached(
    r: &mut Request,
    settings: &ProxySettings,
    rewrite: &dyn RewriteFields,
    usual: impl FnOnce(&Request, &mut Vec<u8>),
) -> Result<Option<Box<Lookup>>, Outcome> {
    if !settings.cache.is_on() {
        return Ok(None);
    }
    match Box::pin(Lookup::begin(r, &settings.cache, usual)).await {
        LookupResult::None => Ok(None),
        LookupResult::Ready(ready) => Err(response::ready(r, settings, rewrite, ready)),
        LookupResult::Ask(lookup) => Ok(Some(lookup)),
        LookupResult::Status(status) => Err(Outcome::Status(status)),
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
