//! Ends of a relay whose bytes are counted as they move.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_core::event_loop::Buffers;
use tw_core::session_meter::SessionMeter;
use tw_net::Transport;

use crate::relay::{RelayEnd, RelaySide};
use crate::upstream_connection::ReadOutcome;

/// Counters of the bytes of a relay.
pub trait RelayObserver {
    /// Counts bytes that were read of a side.
    fn read(&self, side: RelaySide, bytes: usize);

    /// Counts bytes that a side has taken.
    fn wrote(&self, side: RelaySide, bytes: u64);
}

/// The bytes of the client.
impl RelayObserver for SessionMeter {
    fn read(&self, side: RelaySide, bytes: usize) {
        if side == RelaySide::Client {
            self.received(bytes as u64);
        }
    }

    fn wrote(&self, side: RelaySide, bytes: u64) {
        if side == RelaySide::Client {
            self.sent(bytes);
        }
    }
}

/// Without counters nothing is counted.
impl<O: RelayObserver> RelayObserver for Option<O> {
    fn read(&self, side: RelaySide, bytes: usize) {
        self.iter().for_each(|observer| observer.read(side, bytes));
    }

    fn wrote(&self, side: RelaySide, bytes: u64) {
        self.iter().for_each(|observer| observer.wrote(side, bytes));
    }
}

impl<O: RelayObserver> RelayObserver for std::rc::Rc<O> {
    fn read(&self, side: RelaySide, bytes: usize) {
        O::read(self, side, bytes);
    }

    fn wrote(&self, side: RelaySide, bytes: u64) {
        O::wrote(self, side, bytes);
    }
}

/// One side of a relay, whose bytes are counted.
pub struct ObservedEnd<'a, O> {
    side: RelaySide,
    transport: &'a Transport,
    observer: &'a O,
}

impl<'a, O> ObservedEnd<'a, O> {
    /// The side of a relay that has this connection.
    pub fn new(side: RelaySide, transport: &'a Transport, observer: &'a O) -> Self {
        Self { side, transport, observer }
    }
}

impl<O> Clone for ObservedEnd<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for ObservedEnd<'_, O> {}

impl<O: RelayObserver> RelayEnd for ObservedEnd<'_, O> {
    fn read(&self, buffers: &Buffers, max: usize) -> io::Result<(ReadOutcome, Bytes)> {
        let (outcome, bytes) = self.transport.read(buffers, max)?;
        self.observer.read(self.side, bytes.len());
        Ok((outcome, bytes))
    }

    fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        let count = self.transport.try_write(bytes)?;
        self.observer.wrote(self.side, count as u64);
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
