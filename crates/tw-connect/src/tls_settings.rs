//! TLS to upstream servers, as configured at one location.

use std::sync::Arc;

use tw_conf::ConfError;
use tw_core::load::Resolve;
use tw_core::reach::Reach;
use tw_core::session::Session;
use tw_core::vars::Template;

use crate::protocol::ConnectingProtocol;
use crate::upstream_tls::{EnabledTls, RawUpstreamTls, TlsDirectives, TlsProtocol, UpstreamTls};

/// TLS settings of connections to upstream servers.
pub struct TlsSettings<S: Session> {
    /// Handshake settings; `None` where no server can be reached over TLS.
    tls: Option<EnabledTls<S>>,
    directives: Arc<TlsDirectives<S>>,
    /// `ssl_name`
    name: Option<Template<S>>,
    /// `ssl_alpn`
    alpn: Arc<[Template<S>]>,
}

impl<S: Session> Clone for TlsSettings<S> {
    fn clone(&self) -> Self {
        Self {
            tls: self.tls.clone(),
            directives: self.directives.clone(),
            name: self.name.clone(),
            alpn: self.alpn.clone(),
        }
    }
}

impl<S: Session> TlsSettings<S> {
    /// Resolves the directives against the enclosing block.
    ///
    /// # Errors
    /// An unknown variable in `ssl_name`.
    pub fn resolve<P: ConnectingProtocol<Session = S>>(
        mut raw: RawUpstreamTls,
        outer: Option<&Self>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Self, ConfError> {
        let name = match std::mem::take(&mut raw.name).take() {
            Some(word) => Some(cx.template(&word)?),
            None => outer.and_then(|o| o.name.clone()),
        };
        let alpn = match std::mem::take(&mut raw.alpn).take() {
            Some(words) => words.iter().map(|word| cx.template(word)).collect::<Result<_, _>>()?,
            None => outer.map_or_else(|| Arc::new([]) as Arc<[_]>, |o| o.alpn.clone()),
        };
        let tls_directives = TlsDirectives::resolve(raw, outer.map(|o| &o.directives));
        Ok(Self { tls: None, directives: tls_directives, name, alpn })
    }

    /// Reads certificates and authorities, for a location whose servers are, or may be, reached over TLS.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn enable<P: ConnectingProtocol<Session = S>>(
        &mut self,
        prefix: &'static str,
        inside: TlsProtocol,
        cx: &mut Resolve<'_, P>,
    ) -> Result<(), ConfError> {
        self.tls = Some(self.directives.tls(prefix, inside, cx)?);
        Ok(())
    }

    /// TLS of the connections for `s` to a server called `host`; `None` unless [enabled](Self::enable).
    pub fn for_host(&self, s: &S, host: &[u8]) -> Option<UpstreamTls> {
        let tls = self.tls.as_ref()?;
        let connections = match &self.name {
            Some(name) => tls.connections(&name.value(s), s),
            None => tls.connections(host, s),
        };
        if self.alpn.is_empty() {
            return Some(connections);
        }
        // Names of which a variable makes none, or a longer one than there can be, are left out, as in nginx.
        let protocols = self.alpn.iter().map(|protocol| protocol.value(s));
        Some(connections.offering(protocols.filter(|name| (1..=255).contains(&name.len())).collect()))
    }

    /// TLS of connections to a server called `host` that belong to no session; `None` unless [enabled](Self::enable).
    pub fn for_server(&self, host: &[u8]) -> Option<UpstreamTls> {
        self.tls.as_ref().map(|tls| tls.connections_without_session(host))
    }

    /// Returns true if `ssl_name` has variables, so that it may differ between servers.
    pub fn has_dynamic_name(&self) -> bool {
        self.name.as_ref().is_some_and(|name| name.constant().is_none())
    }

    /// Adds to `reach` what the sandbox must allow.
    pub fn reach(&self, reach: &mut Reach) {
        if let Some(tls) = &self.tls {
            tls.reach(reach);
        }
    }
}
