//! A `server` of a group as it is written, and the peers it stands for.

use std::sync::Arc;

use tw_net::Addr;

/// One `server` of a group: a name, and what holds for each of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// As written, with the port if one is written. `hash … consistent` places peers by this text.
    pub name: Arc<str>,
    /// Where it is.
    pub address: ServerAddress,
    /// What each of its peers begins with.
    pub params: PeerParams,
}

/// Where the peers of a server come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// From the configuration: one peer for each address.
    Fixed(Vec<Addr>),
    /// From DNS: one peer for each address of the latest answer ([`Group::resolved`](crate::Group::resolved)), none before it.
    Named {
        /// The name that is asked for.
        host: Arc<str>,
        /// The `service=` of an SRV question, whose answers bring ports, names and weights.
        service: Option<Arc<str>>,
        /// The port of each address without a service.
        port: u16,
        /// `resolve`: whether it is asked for again when its addresses hold no more.
        follows: bool,
    },
}

/// The parameters of a peer. Plain data: a change makes another [`Peer`](crate::Peer) with the same [`PeerState`](crate::PeerState).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerParams {
    /// Its share: `weight=`, at least 1.
    pub weight: u32,
    /// The most connections at a time, of all loops together; zero is no limit.
    pub max_conns: u32,
    /// After so many failures it is left alone for `fail_timeout_ms`; zero is never.
    pub max_fails: u32,
    /// How long failures count, and how long the peer is then left alone, in milliseconds.
    pub fail_timeout_ms: u64,
    /// In how many milliseconds a peer that recovers regains its weight; zero is at once.
    pub slow_start_ms: u64,
    /// Only used when no other peer can be.
    pub backup: bool,
    /// What the operator wants with it.
    pub admin: AdminState,
    /// `route=`: what `sticky` knows it by; without one the MD5 of its address.
    pub route: Option<Arc<[u8]>>,
}

/// What an operator wants with a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdminState {
    /// It takes part.
    #[default]
    Up,
    /// It gets no requests.
    Down,
    /// It only gets the requests that `sticky` binds to it.
    Drain,
}

/// An address that DNS gives for a [`ServerAddress::Named`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The address with its port.
    pub addr: Addr,
    /// The target of an SRV record, which is then the name of the peer.
    pub name: Option<Arc<str>>,
    /// The weight of an SRV record; that of the server counts if it is not 1.
    pub weight: Option<u32>,
    /// Whether its SRV record has not the best priority, so that it is a backup peer.
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

    /// Whether DNS says where it is.
    pub fn has_host_name(&self) -> bool {
        matches!(self.address, ServerAddress::Named { .. })
    }
}

impl From<Addr> for ResolvedAddress {
    fn from(addr: Addr) -> Self {
        Self { addr, name: None, weight: None, backup: false }
    }
}
