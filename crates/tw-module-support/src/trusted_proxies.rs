//! `set_real_ip_from`: proxies that may name the address of their client, in every protocol (nginx: ngx_http_realip_module,
//! ngx_stream_realip_module).

use std::net::ToSocketAddrs;

use tw_conf::network::Network;
use tw_conf::{ConfError, Cx, Node};
use tw_net::Addr;

/// Proxies that may name the client's address.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies {
    networks: Vec<Network>,
    /// Set if clients of Unix sockets are trusted proxies.
    unix: bool,
}

impl TrustedProxies {
    /// Returns `true` if no proxy is trusted.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }

    /// Takes in a `set_real_ip_from`. May wait for the resolver: at configuration time only.
    pub fn add(&mut self, node: &Node, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        let word = node.arg(0)?;
        if word.is("unix:") {
            self.unix = true;
        } else if let Some(network) = Network::parse(&word.bytes) {
            if network.has_low_bits {
                cx.warn(word.span, format!("low address bits of {word} are meaningless"));
            }
            self.networks.push(network.network);
        } else {
            let name = word.as_str().filter(|name| !name.is_empty());
            let address = name.and_then(|name| (name, 0).to_socket_addrs().ok());
            let address =
                address.ok_or_else(|| node.fail(format!("host not found in set_real_ip_from \"{word}\"")))?;
            self.networks.extend(address.map(|addr| Network::new(addr.ip(), u8::MAX)));
        }
        Ok(())
    }

    /// Returns `true` if `addr` is that of a trusted proxy.
    pub fn has(&self, addr: &Addr) -> bool {
        match addr.inet() {
            Some(addr) => self.networks.iter().any(|network| network.contains(addr.ip())),
            None => self.unix,
        }
    }
}
