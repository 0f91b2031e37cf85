//! Storability of a response and its lifetime (RFC 9111 section 3), with the reason if it may not be stored.

use std::fmt;

use tw_http::{Fields, Known, Validators, date};

use super::{Lifetime, Request, Response, Rules, Ruleset, StoreSettings, nginx, rfc9111};
use crate::format::ETAG_MAX;

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoStoreReason {
    /// The method's responses are not stored.
    Method,
    /// Status without content of its own: 304, or one that is not final.
    Status,
    /// A part of the content (206) under the key of the whole.
    Partial,
    /// `must-understand` with a status whose caching requirements this cache does not know.
    NotUnderstood,
    /// `no-store`
    NoStore,
    /// `no-store` of the client.
    RequestNoStore,
    /// `private`
    Private,
    /// `no-cache`; by RFC 9111 only without a validator, because it could never be used.
    NoCache,
    /// The request has `Authorization`, and the response does not permit shared caching.
    Authorization,
    /// The response has `Set-Cookie`.
    SetCookie,
    /// `Vary: *`: no other request matches.
    VaryStar,
    /// `Vary` is longer than allowed.
    VaryTooLong,
    /// `X-Accel-Expires: 0`
    AccelExpires,
    /// `max-age=0`, `s-maxage=0`
    MaxAge,
    /// A time in `Cache-Control` is no number.
    BadNumber,
    /// Expired on arrival, or `Expires` is no date.
    Expired,
    /// Neither the response nor `proxy_cache_valid` gives a lifetime.
    NoValidity,
}

impl NoStoreReason {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Method,
        Self::Status,
        Self::Partial,
        Self::NotUnderstood,
        Self::NoStore,
        Self::RequestNoStore,
        Self::Private,
        Self::NoCache,
        Self::Authorization,
        Self::SetCookie,
        Self::VaryStar,
        Self::VaryTooLong,
        Self::AccelExpires,
        Self::MaxAge,
        Self::BadNumber,
        Self::Expired,
        Self::NoValidity,
    ];

    /// Word for logs, e.g. `set-cookie`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            NoStoreReason::Method => "method",
            NoStoreReason::Status => "status",
            NoStoreReason::Partial => "partial",
            NoStoreReason::NotUnderstood => "not-understood",
            NoStoreReason::NoStore => "no-store",
            NoStoreReason::RequestNoStore => "request-no-store",
            NoStoreReason::Private => "private",
            NoStoreReason::NoCache => "no-cache",
            NoStoreReason::Authorization => "authorization",
            NoStoreReason::SetCookie => "set-cookie",
            NoStoreReason::VaryStar => "vary-star",
            NoStoreReason::VaryTooLong => "vary-too-long",
            NoStoreReason::AccelExpires => "x-accel-expires",
            NoStoreReason::MaxAge => "max-age",
            NoStoreReason::BadNumber => "bad-number",
            NoStoreReason::Expired => "expired",
            NoStoreReason::NoValidity => "no-validity",
        }
    }
}

impl fmt::Display for NoStoreReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Decides on storing a response, and returns its lifetime. `now` is the time at which its head was received. Cost:
/// some passes over the fields.
///
/// # Errors
/// The reason for not storing it.
pub fn may_store(
    request: &impl Request,
    response: &Response<'_>,
    now: i64,
    rules: &Rules,
    terms: &StoreSettings,
) -> Result<Lifetime, NoStoreReason> {
    // DIFF(nginx): nginx stores a 304 that answers a condition of the client's own, and gives it to others.
    if response.status < 200 || response.status == 304 {
        return Err(NoStoreReason::Status);
    }
    match rules.reading {
        Ruleset::Nginx => nginx::may_store(response, now, rules, terms),
        Ruleset::Rfc9111 => rfc9111::may_store(request, response, now, rules, terms),
    }
}

/// Validators of a stored response. Origins evaluate conditions only for statuses 200 and 206 (RFC 9110 section
/// 13.2.1; nginx has the same). An entity tag longer than [`ETAG_MAX`] is not used.
#[must_use]
pub fn validators(status: u16, fields: &Fields) -> Validators<'_> {
    if !matches!(status, 200 | 206) {
        return Validators { etag: None, last_modified: None };
    }
    Validators {
        etag: fields.get_known(Known::ETag).filter(|etag| !etag.is_empty() && etag.len() <= ETAG_MAX),
        last_modified: fields.get_known(Known::LastModified).and_then(date::parse),
    }
}
