//! What a response tells of its cache: `Age` (RFC 9111 section 5.1) and `Cache-Status` (RFC 9211).

use bytes::Bytes;
use tw_cache::policy::CacheStatus;
use tw_http::Known;

use super::miss_reason::Reason;
use crate::http::proxy::ProxySettings;
use crate::http::request::Request;

/// Adds them to the head of a response to `r`, whoever has made it.
pub(crate) fn set_cache_headers(r: &mut Request, settings: &ProxySettings) {
    let facts = &r.facts.upstream.cache;
    if facts.cache.is_none() {
        return;
    }
    if settings.cache.is_rfc9111()
        && let Some(age) = facts.age
        && !settings.response.hidden.has(b"Age", Some(Known::Age))
    {
        r.out.fields.set(Known::Age, Bytes::from(age.to_string()));
    }
    let Some(told) = &settings.cache.told else { return };
    let facts = &r.facts.upstream.cache;
    let answered = r.facts.upstream.attempts.last().filter(|last| last.failure.is_none() && last.status != 0);
    let now = tw_rt::clock::unix().secs;
    let mut value = Vec::new();
    let status = CacheStatus {
        cache: &told.name,
        forward: facts.forward,
        forward_status: answered.map(|last| last.status),
        ttl_s: facts.valid_until.map(|valid_until| valid_until.saturating_sub(now)),
        is_stored: facts.is_stored,
        is_collapsed: facts.is_collapsed,
        key: told.has_key.then_some(&*facts.key),
        detail: facts.why.map(Reason::word),
    };
    status.write(&mut value);
    r.out.fields.append("Cache-Status", Bytes::from(value));
}
