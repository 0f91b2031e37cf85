//! Queue of the connections of a loop that send large bodies. One of them at a time is among the ready tasks of the
//! loop; the others wait here, however many there are.
//!
//! ```text
//! ready tasks of the loop:   small request, small request, bulk sender
//!                                                              │ sends a piece, and calls the next one, who goes
//! line:   sender, sender, sender, …  ◄── has more to send ─────┘ behind all that has become ready meanwhile
//! ```
//! Without it, a thousand senders would each send a piece before a small request that has arrived after them is
//! served.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::{BULK_MIN, CopyBudget};

/// Pieces that a sender may send in a row, see [`CopyBudget::poll_bulk_run`]: 2 MiB of 128 KiB each, about what a socket takes of a
/// fast client. Half of it is not enough: the socket never fills up, and the loop does all the work of sending.
pub(super) const RUN_MAX: u32 = 16;

/// Bulk queue of one loop, in order of arrival.
#[derive(Default)]
pub(super) struct BulkQueue {
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
    /// Waiting senders that send one piece each time.
    singles: Cell<usize>,
}

struct Waiter {
    waker: RefCell<Waker>,
    takes: Pieces,
    is_gone: Cell<bool>,
}

/// Pieces that a sender sends before it goes to the end of the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pieces {
    One,
    Run,
}

/// Size of a whole response, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodySize {
    /// At most [`BULK_MIN`].
    Small,
    /// More.
    Large,
}

impl BodySize {
    /// The size of a response of which `sent` bytes have left and `remaining` are known to follow.
    pub fn of(sent: u64, remaining: u64) -> Self {
        if sent.saturating_add(remaining) > BULK_MIN as u64 { Self::Large } else { Self::Small }
    }
}

/// Position of one sender in the bulk queue. Dropping it leaves the queue.
#[derive(Default)]
pub struct BulkTurn {
    place: Option<QueuePlace>,
    /// Pieces that the sender may send after the next one before it goes to the end of the queue.
    remaining_pieces: u32,
}

impl BulkTurn {
    /// Leaves the queue.
    pub fn leave(&mut self) {
        self.place = None;
    }
}

struct QueuePlace {
    line: Rc<BulkQueue>,
    waiter: Rc<Waiter>,
}

impl BulkQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.borrow().is_empty()
    }

    fn join(self: &Rc<Self>, takes: Pieces, cx: &Context<'_>) -> QueuePlace {
        let waker = RefCell::new(cx.waker().clone());
        let is_gone = Cell::new(false);
        let waiter = Rc::new(Waiter { waker, takes, is_gone });
        self.waiters.borrow_mut().push_back(waiter.clone());
        self.singles.set(self.singles.get() + usize::from(takes == Pieces::One));
        QueuePlace { line: self.clone(), waiter }
    }

    /// Removes the waiters at the front that have left, and wakes the one that is at the front then.
    fn call(&self) {
        let mut waiters = self.waiters.borrow_mut();
        while waiters.front().is_some_and(|front| front.is_gone.get()) {
            waiters.pop_front();
        }
        if let Some(front) = waiters.front() {
            front.waker.borrow().wake_by_ref();
        }
    }
}

impl QueuePlace {
    fn is_front(&self) -> bool {
        self.line.waiters.borrow().front().is_some_and(|front| Rc::ptr_eq(front, &self.waiter))
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.waiter.is_gone.set(true);
        self.line.singles.set(self.line.singles.get() - usize::from(self.waiter.takes == Pieces::One));
        if self.is_front() {
            self.line.call();
        }
    }
}

impl CopyBudget {
    /// Ready when this sender may send a piece of a large body: no sender before it waits, and since the loop last
    /// polled for events, the queue has sent less than a buffer. After sending, the sender [counts the
    /// bytes](Self::spent) and joins the end of the queue with the next piece.
    pub fn poll_bulk(&self, place: &mut BulkTurn, cx: &mut Context<'_>) -> Poll<()> {
        if place.place.is_none() && self.is_free() {
            return Poll::Ready(());
        }
        let polled = self.poll_front(place, Pieces::One, cx);
        if polled.is_ready() {
            place.leave();
        }
        polled
    }

    /// Ready like [`poll_bulk`](Self::poll_bulk), but the sender keeps the front of the queue for its next pieces, up to a named
    /// number of them in a row, as long as no sender waits that sends one each time. Bytes that its socket takes beyond the
    /// window of the client are sent by the kernel when the client acknowledges others. The sender has to
    /// [leave](BulkTurn::leave) when its socket takes no more, or when it has nothing to send.
    pub fn poll_bulk_run(&self, place: &mut BulkTurn, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.poll_front(place, Pieces::Run, cx);
        if polled.is_ready() {
            match place.remaining_pieces.checked_sub(1).filter(|_| self.line.singles.get() == 0) {
                Some(remaining) => place.remaining_pieces = remaining,
                None => place.leave(),
            }
        }
        polled
    }

    /// Ready when the sender is at the front of the queue, or the queue is empty, and this turn may still copy.
    fn poll_front(&self, place: &mut BulkTurn, takes: Pieces, cx: &mut Context<'_>) -> Poll<()> {
        let queue_place = match &mut place.place {
            Some(queue_place) => {
                queue_place.waiter.waker.borrow_mut().clone_from(cx.waker());
                queue_place
            }
            none => {
                place.remaining_pieces = RUN_MAX - 1;
                none.insert(self.line.join(takes, cx))
            }
        };
        if !queue_place.is_front() {
            return Poll::Pending;
        }
        if self.may_go_on() {
            return Poll::Ready(());
        }
        // Ready tasks and new events run before this transfer goes on.
        let mut next_turn = pin!(tw_rt::yield_now());
        let _ = next_turn.as_mut().poll(cx);
        Poll::Pending
    }

