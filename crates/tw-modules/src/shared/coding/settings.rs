//! Settings shared by `gzip`, `brotli` and `zstd`, with the prefix of each.

use tw_conf::{Buffers, Setting};
use tw_server::load::Resolve;

use super::budget::Budget;
use super::codec::Spec;
use super::compress::CompressionRules;
use crate::shared::types::{RawTypes, Types};

/// Media types that are compressed in any case.
pub(crate) const TYPES: &[&str] = &["text/html"];
const MIN_LENGTH: u64 = 20;
const BUFFERS: Buffers = Buffers { count: 32, size: 4096 };

/// Conditions of compression, as written.
#[derive(Default)]
pub(crate) struct Raw {
    pub(crate) on: Setting<bool>,
    pub(crate) types: RawTypes,
    pub(crate) min_length: Setting<u64>,
    pub(crate) buffers: Setting<Buffers>,
}

/// Records of the directives that every coding has, followed by its own. Values go into the field `common` of the
/// settings as written.
macro_rules! directives {
    ($name:literal, $($own:expr),* $(,)?) => {
        &[
            record::flag($name, ALL | IF_IN_LOCATION)
                .default("off")
                .doc(concat!("Compresses responses with ", $name, "."))
                .set(|raw, node, _| raw.common.on.set_flag(node)),
            record::new(concat!($name, "_types"), "mime-type …", ALL, Args::at_least(1))
                .default("text/html")
                .doc("Media types to compress besides text/html; * is any.")
                .set(|raw, node, cx| {
                    crate::shared::types::add(&mut raw.common.types, node, coding::TYPES, cx);
                    Ok(())
                }),
            record::size(concat!($name, "_min_length"), ALL)
                .default("20")
                .doc("Shorter responses are not compressed.")
                .set(|raw, node, _| raw.common.min_length.set_size(node)),
            record::buffers(concat!($name, "_buffers"), ALL)
                .default("32 4k")
                .doc("Bytes that the loop compresses at a time: number times size, between 4k and 64k.")
                .set(|raw, node, _| raw.common.buffers.set_buffers(node)),
            $($own),*
        ]
    };
}

pub(crate) use directives;

impl CompressionRules {
    /// Resolves settings as written; `ratio` is the name of the variable of the compression ratio.
    pub(crate) fn resolve(
        raw: Raw,
        outer: Option<&Self>,
        spec: Spec,
        ratio: &'static str,
        cx: &mut Resolve<'_>,
    ) -> Self {
        Self {
            on: raw.on.or(outer.map(|o| o.on), false),
            types: Types::resolve(raw.types, outer.map(|o| &o.types), TYPES),
            min_length: raw.min_length.or(outer.map(|o| o.min_length), MIN_LENGTH),
            buffers: raw.buffers.or(outer.map(|o| o.buffers), BUFFERS),
            spec,
            ratio: cx.slot(ratio),
            budget: Budget::keep(cx),
        }
    }
}
