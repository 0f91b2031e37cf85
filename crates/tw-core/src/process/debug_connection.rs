//! `debug_connection`: clients whose steps are all logged, whatever the levels of the error logs.

use std::net::ToSocketAddrs;

use tw_conf::network::Network;
use tw_conf::{ConfError, Cx, Node};
use tw_net::Addr;

/// Clients as one directive names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugPeer {
    /// All Unix sockets.
    Unix,
    /// All addresses of a network.
    Network(Network),
}

impl DebugPeer {
    /// Reads `address | CIDR | unix:`. A name is resolved, which may wait, and means all its addresses.
    pub(super) fn parse(node: &Node, cx: &mut Cx<'_>) -> Result<Vec<Self>, ConfError> {
        let word = node.arg(0)?;
        if word.is("unix:") {
            return Ok(vec![Self::Unix]);
        }
        if let Some(network) = Network::parse(&word.bytes) {
            if network.has_low_bits {
                cx.diagnostics.warn(node.span, format!("low address bits of {word} are meaningless"));
            }
            return Ok(vec![Self::Network(network.network)]);
        }
        let address = word.as_str().and_then(|name| (name, 0).to_socket_addrs().ok());
        let address =
            address.ok_or_else(|| node.fail(format!("host not found in debug_connection \"{word}\"")))?;
        Ok(address.map(|addr| Self::Network(Network::new(addr.ip(), u8::MAX))).collect())
    }

    /// Returns true if the client matches.
    pub fn has(&self, peer: &Addr) -> bool {
        match (self, peer) {
            (Self::Unix, Addr::Unix(_)) => true,
            (Self::Network(network), Addr::Inet(addr)) => network.contains(addr.ip()),
            (Self::Unix, Addr::Inet(_)) | (Self::Network(_), Addr::Unix(_)) => false,
        }
    }
}
