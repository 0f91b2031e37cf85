//! Datagrams that arrive: for a connection, or with a part of a client hello.

use std::rc::Rc;
use std::time::Instant;

use bytes::BytesMut;
use engine::{DatagramEvent, EcnCodepoint};
use quinn_proto as engine;

use super::driver::{Driver, PendingHello};
use super::state::EndpointState;
use super::{Datagram, Received};
use crate::config::{HANDSHAKES_MAX, HANDSHAKES_WITHOUT_RETRY_MAX, HELLOS_MAX, RetryPolicy};
use crate::hello::{HelloReader, LongHeader, Progress};
use crate::incoming::IncomingConnection;
use crate::path_mtu::ETHERNET_SIZE;
use crate::qlog::Direction;
use crate::transmit::Outgoing;

/// Bit of the first byte of a packet with a long header (RFC 9000, section 17).
const LONG_HEADER: u8 = 0x80;

impl EndpointState {
    pub(super) fn receive(
        self: &Rc<Self>,
        driver: &mut Driver,
        now: Instant,
        datagram: &Datagram<'_>,
    ) -> Received {
        let destination = {
            let header = LongHeader::read(&mut &*datagram.bytes);
            header.filter(LongHeader::is_initial).map(|header| header.destination)
        };
        // The engine consumes the datagram, so the ClientHello is read from a copy.
        let pending = destination.and_then(|id| driver.hellos.get_mut(id));
        let progress = pending.map(|pending| {
            if pending.incoming.remote_address() == datagram.peer {
                pending.received += datagram.bytes.len() as u64;
            }
            pending.reader.read(datagram.bytes)
        });
        let mut out = Vec::new();
        let ecn = EcnCodepoint::from_bits(datagram.ecn & 3);
        let bytes = BytesMut::from(datagram.bytes);
        let (peer, local) = (datagram.peer, datagram.local);
        let event = driver.with_engine(|engine| engine.handle(now, peer, local, ecn, bytes, &mut out));
        match event {
            None => {
                if let Some(origin) = driver.foreign.take() {
                    return Received::Elsewhere(origin);
                }
            }
            Some(DatagramEvent::Response(transmit)) => {
                // A packet with a short header of no known connection.
                if datagram.bytes.first().is_some_and(|first| first & LONG_HEADER == 0) {
                    self.count(|statistics| statistics.resets += 1);
                }
                driver.respond(Outgoing::new(out, transmit));
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let shared = self.table.borrow().get(handle.0).cloned().flatten();
                let Some(shared) = shared else { return Received::Done };
                shared.record(|recorder| {
                    recorder.set_time(now);
                    recorder.datagrams(Direction::Received, datagram.bytes.len(), None, datagram.ecn);
                });
                let is_new = {
                    let mut peer_address = shared.peer.borrow_mut();
                    peer_address.note_received(datagram.peer, datagram.bytes.len() as u64);
                    peer_address.is_new(datagram.peer)
                };
                if is_new {
                    // Set before the tasks that the datagram wakes run.
                    self.has_moved_client.set(true);
                    self.queue(shared.handle, shared.serial);
                }
                shared.call(|engine| {
                    engine.handle_event(event);
                    shared.exchange(engine, driver);
                });
                self.queue(shared.handle, shared.serial);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let Some(destination) = destination else { return Received::Done };
                return self.connecting(driver, now, incoming, destination, datagram.bytes);
            }
        }
        let (Some(Progress::Whole), Some(destination)) = (progress, destination) else {
            return Received::Done;
        };
        match driver.hellos.remove(destination) {
            Some(pending) => Received::Connecting(self.incoming(driver, pending)),
            None => Received::Done,
        }
    }

    /// Handles the first datagram of a client.
    fn connecting(
        self: &Rc<Self>,
        driver: &mut Driver,
        now: Instant,
        incoming: engine::Incoming,
        destination: &[u8],
        bytes: &[u8],
    ) -> Received {
        if !driver.is_accepting {
            driver.with_engine(|engine| engine.ignore(incoming));
            return Received::Refused;
        }
        let half_open = driver.half_open();
        // DIFF(nginx): also without `quic_retry`, while many handshakes are under way; and a token that is not valid is as none: the client
        // gets a new Retry packet, not INVALID_TOKEN (RFC 9000, section 8.1.3).
        let wants_proof =
            driver.config.retry == RetryPolicy::Always || half_open >= HANDSHAKES_WITHOUT_RETRY_MAX;
        if wants_proof && !incoming.remote_address_validated() {
            let mut out = Vec::new();
            if let Ok(transmit) = driver.with_engine(|engine| engine.retry(incoming, &mut out)) {
                driver.respond(Outgoing::new(out, transmit));
                self.count(|statistics| statistics.retries += 1);
            }
            return Received::Done;
        }
        if half_open >= HANDSHAKES_MAX {
            driver.with_engine(|engine| engine.ignore(incoming));
            self.count(|statistics| statistics.dropped += 1);
            return Received::Done;
        }
        let mut reader = HelloReader::new(destination);
        let progress = reader.read(bytes);
        let first_len = bytes.len() as u64;
        let pending = PendingHello { incoming, reader, first_len, received: first_len };
        if progress == Progress::Whole {
            return Received::Connecting(self.incoming(driver, pending));
        }
        if driver.hellos.len() >= HELLOS_MAX {
            driver.forget_oldest_hello();
            self.count(|statistics| statistics.dropped += 1);
        }
        driver.hellos.insert(destination.into(), pending);
        driver.hello_order.push_back((now, destination.into()));
        Received::Done
    }

    fn incoming(self: &Rc<Self>, driver: &mut Driver, pending: PendingHello) -> IncomingConnection {
        let PendingHello { incoming, reader, first_len, received } = pending;
        driver.handshakes += 1;
        let destination = reader.destination().into();
        IncomingConnection {
            destination,
            first_len,
            received,
            peer: incoming.remote_address(),
            local: incoming.local_ip(),
            incoming: Some(incoming),
            hello: reader.into_bytes(),
            datagram_size_max: ETHERNET_SIZE,
            recorder: None,
            epoch: driver.epoch,
            endpoint: self.clone(),
        }
    }
}
