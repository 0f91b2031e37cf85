//! Idle keep-alive connections to upstream servers, on one loop.
//!
//! No task waits for them: the loop receives readiness from the kernel, and the pool checks it when a connection is
//! wanted, and once a second.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use tw_rt::watch::Subject;
use tw_upstream::{Peer, PeerId};

use crate::upstream_connection::UpstreamConnection;
use crate::upstream_tls::UpstreamTls;

pub use crate::keepalive_settings::KeepaliveSettings;

/// Between two looks at the connections that wait.
const SWEEP: Duration = Duration::from_secs(1);

/// Owner of connections: a group, or a location in a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// Name of the group.
    pub group: Arc<str>,
    /// Number of the location's settings; 0 for all locations.
    pub location: u64,
    /// TLS of the connections: only requests with equal TLS settings share them.
    pub secured: Option<UpstreamTls>,
    /// Local address that the connections were bound to (`bind`). With `transparent` it is the client's, so that another client never
    /// gets the connection.
    pub local: Option<SocketAddr>,
}

/// Host of connections that belong to no group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostKey {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// TLS of the connections.
    pub secured: Option<UpstreamTls>,
    /// Proxy that they lead through: name, port, and header fields that it was shown.
    pub proxy: Option<(String, u16, String)>,
}

/// The connections of one loop that wait.
#[derive(Default)]
pub struct KeepalivePool {
    /// The last one to come is the first to go.
    waiting: RefCell<HashMap<PoolKey, VecDeque<IdleConnection>>>,
    sweeping: Cell<Sweeping>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Sweeping {
    #[default]
    No,
    Yes,
}

struct IdleConnection {
    server: IdleServer,
    connection: Rc<UpstreamConnection>,
    since: Instant,
    until: Instant,
}

/// Server of an idle connection.
#[derive(PartialEq, Eq)]
enum IdleServer {
    /// A server of a group.
    Peer(PeerId),
    Host(HostKey),
}

impl KeepalivePool {
    /// A connection to `peer`, if one waits that the server has not closed.
    pub fn take(&self, owner: &PoolKey, peer: &Peer) -> Option<Rc<UpstreamConnection>> {
        // A group that was removed and added again may use the same peer numbers for other servers, so the address
        // has to match, too.
        self.take_last(owner, |waiting| {
            waiting.server == IdleServer::Peer(peer.id()) && waiting.connection.to == *peer.addr()
        })
    }

    /// A connection to a host, if one waits that the server has not closed.
    pub fn take_for_host(&self, owner: &PoolKey, host: &HostKey) -> Option<Rc<UpstreamConnection>> {
        self.take_last(owner, |waiting| matches!(&waiting.server, IdleServer::Host(its) if its == host))
    }

    /// The last one to come of those that `is_its` accepts.
    fn take_last(
        &self,
        owner: &PoolKey,
        is_its: impl Fn(&IdleConnection) -> bool,
    ) -> Option<Rc<UpstreamConnection>> {
        let mut waiting = self.waiting.borrow_mut();
        let list = waiting.get_mut(owner)?;
        loop {
            let at = list.iter().rposition(&is_its)?;
            let idle_connection = list.remove(at)?;
            // Input on an idle connection is its end, or bytes that no request asked for: it cannot be reused.
            if !idle_connection.connection.may_have_input() && idle_connection.until > tw_rt::clock::now() {
                return Some(idle_connection.connection);
            }
        }
    }

    /// Keeps a connection to a server of a group, on which nothing is under way.
    pub(crate) fn put(
        self: &Rc<Self>,
        owner: &PoolKey,
        peer: PeerId,
        connection: Rc<UpstreamConnection>,
        keep: &KeepaliveSettings,
    ) {
        self.put_for(owner, IdleServer::Peer(peer), connection, keep);
    }

    /// Keeps a connection to a host, on which nothing is under way.
    pub(crate) fn put_for_host(
        self: &Rc<Self>,
        owner: &PoolKey,
        host: HostKey,
        connection: Rc<UpstreamConnection>,
        keep: &KeepaliveSettings,
    ) {
        self.put_for(owner, IdleServer::Host(host), connection, keep);
    }

    fn put_for(
        self: &Rc<Self>,
        owner: &PoolKey,
        server: IdleServer,
        connection: Rc<UpstreamConnection>,
        keep: &KeepaliveSettings,
    ) {
        let now = tw_rt::clock::now();
        let is_old = now.saturating_duration_since(connection.opened) >= keep.time;
        if keep.connections == 0
            || connection.requests.get() >= keep.requests
            || is_old
            || connection.may_have_input()
        {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        let list = match waiting.get_mut(owner) {
            Some(list) => list,
            None => waiting.entry(owner.clone()).or_default(),
        };
        if list.len() >= keep.connections {
            list.pop_front();
        }
        list.push_back(IdleConnection { server, connection, since: now, until: now + keep.timeout });
        if self.sweeping.replace(Sweeping::Yes) == Sweeping::No {
            let pool = Rc::downgrade(self);
            tw_rt::spawn_local(Subject { kind: "idle upstream connections", id: 0 }, async move {
                loop {
                    tw_rt::time::sleep(SWEEP).await;
                    let Some(pool) = pool.upgrade() else { return };
                    if pool.sweep() == Sweeping::No {
                        return;
                    }
                }
            });
        }
    }

    /// Closes connections that were idle for too long, and those that the server has closed.
    fn sweep(&self) -> Sweeping {
        let now = tw_rt::clock::now();
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|_, list| {
            list.retain(|waiting| waiting.until > now && !waiting.connection.may_have_input());
            !list.is_empty()
        });
        let sweeping = if waiting.is_empty() { Sweeping::No } else { Sweeping::Yes };
        self.sweeping.set(sweeping);
        sweeping
    }

    /// Closes the one that waits longest, for want of a descriptor or a connection. Returns whether there was one.
    pub fn close_oldest(&self) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let since = |list: &&mut VecDeque<IdleConnection>| list.front().map(|waiting| waiting.since);
        let lists = waiting.values_mut().filter(|list| !list.is_empty());
        lists.min_by_key(since).and_then(VecDeque::pop_front).is_some()
    }

    /// Number of idle connections.
    pub fn len(&self) -> usize {
        self.waiting.borrow().values().map(VecDeque::len).sum()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
