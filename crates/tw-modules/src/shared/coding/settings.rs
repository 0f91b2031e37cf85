//! Settings shared by `gzip`, `brotli` and `zstd`, with the prefix of each.

use tw_conf::{Args, Buffers, Directive, HTTP, IF_IN_LOCATION, LOCATION, SERVER, Setting, record};
use tw_module_support::types::{self, RawTypes, Types};
use tw_request::protocol::Resolve;

use super::budget::Budget;
use super::codec::Spec;
use super::compress::CompressionRules;

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Media types that are compressed in any case.
const TYPES: &[&str] = &["text/html"];
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

/// Directives that every coding has; the settings as written of its module are `Self`.
pub(crate) trait CodingDirectives: Sized + 'static {
    /// Name of the directive that switches the coding on, and prefix of the others.
    const PREFIX: &'static str;
    /// Documentation of that directive.
    const DOC: &'static str;

    /// Settings that all codings have.
    fn common(&mut self) -> &mut Raw;

    /// Records of the directives, named without the prefix.
    const COMMON: &'static [Directive<Self>] = &[
        record::flag("", ALL | IF_IN_LOCATION)
            .default("off")
            .doc(Self::DOC)
            .set(|raw, node, _| raw.common().on.set_flag(node)),
        record::new("_types", "mime-type …", ALL, Args::at_least(1))
            .default("text/html")
            .doc("Media types to compress besides text/html; * is any.")
            .set(|raw, node, cx| {
                types::add(&mut raw.common().types, node, TYPES, cx);
                Ok(())
            }),
        record::size("_min_length", ALL)
            .default("20")
            .doc("Shorter responses are not compressed.")
            .set(|raw, node, _| raw.common().min_length.set_size(node)),
        record::buffers("_buffers", ALL)
            .default("32 4k")
            .doc("Bytes that the loop compresses at a time: number times size, between 4k and 64k.")
            .set(|raw, node, _| raw.common().buffers.set_buffers(node)),
    ];
}

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
