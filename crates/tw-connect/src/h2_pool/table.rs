//! The connections of one loop. A new stream goes to the busiest connection with a free permit, so that superfluous
//! connections run empty and are closed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use tw_net::ConnectOptions;
use tw_upstream::Peer;

use super::connection::{Availability, H2Connection, StreamPermit};
use crate::keepalive_pool::PoolKey;
use crate::keepalive_settings::KeepaliveSettings;

/// HTTP/2 connections of one loop.
#[derive(Default)]
pub struct H2Pool {
    of: RefCell<HashMap<PoolKey, Vec<Rc<H2Connection>>>>,
}

/// A stream that is wanted.
pub struct StreamParams<'a> {
    /// Peer to connect to.
    pub peer: &'a Arc<Peer>,
    /// Address of the peer.
    pub to: &'a tw_net::Addr,
    /// Socket options.
    pub options: ConnectOptions,
    /// `keepalive` of the group.
    pub keepalive: KeepaliveSettings,
    /// Bytes of the head of a response.
    pub head_size: usize,
    /// Time for a connection, with its handshake.
    pub timeout: Duration,
}

impl H2Pool {
    /// Leases a permit of the busiest connection that has one free.
    pub(super) fn take(&self, owner: &PoolKey, params: &StreamParams<'_>) -> Option<StreamPermit> {
        let mut of = self.of.borrow_mut();
        let h2_pool = of.get_mut(owner)?;
        let may_serve = |connection: &&Rc<H2Connection>| {
            connection.peer == params.peer.id()
                && connection.to == *params.to
                && connection.options == params.options
                && connection.list_size as usize == params.head_size
                && connection.permits.get() < connection.capacity()
        };
        let best = h2_pool.iter().filter(may_serve).max_by_key(|connection| connection.permits.get())?;
        Some(best.lease())
    }

    /// Adds a connection of `owner`.
    pub(super) fn add(&self, owner: &PoolKey, connection: Rc<H2Connection>) {
        self.of.borrow_mut().entry(owner.clone()).or_default().push(connection);
    }

    /// Forgets a connection. Its streams are not touched.
    pub(super) fn remove(&self, connection: &Rc<H2Connection>) {
        self.of.borrow_mut().retain(|_, list| {
            list.retain(|other| !Rc::ptr_eq(other, connection));
            !list.is_empty()
        });
    }

    /// Returns true if more connections like this one are idle than may be.
    pub(super) fn has_too_many_idle(&self, connection: &Rc<H2Connection>) -> bool {
        let of = self.of.borrow();
        let siblings = of.values().find(|h2_pool| h2_pool.iter().any(|other| Rc::ptr_eq(other, connection)));
        let idle = siblings.into_iter().flatten().filter(|other| other.is_idle()).count();
        idle > connection.keepalive.connections
    }

    /// Closes the oldest one that carries nothing, for want of a descriptor or a connection. Returns whether there was one.
    pub fn close_oldest(&self) -> bool {
        let of = self.of.borrow();
        let rests = |connection: &&Rc<H2Connection>| {
            connection.is_idle() && connection.fate.get() == Availability::Useful
        };
        let idle = of.values().flatten().filter(rests).min_by_key(|connection| connection.opened);
        idle.inspect(|connection| connection.retire()).is_some()
    }
}
