//! The address of a `listen` directive: `80`, `*:8000`, `192.0.2.1`, `[::]:80`, `localhost:8000-8005`, `unix:/path`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

use crate::Addr;

/// Longest path of a Unix socket: what fits into `sun_path` with its terminating zero.
const UNIX_PATH_MAX: usize = 107;

/// Why an address is refused, in nginx's words; the caller adds `in "…" of the "listen" directive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressError {
    /// Not a number from 1 to 65535.
    InvalidPort,
    /// The first port is above the last.
    InvalidPortRange,
    /// A slash, a missing bracket, or something after the bracket that is no port.
    InvalidHost,
    /// Nothing before the port.
    NoHost,
    /// The text in brackets is no IPv6 address.
    InvalidIpv6,
    /// `unix:` with nothing after it.
    NoPath,
    /// A Unix socket path over 107 bytes.
    PathTooLong,
    /// A Unix socket path with a zero byte.
    InvalidPath,
    /// The name has no address.
    HostNotFound,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidPort => "invalid port",
            Self::InvalidPortRange => "invalid port range",
            Self::InvalidHost => "invalid host",
            Self::NoHost => "no host",
            Self::InvalidIpv6 => "invalid IPv6 address",
            Self::NoPath => "no path in the unix domain socket",
            Self::PathTooLong => "too long path in the unix domain socket",
            Self::InvalidPath => "invalid path in the unix domain socket",
            Self::HostNotFound => "host not found",
        })
    }
}

impl std::error::Error for AddressError {}

/// Reads the address of a `listen` directive into the addresses it means: one, one per port of a range, or all of a
/// host name. Without a port it is `default_port`.
///
/// A literal address never asks the resolver. A host name does and may wait for it: at configuration time only.
pub fn parse_listen(text: &str, default_port: u16) -> Result<Vec<Addr>, AddressError> {
    if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("unix:")) {
        return unix(&text[5..]).map(|addr| vec![addr]);
    }
    let (hosts, ports) = match text.strip_prefix('[') {
        Some(rest) => ipv6(rest, default_port)?,
        None => ipv4_or_name(text, default_port)?,
    };
    let mut addrs = Vec::new();
    for port in ports {
        for host in &hosts {
            let addr = Addr::Inet(SocketAddr::new(*host, port));
            // A name in /etc/hosts may give the same address twice.
            if !addrs.contains(&addr) {
                addrs.push(addr);
            }
        }
    }
    Ok(addrs)
}

/// Reads the address of a server to send to, as `syslog:server=` has it: `host`, `host:port`, `[::1]:port` or
/// `unix:path`. Of a name's addresses it takes the first; a name may wait, so at configuration time only.
pub fn parse_server(text: &str, default_port: u16) -> Result<Addr, AddressError> {
    if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("unix:")) {
        return unix(&text[5..]);
    }
    let (hosts, ports) = match text.strip_prefix('[') {
        Some(rest) => ipv6(rest, default_port)?,
        // A name may look like a port, or be a star; both are asked of the resolver.
        None if !text.contains(':') => (name(text)?, default_port..=default_port),
        None if text.starts_with("*:") => return Err(AddressError::HostNotFound),
        None => ipv4_or_name(text, default_port)?,
    };
    if ports.start() != ports.end() {
        return Err(AddressError::InvalidPort);
    }
    let host = hosts.first().ok_or(AddressError::HostNotFound)?;
    Ok(Addr::Inet(SocketAddr::new(*host, *ports.start())))
}

type Ports = std::ops::RangeInclusive<u16>;

fn unix(path: &str) -> Result<Addr, AddressError> {
    // DIFF(nginx): the kernel ends the path there, and a value of a client that begins an address would choose any socket of the
    // machine, whatever is configured behind it. nginx connects.
    if path.contains('\0') {
        return Err(AddressError::InvalidPath);
    }
    match path.len() {
        0 => Err(AddressError::NoPath),
        1..=UNIX_PATH_MAX => Ok(Addr::Unix(Some(Path::new(path).into()))),
        _ => Err(AddressError::PathTooLong),
    }
}

