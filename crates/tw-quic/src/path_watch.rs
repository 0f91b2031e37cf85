//! Proof that a client which has moved receives at its new address (RFC 9000, section 8.2). The engine validates paths, too, but does not
//! tell when; so the token of its PATH_CHALLENGE is seen where packets are encrypted, and the PATH_RESPONSE where they are decrypted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::BytesMut;
use engine::crypto::{CryptoError, PacketKey};
use quinn_proto as engine;

use crate::tls::read_varint;

const PATH_CHALLENGE: u64 = 0x1a;
const PATH_RESPONSE: u8 = 0x1b;

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
        // Nobody who has not received the token can write it, so it does not matter where it stands.
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
        self.watch.on_encrypt(buf.get(header_len..).unwrap_or_default());
        self.key.encrypt(packet, buf, header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        self.key.decrypt(packet, header, payload)?;
        self.watch.on_decrypt(payload);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
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
