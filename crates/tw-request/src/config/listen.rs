//! `listen` of HTTP servers.

use std::borrow::Borrow;
use std::ops::{Deref, DerefMut};

use tw_conf::{ConfError, Cx, MissingFeature, Node, Word};
use tw_net::Addr;
use tw_net::listen::{DatagramUse, SocketKind};

/// One `listen` directive.
#[derive(Debug, Clone)]
pub struct Listen {
    /// The part that every protocol has.
    shared: tw_accept::listen::Listen,
    /// `http2`
    pub http2: bool,
    /// `quic`
    pub quic: bool,
}

/// Port of an address without one.
const DEFAULT_PORT: u16 = 80;
/// Port of a server without `listen`, when we may not use [`DEFAULT_PORT`].
const UNPRIVILEGED_PORT: u16 = 8000;

impl Listen {
    /// Returns the `listen` of a server that has none.
    pub fn implied() -> Self {
        let root = rustix::process::geteuid().is_root();
        let port = if root { DEFAULT_PORT } else { UNPRIVILEGED_PORT };
        let any = std::net::SocketAddr::from(([0, 0, 0, 0], port));
        Self { shared: tw_accept::listen::Listen::implied(Addr::Inet(any)), http2: false, quic: false }
    }

    /// Reads the arguments of `listen`.
    pub fn parse(node: &Node, cx: &mut Cx<'_>) -> Result<Self, ConfError> {
        let shared = tw_accept::listen::Listen::address(node, Some(DEFAULT_PORT))?;
        let mut listen = Self { shared, http2: false, quic: false };
        if node.args.iter().skip(1).any(|word| word.is("quic")) {
            refuse_options_of_connections(node)?;
            // DIFF(nginx): an error, instead of a socket that no client of QUIC can use.
            if listen.addresses.iter().any(|address| address.inet().is_none()) {
                return Err(node.error("\"quic\" is not supported for unix domain sockets"));
            }
            listen.quic = true;
            listen.options.kind = SocketKind::Datagram;
            listen.options.datagrams = DatagramUse::Quic;
        }
        for word in node.args.iter().skip(1) {
            listen.parameter(node, word, cx)?;
        }
        Ok(listen)
    }

    fn parameter(&mut self, node: &Node, word: &Word, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        match word.as_str() {
            Some("default") => self.default_server = true,
            Some("http2") => {
                self.http2 = true;
                let message =
                    "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead";
                cx.warn(node.span, message);
            }
            Some("quic") => {}
            Some("spdy") => {
                let message =
                    "the \"spdy\" parameter of \"listen\" is not supported by this version of Tailwater";
                let missing = MissingFeature::new("listen … spdy".to_owned(), "ngx_http_v2_module");
                return Err(node.fail(message).at(word.span).missing(missing));
            }
            _ => return self.shared.parameter(node, word, cx),
        }
        Ok(())
    }
}

/// Refuses parameters beside `quic` that mean connections of TCP.
fn refuse_options_of_connections(node: &Node) -> Result<(), ConfError> {
    const OF_CONNECTIONS: [&str; 9] = [
        "ssl",
        "http2",
        "proxy_protocol",
        "fastopen",
        "backlog",
        "deferred",
        "multipath",
        "so_keepalive",
        "transparent",
    ];
    for word in node.args.iter().skip(1) {
        let has_name = |name: &&str| word.is(name) || word.param(name).is_some();
        if let Some(name) = OF_CONNECTIONS.iter().find(|name| has_name(name)) {
            let message = format!("\"{name}\" parameter is incompatible with \"quic\"");
            return Err(node.error(&message).at(word.span));
        }
    }
    Ok(())
}

impl Borrow<tw_accept::listen::Listen> for Listen {
    fn borrow(&self) -> &tw_accept::listen::Listen {
        &self.shared
    }
}

impl Deref for Listen {
    type Target = tw_accept::listen::Listen;

    fn deref(&self) -> &Self::Target {
        &self.shared
    }
}

impl DerefMut for Listen {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.shared
    }
}
