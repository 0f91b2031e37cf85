//! Addresses and networks as nginx reads them: `192.0.2.0/24`, `2001:db8::/32`.
//!
//! Source: nginx 1.31, `ngx_inet_addr`, `ngx_ptocidr`, `ngx_cidr_match`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network: the addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// First address of the network.
    addr: IpAddr,
    /// Prefix length in bits: at most 32 or 128.
    bits: u8,
}

/// A network as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedNetwork {
    /// The network.
    pub network: Network,
    /// True if the address has bits set beyond the prefix, for the warning `low address bits of … are meaningless`.
    pub has_low_bits: bool,
}

impl Network {
    /// Reads an address, or an address and `/bits`.
    pub fn parse(text: &[u8]) -> Option<ParsedNetwork> {
        let (addr, bits) = match text.iter().position(|&byte| byte == b'/') {
            Some(at) => (address(&text[..at])?, Some(crate::units::number(&text[at + 1..])?)),
            None => (address(text)?, None),
        };
        let all = if addr.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) if bits > all => return None,
            Some(bits) => bits as u8,
            None => all as u8,
        };
        let network = Self::new(addr, bits);
        Some(ParsedNetwork { network, has_low_bits: network.addr != addr })
    }

    /// The network of `bits` bits that an address is in; more bits than it has are all of them.
    pub fn new(addr: IpAddr, bits: u8) -> Self {
        match addr {
            IpAddr::V4(addr) => {
                let bits = bits.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                Self { addr: Ipv4Addr::from_bits(addr.to_bits() & mask).into(), bits }
            }
            IpAddr::V6(addr) => {
                let bits = bits.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                Self { addr: Ipv6Addr::from_bits(addr.to_bits() & mask).into(), bits }
            }
        }
    }

    /// First address of the network.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Prefix length in bits.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Returns `true` if the network contains an address. One like `::ffff:192.0.2.1` is an IPv4 address.
    pub fn contains(&self, addr: IpAddr) -> bool {
        let addr = addr.to_canonical();
        addr.is_ipv4() == self.addr.is_ipv4() && Self::new(addr, self.bits) == *self
    }
}

/// Reads an address without port and brackets. Numbers of an IPv4 address may be empty or begin with zeros.
pub fn address(text: &[u8]) -> Option<IpAddr> {
    match ipv4(text) {
        Some(addr) => Some(addr.into()),
        None => std::str::from_utf8(text).ok()?.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
    }
}

/// Reads an IPv4 address as [`address`] does.
pub fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut at = 0;
    for &byte in text {
        match byte {
            b'.' => at += 1,
            b'0'..=b'9' => {
                let octet = octets.get_mut(at)?;
                *octet = octet.checked_mul(10)?.checked_add(byte - b'0')?;
            }
            _ => return None,
        }
    }
    (at == 3).then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_parsed_like_nginx() {
        let read = |text: &str| {
            Network::parse(text.as_bytes())
                .map(|w| (format!("{}/{}", w.network.addr(), w.network.bits()), w.has_low_bits))
        };
        for (text, expected) in [
            ("192.0.2.1", Some(("192.0.2.1/32", false))),
            ("192.0.2.1/24", Some(("192.0.2.0/24", true))),
            ("192.0.2.0/24", Some(("192.0.2.0/24", false))),
            ("255.255.255.255", Some(("255.255.255.255/32", false))),
            ("1.2.3.4/0", Some(("0.0.0.0/0", true))),
            ("010.1..2", Some(("10.1.0.2/32", false))),
            ("1.2.3.", Some(("1.2.3.0/32", false))),
            ("2001:db8::1/32", Some(("2001:db8::/32", true))),
            ("::/0", Some(("::/0", false))),
            ("::1", Some(("::1/128", false))),
            ("::ffff:1.2.3.4", Some(("::ffff:1.2.3.4/128", false))),
            ("1.2.3.4/33", None),
            ("::/129", None),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("1.2.3.256", None),
            ("1.2.3.4/", None),
            ("1.2.3.4/-1", None),
            ("1.2.3.4/99999999999999999999", None),
            ("[::1]", None),
            ("unix:", None),
            ("", None),
        ] {
            assert_eq!(read(text), expected.map(|(text, low)| (text.to_owned(), low)), "{text}");
        }
    }

    #[test]
    fn addresses_in_networks() {
        for (network, addr, expected) in [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.0/24", "::ffff:192.0.2.9", true),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "::ffff:192.0.2.9", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
        ] {
            let network = Network::parse(network.as_bytes()).unwrap().network;
            assert_eq!(network.contains(addr.parse().unwrap()), expected, "{network:?} {addr}");
        }
    }
}
