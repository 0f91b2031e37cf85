//! `set_real_ip_from`, `real_ip_header`: the client's address as given by a trusted proxy (nginx:
//! ngx_http_realip_module). Post-read phase, and preaccess phase for settings of a location.
//!
//! An address is believed only if the connection, or the proxy named last, is one of the trusted.

use std::net::ToSocketAddrs;
use std::sync::Arc;

use tw_conf::network::Network;
use tw_conf::{Args, ConfError, Cx, Directive, HTTP, LOCATION, Node, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_http::Known;
use tw_net::Addr;
use tw_server::http::Http;
use tw_server::http::plan::{Handler, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::vars::{Value, VarDef};

use crate::forwarded::{ProxyChain, forwarded};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Trusted proxies, as written.
#[derive(Default)]
pub(crate) struct Raw {
    from: TrustedProxies,
    header: Setting<Source>,
    chain: Setting<ProxyChain>,
}

/// Proxies that may name the client's address.
#[derive(Debug, Clone, Default)]
pub(crate) struct TrustedProxies {
    networks: Vec<Network>,
    /// Set if clients of Unix sockets are trusted proxies.
    unix: bool,
}

/// Source of the client's address.
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
    from: Arc<TrustedProxies>,
    header: Source,
    chain: ProxyChain,
}

impl Settings<Http> for RealIp {
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
            .set(|raw, node, _| raw.chain.set_with(node, |node| Ok(ProxyChain::of(node.flag()?)))),
    ];

    const VARIABLES: &'static [VarDef] = &[
        VarDef::one(
            "realip_remote_addr",
            |r, out| {
                out.extend_from_slice(r.client().peer_text().as_bytes());
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
        let chain = raw.chain.or(outer.map(|o| o.chain), ProxyChain::Last);
        Ok(Self { from, header, chain })
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
        let is_told = !std::ptr::eq(r.client_addr(), r.client().peer());
        if is_told {
            return Step::PASS;
        }
        if let Some(addr) = self.given_address(r) {
            r.set_client_addr(addr);
        }
        Step::PASS
    }
}

impl RealIp {
    /// Client's address as the proxy gives it; `None` without a proxy or without an address.
    fn given_address(&self, r: &Request) -> Option<Addr> {
        let peer = r.client().peer();
        let trusts = |addr: &Addr| self.from.has(addr);
        let found = match &self.header {
            Source::Field(name) => forwarded(peer, r.head.field(name), self.chain, trusts),
            Source::Forwarded => {
                if !r.head.has(Known::XForwardedFor) {
                    return None;
                }
                forwarded(peer, r.head.field_all(b"x-forwarded-for"), self.chain, trusts)
            }
            Source::Proxy => {
                let addrs = r.client().proxy.get()?.addrs.as_ref()?;
                self.from.has(peer).then_some(addrs.src)
            }
        };
        found.map(Addr::Inet)
    }
}

impl TrustedProxies {
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

    /// Returns `true` if `addr` is that of a trusted proxy.
    fn has(&self, addr: &Addr) -> bool {
        match addr.inet() {
            Some(addr) => self.networks.iter().any(|network| network.contains(addr.ip())),
            None => self.unix,
        }
    }
}

/// Appends the port of the connection's other end.
fn peer_port(r: &Request, out: &mut Vec<u8>) -> Value {
    if let Some(addr) = r.client().peer().inet()
        && addr.port() > 0
    {
        out.extend_from_slice(addr.port().to_string().as_bytes());
    }
    Value::Found
}
