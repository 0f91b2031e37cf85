//! Ports for a server under test that no other process takes between choosing and binding.
//!
//! "Bind port 0, read the number, close, start the server" is a race: the kernel may give the number to any other
//! socket in between. Here a port is safe for three reasons. It lies below the kernel's ephemeral range
//! (`ip_local_port_range`), so no outgoing connection and no `bind` to port 0 ever gets it. It is reserved among all
//! tests of all processes by a listening Unix socket with an abstract name that contains the number; the kernel frees
//! the name when the process ends, in whatever way. And it is unused at the time of the reservation.
//!
//! The kernel's tables show whether it is unused; a trial by binding would be wrong: a thread that starts a process
//! at the same moment gives it, for an instant, a copy of every socket, and the server would find its port taken by
//! the trial.

mod diag;

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::net::AddressFamily;

/// First port to hand out; below are the services a developer's machine may run.
const FIRST: u16 = 12_000;
/// Linux's default lower end of `ip_local_port_range`.
const LOCAL_RANGE_DEFAULT: u16 = 32_768;

/// Port reserved for the holder of this value, among all users of this module on the machine.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    /// Reserves a port without any TCP or UDP socket, on any local address.
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
        (!in_use(number)).then_some(Self { number, _claim: claim })
    }

    /// The number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Returns `true` if a socket of this machine serves a port: a TCP listener, or a UDP socket bound to it.
#[must_use]
pub fn in_use(port: u16) -> bool {
    listening(port) || in_tables(&["/proc/net/udp", "/proc/net/udp6"], port, None)
}

/// Returns `true` if a socket of this machine listens on a TCP port. Makes no connection.
#[must_use]
pub fn listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let listeners = [AddressFamily::INET, AddressFamily::INET6].map(diag::listeners);
    if let [Ok(v4), Ok(v6)] = listeners {
        return v4.contains(&port) || v6.contains(&port);
    }
    in_tables(&["/proc/net/tcp", "/proc/net/tcp6"], port, Some(LISTEN))
}

fn in_tables(tables: &[&str], port: u16, state: Option<&str>) -> bool {
    tables.iter().filter_map(|path| fs::read_to_string(path).ok()).any(|table| in_table(&table, port, state))
}

/// Searches a table in the format of `/proc/net/tcp`: `sl local_address rem_address st …`, in hexadecimal.
fn in_table(table: &str, port: u16, state: Option<&str>) -> bool {
    table.lines().skip(1).any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let local = words.next().and_then(|address| address.rsplit_once(':'));
        let text = words.nth(1);
        local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port))
            && (state.is_none() || state == text)
    })
}

fn local_range_start() -> Option<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    range.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::wait;

    #[test]
    fn a_reserved_port_is_not_handed_out_again_until_dropped() {
        let a = Port::reserve().unwrap();
        let b = Port::reserve().unwrap();
        assert_ne!(a.number(), b.number());
        assert!(Port::claim(a.number()).is_none());

        let number = a.number();
        drop(a);
        // Another test may have the port in between.
        assert!(wait::until(wait::TIMEOUT, || Port::claim(number).is_some()));
    }

    #[test]
    fn a_listener_is_seen_and_its_end_too() {
        let port = Port::reserve().unwrap();
        assert!(!listening(port.number()));

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).unwrap();
        assert!(listening(port.number()));

        drop(listener);
        // A process that another test starts at this moment has a copy of it until its own program begins.
        assert!(wait::until(wait::TIMEOUT, || !listening(port.number())));
    }

    #[test]
    fn the_table_of_the_kernel_is_read_by_port_and_state() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
            0: 0100007F:2EE0 00000000:0000 0A 00000000:00000000 00:00000000\n   \
            1: 0100007F:2EE1 0100007F:9C40 01 00000000:00000000 00:00000000\n";
        for (port, state, expected) in [
            (12_000, Some("0A"), true),
            (12_001, Some("0A"), false),
            (12_001, None, true),
            (12_002, None, false),
        ] {
            assert_eq!(in_table(table, port, state), expected, "port {port} {state:?}");
        }
    }
}
