//! Address of a client: the one at which it has proved to receive, the one that it uses now, and the bytes that may leave for addresses
//! that are not validated (RFC 9000, sections 8.1 and 9.3).
//!
//! The engine exceeds the three times that are allowed: by a part of a datagram, by probes of the path's MTU, and by the answer to each
//! PATH_CHALLENGE from another address. So it is told how large its next packet may be, and every datagram is counted as it leaves.

use std::net::SocketAddr;

use crate::qlog::Migration;

/// Bytes for an address that is not validated, for each byte from it.
const AMPLIFICATION_MAX: u64 = 3;
/// Addresses of a connection that are not validated and whose bytes are counted.
pub(crate) const UNVALIDATED_ADDRESSES_MAX: usize = 4;
/// Room for a packet with an acknowledgement and a PATH_CHALLENGE, behind a connection ID of 20 bytes. A packet of a client takes at least 37
/// bytes, so its first one pays for it.
const PACKET_MIN: u64 = 72;
/// Size of the datagrams that every path carries (RFC 9000, section 14).
pub(crate) const DATAGRAM_MIN: usize = 1200;

/// Address of a client, as far as it is proved.
#[derive(Debug)]
pub(crate) struct PeerAddress {
    /// Address at which the client has proved to receive; its first one as long as it has proved none.
    validated: SocketAddr,
    /// Address that it uses now, if that is another one.
    candidate: Option<SocketAddr>,
    /// True as long as the client has proved no address.
    is_unproved: bool,
    /// True if the next datagram is the PATH_CHALLENGE for the address that the client has left.
    owes_old_challenge: bool,
    /// Allowances of addresses that are not validated, the one that was heard of last behind the others.
    allowances: Vec<Allowance>,
}

/// Bytes from and for an address that is not validated.
#[derive(Debug)]
struct Allowance {
    address: SocketAddr,
    received: u64,
    sent: u64,
}

/// Room for what the engine makes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendAllowance {
    /// Nothing may leave.
    Closed,
    /// One packet of at most this size, which is less than that of a datagram.
    Packet(usize),
    /// One datagram.
    Datagram,
    /// Any number of datagrams.
    Open,
}

impl PeerAddress {
    pub(crate) fn new(first: SocketAddr) -> Self {
        Self {
            validated: first,
            candidate: None,
            is_unproved: false,
            owes_old_challenge: false,
            allowances: Vec::new(),
        }
    }

    /// Notes that the client has not proved its address before the handshake, and the bytes that have come from it.
    pub(crate) fn set_unproved(&mut self, received: u64) {
        self.is_unproved = true;
        self.note_received(self.validated, received);
    }

    /// Notes that the handshake has proved the first address.
    pub(crate) fn prove_first(&mut self) {
        self.is_unproved = false;
        self.allowances = Vec::new();
    }

    /// Address at which the client has proved to receive; its first one as long as it has proved none.
    pub(crate) fn validated(&self) -> SocketAddr {
        self.validated
    }

    /// Address that the client uses now, if that is not validated.
    pub(crate) fn candidate(&self) -> Option<SocketAddr> {
        self.candidate
    }

    /// Address that the client uses now.
    fn current(&self) -> SocketAddr {
        self.candidate.unwrap_or(self.validated)
    }

    fn is_validated(&self, address: SocketAddr) -> bool {
        address == self.validated && !self.is_unproved
    }

    /// Returns true if the client has not used this address before.
    pub(crate) fn is_new(&self, address: SocketAddr) -> bool {
        address != self.validated && Some(address) != self.candidate
    }

    /// Notes where the client is now, in the view of the engine, and if the token for that address has come back.
    pub(crate) fn follow(&mut self, current: SocketAddr, is_proved: bool) -> Option<Migration> {
        if current == self.validated {
            self.candidate.take()?;
            self.owes_old_challenge = false;
            return Some(Migration::Abandoned);
        }
        if self.candidate != Some(current) {
            // The engine validates the address that the client had left first, once.
            self.owes_old_challenge |= self.candidate.is_none();
            self.candidate = Some(current);
            return Some(Migration::Started);
        }
        if !is_proved {
            return None;
        }
        (self.validated, self.candidate) = (current, None);
        self.owes_old_challenge = false;
        self.allowances.retain(|allowance| allowance.address != current);
        self.forget_if_empty();
        Some(Migration::Complete)
    }

    /// Counts a datagram from an address, if that is not validated.
    pub(crate) fn note_received(&mut self, address: SocketAddr, len: u64) {
        if self.is_validated(address) {
            return;
        }
        let known_value = self.allowances.iter().position(|allowance| allowance.address == address);
        let mut allowance = match known_value {
            Some(at) => self.allowances.remove(at),
            None => Allowance { address, received: 0, sent: 0 },
        };
        if self.allowances.len() >= UNVALIDATED_ADDRESSES_MAX {
            // A forgotten address begins anew: it gets no more bytes than it allows by what it sends from then on.
            let current = self.current();
            let oldest = self.allowances.iter().position(|one| one.address != current).unwrap_or(0);
            self.allowances.remove(oldest);
        }
        allowance.received = allowance.received.saturating_add(len);
        self.allowances.push(allowance);
    }

