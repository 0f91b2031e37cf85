//! `zstd`: compresses responses for clients that accept it (nginx: the module zstd-nginx-module). Header filter, after
//! `brotli` and before `gzip`.

use std::sync::Arc;

use tw_base::PrefixedName;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_phases::content_coding::is_accepted;
use tw_request::body::Body;
use tw_request::plan::{HeaderFilter, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::VarDef;

use crate::shared::coding::{self, CodingDirectives, CompressionRules, Spec};

const ALL: u32 = HTTP | SERVER | LOCATION;
const RATIO: &str = "zstd_ratio";
/// The levels of libzstd.
const LEVELS: std::ops::RangeInclusive<i32> = -131_072..=22;

/// `zstd` as written.
#[derive(Default)]
pub(crate) struct Raw {
    common: coding::Raw,
    level: Setting<i32>,
}

/// `zstd` at one location.
pub(crate) struct Zstd {
    level: i32,
    rules: CompressionRules,
}

static NAMES: [PrefixedName; Raw::COMMON.len()] = record::names(Raw::PREFIX, &[Raw::COMMON]);

/// Records besides those that all codings have.
const OWN: &[Directive<Raw>] = &[
    record::new("zstd_comp_level", "level", ALL, Args::exact(1))
        .default("1")
        .doc("-131072 (fast) to 22 (small), without 0.")
        .set(|raw, node, _| raw.level.set_with(node, level)),
    record::new("zstd_dict_file", "file", HTTP, Args::exact(1))
        .doc("Refused: no client could decode what a dictionary of the server made.")
        .set(|_, node, _| {
            Err(node.error("is not supported").hint(
                "RFC 8878 lets nobody say which dictionary was used; clients cannot decode the response",
            ))
        }),
];

impl CodingDirectives for Raw {
    const PREFIX: &'static str = "zstd";
    const DOC: &'static str = "Compresses responses with zstd.";

    fn common(&mut self) -> &mut coding::Raw {
        &mut self.common
    }
}

impl Settings<Http> for Zstd {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &record::joined::<_, { NAMES.len() + OWN.len() }>(&[
        &record::with_names(&[Raw::COMMON], &NAMES),
        OWN,
    ]);

    const VARIABLES: &'static [VarDef] =
        &[VarDef::stored(RATIO, "How many times smaller zstd made the response.")];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let level = raw.level.or(outer.map(|o| o.level), 1);
        let spec = Spec::Zstd { level };
        let rules = CompressionRules::resolve(raw.common, outer.map(|o| &o.rules), spec, RATIO, cx);
        Ok(Self { level, rules })
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

impl HeaderFilter for Zstd {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        self.rules.filter(r, body, |r| is_accepted(r, b"zstd"))
    }
}

fn level(node: &Node) -> Result<i32, ConfError> {
    let text = node.arg(0)?.as_str().ok_or_else(|| node.error("invalid number"))?;
    match text.parse() {
        Ok(level) if level != 0 && LEVELS.contains(&level) => Ok(level),
        Ok(_) => {
            let min = LEVELS.start();
            let max = LEVELS.end();
            Err(node.fail(format!("zstd compress level must between {min} and {max} excluding 0")))
        }
        Err(_) => Err(node.error("invalid number")),
    }
}
