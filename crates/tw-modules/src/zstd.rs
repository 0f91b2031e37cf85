//! `zstd`: compresses responses for clients that accept it (nginx: the module zstd-nginx-module). Header filter, after
//! `brotli` and before `gzip`.

use std::sync::Arc;

use tw_conf::{
    Args, Buffers, ConfError, Directive, HTTP, IF_IN_LOCATION, LOCATION, Node, SERVER, Setting, record,
};
use tw_server::http::body::Body;
use tw_server::http::coding::is_accepted;
use tw_server::http::plan::{HeaderFilter, Plan};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::module::Settings;
use tw_server::vars::VarDef;

use crate::coding::{self, Budget, Rules, Spec};
use crate::types::{self, RawTypes, Types};

const ALL: u32 = HTTP | SERVER | LOCATION;
const RATIO: &str = "zstd_ratio";
const TYPES: &[&str] = &["text/html"];
const BUFFERS: Buffers = Buffers { count: 32, size: 4096 };
/// The levels of libzstd.
const LEVELS: std::ops::RangeInclusive<i32> = -131_072..=22;

/// `zstd` as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<bool>,
    types: RawTypes,
    level: Setting<i32>,
    min_length: Setting<u64>,
    buffers: Setting<Buffers>,
}

/// `zstd` at one location.
pub(crate) struct Zstd {
    on: bool,
    level: i32,
    rules: Rules,
}

impl Settings for Zstd {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("zstd", ALL | IF_IN_LOCATION)
            .default("off")
            .doc("Compresses responses with zstd.")
            .set(|raw, node, _| raw.on.set_flag(node)),
        record::new("zstd_types", "mime-type …", ALL, Args::at_least(1))
            .default("text/html")
            .doc("Media types to compress besides text/html; * is any.")
            .set(|raw, node, cx| {
                types::add(&mut raw.types, node, TYPES, cx);
                Ok(())
            }),
        record::new("zstd_comp_level", "level", ALL, Args::exact(1))
            .default("1")
            .doc("-131072 (fast) to 22 (small), without 0.")
            .set(|raw, node, _| raw.level.set_with(node, level)),
        record::size("zstd_min_length", ALL)
            .default("20")
            .doc("Shorter responses are not compressed.")
            .set(|raw, node, _| raw.min_length.set_size(node)),
        record::buffers("zstd_buffers", ALL)
            .default("32 4k")
            .doc("How much is compressed at a time by the loop: number times size, between 4k and 64k.")
            .set(|raw, node, _| raw.buffers.set_buffers(node)),
        record::new("zstd_dict_file", "file", HTTP, Args::exact(1))
            .doc("Refused: no client could decode what a dictionary of the server made.")
            .set(|_, node, _| {
                Err(node.error("is not supported").hint(
                    "RFC 8878 lets nobody say which dictionary was used; clients cannot decode the response",
                ))
            }),
    ];

    const VARIABLES: &'static [VarDef] = &[VarDef::one(
        RATIO,
        |r, out| coding::find_ratio(RATIO, r, out),
        "How many times smaller zstd made the response.",
    )];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let level = raw.level.or(outer.map(|o| o.level), 1);
        Ok(Self {
            on: raw.on.or(outer.map(|o| o.on), false),
            level,
            rules: Rules {
                types: Types::resolve(raw.types, outer.map(|o| &o.rules.types), TYPES),
                min_length: raw.min_length.or(outer.map(|o| o.rules.min_length), 20),
                buffers: raw.buffers.or(outer.map(|o| o.rules.buffers), BUFFERS),
                spec: Spec::Zstd { level },
                ratio: coding::ratio_slot(RATIO, cx),
                budget: Budget::keep(cx),
            },
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.on {
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
            let (min, max) = (LEVELS.start(), LEVELS.end());
            Err(node.fail(format!("zstd compress level must between {min} and {max} excluding 0")))
        }
        Err(_) => Err(node.error("invalid number")),
    }
}
