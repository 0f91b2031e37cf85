//! Durations of many requests.

use std::time::Duration;

/// Shares of all requests whose percentiles are plotted.
pub(super) const SHARES: [f64; 10] = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];

/// Spans in order of size.
#[derive(Debug, Default)]
pub(super) struct Spans(Vec<Duration>);

impl Spans {
    pub(super) fn new(mut spans: Vec<Duration>) -> Self {
        spans.sort_unstable();
        Self(spans)
    }

    /// Number of requests.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The span that this share of all does not exceed; zero of none.
    pub(super) fn percentile(&self, share: f64) -> Duration {
        let index = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(index.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// Shares and percentiles in milliseconds, for a plot.
    pub(super) fn curve(&self) -> Vec<(f64, f64)> {
        let all = SHARES.iter().map(|share| (*share, self.percentile(*share).as_secs_f64() * 1e3));
        // A percentile needs a request beyond it.
        all.filter(|(share, _)| (1.0 - share) * self.0.len() as f64 >= 1.0).collect()
    }

    /// Mean; zero of none.
    pub(super) fn mean(&self) -> Duration {
        let sum: f64 = self.0.iter().map(Duration::as_secs_f64).sum();
        Duration::from_secs_f64(sum / self.0.len().max(1) as f64)
    }

    /// Standard deviation; zero of none.
    pub(super) fn deviation(&self) -> Duration {
        let mean = self.mean().as_secs_f64();
        let sum: f64 = self.0.iter().map(|span| (span.as_secs_f64() - mean).powi(2)).sum();
        Duration::from_secs_f64((sum / self.0.len().max(1) as f64).sqrt())
    }

    /// Milliseconds by which they are longer than others; negative if they are shorter.
    pub(super) fn longer_ms(&self, others: &Self, share: f64) -> f64 {
        (self.percentile(share).as_secs_f64() - others.percentile(share).as_secs_f64()) * 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_spans_that_were_measured() {
        let spans =
            |factor: u64| Spans::new((1..=200).rev().map(|ms| Duration::from_millis(ms * factor)).collect());
        assert_eq!(spans(1).count(), 200);
        assert_eq!(spans(1).percentile(0.99), Duration::from_millis(198));
        assert_eq!(spans(1).percentile(0.5), Duration::from_millis(100));
        assert_eq!(spans(2).longer_ms(&spans(1), 0.5), 100.0);
        assert_eq!(Spans::default().percentile(0.99), Duration::ZERO);
    }

    #[test]
    fn mean_and_deviation_are_those_of_all_spans() {
        let spans = Spans::new([2, 4, 4, 4, 5, 5, 7, 9].map(Duration::from_millis).to_vec());
        let ms = |span: Duration| (span.as_secs_f64() * 1e3).round();
        assert_eq!((ms(spans.mean()), ms(spans.deviation())), (5.0, 2.0));
        assert_eq!((Spans::default().mean(), Spans::default().deviation()), (Duration::ZERO, Duration::ZERO));
    }
}
