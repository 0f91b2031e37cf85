//! Script processes of one event loop: connections as the master hands them over, and the choice of one for a request.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use tw_rt::Deadline;
use tw_rt::watch::Subject;

use crate::connection::Connection;
use crate::process_links;
use crate::script_set::are_there_scripts;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Time that a request waits for a script process that is started.
    const START_TIMEOUT: Duration = Duration::from_secs(10), time, "503";
}

thread_local! {
    static SCRIPTS: RefCell<Weak<LoopScripts>> = const { RefCell::new(Weak::new()) };
}

/// Script processes of one loop.
pub(crate) struct LoopScripts {
    connections: RefCell<Vec<Rc<Connection>>>,
    /// Calls that wait for a process.
    waiting: RefCell<Vec<Waker>>,
}

/// There is no script process.
#[derive(Debug)]
pub(crate) struct NoProcess;

impl LoopScripts {
    /// The script processes of the loop `worker` that this thread runs. The first call starts a task that takes links over.
    pub(crate) fn of_loop(worker: usize) -> Rc<Self> {
        SCRIPTS.with_borrow_mut(|scripts| {
            scripts.upgrade().unwrap_or_else(|| {
                let own = Rc::new(Self { connections: RefCell::default(), waiting: RefCell::default() });
                *scripts = Rc::downgrade(&own);
                let subject = Subject { kind: "script processes", id: worker as u64 };
                // The task ends with its loop.
                drop(tw_rt::spawn_local(subject, own.clone().take_links(worker)));
                own
            })
        })
    }

    /// Takes over links, and runs their connections.
    async fn take_links(self: Rc<Self>, worker: usize) {
        loop {
            let link = poll_fn(|cx| {
                let link = process_links::poll_link(worker, cx);
                if link.is_pending() && !are_there_scripts() {
                    self.retire_all();
                }
                link
            })
            .await;
            let connection = Connection::new(link, worker);
            self.add(connection.clone());
            let subject = Subject { kind: "script process", id: connection.pid.into() };
            let scripts = Rc::downgrade(&self);
            drop(tw_rt::spawn_local(subject, async move {
                connection.clone().run().await;
                if let Some(scripts) = scripts.upgrade() {
                    scripts.connections.borrow_mut().retain(|known| !Rc::ptr_eq(known, &connection));
                }
            }));
        }
    }

    /// Closes all connections that have no call, and the others at the end of their calls.
    fn retire_all(&self) {
        self.connections.take().iter().for_each(|connection| connection.retire());
    }

    /// The connection with the fewest calls.
    fn choose(&self) -> Option<Rc<Connection>> {
        let connections = self.connections.borrow();
        let usable = connections.iter().filter(|connection| !connection.is_closed());
        usable.min_by_key(|connection| connection.call_count()).cloned()
    }

    /// Adds a connection. Those of earlier sets of processes end with their calls.
    fn add(&self, connection: Rc<Connection>) {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|known| {
            let is_current = known.process_set == connection.process_set;
            if !is_current {
                known.retire();
            }
            is_current
        });
        connections.push(connection);
        drop(connections);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Waits for a connection.
    pub(crate) async fn connection(&self) -> Result<Rc<Connection>, NoProcess> {
        if let Some(connection) = self.choose() {
            return Ok(connection);
        }
        let mut deadline = Deadline::new();
        deadline.set(START_TIMEOUT);
        poll_fn(|cx| {
            if let Some(connection) = self.choose() {
                return Poll::Ready(Ok(connection));
            }
            if deadline.poll_elapsed(cx).is_ready() {
                return Poll::Ready(Err(NoProcess));
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}
