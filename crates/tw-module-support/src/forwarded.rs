//! Client address as trusted proxies give it: addresses in `X-Forwarded-For` (nginx: ngx_http_get_forwarded_addr).

use std::net::SocketAddr;

use tw_conf::network;
use tw_net::Addr;

/// Depth to which a chain of proxies is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyChain {
    /// To the address that the last proxy names.
    Last,
    /// Through all proxies that are trusted.
    Recursive,
}

impl ProxyChain {
    /// Depth for a flag like `real_ip_recursive`.
    pub fn of(is_recursive: bool) -> Self {
        if is_recursive { Self::Recursive } else { Self::Last }
    }
}

/// End of a walk through one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// At its beginning, or after one step.
    Through,
    /// Before its beginning, but some of it was used.
    Partly,
    /// None of it was used.
    Refused,
}

/// Address that `lines`, in the order of the request, give for `client`. `None` if `client` is not trusted or the text
/// is no address.
pub fn forwarded<'a>(
    client: &Addr,
    lines: impl IntoIterator<IntoIter: DoubleEndedIterator<Item = &'a [u8]>>,
    chain: ProxyChain,
    trusts: impl Fn(&Addr) -> bool,
) -> Option<SocketAddr> {
    let mut address = None;
    for line in lines.into_iter().rev() {
        let walk = follow(line, client, &mut address, chain, &trusts);
        if chain == ProxyChain::Last || walk != Walk::Through {
            break;
        }
    }
    address
}

fn follow(
    line: &[u8],
    client: &Addr,
    address: &mut Option<SocketAddr>,
    chain: ProxyChain,
    trusts: impl Fn(&Addr) -> bool,
) -> Walk {
    let mut walk = Walk::Refused;
    let mut rest = line;
    loop {
        let is_trusted = match *address {
            Some(addr) => trusts(&Addr::Inet(addr)),
            None => trusts(client),
        };
        while let [head @ .., _, b' ' | b','] = rest {
            rest = &rest[..=head.len()];
        }
        let start = rest.iter().rposition(|byte| matches!(byte, b' ' | b',')).map_or(0, |at| at + 1);
        match endpoint(&rest[start..]) {
            Some(addr) if is_trusted => *address = Some(addr),
            _ => return walk,
        }
        if chain == ProxyChain::Last || start == 0 {
            return Walk::Through;
        }
        walk = Walk::Partly;
        rest = &rest[..start - 1];
    }
}

/// Reads `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`; the port is 0 if there is none.
fn endpoint(text: &[u8]) -> Option<SocketAddr> {
    if let Some(addr) = network::address(text) {
        return Some(SocketAddr::new(addr, 0));
    }
    let (host, port) = match text {
        [b'[', inner @ ..] => {
            let end = inner.iter().position(|&byte| byte == b']')?;
            match &inner[end + 1..] {
                [] => return network::address(&inner[..end]).map(|ip| SocketAddr::new(ip, 0)),
                [b':', port @ ..] => (&inner[..end], port),
                _ => return None,
            }
        }
        _ => {
            let colon = text.iter().position(|&byte| byte == b':')?;
            (&text[..colon], &text[colon + 1..])
        }
    };
    let port =
        tw_conf::units::number(port).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)?;
    Some(SocketAddr::new(network::address(host)?, port))
}

#[cfg(test)]
mod tests {
    use tw_conf::network::Network;

    use super::*;

    #[test]
    fn proxies_are_followed_as_far_as_they_are_trusted() {
        let trusted = ["10.0.0.1", "10.0.0.2", "unix"];
        let trusts = |addr: &Addr| match addr {
            Addr::Inet(addr) => trusted.contains(&addr.ip().to_string().as_str()),
            Addr::Unix(_) => trusted.contains(&"unix"),
        };
        let from = |client: &str| match client {
            "unix" => Addr::Unix(None),
            ip => Addr::Inet(SocketAddr::new(ip.parse().unwrap(), 1)),
        };
        let last = ProxyChain::Last;
        let all = ProxyChain::Recursive;
        // Fields are given in the order of the request.
        let table: [(&str, ProxyChain, &[&str], Option<&str>); 21] = [
            ("10.0.0.1", last, &["192.0.2.1"], Some("192.0.2.1:0")),
            ("unix", last, &["192.0.2.1"], Some("192.0.2.1:0")),
            ("10.0.0.9", last, &["192.0.2.1"], None),
            ("10.0.0.1", last, &["192.0.2.1, 10.0.0.2"], Some("10.0.0.2:0")),
            ("10.0.0.1", last, &["192.0.2.1, 10.0.0.2 , ,"], Some("10.0.0.2:0")),
            ("10.0.0.1", last, &["192.0.2.1", "192.0.2.2:80"], Some("192.0.2.2:80")),
            ("10.0.0.1", last, &["192.0.2.1", "junk"], None),
            ("10.0.0.1", last, &["[2001:db8::1]:443"], Some("[2001:db8::1]:443")),
            ("10.0.0.1", last, &["2001:db8::1"], Some("[2001:db8::1]:0")),
            ("10.0.0.1", last, &["[2001:db8::1]"], Some("[2001:db8::1]:0")),
            ("10.0.0.1", last, &["192.0.2.1:0"], None),
            ("10.0.0.1", last, &[""], None),
            ("10.0.0.1", last, &[], None),
            ("10.0.0.1", last, &[", ,"], None),
            ("10.0.0.1", all, &["192.0.2.1, 10.0.0.2"], Some("192.0.2.1:0")),
            ("10.0.0.1", all, &["192.0.2.9, 192.0.2.1, 10.0.0.2"], Some("192.0.2.1:0")),
            ("10.0.0.1", all, &["10.0.0.1,10.0.0.2"], Some("10.0.0.1:0")),
            ("10.0.0.1", all, &["192.0.2.1", "10.0.0.2"], Some("192.0.2.1:0")),
            ("10.0.0.1", all, &["192.0.2.1", "junk, 10.0.0.2"], Some("10.0.0.2:0")),
            ("10.0.0.1", all, &["192.0.2.1", "192.0.2.2"], Some("192.0.2.2:0")),
            ("10.0.0.9", all, &["192.0.2.1", "10.0.0.2"], None),
        ];
        for (client, chain, lines, expected) in table {
            let lines = lines.iter().map(|line| line.as_bytes());
            let address = forwarded(&from(client), lines, chain, trusts);
            assert_eq!(address.map(|addr| addr.to_string()).as_deref(), expected, "{client} {chain:?}");
        }
    }

