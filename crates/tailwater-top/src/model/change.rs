//! Difference of two snapshots.

use crate::source::Snapshot;
use crate::source::snapshot::Spans;

/// A percentile that is shown of latencies.
pub(super) const P99: f64 = 0.99;

/// Median.
pub(super) const P50: f64 = 0.5;

/// Identifies a process: a new one has counted from 0.
const START: &str = "process_start_time_seconds";

/// Two snapshots of one process, and the time between them.
pub(super) struct Change<'a> {
    old: Option<&'a Snapshot>,
    /// The newer snapshot.
    pub(super) new: &'a Snapshot,
    /// Time between them, in seconds; more than 0.
    seconds: f64,
}

impl<'a> Change<'a> {
    /// Change from `old`, which is left out if it is of another process.
    pub(super) fn new(old: Option<&'a Snapshot>, new: &'a Snapshot, seconds: f64) -> Self {
        // The server's own time belongs to the numbers; the time between two responses is nearly the same.
        let seconds = match (old.and_then(|old| old.now), new.now) {
            (Some(old), Some(new)) if new > old => new - old,
            _ => seconds,
        };
        let is_same = |old: &&Snapshot| old.number(START, &[]) == new.number(START, &[]);
        Self { old: old.filter(is_same).filter(|_| seconds > 0.0), new, seconds }
    }

    /// Growth of counters a second: the sum of those with these labels. `None` if unknown.
    pub(super) fn rate(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let new = self.new.number(name, labels)?;
        // A counter that was missing before has begun at zero since.
        let old = self.old?.number(name, labels).unwrap_or_default();
        let grown = new - old;
        (grown >= 0.0).then(|| grown / self.seconds)
    }

    /// Present numbers: their sum.
    pub(super) fn level(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.new.number(name, labels)
    }

    /// Spans of the time between; `None` if unknown.
    pub(super) fn spans(&self, name: &str, labels: &[(&str, &str)]) -> Option<Spans> {
        let new = self.new.spans(name, labels)?;
        let spans = match self.old?.spans(name, labels) {
            Some(old) => new.since(&old),
            None => new,
        };
        (spans.count >= 0.0).then_some(spans)
    }

    /// Duration that `share` of the spans of the time between do not exceed, in seconds.
    pub(super) fn quantile(&self, share: f64, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.spans(name, labels)?.quantile(share, &self.new.bounds)
    }

    /// Spans a second.
    pub(super) fn span_rate(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        Some(self.spans(name, labels)?.count / self.seconds)
    }
}

/// `part` of `part` and `rest`, from 0 to 1; `None` if nothing is known or both are 0.
pub(super) fn share(part: Option<f64>, rest: Option<f64>) -> Option<f64> {
    let part = part?;
    let whole = part + rest.unwrap_or_default();
    (whole > 0.0).then(|| (part / whole).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::snapshot::{Family, Value};

    fn snapshot(now: f64, start: f64, numbers: &[(&str, f64)]) -> Snapshot {
        let mut snapshot = Snapshot { now: Some(now), ..Snapshot::default() };
        let mut add = |name: &str, number: f64| {
            let mut family = Family::default();
            family.samples.insert(Vec::new(), Value::Number(number));
            snapshot.families.insert(name.to_owned(), family);
        };
        add(START, start);
        numbers.iter().for_each(|(name, number)| add(name, *number));
        snapshot
    }

    #[test]
    fn rates_are_differences_in_the_time_of_the_server() {
        let old = snapshot(10.0, 1.0, &[("a", 5.0), ("back", 5.0)]);
        let new = snapshot(12.0, 1.0, &[("a", 9.0), ("back", 4.0), ("begun", 6.0)]);
        let change = Change::new(Some(&old), &new, 100.0);
        for (name, expected) in [("a", Some(2.0)), ("back", None), ("begun", Some(3.0)), ("none", None)] {
            assert_eq!(change.rate(name, &[]), expected, "{name}");
        }
        assert_eq!(change.level("a", &[]), Some(9.0));
    }

    #[test]
    fn another_process_has_no_rates() {
        let old = snapshot(10.0, 1.0, &[("a", 5.0)]);
        let new = snapshot(12.0, 11.0, &[("a", 9.0)]);
        assert_eq!(Change::new(Some(&old), &new, 1.0).rate("a", &[]), None);
        assert_eq!(Change::new(None, &new, 1.0).rate("a", &[]), None);
        // Without the server's time and without time between: no division by 0.
        assert_eq!(Change::new(Some(&new), &new, 0.0).rate("a", &[]), None);
        assert_eq!(Change::new(Some(&new), &new, f64::NAN).rate("a", &[]), None);
    }

    #[test]
    fn shares_are_between_0_and_1() {
        for (part, rest, expected) in [
            (Some(1.0), Some(3.0), Some(0.25)),
            (Some(0.0), Some(0.0), None),
            (None, Some(1.0), None),
            (Some(2.0), None, Some(1.0)),
        ] {
            assert_eq!(share(part, rest), expected);
        }
    }
}
