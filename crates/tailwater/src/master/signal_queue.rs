//! The signals of the master, in the order in which they are obeyed.
//!
//! They are taken from the kernel at each check, and wait here. So the master can wait for a worker process and still
//! notice an order to end: see [`SignalQueue::interruption`].

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use tw_rt::signal::{ReceivedSignal, Signal, Signals};

/// First what ends something. A storm of the others cannot keep the server from being stopped.
const ORDER: [Signal; 8] = [
    Signal::Term,
    Signal::Int,
    Signal::Quit,
    Signal::Winch,
    Signal::Chld,
    Signal::Usr1,
    Signal::Usr2,
    Signal::Hup,
];

/// Signals that came.
#[derive(Debug)]
pub(super) struct SignalQueue {
    signals: Signals,
    waiting: RefCell<PendingSignals>,
}

impl SignalQueue {
    /// The signals of this process.
    pub(super) fn new(signals: Signals) -> Self {
        Self { signals, waiting: RefCell::default() }
    }

    /// The next one to be obeyed, if there is any. Does not wait.
    pub(super) fn next(&self) -> io::Result<Option<ReceivedSignal>> {
        let looked = self.read_pending();
        match self.waiting.borrow_mut().pop() {
            Some(first) => Ok(Some(first)),
            None => looked.map(|()| None),
        }
    }

    /// Returns a signal that cannot wait until a worker process has answered; it stays in here. WINCH is an order to a
    /// daemon only.
    pub(super) fn interruption(&self, is_daemon: bool) -> io::Result<Option<ReceivedSignal>> {
        self.read_pending()?;
        Ok(self.waiting.borrow().interruption(is_daemon))
    }

    /// Returns `true` if a signal waits in here, which the descriptor does not show.
    pub(super) fn has_some(&self) -> bool {
        !self.waiting.borrow().0.is_empty()
    }

    fn read_pending(&self) -> io::Result<()> {
        while let Some(received) = self.signals.wait(Some(Duration::ZERO))? {
            self.waiting.borrow_mut().push(received);
        }
        Ok(())
    }
}

/// Readable when another signal came.
impl AsFd for SignalQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

/// At most one of each kind, as in the kernel.
#[derive(Debug, Default)]
struct PendingSignals(Vec<ReceivedSignal>);

impl PendingSignals {
    fn push(&mut self, received: ReceivedSignal) {
        if self.0.iter().all(|one| one.signal != received.signal) {
            self.0.push(received);
        }
    }

    fn pop(&mut self) -> Option<ReceivedSignal> {
        let first = |signal: &Signal| self.0.iter().position(|one| one.signal == *signal);
        let at = ORDER.iter().find_map(first)?;
        Some(self.0.swap_remove(at))
    }

    fn interruption(&self, is_daemon: bool) -> Option<ReceivedSignal> {
        let cannot_wait = |received: &&ReceivedSignal| match received.signal {
            Signal::Term | Signal::Int | Signal::Quit => true,
            Signal::Winch => is_daemon,
            Signal::Chld | Signal::Usr1 | Signal::Usr2 | Signal::Hup => false,
        };
        self.0.iter().find(cannot_wait).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_signals_are_first_and_none_is_repeated() {
        let mut waiting = PendingSignals::default();
        let push = |waiting: &mut PendingSignals, signal| waiting.push(ReceivedSignal { signal, pid: 1 });
        assert_eq!(waiting.pop(), None);
        for signal in [Signal::Hup, Signal::Usr1, Signal::Hup, Signal::Winch, Signal::Chld] {
            push(&mut waiting, signal);
        }
        let signal = |received: Option<ReceivedSignal>| received.map(|received| received.signal);
        assert_eq!(waiting.interruption(false), None);
        assert_eq!(signal(waiting.interruption(true)), Some(Signal::Winch));
        push(&mut waiting, Signal::Quit);
        assert_eq!(signal(waiting.interruption(false)), Some(Signal::Quit));
        let all: Vec<_> = std::iter::from_fn(|| signal(waiting.pop())).collect();
        assert_eq!(all, [Signal::Quit, Signal::Winch, Signal::Chld, Signal::Usr1, Signal::Hup]);
    }
}
