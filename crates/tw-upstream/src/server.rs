//! Configuration of a `server` of a group.

use std::sync::Arc;

use tw_net::Addr;

/// One `server` of a group: its name, and the parameters of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name as written, with the port if one is written. `hash … consistent` places peers by this text.
    pub name: Arc<str>,
    /// Source of its addresses.
    pub address: ServerAddress,
    /// Initial parameters of each of its peers.
    pub params: PeerParams,
}

/// Source of the addresses of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// From the configuration: one peer for each address.
    Fixed(Vec<Addr>),
    /// From DNS: one peer for each address of the latest answer ([`Group::resolved`](crate::Group::resolved)), none before it.
    Named {
        /// Host name to resolve.
        host: Arc<str>,
        /// `service=` for SRV records, which have ports, names and weights.
        service: Option<Arc<str>>,
        /// Port of each address without a service.
        port: u16,
        /// True with `resolve`: the name is resolved again when its addresses expire.
        follows: bool,
    },
}

/// Parameters of a peer. Plain data: a change makes another [`Peer`](crate::Peer) with the same
/// [`PeerState`](crate::PeerState).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerParams {
    /// Weight (`weight=`), at least 1.
    pub weight: u32,
    /// Largest number of connections at a time, of all loops together; zero is no limit.
    pub max_conns: u32,
    /// Failures after which it is out for `fail_timeout_ms`; zero is never.
    pub max_fails: u32,
    /// Span in which failures count, and for which the peer is then out, in milliseconds.
    pub fail_timeout_ms: u64,
    /// Time in which a recovered peer regains its weight, in milliseconds; zero is at once.
    pub slow_start_ms: u64,
    /// Used only if no other peer is available.
    pub backup: bool,
    /// Administrative state.
    pub admin: AdminState,
    /// `route=`: identifier for `sticky`; without one the MD5 of the address.
    pub route: Option<Arc<[u8]>>,
}

/// Administrative state of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdminState {
    /// Takes part in load balancing.
    #[default]
    Up,
    /// Gets no requests.
    Down,
    /// Gets only the requests that `sticky` binds to it.
    Drain,
}

/// Address from DNS for a [`ServerAddress::Named`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The address with its port.
    pub addr: Addr,
    /// The target of an SRV record, which is then the name of the peer.
    pub name: Option<Arc<str>>,
    /// The weight of an SRV record; that of the server counts if it is not 1.
    pub weight: Option<u32>,
    /// True if its SRV record has not the best priority, so that it is a backup peer.
    pub backup: bool,
}

/// nginx's defaults.
impl Default for PeerParams {
    fn default() -> Self {
        Self {
            weight: 1,
            max_conns: 0,
            max_fails: 1,
            fail_timeout_ms: 10_000,
            slow_start_ms: 0,
            backup: false,
            admin: AdminState::Up,
            route: None,
        }
    }
}

impl Server {
    /// A server with these addresses and nginx's defaults.
    pub fn fixed(name: &str, addrs: impl IntoIterator<Item = Addr>) -> Self {
        let address = ServerAddress::Fixed(addrs.into_iter().collect());
        Self { name: name.into(), address, params: PeerParams::default() }
    }

    /// Returns true if DNS resolves its host name.
    pub fn has_host_name(&self) -> bool {
        matches!(self.address, ServerAddress::Named { .. })
    }
}

impl From<Addr> for ResolvedAddress {
    fn from(addr: Addr) -> Self {
        Self { addr, name: None, weight: None, backup: false }
    }
}
