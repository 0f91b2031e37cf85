//! Health of a node with a new version, by what it counts: for the command that rolls out, and for the node itself.

use std::time::{Duration, Instant};

use tw_fleet::ConfigurationReport;

/// Errors that are too few to say anything.
const ERRORS_MIN: u64 = 5;
/// Turns of event loops that took too long, of a healthy node while a wave settles.
const STALLS_MAX: u64 = 10;
/// Time that a node that is not healthy has to be ordered back, before it goes back by itself. The command orders within some seconds, and
/// knows of all nodes.
const GRACE: Duration = Duration::from_secs(6);
/// Longest time that a node watches itself.
const WATCH_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Reason why a node is not healthy, by what has changed since it took the version over. A report without metrics is nothing to compare
/// with.
pub(super) fn complaint(
    before: &ConfigurationReport,
    now: &ConfigurationReport,
    max_errors: u64,
) -> Option<String> {
    if !before.has_metrics {
        return None;
    }
    if !now.has_metrics {
        return Some("does not answer requests for its metrics".to_owned());
    }
    // A server that was started anew counts from 0.
    let since = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
    let responses = since(before.responses, now.responses);
    let errors = since(before.errors, now.errors);
    let stalls = since(before.stalls, now.stalls);
    if errors >= ERRORS_MIN && errors.saturating_mul(100) > max_errors.saturating_mul(responses) {
        return Some(format!("answers {errors} of {responses} requests with 5xx"));
    }
    (stalls > STALLS_MAX).then(|| format!("has {stalls} turns of event loops that took too long"))
}

/// Watch of a node over itself after it has taken over a version.
#[derive(Debug)]
pub(super) struct HealthWatch {
    until: Instant,
    max_errors: u64,
    /// Last report without the version, or the first one with metrics.
    before: ConfigurationReport,
    /// Time since which the node is not healthy.
    sick_since: Option<Instant>,
}

impl HealthWatch {
    /// Watch for as long as an order says, by what has changed since a report from before; `None` if it demands none.
    pub(super) fn new(
        settle_s: u64,
        max_errors: u64,
        before: ConfigurationReport,
        now: Instant,
    ) -> Option<Self> {
        let length = Duration::from_secs(settle_s).min(WATCH_MAX);
        (!length.is_zero()).then(|| Self { until: now + length, max_errors, before, sick_since: None })
    }

    /// Returns true once the version has proved itself.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until && self.sick_since.is_none()
    }

    /// Judges the node by its report. Returns the reason why it has to go back: it was not healthy for some seconds, and nobody has
    /// ordered it back.
    pub(super) fn judge(&mut self, report: &ConfigurationReport, now: Instant) -> Option<String> {
        if !self.before.has_metrics {
            // Counters that could not be read are no zeros.
            self.before = report.clone();
        }
        let why = complaint(&self.before, report, self.max_errors);
        self.sick_since = why.as_ref().map(|_| self.sick_since.unwrap_or(now));
        why.filter(|_| self.sick_since.is_some_and(|since| now.saturating_duration_since(since) >= GRACE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(responses: u64, errors: u64, stalls: u64) -> ConfigurationReport {
        ConfigurationReport { has_metrics: true, responses, errors, stalls, ..ConfigurationReport::default() }
    }

    #[test]
    fn health_is_judged_by_the_difference() {
        let before = report(1000, 500, 3);
        assert_eq!(complaint(&before, &report(1100, 504, 4), 5), None);
        assert_eq!(complaint(&before, &report(1100, 505, 4), 5), None, "5 of 100");
        let why = complaint(&before, &report(1100, 506, 4), 5);
        assert_eq!(why.as_deref(), Some("answers 6 of 100 requests with 5xx"));
        assert!(complaint(&before, &report(1100, 500, 14), 5).is_some());
        assert!(complaint(&before, &ConfigurationReport::default(), 5).is_some());
        assert_eq!(complaint(&before, &report(50, 1, 0), 5), None, "it was started anew");
        assert_eq!(complaint(&ConfigurationReport::default(), &report(1000, 500, 30), 5), None);
    }

    #[test]
    fn node_watches_itself_for_the_time_of_its_order() {
        let now = Instant::now();
        assert!(HealthWatch::new(0, 5, report(0, 0, 0), now).is_none());
        let mut watch = HealthWatch::new(30, 5, report(990, 500, 3), now).unwrap();
        let after = |seconds| now + Duration::from_secs(seconds);
        assert!(!watch.is_over(after(29)) && watch.is_over(after(30)));
        assert_eq!(watch.judge(&report(1000, 500, 3), now), None, "errors of before");
        assert_eq!(watch.judge(&report(1010, 504, 3), after(20)), None);
        // The command has time to order it back, also after the end of the watch.
        assert_eq!(watch.judge(&report(1010, 510, 3), after(28)), None);
        assert!(!watch.is_over(after(31)));
        assert_eq!(watch.judge(&report(1010, 510, 3), after(33)), None);
        let why = watch.judge(&report(1010, 510, 3), after(34));
        assert_eq!(why.as_deref(), Some("answers 10 of 20 requests with 5xx"));
        // A moment without metrics is none.
        let mut lucky = HealthWatch::new(30, 5, report(0, 0, 0), now).unwrap();
        assert_eq!(lucky.judge(&ConfigurationReport::default(), after(1)), None);
        assert_eq!(lucky.judge(&report(9, 0, 0), after(2)), None);
        assert_eq!(lucky.judge(&ConfigurationReport::default(), after(7)), None);
        assert!(!lucky.is_over(after(30)));
        assert_eq!(lucky.judge(&report(9, 0, 0), after(30)), None);
        assert!(lucky.is_over(after(30)));
        assert!(HealthWatch::new(u64::MAX, 5, report(0, 0, 0), now).is_some());
        // Metrics that never answer with the version.
        let mut mute = HealthWatch::new(30, 5, report(9, 0, 0), now).unwrap();
        assert_eq!(mute.judge(&ConfigurationReport::default(), after(1)), None);
        let why = mute.judge(&ConfigurationReport::default(), after(7));
        assert_eq!(why.as_deref(), Some("does not answer requests for its metrics"));
        // Without metrics from before, the watch waits for some to compare with.
        let mut blind = HealthWatch::new(30, 5, ConfigurationReport::default(), now).unwrap();
        assert!((0..3).all(|nth| blind.judge(&ConfigurationReport::default(), after(8 * nth)).is_none()));
        assert_eq!(blind.judge(&report(1000, 500, 30), after(20)), None);
        assert_eq!(blind.judge(&report(1000, 500, 30), after(27)), None);
        assert_eq!(blind.judge(&report(1010, 510, 30), after(28)), None);
        assert!(blind.judge(&report(1010, 510, 30), after(34)).is_some());
    }
}
