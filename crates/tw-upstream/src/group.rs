//! A group of servers (`upstream`), shared by all loops: its list of peers, which of them is next, and changes of the list.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tw_base::Whole;
use tw_net::Addr;

use crate::balance::BalanceMethod;
use crate::health::Term;
use crate::lease::Lease;
use crate::peer::{Peer, PeerId, ServerId};
use crate::peer_list::PeerList;
use crate::peer_state::{Health, PeerState, signed};
use crate::queue::{QueuedRequest, RequestQueue};
use crate::rng::Rng;
use crate::selection::{BalanceKey, PeerSelection, PeerTier};
use crate::server::{PeerParams, ResolvedAddress, Server, ServerAddress};

/// A group of servers. One for each generation of the configuration; what is known of a peer goes from one to the next.
#[derive(Debug)]
pub struct Group {
    name: Arc<str>,
    method: BalanceMethod,
    /// Held while a peer is chosen, like nginx's lock of a zone.
    list: Whole<Arc<PeerList>>,
    /// Held while another list is made, which may take longer.
    ids: Whole<Ids>,
    line: Arc<RequestQueue>,
    /// Whether some server has a name that DNS is asked for.
    has_host_names: AtomicBool,
    /// Whose health checks count; held while one is told of.
    pub(crate) term: Arc<Whole<Term>>,
    /// Whether peers that come have to pass a check first.
    requires_checks: AtomicBool,
    /// Peers from this one on are known to no group before this one.
    first_new: PeerId,
}

/// The next name of a server or peer, and the number of the latest list.
#[derive(Clone, Debug, Default)]
struct Ids {
    next: u32,
    generation: u64,
}

/// No peer can be used now. nginx: "no live upstreams".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPeer;

/// There is no such peer or server in the group any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPeer;

/// The group has a server of this name or place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerExists;

