//! Reasons for which a response is not stored.

use std::fmt;

/// Reason for which a response is not stored.
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
