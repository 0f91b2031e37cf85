//! Response fields that the cache is configured to ignore: its part of `proxy_ignore_headers`.

use std::ops::BitOr;

/// A set of fields, as a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IgnoredFields(u8);

impl IgnoredFields {
    /// No field.
    pub const NONE: IgnoredFields = IgnoredFields(0);
    /// `X-Accel-Expires`
    pub const X_ACCEL_EXPIRES: IgnoredFields = IgnoredFields(1);
    /// `Expires`
    pub const EXPIRES: IgnoredFields = IgnoredFields(1 << 1);
    /// `Cache-Control`, and what replaces it (`Rules::targeted`)
    pub const CACHE_CONTROL: IgnoredFields = IgnoredFields(1 << 2);
    /// `Set-Cookie`
    pub const SET_COOKIE: IgnoredFields = IgnoredFields(1 << 3);
    /// `Vary`
    pub const VARY: IgnoredFields = IgnoredFields(1 << 4);

    /// Returns `true` if all of these are in the set.
    #[inline]
    #[must_use]
    pub fn has(self, fields: IgnoredFields) -> bool {
        self.0 & fields.0 == fields.0
    }
}

impl BitOr for IgnoredFields {
    type Output = IgnoredFields;

    fn bitor(self, other: IgnoredFields) -> IgnoredFields {
        IgnoredFields(self.0 | other.0)
    }
}
