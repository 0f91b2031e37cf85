//! Accepting connections from listening sockets: one at a time or all that are pending (`multi_accept`), and only
//! while the loop holds the accept mutex (`accept_mutex`).
//!
//! A busy loop is back at its sockets only after each ready task has run. If it took one connection each time, the
//! last of many pending connections would wait for as many rounds as there are others. So a loop that does not sleep
//! between its turns accepts more at once, in proportion to the time since it last accepted.
//!
//! ```text
//! its own socket (reuseport) ──────────────────────────────┐
//! a socket of all loops ─► its turn, or after the delay ───┼─► taken ─┬─► served here
//! another loop (connection_balance) ────────────┐          │          └─► passed on to a loop that does less
//!                                               └──────────┼─► served here
//! ```

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tw_log::Level;
use tw_net::listen::{AcceptingLoops, SocketKind};
use tw_net::{AcceptError, Accepted, Acceptor, Addr, ListenSocket};
use tw_rt::FirstBytes;
use tw_rt::watch::Subject;

use super::idle_eviction::Eviction;
use super::{Application, LoopCore, Running};
use crate::generation::{ListenAddress, SocketSharing};

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
    pub(super) const LIMITS;

    /// Connections that a loop still takes from a listening socket it leaves.
    const LAST_MAX: usize = 1024, count, "other loops take the rest; if there are none, it is closed";
}
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
    fn take(&self, number: u64) -> bool {
        // Acquire and release: the next holder sees what the last one accepted.
        match self.holder.compare_exchange(0, number, AcqRel, Acquire) {
            Ok(_) => true,
            Err(holder) => holder == number,
        }
    }

    fn give_up(&self, number: u64) {
        // A mutex held by another loop stays locked.
        let _ = self.holder.compare_exchange(number, 0, Release, Relaxed);
    }

    fn is_free(&self) -> bool {
        self.holder.load(Relaxed) == 0
    }
}

/// Accepting state of a loop.
pub(super) struct Accepting {
    /// Number of the loop for the mutex.
    number: u64,
    /// Listening sockets, and the tasks that accept from them.
    tasks: RefCell<Vec<Task>>,
    /// Number of tasks that wait for the mutex.
    waiting: Cell<usize>,
    turn: Notify,
    first_bytes: Cell<i8>,
}

struct Task {
    socket: Option<u64>,
    share: AcceptingLoops,
    end: Rc<End>,
    handle: JoinHandle<()>,
}