    /// Bytes that may leave for an address that is not validated.
    fn remaining(&self, address: SocketAddr) -> u64 {
        let known_allowance = self.allowances.iter().find(|allowance| allowance.address == address);
        known_allowance.map_or(0, Allowance::remaining)
    }

    /// Takes the bytes of a datagram that is about to leave. Returns false if it may not.
    pub(crate) fn take(&mut self, address: SocketAddr, len: u64) -> bool {
        if self.is_validated(address) {
            return true;
        }
        match self.allowances.iter_mut().find(|allowance| allowance.address == address) {
            Some(allowance) if allowance.remaining() >= len => {
                allowance.sent += len;
                true
            }
            _ => false,
        }
    }

    /// Room on a path whose datagrams have the size `mtu`.
    pub(crate) fn room(&mut self, mtu: impl FnOnce() -> usize) -> SendAllowance {
        if self.candidate.is_none() && !self.is_unproved {
            return SendAllowance::Open;
        }
        if std::mem::take(&mut self.owes_old_challenge) {
            return SendAllowance::Datagram;
        }
        let remaining = self.remaining(self.current());
        match usize::try_from(remaining).unwrap_or(usize::MAX) {
            remaining if remaining >= mtu() => SendAllowance::Datagram,
            // Packets of a handshake cannot be limited.
            _ if self.is_unproved || remaining < PACKET_MIN => SendAllowance::Closed,
            remaining => SendAllowance::Packet(remaining),
        }
    }

    /// Returns true if the client has sent from another address than its current one, for which no whole datagram may leave: the answer to a
    /// PATH_CHALLENGE has to be small.
    pub(crate) fn limits_responses(&self) -> bool {
        let current = self.current();
        let mut others = self.allowances.iter().filter(|allowance| allowance.address != current);
        others.any(|allowance| allowance.remaining() < DATAGRAM_MIN as u64)
    }

    /// Forgets addresses that the client does not use.
    pub(crate) fn shrink(&mut self) {
        let current = self.current();
        self.allowances.retain(|allowance| allowance.address == current);
        self.forget_if_empty();
    }

    fn forget_if_empty(&mut self) {
        if self.allowances.is_empty() {
            self.allowances = Vec::new();
        }
    }
}

impl Allowance {
    fn remaining(&self) -> u64 {
        self.received.saturating_mul(AMPLIFICATION_MAX).saturating_sub(self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: u8) -> SocketAddr {
        ([192, 0, 2, host], 443).into()
    }

    #[test]
    fn three_times_its_bytes_leave_for_an_address() {
        let mut peer = PeerAddress::new(address(1));
        assert_eq!(peer.room(|| 1200), SendAllowance::Open);
        assert!(peer.take(address(1), 1 << 40) && !peer.take(address(2), 1));
        peer.set_unproved(1000);
        assert_eq!(peer.room(|| 1200), SendAllowance::Datagram);
        assert!(peer.take(address(1), 2000) && !peer.take(address(1), 1001));
        // Bytes of another address do not count.
        peer.note_received(address(2), 5000);
        assert_eq!(peer.room(|| 1200), SendAllowance::Closed);
        assert!(peer.take(address(1), 1000) && !peer.take(address(1), 1));
        peer.prove_first();
        assert_eq!(peer.room(|| 1200), SendAllowance::Open);
        assert!(!peer.take(address(2), 1));
    }

    #[test]
    fn moved_client_gets_a_small_packet_first() {
        let mut peer = PeerAddress::new(address(1));
        peer.note_received(address(2), 46);
        assert_eq!(peer.follow(address(2), false), Some(Migration::Started));
        assert_eq!(peer.room(|| 1200), SendAllowance::Datagram, "the old address is validated");
        assert_eq!(peer.room(|| 1200), SendAllowance::Packet(138));
        assert!(peer.take(address(2), 100));
        assert_eq!(peer.room(|| 1200), SendAllowance::Closed);
        assert_eq!(peer.follow(address(2), true), Some(Migration::Complete));
        assert_eq!((peer.room(|| 1200), peer.validated()), (SendAllowance::Open, address(2)));
        // The way back has to be proved, too.
        assert_eq!(peer.follow(address(1), true), Some(Migration::Started));
        assert!(!peer.take(address(1), 1) && peer.take(address(2), 1));
        assert_eq!(peer.follow(address(2), false), Some(Migration::Abandoned));
    }

    #[test]
    fn many_addresses_are_forgotten_but_not_the_current_one() {
        let mut peer = PeerAddress::new(address(1));
        peer.note_received(address(2), 100);
        peer.follow(address(2), false);
        for host in 3..100 {
            peer.note_received(address(host), 1);
            assert!(peer.allowances.len() <= UNVALIDATED_ADDRESSES_MAX);
        }
        assert!(!peer.take(address(3), 1) && peer.take(address(99), 3));
        assert!(peer.take(address(2), 300) && !peer.take(address(2), 1));
    }
}
