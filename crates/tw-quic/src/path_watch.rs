//! Proof that a client which has moved receives at its new address (RFC 9000, section 8.2). The engine validates paths, too, but does not
//! tell when; so the token of its PATH_CHALLENGE is seen where packets are encrypted, and the PATH_RESPONSE where they are decrypted.
//!
//! Packets for an address that may receive little are made small here, too. The engine makes each as large as a datagram, but leaves room for
//! the tag of the key, whose length it asks for: a longer one leaves less for frames. The part of the room that the real tag does not take is
//! cut off the datagram, which nobody misses: a packet with a short header ends where its datagram does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use bytes::BytesMut;
use engine::crypto::{CryptoError, PacketKey};
use quinn_proto as engine;

use crate::peer_address::DATAGRAM_MIN;
use crate::varint::read_varint;

const PING: u8 = 0x01;
const IMMEDIATE_ACK: u8 = 0x1f;
const PATH_CHALLENGE: u64 = 0x1a;
const PATH_RESPONSE: u8 = 0x1b;
/// Length of a PATH_RESPONSE.
const RESPONSE_LEN: usize = 9;

/// Watch over the packets of one connection.
#[derive(Default)]
pub(crate) struct PathWatch {
    /// True while the client uses an address that is not validated.
    is_on: AtomicBool,
    /// Token of the last PATH_CHALLENGE, whatever its path; 0 for none.
    sent: AtomicU64,
    /// Token that was sent to the new address; 0 for none.
    expected: AtomicU64,
    is_proved: AtomicBool,
    /// Bytes of a datagram of [`DATAGRAM_MIN`] that its packet may not take.
    reserved: AtomicUsize,
    /// True if a packet with nothing but a PATH_RESPONSE has to be small.
    limits_responses: AtomicBool,
    /// Bytes at the end of the last datagram that are not part of its packet.
    surplus: AtomicUsize,
}

/// Limits of the packets that the engine makes next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PacketLimits {
    /// Size of a packet on the current path, less than [`DATAGRAM_MIN`], which is the size of its datagrams.
    pub(crate) size: Option<usize>,
    /// True if a packet with nothing but a PATH_RESPONSE has to be small.
    pub(crate) small_responses: bool,
}

impl PathWatch {
    /// Watches for a new address.
    pub(crate) fn start(&self) {
        self.sent.store(0, Relaxed);
        self.expected.store(0, Relaxed);
        self.is_proved.store(false, Relaxed);
        self.is_on.store(true, Relaxed);
    }

    pub(crate) fn stop(&self) {
        self.is_on.store(false, Relaxed);
    }

    /// True if the token has come back.
    pub(crate) fn is_proved(&self) -> bool {
        self.is_proved.load(Relaxed)
    }

    /// Notes that packets have been made, and their receiver.
    pub(crate) fn packets_made(&self, receiver: Receiver) {
        if self.is_on.load(Relaxed) {
            let token = self.sent.swap(0, Relaxed);
            if receiver == Receiver::NewAddress && token != 0 {
                self.expected.store(token, Relaxed);
            }
        }
    }

    /// Sets the limits of the packets that the engine makes next.
    pub(crate) fn limit(&self, limits: PacketLimits) {
        let reserved = limits.size.map_or(0, |size| DATAGRAM_MIN.saturating_sub(size));
        self.reserved.store(reserved, Relaxed);
        self.limits_responses.store(limits.small_responses, Relaxed);
    }

    /// Takes the number of bytes at the end of the last datagram that are not part of its packet.
    pub(crate) fn take_surplus(&self) -> usize {
        self.surplus.swap(0, Relaxed)
    }

    /// Bytes of frames and padding to be encrypted, of those that the engine has written and `reserved` ones of its padding.
    fn payload_len(&self, text: &[u8], reserved: usize) -> usize {
        let is_padding = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        match text {
            // A probe of the path's MTU is of no use with another size.
            [PING, IMMEDIATE_ACK, padding @ ..] | [PING, padding @ ..] if is_padding(padding) => {
                text.len() + reserved
            }
            [PATH_RESPONSE, rest @ ..]
                if self.limits_responses.load(Relaxed)
                    && rest.get(RESPONSE_LEN - 1..).is_some_and(is_padding) =>
            {
                RESPONSE_LEN
            }
            _ => text.len(),
        }
    }

    fn on_encrypt(&self, payload: &[u8]) {
        if self.is_on.load(Relaxed)
            && let Some(token) = challenge(payload)
        {
            self.sent.store(token, Relaxed);
        }
    }

