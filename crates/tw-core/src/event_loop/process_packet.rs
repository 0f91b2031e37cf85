//! Packets of [`ProcessLinks`](super::ProcessLinks): one datagram each, for a loop of another process.
//!
//! ```text
//! version · number of the loop · mark · listening address · sender · local address · content
//! ```
//! An address is its family (4, 6; 0 for none), its octets, and, unless it is the local one, its port and for IPv6 its scope.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use tw_net::Addr;

use super::datagram_queues::PassedDatagram;

/// Largest datagram that is passed to another process, bytes. QUIC receives none of more than 1,472.
pub(super) const LINKED_SIZE_MAX: usize = 2048;
/// First byte of a packet.
const VERSION: u8 = 1;
/// Bytes in front of the content at most: version, loop, mark, two addresses with ports, one without.
const HEAD_SIZE_MAX: usize = 3 + 2 * (1 + 16 + 2 + 4) + 1 + 16;
/// Largest packet, bytes.
pub const PACKET_SIZE_MAX: usize = HEAD_SIZE_MAX + LINKED_SIZE_MAX;

/// Front of a packet, in front of the content of its datagram.
pub struct PacketHead {
    bytes: [u8; HEAD_SIZE_MAX],
    len: usize,
}

impl PacketHead {
    /// Head of a datagram for the loop with this number; `None` if its addresses are not of the Internet, or it is too large.
    pub fn of(number: u8, datagram: &PassedDatagram) -> Option<Self> {
        if datagram.bytes.len() > LINKED_SIZE_MAX {
            return None;
        }
        let peer = SocketAddr::try_from(datagram.peer.clone()).ok()?;
        let listen = datagram.listen.inet()?;
        let mut head = Self { bytes: [0; HEAD_SIZE_MAX], len: 0 };
        head.push(&[VERSION, number, datagram.ecn]);
        head.push_address(listen);
        head.push_address(peer);
        head.push_ip(datagram.local);
        Some(head)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes.iter_mut().skip(self.len);
        room.zip(bytes).for_each(|(to, from)| *to = *from);
        self.len += bytes.len();
    }

    fn push_ip(&mut self, ip: Option<IpAddr>) {
        match ip {
            None => self.push(&[0]),
            Some(IpAddr::V4(ip)) => {
                self.push(&[4]);
                self.push(&ip.octets());
            }
            Some(IpAddr::V6(ip)) => {
                self.push(&[6]);
                self.push(&ip.octets());
            }
        }
    }

    fn push_address(&mut self, address: SocketAddr) {
        self.push_ip(Some(address.ip()));
        self.push(&address.port().to_be_bytes());
        if let SocketAddr::V6(address) = address {
            self.push(&address.scope_id().to_be_bytes());
        }
    }
}

/// Reads a packet: the number of a loop and a datagram for it. `None` if it is not one.
pub fn read_packet(mut packet: &[u8]) -> Option<(u8, PassedDatagram)> {
    let [VERSION, number, ecn] = *take::<3>(&mut packet)? else { return None };
    let listen = take_address(&mut packet)?;
    let peer = take_address(&mut packet)?;
    let local = match take::<1>(&mut packet)? {
        [0] => None,
        [family] => Some(take_ip(*family, &mut packet)?),
    };
    let is_whole = packet.len() <= LINKED_SIZE_MAX;
    is_whole.then(|| (number, PassedDatagram::new(packet, peer, local, Addr::Inet(listen), ecn)))
}

fn take<'a, const N: usize>(packet: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = packet.split_first_chunk()?;
    *packet = rest;
    Some(taken)
}

fn take_ip(family: u8, packet: &mut &[u8]) -> Option<IpAddr> {
    match family {
        4 => Some(Ipv4Addr::from(*take::<4>(packet)?).into()),
        6 => Some(Ipv6Addr::from(*take::<16>(packet)?).into()),
        _ => None,
    }
}

fn take_address(packet: &mut &[u8]) -> Option<SocketAddr> {
    let [family] = *take::<1>(packet)?;
    let ip = take_ip(family, packet)?;
    let port = u16::from_be_bytes(*take::<2>(packet)?);
    Some(match ip {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, u32::from_be_bytes(*take::<4>(packet)?)).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(listen: &str, peer: &str, local: Option<&str>, bytes: &[u8]) -> PassedDatagram {
        let local = local.map(|local| local.parse().unwrap());
        PassedDatagram::new(bytes, peer.parse().unwrap(), local, Addr::Inet(listen.parse().unwrap()), 2)
    }

    fn packet(number: u8, datagram: &PassedDatagram) -> Vec<u8> {
        [PacketHead::of(number, datagram).unwrap().bytes(), &datagram.bytes].concat()
    }

    #[test]
    fn packet_has_what_the_datagram_had() {
        for (listen, peer, local) in [
            ("0.0.0.0:443", "192.0.2.1:50000", Some("192.0.2.9")),
            ("127.0.0.1:1", "127.0.0.1:65535", None),
            ("[::]:443", "[2001:db8::1]:2", Some("2001:db8::2")),
            ("[::]:443", "[fe80::1%3]:2", Some("fe80::2")),
        ] {
            for bytes in [&b""[..], b"x", &[7; LINKED_SIZE_MAX]] {
                let sent = datagram(listen, peer, local, bytes);
                let packet = packet(200, &sent);
                assert!(packet.len() <= PACKET_SIZE_MAX);
                let (number, read) = read_packet(&packet).unwrap();
                assert_eq!((number, read.ecn, &read.bytes[..]), (200, 2, bytes));
                let peer = SocketAddr::try_from(read.peer.clone()).unwrap();
                let expected = SocketAddr::try_from(sent.peer.clone()).unwrap();
                assert_eq!((peer, read.local, read.listen), (expected, sent.local, sent.listen));
            }
        }
    }

    #[test]
    fn cut_and_changed_packets_are_refused_or_read() {
        let whole = packet(1, &datagram("[::]:443", "192.0.2.1:50000", Some("2001:db8::2"), b""));
        for len in 0..whole.len() {
            assert!(read_packet(&whole[..len]).is_none(), "{len}");
        }
        for at in 0..whole.len() {
            for value in 0..=u8::MAX {
                let mut changed = whole.clone();
                changed[at] = value;
                // Some of these are packets of another datagram.
                let _ = read_packet(&changed);
            }
        }
        let mut other = whole.clone();
        other[0] = VERSION + 1;
        assert!(read_packet(&other).is_none(), "another version");
        // The socket truncates packets larger than the buffer, and the rest would be taken for the whole.
        let longer = [&whole[..], &[0; LINKED_SIZE_MAX + 1]].concat();
        assert!(read_packet(&longer).is_none(), "too large");
    }

    #[test]
    fn datagram_without_ports_or_too_large_is_not_passed() {
        let mut sent = datagram("0.0.0.0:443", "192.0.2.1:50000", None, b"x");
        sent.listen = Addr::Unix(None);
        assert!(PacketHead::of(1, &sent).is_none());
        let large = datagram("0.0.0.0:443", "192.0.2.1:50000", None, &[0; LINKED_SIZE_MAX + 1]);
        assert!(PacketHead::of(1, &large).is_none());
    }
}
