//! `set_real_ip_from`, `real_ip_header`: the client's address as a trusted proxy tells it (nginx: ngx_http_realip_module).
//! Post-read phase, and preaccess phase for settings of a location.
//!
//! Nothing a client says is believed unless the connection, or the proxy named last, is one of the trusted.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tw_conf::network::{self, Network};
use tw_conf::{Args, ConfError, Cx, Directive, HTTP, LOCATION, Node, SERVER, Setting, record};
use tw_http::Known;
use tw_rt::Addr;
use tw_server::http::plan::{Handler, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::module::Settings;
use tw_server::vars::{Value, VarDef};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Who is trusted, as written.
#[derive(Default)]
pub(crate) struct Raw {
    from: Trusted,
    header: Setting<Source>,
    recursive: Setting<bool>,
}

/// Proxies that may say who their client is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trusted {
    networks: Vec<Network>,
    /// Whether clients of Unix sockets are proxies.
    unix: bool,
}

/// Who says who the client is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// A field with one address.
    Field(Box<str>),
    /// `X-Forwarded-For`, in all its lines.
    Forwarded,
    /// The header of the PROXY protocol.
    Proxy,
}

/// Settings of one block.
pub(crate) struct RealIp {
    from: Arc<Trusted>,
    header: Source,
    recursive: bool,
}

impl Settings for RealIp {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("set_real_ip_from", "address | CIDR | hostname | unix:", ALL, Args::exact(1))
            .doc("A proxy that may tell the address of its client. Names are looked up when the configuration is read.")
            .set(|raw, node, cx| raw.from.add(node, cx)),
        record::new("real_ip_header", "field | X-Real-IP | X-Forwarded-For | proxy_protocol", ALL, Args::exact(1))
            .default("X-Real-IP")
            .doc("Where a trusted proxy tells the address of its client.")
            .set(|raw, node, _| raw.header.set_with(node, |node| Ok(Source::of(&node.arg(0)?.lossy())))),
        record::flag("real_ip_recursive", ALL)
            .default("off")
            .since("1.3.0")
            .doc("Takes the last address that is not that of a trusted proxy, not the last one.")
            .set(|raw, node, _| raw.recursive.set_flag(node)),
    ];

    const VARIABLES: &'static [VarDef] = &[
        VarDef::one(
            "realip_remote_addr",
            |r, out| {
                out.extend_from_slice(r.conn().client().as_bytes());
                Value::Found
            },
            "Address of the connection's other end, whatever a proxy says.",
        ),
        VarDef::one("realip_remote_port", peer_port, "Port of the connection's other end."),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let from = match outer {
            Some(outer) if raw.from.is_empty() => outer.from.clone(),
            _ => Arc::new(raw.from),
        };
        let header = raw
            .header
            .or_else(|| outer.map(|outer| outer.header.clone()), || Source::Field("X-Real-IP".into()));
        Ok(Self { from, header, recursive: raw.recursive.or(outer.map(|o| o.recursive), false) })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.from.is_empty() {
            plan.add(Phase::PostRead, self.clone());
            plan.add(Phase::Preaccess, self.clone());
        }
    }
}

impl Source {
    fn of(text: &str) -> Self {
        match text {
            "X-Forwarded-For" => Self::Forwarded,
            "proxy_protocol" => Self::Proxy,
            field => Self::Field(field.into()),
        }
    }
}

impl Handler for RealIp {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        // Once told, it stays so, also after an internal redirect.
        let is_told = !std::ptr::eq(r.client_addr(), r.conn().peer());
        if is_told {
            return Step::PASS;
        }
        if let Some(addr) = self.told(r) {
            r.set_client(addr);
        }
        Step::PASS
    }
}

impl RealIp {
    /// The client's address as the proxy tells it; `None` if there is no proxy, or it tells nothing.
    fn told(&self, r: &Request) -> Option<Addr> {
        let peer = r.conn().peer();
        let found = match &self.header {
            Source::Field(name) => self.from.walk(peer, [r.head.field(name)?].into_iter(), self.recursive),
            Source::Forwarded => {
                if !r.head.has(Known::XForwardedFor) {
                    return None;
                }
                let lines: Vec<_> = r.head.field_all(b"x-forwarded-for").collect();
                self.from.walk(peer, lines.into_iter().rev(), self.recursive)
            }
            Source::Proxy => {
                let addrs = r.conn().proxy.get()?.addrs.as_ref()?;
                self.from.has(peer).then_some(addrs.src)
            }
        };
        found.map(Addr::Inet)
    }
}

