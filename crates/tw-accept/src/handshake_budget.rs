//! Budget of handshakes, on a loop and on the pool that signs for it. Work beyond it waits in a queue, so that a thousand clients
//! that connect at once take no more than a share of each turn.
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

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time of one turn of a loop for TLS handshakes.
    ///
    /// Time of a turn. A handshake of ECDSA takes some 0.2 ms: ten in a turn, and other tasks wait no longer than that.
    const HANDSHAKES_NS_MAX: u64 = 2_000_000, nanos, "further ones wait for another turn";
    /// TLS handshakes of one loop with a pool, which signs or verifies a long chain.
    ///
    /// Handshakes of a loop with a pool: enough to keep all its threads busy. At 0.5 ms each they are done after 32 ms.
    const SIGNATURES_MAX: usize = 64, count, "further ones wait in a queue, within client_header_timeout";
}

thread_local! {
    /// Begin of the turn, and nanoseconds spent in it.
    static TURN: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
    /// Queue of handshakes that wait for another turn; the first of them holds the permit.
    static QUEUE: Rc<Semaphore> = Rc::new(Semaphore::new(1));
    static SIGNATURES: Arc<Semaphore> = Arc::new(Semaphore::new(SIGNATURES_MAX));
}

/// Does work of a handshake on this loop, in a turn that has time left for it.
pub(crate) async fn run_on_loop<T>(work: impl FnOnce() -> T) -> T {
    let queue = QUEUE.with(Rc::clone);
    if queue.available_permits() == 0 || !has_time(tw_rt::clock::now()) {
        // The semaphore is never closed.
        let _first = queue.acquire().await;
        while !has_time(tw_rt::clock::now()) {
            tw_rt::yield_now().await;
        }
        return timed(work);
    }
    timed(work)
}

/// Waits for the permit to use a pool for a handshake. Dropping it lets the next handshake have it.
pub(crate) async fn pool_permit() -> Option<OwnedSemaphorePermit> {
    // The semaphore is never closed.
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
    fn handshakes_wait_once_the_time_of_a_turn_is_spent() {
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
    fn dropped_pool_permit_is_given_to_the_next_handshake() {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let mut taken = Vec::new();
        let mut take = || {
            let mut permit = Box::pin(pool_permit());
            match permit.as_mut().poll(&mut cx) {
                std::task::Poll::Ready(permit) => permit,
                std::task::Poll::Pending => None,
            }
        };
        while let Some(permit) = take() {
            taken.push(permit);
        }
        assert_eq!(taken.len(), SIGNATURES_MAX);
        taken.pop();
        assert!(take().is_some());
    }
}
