//! `limit_rate`: how much may be sent by now.

use std::time::{Duration, Instant};

use super::Conn;
use super::send::Failure;
use crate::http::request::Request;
use crate::vars::Template;

/// `limit_rate`: bytes per second from the start of the response, after `limit_rate_after`.
pub(super) struct Pace {
    rate: u64,
    after: u64,
    start: Instant,
}

impl Pace {
    pub(super) fn new(r: &Request) -> Option<Self> {
        let send = &r.plan().core.send;
        let value = |template: &Option<Template>| {
            template.as_ref().and_then(|t| tw_conf::units::size(&t.value(r))).unwrap_or(0)
        };
        let rate = r.costs.limit_rate.unwrap_or_else(|| value(&send.limit_rate));
        (rate > 0).then(|| Self { rate, after: value(&send.limit_rate_after), start: tw_rt::clock::now() })
    }

    /// Waits until something may be sent and returns how much: at least one byte.
    pub(super) async fn allowance(&mut self, r: &Request, conn: &Conn) -> Result<usize, Failure> {
        loop {
            let passed = tw_rt::clock::now().saturating_duration_since(self.start);
            // nginx counts the current second as given.
            let given = u128::from(self.rate).saturating_mul(passed.as_millis() + 1000) / 1000;
            let budget = u64::try_from(given).unwrap_or(u64::MAX).saturating_add(self.after);
            let left = budget.saturating_sub(r.costs.sent.bytes);
            if left > 0 {
                return Ok(usize::try_from(left).unwrap_or(usize::MAX));
            }
            let missing = r.costs.sent.bytes - budget + 1;
            let wait_ms = missing.saturating_mul(1000) / self.rate + 1;
            conn.sleep(Duration::from_millis(wait_ms)).await.map_err(|gone| Failure::Gone(gone.into()))?;
        }
    }
}
