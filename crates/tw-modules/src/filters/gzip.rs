//! `gzip`: compresses responses for clients that accept it (nginx: ngx_http_gzip_filter_module). Header filter, after
//! everything that changes a body.

use std::sync::Arc;

use tw_base::{Limit, PrefixedName};
use tw_conf::{ConfError, Directive, HTTP, IneffectiveDirectives, LOCATION, Node, SERVER, Setting, record};
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_phases::content_coding::is_gzip_allowed;
use tw_request::body::Body;
use tw_request::plan::{HeaderFilter, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::VarDef;

use crate::shared::coding::{self, CodingDirectives, CompressionRules, Spec};

const ALL: u32 = HTTP | SERVER | LOCATION;
const RATIO: &str = "gzip_ratio";

/// `gzip` as written.
#[derive(Default)]
pub(crate) struct Raw {
    common: coding::Raw,
    level: Setting<u8>,
    window_bits: Setting<u8>,
    mem_level: Setting<u8>,
    without_effect: IneffectiveDirectives,
}

/// `gzip` at one location.
pub(crate) struct Gzip {
    level: u8,
    window_bits: u8,
    mem_level: u8,
    rules: CompressionRules,
}

static NAMES: [PrefixedName; Raw::COMMON.len()] = record::names(Raw::PREFIX, &[Raw::COMMON]);

/// Records besides those that all codings have.
const OWN: &[Directive<Raw>] = &[
    record::number("gzip_comp_level", ALL)
        .default("1")
        .doc("1 (fast) to 9 (small).")
        .set(|raw, node, _| raw.level.set_with(node, |node| level(node, 1, 9))),
    record::size("gzip_window", ALL).default("32k").doc("Distance over which repetitions are found.").set(
        |raw, node, _| {
            let what = "must be 512, 1k, 2k, 4k, 8k, 16k, or 32k";
            raw.window_bits.set_with(node, |node| power(node, 9..=15, what))
        },
    ),
    record::size("gzip_hash", ALL).default("64k").doc("Memory for what waits to be written.").set(
        |raw, node, _| {
            let what = "must be 512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k";
            // 512 bytes are the least memory of zlib, and each doubling is one level more.
            raw.mem_level.set_with(node, |node| Ok(power(node, 9..=17, what)? - 8))
        },
    ),
    // DIFF(nginx): how long input is collected before it is compressed is not to be set.
    record::size("postpone_gzipping", ALL)
        .default("0")
        .doc("Accepted and without effect: no encoder is taken before there is input.")
        .set(|raw, node, _| {
            node.size()?;
            raw.without_effect.set_once(node)
        }),
    record::flag("gzip_no_buffer", ALL)
        .default("off")
        .doc("Accepted and without effect: what is compressed is passed on at once.")
        .set(|raw, node, _| {
            node.flag()?;
            raw.without_effect.set_once(node)
        }),
];

impl CodingDirectives for Raw {
    const PREFIX: &'static str = "gzip";
    const DOC: &'static str = "Compresses responses with gzip.";

    fn common(&mut self) -> &mut coding::Raw {
        &mut self.common
    }
}

impl Settings<Http> for Gzip {
    type Raw = Raw;

    /// Limits of all content codings.
    const LIMITS: &'static [Limit] = coding::LIMITS;

    /// Metrics of all content codings.
    const METRICS: &'static [Metric] = coding::METRICS;

    const DIRECTIVES: &'static [Directive<Raw>] = &record::joined::<_, { NAMES.len() + OWN.len() }>(&[
        &record::with_names(&[Raw::COMMON], &NAMES),
        OWN,
    ]);

    const VARIABLES: &'static [VarDef] =
        &[VarDef::stored(RATIO, "How many times smaller gzip made the response.")];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let level = raw.level.or(outer.map(|o| o.level), 1);
        let window_bits = raw.window_bits.or(outer.map(|o| o.window_bits), 15);
        let mem_level = raw.mem_level.or(outer.map(|o| o.mem_level), 8);
        let spec = Spec::Gzip { level, window_bits, mem_level };
        let rules = CompressionRules::resolve(raw.common, outer.map(|o| &o.rules), spec, RATIO, cx);
        Ok(Self { level, window_bits, mem_level, rules })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.rules.on {
            plan.add_header_filter(self.clone());
        }
    }
}

impl HeaderFilter for Gzip {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        self.rules.filter(r, body, is_gzip_allowed)
    }
}

/// Reads a level.
pub(crate) fn level(node: &Node, min: u8, max: u8) -> Result<u8, ConfError> {
    match u8::try_from(node.number()?) {
        Ok(level) if (min..=max).contains(&level) => Ok(level),
        _ => Err(node.fail(format!("value must be between {min} and {max}"))),
    }
}

/// Reads a size that is a power of two and returns its base-2 logarithm.
pub(crate) fn power(node: &Node, bits: std::ops::RangeInclusive<u8>, what: &str) -> Result<u8, ConfError> {
    let size = node.size()?;
    bits.clone().find(|bits| size == 1 << bits).ok_or_else(|| node.error(what))
}
