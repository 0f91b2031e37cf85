//! Freshness of a stored response, in the form it is stored in: no field has to be parsed again.

use std::ops::BitOr;

/// Obligations that come with a stored response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duties(u8);

impl Duties {
    /// No duty.
    pub const NONE: Duties = Duties(0);
    /// Ask the origin for every use, also while it is fresh (`no-cache`, RFC 9111 section 5.2.2.4).
    pub const VALIDATE: Duties = Duties(1);
    /// Never use it when it has expired (`must-revalidate`, `proxy-revalidate`, `s-maxage`: RFC 9111 section 4.2.4).
    pub const NEVER_STALE: Duties = Duties(1 << 1);
    /// Do not ask while it is fresh because a client would have a younger one (`immutable`, RFC 8246 section 2).
    pub const IMMUTABLE: Duties = Duties(1 << 2);

    const ALL: u8 = 7;

    /// Returns `true` if this is one of them.
    #[inline]
    #[must_use]
    pub fn has(self, duty: Duties) -> bool {
        self.0 & duty.0 == duty.0
    }

    /// As a byte of a file.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// From a byte of a file; `None` if a bit has no meaning.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Self> {
        (bits & !Self::ALL == 0).then_some(Self(bits))
    }
}

impl BitOr for Duties {
    type Output = Duties;

    fn bitor(self, other: Duties) -> Duties {
        Duties(self.0 | other.0)
    }
}

/// Freshness lifetime of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Time at which it was received or last validated; seconds since 1970.
    pub responded: i64,
    /// Time at which it expires; seconds since 1970. By nginx's rules it is still fresh in that second.
    pub valid_until: i64,
    /// Seconds after expiry in which it may be used during revalidation (RFC 5861 section 3).
    pub stale_while_revalidate_s: u32,
    /// Seconds after that in which it may be used if the origin fails (RFC 5861 section 4).
    pub stale_if_error_s: u32,
    /// Age on arrival, in seconds: the `corrected_initial_age` of RFC 9111 section 4.2.3.
    pub initial_age_s: u32,
    /// Obligations beyond the lifetime.
    pub duties: Duties,
}

/// Current age of a stored response, in seconds: the value of `Age` (RFC 9111 section 4.2.3), the age on arrival plus
/// the time since then. A clock that goes back does not make it younger than on arrival.
#[inline]
#[must_use]
pub fn current_age(stored: &Lifetime, now: i64) -> u32 {
    let resident = now.saturating_sub(stored.responded).max(0);
    u32::try_from(resident).unwrap_or(u32::MAX).saturating_add(stored.initial_age_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_grows_and_saturates() {
        let stored = |initial_age_s| Lifetime {
            responded: 1000,
            valid_until: 2000,
            stale_while_revalidate_s: 0,
            stale_if_error_s: 0,
            initial_age_s,
            duties: Duties::NONE,
        };
        for (initial, now, expected) in
            [(0, 1000, 0), (5, 1060, 65), (5, 900, 5), (5, i64::MAX, u32::MAX), (5, i64::MIN, 5)]
        {
            assert_eq!(current_age(&stored(initial), now), expected, "{now}");
        }
        assert_eq!(Duties::from_bits(8), None);
        assert_eq!(Duties::from_bits(3), Some(Duties::VALIDATE | Duties::NEVER_STALE));
    }
}
