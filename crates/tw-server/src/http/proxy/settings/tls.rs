//! TLS to upstream servers, as configured at one location.

use std::sync::Arc;

use tw_conf::ConfError;
use tw_core::reach::Reach;

use crate::http::proxy::upstream_tls::{self, TlsProtocol, UpstreamTls, UpstreamTlsConfig};
use crate::http::request::Request;
use crate::load::Resolve;
use crate::vars::Template;

/// TLS settings of connections to upstream servers.
#[derive(Clone)]
pub struct TlsSettings {
    /// Handshake settings; `None` where no server can be reached over TLS.
    tls: Option<Arc<UpstreamTlsConfig>>,
    written: Arc<upstream_tls::TlsDirectives>,
    /// `ssl_name`
    name: Option<Template>,
}

impl TlsSettings {
    pub(super) fn resolve(
        mut raw: upstream_tls::RawUpstreamTls,
        outer: Option<&Self>,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let name = match std::mem::take(&mut raw.name).take() {
            Some(word) => Some(cx.template(&word)?),
            None => outer.and_then(|o| o.name.clone()),
        };
        let written = upstream_tls::TlsDirectives::resolve(raw, outer.map(|o| &o.written));
        Ok(Self { tls: None, written, name })
    }

    /// Reads certificates and authorities, for a location whose servers are, or may be, reached over TLS.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn enable(
        &mut self,
        prefix: &'static str,
        inside: TlsProtocol,
        cx: &mut Resolve<'_>,
    ) -> Result<(), ConfError> {
        self.tls = Some(self.written.tls(prefix, inside, cx)?);
        Ok(())
    }

    /// TLS of the connections for `r` to a server called `host`; `None` unless [enabled](Self::enable).
    pub fn for_host(&self, r: &Request, host: &[u8]) -> Option<UpstreamTls> {
        let tls = self.tls.clone()?;
        Some(match &self.name {
            Some(name) => UpstreamTls::new(tls, &name.value(r), r),
            None => UpstreamTls::new(tls, host, r),
        })
    }

    /// Returns true if `ssl_name` has variables, so that it may differ between servers.
    pub(in crate::http::proxy) fn has_dynamic_name(&self) -> bool {
        self.name.as_ref().is_some_and(|name| name.constant().is_none())
    }

    pub(super) fn reach(&self, reach: &mut Reach) {
        if let Some(tls) = &self.tls {
            tls.reach(reach);
        }
    }
}
