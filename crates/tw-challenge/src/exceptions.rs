//! Requests that are not challenged: by address, and by path.

use tw_conf::{ConfError, Cx, Network, Node, Word};
use tw_net::Addr;

/// Paths that are never challenged: programs that are welcome, and browsers, ask for them without being able to solve anything.
const DEFAULT_PATHS: [&[u8]; 2] = [b"/robots.txt", b"/favicon.ico"];
/// First part of paths that are never challenged (RFC 8615), such as those by which certificates are ordered.
const WELL_KNOWN: &[u8] = b"/.well-known/";

/// One exception as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Exception {
    /// Clients of a network.
    Network(Network),
    /// Clients on a Unix socket.
    Unix,
    /// Paths that begin so.
    Prefix(Box<[u8]>),
    /// One path.
    Path(Box<[u8]>),
}

/// Reason why a request is not challenged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exemption {
    Address,
    Path,
}

impl Exception {
    /// Reads a word of `challenge_except`.
    pub(super) fn read(node: &Node, word: &Word, cx: &mut Cx<'_>) -> Result<Self, ConfError> {
        match &*word.bytes {
            b"unix:" => Ok(Self::Unix),
            [b'/', ..] => Ok(Self::Prefix(word.bytes.clone())),
            [b'=', path @ ..] if path.starts_with(b"/") => Ok(Self::Path(path.into())),
            text => {
                let network = Network::parse(text).ok_or_else(|| node.invalid_parameter(word))?;
                if network.has_low_bits {
                    cx.warn(word.span, format!("low address bits of {word} are meaningless"));
                }
                Ok(Self::Network(network.network))
            }
        }
    }

    fn exempts(&self, addr: &Addr, path: &[u8]) -> Option<Exemption> {
        let (is_met, exemption) = match self {
            Self::Network(network) => {
                (addr.inet().is_some_and(|addr| network.contains(addr.ip())), Exemption::Address)
            }
            Self::Unix => (addr.inet().is_none(), Exemption::Address),
            Self::Prefix(prefix) => (path.starts_with(prefix), Exemption::Path),
            Self::Path(one) => (path == &**one, Exemption::Path),
        };
        is_met.then_some(exemption)
    }
}

/// Finds out if a client at `addr` may have `path`, decoded, without a challenge. O(exceptions).
pub(super) fn find(exceptions: &[Exception], addr: &Addr, path: &[u8]) -> Option<Exemption> {
    if DEFAULT_PATHS.contains(&path) || path.starts_with(WELL_KNOWN) {
        return Some(Exemption::Path);
    }
    exceptions.iter().find_map(|exception| exception.exempts(addr, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths_are_exempt() {
        let network = |text: &str| Exception::Network(Network::parse(text.as_bytes()).unwrap().network);
        let exceptions = [
            network("192.0.2.0/24"),
            network("2001:db8::/32"),
            Exception::Prefix(b"/api/"[..].into()),
            Exception::Path(b"/feed"[..].into()),
        ];
        let address = Some(Exemption::Address);
        let path = Some(Exemption::Path);
        for (addr, target, expected) in [
            ("192.0.2.7", "/", address),
            ("::ffff:192.0.2.7", "/", address),
            ("192.0.3.7", "/", None),
            ("2001:db8:1::1", "/", address),
            ("2001:db9::1", "/", None),
            ("192.0.3.7", "/api/x", path),
            ("192.0.3.7", "/api", None),
            ("192.0.3.7", "/feed", path),
            ("192.0.3.7", "/feeds", None),
            ("192.0.3.7", "/robots.txt", path),
            ("192.0.3.7", "/robots.txt/", None),
            ("192.0.3.7", "/favicon.ico", path),
            ("192.0.3.7", "/.well-known/acme-challenge/x", path),
            ("192.0.3.7", "/.well-known", None),
        ] {
            let addr = Addr::Inet((addr.parse::<std::net::IpAddr>().unwrap(), 1).into());
            assert_eq!(find(&exceptions, &addr, target.as_bytes()), expected, "{addr} {target}");
        }
        assert_eq!(find(&exceptions, &Addr::Unix(None), b"/"), None);
        assert_eq!(find(&[Exception::Unix], &Addr::Unix(None), b"/"), address);
    }
}