    #[test]
    fn addresses_with_and_without_ports() {
        for (text, expected) in [
            ("192.0.2.1", Some("192.0.2.1:0")),
            ("192.0.2.1:80", Some("192.0.2.1:80")),
            ("2001:db8::1", Some("[2001:db8::1]:0")),
            ("[2001:db8::1]", Some("[2001:db8::1]:0")),
            ("[2001:db8::1]:65535", Some("[2001:db8::1]:65535")),
            ("192.0.2.1:0", None),
            ("192.0.2.1:65536", None),
            ("192.0.2.1:", None),
            ("192.0.2.1:+1", None),
            ("[2001:db8::1", None),
            ("[2001:db8::1]80", None),
            ("[]:80", None),
            ("[", None),
            (":80", None),
            ("unknown", None),
            ("unix:", None),
            ("", None),
            ("\u{0}", None),
        ] {
            let expected = expected.map(|text| text.parse().unwrap());
            assert_eq!(endpoint(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_list_is_read_from_its_end() {
        let parse = |text: &str| Network::parse(text.as_bytes()).unwrap().network;
        let networks = [parse("127.0.0.1"), parse("192.0.2.0/24")];
        let trusts = |addr: &Addr| {
            addr.inet().is_some_and(|addr| networks.iter().any(|network| network.contains(addr.ip())))
        };
        let peer = |text: &str| Addr::Inet(SocketAddr::new(text.parse().unwrap(), 9));
        let huge = "9.9.9.9, ".repeat(10_000) + "192.0.2.1";
        for (from, lines, once, recursive) in [
            ("127.0.0.1", &["10.0.0.1"][..], Some("10.0.0.1:0"), Some("10.0.0.1:0")),
            ("10.0.0.9", &["10.0.0.1"], None, None),
            ("127.0.0.1", &["10.0.0.1, 192.0.2.1"], Some("192.0.2.1:0"), Some("10.0.0.1:0")),
            ("127.0.0.1", &["10.0.0.1,192.0.2.1, , "], Some("192.0.2.1:0"), Some("10.0.0.1:0")),
            ("127.0.0.1", &["1.1.1.1, 10.0.0.1:5, 192.0.2.1:6"], Some("192.0.2.1:6"), Some("10.0.0.1:5")),
            ("127.0.0.1", &["192.0.2.3, 192.0.2.1"], Some("192.0.2.1:0"), Some("192.0.2.3:0")),
            ("127.0.0.1", &["10.0.0.1, bad, 192.0.2.1"], Some("192.0.2.1:0"), Some("192.0.2.1:0")),
            ("127.0.0.1", &["10.0.0.1, 192.0.2.5", "192.0.2.1"], Some("192.0.2.1:0"), Some("10.0.0.1:0")),
            ("127.0.0.1", &["10.0.0.1", "bad"], None, None),
            ("127.0.0.1", &["10.0.0.1", ""], None, None),
            ("127.0.0.1", &["bad", "192.0.2.1"], Some("192.0.2.1:0"), Some("192.0.2.1:0")),
            ("127.0.0.1", &["", ", ,", ","], None, None),
            ("127.0.0.1", &[&huge], Some("192.0.2.1:0"), Some("9.9.9.9:0")),
            ("::ffff:127.0.0.1", &["[::1]:7"], Some("[::1]:7"), Some("[::1]:7")),
        ] {
            for (chain, expected) in [(ProxyChain::Last, once), (ProxyChain::Recursive, recursive)] {
                let lines = lines.iter().map(|line| line.as_bytes());
                let address = forwarded(&peer(from), lines, chain, trusts);
                assert_eq!(address, expected.map(|text| text.parse().unwrap()), "{expected:?} {chain:?}");
            }
        }
        assert_eq!(forwarded(&Addr::Unix(None), [&b"1.1.1.1"[..]], ProxyChain::Recursive, trusts), None);
    }
}
