//! Progress of a request through routing, and the decisions that its response depends on.

use tw_http::Method;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Internal redirects of one request, rewrites included.
    ///
    /// Internal redirects of one request before it is ended with 500 (nginx's NGX_HTTP_MAX_URI_CHANGES).
    pub const INTERNAL_REDIRECTS_MAX: u8 = 10, count, "500";
}

/// Progress of a request through routing.
#[derive(Debug)]
pub struct RequestState {
    /// Internal redirects left before the request fails.
    pub redirects_left: u8,
    /// Origin of the current URI.
    pub origin: RequestOrigin,
    /// True until the URI or the arguments are replaced: upstream servers receive them as the client sent them (nginx: valid_unparsed_uri).
    pub has_client_target: bool,
    /// Status sent to the client, whatever the response's own is (nginx: err_status).
    pub error_status: Option<u16>,
    /// Seconds of `Retry-After`, after a limit has refused the request.
    pub retry_after: Option<u32>,
    /// Use of `error_page` for the request.
    pub error_pages: ErrorPages,
    /// Method, if an error page changed it to GET.
    pub method: Option<Method>,
    /// Use of the client's connection after this request.
    pub after: After,
    /// Partial responses that are allowed.
    pub ranges: Ranges,
    /// Evaluation of the conditional fields of the request.
    pub conditions: ConditionCheck,
    /// End of a path by `alias` in a regular expression location.
    pub alias_end: AliasEnd,
    /// Choice of the location after `rewrite`.
    pub rewritten: Rewritten,
    /// True from the begin of the request until its access log line is written.
    pub is_log_due: bool,
}

/// Choice of the location after `rewrite` (nginx: valid_location).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rewritten {
    /// By the URI.
    No,
    /// None: a `break` keeps the request in its location, whose name is no part of the URI.
    Here,
}

/// End of a path by `alias` in a regular expression location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AliasEnd {
    /// Nothing: the path is complete.
    Nothing,
    /// The URI, as `try_files` has found there (nginx: add_uri_to_alias).
    Uri,
}

/// Partial responses that are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranges {
    /// `Range` is answered, and `Accept-Ranges` says so.
    Allowed,
    /// One range is answered; a request for several gets the whole content.
    One,
    /// `Range` is ignored.
    Refused,
    /// None of the ranges asked for is in the content: the response was replaced by a 416.
    NotSatisfiable,
}

/// Evaluation of `If-Modified-Since` and the other conditional fields of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionCheck {
    /// Against the response.
    Open,
    /// As `Open`; a date counts only without an entity tag.
    OpenByRfc9110,
    /// None: the origin of the response has evaluated them.
    Answered,
}

/// Origin of the current URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOrigin {
    /// The client.
    Client,
    /// An internal redirect; `internal` locations may answer.
    Internal,
}

/// Use of `error_page` for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorPages {
    /// An error status may have its page.
    Allowed,
    /// None: the response is an error page already.
    Used,
}

/// Use of the connection after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Keep-alive: it waits for the next request.
    KeepAlive,
    /// Closed, once the client has had the chance to read the response.
    Close,
    /// Closed at once.
    Abort,
}

impl After {
    /// Excludes keep-alive.
    #[must_use]
    pub fn or_close(self) -> Self {
        match self {
            Self::KeepAlive | Self::Close => Self::Close,
            Self::Abort => Self::Abort,
        }
    }
}

impl RequestState {
    pub(super) fn new() -> Self {
        Self {
            redirects_left: INTERNAL_REDIRECTS_MAX,
            origin: RequestOrigin::Client,
            has_client_target: true,
            error_status: None,
            retry_after: None,
            error_pages: ErrorPages::Allowed,
            method: None,
            after: After::KeepAlive,
            ranges: Ranges::Refused,
            conditions: ConditionCheck::Open,
            alias_end: AliasEnd::Nothing,
            rewritten: Rewritten::No,
            is_log_due: false,
        }
    }
}
