//! `stream` on one loop.

use std::cell::RefCell;
use std::future::pending;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use tw_connect::UpstreamConnections;
use tw_connect::upstream_names::refresh_names;
use tw_core::event_loop::{AcceptedConnection, Application, LoopCore};
use tw_net::Addr;

use crate::client::Client;
use crate::config::{GenerationRef, LoopGeneration};
use crate::phases;

/// Interval of looks for something unused: nothing is kept open here.
const SWEEP: Duration = Duration::from_secs(60);

/// State of `stream` on one loop, beside the state that every protocol shares.
pub struct StreamLoop {
    core: Rc<LoopCore>,
    /// Connections to upstream servers, and the choice among servers.
    pub(crate) upstreams: Rc<UpstreamConnections>,
    generation: RefCell<Rc<LoopGeneration>>,
}

impl StreamLoop {
    /// Returns the configuration of new sessions.
    pub(crate) fn generation(&self) -> Rc<LoopGeneration> {
        self.generation.borrow().clone()
    }

    /// Returns true if sessions begin on this listening address.
    pub fn listens_on(&self, address: &Addr) -> bool {
        self.generation.borrow().listening.find(address).is_some()
    }
}

impl Deref for StreamLoop {
    type Target = LoopCore;

    fn deref(&self) -> &LoopCore {
        &self.core
    }
}

impl Application for StreamLoop {
    type Generation = GenerationRef;

    fn new(core: Rc<LoopCore>, generation: GenerationRef) -> Rc<Self> {
        let upstreams = UpstreamConnections::new(core.clone());
        let generation = RefCell::new(LoopGeneration::new(generation));
        Rc::new(Self { core, upstreams, generation })
    }

    fn set_generation(&self, generation: GenerationRef) {
        *self.generation.borrow_mut() = LoopGeneration::new(generation);
    }

    async fn serve(self: Rc<Self>, connection: AcceptedConnection) {
        let AcceptedConnection { id, socket, peer, listen } = connection;
        let Some(client) = Client::new(id, peer, listen, self) else { return };
        phases::run(client, socket).await;
    }

    /// Refreshes the addresses of the names in the `upstream` blocks that are this loop's.
    async fn run_background_tasks(self: Rc<Self>) {
        let generation = self.generation();
        let loops = generation.main.worker_count().max(1);
        let own = generation.upstreams.iter().map(|group| &**group);
        let own: Vec<_> = own.skip(self.index % loops).step_by(loops).collect();
        if own.is_empty() {
            return pending().await;
        }
        refresh_names(&own, generation.disks.default_disk().pool()).await;
    }

    fn sweep(&self) -> Duration {
        SWEEP
    }

    fn close_files(&self) {}
}
