//! Directives `js_fetch_*` of one block.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tw_conf::{ConfError, Node, Span, Word};
use tw_connect::ConnectingProtocol;
use tw_connect::keepalive_pool::{KeepaliveSettings, PoolKey};
use tw_connect::tls_settings::TlsSettings;
use tw_connect::upstream_tls::{RawUpstreamTls, TlsProtocol};
use tw_core::load::Resolve;
use tw_proxy::host_request::HostKeepalive;
use tw_server::http::acme::system_bundle;

use crate::operations::fetch::FetchSettings;
use crate::operations::fetch_proxy::{self, FetchProxy};
use crate::raw::RawFetch;

/// Directives of one block, with those of the blocks around it.
#[derive(Clone)]
pub(crate) struct FetchDirectives {
    timeout: Duration,
    buffer_size: u64,
    response_max: u64,
    verifies: bool,
    verify_depth: u64,
    trusted_certificate: Option<Word>,
    protocols: Option<Vec<Word>>,
    ciphers: Option<Word>,
    proxy: Option<Word>,
    keepalive: KeepaliveSettings,
}

impl FetchDirectives {
    /// Resolves the directives of a block; `None` if it has the same as the enclosing one.
    pub(crate) fn resolve(mut raw: RawFetch, outer: Option<&Self>) -> Option<Self> {
        let is_written = raw.timeout.is_set()
            || raw.buffer_size.is_set()
            || raw.response_max.is_set()
            || raw.verify.is_set()
            || raw.verify_depth.is_set()
            || raw.trusted_certificate.is_set()
            || raw.protocols.is_set()
            || raw.ciphers.is_set()
            || raw.proxy.is_set()
            || raw.keepalive.is_set()
            || raw.keepalive_requests.is_set()
            || raw.keepalive_time.is_set()
            || raw.keepalive_timeout.is_set();
        if !is_written && outer.is_some() {
            return None;
        }
        let of = |own: Option<Word>, outer: Option<&Option<Word>>| own.or_else(|| outer.cloned().flatten());
        let keepalive = keepalive(&mut raw, outer.map_or(KeepaliveSettings::NONE, |outer| outer.keepalive));
        let protocols = raw.protocols.take();
        Some(Self {
            timeout: raw.timeout.or(outer.map(|outer| outer.timeout), Duration::from_secs(60)),
            buffer_size: raw.buffer_size.or(outer.map(|outer| outer.buffer_size), 16 << 10),
            response_max: raw.response_max.or(outer.map(|outer| outer.response_max), 1 << 20),
            verifies: raw.verify.or(outer.map(|outer| outer.verifies), true),
            verify_depth: raw.verify_depth.or(outer.map(|outer| outer.verify_depth), 100),
            trusted_certificate: of(
                raw.trusted_certificate.take(),
                outer.map(|outer| &outer.trusted_certificate),
            ),
            protocols: protocols.or_else(|| outer.and_then(|outer| outer.protocols.clone())),
            ciphers: of(raw.ciphers.take(), outer.map(|outer| &outer.ciphers)),
            proxy: of(raw.proxy.take(), outer.map(|outer| &outer.proxy)),
            keepalive,
        })
    }

    /// Settings of requests by these directives. Reads certificates.
    pub(crate) fn settings<P: ConnectingProtocol>(
        &self,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Arc<FetchSettings>, ConfError> {
        let bundle = || {
            let path = system_bundle(cx)?;
            Some(Word { bytes: path.as_bytes().into(), span: Span::default(), quoted: false })
        };
        let trusted = self.trusted_certificate.clone().or_else(bundle);
        let verified = match trusted {
            Some(trusted) => self.tls(Some(trusted), cx)?,
            // Requests to servers over TLS fail, unless they are not verified.
            None => TlsSettings::resolve(RawUpstreamTls::default(), None, cx)?,
        };
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Arc::new(FetchSettings {
            timeout: self.timeout,
            buffer_size: size(self.buffer_size),
            response_max: size(self.response_max),
            verified: Arc::new(verified),
            unverified: Arc::new(self.tls(None, cx)?),
            verifies: self.verifies,
            proxy: self.proxy(cx)?,
            keepalive: self.kept_connections(),
        }))
    }

    /// Reads the URL of the proxy.
    fn proxy<P: ConnectingProtocol>(&self, cx: &mut Resolve<'_, P>) -> Result<FetchProxy, ConfError> {
        let Some(word) = &self.proxy else { return Ok(FetchProxy::Fixed(None)) };
        let url = cx.template(word)?;
        match url.constant() {
            None => Ok(FetchProxy::Computed(Arc::new(url))),
            Some(url) => {
                let parsed = fetch_proxy::parse(url);
                let invalid = |why| ConfError::new(format!("invalid proxy URL: {word}: {why}")).at(word.span);
                parsed.map(FetchProxy::Fixed).map_err(invalid)
            }
        }
    }

    /// The connections that requests by these directives share.
    fn kept_connections(&self) -> Option<HostKeepalive> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        if self.keepalive.connections == 0 {
            return None;
        }
        let location = NUMBER.fetch_add(1, Relaxed);
        let owner = PoolKey { group: "js_fetch".into(), location, secured: None, local: None };
        Some(HostKeepalive { owner, settings: self.keepalive })
    }

    /// TLS that verifies servers by the authorities in a file, or does not verify them.
    fn tls<P: ConnectingProtocol>(
        &self,
        trusted: Option<Word>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<TlsSettings<P::Session>, ConfError> {
        let word = || Word { bytes: b"js_fetch".as_slice().into(), span: Span::default(), quoted: false };
        let place =
            Node { name: word(), args: Vec::new(), block: None, span: Span::default(), end: Span::default() };
        let mut raw = RawUpstreamTls::default();
        raw.verify.replace(&place, trusted.is_some());
        raw.verify_depth.replace(&place, usize::try_from(self.verify_depth).unwrap_or(usize::MAX));
        raw.server_name.replace(&place, true);
        if let Some(trusted) = trusted {
            raw.trusted_certificate.replace(&place, trusted);
        }
        if let Some(protocols) = &self.protocols {
            raw.protocols.replace(&place, protocols.clone());
        }
        if let Some(ciphers) = &self.ciphers {
            raw.ciphers.replace(&place, ciphers.clone());
        }
        let mut tls = TlsSettings::resolve(raw, None, cx)?;
        tls.enable("js_fetch_", TlsProtocol::Any, cx)?;
        Ok(tls)
    }
}

/// Settings of kept connections: those of the block, and of the enclosing one where it has none.
fn keepalive(raw: &mut RawFetch, outer: KeepaliveSettings) -> KeepaliveSettings {
    let count = std::mem::take(&mut raw.keepalive).take();
    let connections = count.map_or(outer.connections, |count| usize::try_from(count).unwrap_or(usize::MAX));
    KeepaliveSettings {
        connections,
        requests: std::mem::take(&mut raw.keepalive_requests).or(None, outer.requests),
        time: std::mem::take(&mut raw.keepalive_time).or(None, outer.time),
        timeout: std::mem::take(&mut raw.keepalive_timeout).or(None, outer.timeout),
        ..outer
    }
}
