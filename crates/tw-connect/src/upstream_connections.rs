//! Connections to upstream servers on one loop.

use std::cell::RefCell;
use std::rc::Rc;

use tw_core::event_loop::{Eviction, LoopCore};
use tw_upstream::{PeerId, Rng};

use crate::h2_pool::H2Pool;
use crate::keepalive_pool::{HostKey, KeepalivePool, KeepaliveSettings, PoolKey};
use crate::upstream_connection::UpstreamConnection;

/// Connections to upstream servers on one loop, and the choice among servers.
pub struct UpstreamConnections {
    /// The loop.
    pub core: Rc<LoopCore>,
    /// Idle connections.
    pub idle: Rc<KeepalivePool>,
    /// HTTP/2 connections, which many requests share.
    pub h2_pool: H2Pool,
    /// Random choice among servers.
    pub random: RefCell<Rng>,
}

impl UpstreamConnections {
    /// Creates the state of a loop. Gets the seed from the system.
    pub fn new(core: Rc<LoopCore>) -> Rc<Self> {
        Rc::new(Self {
            core,
            idle: Rc::default(),
            h2_pool: H2Pool::default(),
            random: RefCell::new(Rng::seeded(seed())),
        })
    }

    /// Keeps a connection on which nothing is under way, for another request to the peer.
    pub fn keep(
        &self,
        owner: &PoolKey,
        peer: PeerId,
        connection: Rc<UpstreamConnection>,
        settings: &KeepaliveSettings,
    ) {
        self.idle.put(owner, peer, connection, settings);
    }

    /// Keeps a connection on which nothing is under way, for another request to the host.
    pub fn keep_for_host(
        &self,
        owner: &PoolKey,
        host: HostKey,
        connection: Rc<UpstreamConnection>,
        settings: &KeepaliveSettings,
    ) {
        self.idle.put_for_host(owner, host, connection, settings);
    }

    /// Closes the oldest idle connection, if there is one.
    pub fn close_oldest(&self) -> Eviction {
        if self.idle.close_oldest() || self.h2_pool.close_oldest() {
            Eviction::Done
        } else {
            Eviction::NothingIdle
        }
    }
}

/// A number that no other loop begins with; the time, should the system have no random bytes.
fn seed() -> u64 {
    let mut random = [0; 8];
    match rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(_) => u64::from_ne_bytes(random),
        Err(_) => tw_rt::clock::unix().secs.unsigned_abs(),
    }
}
