//! Slowest rate of a client, for bodies of requests and for responses.

use std::time::Duration;

use tw_conf::{ConfError, Node};

/// Time without a limit if the directive names none.
const GRACE: Duration = Duration::from_secs(10);

/// `client_body_min_rate`, `send_min_rate`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinRate {
    /// Bytes per second, above 0.
    pub rate: u64,
    /// Time for which a client may be waited for besides what its bytes are worth.
    pub grace: Duration,
}

impl MinRate {
    /// Reads `off` or `rate [grace=time]`.
    pub(super) fn read(node: &Node) -> Result<Option<Self>, ConfError> {
        let word = node.arg(0)?;
        let mut grace = GRACE;
        for word in node.args.iter().skip(1) {
            let value = word.param("grace").and_then(tw_conf::units::msec);
            grace = value.ok_or_else(|| node.invalid_parameter(word))?;
        }
        let rate = if word.is("off") { 0 } else { word.size().ok_or_else(|| node.invalid_value(word))? };
        Ok((rate > 0).then_some(Self { rate, grace }))
    }

    /// Time for which a client may have been waited for once it has moved so many bytes.
    pub fn patience(&self, bytes: u64) -> Duration {
        let millis = u128::from(bytes) * 1000 / u128::from(self.rate);
        self.grace.saturating_add(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_the_grace_and_the_time_of_the_bytes() {
        let rate = MinRate { rate: 100, grace: Duration::from_secs(5) };
        for (bytes, millis) in [(0, 5000), (1, 5010), (1000, 15_000)] {
            assert_eq!(rate.patience(bytes), Duration::from_millis(millis), "{bytes}");
        }
        assert!(MinRate { rate: 1, grace: Duration::MAX }.patience(u64::MAX) == Duration::MAX);
    }
}
