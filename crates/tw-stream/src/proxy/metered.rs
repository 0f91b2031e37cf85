//! Ends of a relay that count while it runs: bytes of the client for its server's counters, bytes of the upstream server and the
//! time of its first one for the peer.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_connect::ReadOutcome;
use tw_connect::group::now_ms;
use tw_connect::relay::{RelayEnd, RelaySide};
use tw_core::event_loop::Buffers;
use tw_net::{Addr, Transport};
use tw_upstream::Lease;

use crate::meter::SessionMeter;

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
    pub(super) fn end<'a>(&'a self, side: RelaySide, transport: &'a Transport) -> MeteredEnd<'a> {
        MeteredEnd { side, transport, meter: self }
    }

    /// Address of the peer.
    pub(super) fn peer_addr(&self) -> Addr {
        self.lease.borrow().peer().addr().clone()
    }

    /// Gives back the lease at the end of the relay.
    pub(super) fn into_lease(self) -> Lease {
        self.lease.into_inner()
    }

    /// Counts bytes that were read of a side.
    pub(super) fn read(&self, side: RelaySide, bytes: usize) {
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

    /// Counts bytes that a side has taken.
    pub(super) fn wrote(&self, side: RelaySide, bytes: u64) {
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

/// One side of a relay, whose bytes are counted.
#[derive(Clone, Copy)]
pub(super) struct MeteredEnd<'a> {
    side: RelaySide,
    transport: &'a Transport,
    meter: &'a RelayMeter,
}

impl RelayEnd for MeteredEnd<'_> {
    fn read(&self, buffers: &Buffers, max: usize) -> io::Result<(ReadOutcome, Bytes)> {
        let (outcome, bytes) = self.transport.read(buffers, max)?;
        self.meter.read(self.side, bytes.len());
        Ok((outcome, bytes))
    }

    fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        let count = self.transport.try_write(bytes)?;
        self.meter.wrote(self.side, count as u64);
        Ok(count)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport.poll_writable(cx)
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport.poll_readable(cx)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.transport.shutdown_write()
    }

    fn tells_end(&self) -> bool {
        self.transport.tells_end()
    }
}
