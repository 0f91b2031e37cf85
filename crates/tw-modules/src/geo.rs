//! `geo`: variables whose values depend on an address (nginx: ngx_http_geo_module, ngx_stream_geo_module).
//! Computed variables, in every protocol.

mod intervals;
mod ranges;
mod read;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tw_conf::{Args, ConfError, Cx, Directive, HTTP, Network, Node, STREAM, Word, network, record};
use tw_core::load::Resolve;
use tw_core::module::{Protocol, Settings};
use tw_core::session::Session;
use tw_core::vars::{SlotKind, Template, Value};
use tw_net::Addr;

use self::intervals::GeoTable;
use self::read::Reading;
use crate::forwarded::{ProxyChain, forwarded};

/// Blocks as written.
#[derive(Default)]
pub(crate) struct Raw {
    geos: Vec<RawGeo>,
}

/// One block, already compiled for look-ups.
struct RawGeo {
    /// Variable that holds the address; `None` for the client's own.
    source: Option<Word>,
    variable: Word,
    table: GeoTable,
    proxies: Vec<Network>,
    chain: ProxyChain,
    is_volatile: bool,
}

/// Module without settings: its variables belong to the whole configuration.
pub(crate) struct Geo;

/// Source of an address.
struct Source<S> {
    /// Text that holds it; `None` for the client's own.
    text: Option<Template<S>>,
    /// Proxies that are trusted to name the client's address.
    proxies: Vec<Network>,
    chain: ProxyChain,
}

impl<P: Protocol> Settings<P> for Geo {
    type Raw = Raw;

    // DIFF(nginx): binary bases beside included files are neither read nor written.
    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new(
        "geo",
        "[$address] $variable { … }",
        HTTP | STREAM,
        Args::range(1, 2).block(),
    )
    .doc("Defines a variable by the network or range an address is in; the most specific network holds.")
    .set(|raw, node, cx| {
        raw.geos.push(read::<P::Session>(node, cx)?);
        Ok(())
    })];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        for geo in raw.geos {
            geo.define(cx)?;
        }
        Ok(Self)
    }

    fn are_shared(&self) -> bool {
        true
    }
}

fn read<S: Session>(node: &Node, cx: &mut Cx<'_>) -> Result<RawGeo, ConfError> {
    for word in &node.args {
        crate::block::variable_name(node, word)?;
    }
    let (source, variable) = match node.args.as_slice() {
        [source, variable] => (Some(source.clone()), variable.clone()),
        _ => (None, node.arg(0)?.clone()),
    };
    let mut reading = Reading::of::<S>();
    for line in node.children()? {
        reading.line(line, cx)?;
    }
    let (proxies, chain, is_volatile) =
        (std::mem::take(&mut reading.proxies), reading.chain, reading.is_volatile);
    Ok(RawGeo { source, variable, table: reading.compile(), proxies, chain, is_volatile })
}

impl RawGeo {
    /// Makes it a variable.
    fn define<P: Protocol>(self, cx: &mut Resolve<'_, P>) -> Result<(), ConfError> {
        let text = self.source.map(|word| cx.template(&word)).transpose()?;
        let source = Source { text, proxies: self.proxies, chain: self.chain };
        let table = self.table;
        let values = [&*table.values, &[Box::default()]].concat();
        let compute = Arc::new(move |s: &P::Session, out: &mut Vec<u8>| {
            let addr = source.address(s, out);
            out.extend_from_slice(table.find(addr));
            Value::Found
        });
        let kind: SlotKind<P::Session> =
            if self.is_volatile { SlotKind::Volatile(compute) } else { SlotKind::Computed(compute) };
        crate::block::define(cx, &self.variable, kind, Some(values))
    }
}

impl<S: Session> Source<S> {
    /// The address; `None` if there is none. `out` is left as it is.
    fn address(&self, s: &S, out: &mut Vec<u8>) -> Option<IpAddr> {
        let addr = client(s, self.text.as_ref(), out)?;
        if self.proxies.is_empty() {
            return addr.inet().map(|addr| addr.ip());
        }
        let trusts = |addr: &Addr| {
            addr.inet().is_some_and(|addr| self.proxies.iter().any(|proxy| proxy.contains(addr.ip())))
        };
        let forwarded_addr = forwarded(&addr, s.forwarded(), self.chain, trusts);
        forwarded_addr.or(addr.inet()).map(|addr| addr.ip())
    }
}

/// The address in a text, or the client's own. `out` is left as it is.
fn client<S: Session>(s: &S, text: Option<&Template<S>>, out: &mut Vec<u8>) -> Option<Addr> {
    let Some(text) = text else { return Some(s.client_addr().clone()) };
    let start = out.len();
    text.eval(s, out);
    let addr = read_address(&out[start..]);
    out.truncate(start);
    addr.map(|addr| Addr::Inet((addr, 0).into()))
}

/// Reads an address, behind which a port may stand.
// DIFF(nginx): so that addresses of upstream servers can be looked up.
fn read_address(text: &[u8]) -> Option<IpAddr> {
    let with_port = || std::str::from_utf8(text).ok()?.parse().ok().map(|addr: SocketAddr| addr.ip());
    network::address(text).or_else(with_port)
}
