//! Admission of requests while memory is short: new requests wait for others to end, and are refused in the end. Clients that hold
//! little go first, so that slow clients keep nobody else from being served.
//!
//! ```text
//! request ─► is a bound near? ─ no ──────────────────────────────────────────────► begins
//!               └─ yes ─► its connection or its address holds much ─► waits ─┬─► begins
//!                         memory is exhausted ───────────────────────────────┴─► 503, or a refused stream
//! ```

use std::rc::Rc;
use std::time::{Duration, Instant};

use tw_base::memory::{self, MemoryHolder, MemoryLevel};
use tw_core::event_loop::LevelGuard;
use tw_rt::Deadline;

use tw_request::client::Client;
use tw_request::memory_share::{Hold, MemoryShare};

/// Memory of a request without its body and response: its head, its variables, and the task that serves it.
const REQUEST_SIZE: usize = 12 << 10;
/// Time between two looks of a request that waits.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes that it may hold in any case: ten requests.
const CONNECTION_MIN: u64 = 128 << 10;
/// Bytes that they may hold in any case.
const ADDRESS_MIN: u64 = 64 << 10;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which a new request waits for memory (memory_budget).
    const WAIT_MAX: Duration = Duration::from_secs(2), time, "503, or a refused stream";
    /// Bytes left of memory_budget that no new request gets; those of clients that hold more than 64 KiB get none of the last
    /// tenth.
    const LAST_BYTES: u64 = 4 << 20, bytes, "503, or a refused stream";
    /// Part of the memory left that the requests of one connection hold (a sixty-fourth), if that is more than 128 KiB.
    const CONNECTION_PART: u64 = 64, count, "its next request waits";
    /// Part of the memory left that the clients of one address, or IPv6 network of 64 bits, hold with one protocol on one loop
    /// while less than a third is left (an eighth), if that is more than 64 KiB.
    const ADDRESS_PART: u64 = 8, count, "their next requests wait";
}

/// Decision about a new request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Serve it now.
    Begin,
    /// Others have to end before.
    Wait,
    /// There is no memory for it.
    Refuse,
}

/// End of a wait for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The request is served.
    Admitted,
    /// The answer is 503, or its stream is refused.
    Refused,
}

/// Memory of a request that begins.
pub(crate) fn hold_request(client: &Client, protocol: MemoryHolder) -> Hold {
    hold_of(client.memory_share(protocol))
}

/// Memory of a request that begins, in this share.
pub(crate) fn hold_of(share: Option<&Rc<MemoryShare>>) -> Hold {
    Hold::new(share, REQUEST_SIZE)
}

// DIFF(nginx): it takes memory until the kernel ends the process.
/// Decides about a new request of a client.
pub(crate) fn verdict(client: &Client, protocol: MemoryHolder) -> Verdict {
    match client.memory_share(protocol) {
        Some(share) => judge(memory::level(), memory::left_for_requests(), memory::remaining(), share),
        None => Verdict::Begin,
    }
}

/// `remaining` is without what other requests are expected to take; `all` is all that is left.
fn judge(level: MemoryLevel, remaining: u64, all: u64, share: &MemoryShare) -> Verdict {
    let is_beyond = |held_bytes: usize, part: u64, min: u64| held_bytes as u64 > (remaining / part).max(min);
    let address = share.held_by_address();
    if level == MemoryLevel::Exhausted && (all < LAST_BYTES || address as u64 > ADDRESS_MIN) {
        return Verdict::Refuse;
    }
    let waits = level >= MemoryLevel::Scarce && is_beyond(address, ADDRESS_PART, ADDRESS_MIN)
        || is_beyond(share.held_bytes(), CONNECTION_PART, CONNECTION_MIN);
    if waits { Verdict::Wait } else { Verdict::Begin }
}

/// Counts a request that is refused for want of memory.
pub(crate) fn count_refused(client: &Client) {
    client.event_loop.tally.memory_refused.add(1);
    client.event_loop.log_once_a_second(
        tw_log::Level::Warn,
        format_args!("requests are refused for want of memory: see \"memory_budget\""),
    );
}

/// Decision about a request that has waited since then.
pub(crate) fn verdict_after(client: &Client, protocol: MemoryHolder, since: Instant) -> Verdict {
    match verdict(client, protocol) {
        Verdict::Wait if tw_rt::clock::now().saturating_duration_since(since) >= WAIT_MAX => Verdict::Refuse,
        verdict => verdict,
    }
}

/// Waits for memory for a request of HTTP/1, whose head was not read yet.
pub(crate) async fn wait(client: &Client) -> Admission {
    let since = tw_rt::clock::now();
    let _waiting = LevelGuard::new(&client.event_loop.tally.memory_waiting);
    let mut next = Deadline::new();
    loop {
        match verdict_after(client, MemoryHolder::Http1, since) {
            Verdict::Begin => return Admission::Admitted,
            Verdict::Refuse => return Admission::Refused,
            Verdict::Wait => {}
        }
        next.set(LOOK_EVERY);
        next.elapsed().await;
    }
}

#[cfg(test)]
mod tests {
    use tw_net::Addr;

    use super::*;

    #[test]
    fn clients_that_hold_much_wait() {
        const MB: usize = 1 << 20;
        let share = |address: &str| {
            MemoryShare::new(&Addr::Inet(format!("{address}:1").parse().unwrap()), MemoryHolder::Http1)
        };
        let slow = share("192.0.2.1");
        let slow_too = share("192.0.2.1");
        let other = share("192.0.2.2");
        let _held = Hold::new(Some(&slow), MB);
        for (level, remaining, expected) in [
            (MemoryLevel::Plenty, 64 * MB, [Verdict::Begin; 3]),
            (MemoryLevel::Plenty, 63 * MB, [Verdict::Wait, Verdict::Begin, Verdict::Begin]),
            (MemoryLevel::Tight, 63 * MB, [Verdict::Wait, Verdict::Begin, Verdict::Begin]),
            (MemoryLevel::Scarce, 8 * MB, [Verdict::Wait, Verdict::Begin, Verdict::Begin]),
            (MemoryLevel::Scarce, 7 * MB, [Verdict::Wait, Verdict::Wait, Verdict::Begin]),
            (MemoryLevel::Scarce, 0, [Verdict::Wait, Verdict::Wait, Verdict::Begin]),
            (MemoryLevel::Exhausted, 4 * MB, [Verdict::Refuse, Verdict::Refuse, Verdict::Begin]),
            (MemoryLevel::Exhausted, 4 * MB - 1, [Verdict::Refuse; 3]),
        ] {
            let remaining = remaining as u64;
            let verdicts = [&slow, &slow_too, &other].map(|share| judge(level, remaining, remaining, share));
            assert_eq!(verdicts, expected, "{level:?} {remaining:?}");
        }
    }
}
