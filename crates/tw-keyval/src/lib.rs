//! `keyval_zone`, `keyval`: variables whose values are pairs of a table that the API changes (nginx: ngx_http_keyval_module and
//! ngx_stream_keyval_module of its commercial edition). Volatile variables, in every protocol.
//!
//! A table outlives configurations. Changes are in memory at once; the file of `state` is then written by the pool.

mod pairs;
mod state;
mod variables;
mod zone;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, MAIL, Node, STREAM, Span, Word, record, units};
use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::{Protocol, Settings};
use tw_core::reach::Reach;
use tw_core::session::Session;
use tw_core::vars::SlotKind;
use tw_module_support::block::variable_name;
use tw_module_support::zone::{self as shared_zone, ZoneParameter};

pub use self::pairs::{ChangeError, Pair, PairChange};
use self::pairs::{KeyKind, Pairs};
pub use self::variables::{KEYVAL_VARIABLES, KeyvalVariables};
pub use self::zone::{KeyvalZone, unix_ms};
use self::zone::{SharedPairs, StateFile};

/// Owner of the names of zones.
const OWNER: &str = "keyval";

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    zones: Vec<RawZone>,
    variables: Vec<RawVariable>,
}

/// `keyval_zone` as written.
struct RawZone {
    zone: ZoneParameter,
    state: Option<Word>,
    timeout: Option<Duration>,
    kind: KeyKind,
    /// Place of `sync`.
    sync: Option<Span>,
    span: Span,
}

/// `keyval key $variable zone=name`
struct RawVariable {
    key: Word,
    variable: Word,
    zone: Box<[u8]>,
    span: Span,
}

/// Zones in use. Their variables belong to the whole configuration.
pub struct Keyval {
    zones: Vec<Arc<KeyvalZone>>,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of keys and values of one table.
    parameter "keyval_zone", "zone=name:", "a size that must be given", "the API answers 507";
}

impl<P: Protocol> Settings<P> for Keyval {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new(
            "keyval_zone",
            "zone=name:size [state=file] [timeout=time] [type=string|ip|prefix] [sync]",
            HTTP | STREAM | MAIL,
            Args::range(1, 5),
        )
        .since("1.13.3")
        .doc("Declares a table of keys and values, which the API shows and changes. state is a JSON file that keeps it over a restart, timeout removes pairs so long after they were set. With type=ip keys are addresses and networks, with type=prefix beginnings of what is looked up. sync has no effect.")
        .set(|raw, node, _| {
            raw.zones.push(RawZone::read(node)?);
            Ok(())
        }),
        record::new("keyval", "key $variable zone=name", HTTP | STREAM | MAIL, Args::exact(3))
            .since("1.13.3")
            .doc("Defines a variable that has the value of a key in a table.")
            .set(|raw, node, _| {
                raw.variables.push(RawVariable::read(node)?);
                Ok(())
            }),
    ];

    const LIMITS: &'static [Limit] = LIMITS;

    const METRICS: &'static [Metric] = &[Metric {
        name: "keyval_entries",
        kind: MetricKind::Gauge,
        labels: &["zone"],
        doc: "Pairs in a table of keyval_zone.",
        read: |scrape, out| {
            for zone in scrape.shared_objects::<KeyvalZone>() {
                out.value(&[&zone.name], zone.pairs.entries());
            }
        },
    }];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let mut zones: HashMap<Box<[u8]>, Arc<KeyvalZone>> = HashMap::new();
        for raw_zone in raw.zones {
            let name = raw_zone.zone.name.clone();
            let span = raw_zone.span;
            if zones.contains_key(&name) {
                let name = String::from_utf8_lossy(&name);
                return Err(ConfError::new(format!("duplicate keyval zone \"{name}\"")).at(span));
            }
            let zone = raw_zone.resolve(cx).map_err(|error| error.at(span))?;
            zones.insert(name, zone);
        }
        for variable in raw.variables {
            variable.define(&zones, cx)?;
        }
        Ok(Self { zones: zones.into_values().collect() })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn reach(&self, _core: &P::Core, reach: &mut Reach) {
        for state in self.zones.iter().filter_map(|zone| zone.state.as_ref()) {
            reach.replaces_file(state.path().to_bytes());
        }
    }
}