impl Group {
    /// A group of these servers. With `old`, the group that had this name before, peers keep their identity, counters, failures
    /// and connections if a server of the same name has the same address; and names that DNS has been asked for keep their
    /// addresses. `old` is not changed and can go on.
    ///
    /// Computes the ring of `hash … consistent`: not on a loop.
    pub fn new(name: &str, method: BalanceMethod, servers: Vec<Server>, old: Option<&Group>) -> Self {
        let (line, term, mut ids) = match old {
            Some(old) => (old.line.clone(), old.term.clone(), old.ids.lock().clone()),
            None => Default::default(),
        };
        let first_new = PeerId(ids.next);
        let mut inherited = InheritedPeers::of(old);
        let (mut listed, mut peers) = (Vec::new(), Vec::new());
        for server in servers {
            let state = || Arc::new(PeerState::new(line.clone()));
            let id = ids.enlist(&server, &mut inherited, state, &mut peers);
            listed.push((id, Arc::new(server)));
        }
        ids.generation += 1;
        let has_host_names = has_host_names(&listed).into();
        let list = PeerList::new(ids.generation, &method, listed, peers);
        Self {
            name: name.into(),
            method,
            list: Whole::new(Arc::new(list)),
            ids: Whole::new(ids),
            line,
            term,
            requires_checks: AtomicBool::new(false),
            first_new,
            has_host_names,
        }
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// How it chooses.
    pub fn method(&self) -> BalanceMethod {
        self.method
    }

    /// Whether DNS has to be asked for some of its servers.
    pub fn has_host_names(&self) -> bool {
        self.has_host_names.load(Relaxed)
    }

    /// The peers now.
    pub fn list(&self) -> Arc<PeerList> {
        self.list.lock().clone()
    }

    /// From now on peers that come get no requests before they have passed a health check (`mandatory`), nor do those that no
    /// group knew before. What is known of the others, [`HealthChecker::new`](crate::HealthChecker::new) decides.
    pub fn require_checks(&self) {
        self.requires_checks.store(true, Relaxed);
        let list = self.list();
        let new = list.peers().filter(|peer| peer.id >= self.first_new);
        new.for_each(|peer| peer.state.set_health(Health::Checking));
    }

    /// The state of a peer that comes.
    fn new_state(&self) -> Arc<PeerState> {
        let state = PeerState::new(self.line.clone());
        if self.requires_checks.load(Relaxed) {
            state.set_health(Health::Checking);
        }
        Arc::new(state)
    }

    /// A request that looks for a peer: what the method chooses by, the peer that `sticky` binds it to, and how many peers it
    /// may try (`proxy_next_upstream_tries`; zero is all).
    pub fn start_selection(&self, key: BalanceKey, sid: Option<Box<[u8]>>, tries_max: u32) -> PeerSelection {
        PeerSelection::new(key, sid, tries_max, self.method.search())
    }

    /// The next peer for this request: one that it has not tried, in nginx's order. `now` is in milliseconds of a clock that
    /// never goes back; all calls for a group and its successors use the same one.
    ///
    /// With the permit it takes 80 ns among one peer, 110 among three, and 11 for each further one (`least_conn` 25, `least_time`
    /// 45, methods that hash or draw less than one), most of it under the lock of the group. Allocates from the fifth try on.
    pub fn select(&self, selection: &mut PeerSelection, now: u64, rng: &mut Rng) -> Result<Lease, NoPeer> {
        let (list, at) = (self.list.lock(), signed(now));
        let (tried, search) = (selection.tried.len(), selection.search);
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
                _ if selection.stage == PeerTier::Primary && !list.backup.peers.is_empty() => {
                    selection.stage = PeerTier::Backup;
                }
                _ => {
                    // Who looks again, because it waits, looks at everybody again that it was not sent to.
                    selection.tried.truncate(tried);
                    (selection.stage, selection.search) = (PeerTier::Primary, search);
                    return Err(NoPeer);
                }
            }
        }
    }

    /// A place in the line of those for whom there is no peer, unless `max` wait (`queue`). Join first, then select once more:
    /// what becomes free after that calls.
    pub fn enqueue(&self, max: usize) -> Option<QueuedRequest> {
        self.line.join(max)
    }

    /// How many wait in line.
    pub fn queue_len(&self) -> usize {
        self.line.len()
    }

    /// When the next peer that is left alone because of failures may be tried again. Time calls nobody in the line.
    pub fn retry_ms(&self) -> Option<u64> {
        let list = self.list();
        list.peers().filter_map(|peer| peer.retry_ms()).min().and_then(|at| u64::try_from(at).ok())
    }

    /// Adds a server, unless there is one of this name or place. Makes another list, as all that follow: not on a loop if the group is
    /// large and hashed consistently.
    pub fn add(&self, server: Server) -> Result<ServerId, ServerExists> {
        let mut ids = self.ids.lock();
        let old = self.list();
        let is_it = |known: &Server| known.name == server.name || known.address == server.address;
        if old.servers.iter().any(|(_, known)| is_it(known)) {
            return Err(ServerExists);
        }
        let (mut servers, mut peers) = (old.servers.clone(), old.peers().cloned().collect::<Vec<_>>());
        let id = ids.enlist(&server, &mut InheritedPeers::default(), || self.new_state(), &mut peers);
        servers.push((id, Arc::new(server)));
        self.put(&mut ids, servers, peers);
        Ok(id)
    }

    /// Removes a server with all its peers. Requests that are under way there go on.
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

    /// Removes one peer. Requests that are under way there go on. DNS may bring it back.
    pub fn remove(&self, id: PeerId) -> Result<(), UnknownPeer> {
        let mut ids = self.ids.lock();
        let old = self.list();
        old.peer(id).ok_or(UnknownPeer)?;
        let peers = old.peers().filter(|peer| peer.id != id).cloned().collect();
        self.put(&mut ids, old.servers.clone(), peers);
        Ok(())
    }

    /// Changes the parameters of one peer. It stays the same peer, with its place, counters and connections.
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

    /// Changes the parameters of a server, and with them those of all its peers, which stay the same peers.
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

    /// DNS has these addresses for a server. Peers whose address is among them stay, in their places; the others go, and new
    /// ones come last. Says whether that made another list.
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
        let (mut peers, mut is_changed) = (Vec::new(), false);
        for peer in old.peers() {
            if peer.server != id {
                peers.push(peer.clone());
                continue;
            }
            let is_same = |found: &&mut Option<(ResolvedAddress, Arc<str>, PeerParams)>| {
                found.as_ref().is_some_and(|(address, name, params)| {
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

    /// Another list takes the place of the one there is, and those who wait look at it.
    fn put(&self, ids: &mut Ids, servers: Vec<(ServerId, Arc<Server>)>, peers: Vec<Arc<Peer>>) {
        ids.generation += 1;
        self.has_host_names.store(has_host_names(&servers), Relaxed);
        let list = Arc::new(PeerList::new(ids.generation, &self.method, servers, peers));
        // The old list may be long: it goes after the lock.
        let old = std::mem::replace(&mut *self.list.lock(), list);
        drop(old);
        self.line.wake_all();
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

    /// Names a server and its peers, and adds these to `peers`. A server whose address is written has the number of its peer,
    /// so that one number says both.
    fn enlist(
        &mut self,
        server: &Server,
        inherited: &mut InheritedPeers,
        state: impl Fn() -> Arc<PeerState>,
        peers: &mut Vec<Arc<Peer>>,
    ) -> ServerId {
        let (known, addresses) = inherited.addresses(server);
        let mut id = known.or_else(|| server.has_host_name().then(|| ServerId(self.next())));
        for address in addresses {
            let (name, params) = described(server, &address);
            let (peer, state) = match inherited.take(&name, &address.addr) {
                Some(known) => (known.id, known.state.clone()),
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

/// The peers of a group whose place is taken, each for one heir.
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

    /// The peer of this name and address, once.
    fn take(&mut self, name: &str, addr: &Addr) -> Option<Arc<Peer>> {
        let is_it = |peer: &&mut Option<Arc<Peer>>| {
            peer.as_ref().is_some_and(|peer| *peer.name == *name && peer.addr == *addr)
        };
        self.peers.iter_mut().find(is_it).and_then(Option::take)
    }

    /// The addresses of a server: its own, or those that DNS gave for the same name before, with the number it had. Once.
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