/// Signal for a task to accept the pending connections of its socket, and to end.
#[derive(Default)]
pub(super) struct End {
    is_requested: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl End {
    fn request(&self) {
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
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
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
struct Seen {
    at: Instant,
    busy_ns: u64,
}

impl Seen {
    // DIFF(nginx): with `multi_accept off`, a loop that does not rest takes more than one connection at once.
    /// Number of further connections to accept at `now`, if `self` is the state at the accept before.
    fn more_at(self, now: Self) -> u128 {
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
    fn first_bytes(&self) -> FirstBytes {
        match self.first_bytes.get() {
            1.. => FirstBytes::Likely,
            guess => {
                // Down to the bottom, then one try.
                self.first_bytes.set(if guess > -GUESS_MAX { guess - 1 } else { 1 });
                FirstBytes::Later
            }
        }
    }
}

impl<A: Application> Running<A> {
    /// Accepts from these sockets only. Sockets that it has already are kept as they are.
    pub(super) fn listen(&self, sockets: Vec<ListenSocket>) {
        let mut old = self.accepting.tasks.take();
        let mut tasks = Vec::with_capacity(sockets.len());
        for socket in sockets {
            let cookie = socket.cookie().ok();
            let share = socket.shared_with();
            let is_same = |task: &Task| task.socket.is_some() && task.socket == cookie && task.share == share;
            if let Some(at) = old.iter().position(is_same) {
                tasks.push(old.swap_remove(at));
                continue;
            }
            let end = Rc::new(End::default());
            match self.start_accepting(socket, end.clone()) {
                Ok(handle) => tasks.push(Task { socket: cookie, share, end, handle }),
                Err(e) => tw_log::emerg!(self.process().error_log, "cannot accept connections: {e}"),
            }
        }
        old.iter().for_each(|task| task.end.request());
        self.accepting.tasks.replace(tasks);
        // The configuration may have turned the accept mutex on or off.
        self.accepting.turn.notify_waiters();
    }

    /// Starts the task that accepts or receives from a socket.
    fn start_accepting(&self, socket: ListenSocket, end: Rc<End>) -> io::Result<JoinHandle<()>> {
        let subject = Subject { kind: "accept", id: 0 };
        match socket.kind() {
            SocketKind::Stream => {
                let acceptor = Acceptor::new(socket)?;
                Ok(tw_rt::spawn_local(subject, self.clone().accept(acceptor, end)))
            }
            SocketKind::Datagram => {
                let (socket, listener) = Self::datagram_socket(socket)?;
                Ok(tw_rt::spawn_local(subject, self.clone().receive(socket, listener, end)))
            }
        }
    }

    async fn accept(self, mut acceptor: Acceptor, end: Rc<End>) {
        let listen = Rc::new(acceptor.addr().clone());
        let mut seen = None;
        loop {
            let next = async {
                let has_turns = self.wait_for_accept_mutex(&mut acceptor).await;
                (has_turns, acceptor.accept().await)
            };
            let Some((has_turns, outcome)) = end.or(next).await else { break };
            let mut eviction = self.handle_accept_result(outcome, &listen);
            let mut more = self.more(&mut seen);
            // After an error, accepting would fail again until other tasks have run.
            while eviction.is_none()
                && more > 0
                && let Some(outcome) = acceptor.try_accept()
            {
                more -= 1;
                eviction = self.handle_accept_result(outcome, &listen);
            }
            if eviction == Some(Eviction::Done) {
                acceptor.skip_error_pause();
            }
            if has_turns {
                self.give_up_turn();
                // Accepted connections are served first; meanwhile another loop may take the mutex.
                tw_rt::yield_now().await;
            }
        }
        for _ in 0..LAST_MAX {
            let Some(Ok(accepted)) = acceptor.try_accept() else { break };
            self.handle_accepted(accepted, &listen);
        }
    }

    /// Serves an accepted connection; on an error says if a descriptor has been freed for it.
    fn handle_accept_result(
        &self,
        outcome: Result<Accepted, AcceptError>,
        listen: &Rc<Addr>,
    ) -> Option<Eviction> {
        let error = match outcome {
            Ok(accepted) => {
                self.handle_accepted(accepted, listen);
                return None;
            }
            Err(error) => error,
        };
        let eviction = self.free_descriptors(error);
        if eviction == Eviction::NothingIdle {
            let level = if error.is_exhaustion() { Level::Crit } else { Level::Alert };
            tw_log::write_at!(self.process().error_log, level, "{error}");
        }
        Some(eviction)
    }

    fn handle_accepted(&self, accepted: Accepted, listen: &Rc<Addr>) {
        // A panic with one connection must not keep the loop from accepting the next; the panic hook has logged it.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let local = self.shared_address(&accepted, listen).map(Rc::new);
            let listen = local.as_ref().unwrap_or(listen);
            if let Some(accepted) = self.pass_on(accepted, listen) {
                self.serve_accepted(accepted, listen);
            }
        }));
    }

    /// Starts to serve a connection.
    pub(super) fn serve_accepted(&self, accepted: Accepted, listen: &Rc<Addr>) {
        let (socket, peer) = accepted.into_socket(self.accepting.first_bytes());
        self.accepted(socket, peer, listen);
    }
}

impl LoopCore {
    /// Accepts the connections that are pending in its sockets, and then stops. The kernel may have woken this loop
    /// alone for one of them.
    pub(super) async fn stop_listening(&self) {
        let tasks = self.accepting.tasks.take();
        tasks.iter().for_each(|task| task.end.request());
        for task in tasks {
            // A task that panicked has ended, too.
            let _ = task.handle.await;
        }
        self.give_up_turn();
    }

    /// Returns true if one of the accepting tasks has ended, which none does by itself. Otherwise the task of `cx` is
    /// woken when one does.
    pub(super) fn has_stopped_accepting(&self, cx: &mut Context<'_>) -> bool {
        let mut tasks = self.accepting.tasks.borrow_mut();
        tasks.iter_mut().any(|task| Pin::new(&mut task.handle).poll(cx).is_ready())
    }

