//! Virtual time of a simulation: a pause ends when the driver moves the time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::host::Pause;

/// Time of all machines, and the pauses that wait for it.
#[derive(Default)]
pub(super) struct VirtualTime {
    now: Cell<Duration>,
    count: Cell<u64>,
    pauses: RefCell<BTreeMap<(Duration, u64), Waker>>,
}

impl VirtualTime {
    pub(super) fn now(&self) -> Duration {
        self.now.get()
    }

    pub(super) fn sleep(self: &Rc<Self>, length: Duration) -> Pause {
        let time = self.clone();
        let end = self.now.get() + length;
        let number = self.count.get();
        self.count.set(number + 1);
        Box::pin(poll_fn(move |cx| {
            if time.now.get() >= end {
                return Poll::Ready(());
            }
            time.pauses.borrow_mut().insert((end, number), cx.waker().clone());
            Poll::Pending
        }))
    }

    /// Moves to the end of the next pauses, and wakes them. Returns false if there are none before `end`.
    pub(super) fn advance(&self, end: Duration) -> bool {
        let Some(((next, _), _)) = self.pauses.borrow().first_key_value().map(|(key, _)| (*key, ())) else {
            return false;
        };
        if next > end {
            self.now.set(end);
            return false;
        }
        self.now.set(next.max(self.now.get()));
        loop {
            let mut pauses = self.pauses.borrow_mut();
            match pauses.first_entry() {
                Some(first) if first.key().0 <= next => {
                    let waker = first.remove();
                    drop(pauses);
                    waker.wake();
                }
                _ => return true,
            }
        }
    }
}
