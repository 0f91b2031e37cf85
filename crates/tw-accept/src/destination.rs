//! Listening address that a client comes to, for explanations (`--explain`): found by a host and a port, without a connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tw_net::Addr;

/// Index of the listening address that a client of this host and port comes to: the host's own, else that of all addresses. IPv6
/// stands in brackets.
pub fn find_destination<'a>(
    addresses: impl Iterator<Item = &'a Addr> + Clone,
    host: &[u8],
    port: u16,
) -> Option<usize> {
    let host = literal(host);
    let exact = |addr: SocketAddr| host == Some(addr.ip());
    let every = |addr: SocketAddr| {
        addr.ip().is_unspecified() && host.is_none_or(|host| host.is_ipv4() == addr.is_ipv4())
    };
    let inet = |addr: &Addr| addr.inet().filter(|addr| addr.port() == port);
    let position =
        |fits: &dyn Fn(SocketAddr) -> bool| addresses.clone().position(|addr| inet(addr).is_some_and(fits));
    // Of a name it is not known where it leads: any address will do.
    position(&exact).or_else(|| position(&every)).or_else(|| match host {
        None => position(&|_| true),
        Some(_) => None,
    })
}

/// Describes that no server listens on a port, and where servers do.
pub fn no_destination<'a>(addresses: impl Iterator<Item = &'a Addr>, port: u16) -> String {
    let known_names: Vec<_> = addresses.map(|addr| addr.to_string()).collect();
    let name = if known_names.is_empty() { "nothing".to_owned() } else { known_names.join(", ") };
    format!("no server listens on port {port} (listening: {name})")
}

/// The address that a host is, if it is no name.
pub fn literal(host: &[u8]) -> Option<IpAddr> {
    let host = std::str::from_utf8(host).ok()?;
    match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

/// Address that a client of this host connects to, by the listening address that takes it.
pub fn local_address(listen: &Addr, host: &[u8]) -> Addr {
    match listen.inet() {
        Some(addr) if addr.ip().is_unspecified() => {
            let ip = literal(host).unwrap_or(if addr.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                Ipv6Addr::LOCALHOST.into()
            });
            Addr::Inet(SocketAddr::new(ip, addr.port()))
        }
        _ => listen.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_come_to_the_most_specific_address() {
        let texts = ["127.0.0.1:80", "0.0.0.0:80", "[::]:80", "127.0.0.1:81", "[::1]:82"];
        let addresses = texts.map(|text| Addr::Inet(text.parse().unwrap()));
        for (host, port, expected) in [
            ("127.0.0.1", 80, Some(0)),
            ("127.0.0.2", 80, Some(1)),
            ("[::1]", 80, Some(2)),
            ("a.example", 80, Some(1)),
            ("a.example", 81, Some(3)),
            ("127.0.0.2", 81, None),
            ("[::1]", 82, Some(4)),
            ("a.example", 83, None),
        ] {
            assert_eq!(find_destination(addresses.iter(), host.as_bytes(), port), expected, "{host}:{port}");
        }
        assert_eq!(no_destination([].iter(), 1), "no server listens on port 1 (listening: nothing)");
    }
}
