//! Health checks of the servers of `proxy_pass`: with the fields that a request of the location would have, without a
//! client.

use std::sync::Arc;

use bytes::Bytes;
use tw_connect::upstream_tls::UpstreamTls;
use tw_core::session::Session as _;
use tw_http::origin::{RequestWriter, WriteError};
use tw_http::{Framing, Method, Version};
use tw_proxy::codec::Codec;
use tw_proxy::codec::http1::Http1Codec;
use tw_proxy::codec::http2::{Http2Codec, Trailers};
use tw_proxy::health::Checkable;
use tw_proxy::{ProxySettings, UpstreamSettings};
use tw_request::config::upstream::UpstreamGroup;
use tw_request::request::Request;

use super::fields::{ForwardedFields, HEAD_SIZE, RequestFields};
use super::target::{FixedUrl, Slots, UrlScheme};

/// A location as health checks know it.
pub(super) struct ProxyHealthCheck {
    pub(super) settings: Arc<ProxySettings>,
    pub(super) to: Arc<FixedUrl>,
    pub(super) fields: Arc<RequestFields>,
    pub(super) version: Version,
    pub(super) slots: Slots,
}

impl Checkable for ProxyHealthCheck {
    fn group(&self) -> &Arc<UpstreamGroup> {
        &self.to.group
    }

    fn settings(&self) -> &UpstreamSettings {
        &self.settings.upstream
    }

    fn secured(&self, r: &mut Request) -> Option<UpstreamTls> {
        // TLS names with variables use these values.
        r.set_slot(self.slots.host, &self.to.host);
        r.set_slot(self.slots.port, &self.to.port);
        match self.to.scheme {
            UrlScheme::Http => None,
            UrlScheme::Https => self.settings.upstream.tls.for_host(r, &self.to.host),
        }
    }

    fn request(&self, r: &mut Request) -> Result<Bytes, String> {
        self.write(r).map_err(|error| error.to_string())
    }

    fn codec(&self, _: &Request) -> Box<dyn Codec> {
        let head_size = self.settings.upstream.buffer_size;
        match self.version {
            Version::HTTP_2 => Box::new(Http2Codec::new(Method::Get, head_size, Trailers::Dropped)),
            _ => Box::new(Http1Codec::new(Method::Get, head_size, false)),
        }
    }
}

impl ProxyHealthCheck {
    fn write(&self, r: &mut Request) -> Result<Bytes, WriteError> {
        r.set_slot(self.slots.host, &self.to.host);
        r.set_slot(self.slots.port, &self.to.port);
        let mut head = Vec::with_capacity(HEAD_SIZE);
        let mut writer = RequestWriter::begin(&mut head, b"GET", r.head.target(), self.version)?;
        let passed = ForwardedFields { is_client_passed: false, host: &self.to.host, conditions: None };
        self.fields.write(r, &mut writer, Framing::None, &passed)?;
        if !self.fields.sets(b"Connection") {
            writer.field(b"Connection", b"close")?;
        }
        writer.end();
        Ok(head.into())
    }
}
