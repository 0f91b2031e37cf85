//! `cache_refresh_ahead` of a location: the last part of an entry's lifetime, in which it is updated in the background.

use tw_cache::policy::Lifetime;
use tw_conf::{ConfError, Node, units};

/// Largest part of a lifetime that may be the last one, in percent.
const PERCENT_MAX: u64 = 50;
/// Largest `min_uses`: the index counts no more.
const USES_MAX: u64 = 255;

/// `cache_refresh_ahead` of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshAhead {
    part: LastPart,
    /// Uses of an entry since it was stored, this one included, from which on it is updated.
    min_uses: u64,
}

/// Last part of a lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastPart {
    Percent(u64),
    /// This time, but not more than half of the lifetime.
    Seconds(i64),
}

impl RefreshAhead {
    /// Reads the directive; `None` for `off`.
    ///
    /// # Errors
    /// A part that is neither a time nor 1 to 50 percent, or another parameter than `min_uses` with 1 to 255.
    pub fn read(node: &Node) -> Result<Option<Self>, ConfError> {
        let part = node.arg(0)?;
        let last_part = match part.bytes.strip_suffix(b"%") {
            Some(percent) => units::number(percent)
                .filter(|percent| (1..=PERCENT_MAX).contains(percent))
                .map(LastPart::Percent),
            None if &*part.bytes == b"off" && node.args.len() == 1 => return Ok(None),
            None => units::sec(&part.bytes)
                .and_then(|span| i64::try_from(span.as_secs()).ok())
                .filter(|seconds| *seconds > 0)
                .map(LastPart::Seconds),
        };
        let last_part = last_part.ok_or_else(|| node.invalid_value(part))?;
        let min_uses = match node.args.get(1) {
            None => 1,
            Some(word) => {
                let uses = word.bytes.strip_prefix(b"min_uses=").and_then(units::number);
                uses.filter(|uses| (1..=USES_MAX).contains(uses)).ok_or_else(|| node.invalid_value(word))?
            }
        };
        Ok(Some(Self { part: last_part, min_uses }))
    }

    /// Returns true if a fresh entry that was used `uses` times is updated at `now`, in seconds since 1970.
    pub(crate) fn is_due(&self, lifetime: &Lifetime, uses: u64, now: i64) -> bool {
        let span = lifetime.valid_until.saturating_sub(lifetime.responded).max(0);
        let last = match self.part {
            // At most half of a number.
            LastPart::Percent(percent) => span / 100 * percent as i64 + span % 100 * percent as i64 / 100,
            LastPart::Seconds(seconds) => seconds.min(span / 2),
        };
        last > 0 && uses >= self.min_uses && lifetime.valid_until.saturating_sub(now) <= last
    }
}

#[cfg(test)]
mod tests {
    use tw_cache::policy::Duties;

    use super::*;

    #[test]
    fn last_part_of_the_lifetime_is_due() {
        let percent = |percent| RefreshAhead { part: LastPart::Percent(percent), min_uses: 1 };
        let seconds = |seconds| RefreshAhead { part: LastPart::Seconds(seconds), min_uses: 2 };
        for (ahead, span, uses, remaining, expected) in [
            (percent(10), 1000, 1, 101, false),
            (percent(10), 1000, 1, 100, true),
            (percent(10), 1000, 1, 0, true),
            (percent(10), 1000, 0, 50, false),
            (percent(50), 3, 1, 1, true),
            (percent(10), 9, 1, 0, false),
            (percent(10), 0, 1, 0, false),
            (percent(50), i64::MAX, 1, i64::MAX / 2 - 50, true),
            (seconds(60), 1000, 2, 60, true),
            (seconds(60), 1000, 2, 61, false),
            (seconds(60), 1000, 1, 10, false),
            (seconds(60), 100, 2, 51, false),
            (seconds(60), 100, 2, 50, true),
        ] {
            let lifetime = Lifetime {
                responded: 0,
                valid_until: span,
                stale_while_revalidate_s: 0,
                stale_if_error_s: 0,
                initial_age_s: 0,
                duties: Duties::NONE,
            };
            assert_eq!(
                ahead.is_due(&lifetime, uses, span - remaining),
                expected,
                "{ahead:?} {span} {remaining}"
            );
        }
    }
}
