//! Treatment of the client's request.

use tw_conf::Setting;

/// Settings of the request to an upstream server.
#[derive(Clone, Copy)]
pub struct RequestSettings {
    /// `request_buffering`
    pub buffering: bool,
    /// `pass_request_headers`
    pub pass_headers: bool,
    /// `pass_request_body`
    pub pass_body: bool,
    /// `request_dynamic`: set if the request is built anew for each server.
    pub is_dynamic: bool,
    /// `ignore_client_abort`
    pub ignore_client_abort: bool,
}

/// Directives of [`RequestSettings`] as written.
#[derive(Default)]
pub struct RawRequest {
    /// `request_buffering`
    pub buffering: Setting<bool>,
    /// `pass_request_headers`
    pub pass_headers: Setting<bool>,
    /// `pass_request_body`
    pub pass_body: Setting<bool>,
    /// `request_dynamic`
    pub dynamic: Setting<bool>,
    /// `ignore_client_abort`
    pub ignore_client_abort: Setting<bool>,
}

impl RequestSettings {
    pub(super) fn resolve(raw: RawRequest, outer: Option<&Self>) -> Self {
        Self {
            buffering: raw.buffering.or(outer.map(|o| o.buffering), true),
            pass_headers: raw.pass_headers.or(outer.map(|o| o.pass_headers), true),
            pass_body: raw.pass_body.or(outer.map(|o| o.pass_body), true),
            is_dynamic: raw.dynamic.or(outer.map(|o| o.is_dynamic), false),
            ignore_client_abort: raw.ignore_client_abort.or(outer.map(|o| o.ignore_client_abort), false),
        }
    }
}
