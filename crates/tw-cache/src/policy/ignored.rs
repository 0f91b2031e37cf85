//! Response fields that the cache is configured to ignore: its part of `proxy_ignore_headers`.

use std::ops::BitOr;

/// A set of fields, as a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored(u8);

impl Ignored {
    /// No field.
    pub const NONE: Ignored = Ignored(0);
    /// `X-Accel-Expires`
    pub const X_ACCEL_EXPIRES: Ignored = Ignored(1);
    /// `Expires`
    pub const EXPIRES: Ignored = Ignored(1 << 1);
    /// `Cache-Control`, and what replaces it (`Rules::targeted`)
    pub const CACHE_CONTROL: Ignored = Ignored(1 << 2);
    /// `Set-Cookie`
    pub const SET_COOKIE: Ignored = Ignored(1 << 3);
    /// `Vary`
    pub const VARY: Ignored = Ignored(1 << 4);

    /// Returns `true` if all of these are in the set.
    #[inline]
    #[must_use]
    pub fn has(self, fields: Ignored) -> bool {
        self.0 & fields.0 == fields.0
    }
}

impl BitOr for Ignored {
    type Output = Ignored;

    fn bitor(self, other: Ignored) -> Ignored {
        Ignored(self.0 | other.0)
    }
}
