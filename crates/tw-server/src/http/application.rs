//! HTTP as an application of loops: what it runs on them, and what it keeps on each.

use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tw_accept::quic::QuicEndpoints;
use tw_base::FatalCell;
use tw_core::event_loop::{
    AcceptedConnection, Application, DatagramListener, Eviction, IdleResources, LoopCore, PassedDatagram,
    ReceivedDatagram,
};
use tw_disk::Errno;
use tw_net::listen::SocketKind;
use tw_rt::TaskSet;
use tw_rt::watch::Subject;

use super::accept;
use super::history;
use super::ocsp_stapling;
use tw_http_cache::{self as cache, OpenEntries};
use tw_http_versions::h2::UntriedBytes;
use tw_proxy::{health, names};
use tw_request::client::Client;
use tw_request::config::memory::Memory;
use tw_request::event_loop::{Loop, LoopParts};
use tw_request::files::{FILES_MAX, FileTable};
use tw_request::generation::GenerationRef;
use tw_request::local_future::LocalFuture;

/// Task of a module, which the first loop or every loop runs as long as its requests are served by the configuration that has it: a
/// shared object of that configuration.
pub struct BackgroundTask {
    start: Box<StartTask>,
    loops: TaskLoops,
}

/// Loops that run a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TaskLoops {
    First,
    All,
}

type StartTask = dyn Fn(Rc<Loop>) -> LocalFuture<'static, ()> + Send + Sync;

impl BackgroundTask {
    /// The task that `start` starts on the first loop.
    pub fn new(start: impl Fn(Rc<Loop>) -> LocalFuture<'static, ()> + Send + Sync + 'static) -> Self {
        Self { start: Box::new(start), loops: TaskLoops::First }
    }

    /// The task that `start` starts on each loop.
    pub fn on_every_loop(
        start: impl Fn(Rc<Loop>) -> LocalFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self { start: Box::new(start), loops: TaskLoops::All }
    }
}

/// Creates the state of a loop that starts with `generation`.
pub fn new_loop(core: Rc<LoopCore>, generation: GenerationRef) -> Rc<Loop> {
    if generation.process.is_secured {
        tw_tls_settings::warm_up();
    }
    // The limit is the process's, and every loop has a table. It cannot be asked for under the loop guard.
    let files_max = FILES_MAX.min(descriptor_limit() / 4 / generation.process.main.worker_count().max(1));
    let Memory { hot_files_size, open_files_inactive, .. } = generation.memory;
    let files = FileTable::new(hot_files_size, (files_max, open_files_inactive));
    let entries = FatalCell::new(OpenEntries::new(files_max, hot_files_size));
    let quic = QuicEndpoints::new(&core);
    let parts = LoopParts::default().with(entries).with(UntriedBytes::default()).with(quic);
    Rc::new(Loop::with(core, generation, files, parts))
}

/// Entries of caches that are open on a loop.
fn open_entries(event_loop: &Loop) -> &FatalCell<OpenEntries> {
    event_loop.part()
}

/// HTTP on one loop.
pub struct HttpLoop {
    event_loop: Rc<Loop>,
}

impl HttpLoop {
    /// State of the loop.
    pub fn event_loop(&self) -> &Rc<Loop> {
        &self.event_loop
    }
}

impl Application for HttpLoop {
    type Generation = GenerationRef;

    fn new(core: Rc<LoopCore>, generation: GenerationRef) -> Rc<Self> {
        let http = Rc::new(Self { event_loop: new_loop(core, generation) });
        let resources: Weak<Self> = Rc::downgrade(&http);
        http.event_loop.add_idle_resources(resources);
        http
    }

    fn set_generation(&self, generation: GenerationRef) {
        self.event_loop.replace_generation(generation);
    }

    fn serve(self: Rc<Self>, connection: AcceptedConnection) -> impl Future<Output = ()> + 'static {
        let AcceptedConnection { id, transport, peer, listen, passed } = connection;
        let client = Client::new(id, peer, listen, SocketKind::Stream, self.event_loop.clone());
        client.debug(format_args!("accept: {}", client.peer()));
        let early = passed.map_or_else(Vec::new, |passed| client.take_passed(*passed));
        accept::serve(client, transport, early)
    }

    fn receive(self: &Rc<Self>, listener: &Rc<DatagramListener>, datagram: &ReceivedDatagram<'_>) {
        accept::receive(&self.event_loop, listener, datagram);
    }

    fn receive_passed(self: &Rc<Self>, datagram: PassedDatagram) {
        accept::receive_passed(&self.event_loop, &datagram);
    }

    fn has_connections_over(&self, listener: &DatagramListener) -> bool {
        accept::quic(&self.event_loop).has_connections_over(listener)
    }

    fn stop_connections(&self, listener: &DatagramListener) {
        accept::quic(&self.event_loop).stop_receiving(listener, accept::H3_NO_ERROR);
    }

    fn stop_receiving(&self, listener: &DatagramListener) {
        accept::quic(&self.event_loop).stop_receiving(listener, accept::H3_NO_ERROR);
    }

    async fn run_background_tasks(self: Rc<Self>) {
        let event_loop = &self.event_loop;
        let mut background_tasks = TaskSet::default();
        let subject = |kind| Subject { kind, id: event_loop.index as u64 };
        background_tasks.spawn((), subject("names"), names::refresh(event_loop.clone()));
        background_tasks.spawn((), subject("health checks"), health::run(event_loop.clone()));
        background_tasks.spawn((), subject("stapling"), ocsp_stapling::run(event_loop.clone()));
        background_tasks.spawn((), subject("history"), history::run(event_loop.clone()));
        background_tasks.spawn((), subject("caches"), cache::manage(event_loop.clone()));
        let generation = self.event_loop.generation();
        for (_, task) in generation.process.shared_objects.of_type::<BackgroundTask>() {
            if event_loop.index == 0 || task.loops == TaskLoops::All {
                background_tasks.spawn((), subject("module"), (task.start)(event_loop.clone()));
            }
        }
        while let ((), Ok(())) = poll_fn(|cx| background_tasks.poll_ended(cx)).await {}
    }

    fn sweep(&self) -> Duration {
        let generation = self.event_loop.generation();
        self.event_loop.requests.borrow_mut().free_unused(tw_rt::clock::now());
        open_entries(&self.event_loop).borrow_mut().sweep(generation.memory.open_files_inactive);
        self.event_loop.files.borrow_mut().sweep(generation.disks.default_disk())
    }

    /// Closes a few files each turn, so that file systems can be unmounted and blocks of removed files are freed.
    fn close_files(&self) {
        let memory = &self.event_loop.generation().memory;
        open_entries(&self.event_loop).borrow_mut().clear();
        let mut forgotten =
            self.event_loop.files.borrow_mut().forget(memory.hot_files_size, memory.open_files_inactive);
        tw_rt::spawn_local(Subject { kind: "files", id: 0 }, async move {
            while forgotten.close_some() {
                tw_rt::yield_now().await;
            }
        });
    }
}

impl IdleResources for HttpLoop {
    fn close_idle_upstream(&self) -> Eviction {
        self.event_loop.upstreams.close_oldest()
    }

    fn free_descriptor(&self) -> Eviction {
        let has_closed = self.close_idle_upstream() == Eviction::Done
            || open_entries(&self.event_loop).borrow_mut().close_one()
            || self.event_loop.files.borrow_mut().made_room(Errno::MFILE);
        if has_closed { Eviction::Done } else { Eviction::NothingIdle }
    }
}

fn descriptor_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX)
}
