//! `mail` as an application of a loop: accepted connections become sessions.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use tw_connect::upstream_names::refresh_names;
use tw_core::event_loop::{
    AcceptedConnection, Application, DatagramListener, HandedSession, LoopCore, LoopShare, PassedDatagram,
    ReceivedDatagram,
};
use tw_rt::TaskSet;
use tw_rt::watch::Subject;

use crate::client::Client;
use crate::config::GenerationRef;
use crate::mail_loop::MailLoop;
use crate::session::MailSession;
use crate::{health, phases};

/// Interval of looks for something unused: idle connections are closed by their pool.
const SWEEP: Duration = Duration::from_secs(60);

impl Application for MailLoop {
    type Generation = GenerationRef;

    fn new(core: Rc<LoopCore>, generation: GenerationRef) -> Rc<Self> {
        Rc::new(Self::begin(core, generation))
    }

    fn set_generation(&self, generation: GenerationRef) {
        self.replace_generation(generation);
    }

    // An `async fn` would hold the connection beside the session for as long as the session lasts.
    fn serve(self: Rc<Self>, connection: AcceptedConnection) -> impl Future<Output = ()> {
        let AcceptedConnection { id, transport, peer, listen, passed } = connection;
        let client = Client::new(id, peer, listen, self);
        phases::run(client.map(|client| {
            let mut session = MailSession::new(client, transport);
            if let Some(passed) = passed {
                session.take_passed(*passed);
            }
            session
        }))
    }

    // Mail has no datagrams.
    fn receive(self: &Rc<Self>, _: &Rc<DatagramListener>, _: &ReceivedDatagram<'_>) {}

    fn receive_passed(self: &Rc<Self>, _: PassedDatagram) {}

    fn take_over(self: &Rc<Self>, _: HandedSession) {}

    fn stop_receiving(&self, _: &DatagramListener) {}

    async fn run_background_tasks(self: Rc<Self>) {
        let mut background_tasks = TaskSet::default();
        let subject = |kind| Subject { kind, id: self.index as u64 };
        background_tasks.spawn((), subject("names"), self.clone().refresh_names());
        background_tasks.spawn((), subject("health checks"), health::run(self.clone()));
        while let ((), Ok(())) = poll_fn(|cx| background_tasks.poll_ended(cx)).await {}
    }

    fn sweep(&self) -> Duration {
        SWEEP
    }

    fn close_files(&self) {}
}

impl MailLoop {
    /// Refreshes the addresses of the names in the `upstream` blocks that are this loop's. Never ends by itself.
    async fn refresh_names(self: Rc<Self>) {
        let generation = self.generation();
        let loops = generation.process.main.worker_count().max(1);
        let pool = generation.disks.default_disk().pool();
        let share = LoopShare { index: self.index, loops };
        refresh_names(&generation.upstreams, share, pool, &generation.process.error_log).await;
    }
}
