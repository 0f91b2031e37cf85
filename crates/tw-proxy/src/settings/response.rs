//! Treatment of response heads.

use std::sync::Arc;

use tw_conf::{ConfError, Setting, Word};

use super::kind::ProxyKind;
use tw_http_cache::CacheSettings;
use tw_phases::forward_head::ForwardRules;
use tw_request::header_names::IgnoredHeaders;
use tw_request::protocol::Resolve;
use tw_request::vars::Template;

/// Settings of the response of an upstream server.
#[derive(Clone)]
pub struct ResponseSettings {
    /// `hide_header`, `ignore_headers`, `intercept_errors` and others: rules for its head.
    pub forward: ForwardRules,
    /// `limit_rate`: bytes per second that are read of a response.
    pub limit_rate: Option<Template>,
    hide: Arc<[Box<[u8]>]>,
    pass: Arc<[Box<[u8]>]>,
}

/// Directives of [`ResponseSettings`] as written.
#[derive(Default)]
pub struct RawResponse {
    /// `intercept_errors`
    pub intercept_errors: Setting<bool>,
    /// `force_ranges`
    pub force_ranges: Setting<bool>,
    /// `ignore_headers`
    pub ignored: Setting<u32>,
    /// `hide_header`
    pub hide: Setting<Vec<Box<[u8]>>>,
    /// `pass_header`
    pub pass: Setting<Vec<Box<[u8]>>>,
    /// `limit_rate`
    pub limit_rate: Setting<Word>,
}

impl ResponseSettings {
    pub(super) fn resolve(
        raw: RawResponse,
        outer: Option<&Self>,
        kind: &ProxyKind,
        cache: &CacheSettings,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let list = |own: Setting<Vec<Box<[u8]>>>, outer: Option<&Arc<[Box<[u8]>]>>| match own.take() {
            Some(own) => own.into(),
            None => outer.cloned().unwrap_or_else(|| [].into()),
        };
        let hide = list(raw.hide, outer.map(|o| &o.hide));
        let pass = list(raw.pass, outer.map(|o| &o.pass));
        let usual = kind.hidden.iter().map(|name| name.as_bytes());
        let usual = usual.filter(|name| !pass.iter().any(|passed| passed.eq_ignore_ascii_case(name)));
        // With the `Date` of this server, a response from the cache would look younger than it is.
        let usual = usual.filter(|name| !(cache.is_rfc9111() && name.eq_ignore_ascii_case(b"Date")));
        let hidden = Arc::new(usual.chain(hide.iter().map(|name| &**name)).collect());
        let limit_rate = match raw.limit_rate.take() {
            Some(word) if &*word.bytes == b"0" => None,
            Some(word) => Some(cx.template(&word)?),
            None => outer.and_then(|o| o.limit_rate.clone()),
        };
        let outer_rules = outer.map(|o| &o.forward);
        let ignored = raw.ignored.take().map(IgnoredHeaders::of_bits);
        let forward = ForwardRules {
            ignored: ignored.or(outer_rules.map(|o| o.ignored)).unwrap_or_default(),
            hidden,
            force_ranges: raw.force_ranges.or(outer_rules.map(|o| o.force_ranges), false),
            intercept_errors: raw.intercept_errors.or(outer_rules.map(|o| o.intercept_errors), false),
            intercepts_404: kind.answers_404,
        };
        Ok(Self { forward, limit_rate, hide, pass })
    }
}
