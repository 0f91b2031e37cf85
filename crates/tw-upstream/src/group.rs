//! Group of servers (`upstream`), shared by all loops: its list of peers, the selection of peers, and changes of the
//! list.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tw_base::FatalMutex;
use tw_net::Addr;

use crate::balance::BalanceMethod;
use crate::health::Term;
use crate::lease::Lease;
use crate::peer::{Peer, PeerId, ServerId};
use crate::peer_list::{PeerList, PeerTier};
use crate::peer_state::{Health, PeerState, signed};
use crate::queue::{QueuedRequest, RequestQueue};
use crate::retry_budget::{Retries, RetryBudget, RetryPermit};
use crate::selection::{BalanceKey, PeerSelection};
use crate::server::{PeerParams, ResolvedAddress, Server, ServerAddress};
use tw_base::Rng;

/// Group of servers. There is one for each generation of the configuration; the states of peers pass from one to the
/// next.
#[derive(Debug)]
pub struct Group {
    name: Arc<str>,
    method: BalanceMethod,
    /// Locked while a peer is selected, like nginx's lock of a zone.
    list: FatalMutex<Arc<PeerList>>,
    /// Locked while another list is made, which may take longer.
    ids: FatalMutex<Ids>,
    queue: Arc<RequestQueue>,
    retries: Arc<Retries>,
    /// True if some server has a host name that DNS resolves.
    has_host_names: AtomicBool,
    /// Configuration whose health checks count; locked while one reports.
    pub(crate) term: Arc<FatalMutex<Term>>,
    /// True if new peers have to pass a check first.
    requires_checks: AtomicBool,
    /// First identifier of peers that earlier groups do not know.
    first_new: PeerId,
    /// Servers that the group was made of.
    configured: Vec<(ServerId, Arc<Server>)>,
}

/// Next identifier of a server or peer, and the number of the latest list.
#[derive(Clone, Debug, Default)]
struct Ids {
    next: u32,
    generation: u64,
}

/// Error if no peer can be used now. nginx: "no live upstreams".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPeer;

/// Error if there is no such peer or server in the group any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPeer;

/// Error if the group has a server of this name or address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerExists;

impl Group {
    /// Creates a group of these servers. With `old`, the earlier group of this name, peers keep their identity,
    /// counters, failures and connections if a server of the same name has the same address, and host names keep
    /// their resolved addresses. `old` is not changed and can go on.
    ///
    /// Computes the ring of `hash … consistent`: not on a loop.
    pub fn new(name: &str, method: BalanceMethod, servers: Vec<Server>, old: Option<&Group>) -> Self {
        let (queue, retries, term, mut ids) = match old {
            Some(old) => (old.queue.clone(), old.retries.clone(), old.term.clone(), old.ids.lock().clone()),
            None => Default::default(),
        };
        let first_new = PeerId(ids.next);
        let mut inherited = InheritedPeers::of(old);
        let mut listed = Vec::new();
        let mut peers = Vec::new();
        for server in servers {
            let state = || Arc::new(PeerState::new(queue.clone()));
            let id = ids.enlist(&server, &mut inherited, state, &mut peers);
            listed.push((id, Arc::new(server)));
        }
        ids.generation += 1;
        let has_host_names = has_host_names(&listed).into();
        let configured = listed.clone();
        let list = PeerList::new(ids.generation, &method, listed, peers);
        Self {
            name: name.into(),
            method,
            list: FatalMutex::new(Arc::new(list)),
            ids: FatalMutex::new(ids),
            queue,
            retries,
            term,
            requires_checks: AtomicBool::new(false),
            first_new,
            configured,
            has_host_names,
        }
    }

    /// Servers that the group was made of, before changes at run time.
    pub fn configured(&self) -> &[(ServerId, Arc<Server>)] {
        &self.configured
    }

    /// Name of the group.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Load balancing method.
    pub fn method(&self) -> BalanceMethod {
        self.method
    }

    /// Returns true if some server has a host name that DNS resolves.
    pub fn has_host_names(&self) -> bool {
        self.has_host_names.load(Relaxed)
    }

    /// Current list of peers.
    pub fn list(&self) -> Arc<PeerList> {
        self.list.lock().clone()
    }

    /// Requires new peers to pass a health check before they get requests (`mandatory`), also those that are new to
    /// this group. [`HealthChecker::new`](crate::HealthChecker::new) decides about the others.
    pub fn require_checks(&self) {
        self.requires_checks.store(true, Relaxed);
        let list = self.list();
        let new = list.peers().filter(|peer| peer.id >= self.first_new);
        new.for_each(|peer| peer.state.set_health(Health::Checking));
    }

    /// State of a new peer.
    fn new_state(&self) -> Arc<PeerState> {
        let state = PeerState::new(self.queue.clone());
        if self.requires_checks.load(Relaxed) {
            state.set_health(Health::Checking);
        }
        Arc::new(state)
    }

