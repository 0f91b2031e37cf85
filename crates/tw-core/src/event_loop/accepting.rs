//! Accepting state of a loop: the accept mutex, the tasks that accept, and the guesses for the next connection.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tw_net::listen::{AcceptingLoops, SocketKind};
use tw_net::{Acceptor, ListenSocket};
use tw_rt::FirstBytes;

/// Listening sockets beyond the first ones for which a starting loop is prepared. Sockets that later reloads add wake
/// every loop for each connection.
const SPARE_GATES: usize = 8;

/// Weight of the last connections in the guess for the next one. Where first bytes are rarely there at accept, one in
/// so many connections is tried.
const GUESS_MAX: i8 = 16;

/// Work of a busy loop that stands for one more accepted connection.
const WORK_FOR_ONE: Duration = Duration::from_micros(100);

tw_base::limits! {
    /// Limits of this module.
    pub(super) const AT_ONCE_LIMIT;

    /// Connections that a loop that never rests takes at once.
    const TAKEN_AT_ONCE_MAX: u128 = 64, count, "the others have their turn first";
}

/// Accept mutex (`accept_mutex`): the right of one loop at a time to accept from sockets that all loops share.
#[derive(Default)]
pub(super) struct AcceptMutex {
    /// Number of the loop that holds it; 0 if it is free.
    holder: AtomicU64,
    last: AtomicU64,
}

impl AcceptMutex {
    /// Locks it for `number`, or returns true if that loop holds it already. Never waits.
    pub(super) fn take(&self, number: u64) -> bool {
        // Acquire and release: the next holder sees what the last one accepted.
        match self.holder.compare_exchange(0, number, AcqRel, Acquire) {
            Ok(_) => true,
            Err(holder) => holder == number,
        }
    }

    pub(super) fn give_up(&self, number: u64) {
        // A mutex held by another loop stays locked.
        let _ = self.holder.compare_exchange(number, 0, Release, Relaxed);
    }

    pub(super) fn is_free(&self) -> bool {
        self.holder.load(Relaxed) == 0
    }
}

/// Accepting state of a loop.
pub(super) struct Accepting {
    /// Number of the loop for the mutex.
    pub(super) number: u64,
    /// Listening sockets, and the tasks that accept from them.
    pub(super) tasks: RefCell<Vec<Task>>,
    /// Number of tasks that wait for the mutex.
    pub(super) waiting: Cell<usize>,
    pub(super) turn: Notify,
    first_bytes: Cell<i8>,
}

/// Task that accepts or receives from a listening socket.
pub(super) struct Task {
    pub(super) socket: Option<u64>,
    pub(super) share: AcceptingLoops,
    pub(super) end: Rc<End>,
    pub(super) handle: JoinHandle<()>,
}

/// Signal for a task to accept the pending connections of its socket, and to end.
#[derive(Default)]
pub(super) struct End {
    is_requested: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl End {
    pub(super) fn request(&self) {
        self.is_requested.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Runs `future`, or returns `None` once the task is told to end.
    pub(super) async fn or<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.is_requested.get() {
                return Poll::Ready(None);
            }
            let mut waker = self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

/// Counts a task as waiting while it lives.
pub(super) struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    pub(super) fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Time at which a task last accepted, and how long its loop had worked until then.
#[derive(Clone, Copy)]
pub(super) struct LastAccept {
    pub(super) at: Instant,
    pub(super) busy_ns: u64,
}

impl LastAccept {
    // DIFF(nginx): with `multi_accept off`, a loop that does not rest takes more than one connection at once.
    /// Number of further connections to accept at `now`, if `self` is the state at the accept before.
    pub(super) fn more_at(self, now: Self) -> u128 {
        let away = now.at.saturating_duration_since(self.at);
        let busy = Duration::from_nanos(now.busy_ns.saturating_sub(self.busy_ns));
        // A look at the kernel that finds something is a rest, too, if a short one.
        if busy < away - away / 8 {
            return 0;
        }
        (away.as_micros() / WORK_FOR_ONE.as_micros()).min(TAKEN_AT_ONCE_MAX)
    }
}

impl Accepting {
    pub(super) fn new(mutex: &AcceptMutex) -> Self {
        Self {
            number: mutex.last.fetch_add(1, Relaxed) + 1,
            tasks: RefCell::default(),
            waiting: Cell::new(0),
            turn: Notify::new(),
            first_bytes: Cell::new(GUESS_MAX),
        }
    }

    /// Prepares the loop of this thread, which starts with these sockets.
    pub(super) fn prepare(sockets: &[ListenSocket]) {
        let count = sockets.iter().filter(|socket| socket.kind() == SocketKind::Stream).count();
        Acceptor::prepare(count + SPARE_GATES);
    }

    /// Guess for a connection that was just accepted: are its first bytes there?
    pub(super) fn first_bytes(&self) -> FirstBytes {
        match self.first_bytes.get() {
            1.. => FirstBytes::Likely,
            guess => {
                // Down to the bottom, then one try.
                self.first_bytes.set(if guess > -GUESS_MAX { guess - 1 } else { 1 });
                FirstBytes::Later
            }
        }
    }

    /// Records if the first bytes of a connection were there when it was accepted.
    pub(super) fn record_first_bytes(&self, were_there: bool) {
        let guess = self.first_bytes.get();
        if guess > 0 {
            let next = if were_there { guess.saturating_add(1) } else { guess / 2 };
            self.first_bytes.set(next.min(GUESS_MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutex_has_one_holder_at_a_time() {
        let mutex = AcceptMutex::default();
        assert!(mutex.is_free() && mutex.take(1) && mutex.take(1) && !mutex.take(2));
        mutex.give_up(2);
        assert!(!mutex.is_free());
        mutex.give_up(1);
        assert!(mutex.take(2) && !mutex.take(1));
    }

    #[test]
    fn busy_loop_accepts_in_proportion_to_its_absence() {
        let at = Instant::now();
        // Microseconds since one was taken, how many of them were work, and how many more are taken.
        for (away, busy, expected) in [
            (0, 0, 0),
            (90, 90, 0),
            (99, 0, 0),
            (1000, 1000, 10),
            (1000, 880, 10),
            (1000, 870, 0),
            (250, 250, 2),
            (6_400, 6_400, 64),
            (30_000, 30_000, 64),
            (10_000_000, 0, 0),
        ] {
            let before = LastAccept { at, busy_ns: 7_000 };
            let now = LastAccept { at: at + Duration::from_micros(away), busy_ns: 7_000 + busy * 1000 };
            assert_eq!(before.more_at(now), expected, "{away} {busy}");
        }
    }

    #[test]
    fn first_byte_guess_follows_observations() {
        let mutex = AcceptMutex::default();
        let accepting = Accepting::new(&mutex);
        assert_eq!(accepting.first_bytes(), FirstBytes::Likely);
        accepting.first_bytes.set(0);
        let later = (0..100).take_while(|_| accepting.first_bytes() == FirstBytes::Later).count();
        assert_eq!(later, GUESS_MAX as usize + 1);
    }
}
