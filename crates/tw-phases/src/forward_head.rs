//! Head of an upstream server's response becomes the head for the client: hop-by-hop and hidden fields are left out,
//! `X-Accel-*` fields are obeyed, fields that name the upstream server are rewritten (nginx: ngx_http_upstream). The proxy and
//! the cache share these rules.

use std::sync::Arc;

use bytes::Bytes;
use tw_http::fields::{Name, Value};
use tw_http::target::{self, AboveRoot};
use tw_http::{HeaderName, Method, date};
use tw_log::{Level, Text};

use super::hop_fields::HopFields;
use tw_request::header_names::{HeaderNames, IgnoredHeaders};
use tw_request::plan::Outcome;
use tw_request::request::{ConditionCheck, Ranges, Request};

/// Rules of a location for the heads of upstream responses.
#[derive(Clone)]
pub struct ForwardRules {
    /// `ignore_headers`
    pub ignored: IgnoredHeaders,
    /// Fields that are not passed on: those of the protocol and `hide_header`, without `pass_header`.
    pub hidden: Arc<HeaderNames>,
    /// `force_ranges`
    pub force_ranges: bool,
    /// `intercept_errors`
    pub intercept_errors: bool,
    /// True if a 404 becomes this server's own response: the upstream server has no error page.
    pub intercepts_404: bool,
}

/// Knowledge of a gateway about its upstream server: rewrites response fields that name it, and builds cache keys.
pub trait RewriteFields {
    /// Rewrites a `Location` or, with `is_refresh`, the URL in a `Refresh`. Returns `None` if the value stays.
    fn location(&self, _r: &Request, _value: &[u8], _is_refresh: bool) -> Option<Vec<u8>> {
        None
    }