    /// Starts the selection of peers for a request: the key of the method, the peer that `sticky` binds it to, and
    /// the largest number of peers to try (`proxy_next_upstream_tries`; zero is all).
    pub fn start_selection(&self, key: BalanceKey, sid: Option<Box<[u8]>>, tries_max: u32) -> PeerSelection {
        PeerSelection::new(key, sid, tries_max, self.method.search())
    }

    /// Selects the next peer for this request, one that it has not tried, in nginx's order. `now` is in milliseconds
    /// of a clock that never goes back; all calls for a group and its successors use the same one.
    ///
    /// With the permit it takes 80 ns among one peer, 110 among three, and 11 for each further one (`least_conn` 25, `least_time`
    /// 45, methods that hash or draw less than one), most of it under the lock of the group. Allocates from the fifth try on.
    pub fn select(&self, selection: &mut PeerSelection, now: u64, rng: &mut Rng) -> Result<Lease, NoPeer> {
        let list = self.list.lock();
        let at = signed(now);
        let tried = selection.tried.len();
        let search = selection.search;
        loop {
            let chosen = self.method.choose(&list, selection, at, rng);
            let is_new = chosen.is_some_and(|peer| list.is_single || !selection.tried.has(peer.id));
            match chosen {
                Some(peer) if is_new && peer.take() => {
                    if !list.is_single {
                        selection.tried.add(peer.id);
                    }
                    selection.count(&list);
                    peer.chosen(at);
                    return Ok(Lease::new(peer.clone(), now, list.is_single, self.method.measure()));
                }
                // A generation that is going has just taken its last connection.
                Some(peer) if is_new && !list.is_single => selection.tried.add(peer.id),
                // Peers are left alone after a hint only as long as another one of their kind is left.
                _ if list.tier(selection.stage).forget_hints(at) => {
                    selection.tried.truncate(tried);
                    selection.search = search;
                }
                _ if selection.stage == PeerTier::Primary && !list.backup.peers.is_empty() => {
                    selection.stage = PeerTier::Backup;
                }
                _ => {
                    // A request that waits and selects again may choose any peer that it was not sent to.
                    selection.tried.truncate(tried);
                    (selection.stage, selection.search) = (PeerTier::Primary, search);
                    return Err(NoPeer);
                }
            }
        }
    }

    /// Leases the peer with this address, whatever the method would choose: for a session that another process has begun with it. `None` if the
    /// group has no such peer, or one that takes no more.
    pub fn lease_by_address(&self, addr: &Addr, now: u64) -> Option<Lease> {
        let list = self.list();
        let peer = list.peers().find(|peer| peer.addr() == addr && peer.take())?;
        peer.chosen(signed(now));
        Some(Lease::new(peer.clone(), now, list.is_single, self.method.measure()))
    }

    /// Enters the queue of requests without a peer, unless `max` wait (`queue`). Select once more after that: a peer
    /// that becomes free later wakes the request.
    pub fn enqueue(&self, max: usize) -> Option<QueuedRequest> {
        self.queue.join(max)
    }

    /// Number of requests in the queue.
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Begins a retry of a request that a server of the group has failed, if `budget` allows one more beside the requests under way. Takes
    /// the lock of the group to clone a reference, and reads a counter of each peer: for requests that have failed only.
    pub fn begin_retry(&self, budget: RetryBudget) -> Option<RetryPermit> {
        let requests = self.list().peers().map(|peer| u64::from(peer.state.connections())).sum();
        self.retries.begin(budget, requests)
    }

    /// Number of retries under way that have a permit.
    pub fn active_retries(&self) -> u32 {
        self.retries.active()
    }

    /// Number of retries that a budget has refused.
    pub fn refused_retries(&self) -> u64 {
        self.retries.refused.value()
    }

    /// Time at which the next peer that is out because of failures may be tried again. The queue is not woken by
    /// time.
    pub fn retry_ms(&self) -> Option<u64> {
        let list = self.list();
        list.peers().filter_map(|peer| peer.retry_ms()).min().and_then(|at| u64::try_from(at).ok())
    }

    /// Adds a server, unless there is one of this name or address. Makes another list, like all following methods:
    /// not on a loop if the group is large and hashed consistently.
    pub fn add(&self, server: Server) -> Result<ServerId, ServerExists> {
        let mut ids = self.ids.lock();
        let old = self.list();
        let is_it = |known_server: &Server| {
            known_server.name == server.name || known_server.address == server.address
        };
        if old.servers.iter().any(|(_, known_server)| is_it(known_server)) {
            return Err(ServerExists);
        }
        let mut servers = old.servers.clone();
        let mut peers = old.peers().cloned().collect::<Vec<_>>();
        let id = ids.enlist(&server, &mut InheritedPeers::default(), || self.new_state(), &mut peers);
        servers.push((id, Arc::new(server)));
        self.put(&mut ids, servers, peers);
        Ok(id)
    }