    /// Releases the accept mutex, if this loop holds it.
    pub(super) fn give_up_turn(&self) {
        self.counts.accept_mutex.give_up(self.accepting.number);
    }

    /// Wakes the tasks that wait for the accept mutex if it is free. nginx tries once in each turn of its loop; this
    /// is called once for each request.
    pub fn try_accept_mutex(&self) {
        if self.accepting.waiting.get() > 0 && self.counts.accept_mutex.is_free() {
            self.accepting.turn.notify_waiters();
        }
    }

    /// Records if the first bytes of a connection were there when it was accepted.
    pub fn record_first_bytes(&self, were_there: bool) {
        let guess = self.accepting.first_bytes.get();
        if guess > 0 {
            let next = if were_there { guess.saturating_add(1) } else { guess / 2 };
            self.accepting.first_bytes.set(next.min(GUESS_MAX));
        }
    }

    /// Number of further connections to accept after the current one.
    fn more(&self, seen: &mut Option<Seen>) -> u128 {
        if self.process.borrow().main.multi_accept {
            return u128::MAX;
        }
        let at = tw_rt::clock::now();
        let Some(busy_ns) = self.busy_until(at) else { return 0 };
        let now = Seen { at, busy_ns };
        // Tasks that evict idle connections have to run before more connections fit.
        let free = self.connections_max().saturating_sub(self.connections_in_use());
        seen.replace(now).map_or(0, |before| before.more_at(now)).min(free.into())
    }

    /// Waits until this loop may accept from a socket that all loops share. Returns true if the accept mutex is in
    /// use.
    async fn wait_for_accept_mutex(&self, acceptor: &mut Acceptor) -> bool {
        loop {
            let Some(delay) = self.accept_mutex_delay(acceptor) else { return false };
            let is_full = self.is_nearly_full();
            if !is_full && self.counts.accept_mutex.take(self.accepting.number) {
                return true;
            }
            acceptor.pause();
            let waiting = Waiting::new(&self.accepting.waiting);
            // DIFF(nginx): one that is nearly full leaves it to the others for two delays, in which each of them tries, not
            // for as many turns of its loop as it lacks connections.
            let timeout = if is_full { delay.saturating_mul(2) } else { delay };
            let is_notified = tokio::time::timeout(timeout, self.accepting.turn.notified()).await;
            drop(waiting);
            if is_full && is_notified.is_err() && self.counts.accept_mutex.take(self.accepting.number) {
                return true;
            }
        }
    }

    /// Delay of the accept mutex, or `None` if this socket needs no mutex.
    fn accept_mutex_delay(&self, acceptor: &Acceptor) -> Option<Duration> {
        let main = &self.process.borrow().main;
        let has_turns =
            main.accept_mutex && main.worker_count() > 1 && acceptor.shared_with() == AcceptingLoops::All;
        has_turns.then_some(main.accept_mutex_delay)
    }

    /// Returns true if less than an eighth of the worker connections is free.
    fn is_nearly_full(&self) -> bool {
        let limit = self.connections_max();
        limit.saturating_sub(self.connections_in_use()) < limit / 8
    }

    /// Configured address of a connection, if that shares the socket of another address.
    fn shared_address(&self, accepted: &Accepted, listen: &Addr) -> Option<Addr> {
        let generation = self.process.borrow();
        // If every address has a socket of its own, the list is not needed.
        let accepts = |listen: &&ListenAddress| listen.options.kind == SocketKind::Stream;
        let is = |address: &Addr, socket| {
            let mut listens = generation.listens.iter().filter(accepts);
            listens.any(|listen| listen.address == *address && listen.socket == socket)
        };
        if !is(listen, SocketSharing::Shared) {
            return None;
        }
        let local = accepted.local_addr().ok()?;
        is(&local, SocketSharing::UsesWildcard).then_some(local)
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
            let before = Seen { at, busy_ns: 7_000 };
            let now = Seen { at: at + Duration::from_micros(away), busy_ns: 7_000 + busy * 1000 };
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
