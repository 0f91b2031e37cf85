//! A request to an upstream server as the modules of the `*_pass` directives build it.

use bytes::Bytes;
use tw_connect::upstream_tls::UpstreamTls;

use super::codec::BodyFraming;
use super::settings::UpstreamSettings;
use super::settings::response::ResponseSettings;
use tw_request::config::upstream::UpstreamGroup;
use tw_request::request::Request;

/// A request to be sent to a server of a group.
pub struct UpstreamRequest<'a, C> {
    /// Settings of the attempts.
    pub settings: &'a UpstreamSettings,
    /// Settings of the response head; `None` for a CONNECT tunnel, which has none.
    pub response: Option<&'a ResponseSettings>,
    /// Servers to choose from.
    pub group: &'a UpstreamGroup,
    /// TLS of the connections; `None` is plain text.
    pub secured: Option<UpstreamTls>,
    /// The head.
    pub head: Vec<u8>,
    /// The body.
    pub body: UpstreamRequestBody,
    /// Framing of the body.
    pub framing: BodyFraming,
    /// Builds `head`, `body` and `framing` anew for each server (`request_dynamic`).
    pub rebuild: Option<RequestBuilder<'a>>,
    /// Parser of the response; each attempt clones it.
    pub codec: C,
}

impl<'a, C> UpstreamRequest<'a, C> {
    /// Replaces the codec.
    pub fn with_codec<D>(self, codec: D) -> UpstreamRequest<'a, D> {
        let UpstreamRequest { settings, response, group, secured, head, body, framing, rebuild, .. } = self;
        UpstreamRequest { settings, response, group, secured, head, body, framing, rebuild, codec }
    }
}

/// Builds a request for the server that was chosen last; the error is the status if there is nothing that could be sent.
pub type RequestBuilder<'a> = &'a dyn Fn(&Request) -> Result<BuiltRequest, u16>;

/// A request as sent to one server.
pub struct BuiltRequest {
    /// The head.
    pub head: Vec<u8>,
    /// The body.
    pub body: UpstreamRequestBody,
    /// Framing of the body.
    pub framing: BodyFraming,
}

/// Body of a request to an upstream server.
pub enum UpstreamRequestBody {
    /// No body.
    Nothing,
    /// The client's body.
    Client,
    /// Given bytes (`proxy_set_body`).
    Bytes(Bytes),
}