/// `text` is what follows the opening bracket.
fn ipv6(text: &str, default_port: u16) -> Result<(Vec<IpAddr>, Ports), AddressError> {
    let (host, rest) = text.split_once(']').ok_or(AddressError::InvalidHost)?;
    let ports = match rest.strip_prefix(':') {
        _ if rest.contains('/') => return Err(AddressError::InvalidHost),
        Some(ports) => parse_ports(ports)?,
        None if rest.is_empty() => default_port..=default_port,
        None => return Err(AddressError::InvalidHost),
    };
    if host.is_empty() {
        return Err(AddressError::NoHost);
    }
    let host: Ipv6Addr = host.parse().map_err(|_| AddressError::InvalidIpv6)?;
    Ok((vec![host.into()], ports))
}

fn ipv4_or_name(text: &str, default_port: u16) -> Result<(Vec<IpAddr>, Ports), AddressError> {
    if text.contains(['/', '?']) {
        return Err(AddressError::InvalidHost);
    }
    let (host, ports) = match text.split_once(':') {
        Some((host, ports)) => (host, parse_ports(ports)?),
        None if looks_like_ports(text) => ("*", parse_ports(text)?),
        None => (text, default_port..=default_port),
    };
    if host.is_empty() {
        return Err(AddressError::NoHost);
    }
    if host == "*" {
        return Ok((vec![Ipv4Addr::UNSPECIFIED.into()], ports));
    }
    Ok((name(host)?, ports))
}

/// The addresses of a name, or of an IPv4 address.
fn name(host: &str) -> Result<Vec<IpAddr>, AddressError> {
    if host.contains(['/', '?']) {
        return Err(AddressError::InvalidHost);
    }
    if host.is_empty() {
        return Err(AddressError::NoHost);
    }
    if let Ok(host) = host.parse::<Ipv4Addr>() {
        return Ok(vec![host.into()]);
    }
    let address = (host, 0).to_socket_addrs().map_err(|_| AddressError::HostNotFound)?;
    Ok(address.map(|addr| addr.ip()).collect())
}

/// Returns true if a text without a colon means ports and not a host: `80`, `8000-8005`, but not `web-1`.
fn looks_like_ports(text: &str) -> bool {
    let (first, last) = text.split_once('-').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    digits(first) && digits(last)
}

fn parse_ports(text: &str) -> Result<Ports, AddressError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let first = parse_port(first)?;
    let last = parse_port(last)?;
    if first > last { Err(AddressError::InvalidPortRange) } else { Ok(first..=last) }
}

