//! Health checks of application servers: with the parameters that a request for the path would have, without a client.

use std::sync::Arc;

use bytes::Bytes;
use tw_connect::upstream_tls::UpstreamTls;
use tw_http::{Framing, Method};
use tw_proxy::codec::Codec;
use tw_proxy::health::Checkable;
use tw_proxy::{ProxySettings, UpstreamSettings};
use tw_request::config::upstream::UpstreamGroup;
use tw_request::request::Request;

use super::address::FixedAddress;
use super::language::Language;
use super::params::{Params, RequestParams};

/// A location as health checks know it.
pub(super) struct CgiHealthCheck<L> {
    pub(super) settings: Arc<ProxySettings>,
    pub(super) to: Arc<FixedAddress>,
    pub(super) params: Arc<Params>,
    pub(super) language: Arc<L>,
}

impl<L: Language> Checkable for CgiHealthCheck<L> {
    fn group(&self) -> &Arc<UpstreamGroup> {
        self.to.group()
    }

    fn settings(&self) -> &UpstreamSettings {
        &self.settings.upstream
    }

    fn secured(&self, r: &mut Request) -> Option<UpstreamTls> {
        if self.to.is_secured() { self.settings.upstream.tls.for_host(r, self.to.host()) } else { None }
    }

    fn request(&self, r: &mut Request) -> Result<Bytes, String> {
        let params = &self.params;
        let sent = RequestParams { params, is_client_passed: false, conditions: None, body: Framing::None };
        self.language.beginning(r, &sent).map(|(beginning, _)| beginning.into())
    }

    fn codec(&self, _: &Request) -> Box<dyn Codec> {
        Box::new(self.language.codec(Method::Get, self.settings.upstream.buffer_size))
    }
}
