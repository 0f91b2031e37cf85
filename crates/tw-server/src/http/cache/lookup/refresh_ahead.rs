//! `cache_refresh_ahead`: a popular entry is updated in the background before it becomes stale.
//!
//! A hit in the last part of an entry's lifetime starts the update. One request fetches the response for all, and the entry is
//! used until it has come. If the upstream server fails, the entry stays as it is.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tw_cache::policy::Lifetime;
use tw_conf::{ConfError, Node, units};

use super::Lookup;
use super::background::{BackgroundFetch, FetchPermit, FetchPurpose};
use super::search::FoundState;
use crate::http::cache::entry::open_entries::OpenEntry;
use crate::http::cache::fill::JoinOutcome;
use crate::http::cache::settings::CacheSettings;
use crate::http::request::Request;

/// Largest part of a lifetime that may be the last one, in percent.
const PERCENT_MAX: u64 = 50;
/// Largest `min_uses`: the index counts no more.
const USES_MAX: u64 = 255;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time between two updates of an entry before it becomes stale (`proxy_cache_refresh_ahead`) that one loop starts.
    ///
    /// Rest between two attempts of one loop to update the same entry: the upstream server may fail.
    const AGAIN: Duration = Duration::from_secs(1), time, "the entry is used meanwhile";
}

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
    fn is_due(&self, lifetime: &Lifetime, uses: u64, now: i64) -> bool {
        let span = lifetime.valid_until.saturating_sub(lifetime.responded).max(0);
        let last = match self.part {
            // At most half of a number.
            LastPart::Percent(percent) => span / 100 * percent as i64 + span % 100 * percent as i64 / 100,
            LastPart::Seconds(seconds) => seconds.min(span / 2),
        };
        last > 0 && uses >= self.min_uses && lifetime.valid_until.saturating_sub(now) <= last
    }
}

/// Attempts of one loop to update an entry.
#[derive(Default)]
pub(crate) struct RefreshPace {
    /// Time of the last attempt.
    last: Cell<Option<Instant>>,
    /// Number of hits by this loop: the index does not count many of a plain record.
    hits: Cell<u8>,
}

impl RefreshPace {
    /// Returns true, and notes `now`, if an attempt may be made.
    fn may_begin(&self, now: Instant) -> bool {
        let may = self.last.get().is_none_or(|last| now.saturating_duration_since(last) >= AGAIN);
        if may {
            self.last.set(Some(now));
        }
        may
    }

    /// Counts a hit. Returns the number of hits before it.
    fn count_hit(&self) -> u8 {
        let hits = self.hits.get();
        self.hits.set(hits.saturating_add(1));
        hits
    }
}

impl Lookup {
    /// Starts an update of a fresh entry that `r` is answered with, if one is due.
    pub(crate) fn refresh_ahead(
        &self,
        r: &mut Request,
        settings: &CacheSettings,
        entry: &Rc<OpenEntry>,
        state: FoundState,
        now: i64,
    ) {
        let Some(ahead) = &settings.refresh_ahead else { return };
        let hits = state.hits.max(entry.refresh_pace.count_hit());
        let is_due = ahead.is_due(&entry.meta.lifetime, u64::from(hits) + 1, now);
        // A fetch in progress renews the entry.
        if !is_due || state.is_claimed || r.upstream.cache.is_update {
            return;
        }
        let now = tw_rt::clock::now();
        if !entry.refresh_pace.may_begin(now) || !self.may_fetch_for_others(r, settings) {
            return;
        }
        if self.cache.fill(self.key).is_some() {
            return;
        }
        let purpose = FetchPurpose::Ahead;
        let Some(permit) = FetchPermit::take(&self.cache.zone, purpose, settings.background_max) else {
            return;
        };
        let JoinOutcome::Lead(lead) = self.cache.join(self.key, now, settings.lock_age) else { return };
        let (lead, entry, other) = (Some(lead), Some(entry.clone()), self.other.clone());
        // If there are too many background requests, the next hit tries again.
        let _ = BackgroundFetch { purpose, permit, lead, entry, other }.start(r);
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
        for (ahead, span, uses, left, expected) in [
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
            assert_eq!(ahead.is_due(&lifetime, uses, span - left), expected, "{ahead:?} {span} {left}");
        }
    }

    #[test]
    fn one_loop_tries_once_a_second() {
        let (pace, now) = (RefreshPace::default(), Instant::now());
        assert!(pace.may_begin(now));
        assert!(!pace.may_begin(now + AGAIN / 2));
        assert!(pace.may_begin(now + AGAIN));
    }
}