    /// Rewrites a `Set-Cookie`. Returns `None` if the value stays.
    fn cookie(&self, _r: &Request, _value: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// Appends the cache key of the response to `r` where no `cache_key` is configured.
    fn cache_key(&self, r: &Request, out: &mut Vec<u8>);
}

/// Fields stay as the server sends them, and no response is stored in a cache.
pub struct KeepFields;

impl RewriteFields for KeepFields {
    fn cache_key(&self, _: &Request, _: &mut Vec<u8>) {}
}

/// Replaces the upstream response by an internal redirect (`X-Accel-Redirect`), if it asks for one.
pub fn accel_redirect(r: &mut Request, rules: &ForwardRules) -> Option<Outcome> {
    if rules.ignored.has(IgnoredHeaders::REDIRECT)
        || !r.upstream.answer.fields.has(HeaderName::XAccelRedirect)
    {
        return None;
    }
    let to = r.upstream.answer.fields.share(b"X-Accel-Redirect")?;
    Some(redirect(r, rules, &to))
}

/// Replaces the upstream response by `error_page`, after [`is_intercepted`].
pub fn intercepted(r: &mut Request, status: u16) -> Outcome {
    if status == 401 {
        copy_all(r, HeaderName::WwwAuthenticate);
    }
    Outcome::Status(status)
}

/// Returns true if `error_page` replaces an upstream response with this status.
pub fn is_intercepted(r: &Request, rules: &ForwardRules, status: u16) -> bool {
    if status < 300 {
        return false;
    }
    if rules.intercepts_404 && status == 404 {
        return true;
    }
    rules.intercept_errors && r.plan().core.error_pages.iter().any(|page| page.codes.contains(&status))
}

/// Makes the head for the client of the upstream response. Returns the value of `X-Accel-Buffering`, if there is one.
pub fn forward_head(r: &mut Request, rules: &ForwardRules, rewrite: &dyn RewriteFields) -> Option<bool> {
    let answer = &mut r.upstream.answer;
    let status = answer.status;
    r.response.status = status;
    r.response.status_line.clone_from(&answer.status_line);
    r.response.content_length = answer.content_length;
    let fields = std::mem::take(&mut answer.fields);
    let mut buffering = None;
    // The upstream server has evaluated the conditions already.
    r.state.conditions = ConditionCheck::Answered;
    if rules.force_ranges {
        r.state.ranges = Ranges::One;
    }
    // DIFF(nginx): `Date` and `Server` are the server's own if the upstream has sent none, whatever may be passed on.
    let hop = HopFields::of(&fields, status);
    for (index, (name, known_name, value)) in fields.iter_known().enumerate() {
        match known_name {
            Some(HeaderName::XAccelBuffering) if !rules.ignored.has(IgnoredHeaders::BUFFERING) => {
                if value.eq_ignore_ascii_case(b"no") {
                    buffering = Some(false);
                } else if value.eq_ignore_ascii_case(b"yes") {
                    buffering = Some(true);
                }
            }
            Some(HeaderName::XAccelLimitRate) => limit_client(r, rules, value),
            // DIFF(nginx): the configuration need not know the charset.
            Some(HeaderName::XAccelCharset) if !rules.ignored.has(IgnoredHeaders::CHARSET) => {
                r.upstream.charset = Some(Bytes::copy_from_slice(value));
            }
            _ => {}
        }
        if hop.has(name, known_name) || rules.hidden.has(name, known_name) {
            continue;
        }
        match known_name {
            // The type is kept as written, with its parameters, because a filter that changes one of them expects it
            // there.
            Some(HeaderName::ContentType) => {
                (r.response.content_type, r.response.charset) = (Bytes::copy_from_slice(value), Bytes::new());
            }
            Some(HeaderName::AcceptRanges) if rules.force_ranges => {}
            // A rewritten one points to this server and is sent as its own ones are.
            Some(HeaderName::Location) => match rewrite.location(r, value, false) {
                Some(location) => r.response.location = location.into(),
                None => r.response.fields.append_from(&fields, index),
            },
            Some(HeaderName::Refresh) => match rewrite.location(r, value, true) {
                Some(value) => append(r, name, known_name, value),
                None => r.response.fields.append_from(&fields, index),
            },
            Some(HeaderName::SetCookie) => match rewrite.cookie(r, value) {
                Some(value) => append(r, name, known_name, value),
                None => r.response.fields.append_from(&fields, index),
            },
            Some(HeaderName::LastModified) => {
                r.response.last_modified = date::parse(value);
                r.response.fields.append_from(&fields, index);
            }
            _ => r.response.fields.append_from(&fields, index),
        }
    }
    if let Some(charset) = &r.upstream.charset
        && !r.response.content_type.is_empty()
        && r.response.own_charset().is_none()
    {
        // A charset that is there may be converted to it by the charset module.
        r.response.charset = charset.clone();
    }
    r.upstream.answer.fields = fields;
    buffering
}

/// Limits the rate to the client (`X-Accel-Limit-Rate`), also if another response replaces this one.
fn limit_client(r: &mut Request, rules: &ForwardRules, value: &[u8]) {
    if !rules.ignored.has(IgnoredHeaders::LIMIT_RATE)
        && let Some(rate) = tw_conf::units::number(value)
    {
        r.costs.limit_rate = Some(rate);
    }
}

/// Appends a field with another value than the upstream server has sent.
fn append(r: &mut Request, name: &[u8], known_name: Option<HeaderName>, value: Vec<u8>) {
    r.response.fields.append(Name::CopyKnown(name, known_name), Value::Shared(value.into()));
}

/// Redirects internally to `to`; some fields of the upstream response are kept.
fn redirect(r: &mut Request, rules: &ForwardRules, to: &Bytes) -> Outcome {
    if let Some(rate) = r.upstream.answer.fields.share(HeaderName::XAccelLimitRate.as_str().as_bytes()) {
        limit_client(r, rules, &rate);
    }
    for name in
        [HeaderName::SetCookie, HeaderName::CacheControl, HeaderName::Expires, HeaderName::AcceptRanges]
    {
        copy_all(r, name);
    }
    copy_named(r, b"Content-Disposition");
    if let Some(kind) = r.upstream.answer.fields.share(HeaderName::ContentType.as_str().as_bytes()) {
        (r.response.content_type, r.response.charset) = (kind, Bytes::new());
    }
    if to.first() == Some(&b'@') {
        return Outcome::Named(to.to_vec().into());
    }
    let (path, args) = match target::local(to) {
        Ok(entry) if entry.0.first() == Some(&b'/') => entry,
        Ok((path, _)) => return unsafe_uri(r, &path),
        Err(AboveRoot(path)) => return unsafe_uri(r, &path),
    };
    if r.method() != Method::Head {
        r.state.method = Some(Method::Get);
    }
    Outcome::Redirect { path, args }
}

fn unsafe_uri(r: &Request, uri: &[u8]) -> Outcome {
    r.log(Level::Error, format_args!("unsafe URI \"{}\" was detected", Text(uri)));
    Outcome::Status(404)
}

fn copy_all(r: &mut Request, name: HeaderName) {
    copy_named(r, name.as_str().as_bytes());
}

fn copy_named(r: &mut Request, name: &[u8]) {
    let Request { upstream, response, .. } = r;
    for (known_name, value) in upstream.answer.fields.iter() {
        if known_name.eq_ignore_ascii_case(name) {
            response.fields.append(Name::Copy(known_name), Value::Copy(value));
        }
    }
}