impl RawZone {
    fn read(node: &Node) -> Result<Self, ConfError> {
        let mut zone = None;
        let mut state = None;
        let mut timeout = None;
        let mut kind = None;
        let mut sync = None;
        for word in &node.args {
            let invalid = || node.invalid_parameter(word);
            if let Some(value) = word.param("zone") {
                zone = ZoneParameter::read(node, word, value)?;
            } else if let Some(value) = word.param("state").filter(|value| !value.is_empty()) {
                state = Some(Word { bytes: value.into(), ..word.clone() });
            } else if let Some(value) = word.param("timeout") {
                timeout = Some(units::msec(value).filter(|time| !time.is_zero()).ok_or_else(invalid)?);
            } else if let Some(value) = word.param("type") {
                kind = Some(KeyKind::parse(value).ok_or_else(invalid)?);
            } else if word.is("sync") {
                sync = Some(word.span);
            } else {
                return Err(invalid());
            }
        }
        if sync.is_some() && timeout.is_none() {
            return Err(node.fail("\"sync\" requires the \"timeout\" parameter"));
        }
        Ok(Self {
            zone: zone.ok_or_else(|| shared_zone::missing(node))?,
            state,
            timeout,
            kind: kind.unwrap_or(KeyKind::Text),
            sync,
            span: node.span,
        })
    }

    /// The zone, with the pairs of the configuration before or of its file.
    fn resolve<P: Protocol>(self, cx: &mut Resolve<'_, P>) -> Result<Arc<KeyvalZone>, ConfError> {
        let ZoneParameter { name, size } = self.zone;
        shared_zone::claim(cx, &name, OWNER)?;
        // DIFF(nginx): zones are not synchronized with other servers.
        if let Some(sync) = self.sync {
            cx.warn(sync, "\"sync\" has no effect: the table is not shared with other servers");
        }
        let state = match &self.state {
            Some(word) => Some(StateFile::claim(word, &name, cx)?),
            None => None,
        };
        let fits = |shared_pairs: &SharedPairs| shared_pairs.size == size && shared_pairs.kind == self.kind;
        let pairs = cx.try_keep(&name, fits, || {
            let mut pairs = Pairs::new(self.kind, size);
            if let Some(state) = &state {
                state.fill(&mut pairs)?;
            }
            Ok(SharedPairs::new(self.kind, size, pairs))
        })?;
        let shown = String::from_utf8_lossy(&name).into();
        let make = || KeyvalZone {
            protocol: P::NAME,
            name: shown,
            timeout: self.timeout,
            state: state.clone(),
            pairs,
        };
        Ok(cx.keep(&name, |_: &KeyvalZone| false, make))
    }
}

impl RawVariable {
    fn read(node: &Node) -> Result<Self, ConfError> {
        let [key, variable, zone] = node.words()?;
        variable_name(node, variable)?;
        let zone = zone.param("zone").ok_or_else(|| node.invalid_parameter(zone))?;
        if zone.is_empty() {
            return Err(shared_zone::missing(node));
        }
        Ok(Self { key: key.clone(), variable: variable.clone(), zone: zone.into(), span: node.span })
    }

    fn define<P: Protocol>(
        self,
        zones: &HashMap<Box<[u8]>, Arc<KeyvalZone>>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<(), ConfError> {
        let Some(zone) = zones.get(&self.zone) else {
            shared_zone::claim(cx, &self.zone, OWNER)?;
            return Err(shared_zone::undeclared(&self.zone, self.span));
        };
        let key = cx.template(&self.key)?;
        let variables = cx.keep(KEYVAL_VARIABLES, |_| false, KeyvalVariables::<P::Session>::default);
        variables.add(&self.variable.lossy(), key.clone(), zone.clone());
        let pairs = zone.pairs.clone();
        let look_up = move |s: &P::Session, out: &mut Vec<u8>| {
            let mut text = s.scratch().take();
            text.clear();
            key.eval(s, &mut text);
            let value = pairs.look_up(&text, out);
            s.scratch().set(text);
            value
        };
        tw_module_support::block::define(cx, &self.variable, SlotKind::Volatile(Arc::new(look_up)), None)
    }
}