    /// Removes a server with all its peers. Requests in progress there go on.
    pub fn remove_server(&self, id: ServerId) -> Result<(), UnknownPeer> {
        let mut ids = self.ids.lock();
        let old = self.list();
        let servers: Vec<_> = old.servers.iter().filter(|(other, _)| *other != id).cloned().collect();
        if servers.len() == old.servers.len() {
            return Err(UnknownPeer);
        }
        let peers = old.peers().filter(|peer| peer.server != id).cloned().collect();
        self.put(&mut ids, servers, peers);
        Ok(())
    }

    /// Removes one peer. Requests in progress there go on. DNS may bring it back.
    pub fn remove(&self, id: PeerId) -> Result<(), UnknownPeer> {
        let mut ids = self.ids.lock();
        let old = self.list();
        old.peer(id).ok_or(UnknownPeer)?;
        let peers = old.peers().filter(|peer| peer.id != id).cloned().collect();
        self.put(&mut ids, old.servers.clone(), peers);
        Ok(())
    }

    /// Changes the parameters of one peer, which keeps its position, counters and connections.
    pub fn change(&self, id: PeerId, change: impl FnOnce(&mut PeerParams)) -> Result<(), UnknownPeer> {
        let mut ids = self.ids.lock();
        let old = self.list();
        let mut params = old.peer(id).ok_or(UnknownPeer)?.params.clone();
        change(&mut params);
        let changed = Arc::new(old.peer(id).ok_or(UnknownPeer)?.with(params));
        let peers = old.peers().map(|peer| if peer.id == id { changed.clone() } else { peer.clone() });
        self.put(&mut ids, old.servers.clone(), peers.collect());
        Ok(())
    }

    /// Changes the parameters of a server and of all its peers, which stay the same peers.
    pub fn change_server(&self, id: ServerId, change: impl Fn(&mut PeerParams)) -> Result<(), UnknownPeer> {
        let mut ids = self.ids.lock();
        let old = self.list();
        let mut servers = old.servers.clone();
        let (_, server) = servers.iter_mut().find(|(other, _)| *other == id).ok_or(UnknownPeer)?;
        change(&mut Arc::make_mut(server).params);
        let changed = |peer: &Arc<Peer>| {
            let mut params = peer.params.clone();
            change(&mut params);
            Arc::new(peer.with(params))
        };
        let peers = old.peers().map(|peer| if peer.server == id { changed(peer) } else { peer.clone() });
        self.put(&mut ids, servers, peers.collect());
        Ok(())
    }

    /// Sets the addresses of a server from DNS. Peers whose address is among them stay, in their order; the others
    /// are removed, and new ones are added at the end. Returns true if that made another list.
    pub fn resolved(&self, id: ServerId, addresses: &[ResolvedAddress]) -> Result<bool, UnknownPeer> {
        let mut ids = self.ids.lock();
        let old = self.list();
        let (_, server) = old.servers.iter().find(|(other, _)| *other == id).ok_or(UnknownPeer)?;
        let mut new: Vec<Option<(ResolvedAddress, Arc<str>, PeerParams)>> =
            Vec::with_capacity(addresses.len());
        for address in addresses {
            let (name, params) = described(server, address);
            new.push(Some((address.clone(), name, params)));
        }
        let mut peers = Vec::new();
        let mut is_changed = false;
        for peer in old.peers() {
            if peer.server != id {
                peers.push(peer.clone());
                continue;
            }
            let is_same = |entry: &&mut Option<(ResolvedAddress, Arc<str>, PeerParams)>| {
                entry.as_ref().is_some_and(|(address, name, params)| {
                    address.addr == peer.addr && *name == peer.name && params.backup == peer.params.backup
                })
            };
            match new.iter_mut().find(is_same).and_then(Option::take) {
                // An SRV record may bring another weight.
                Some((address, _, params))
                    if address.weight.is_some() && params.weight != peer.params.weight =>
                {
                    let params = PeerParams { weight: params.weight, ..peer.params.clone() };
                    peers.push(Arc::new(peer.with(params)));
                    is_changed = true;
                }
                Some(_) => peers.push(peer.clone()),
                None => is_changed = true,
            }
        }
        for (address, name, params) in new.into_iter().flatten() {
            let state = self.new_state();
            peers.push(Arc::new(Peer::new(ids.next_peer(), id, name, address.addr, params, state)));
            is_changed = true;
        }
        if is_changed {
            self.put(&mut ids, old.servers.clone(), peers);
        }
        Ok(is_changed)
    }

