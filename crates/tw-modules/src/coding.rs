//! Content codings: what `gzip`, `brotli`, `zstd` and `gunzip` share.
//!
//! `codec` is pure (bytes in, bytes out), `spare` keeps what is costly to make, `compress` is the filter that uses both.

mod brotli;
mod codec;
mod compress;
mod deflate;
mod ratio;
mod spare;
mod turn;
mod zstd;

pub(crate) use codec::Spec;
pub(crate) use compress::{LIMITS, Rules};
pub(crate) use ratio::{find as find_ratio, slot as ratio_slot};
