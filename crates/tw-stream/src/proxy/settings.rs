//! Settings of the proxy: directives as written, and as sessions use them.

use std::time::Duration;

use tw_conf::{ConfError, Setting, Word};
use tw_connect::AttemptLimits;
use tw_connect::settings::{ConnectionSettings, RawConnection};
use tw_connect::tls_settings::TlsSettings;
use tw_connect::upstream_tls::{RawUpstreamTls, TlsProtocol, UpstreamTls};
use tw_core::load::Resolve;
use tw_core::reach::Reach;
use tw_core::vars::Template;
use tw_net::ConnectOptions;

use crate::protocol::Stream;
use crate::session::StreamSession;

pub use super::proxy_header::ProxyProtocol;

/// Directives as written, but `proxy_pass`.
#[derive(Default)]
pub struct RawProxy {
    /// `proxy_connect_timeout`
    pub connect_timeout: Setting<Duration>,
    /// `proxy_timeout`
    pub timeout: Setting<Duration>,
    /// `proxy_buffer_size`
    pub buffer_size: Setting<usize>,
    /// `proxy_bind` and `proxy_socket_…`
    pub connection: RawConnection,
    /// `proxy_next_upstream`
    pub next_upstream: Setting<bool>,
    /// `proxy_next_upstream_tries`
    pub next_upstream_tries: Setting<u64>,
    /// `proxy_next_upstream_timeout`
    pub next_upstream_timeout: Setting<Duration>,
    /// `proxy_protocol`
    pub proxy_protocol: Setting<ProxyProtocol>,
    /// `proxy_protocol_version`: true for version 2.
    pub proxy_protocol_v2: Setting<bool>,
    /// `proxy_half_close`
    pub half_close: Setting<bool>,
    /// `proxy_session_drop`
    pub session_drop: Setting<bool>,
    /// `proxy_requests`
    pub requests: Setting<u64>,
    /// `proxy_responses`
    pub responses: Setting<u64>,
    /// `proxy_ssl`
    pub ssl: Setting<bool>,
    /// `proxy_ssl_verify` and the other directives of TLS.
    pub tls: RawUpstreamTls,
    /// `proxy_upload_rate`
    pub upload_rate: Setting<Word>,
    /// `proxy_download_rate`
    pub download_rate: Setting<Word>,
}

/// Settings of the proxy.
pub struct ProxySettings {
    pub(super) connect_timeout: Duration,
    pub(super) timeout: Duration,
    pub(super) buffer_size: usize,
    pub(super) connection: ConnectionSettings<StreamSession>,
    pub(super) retry: RetryPolicy,
    /// `proxy_protocol`
    proxy_protocol: ProxyProtocol,
    /// `proxy_protocol_version`: true for version 2.
    proxy_protocol_v2: bool,
    pub(super) half_close: bool,
    pub(super) session_drop: bool,
    /// Datagrams of a client that belong to one session; 0 is no limit.
    pub(super) requests: u64,
    /// Datagrams of a server for each of a client; `None` is any number.
    pub(super) responses: Option<u64>,
    /// `proxy_ssl`
    ssl: bool,
    pub(super) tls: TlsSettings<StreamSession>,
    upload_rate: Option<Template<StreamSession>>,
    download_rate: Option<Template<StreamSession>>,
}

/// Conditions and limits of further attempts.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetryPolicy {
    /// `proxy_next_upstream`
    pub(super) is_on: bool,
    /// `proxy_next_upstream_tries` and `proxy_next_upstream_timeout`
    pub(super) limits: AttemptLimits,
}

impl ProxySettings {
    /// PROXY protocol header that upstream servers get.
    pub(crate) fn proxy_protocol(&self) -> ProxyProtocol {
        match self.proxy_protocol {
            ProxyProtocol::V1 if self.proxy_protocol_v2 => ProxyProtocol::V2,
            written => written,
        }
    }

