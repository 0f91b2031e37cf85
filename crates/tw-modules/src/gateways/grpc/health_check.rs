//! Health checks of the servers of `grpc_pass`: with the fields that a request of the location would have, without a client.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use tw_connect::upstream_tls::UpstreamTls;
use tw_http::origin::{RequestWriter, WriteError};
use tw_http::{Framing, Method, Version};
use tw_proxy::codec::Codec;
use tw_proxy::codec::http2::{Http2Codec, Trailers};
use tw_proxy::health::Checkable;
use tw_proxy::{ProxySettings, UpstreamSettings};
use tw_request::config::upstream::UpstreamGroup;
use tw_request::request::Request;

use crate::gateways::cgi::address::FixedAddress;
use crate::gateways::proxy::fields::{ForwardedFields, HEAD_SIZE, RequestFields};

/// A location as health checks know it.
pub(super) struct GrpcHealthCheck {
    pub(super) settings: Arc<ProxySettings>,
    pub(super) to: Arc<FixedAddress>,
    pub(super) fields: Arc<RequestFields>,
}

impl Checkable for GrpcHealthCheck {
    fn group(&self) -> &Arc<UpstreamGroup> {
        self.to.group()
    }

    fn settings(&self) -> &UpstreamSettings {
        &self.settings.upstream
    }

    fn secured(&self, r: &mut Request) -> Option<UpstreamTls> {
        if self.to.is_secured() { self.settings.upstream.tls.for_host(r, &self.host()) } else { None }
    }

    fn request(&self, r: &mut Request) -> Result<Bytes, String> {
        self.write(r, b"GET", Framing::None).map_err(|error| error.to_string())
    }

    fn grpc_request(&self, r: &mut Request, body_size: u64) -> Option<Result<Bytes, String>> {
        Some(self.write(r, b"POST", Framing::Length(body_size)).map_err(|error| error.to_string()))
    }

    fn codec(&self, _: &Request) -> Box<dyn Codec> {
        Box::new(Http2Codec::new(Method::Get, self.settings.upstream.buffer_size, Trailers::Forwarded))
    }

    fn speaks_grpc(&self) -> bool {
        true
    }
}

impl GrpcHealthCheck {
    fn host(&self) -> Cow<'_, [u8]> {
        authority(Cow::Borrowed(self.to.host()))
    }

    fn write(&self, r: &Request, method: &[u8], framing: Framing) -> Result<Bytes, WriteError> {
        let mut head = Vec::with_capacity(HEAD_SIZE);
        let mut writer = RequestWriter::begin(&mut head, method, r.head.target(), Version::HTTP_11)?;
        let host = self.host();
        let passed = ForwardedFields { is_client_passed: false, host: &host, conditions: None };
        self.fields.write(r, &mut writer, framing, &passed)?;
        if framing != Framing::None {
            for (name, value) in [(&b"Content-Type"[..], &b"application/grpc"[..]), (b"TE", b"trailers")] {
                if !self.fields.sets(name) {
                    writer.field(name, value)?;
                }
            }
        }
        writer.end();
        Ok(head.into())
    }
}

/// Name of the server in requests.
pub(super) fn authority(host: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match host.get(..5) {
        Some(unix) if unix.eq_ignore_ascii_case(b"unix:") => Cow::Borrowed(b"localhost"),
        _ => host,
    }
}
