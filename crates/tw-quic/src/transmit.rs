//! Datagrams that are to be sent.

use std::net::{IpAddr, SocketAddr};

use quinn_proto as engine;

/// Messages of a batch.
pub const BATCH: usize = 16;
/// Bytes of one message: a datagram of IPv4 holds no more, and the segments of a message begin as one.
pub(crate) const MESSAGE_SIZE_MAX: usize = 65_507;
/// Datagrams of one message. Longer ones would hold up those of other connections.
pub(crate) const SEGMENTS_MAX: usize = 44;
/// Bytes of buffers that wait for further messages; as many batches stay in memory as there are endpoints.
const SPARE_SIZE_MAX: usize = 256 << 10;
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
    /// Bytes that they have room for.
    spare_size: usize,
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
        let Self { messages, spare, spare_size } = self;
        for message in messages.drain(..count.min(messages.len())) {
            keep(spare, spare_size, message.bytes);
        }
    }

    /// True if no more messages fit.
    pub fn is_full(&self) -> bool {
        self.messages.len() >= BATCH
    }

    /// An empty buffer.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        let Some(mut buffer) = self.spare.pop() else { return Vec::with_capacity(DATAGRAM_SIZE) };
        self.spare_size -= buffer.capacity();
        buffer.clear();
        buffer
    }

    /// Returns a buffer that was not used.
    pub(crate) fn give_back(&mut self, buffer: Vec<u8>) {
        keep(&mut self.spare, &mut self.spare_size, buffer);
    }

    pub(crate) fn push(&mut self, message: Outgoing) {
        self.messages.push(message);
    }
}

/// Keeps a buffer for a further message, or frees it if there is enough.
fn keep(spare: &mut Vec<Vec<u8>>, spare_size: &mut usize, buffer: Vec<u8>) {
    let size = *spare_size + buffer.capacity();
    if spare.len() < BATCH && size <= SPARE_SIZE_MAX {
        *spare_size = size;
        spare.push(buffer);
    }
}

impl Outgoing {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_are_not_all_kept() {
        let mut batch = TransmitBatch::default();
        for _ in 0..3 {
            while !batch.is_full() {
                let mut bytes = batch.buffer();
                bytes.resize(MESSAGE_SIZE_MAX, 7);
                let peer = ([127, 0, 0, 1], 443).into();
                batch.push(Outgoing { bytes, peer, local: None, ecn: 0, segment: None });
            }
            batch.remove(BATCH);
            let kept: usize = batch.spare.iter().map(Vec::capacity).sum();
            assert!(kept == batch.spare_size && (1..=SPARE_SIZE_MAX).contains(&kept), "{kept}");
        }
        assert!(batch.buffer().is_empty());
    }
}
