//! Ranges of addresses: `@ipMatch`.

use std::net::IpAddr;

/// Ranges of addresses.
pub(crate) struct AddressRanges(Vec<(IpAddr, u32)>);

impl AddressRanges {
    /// Parses a list with commas.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        Self::of(text.split(|byte| *byte == b','))
    }

    /// Parses lines of a file; `#` begins a comment.
    pub(super) fn lines(text: &[u8]) -> Result<Self, String> {
        let lines = text.split(|byte| *byte == b'\n');
        Self::of(lines.map(|line| line.split(|byte| *byte == b'#').next().unwrap_or_default()))
    }

    fn of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Result<Self, String> {
        let parts = parts.map(<[u8]>::trim_ascii).filter(|part| !part.is_empty());
        let mut ranges = Vec::new();
        for part in parts {
            let (network, length) = range(part)
                .ok_or_else(|| format!("invalid address \"{}\"", String::from_utf8_lossy(part)))?;
            ranges.push((network, length));
            // Clients of IPv4 have addresses of their own kind.
            let mapped = network.to_canonical();
            if network.is_ipv6() && mapped.is_ipv4() && length >= 96 {
                ranges.push((mapped, length - 96));
            }
        }
        Ok(Self(ranges))
    }

    /// Returns true if one has the address `text`.
    pub(super) fn contains(&self, text: &[u8]) -> bool {
        let Some(address) = parse(text) else { return false };
        let mapped = address.to_canonical();
        self.has(address) || mapped != address && self.has(mapped)
    }

    fn has(&self, address: IpAddr) -> bool {
        self.0.iter().any(|(network, length)| match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                same_bits(u128::from(network.to_bits()), u128::from(address.to_bits()), 32 - *length)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                same_bits(network.to_bits(), address.to_bits(), 128 - *length)
            }
            _ => false,
        })
    }
}

fn same_bits(one: u128, two: u128, ignored: u32) -> bool {
    (one ^ two).checked_shr(ignored).unwrap_or(0) == 0
}

fn parse(text: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn range(text: &[u8]) -> Option<(IpAddr, u32)> {
    let (address, length) = match memchr::memchr(b'/', text) {
        Some(at) => {
            (text.get(..at)?, Some(std::str::from_utf8(text.get(at + 1..)?).ok()?.parse::<u32>().ok()?))
        }
        None => (text, None),
    };
    let address = parse(address)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(most);
    (length <= most).then_some((address, length))
}