fn parse_port(text: &str) -> Result<u16, AddressError> {
    // `u16::from_str` alone would take a plus sign.
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(AddressError::InvalidPort);
    }
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(AddressError::InvalidPort),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers() {
        for (text, expected) in [
            ("192.0.2.1", Ok("192.0.2.1:514")),
            ("192.0.2.1:99", Ok("192.0.2.1:99")),
            ("[::1]", Ok("[::1]:514")),
            ("[::1]:99", Ok("[::1]:99")),
            ("unix:/dev/log", Ok("unix:/dev/log")),
            ("192.0.2.1:1-2", Err(AddressError::InvalidPort)),
            ("192.0.2.1:65536", Err(AddressError::InvalidPort)),
            ("a/b", Err(AddressError::InvalidHost)),
            ("", Err(AddressError::NoHost)),
            (":514", Err(AddressError::NoHost)),
            ("*:514", Err(AddressError::HostNotFound)),
            ("[::x]:514", Err(AddressError::InvalidIpv6)),
            ("unix:", Err(AddressError::NoPath)),
        ] {
            let read = parse_server(text, 514).map(|addr| addr.to_string());
            assert_eq!(read, expected.map(str::to_owned), "{text}");
        }
    }

    #[test]
    fn listen_addresses() {
        let cases: &[(&str, Result<&[&str], AddressError>)] = &[
            ("80", Ok(&["0.0.0.0:80"])),
            ("*:8000", Ok(&["0.0.0.0:8000"])),
            ("*", Ok(&["0.0.0.0:80"])),
            ("192.0.2.1", Ok(&["192.0.2.1:80"])),
            ("192.0.2.1:8080", Ok(&["192.0.2.1:8080"])),
            ("[::]:80", Ok(&["[::]:80"])),
            ("[::1]", Ok(&["[::1]:80"])),
            ("[2001:db8::1]:443", Ok(&["[2001:db8::1]:443"])),
            ("8000-8002", Ok(&["0.0.0.0:8000", "0.0.0.0:8001", "0.0.0.0:8002"])),
            ("127.0.0.1:8000-8001", Ok(&["127.0.0.1:8000", "127.0.0.1:8001"])),
            ("[::1]:65534-65535", Ok(&["[::1]:65534", "[::1]:65535"])),
            ("unix:/run/tailwater.sock", Ok(&["unix:/run/tailwater.sock"])),
            ("UNIX:relative", Ok(&["unix:relative"])),
            ("0", Err(AddressError::InvalidPort)),
            ("65536", Err(AddressError::InvalidPort)),
            ("99999999999999999999", Err(AddressError::InvalidPort)),
            ("127.0.0.1:", Err(AddressError::InvalidPort)),
            ("127.0.0.1:+80", Err(AddressError::InvalidPort)),
            ("127.0.0.1:80:80", Err(AddressError::InvalidPort)),
            ("127.0.0.1:http", Err(AddressError::InvalidPort)),
            ("8005-8000", Err(AddressError::InvalidPortRange)),
            ("127.0.0.1:8000-", Err(AddressError::InvalidPort)),
            ("127.0.0.1:0-5", Err(AddressError::InvalidPort)),
            (":80", Err(AddressError::NoHost)),
            ("", Err(AddressError::NoHost)),
            ("127.0.0.1/24", Err(AddressError::InvalidHost)),
            ("host?x", Err(AddressError::InvalidHost)),
            ("[::1", Err(AddressError::InvalidHost)),
            ("[::1]80", Err(AddressError::InvalidHost)),
            ("[::1]:80/x", Err(AddressError::InvalidHost)),
            ("[]:80", Err(AddressError::NoHost)),
            ("[127.0.0.1]:80", Err(AddressError::InvalidIpv6)),
            ("[::g]:80", Err(AddressError::InvalidIpv6)),
            ("unix:", Err(AddressError::NoPath)),
            ("unix:/run/a.sock\0:443", Err(AddressError::InvalidPath)),
            ("unix:\0a", Err(AddressError::InvalidPath)),
        ];
        for (text, expected) in cases {
            let got = parse_listen(text, 80);
            let got = got.map(|addrs| addrs.iter().map(Addr::to_string).collect::<Vec<_>>());
            assert_eq!(got, expected.map(|texts| texts.iter().map(|t| t.to_string()).collect()), "{text}");
        }
    }

    #[test]
    fn a_unix_path_must_fit_the_kernels_structure() {
        let path = |len| format!("unix:{}", "p".repeat(len));
        assert!(parse_listen(&path(107), 80).is_ok());
        assert_eq!(parse_listen(&path(108), 80), Err(AddressError::PathTooLong));
    }

    #[test]
    fn host_names_are_resolved() {
        let addrs = parse_listen("localhost:8080", 80).unwrap();
        assert!(
            addrs.iter().all(|addr| addr.inet().is_some_and(|a| a.ip().is_loopback() && a.port() == 8080))
        );
        assert!(!addrs.is_empty());
    }
}
