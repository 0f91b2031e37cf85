//! `set_real_ip_from`, `real_ip_header`: the client's address as given by a trusted proxy (nginx:
//! ngx_http_realip_module). Post-read phase, and preaccess phase for settings of a location.
//!
//! An address is believed only if the connection, or the proxy named last, is one of the trusted.

use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_http::HeaderName;
use tw_module_support::forwarded::{ProxyChain, forwarded};
use tw_module_support::trusted_proxies::TrustedProxies;
use tw_net::Addr;
use tw_request::plan::{Handler, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Trusted proxies, as written.
#[derive(Default)]
pub(crate) struct Raw {
    from: TrustedProxies,
    header: Setting<Source>,
    chain: Setting<ProxyChain>,
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
            .doc("Field, or the PROXY protocol, in which trusted proxies send the address of the client.")
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
                out.extend_from_slice(r.peer_text().as_bytes());
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
        // An address that was replaced once stays, also after an internal redirect.
        let is_told = !std::ptr::eq(r.client_addr(), r.peer());
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
        let peer = r.peer();
        let trusts = |addr: &Addr| self.from.has(addr);
        let address = match &self.header {
            Source::Field(name) => forwarded(peer, r.head.field(name), self.chain, trusts),
            Source::Forwarded => {
                if !r.head.has(HeaderName::XForwardedFor) {
                    return None;
                }
                forwarded(peer, r.head.field_all(b"x-forwarded-for"), self.chain, trusts)
            }
            Source::Proxy => {
                let addrs = r.client().proxy.get()?.addrs.as_ref()?;
                self.from.has(peer).then_some(addrs.src)
            }
        };
        address.map(Addr::Inet)
    }
}

/// Appends the port of the connection's other end.
fn peer_port(r: &Request, out: &mut Vec<u8>) -> Value {
    if let Some(addr) = r.peer().inet()
        && addr.port() > 0
    {
        out.extend_from_slice(addr.port().to_string().as_bytes());
    }
    Value::Found
}
