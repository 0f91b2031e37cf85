//! Address that a look-up by address is about: the client's own, one that a trusted proxy names, or one in a text (`geo`,
//! `geoip2`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tw_conf::{ConfError, Cx, Network, Node, Word, network};
use tw_core::session::Session;
use tw_core::vars::Template;
use tw_net::Addr;

use crate::forwarded::{ProxyChain, forwarded};

/// Source of an address.
pub struct AddressSource<S> {
    /// Text that holds it; `None` for the client's own.
    pub text: Option<Template<S>>,
    /// Proxies that are trusted to name the client's address.
    pub proxies: Arc<[Network]>,
    /// Depth to which a chain of proxies is followed.
    pub chain: ProxyChain,
}

impl<S: Session> AddressSource<S> {
    /// The address; `None` if there is none. `out` is left as it is.
    pub fn address(&self, s: &S, out: &mut Vec<u8>) -> Option<IpAddr> {
        let addr = client(s, self.text.as_ref(), out)?;
        if self.proxies.is_empty() {
            return addr.inet().map(|addr| addr.ip());
        }
        let trusts = |addr: &Addr| {
            addr.inet().is_some_and(|addr| self.proxies.iter().any(|proxy| proxy.contains(addr.ip())))
        };
        let forwarded_addr = forwarded(&addr, s.forwarded(), self.chain, trusts);
        forwarded_addr.or(addr.inet()).map(|addr| addr.ip())
    }
}

/// The address in a text, or the client's own. `out` is left as it is.
fn client<S: Session>(s: &S, text: Option<&Template<S>>, out: &mut Vec<u8>) -> Option<Addr> {
    let Some(text) = text else { return Some(s.client_addr().clone()) };
    let start = out.len();
    text.eval(s, out);
    let addr = read_address(&out[start..]);
    out.truncate(start);
    addr.map(|addr| Addr::Inet((addr, 0).into()))
}

/// Reads an address, behind which a port may stand.
// DIFF(nginx): so that addresses of upstream servers can be looked up.
fn read_address(text: &[u8]) -> Option<IpAddr> {
    let with_port = || std::str::from_utf8(text).ok()?.parse().ok().map(|addr: SocketAddr| addr.ip());
    network::address(text).or_else(with_port)
}

/// Reads a network of a directive. Bits behind its prefix are worth a warning.
pub fn read_network(line: &Node, text: &Word, cx: &mut Cx<'_>) -> Result<Network, ConfError> {
    let network =
        Network::parse(&text.bytes).ok_or_else(|| line.fail(format!("invalid network \"{text}\"")))?;
    if network.has_low_bits {
        cx.warn(line.span, format!("low address bits of {text} are meaningless"));
    }
    Ok(network.network)
}