impl Trusted {
    fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }

    /// Takes in a `set_real_ip_from`. May wait for the resolver: at configuration time only.
    fn add(&mut self, node: &Node, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        let word = node.arg(0)?;
        if word.is("unix:") {
            self.unix = true;
        } else if let Some(written) = Network::parse(&word.bytes) {
            if written.has_low_bits {
                cx.warn(word.span, format!("low address bits of {word} are meaningless"));
            }
            self.networks.push(written.network);
        } else {
            let name = word.as_str().filter(|name| !name.is_empty());
            let found = name.and_then(|name| (name, 0).to_socket_addrs().ok());
            let found =
                found.ok_or_else(|| node.fail(format!("host not found in set_real_ip_from \"{word}\"")))?;
            self.networks.extend(found.map(|addr| Network::new(addr.ip(), u8::MAX)));
        }
        Ok(())
    }

    /// Whether `addr` is that of a trusted proxy.
    fn has(&self, addr: &Addr) -> bool {
        match addr.inet() {
            Some(addr) => self.knows(addr),
            None => self.unix,
        }
    }

    fn knows(&self, addr: SocketAddr) -> bool {
        self.networks.iter().any(|network| network.contains(addr.ip()))
    }

    /// The address that `lines`, the last one first, tell of the client of `peer`; the last address of each line was
    /// written last. Each is believed only if the one after it is a trusted proxy's. What is no address ends the search.
    fn walk<'l>(
        &self,
        peer: &Addr,
        lines: impl Iterator<Item = &'l [u8]>,
        recursive: bool,
    ) -> Option<SocketAddr> {
        if !self.has(peer) {
            return None;
        }
        let mut found = None;
        for line in lines {
            let mut rest = line;
            loop {
                if found.is_some_and(|addr| !self.knows(addr)) {
                    return found;
                }
                let text = take_last(&mut rest);
                let Some(addr) = address(text) else { return found };
                found = Some(addr);
                if !recursive {
                    return found;
                }
                if rest.is_empty() {
                    break;
                }
            }
        }
        found
    }
}

/// Takes the last word off a list whose words are apart by commas and spaces.
fn take_last<'l>(rest: &mut &'l [u8]) -> &'l [u8] {
    let is_part = |byte: &u8| !matches!(byte, b' ' | b',');
    let end = rest.iter().rposition(is_part).map_or(0, |at| at + 1);
    let start = rest[..end].iter().rposition(|byte| !is_part(byte)).map_or(0, |at| at + 1);
    let word = &rest[start..end];
    *rest = &rest[..start];
    word
}

/// Reads an address: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn address(text: &[u8]) -> Option<SocketAddr> {
    if let Some(ip) = network::address(text) {
        return Some(SocketAddr::new(ip, 0));
    }
    let (host, port) = match text.strip_prefix(b"[") {
        Some(rest) => {
            let end = rest.iter().position(|byte| *byte == b']')?;
            match &rest[end + 1..] {
                [] => return network::address(&rest[..end]).map(|ip| SocketAddr::new(ip, 0)),
                [b':', port @ ..] => (&rest[..end], port),
                _ => return None,
            }
        }
        None => {
            let colon = text.iter().position(|byte| *byte == b':')?;
            (&text[..colon], &text[colon + 1..])
        }
    };
    let port = u16::try_from(tw_conf::units::number(port)?).ok().filter(|port| *port > 0)?;
    network::address(host).map(|ip| SocketAddr::new(ip, port))
}

/// Appends the port of the connection's other end.
fn peer_port(r: &Request, out: &mut Vec<u8>) -> Value {
    if let Some(addr) = r.conn().peer().inet()
        && addr.port() > 0
    {
        out.extend_from_slice(addr.port().to_string().as_bytes());
    }
    Value::Found
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(address(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_list_is_read_from_its_end() {
        let parse = |text: &str| Network::parse(text.as_bytes()).unwrap().network;
        let trusted = Trusted { networks: vec![parse("127.0.0.1"), parse("192.0.2.0/24")], unix: false };
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
            for (is_recursive, expected) in [(false, once), (true, recursive)] {
                let lines = lines.iter().rev().map(|line| line.as_bytes());
                let found = trusted.walk(&peer(from), lines, is_recursive);
                assert_eq!(found, expected.map(|text| text.parse().unwrap()), "{expected:?} {is_recursive}");
            }
        }
        assert_eq!(trusted.walk(&Addr::Unix(None), [&b"1.1.1.1"[..]].into_iter(), true), None);
    }
}
