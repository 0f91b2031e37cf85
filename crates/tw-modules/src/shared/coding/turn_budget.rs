//! Time of a turn of the loop that encoders may take, so that other tasks do not wait longer.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::Semaphore;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Time of one turn of a loop that compressing may take.
    const TURN_NS_MAX: u64 = 2_000_000, nanos, "the rest waits for another turn";
}

thread_local! {
    /// Beginning of the turn, and time spent in it.
    static TURN: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
    /// Queue for the next turn, first in, first out; its head holds the permit.
    static LINE: Rc<Semaphore> = Rc::new(Semaphore::new(1));
}

/// Takes `cost_ns` of this turn and returns `true`, if so much is left and the queue is empty.
pub(super) fn may_spend(cost_ns: u64) -> bool {
    let is_free = LINE.with(|line| line.available_permits() > 0);
    is_free && spend(tw_rt::clock::now(), cost_ns)
}

/// Waits for a turn that has time left, behind earlier waiters, and takes `cost_ns` of it.
pub(super) async fn wait(cost_ns: u64) {
    let line = LINE.with(Rc::clone);
    // The semaphore is never closed, so every waiter gets the permit.
    let _first = line.acquire().await;
    while !spend(tw_rt::clock::now(), cost_ns) {
        tw_rt::yield_now().await;
    }
}

fn spend(now: Instant, cost_ns: u64) -> bool {
    let spent = TURN.get().filter(|(turn, _)| *turn == now).map_or(0, |(_, spent)| spent);
    if spent >= TURN_NS_MAX {
        return false;
    }
    TURN.set(Some((now, spent.saturating_add(cost_ns))));
    true
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_turn_has_an_end() {
        let now = Instant::now();
        assert!(spend(now, 1_500_000) && spend(now, 1_500_000));
        assert!(!spend(now, 1) && !spend(now, 0));
        let next = now + Duration::from_nanos(1);
        assert!(spend(next, u64::MAX));
        assert!(!spend(next, 1));
    }
}