    fn on_decrypt(&self, payload: &[u8]) {
        if !self.is_on.load(Relaxed) {
            return;
        }
        let expected = self.expected.load(Relaxed);
        let [a, b, c, d, e, f, g, h] = expected.to_be_bytes();
        // Only a receiver of the token can write it, so its position in the payload does not matter.
        let frame = [PATH_RESPONSE, a, b, c, d, e, f, g, h];
        if expected != 0 && payload.windows(frame.len()).any(|window| window == frame) {
            self.is_proved.store(true, Relaxed);
        }
    }
}

/// Receiver of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// Address that is to be validated.
    NewAddress,
    /// Another one.
    Other,
}

/// Token of a PATH_CHALLENGE. The engine writes few kinds of frames before it, and none with data of others.
fn challenge(mut payload: &[u8]) -> Option<u64> {
    loop {
        match read_varint(&mut payload)? {
            // PADDING, PING, HANDSHAKE_DONE, IMMEDIATE_ACK
            0 | 1 | 0x1e | 0x1f => {}
            // ACK
            kind @ (2 | 3) => {
                let (_largest, _delay) = (read_varint(&mut payload)?, read_varint(&mut payload)?);
                let (ranges, _first) = (read_varint(&mut payload)?, read_varint(&mut payload)?);
                for _ in 0..ranges {
                    let (_gap, _len) = (read_varint(&mut payload)?, read_varint(&mut payload)?);
                }
                for _ in 0..if kind == 3 { 3 } else { 0 } {
                    read_varint(&mut payload)?;
                }
            }
            // ACK_FREQUENCY
            0xaf => {
                for _ in 0..4 {
                    read_varint(&mut payload)?;
                }
            }
            PATH_CHALLENGE => return payload.first_chunk::<8>().map(|token| u64::from_be_bytes(*token)),
            _ => return None,
        }
    }
}

/// Key of packets that are watched.
pub(crate) struct WatchedKey {
    key: Box<dyn rustls::quic::PacketKey>,
    watch: Arc<PathWatch>,
}

impl WatchedKey {
    pub(crate) fn boxed(key: Box<dyn rustls::quic::PacketKey>, watch: &Arc<PathWatch>) -> Box<dyn PacketKey> {
        Box::new(Self { key, watch: watch.clone() })
    }
}

impl PacketKey for WatchedKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let watch = &self.watch;
        let reserved = watch.reserved.load(Relaxed);
        let text = buf.get(header_len..buf.len().saturating_sub(self.tag_len())).unwrap_or_default();
        watch.on_encrypt(text);
        if reserved == 0 && !watch.limits_responses.load(Relaxed) {
            return self.key.encrypt(packet, buf, header_len);
        }
        let end = header_len + watch.payload_len(text, reserved) + self.key.tag_len();
        watch.surplus.store(buf.len().saturating_sub(end), Relaxed);
        self.key.encrypt(packet, buf.get_mut(..end).unwrap_or_default(), header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        self.key.decrypt(packet, header, payload)?;
        self.watch.on_decrypt(payload);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len() + self.watch.reserved.load(Relaxed)
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_is_found_behind_acknowledgements() {
        let token = [1, 2, 3, 4, 5, 6, 7, 8];
        let mut payload = vec![0x1e, 1, 3, 9, 0, 1, 0, 2, 2, 1, 2, 3, 0x1a];
        payload.extend(token);
        payload.extend([0; 9]);
        assert_eq!(challenge(&payload), Some(u64::from_be_bytes(token)));
        // Data of a stream may look like one.
        let mut stream = vec![8, 0, 0x1a];
        stream.extend(token);
        assert_eq!(challenge(&stream), None);
        for end in 0..13 {
            assert_eq!(challenge(&payload[..end]), None);
        }
    }

    #[test]
    fn token_proves_only_the_address_that_it_was_sent_to() {
        let watch = PathWatch::default();
        let (mut challenge, mut response) = (vec![0x1a], vec![0, 0x1b]);
        challenge.extend([7; 8]);
        response.extend([7; 8]);
        watch.on_encrypt(&challenge);
        watch.packets_made(Receiver::NewAddress);
        watch.on_decrypt(&response);
        assert!(!watch.is_proved(), "it is off");
        watch.start();
        watch.on_encrypt(&challenge);
        watch.packets_made(Receiver::Other);
        watch.on_decrypt(&response);
        assert!(!watch.is_proved());
        watch.on_encrypt(&challenge);
        watch.packets_made(Receiver::NewAddress);
        watch.on_decrypt(&response[..9]);
        assert!(!watch.is_proved());
        watch.on_decrypt(&response);
        assert!(watch.is_proved());
        watch.start();
        assert!(!watch.is_proved());
    }
}
