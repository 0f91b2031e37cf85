//! Tasks of connections: each counts as an open connection while it lives.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tw_rt::watch::Subject;

use super::connections::ConnectionsExhausted;
use super::counts::CONNECTION;
use super::loop_core::LoopCore;

/// Counts a connection as open while it lives.
struct Open(Rc<LoopCore>);

impl Open {
    fn new(core: Rc<LoopCore>) -> Self {
        core.tally.open.add(1);
        Self(core)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.tally.open.sub(1);
    }
}

pin_project! {
    /// Task of a connection. Not an async block, which would keep a second copy of the future: half of what an idle
    /// connection costs.
    struct OpenConnection<F> {
        #[pin]
        serving: F,
        _open: Open,
    }
}

impl<F: Future<Output = ()>> Future for OpenConnection<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().serving.poll(cx)
    }
}

impl LoopCore {
    /// Starts a task that counts as a connection of a client, with the number of it.
    ///
    /// # Errors
    /// All `worker_connections` are in use, and none is idle.
    pub fn spawn_connection<F>(
        self: &Rc<Self>,
        serve: impl FnOnce(u64) -> F,
    ) -> Result<(), ConnectionsExhausted>
    where
        F: Future<Output = ()> + 'static,
    {
        self.tally.accepted.add(1);
        self.ensure_connection_available().inspect_err(|_| self.tally.refused.add(1))?;
        let id = self.counts.next_connection();
        let connection = OpenConnection { serving: serve(id), _open: Open::new(self.clone()) };
        self.connections.tasks.spawn(Subject { kind: CONNECTION, id }, connection);
        Ok(())
    }
}