    /// Resolves the directives against the enclosing block.
    ///
    /// # Errors
    /// An unknown variable, or a value that is not valid.
    pub fn resolve(
        raw: RawProxy,
        outer: Option<&Self>,
        cx: &mut Resolve<'_, Stream>,
    ) -> Result<Self, ConfError> {
        let retry = outer.map(|o| o.retry);
        let ssl = raw.ssl.or(outer.map(|o| o.ssl), false);
        let tls = TlsSettings::resolve(raw.tls, outer.map(|o| &o.tls), cx)?;
        Ok(Self {
            connect_timeout: raw
                .connect_timeout
                .or(outer.map(|o| o.connect_timeout), Duration::from_secs(60)),
            timeout: raw.timeout.or(outer.map(|o| o.timeout), Duration::from_secs(600)),
            buffer_size: raw.buffer_size.or(outer.map(|o| o.buffer_size), 16 << 10),
            connection: ConnectionSettings::resolve(raw.connection, outer.map(|o| &o.connection), cx)?,
            retry: RetryPolicy {
                is_on: raw.next_upstream.or(retry.map(|r| r.is_on), true),
                limits: AttemptLimits {
                    tries: raw.next_upstream_tries.or(retry.map(|r| r.limits.tries), 0),
                    timeout: raw.next_upstream_timeout.or(retry.map(|r| r.limits.timeout), Duration::ZERO),
                },
            },
            proxy_protocol: raw.proxy_protocol.or(outer.map(|o| o.proxy_protocol), ProxyProtocol::Off),
            proxy_protocol_v2: raw.proxy_protocol_v2.or(outer.map(|o| o.proxy_protocol_v2), false),
            ssl,
            tls,
            half_close: raw.half_close.or(outer.map(|o| o.half_close), false),
            session_drop: raw.session_drop.or(outer.map(|o| o.session_drop), false),
            requests: raw.requests.or(outer.map(|o| o.requests), 0),
            responses: raw.responses.take().or(outer.and_then(|o| o.responses)),
            upload_rate: rate(raw.upload_rate, outer.and_then(|o| o.upload_rate.as_ref()), cx)?,
            download_rate: rate(raw.download_rate, outer.and_then(|o| o.download_rate.as_ref()), cx)?,
        })
    }

    /// Socket options of a connection for `s`.
    pub(crate) fn options(&self, s: &StreamSession) -> ConnectOptions {
        self.connection.options(s)
    }

    /// TLS of the connections for `s` to a server called `host`; `None` without `proxy_ssl`.
    pub(crate) fn tls(&self, s: &StreamSession, host: &[u8]) -> Option<UpstreamTls> {
        self.tls.for_host(s, host)
    }

    /// `proxy_connect_timeout`
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Reads certificates and authorities, for a server whose sessions are passed on over TLS.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn enable_tls(&mut self, cx: &mut Resolve<'_, Stream>) -> Result<(), ConfError> {
        if self.ssl { self.tls.enable("proxy_", TlsProtocol::Any, cx) } else { Ok(()) }
    }

    /// Adds to `reach` what the sandbox must allow, but for names of servers.
    pub fn reach(&self, reach: &mut Reach) {
        reach.connects();
        self.connection.reach(reach);
        self.tls.reach(reach);
    }

    /// Bytes per second from the client; `None` is no limit.
    pub(super) fn upload_rate(&self, s: &StreamSession) -> Option<u64> {
        value(self.upload_rate.as_ref(), s)
    }

    /// Bytes per second from the upstream server; `None` is no limit.
    pub(super) fn download_rate(&self, s: &StreamSession) -> Option<u64> {
        value(self.download_rate.as_ref(), s)
    }
}

/// Compiles a rate. Without variables its value is checked now.
fn rate(
    raw: Setting<Word>,
    outer: Option<&Template<StreamSession>>,
    cx: &mut Resolve<'_, Stream>,
) -> Result<Option<Template<StreamSession>>, ConfError> {
    let Some(word) = raw.take() else { return Ok(outer.cloned()) };
    let template = cx.template(&word)?;
    if template.constant().is_some_and(|text| tw_conf::units::size(text).is_none()) {
        return Err(ConfError::new(format!("invalid value \"{word}\"")).at(word.span));
    }
    Ok(Some(template))
}

/// Value of a rate for `s`. One that is no number is none, as in nginx.
fn value(rate: Option<&Template<StreamSession>>, s: &StreamSession) -> Option<u64> {
    tw_conf::units::size(&rate?.value(s)).filter(|rate| *rate > 0)
}
