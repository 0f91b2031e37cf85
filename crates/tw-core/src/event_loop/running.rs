//! A loop that runs: the state that every protocol shares, and the application on it.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use tw_net::{Addr, Transport};
use tw_rt::watch::Subject;
use tw_rt::{Socket, TaskSet};

use super::application::{AcceptedConnection, Application};
use super::counts::Counts;
use super::loop_core::LoopCore;
use crate::generation::{LoopConfiguration, LoopGeneration};

/// A loop that runs: its shared state and its application.
pub(super) struct Running<A> {
    pub(super) core: Rc<LoopCore>,
    pub(super) app: Rc<A>,
}

impl<A> Clone for Running<A> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), app: self.app.clone() }
    }
}

impl<A> Deref for Running<A> {
    type Target = LoopCore;

    fn deref(&self) -> &LoopCore {
        &self.core
    }
}

impl<A: Application> Running<A> {
    /// Creates the loop of the current thread. It does not accept yet.
    pub(super) fn new(index: usize, counts: Arc<Counts>, generation: A::Generation) -> Self {
        let core = LoopCore::new(index, counts, generation.process());
        Self { app: A::new(core.clone(), generation), core }
    }

    /// Serves new requests by `generation` from now on.
    pub(super) fn set_generation(&self, generation: A::Generation) {
        let process = generation.process();
        self.tally.generation.set(process.id);
        *self.process.borrow_mut() = LoopGeneration::new(process);
        self.app.set_generation(generation);
    }

    /// Starts the background tasks of the current generation. Dropping the result ends them.
    pub(super) fn start_background_tasks(&self) -> TaskSet<(), ()> {
        let mut background_tasks = TaskSet::default();
        let subject = Subject { kind: "generation", id: self.process.borrow().id };
        background_tasks.spawn((), subject, self.app.clone().run_background_tasks());
        background_tasks
    }

    /// Starts the task of a new connection.
    pub(super) fn accepted(&self, socket: Socket, peer: Addr, listen: &Rc<Addr>) {
        let app = self.app.clone();
        let listen = listen.clone();
        let transport = Transport::Plain(socket);
        let serve = |id| app.serve(AcceptedConnection { id, transport, peer, listen, passed: None });
        if let Err(exhausted) = self.core.spawn_connection(serve) {
            tw_log::alert!(self.process().error_log, "{exhausted}");
        }
    }
}
