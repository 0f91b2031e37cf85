//! How much is done for handshakes at a time, by a loop itself and by the pool that signs for it. What is too much waits in
//! line, so that a thousand clients who come at once cost those who are there no more than their share of each turn.
//!
//! ```text
//! signatures of RSA, long chains ─► at most SIGNATURES_MAX of a loop with the pool ─► others wait, as sockets and hellos
//! all the rest ─► HANDSHAKES_NS_MAX of each turn ─► others wait for another turn
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tw_base::Limit;

/// A handshake of ECDSA takes some 0.2 ms: ten in a turn, and those behind them wait no longer than that.
const HANDSHAKES_NS_MAX: u64 = 2_000_000;
/// Enough to keep all threads of a pool busy that takes turns with other loops. At 0.5 ms each they are done after 32 ms.
const SIGNATURES_MAX: usize = 64;

pub(super) const LIMITS: &[Limit] = &[
    Limit::micros(
        "HANDSHAKES_NS_MAX",
        HANDSHAKES_NS_MAX / 1000,
        "Time of one turn of a loop that handshakes of TLS may take",
        "further ones wait for another turn",
    ),
    Limit::count(
        "SIGNATURES_MAX",
        SIGNATURES_MAX as u64,
        "Handshakes of TLS of one loop that wait for a pool to sign, or to verify a long chain",
        "further ones wait in line, within client_header_timeout",
    ),
];

thread_local! {
    /// When the turn began, and what was spent in it, in nanoseconds.
    static TURN: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
    /// Those who wait for another turn, in the order they came; the first of them holds the permit.
    static LINE: Rc<Semaphore> = Rc::new(Semaphore::new(1));
    static SIGNATURES: Arc<Semaphore> = Arc::new(Semaphore::new(SIGNATURES_MAX));
}

/// Does some work of a handshake on this loop, in a turn that has time left for it.
pub(super) async fn here<T>(work: impl FnOnce() -> T) -> T {
    let line = LINE.with(Rc::clone);
    if line.available_permits() == 0 || !has_time(tw_rt::clock::now()) {
        // It is never closed, so everybody gets the place.
        let _first = line.acquire().await;
        while !has_time(tw_rt::clock::now()) {
            tw_rt::yield_now().await;
        }
        return timed(work);
    }
    timed(work)
}

/// The permit to have a pool do something for a handshake; whoever drops it lets the next one have it.
pub(super) async fn permit() -> Option<OwnedSemaphorePermit> {
    // It is never closed.
    SIGNATURES.with(Arc::clone).acquire_owned().await.ok()
}

fn timed<T>(work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = tw_rt::watch::operation("shaking hands", work);
    spend(tw_rt::clock::now(), u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    done
}

fn has_time(now: Instant) -> bool {
    TURN.get().is_none_or(|(turn, spent)| turn != now || spent < HANDSHAKES_NS_MAX)
}

fn spend(now: Instant, ns: u64) {
    let spent = TURN.get().filter(|(turn, _)| *turn == now).map_or(0, |(_, spent)| spent);
    TURN.set(Some((now, spent.saturating_add(ns))));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_turn_has_an_end() {
        let now = Instant::now();
        assert!(has_time(now));
        spend(now, HANDSHAKES_NS_MAX - 1);
        assert!(has_time(now));
        spend(now, 1);
        assert!(!has_time(now));
        let next = now + Duration::from_nanos(1);
        assert!(has_time(next));
        spend(next, u64::MAX);
        spend(next, u64::MAX);
        assert!(!has_time(next) && has_time(next + Duration::from_nanos(1)));
    }

    #[test]
    fn permits_end_and_come_back() {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let mut taken = Vec::new();
        let mut ask = || {
            let mut asked = Box::pin(permit());
            match asked.as_mut().poll(&mut cx) {
                std::task::Poll::Ready(permit) => permit,
                std::task::Poll::Pending => None,
            }
        };
        while let Some(permit) = ask() {
            taken.push(permit);
        }
        assert_eq!(taken.len(), SIGNATURES_MAX);
        taken.pop();
        assert!(ask().is_some());
    }
}
