//! The limits of the core and of the crates below it, gathered for `docs/limits.md`.

use tw_base::Limit;

/// Limits that no module keeps, by what they protect.
pub static CORE: [(&str, &[Limit]); 0] = [];
