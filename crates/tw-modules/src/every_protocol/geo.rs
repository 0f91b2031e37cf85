//! `geo`: variables whose values depend on an address (nginx: ngx_http_geo_module, ngx_stream_geo_module).
//! Computed variables, in every protocol.

mod intervals;
mod ranges;
mod read;

use std::sync::Arc;

use tw_conf::{Args, ConfError, Cx, Directive, HTTP, MAIL, Network, Node, STREAM, Word, record};
use tw_core::load::Resolve;
use tw_core::module::{Protocol, Settings};
use tw_core::session::Session;
use tw_core::vars::{SlotKind, Value};
use tw_module_support::address_source::AddressSource;
use tw_module_support::forwarded::ProxyChain;

use self::intervals::GeoTable;
use self::read::Reading;

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

impl<P: Protocol> Settings<P> for Geo {
    type Raw = Raw;

    // DIFF(nginx): binary bases beside included files are neither read nor written.
    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new(
        "geo",
        "[$address] $variable { … }",
        HTTP | STREAM | MAIL,
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
        tw_module_support::block::variable_name(node, word)?;
    }
    let (source, variable) = match node.args.as_slice() {
        [source, variable] => (Some(source.clone()), variable.clone()),
        _ => (None, node.arg(0)?.clone()),
    };
    let mut reading = Reading::of::<S>();
    for line in node.children()? {
        reading.line(line, cx)?;
    }
    let proxies = std::mem::take(&mut reading.proxies);
    let chain = reading.chain;
    let is_volatile = reading.is_volatile;
    Ok(RawGeo { source, variable, table: reading.compile(), proxies, chain, is_volatile })
}

impl RawGeo {
    /// Makes it a variable.
    fn define<P: Protocol>(self, cx: &mut Resolve<'_, P>) -> Result<(), ConfError> {
        let text = self.source.map(|word| cx.template(&word)).transpose()?;
        let source = AddressSource { text, proxies: self.proxies.into(), chain: self.chain };
        let table = self.table;
        let values = [&*table.values, &[Box::default()]].concat();
        let compute = Arc::new(move |s: &P::Session, out: &mut Vec<u8>| {
            let addr = source.address(s, out);
            out.extend_from_slice(table.find(addr));
            Value::Found
        });
        let kind: SlotKind<P::Session> =
            if self.is_volatile { SlotKind::Volatile(compute) } else { SlotKind::Computed(compute) };
        tw_module_support::block::define(cx, &self.variable, kind, Some(values))
    }
}
