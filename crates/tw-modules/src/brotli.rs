//! `brotli`: compresses responses for clients that accept it (nginx: the module ngx_brotli). Header filter, before `zstd`
//! and `gzip`: a client that takes several gets this one, which makes the least of a text.

use std::sync::Arc;

use tw_conf::{Args, Buffers, ConfError, Directive, HTTP, IF_IN_LOCATION, LOCATION, SERVER, Setting, record};
use tw_server::http::body::Body;
use tw_server::http::coding::is_accepted;
use tw_server::http::plan::{HeaderFilter, Plan};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::module::Settings;
use tw_server::vars::VarDef;

use crate::coding::{self, Budget, Rules, Spec};
use crate::gzip::{level, power};
use crate::types::{self, RawTypes, Types};

const ALL: u32 = HTTP | SERVER | LOCATION;
const RATIO: &str = "brotli_ratio";
const TYPES: &[&str] = &["text/html"];
const BUFFERS: Buffers = Buffers { count: 32, size: 4096 };

/// `brotli` as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<bool>,
    types: RawTypes,
    quality: Setting<u8>,
    window_bits: Setting<u8>,
    min_length: Setting<u64>,
    buffers: Setting<Buffers>,
}

/// `brotli` at one location.
pub(crate) struct Brotli {
    on: bool,
    quality: u8,
    window_bits: u8,
    rules: Rules,
}

impl Settings for Brotli {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("brotli", ALL | IF_IN_LOCATION)
            .default("off")
            .doc("Compresses responses with brotli.")
            .set(|raw, node, _| raw.on.set_flag(node)),
        record::new("brotli_types", "mime-type …", ALL, Args::at_least(1))
            .default("text/html")
            .doc("Media types to compress besides text/html; * is any.")
            .set(|raw, node, cx| {
                types::add(&mut raw.types, node, TYPES, cx);
                Ok(())
            }),
        record::number("brotli_comp_level", ALL)
            .default("6")
            .doc("0 (fast) to 11 (small).")
            .set(|raw, node, _| raw.quality.set_with(node, |node| level(node, 0, 11))),
        record::size("brotli_window", ALL)
            .default("512k")
            .doc("Distance over which repetitions are found.")
            .set(|raw, node, _| {
                let what = "must be 1k, 2k, 4k, 8k, 16k, 32k, 64k, 128k, 256k, 512k, 1m, 2m, 4m, 8m or 16m";
                raw.window_bits.set_with(node, |node| power(node, 10..=24, what))
            }),
        record::size("brotli_min_length", ALL)
            .default("20")
            .doc("Shorter responses are not compressed.")
            .set(|raw, node, _| raw.min_length.set_size(node)),
        record::buffers("brotli_buffers", ALL)
            .default("32 4k")
            .doc("How much is compressed at a time by the loop: number times size, between 4k and 64k.")
            .set(|raw, node, _| raw.buffers.set_buffers(node)),
    ];

    const VARIABLES: &'static [VarDef] = &[VarDef::one(
        RATIO,
        |r, out| coding::find_ratio(RATIO, r, out),
        "How many times smaller brotli made the response.",
    )];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let quality = raw.quality.or(outer.map(|o| o.quality), 6);
        let window_bits = raw.window_bits.or(outer.map(|o| o.window_bits), 19);
        Ok(Self {
            on: raw.on.or(outer.map(|o| o.on), false),
            quality,
            window_bits,
            rules: Rules {
                types: Types::resolve(raw.types, outer.map(|o| &o.rules.types), TYPES),
                min_length: raw.min_length.or(outer.map(|o| o.rules.min_length), 20),
                buffers: raw.buffers.or(outer.map(|o| o.rules.buffers), BUFFERS),
                spec: Spec::Brotli { quality, window_bits },
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

impl HeaderFilter for Brotli {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        self.rules.filter(r, body, |r| is_accepted(r, b"br"))
    }
}
