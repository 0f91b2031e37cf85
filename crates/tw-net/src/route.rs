//! The route to a peer, as the kernel knows it.

use std::io;
use std::net::SocketAddr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

/// MTU of the route to an address: the one of the interface, or a smaller one that the system has learned. Sends nothing, and never waits.
///
/// # Errors
/// There is no route, or no descriptor is left.
pub fn route_mtu(peer: SocketAddr) -> io::Result<u32> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    connect(&socket, &peer)?;
    Ok(if peer.is_ipv4() { sockopt::ip_mtu(&socket) } else { sockopt::ipv6_mtu(&socket) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_to_this_machine_has_the_mtu_of_loopback() {
        let text = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        let mtu: u32 = text.trim().parse().unwrap();
        // A packet of IPv4 is never larger.
        assert_eq!(route_mtu(([127, 0, 0, 1], 9).into()).unwrap(), mtu.min(65_535));
    }
}
