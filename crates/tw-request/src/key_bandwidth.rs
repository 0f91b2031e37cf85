//! Rate that all responses with one key share, over all connections, protocols and loops (`limit_rate_shared`): the arithmetic, without
//! waiting.
//!
//! A sender reserves its next piece behind everything that is reserved, and sends it when its time has come. So all senders of a key
//! take turns, each with one piece, and none needs a lock: a piece costs one atomic operation.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

const NANOS: u128 = 1_000_000_000;
/// Pieces of each second: so often does a key with one sender send something, and so long does a second sender wait.
const PIECES_A_SECOND: u64 = 64;
/// Smallest piece: about a segment of TCP.
const PIECE_MIN: u64 = 1460;
/// Largest piece: what a loop reads and writes at once.
const PIECE_MAX: u64 = 256 << 10;

/// Time up to which bytes of one key are reserved, in nanoseconds of `nanos`.
#[derive(Debug)]
pub struct KeySchedule(AtomicI64);

impl Default for KeySchedule {
    fn default() -> Self {
        Self(AtomicI64::new(i64::MIN))
    }
}

impl KeySchedule {
    /// Returns true if everything that was reserved has had its time.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.0.load(Relaxed) <= nanos(now)
    }

    /// Reserves `span`, and up to `credit` of the time before `now` for it. Returns the time to wait.
    fn reserve(&self, span: i64, credit: i64, now: i64) -> Duration {
        let from = |reserved: i64| reserved.max(now.saturating_sub(credit));
        // The closure always has a value.
        let before =
            self.0.fetch_update(Relaxed, Relaxed, |reserved| Some(from(reserved).saturating_add(span)));
        let start = from(before.unwrap_or_else(|reserved| reserved));
        Duration::from_nanos(u64::try_from(start.saturating_sub(now)).unwrap_or_default())
    }

    /// Gives back what was reserved and is not used.
    fn give_back(&self, span: i64) {
        self.0.fetch_sub(span, Relaxed);
    }
}

/// Nanoseconds since a moment of this process.
fn nanos(now: Instant) -> i64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let span = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    // The first caller may have read the clock before that.
    match now.checked_duration_since(*START) {
        Some(since) => span(since),
        None => -span(START.saturating_duration_since(now)),
    }
}

/// Rate of one key as a response uses it.
#[derive(Debug, Clone)]
pub struct KeyBandwidth {
    schedule: Arc<KeySchedule>,
    /// Bytes per second, above 0.
    rate: u64,
    /// Bytes that may leave at once after a pause.
    burst: u64,
}

impl KeyBandwidth {
    /// The rate of `rate` bytes per second, at least one, of the key with this schedule.
    pub fn new(schedule: Arc<KeySchedule>, rate: u64, burst: u64) -> Self {
        Self { schedule, rate: rate.max(1), burst }
    }

    /// The time of so many bytes in nanoseconds.
    fn worth(&self, bytes: u64) -> i64 {
        i64::try_from((u128::from(bytes) * NANOS).div_ceil(u128::from(self.rate))).unwrap_or(i64::MAX)
    }

    /// Size of a piece.
    pub fn piece(&self) -> u64 {
        (self.rate / PIECES_A_SECOND).clamp(PIECE_MIN, PIECE_MAX)
    }
}

/// Bytes that are reserved. A drop before they are taken gives them back.
pub struct Reservation<'a> {
    rate: &'a KeyBandwidth,
    span: i64,
    /// Time to wait before the bytes are sent.
    pub wait: Duration,
}

impl<'a> Reservation<'a> {
    /// Reserves `bytes` at `now`.
    pub fn new(rate: &'a KeyBandwidth, bytes: u64, now: Instant) -> Self {
        let span = rate.worth(bytes);
        let wait = rate.schedule.reserve(span, rate.worth(rate.burst), nanos(now));
        Self { rate, span, wait }
    }

    /// Keeps the bytes: they are sent.
    pub fn take(mut self) {
        self.span = 0;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.rate.schedule.give_back(self.span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn senders_of_a_key_take_turns() {
        let schedule = KeySchedule::default();
        let wait = |span, now| schedule.reserve(span, 0, now).as_nanos();
        assert_eq!((wait(10, 100), wait(10, 100), wait(5, 100)), (0, 10, 20));
        // A pause is no credit.
        assert_eq!((wait(10, 1000), wait(10, 1000)), (0, 10));
        // A response that ends before its reserved time leaves that time to the next one.
        schedule.give_back(10);
        assert_eq!(wait(10, 1000), 10);
        assert_eq!(schedule.reserve(i64::MAX, 0, 1000).as_nanos(), 20);
        assert!(schedule.reserve(i64::MAX, 0, 1000) > Duration::from_secs(9_000_000_000));
    }

    #[test]
    fn burst_is_credit_of_a_pause() {
        let schedule = KeySchedule::default();
        let wait = |span, now| schedule.reserve(span, 30, now).as_nanos();
        assert_eq!([wait(10, 0), wait(10, 0), wait(10, 0), wait(10, 0), wait(10, 0)], [0, 0, 0, 0, 10]);
        assert_eq!([wait(10, 1000), wait(30, 1000), wait(1, 1000)], [0, 0, 10]);
    }

    #[test]
    fn reservation_that_is_dropped_counts_nothing() {
        let rate = KeyBandwidth::new(Arc::default(), 1000, 0);
        let now = Instant::now();
        assert!(rate.schedule.is_idle(now));
        drop(Reservation::new(&rate, 500, now));
        assert!(rate.schedule.is_idle(now));
        Reservation::new(&rate, 500, now).take();
        assert!(!rate.schedule.is_idle(now) && rate.schedule.is_idle(now + Duration::from_millis(500)));
        assert_eq!(Reservation::new(&rate, 1, now).wait, Duration::from_millis(500));
    }

    #[test]
    fn bytes_have_their_time() {
        for (rate, bytes, expected) in [
            (1000, 1000, SECOND),
            (1 << 20, 1 << 20, SECOND),
            (3, 1, 333_333_334),
            (0, 2, 2 * SECOND),
            (1, u64::MAX, i64::MAX),
            (u64::MAX, 1, 1),
        ] {
            assert_eq!(
                KeyBandwidth::new(Arc::default(), rate, 0).worth(bytes),
                expected,
                "{bytes} at {rate}"
            );
        }
        for (rate, expected) in [(1, PIECE_MIN), (1 << 20, 16 << 10), (u64::MAX, PIECE_MAX)] {
            assert_eq!(KeyBandwidth::new(Arc::default(), rate, 0).piece(), expected, "{rate}");
        }
    }
}
