//! Bound of the search for the largest datagram of a path (RFC 8899, RFC 9000, section 14.3).
//!
//! The engine searches between the size that every path carries and one bound, by halves. A bound that is far too high costs: probe after
//! probe is lost before the first one arrives, and a large one takes the whole congestion window meanwhile. So each connection has its
//! own, from what the system knows of the route to the client. The engine knows one for all connections, but respects what a client
//! takes; so it reads a smaller number in the client's parameters.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::config::DATAGRAM_SIZE_MAX;
use crate::varint::{read_varint, write_varint};

/// Largest datagram on Ethernet, with either version of IP.
pub(crate) const ETHERNET_SIZE: u16 = 1452;
/// MTU of Ethernet without jumbo frames.
const ETHERNET_MTU: u32 = 1500;
/// Headers of IP and UDP.
const IPV4_HEADERS: u32 = 28;
const IPV6_HEADERS: u32 = 48;
/// Transport parameter `max_udp_payload_size`.
const MAX_UDP_PAYLOAD_SIZE: u64 = 0x03;

/// Bound for a client. `route_mtu` tells the MTU of the route to an address, and is only asked where it may be a large one.
pub(crate) fn datagram_size_max(peer: SocketAddr, route_mtu: impl FnOnce(SocketAddr) -> Option<u32>) -> u16 {
    let ip = peer.ip().to_canonical();
    if !is_near(ip) {
        return ETHERNET_SIZE;
    }
    let peer = if ip.is_ipv4() { SocketAddr::new(ip, peer.port()) } else { peer };
    let mtu = route_mtu(peer).unwrap_or(ETHERNET_MTU);
    if mtu <= ETHERNET_MTU {
        return ETHERNET_SIZE;
    }
    let headers = if ip.is_ipv4() { IPV4_HEADERS } else { IPV6_HEADERS };
    u16::try_from(mtu - headers).unwrap_or(u16::MAX).clamp(ETHERNET_SIZE, DATAGRAM_SIZE_MAX)
}

/// True for addresses of this machine and of private networks. The paths of the Internet carry no jumbo frames, also where the route
/// begins with a network that does.
fn is_near(ip: IpAddr) -> bool {
    /// Addresses between a provider and its customers (RFC 6598), which clouds use, too.
    fn is_shared(ip: Ipv4Addr) -> bool {
        matches!(ip.octets(), [100, 64..=127, ..])
    }
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_shared(ip),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Transport parameters of a client, as if it took datagrams of `size_max` bytes at most. Those that are not valid stay so.
pub(crate) fn with_size_max(params: &[u8], size_max: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(params.len() + 8);
    let put = |out: &mut Vec<u8>, size: u64| {
        let mut value = Vec::with_capacity(8);
        write_varint(&mut value, size);
        write_varint(out, MAX_UDP_PAYLOAD_SIZE);
        write_varint(out, value.len() as u64);
        out.extend_from_slice(&value);
    };
    let (mut rest, mut is_told) = (params, false);
    while let Some((id, value, behind)) = parameter(rest) {
        let taken = if id == MAX_UDP_PAYLOAD_SIZE { number(value) } else { None };
        is_told |= id == MAX_UDP_PAYLOAD_SIZE;
        match taken {
            Some(taken) => put(&mut out, taken.min(size_max.into())),
            None => out.extend_from_slice(rest.get(..rest.len() - behind.len()).unwrap_or_default()),
        }
        rest = behind;
    }
    if !is_told {
        put(&mut out, size_max.into());
    }
    out.extend_from_slice(rest);
    out
}

/// The first parameter, its value, and what is behind it.
fn parameter(bytes: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let mut rest = bytes;
    let (id, len) = (read_varint(&mut rest)?, read_varint(&mut rest)?);
    let (value, behind) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    Some((id, value, behind))
}

/// A number that takes all bytes of a value.
fn number(mut value: &[u8]) -> Option<u64> {
    read_varint(&mut value).filter(|_| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(peer: &str, mtu: Option<u32>) -> u16 {
        datagram_size_max(SocketAddr::new(peer.parse().unwrap(), 443), |_| mtu)
    }

    #[test]
    fn bound_is_that_of_the_route_but_on_the_internet() {
        for (peer, mtu, size) in [
            ("127.0.0.1", 65_535, DATAGRAM_SIZE_MAX),
            ("::1", 65_536, DATAGRAM_SIZE_MAX),
            ("::ffff:10.1.2.3", 9000, 8972),
            ("10.1.2.3", 9000, 8972),
            ("100.64.0.1", 8896, 8868),
            ("fd00::1", 9000, 8952),
            ("192.168.1.1", 1500, 1452),
            ("192.168.1.1", 1400, 1452),
            ("192.168.1.1", 1501, 1473),
        ] {
            assert_eq!(bound(peer, Some(mtu)), size, "{peer} {mtu}");
        }
        assert_eq!(bound("10.1.2.3", None), 1452);
        for peer in ["8.8.8.8", "100.63.0.1", "100.128.0.1", "2606:4700::1"] {
            let asked = |_| panic!("the route matters to no bound");
            assert_eq!(datagram_size_max(SocketAddr::new(peer.parse().unwrap(), 443), asked), 1452);
        }
    }

    #[test]
    fn smaller_size_of_the_client_stays() {
        let (idle, small, large) =
            ([0x01, 2, 0x47, 0xd0], [0x03, 2, 0x45, 0xdc], [0x03, 4, 0x80, 0, 0xff, 0xf7]);
        assert_eq!(with_size_max(&[idle, small].concat(), 9000), [idle, small].concat());
        let bounded = [0x03, 2, 0x63, 0x28];
        assert_eq!(with_size_max(&[&large[..], &idle].concat(), 9000), [bounded, idle].concat());
        assert_eq!(with_size_max(&idle, 9000), [idle, bounded].concat());
        assert_eq!(with_size_max(&[], 9000), bounded);
        // Invalid parameters are left to the engine: one that occurs twice, one that is too small, bytes behind a
        // number, a truncated value.
        assert_eq!(with_size_max(&[large, large].concat(), 9000), [bounded, bounded].concat());
        for invalid in [&[0x03, 1, 0x07][..], &[0x03, 2, 0x07, 0x07], &[0x03, 0]] {
            assert_eq!(with_size_max(invalid, 9000), invalid);
        }
        assert!(with_size_max(&[0x01, 9, 1], 9000).ends_with(&[0x01, 9, 1]));
    }
}
