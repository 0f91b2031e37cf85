//! `stream` on one loop.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tw_connect::upstream_names::refresh_names;
use tw_core::event_loop::{
    AcceptedConnection, Application, DatagramListener, HandedSession, LoopCore, LoopShare, PassedDatagram,
    ReceivedDatagram,
};
use tw_net::Addr;
use tw_net::listen::SocketKind;
use tw_rt::TaskSet;
use tw_rt::watch::Subject;
use tw_tls_settings::keep_stapled;

use crate::client::{Client, ClientConnection};
use crate::config::{GenerationRef, LoopGeneration, ServerId};
use crate::datagram_client::{DatagramClient, DatagramStarter};
use crate::loop_services::LoopServices;
use crate::ocsp_client::StapledServer;
use crate::session::{SessionTransport, StreamSession};
use crate::stream_loop::StreamLoop;
use crate::{datagrams, health, phases, session_handover};

/// Interval of looks for something unused: nothing is kept open here.
const SWEEP: Duration = Duration::from_secs(60);

/// `stream` on one loop: it begins sessions by the current configuration.
pub struct StreamApplication {
    pub(crate) event_loop: Rc<StreamLoop>,
    generation: RefCell<Rc<LoopGeneration>>,
    this: Weak<Self>,
}

impl StreamApplication {
    /// Returns the configuration of new sessions.
    pub(crate) fn generation(&self) -> Rc<LoopGeneration> {
        self.generation.borrow().clone()
    }

    /// Sets the services of the application. Called once.
    pub fn set_services(&self, services: Rc<dyn LoopServices>) {
        self.event_loop.set_services(services);
    }

    /// Returns true if sessions begin on this listening address.
    pub fn listens_on(&self, address: &Addr, kind: SocketKind) -> bool {
        self.generation.borrow().listening.find(address, kind).is_some()
    }

    /// Ends all sessions over datagrams: no address is listened on any more.
    pub fn end_datagram_sessions(&self) {
        self.event_loop.datagram_sessions.end(|_| true);
    }
}

impl DatagramStarter for StreamApplication {
    fn begin_next(&self, client: &DatagramClient) {
        if let Some(application) = self.this.upgrade() {
            datagrams::begin_next(client, &application);
        }
    }
}

impl Application for StreamApplication {
    type Generation = GenerationRef;

    fn new(core: Rc<LoopCore>, generation: GenerationRef) -> Rc<Self> {
        let event_loop = StreamLoop::new(core);
        let generation = RefCell::new(LoopGeneration::new(generation));
        let application = Rc::new_cyclic(|this| Self { event_loop, generation, this: this.clone() });
        let starter: Weak<dyn DatagramStarter> = application.this.clone();
        application.event_loop.datagram_sessions.set_starter(starter);
        application
    }

    fn set_generation(&self, generation: GenerationRef) {
        let generation = LoopGeneration::new(generation);
        let count = |generation: &LoopGeneration| generation.process.main.worker_count();
        let old = self.generation.replace(generation.clone());
        if count(&old) != count(&generation) {
            self.event_loop.datagram_sessions.mark_moved();
        }
    }

    // An `async fn` would hold the connection beside the session for as long as the session lasts.
    fn serve(self: Rc<Self>, connection: AcceptedConnection) -> impl Future<Output = ()> {
        phases::run(self.begin_session(connection))
    }

    fn receive(self: &Rc<Self>, listener: &Rc<DatagramListener>, datagram: &ReceivedDatagram<'_>) {
        datagrams::receive(self, listener, datagram);
    }

    fn receive_passed(self: &Rc<Self>, datagram: PassedDatagram) {
        datagrams::receive_passed(self, datagram);
    }

    fn take_over(self: &Rc<Self>, session: HandedSession) {
        session_handover::take_over(self, session);
    }

    fn stop_receiving(&self, listener: &DatagramListener) {
        self.event_loop.datagram_sessions.end(|id| id == listener.id);
    }

    async fn run_background_tasks(self: Rc<Self>) {
        let mut background_tasks = TaskSet::default();
        let subject = |kind| Subject { kind, id: self.event_loop.index as u64 };
        background_tasks.spawn((), subject("names"), self.clone().refresh_names());
        background_tasks.spawn((), subject("stapling"), self.clone().keep_stapled());
        background_tasks.spawn((), subject("health checks"), health::run(self.clone()));
        let generation = self.generation();
        for (at, server) in generation.servers.iter().enumerate() {
            for task in server.plan.tasks.iter().filter(|task| task.runs_on(self.event_loop.index)) {
                let session = self.clone().internal_sessions(generation.clone(), ServerId(at as u32));
                background_tasks.spawn((), subject("module"), task.clone().run(session));
            }
        }
        while let ((), Ok(())) = poll_fn(|cx| background_tasks.poll_ended(cx)).await {}
    }

    fn sweep(&self) -> Duration {
        SWEEP
    }

    fn close_files(&self) {}
}

impl StreamApplication {
    /// Begins the session of a connection; `None` if a reload took its listening address away meanwhile.
    fn begin_session(self: Rc<Self>, connection: AcceptedConnection) -> Option<StreamSession> {
        let AcceptedConnection { id, transport, peer, listen, passed } = connection;
        let accepted = tw_rt::clock::now();
        let connection = ClientConnection { id, peer, listen, kind: SocketKind::Stream, accepted };
        let client = Client::new(connection, self.event_loop.clone(), self.generation())?;
        let mut session = StreamSession::new(client, SessionTransport::Connection(Rc::new(transport)));
        if let Some(passed) = passed {
            session.take_passed(*passed);
        }
        Some(session)
    }

    /// Makes sessions without a client, in the place of those of a server.
    fn internal_sessions(
        self: Rc<Self>,
        generation: Rc<LoopGeneration>,
        server: ServerId,
    ) -> Box<dyn Fn() -> StreamSession> {
        Box::new(move || {
            let client = Client::internal(self.event_loop.clone(), generation.clone(), server);
            StreamSession::internal(client)
        })
    }

    /// Keeps the OCSP responses of the loop's certificates up to date. Never ends by itself.
    async fn keep_stapled(self: Rc<Self>) {
        let generation = self.generation();
        let loops = generation.process.main.worker_count().max(1);
        let certificates = generation.servers.iter().enumerate().flat_map(|(at, server)| {
            let id = ServerId(at as u32);
            let stapled = |stapling: &_| {
                let event_loop = self.event_loop.clone();
                let generation = generation.clone();
                (Arc::clone(stapling), StapledServer { event_loop, generation, server: id })
            };
            server.ssl.tls.iter().flat_map(|tls| tls.staplings()).map(stapled).collect::<Vec<_>>()
        });
        keep_stapled(certificates, LoopShare { index: self.event_loop.index, loops }).await;
    }

    /// Refreshes the addresses of the names in the `upstream` blocks that are this loop's. Never ends by itself.
    async fn refresh_names(self: Rc<Self>) {
        let generation = self.generation();
        let loops = generation.process.main.worker_count().max(1);
        let pool = generation.disks.default_disk().pool();
        let share = LoopShare { index: self.event_loop.index, loops };
        refresh_names(&generation.upstreams, share, pool, &generation.process.error_log).await;
    }
}
