//! Fields of a response about its cache: `Age` (RFC 9111 section 5.1) and `Cache-Status` (RFC 9211).

use bytes::Bytes;
use tw_cache::policy::CacheStatus;
use tw_http::HeaderName;

use crate::settings::CacheSettings;
use tw_phases::forward_head::ForwardRules;
use tw_request::miss_reason::MissReason;
use tw_request::request::Request;

/// Adds both to the head of a response to `r`, stored or not.
pub fn set_cache_headers(r: &mut Request, settings: &CacheSettings, rules: &ForwardRules) {
    let report = &r.upstream.cache.report;
    if r.upstream.cache.cache.is_none() {
        return;
    }
    if settings.is_rfc9111()
        && let Some(age) = report.age
        && !rules.hidden.has(b"Age", Some(HeaderName::Age))
    {
        r.response.fields.set(HeaderName::Age, Bytes::from(age.to_string()));
    }
    let Some(field) = &settings.status_field else { return };
    let report = &r.upstream.cache.report;
    let answered = r.upstream.last().filter(|last| last.failure.is_none() && last.status != 0);
    let now = tw_rt::clock::unix().secs;
    let mut value = Vec::new();
    let status = CacheStatus {
        cache: &field.name,
        forward: report.forward,
        forward_status: answered.map(|last| last.status),
        ttl_s: report.valid_until.map(|valid_until| valid_until.saturating_sub(now)),
        is_stored: report.is_stored,
        is_collapsed: report.is_collapsed,
        key: field.has_key.then_some(&*r.upstream.cache.key),
        detail: report.why.map(MissReason::word),
    };
    status.write(&mut value);
    r.response.fields.append("Cache-Status", Bytes::from(value));
}
