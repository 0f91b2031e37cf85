//! Loop of connections to upstream servers, and the state that it keeps for them.

use std::cell::RefCell;

use tw_core::event_loop::{Eviction, LoopCore};
use tw_upstream::Rng;

use crate::h2_pool::H2Pool;
use crate::keepalive_pool::KeepalivePool;

/// Loop on which connections to upstream servers are opened.
pub trait Home: 'static {
    /// State of the loop that belongs to no protocol.
    fn core(&self) -> &LoopCore;

    /// Connections of the loop.
    fn upstream_connections(&self) -> &UpstreamConnections;
}

/// Connections to upstream servers on one loop, and the choice among servers.
pub struct UpstreamConnections {
    /// Idle connections.
    pub idle: KeepalivePool,
    /// HTTP/2 connections, which many requests share.
    pub h2_pool: H2Pool,
    /// Random choice among servers.
    pub random: RefCell<Rng>,
}

impl UpstreamConnections {
    /// Creates the state of a loop. Gets the seed from the system.
    #[expect(clippy::new_without_default, reason = "two are not equal")]
    pub fn new() -> Self {
        Self {
            idle: KeepalivePool::default(),
            h2_pool: H2Pool::default(),
            random: RefCell::new(Rng::seeded(seed())),
        }
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
