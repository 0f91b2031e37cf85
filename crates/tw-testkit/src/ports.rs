//! Ports for a server under test that nobody else takes between choosing and binding.
//!
//! "Bind port 0, read the number, close, start the server" is a race: the kernel may give the number to any other
//! socket in between. Here a port is safe for three reasons. It lies below the range the kernel picks from by itself
//! (`ip_local_port_range`), so no outgoing connection and no `bind` to port 0 ever gets it. It is reserved among all
//! tests of all processes by a listening Unix socket with an abstract name that holds the number; the kernel frees
//! the name when the process ends, however it ends. And nobody listens on it when it is reserved.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// First port to hand out; below are the services a developer's machine may run.
const FIRST: u16 = 12_000;
/// Linux's default lower end of `ip_local_port_range`.
const LOCAL_RANGE_DEFAULT: u16 = 32_768;

/// A port that belongs to the holder of this value, among all users of this module on the machine.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    /// Reserves a port that nothing is bound to, TCP or UDP, on any local address.
    ///
    /// # Errors
    /// `AddrNotAvailable` if every port is taken.
    pub fn reserve() -> io::Result<Self> {
        let end = local_range_start().unwrap_or(LOCAL_RANGE_DEFAULT).max(FIRST + 1_000);
        let count = end - FIRST;
        // Processes start their search at different places, so claims rarely collide.
        let start = u16::try_from(std::process::id() * 61 % u32::from(count)).unwrap_or(0);
        (0..count)
            .map(|step| FIRST + (start + step) % count)
            .find_map(Self::claim)
            .ok_or_else(|| io::Error::new(io::ErrorKind::AddrNotAvailable, "no free port"))
    }

    fn claim(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("tailwater-test-port-{number}")).ok()?;
        let claim = UnixListener::bind_addr(&name).ok()?;
        // The standard library sets SO_REUSEADDR: connections in TIME_WAIT do not count, a listener does.
        let free = TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)).is_ok()
            && UdpSocket::bind((Ipv4Addr::UNSPECIFIED, number)).is_ok();
        free.then_some(Self { number, _claim: claim })
    }

    /// The number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Whether some socket of this machine listens on a TCP port. Looks, and connects nowhere.
#[must_use]
pub fn listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .any(|table| listens_in(&table, port))
}

/// Searches a table in the format of `/proc/net/tcp`: `sl local_address rem_address st …`, in hexadecimal.
fn listens_in(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    table.lines().skip(1).any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let local = words.next().and_then(|address| address.rsplit_once(':'));
        let state = words.nth(1);
        state == Some(LISTEN) && local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port))
    })
}

fn local_range_start() -> Option<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    range.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_not_handed_out_again_until_dropped() {
        let a = Port::reserve().unwrap();
        let b = Port::reserve().unwrap();
        assert_ne!(a.number(), b.number());
        assert!(Port::claim(a.number()).is_none());

        let number = a.number();
        drop(a);
        assert!(Port::claim(number).is_some());
    }

    #[test]
    fn a_listener_is_seen_and_its_end_too() {
        let port = Port::reserve().unwrap();
        assert!(!listening(port.number()));

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).unwrap();
        assert!(listening(port.number()));

        drop(listener);
        assert!(!listening(port.number()));
    }

    #[test]
    fn the_table_of_the_kernel_is_read_by_port_and_state() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
            0: 0100007F:2EE0 00000000:0000 0A 00000000:00000000 00:00000000\n   \
            1: 0100007F:2EE1 0100007F:9C40 01 00000000:00000000 00:00000000\n";
        for (port, expected) in [(12_000, true), (12_001, false), (12_002, false)] {
            assert_eq!(listens_in(table, port), expected, "port {port}");
        }
    }
}