    /// Replaces the list, and wakes the waiting requests.
    fn put(&self, ids: &mut Ids, servers: Vec<(ServerId, Arc<Server>)>, peers: Vec<Arc<Peer>>) {
        ids.generation += 1;
        self.has_host_names.store(has_host_names(&servers), Relaxed);
        let list = Arc::new(PeerList::new(ids.generation, &self.method, servers, peers));
        // The old list may be long: it goes after the lock.
        let old = std::mem::replace(&mut *self.list.lock(), list);
        drop(old);
        self.queue.wake_all();
    }
}

impl Ids {
    fn next(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    fn next_peer(&mut self) -> PeerId {
        PeerId(self.next())
    }

    /// Gives a server and its peers identifiers, and adds the peers to `peers`. A server with a fixed address has the
    /// identifier of its peer, so that one number names both.
    fn enlist(
        &mut self,
        server: &Server,
        inherited: &mut InheritedPeers,
        state: impl Fn() -> Arc<PeerState>,
        peers: &mut Vec<Arc<Peer>>,
    ) -> ServerId {
        let (server_id, addresses) = inherited.addresses(server);
        let mut id = server_id.or_else(|| server.has_host_name().then(|| ServerId(self.next())));
        for address in addresses {
            let (name, params) = described(server, &address);
            let (peer, state) = match inherited.take(&name, &address.addr) {
                Some(known_peer) => (known_peer.id, known_peer.state.clone()),
                None => (self.next_peer(), state()),
            };
            let of = *id.get_or_insert(ServerId(peer.0));
            peers.push(Arc::new(Peer::new(peer, of, name, address.addr, params, state)));
        }
        id.unwrap_or_else(|| ServerId(self.next()))
    }
}

fn has_host_names(servers: &[(ServerId, Arc<Server>)]) -> bool {
    servers.iter().any(|(_, server)| server.has_host_name())
}

/// Name and parameters of a peer.
fn described(server: &Server, address: &ResolvedAddress) -> (Arc<str>, PeerParams) {
    let mut params = server.params.clone();
    params.weight = match address.weight {
        Some(weight) if params.weight == 1 => weight.max(1),
        _ => params.weight.max(1),
    };
    params.backup |= address.backup;
    (address.name.clone().unwrap_or_else(|| server.name.clone()), params)
}

/// Peers of the earlier group, each to be inherited once.
#[derive(Default)]
struct InheritedPeers {
    servers: Vec<(ServerId, Arc<Server>)>,
    peers: Vec<Option<Arc<Peer>>>,
}

impl InheritedPeers {
    fn of(old: Option<&Group>) -> Self {
        let Some(list) = old.map(Group::list) else { return Self::default() };
        Self { servers: list.servers.clone(), peers: list.peers().cloned().map(Some).collect() }
    }

    /// Takes the peer of this name and address, once.
    fn take(&mut self, name: &str, addr: &Addr) -> Option<Arc<Peer>> {
        let is_it = |peer: &&mut Option<Arc<Peer>>| {
            peer.as_ref().is_some_and(|peer| *peer.name == *name && peer.addr == *addr)
        };
        self.peers.iter_mut().find(is_it).and_then(Option::take)
    }

    /// Addresses of a server: its own, or those that DNS gave for the same name before, with its earlier identifier.
    /// Once.
    fn addresses(&mut self, server: &Server) -> (Option<ServerId>, Vec<ResolvedAddress>) {
        let (host, service, port) = match &server.address {
            ServerAddress::Fixed(addrs) => {
                return (None, addrs.iter().cloned().map(ResolvedAddress::from).collect());
            }
            ServerAddress::Named { host, service, port, .. } => (host, service, *port),
        };
        let is_it = |address: &ServerAddress| matches!(address, ServerAddress::Named { host: h, service: s, .. } if h == host && s == service);
        let Some(at) = self.servers.iter().position(|(_, old)| is_it(&old.address)) else {
            return (None, Vec::new());
        };
        let (id, before) = self.servers.remove(at);
        let of_it = self.peers.iter().flatten().filter(|peer| peer.server == id);
        let with_port = |addr: &Addr| match addr {
            Addr::Inet(addr) if service.is_none() => Addr::Inet((addr.ip(), port).into()),
            addr => addr.clone(),
        };
        let addresses = of_it.map(|peer| ResolvedAddress {
            addr: with_port(&peer.addr),
            name: service.as_ref().map(|_| peer.name.clone()),
            weight: service.as_ref().map(|_| peer.params.weight),
            backup: peer.params.backup && !before.params.backup,
        });
        (Some(id), addresses.collect())
    }
}

impl fmt::Display for NoPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no live upstreams")
    }
}

impl std::error::Error for NoPeer {}

impl fmt::Display for UnknownPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such peer")
    }
}

impl std::error::Error for UnknownPeer {}

impl fmt::Display for ServerExists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is such a server")
    }
}

impl std::error::Error for ServerExists {}
