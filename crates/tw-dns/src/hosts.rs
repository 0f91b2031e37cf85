//! `/etc/hosts`: names with local addresses (hosts(5)). The text is an argument.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::name::Name;

/// Addresses by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts(HashMap<Name, Vec<IpAddr>>);

impl Hosts {
    /// Reads lines of an address and its names; `#` begins a comment. What cannot be read is left out, as the C
    /// library does. Several lines may name the same host.
    pub fn parse(text: &[u8]) -> Self {
        let mut hosts: HashMap<Name, Vec<IpAddr>> = HashMap::new();
        for line in text.split(|byte| *byte == b'\n') {
            let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
            let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            let addr = words.next().and_then(|word| str::from_utf8(word).ok()?.parse::<IpAddr>().ok());
            let Some(addr) = addr else { continue };
            for name in words.filter_map(Name::parse) {
                let addrs = hosts.entry(name).or_default();
                if !addrs.contains(&addr) {
                    addrs.push(addr);
                }
            }
        }
        Self(hosts)
    }

    /// The addresses of a name, in their order.
    pub fn find(&self, name: &Name) -> Option<&[IpAddr]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = b"127.0.0.1\tlocalhost localhost.localdomain # us\n\
            ::1 localhost ip6-localhost\r\n\
            # 192.0.2.9 commented\n\
            192.0.2.1 Web.Example web\n\
            192.0.2.1 web\n\
            192.0.2.2 web\n\
            fe80::1%lo scoped\n\
            nonsense name\n\
            192.0.2.3\n\
            \xff\xff name\n\
            192.0.2.4 a..b good";
        let hosts = Hosts::parse(text);
        for (name, expected) in [
            ("localhost", "127.0.0.1 ::1"),
            ("LOCALHOST.localdomain.", "127.0.0.1"),
            ("ip6-localhost", "::1"),
            ("web.example", "192.0.2.1"),
            ("web", "192.0.2.1 192.0.2.2"),
            ("good", "192.0.2.4"),
            ("commented", ""),
            ("scoped", ""),
            ("name", ""),
        ] {
            let ips = hosts.find(&Name::parse(name.as_bytes()).unwrap()).unwrap_or_default();
            let results: Vec<_> = ips.iter().map(ToString::to_string).collect();
            assert_eq!(results.join(" "), expected, "{name}");
        }
    }
}
