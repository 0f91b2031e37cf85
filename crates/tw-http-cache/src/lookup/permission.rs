//! Permission of a request to use a cache: to store its response, fetch one for others, get one in parts.

use tw_cache::Key;
use tw_cache::policy::{self, NoStoreReason};
use tw_http::{HeaderName, Method};

use crate::settings::CacheSettings;
use crate::zone::Cache;
use tw_request::miss_reason::MissReason;
use tw_request::request::Request;

/// Checks that the request and the disk permit the response to be stored under `key`. If not, other requests do not wait for it.
///
/// # Errors
/// The reason why not.
pub(crate) fn check_storing(
    r: &Request,
    settings: &CacheSettings,
    cache: &Cache,
    key: Key,
) -> Result<(), MissReason> {
    if !cache.permits_storing(key, &|level, message| r.log(level, message)) {
        return Err(MissReason::SlowDisk);
    }
    if !settings.is_rfc9111() {
        return Ok(());
    }
    match () {
        () if forwarded_method(r, settings) != Method::Get => Err(NoStoreReason::Method.into()),
        () if policy::wants_nothing_stored(&r.head, &settings.rules) => {
            Err(NoStoreReason::RequestNoStore.into())
        }
        () => Ok(()),
    }
}

/// Returns true if the response to `r`, fetched in the background, could answer other requests, too.
pub(crate) fn may_fetch_for_others(r: &Request, settings: &CacheSettings, cache: &Cache, key: Key) -> bool {
    matches!(r.method(), Method::Get | Method::Head)
        && !is_range_beyond_max(r, settings)
        && check_storing(r, settings, cache, key).is_ok()
}

/// Returns true if the requested range begins behind `cache_max_range_offset`: then the whole response is not fetched.
pub(crate) fn is_range_beyond_max(r: &Request, settings: &CacheSettings) -> bool {
    let Some(max) = settings.max_range_offset else { return false };
    r.head.field_known(HeaderName::Range).is_some_and(|range| begins_behind(range, max))
}

/// Method of the forwarded request.
pub(crate) fn forwarded_method(r: &Request, settings: &CacheSettings) -> Method {
    if asks_for_body(r, settings) { Method::Get } else { r.method() }
}

/// Returns true if `GET` is sent for `HEAD`.
pub(crate) fn asks_for_body(r: &Request, settings: &CacheSettings) -> bool {
    settings.convert_head && r.method() == Method::Head
}

/// Returns true if a range begins behind `max`, or counts from the end (nginx: ngx_http_upstream_cache_check_range).
fn begins_behind(range: &[u8], max: u64) -> bool {
    let Some((unit, rest)) = range.split_at_checked(6) else { return false };
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return false;
    }
    let rest = rest.trim_ascii_start();
    if rest.first() == Some(&b'-') {
        return true;
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    tw_http::num::parse(&rest[..digits]).is_none_or(|start| start >= max)
}
