//! Datagrams that are to be sent.

use std::net::{IpAddr, SocketAddr};

use quinn_proto as engine;

/// Messages of a batch.
pub const BATCH: usize = 16;
/// Room for a datagram on most paths.
const DATAGRAM_SIZE: usize = 1500;

/// A message to be sent.
#[derive(Debug)]
pub struct Outgoing {
    /// One datagram, or several of the size `segment`, of which the last may be shorter.
    pub bytes: Vec<u8>,
    /// Receiver.
    pub peer: SocketAddr,
    /// Local address that it comes from; `None` leaves the choice to the system.
    pub local: Option<IpAddr>,
    /// Mark of explicit congestion notification (RFC 3168), the two low bits of the traffic class; 0 for none.
    pub ecn: u8,
    /// Size of the datagrams in `bytes`, if they are several.
    pub segment: Option<u16>,
}

/// Messages to be sent, and buffers for further ones.
#[derive(Debug, Default)]
pub struct TransmitBatch {
    messages: Vec<Outgoing>,
    spare: Vec<Vec<u8>>,
}

impl TransmitBatch {
    /// Messages, in order.
    pub fn messages(&self) -> &[Outgoing] {
        &self.messages
    }

    /// True without messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Removes the first `count` messages, which were sent or have failed.
    pub fn remove(&mut self, count: usize) {
        for message in self.messages.drain(..count.min(self.messages.len())) {
            self.spare.push(message.bytes);
        }
    }

    /// True if no more messages fit.
    pub fn is_full(&self) -> bool {
        self.messages.len() >= BATCH
    }

    /// An empty buffer.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(DATAGRAM_SIZE));
        buffer.clear();
        buffer
    }

    /// Returns a buffer that was not used.
    pub(crate) fn give_back(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < BATCH {
            self.spare.push(buffer);
        }
    }

    pub(crate) fn push(&mut self, message: Outgoing) {
        self.messages.push(message);
    }
}

impl Outgoing {
    /// Number of datagrams.
    pub(crate) fn datagrams(&self) -> usize {
        self.segment.map_or(1, |size| self.bytes.len().div_ceil(usize::from(size.max(1))))
    }

    /// Message of the engine, whose content is in `bytes`.
    pub(crate) fn new(mut bytes: Vec<u8>, transmit: engine::Transmit) -> Self {
        bytes.truncate(transmit.size);
        let segment = transmit.segment_size.and_then(|size| u16::try_from(size).ok());
        Self {
            segment: segment.filter(|size| usize::from(*size) < bytes.len()),
            bytes,
            peer: transmit.destination,
            local: transmit.src_ip,
            ecn: transmit.ecn.map_or(0, |ecn| ecn as u8),
        }
    }
}
