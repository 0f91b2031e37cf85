//! Counters of a relay while it runs: bytes of the client for its server's counters, bytes of the upstream server and the time of its
//! first one for the peer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tw_connect::group::now_ms;
use tw_connect::observed_relay::{ObservedEnd, RelayObserver};
use tw_connect::relay::RelaySide;
use tw_core::session_meter::SessionMeter;
use tw_net::{Addr, Transport};
use tw_upstream::Lease;

/// Counters of one relay.
pub(super) struct RelayMeter {
    session: Rc<SessionMeter>,
    lease: RefCell<Lease>,
    has_first_byte: Cell<bool>,
    /// Bytes so far.
    pub(super) from_client: Cell<u64>,
    pub(super) to_client: Cell<u64>,
    pub(super) from_server: Cell<u64>,
    pub(super) to_server: Cell<u64>,
}

impl RelayMeter {
    /// Counters for the session and for the peer of `lease`.
    pub(super) fn new(session: Rc<SessionMeter>, lease: Lease) -> Self {
        Self {
            session,
            lease: RefCell::new(lease),
            has_first_byte: Cell::new(false),
            from_client: Cell::new(0),
            to_client: Cell::new(0),
            from_server: Cell::new(0),
            to_server: Cell::new(0),
        }
    }

    /// One side of the relay, counted.
    pub(super) fn end<'a>(&'a self, side: RelaySide, transport: &'a Transport) -> ObservedEnd<'a, Self> {
        ObservedEnd::new(side, transport, self)
    }

    /// Address of the peer.
    pub(super) fn peer_addr(&self) -> Addr {
        self.lease.borrow().peer().addr().clone()
    }

    /// Gives back the lease at the end of the relay.
    pub(super) fn into_lease(self) -> Lease {
        self.lease.into_inner()
    }
}

impl RelayObserver for RelayMeter {
    fn read(&self, side: RelaySide, bytes: usize) {
        let bytes = bytes as u64;
        match side {
            _ if bytes == 0 => {}
            RelaySide::Client => {
                self.from_client.update(|sum| sum + bytes);
                self.session.received(bytes);
            }
            RelaySide::Server => {
                self.from_server.update(|sum| sum + bytes);
                let mut lease = self.lease.borrow_mut();
                if !self.has_first_byte.replace(true) {
                    lease.header(now_ms());
                }
                lease.received(bytes);
            }
        }
    }

    fn wrote(&self, side: RelaySide, bytes: u64) {
        match side {
            RelaySide::Client => {
                self.to_client.update(|sum| sum + bytes);
                self.session.sent(bytes);
            }
            RelaySide::Server => {
                self.to_server.update(|sum| sum + bytes);
                self.lease.borrow().sent(bytes);
            }
        }
    }
}
