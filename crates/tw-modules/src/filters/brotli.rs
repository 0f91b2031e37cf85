//! `brotli`: compresses responses for clients that accept it (nginx: the module ngx_brotli). Header filter, before
//! `zstd` and `gzip`: it is preferred because it compresses text best.

use std::sync::Arc;

use tw_base::PrefixedName;
use tw_conf::{ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_phases::content_coding::is_accepted;
use tw_request::body::Body;
use tw_request::plan::{HeaderFilter, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::VarDef;

use crate::filters::gzip::{level, power};
use crate::shared::coding::{self, CodingDirectives, CompressionRules, Spec};

const ALL: u32 = HTTP | SERVER | LOCATION;
const RATIO: &str = "brotli_ratio";

/// `brotli` as written.
#[derive(Default)]
pub(crate) struct Raw {
    common: coding::Raw,
    quality: Setting<u8>,
    window_bits: Setting<u8>,
}

/// `brotli` at one location.
pub(crate) struct Brotli {
    quality: u8,
    window_bits: u8,
    rules: CompressionRules,
}

static NAMES: [PrefixedName; Raw::COMMON.len()] = record::names(Raw::PREFIX, &[Raw::COMMON]);

/// Records besides those that all codings have.
const OWN: &[Directive<Raw>] = &[
    record::number("brotli_comp_level", ALL)
        .default("6")
        .doc("0 (fast) to 11 (small).")
        .set(|raw, node, _| raw.quality.set_with(node, |node| level(node, 0, 11))),
    record::size("brotli_window", ALL)
        .default("512k")
        .doc("Distance over which repetitions are found: no more than the body is long, and 256k if its length is not known.")
        .set(|raw, node, _| {
            let what = "must be 1k, 2k, 4k, 8k, 16k, 32k, 64k, 128k, 256k, 512k, 1m, 2m, 4m, 8m or 16m";
            raw.window_bits.set_with(node, |node| power(node, 10..=24, what))
        }),
];

impl CodingDirectives for Raw {
    const PREFIX: &'static str = "brotli";
    const DOC: &'static str = "Compresses responses with brotli.";

    fn common(&mut self) -> &mut coding::Raw {
        &mut self.common
    }
}

impl Settings<Http> for Brotli {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &record::joined::<_, { NAMES.len() + OWN.len() }>(&[
        &record::with_names(&[Raw::COMMON], &NAMES),
        OWN,
    ]);

    const VARIABLES: &'static [VarDef] =
        &[VarDef::stored(RATIO, "How many times smaller brotli made the response.")];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let quality = raw.quality.or(outer.map(|o| o.quality), 6);
        let window_bits = raw.window_bits.or(outer.map(|o| o.window_bits), 19);
        let spec = Spec::Brotli { quality, window_bits };
        let rules = CompressionRules::resolve(raw.common, outer.map(|o| &o.rules), spec, RATIO, cx);
        Ok(Self { quality, window_bits, rules })
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

impl HeaderFilter for Brotli {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        self.rules.filter(r, body, |r| is_accepted(r, b"br"))
    }
}
