//! Content codings: shared by `gzip`, `brotli`, `zstd` and `gunzip`.
//!
//! `codec` is pure (bytes in, bytes out, by the trait in `encoder`), `spare_encoders` keeps unused encoders, `budget` counts the
//! memory of both, and `compress` is the filter that uses them.

mod brotli;
mod budget;
mod codec;
mod compress;
mod deflate;
mod encoder;
mod encoder_memory;
mod ratio;
mod settings;
mod spare_encoders;
mod turn_budget;
mod zstd;

pub(crate) use budget::METRICS;
pub(crate) use codec::Spec;
pub(crate) use compress::{CompressionRules, LIMITS};
pub(crate) use settings::{CodingDirectives, Raw};
