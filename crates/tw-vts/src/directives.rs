//! Directives of the module as written.

use std::sync::Arc;

use tw_conf::units::{self, ExtraDecimals};
use tw_conf::{
    Args, ConfError, Contexts, Directive, HTTP, IF_IN_LOCATION, LOCATION, Node, SERVER, Setting, Span, Word,
    record,
};
use tw_module_support::zone::ZoneParameter;

use super::node::{Average, AverageMethod, BUCKETS_MAX};
use super::stat::Stat;
use super::traffic_zone::NodeLimit;

const ALL: Contexts = HTTP | SERVER | LOCATION;
/// Name and size of the zone if the directive names none.
const DEFAULT_ZONE: (&[u8], u64) = (b"vhost_traffic_status", 1 << 20);

/// Format of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DisplayFormat {
    Json,
    Html,
    Jsonp,
    Prometheus,
}

impl DisplayFormat {
    /// Every format with its name.
    pub(super) const WORDS: [(&'static str, Self); 4] = [
        ("json", Self::Json),
        ("html", Self::Html),
        ("jsonp", Self::Jsonp),
        ("prometheus", Self::Prometheus),
    ];
}

/// Settings as written.
#[derive(Default)]
pub struct Raw {
    pub(super) zone: Setting<ZoneParameter>,
    pub(super) max_node: Setting<Option<NodeLimit>>,
    pub(super) by_upstream: Setting<bool>,
    pub(super) is_on: Setting<bool>,
    pub(super) display: bool,
    pub(super) format: Setting<DisplayFormat>,
    pub(super) jsonp: Setting<Box<[u8]>>,
    pub(super) sum_key: Setting<Box<[u8]>>,
    pub(super) average: Setting<Average>,
    pub(super) buckets: Setting<Arc<[u64]>>,
    pub(super) filter: Setting<bool>,
    pub(super) by_host: Setting<bool>,
    pub(super) filters: Vec<RawFilter>,
    pub(super) check_filters: Setting<bool>,
    pub(super) limit: Setting<bool>,
    pub(super) limits: Vec<RawTrafficLimit>,
    pub(super) check_limits: Setting<bool>,
    pub(super) bypass_limit: Setting<bool>,
    pub(super) bypass_stats: Setting<bool>,
    pub(super) set: Vec<RawSet>,
    /// Place of the first directive that has no meaning without a zone.
    pub(super) needs_zone: Option<Span>,
}

/// `vhost_traffic_status_filter_by_set_key`
pub(super) struct RawFilter {
    pub(super) key: Word,
    pub(super) group: Option<Word>,
}

/// `vhost_traffic_status_limit_traffic`, `vhost_traffic_status_limit_traffic_by_set_key`
pub(super) struct RawTrafficLimit {
    /// `None`: the server of the request.
    pub(super) key: Option<Word>,
    pub(super) stat: Stat,
    pub(super) most: u64,
    pub(super) status: u16,
}

/// `vhost_traffic_status_set_by_filter`
pub(super) struct RawSet {
    pub(super) variable: Word,
    /// Name of the node, with variables.
    pub(super) node: Word,
    /// True for a filter, false for a server.
    pub(super) is_filter: bool,
    pub(super) stat: Stat,
}

impl Raw {
    fn needs_zone(&mut self, node: &Node) {
        self.needs_zone.get_or_insert(node.span);
    }
}

/// The records.
// DIFF(nginx): counters last as long as the process: `vhost_traffic_status_dump` does not exist.
pub(super) const DIRECTIVES: &[Directive<Raw>] = &[
    record::new("vhost_traffic_status_zone", "[shared:name:size]", HTTP, Args::range(0, 1))
        .default("shared:vhost_traffic_status:1m")
        .doc("Counts requests by server, and by filters, in a zone of this size.")
        .set(|raw, node, _| raw.zone.set_with(node, read_zone)),
    record::flag("vhost_traffic_status", ALL)
        .default("on")
        .doc("Counts requests, if there is a zone.")
        .set(|raw, node, _| raw.is_on.set_flag(node)),
    record::new("vhost_traffic_status_display", "", SERVER | LOCATION, Args::NONE)
        .doc(
            "Returns the counters; a path that ends with /format/json, /format/jsonp, /format/html or /format/prometheus chooses \
             the format, one that ends with /control resets or deletes counters.",
        )
        .set(|raw, node, _| {
            raw.display = true;
            raw.needs_zone(node);
            Ok(())
        }),
    record::new("vhost_traffic_status_display_format", "json | html | jsonp | prometheus", ALL, Args::exact(1))
        .default("json")
        .doc("Format of a path that names none.")
        .set(|raw, node, _| raw.format.set_one_of(node, &DisplayFormat::WORDS)),
    record::new("vhost_traffic_status_display_jsonp", "callback", ALL, Args::exact(1))
        .default("ngx_http_vhost_traffic_status_jsonp_callback")
        .doc("Function that is called with the counters by the format jsonp: letters, digits, dots, _ and $.")
        .set(|raw, node, _| raw.jsonp.set_with(node, read_callback)),
    record::new("vhost_traffic_status_display_sum_key", "name", ALL, Args::exact(1))
        .default("*")
        .doc("Name of the sum of all servers.")
        .set(|raw, node, _| raw.sum_key.set_bytes(node)),
    record::new("vhost_traffic_status_average_method", "AMM | WMA [period]", ALL, Args::range(1, 2))
        .default("AMM 60s")
        .doc("Formula of average times: arithmetic mean, or weighted by age; and the age from which on a request does not count, 0 for none.")
        .set(|raw, node, _| raw.average.set_with(node, read_average)),
    record::new("vhost_traffic_status_histogram_buckets", "second …", ALL, Args::at_least(1))
        .doc("Bounds of a histogram of times, in growing order; it begins with the first request of a server or filter.")
        .set(|raw, node, _| raw.buckets.set_with(node, read_buckets)),
    record::flag("vhost_traffic_status_filter", ALL)
        .default("on")
        .doc("Counts by filters, too.")
        .set(|raw, node, _| raw.filter.set_flag(node)),
    record::flag("vhost_traffic_status_filter_by_host", ALL)
        .default("off")
        .doc("Counts by the host of the request in the place of the first name of its server.")
        .set(|raw, node, _| raw.by_host.set_flag(node)),
    record::new("vhost_traffic_status_filter_by_set_key", "key [name]", ALL, Args::range(1, 2))
        .doc("Counts by a key in the group of this name; without a group, as a server. Those of http count everywhere, those of a location in the place of its server's.")
        .set(|raw, node, _| {
            raw.filters.push(RawFilter { key: node.arg(0)?.clone(), group: node.args.get(1).cloned() });
            raw.needs_zone(node);
            Ok(())
        }),
    record::flag("vhost_traffic_status_filter_check_duplicate", ALL)
        .default("on")
        .doc("Counts once by filters of a block that have the same key and group.")
        .set(|raw, node, _| raw.check_filters.set_flag(node)),
    record::new("vhost_traffic_status_filter_max_node", "number [prefix …]", HTTP, Args::at_least(1))
        .default("0")
        .doc("Most keys of all filters, or of those whose group begins with one of these texts; the one used longest ago makes room. 0 is no limit.")
        .set(|raw, node, _| raw.max_node.set_with(node, read_max_node)),
    record::flag("vhost_traffic_status_limit", ALL)
        .default("on")
        .doc("Applies the limits of traffic.")
        .set(|raw, node, _| raw.limit.set_flag(node)),
    record::new("vhost_traffic_status_limit_traffic", "member:size [code]", ALL, Args::range(1, 2))
        .doc("Refuses requests once a counter of their server has exceeded a size; 503 unless a code is given.")
        .set(|raw, node, _| {
            raw.limits.push(read_limit(node, 0)?);
            raw.needs_zone(node);
            Ok(())
        }),
    record::new(
        "vhost_traffic_status_limit_traffic_by_set_key",
        "key member:size [code]",
        ALL,
        Args::range(2, 3),
    )
    .doc("Likewise for the counter of a server (NO@name) or a filter (FG@group@name).")
    .set(|raw, node, _| {
        raw.limits.push(read_limit(node, 1)?);
        raw.needs_zone(node);
        Ok(())
    }),
    record::flag("vhost_traffic_status_limit_check_duplicate", ALL)
        .default("on")
        .doc("Checks one of several limits of a block with the same key and member.")
        .set(|raw, node, _| raw.check_limits.set_flag(node)),
    record::flag("vhost_traffic_status_bypass_limit", ALL)
        .default("off")
        .doc("Leaves requests out of the limits.")
        .set(|raw, node, _| raw.bypass_limit.set_flag(node)),
    record::flag("vhost_traffic_status_bypass_stats", ALL)
        .default("off")
        .doc("Leaves requests out of the counters.")
        .set(|raw, node, _| raw.bypass_stats.set_flag(node)),
    record::flag("vhost_traffic_status_stats_by_upstream", HTTP)
        .default("on")
        .doc("Shows the counters of upstream servers, which are kept in any case.")
        .set(|raw, node, _| raw.by_upstream.set_flag(node)),
    record::new(
        "vhost_traffic_status_set_by_filter",
        "$variable group/zone/name",
        ALL | IF_IN_LOCATION,
        Args::exact(2),
    )
    .doc("Defines a variable with a counter: server/name/member, or filter/group@name/member.")
    .set(|raw, node, _| {
        raw.set.push(read_set(node)?);
        raw.needs_zone(node);
        Ok(())
    }),
];

fn read_zone(node: &Node) -> Result<ZoneParameter, ConfError> {
    let Some(word) = node.args.first() else {
        let (name, size) = DEFAULT_ZONE;
        return Ok(ZoneParameter { name: name.into(), size });
    };
    let value = word.bytes.strip_prefix(b"shared:").ok_or_else(|| node.invalid_parameter(word))?;
    ZoneParameter::read(node, word, value)?.ok_or_else(|| node.invalid_parameter(word))
}

/// A name that cannot be anything but a function.
fn read_callback(node: &Node) -> Result<Box<[u8]>, ConfError> {
    let word = node.arg(0)?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.');
    if !word.bytes.is_empty() && word.bytes.iter().all(is_plain) {
        Ok(word.bytes.clone())
    } else {
        Err(node.invalid_value(word))
    }
}

fn read_average(node: &Node) -> Result<Average, ConfError> {
    let word = node.arg(0)?;
    let words = [("AMM", AverageMethod::Arithmetic), ("WMA", AverageMethod::Weighted)];
    let method = word.one_of(&words).ok_or_else(|| node.invalid_value(word))?;
    let period_ms = match node.args.get(1) {
        None => Average::DEFAULT.period_ms,
        Some(word) => {
            let period = word.msec().ok_or_else(|| node.invalid_value(word))?;
            u64::try_from(period.as_millis()).unwrap_or(u64::MAX)
        }
    };
    Ok(Average { method, period_ms })
}

fn read_buckets(node: &Node) -> Result<Arc<[u64]>, ConfError> {
    if node.args.len() > BUCKETS_MAX {
        return Err(node.fail(format!("more than {BUCKETS_MAX} buckets in \"{}\"", node.name)));
    }
    let mut bounds: Vec<u64> = Vec::with_capacity(node.args.len());
    for word in &node.args {
        let last = bounds.last().copied().unwrap_or(0);
        let bound = units::fixed(&word.bytes, 3, ExtraDecimals::Refused).filter(|bound| *bound > last);
        bounds.push(bound.ok_or_else(|| node.invalid_value(word))?);
    }
    Ok(bounds.into())
}

fn read_max_node(node: &Node) -> Result<Option<NodeLimit>, ConfError> {
    let word = node.arg(0)?;
    let number = word.number().ok_or_else(|| node.invalid_value(word))?;
    let most = usize::try_from(number).map_err(|_| node.invalid_value(word))?;
    let prefixes = node.args.iter().skip(1).map(|word| word.bytes.clone()).collect();
    Ok((most > 0).then_some(NodeLimit { most, prefixes }))
}

/// Reads `member:size [code]` from argument `at` on; an argument before it is the key.
fn read_limit(node: &Node, at: usize) -> Result<RawTrafficLimit, ConfError> {
    let word = node.arg(at)?;
    let invalid = || node.invalid_value(word);
    let colon = word.bytes.iter().position(|byte| *byte == b':').ok_or_else(invalid)?;
    let stat = Stat::of_limit(&word.bytes[..colon]).ok_or_else(invalid)?;
    let most = units::offset(&word.bytes[colon + 1..]).ok_or_else(invalid)?;
    let status = match node.args.get(at + 1) {
        None => 503,
        Some(word) => match word.number() {
            Some(code @ 400..=599) => code as u16,
            _ => return Err(node.fail(format!("invalid code \"{word}\", it must be between 400 and 599"))),
        },
    };
    let key = match at {
        0 => None,
        _ => Some(read_limit_key(node)?),
    };
    Ok(RawTrafficLimit { key, stat, most, status })
}

fn read_limit_key(node: &Node) -> Result<Word, ConfError> {
    let word = node.arg(0)?;
    match &*word.bytes {
        [b'N', b'O', b'@', _, ..] | [b'F', b'G', b'@', _, ..] => Ok(word.clone()),
        [b'U', b'A' | b'G', b'@', ..] | [b'C', b'C', b'@', ..] => {
            let message = format!("\"{word}\": traffic of upstream servers and caches cannot be limited");
            Err(node.fail(message).at(word.span).hint("NO@name is a server, FG@group@name a filter"))
        }
        _ => Err(node.invalid_value(word)),
    }
}

fn read_set(node: &Node) -> Result<RawSet, ConfError> {
    let [variable, word] = node.words()?;
    tw_module_support::block::variable_name(node, variable)?;
    let invalid = || node.invalid_value(word);
    let (group, rest) =
        split(&word.bytes, |all| all.iter().position(|byte| *byte == b'/')).ok_or_else(invalid)?;
    let (name, member) = split(rest, |all| all.iter().rposition(|byte| *byte == b'/')).ok_or_else(invalid)?;
    let stat = Stat::of_set(member).ok_or_else(invalid)?;
    let is_filter = match group {
        b"server" => false,
        b"filter" => true,
        b"upstream@alone" | b"upstream@group" | b"cache" => {
            let message = format!("\"{word}\": counters of upstream servers and caches are no variables");
            return Err(node.fail(message).at(word.span).hint("\"server/…\" and \"filter/…\" are"));
        }
        _ => return Err(invalid()),
    };
    let node_name = Word { bytes: name.into(), ..word.clone() };
    Ok(RawSet { variable: variable.clone(), node: node_name, is_filter, stat })
}

/// Splits at the position that `find` returns, if both parts have something.
fn split(text: &[u8], find: impl Fn(&[u8]) -> Option<usize>) -> Option<(&[u8], &[u8])> {
    let at = find(text)?;
    let first = &text[..at];
    let rest = &text[at + 1..];
    (!first.is_empty() && !rest.is_empty()).then_some((first, rest))
}