    /// Waits for the turn to send a piece of a body. A large body waits in the bulk queue, a small one only for a
    /// turn of the loop that may still copy.
    pub async fn turn(&self, size: BodySize) {
        match size {
            BodySize::Small => {
                while !self.may_copy(0) {
                    tw_rt::yield_now().await;
                }
            }
            BodySize::Large => {
                let mut place = BulkTurn::default();
                std::future::poll_fn(|cx| self.poll_bulk(&mut place, cx)).await;
            }
        }
    }

    /// Yields to other tasks after a whole piece, unless the bulk queue does so anyway.
    pub async fn yield_to_others(&self) {
        if self.line.is_empty() {
            tw_rt::yield_now().await;
        }
    }

    /// Returns true if a large body may be sent on at once: no sender waits, and this turn may still copy.
    pub fn is_free(&self) -> bool {
        self.line.is_empty() && self.may_copy(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tw_rt::watch::Subject;
    use tw_rt::{LoopOptions, LoopThread};

    use super::super::SCRATCH_SIZE;
    use super::*;

    const SENDERS: u64 = 200;

    /// Runs `main` as the main future of a loop.
    fn on_loop<F: Future<Output = ()> + 'static>(main: impl FnOnce() -> F + Send + 'static) {
        LoopThread::<()>::start(LoopOptions::new(0), |_| main()).unwrap().join().unwrap();
    }

    /// Starts senders that never run out, on a loop with this budget; what each has sent is counted.
    fn start_senders(budget: &Rc<CopyBudget>) -> Rc<Vec<Cell<u64>>> {
        let sent: Rc<Vec<_>> = Rc::new((0..SENDERS).map(|_| Cell::new(0)).collect());
        for id in 0..SENDERS {
            let budget = budget.clone();
            let sent = sent.clone();
            tw_rt::spawn_local(Subject { kind: "sender", id }, async move {
                loop {
                    budget.turn(BodySize::Large).await;
                    budget.spent(SCRATCH_SIZE);
                    sent[id as usize].set(sent[id as usize].get() + 1);
                    budget.yield_to_others().await;
                }
            });
        }
        sent
    }

    #[test]
    fn ready_tasks_run_before_queued_senders() {
        on_loop(|| async {
            let budget = Rc::new(CopyBudget::new());
            let sent = start_senders(&budget);
            let total = |sent: &[Cell<u64>]| sent.iter().map(Cell::get).sum::<u64>();
            while total(&sent) < 2 * SENDERS {
                tw_rt::yield_now().await;
            }
            for _ in 0..100 {
                let before = total(&sent);
                let sent = sent.clone();
                // A new task stands behind all tasks that are ready, as one does that an event has woken.
                let small = async move { total(&sent) - before };
                let meanwhile =
                    tw_rt::spawn_local(Subject { kind: "small request", id: 0 }, small).await.unwrap();
                assert!(meanwhile <= 1, "{meanwhile} of {SENDERS} senders came before a small request");
                tw_rt::yield_now().await;
            }
        });
    }

    #[test]
    fn senders_take_turns_in_order() {
        on_loop(|| async {
            let budget = Rc::new(CopyBudget::new());
            let sent = start_senders(&budget);
            while sent.iter().map(Cell::get).sum::<u64>() < 20 * SENDERS {
                tw_rt::yield_now().await;
            }
            let least = sent.iter().map(Cell::get).min();
            let most = sent.iter().map(Cell::get).max();
            assert!(most.unwrap() - least.unwrap() <= 2, "{least:?} {most:?}");
        });
    }

    #[test]
    fn sender_keeps_the_front_for_a_run_of_pieces() {
        on_loop(|| async {
            let budget = CopyBudget::new();
            let mut cx = Context::from_waker(Waker::noop());
            let mut first = BulkTurn::default();
            let mut second = BulkTurn::default();
            for piece in 0..RUN_MAX {
                assert!(budget.poll_bulk_run(&mut first, &mut cx).is_ready(), "{piece}");
                assert_eq!(budget.poll_bulk_run(&mut second, &mut cx).is_ready(), piece == RUN_MAX - 1);
            }
            assert!(budget.poll_bulk_run(&mut first, &mut cx).is_pending());
            assert!(budget.poll_bulk_run(&mut second, &mut cx).is_ready());
            second.leave();
            assert!(budget.poll_bulk_run(&mut first, &mut cx).is_ready());
            budget.spent(SCRATCH_SIZE);
            assert!(budget.poll_bulk_run(&mut first, &mut cx).is_pending(), "the turn has copied enough");
            tw_rt::yield_now().await;
            assert!(budget.poll_bulk_run(&mut first, &mut cx).is_ready());
            assert!(budget.poll_bulk(&mut second, &mut cx).is_pending());
            assert!(budget.poll_bulk_run(&mut first, &mut cx).is_ready());
            assert!(budget.poll_bulk(&mut second, &mut cx).is_ready(), "the run has ended");
        });
    }

    #[test]
    fn leaving_the_queue_does_not_block_others() {
        on_loop(|| async {
            let budget = CopyBudget::new();
            let mut cx = Context::from_waker(Waker::noop());
            budget.charge(Duration::from_secs(1));
            let mut places: [BulkTurn; 4] = Default::default();
            for place in &mut places {
                assert!(budget.poll_bulk(place, &mut cx).is_pending());
            }
            let [first, second, third, mut fourth] = places;
            drop(second);
            drop(first);
            drop(third);
            tw_rt::yield_now().await;
            assert!(!budget.is_free(), "one waits");
            assert!(budget.poll_bulk(&mut fourth, &mut cx).is_ready());
            assert!(budget.is_free());
        });
    }
}
