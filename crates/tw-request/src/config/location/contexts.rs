//! Blocks in which the directives of the core stand.

use tw_conf::{HTTP, IF_IN_LOCATION, LOCATION, SERVER};

/// Everywhere in `http`.
pub(super) const ALL: u32 = HTTP | SERVER | LOCATION;
/// Everywhere in `http`, and in `if` blocks of locations.
pub(super) const ALL_IF: u32 = ALL | IF_IN_LOCATION;
