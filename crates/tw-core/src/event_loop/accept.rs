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

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use tokio::task::JoinHandle;
use tw_log::Level;
use tw_net::listen::{AcceptingLoops, SocketKind};
use tw_net::{AcceptError, Accepted, Acceptor, Addr, ListenSocket};
use tw_rt::watch::Subject;

use super::accepting::{End, LastAccept, Task, Waiting};
use super::application::Application;
use super::connections::Eviction;
use super::loop_core::LoopCore;
use super::running::Running;
use crate::generation::{ListenAddress, SocketSharing};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Connections that a loop still takes from a listening socket it leaves.
    const LAST_MAX: usize = 1024, count, "other loops take the rest; if there are none, it is closed";
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
        let mut last_accept = None;
        loop {
            let next = async {
                let has_turns = self.wait_for_accept_mutex(&mut acceptor).await;
                (has_turns, acceptor.accept().await)
            };
            let Some((has_turns, outcome)) = end.or(next).await else { break };
            let mut eviction = self.handle_accept_result(outcome, &listen);
            let mut more = self.more(&mut last_accept);
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
        self.accepting.record_first_bytes(were_there);
    }

    /// Number of further connections to accept after the current one.
    fn more(&self, last_accept: &mut Option<LastAccept>) -> u128 {
        if self.process.borrow().main.multi_accept {
            return u128::MAX;
        }
        let at = tw_rt::clock::now();
        let Some(busy_ns) = self.busy_until(at) else { return 0 };
        let now = LastAccept { at, busy_ns };
        // Tasks that evict idle connections have to run before more connections fit.
        let free = self.connections_max().saturating_sub(self.connections_in_use());
        last_accept.replace(now).map_or(0, |before| before.more_at(now)).min(free.into())
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
            let is_notified = tw_rt::time::timeout(timeout, self.accepting.turn.notified()).await;
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
