//! Schedule of renewals: pure functions of times and failures.

use std::time::Duration;

use crate::error::RetryAdvice;

const RENEWAL_INFO_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// If it says nothing.
const RENEWAL_INFO_DEFAULT: Duration = Duration::from_secs(6 * 60 * 60);

const REST_MAX: u64 = 60 * 60;

/// A certificate of at most this is replaced at half of its time, as authorities advise.
const SHORT_LIVED: u64 = 10 * 24 * 60 * 60;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// The shortest time between a certificate that could not be had and the next attempt.
    const RETRY_MIN: Duration = Duration::from_secs(60), time, "the next attempt waits for it, unless the configuration is loaded anew";
    /// The longest time between a certificate that could not be had and the next attempt.
    const RETRY_MAX: Duration = Duration::from_secs(6 * 60 * 60), time, "the next attempt is made";
    /// The longest time that an authority can put the next attempt off.
    const HOPELESS: Duration = Duration::from_secs(24 * 60 * 60), time, "the next attempt is made";
    /// The shortest time between two certificates with the same names, whatever their authority says.
    const REST_MIN: u64 = 5, secs, "the next one is ordered later";
    /// The shortest time between two questions when to replace a certificate.
    ///
    /// Shortest interval at which an authority is asked for a renewal window, whatever it says (RFC 9773, section 4.3.2).
    const RENEWAL_INFO_MIN: Duration = Duration::from_secs(60 * 60), time, "the next question waits for it";
}

/// Returns the pause after so many failures in a row, the first one being 1. `luck` is random, from 0 to 1, so that servers do not
/// retry in the same second.
pub(crate) fn pause(failures: u32, retry_advice: RetryAdvice, luck: f64) -> Duration {
    let doubled = RETRY_MIN.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    let pause = match retry_advice {
        RetryAdvice::Soon => doubled.min(RETRY_MAX),
        RetryAdvice::After(span) => span.clamp(RETRY_MIN, HOPELESS),
        RetryAdvice::Hopeless => HOPELESS,
    };
    pause.mul_f64(1.0 + luck / 10.0)
}

/// Returns the time to replace a certificate valid from `begin` to `end`, in seconds since 1970: at two thirds of its time, or half
/// of a short one, give or take a fiftieth.
pub(crate) fn by_lifetime(begin: u64, end: u64, luck: f64) -> u64 {
    let lifetime = end.saturating_sub(begin);
    let at = if lifetime > SHORT_LIVED { lifetime / 3 * 2 } else { lifetime / 2 };
    let spread = lifetime / 50;
    begin + at.saturating_sub(spread) + scale(2 * spread, luck)
}

/// Returns the time to replace it within the authority's window (RFC 9773, section 4.2), before it expires.
pub(crate) fn by_window(start: u64, end: u64, over: u64, luck: f64) -> u64 {
    (start + scale(end.saturating_sub(start), luck)).min(over)
}

/// Returns the shortest use of a new certificate, in seconds: a quarter of the `remaining` ones of its time, or an hour.
pub(crate) fn rest_after(remaining: u64) -> u64 {
    (remaining / 4).clamp(REST_MIN, REST_MAX)
}

/// Returns the interval to the next request for renewal information.
pub(crate) fn renewal_info_interval(said: Option<Duration>) -> Duration {
    said.unwrap_or(RENEWAL_INFO_DEFAULT).clamp(RENEWAL_INFO_MIN, RENEWAL_INFO_MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a second more or less"
)]
fn scale(span: u64, luck: f64) -> u64 {
    (span as f64 * luck) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    #[test]
    fn pauses_grow_and_end_growing() {
        let secs = |failures, retry_advice| pause(failures, retry_advice, 0.0).as_secs();
        let soon: Vec<_> =
            [1, 2, 3, 9, 10, 40, u32::MAX].map(|failures| secs(failures, RetryAdvice::Soon)).into();
        assert_eq!(soon, [60, 120, 240, 15_360, 21_600, 21_600, 21_600]);
        let after = |span| secs(1, RetryAdvice::After(Duration::from_secs(span)));
        assert_eq!([after(0), after(3600), after(u64::MAX)], [60, 3600, DAY]);
        assert_eq!(secs(1, RetryAdvice::Hopeless), DAY);
        assert_eq!(pause(1, RetryAdvice::Soon, 1.0).as_secs(), 66);
    }

    #[test]
    fn certificates_are_replaced_in_time() {
        for (begin, end, luck, expected) in [
            (0, 90 * DAY, 0.5, 60 * DAY),
            (0, 6 * DAY, 0.5, 3 * DAY),
            (1000, 1000 + 90 * DAY, 0.0, 1000 + 60 * DAY - 90 * DAY / 50),
            // Nonsense is due at once.
            (1000, 10, 1.0, 1000),
        ] {
            assert_eq!(by_lifetime(begin, end, luck), expected, "{begin} {end} {luck}");
        }
        assert_eq!(by_window(100, 200, 1000, 0.5), 150);
        assert_eq!(by_window(100, u64::MAX, 1000, 0.9), 1000);
    }

    #[test]
    fn expired_certificates_do_not_cause_a_storm_of_orders() {
        assert_eq!([0, 20, 40, 1_000_000].map(rest_after), [5, 5, 10, 3600]);
    }

    #[test]
    fn renewal_info_requests_are_limited() {
        let hours = |said: Option<u64>| renewal_info_interval(said.map(Duration::from_secs)).as_secs() / 3600;
        assert_eq!([hours(None), hours(Some(0)), hours(Some(7200)), hours(Some(u64::MAX))], [6, 1, 2, 24]);
    }
}
