//! Cache hit to response: the stored head becomes the head of the response, the entry or the fill its body.

use tw_http::{HeaderName, Method};

use super::cache_headers::set_cache_headers;
use super::cached_response::CachedResponse;
use crate::settings::CacheSettings;
use tw_phases::forward_head::{self, ForwardRules, RewriteFields};
use tw_request::body::{AnnouncedLength, Body};
use tw_request::plan::Outcome;
use tw_request::request::{ConditionCheck, Ranges, Request};

/// Responds with a stored response, or with one on its way into the cache.
pub fn serve_hit(
    r: &mut Request,
    settings: &CacheSettings,
    rules: &ForwardRules,
    rewrite: &dyn RewriteFields,
    ready: CachedResponse,
) -> Outcome {
    ready.head.restore(&mut r.upstream.answer);
    if let Some(outcome) = forward_head::accel_redirect(r, rules) {
        r.upstream.cache.cancel_hit();
        return outcome;
    }
    let status = r.upstream.answer.status;
    if forward_head::is_intercepted(r, rules, status) {
        r.upstream.cache.cancel_hit();
        return forward_head::intercepted(r, status);
    }
    forward_head::forward_head(r, rules, rewrite);
    set_cache_headers(r, settings, rules);
    evaluate_conditions(r, settings, Ranges::Allowed);
    Outcome::Respond(match ready.body {
        // A response to HEAD has only the head.
        Body::Empty if r.method() == Method::Head => head_body(r),
        body => body,
    })
}

/// Body of a response to HEAD: no bytes, of the length that the upstream server has announced.
pub fn head_body(r: &Request) -> Body {
    let answer = &r.upstream.answer;
    let field = answer.fields.get_known(HeaderName::ContentLength).and_then(tw_http::num::parse);
    Body::Pull(Box::new(AnnouncedLength(answer.content_length.max(field))))
}

// DIFF(nginx): a cached response has ranges, whether its upstream server has them or not.
/// Leaves conditions and ranges to this server, as for a file: the upstream server was not sent them.
pub fn evaluate_conditions(r: &mut Request, settings: &CacheSettings, ranges: Ranges) {
    r.state.conditions =
        if settings.is_rfc9111() { ConditionCheck::OpenByRfc9110 } else { ConditionCheck::Open };
    r.state.ranges = ranges;
    r.response.fields.remove_known(HeaderName::AcceptRanges);
}
