//! One event loop: the state that every protocol shares ([`LoopCore`]), and the life of a loop, which accepts connections
//! for an [`Application`] and replaces its generation at a reload.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::JoinHandle;
use tw_net::{Addr, ListenSocket, Transport, proxy_protocol};
use tw_rt::watch::Subject;
use tw_rt::{Inbox, MemoryRelease, Socket, TaskSet};

use crate::config_thread::GenerationRef;
use crate::generation::{LoopGeneration, ProcessConfig, ProcessGeneration};

mod accept;
mod balance;
mod budget;
mod buffers;
mod bulk_queue;
mod connection_list;
mod counts;
mod datagrams;
mod idle_eviction;
mod passed_datagrams;
mod process_links;
mod process_packet;
mod session_handover;
mod slow_requests;
mod tally;

use self::accept::Accepting;
use self::balance::Balance;
use self::counts::ClientLookup;

pub use balance::Sibling;
pub use budget::{BULK_MIN, CopyBudget};
pub use buffers::{Buffers, INPUT_SIZE, SCRATCH_SIZE, copy_received};
pub use bulk_queue::{BodySize, BulkTurn};
pub use connection_list::{ConnectionList, ConnectionSlot};
pub use counts::{Counts, DescriptorLimit, PastStall, Reloads, Stalls, StartTime};
pub use datagrams::{DatagramBuffer, DatagramListener, ReceivedDatagram};
pub use idle_eviction::{ConnectionPermit, Connections, ConnectionsExhausted, EvictableConnection, Eviction};
pub use passed_datagrams::{PassOutcome, PassedDatagram};
pub use process_links::{LinkOutcome, PROCESSES_MAX, ProcessLinks};
pub use process_packet::{PACKET_SIZE_MAX, PacketHead, read_packet};
pub use session_handover::{
    HANDOVER_SESSIONS_MAX, HANDOVER_TIME_MAX, HandedSession, HandoverOffers, HandoverPhase, HandoverVerdict,
    OfferedSession, RECORD_SIZE_MAX,
};
pub use slow_requests::{SlowRequest, SlowRequests};
pub use tally::{HandshakeFailure, LoopCounter, OwnTally, Tally};

tw_base::limits! {
    /// Limits of event loops.
    pub const LIMITS;

    /// Connections open on one loop, to clients and to upstream servers.
    directive "worker_connections",
        "idle connections to upstream servers are closed, the oldest first, then connections that wait for a request, or linger; \
        with none, a new client is refused, and a request that needs a connection gets 500";
    use idle_eviction::LIMITS;
    use accept::AT_ONCE_LIMIT;
    use budget::LIMITS;
    /// Panics whose stacks wait to be written into the error log.
    pub const PANICS_WAITING_MAX: usize = 16, count, "further ones are written without";
    /// Stacks of panics whose names are remembered.
    ///
    /// Largest number of remembered stacks: one fault may happen with every request.
    pub const STACKS_KNOWN_MAX: usize = 16, count, "the oldest is looked up anew";
    use accept::LIMITS;
    use datagrams::LIMITS;
    use passed_datagrams::LIMITS;
    use process_links::LIMITS;
    use session_handover::LIMITS;
    use balance::LIMITS;
    use counts::LIMITS;
    use slow_requests::LIMITS;
}

/// Application that runs on the loops of a process: one protocol, or all of them. A value is its state on one loop.
pub trait Application: Sized + 'static {
    /// Configuration that a loop serves, as commands carry it.
    type Generation: LoopConfiguration;

    /// Creates the state of a loop that starts with `generation`.
    fn new(core: Rc<LoopCore>, generation: Self::Generation) -> Rc<Self>;

    /// Serves new requests by `generation` from now on.
    fn set_generation(&self, generation: Self::Generation);

    /// Serves a connection until it is closed. Called once for each.
    fn serve(self: Rc<Self>, connection: AcceptedConnection) -> impl Future<Output = ()> + 'static;

    /// Takes a datagram that has arrived on a listening socket. Called for each, and never waits. A protocol without
    /// datagrams receives none.
    fn receive(self: &Rc<Self>, _listener: &Rc<DatagramListener>, _datagram: &ReceivedDatagram<'_>) {}

    /// Takes a datagram that another loop or process has received. Called for each, and never waits.
    fn receive_passed(self: &Rc<Self>, _datagram: PassedDatagram) {}

    /// Returns true if the datagrams of this address tell the process that they belong to, so that one process can receive those of
    /// all.
    fn has_process_in_datagrams(&self, _listen: &Addr) -> bool {
        false
    }

    /// Returns true if there are connections whose datagrams arrive on this socket. A loop that is about to end receives them
    /// still.
    fn has_connections_over(&self, _listener: &DatagramListener) -> bool {
        false
    }

    /// Closes the connections whose datagrams arrive on this socket, because another process receives them now. Sessions stay that only
    /// answer.
    fn stop_connections(&self, _listener: &DatagramListener) {}

    /// Takes over a session over datagrams that another process hands over. Called for each, and never waits. A protocol without such
    /// sessions takes none.
    fn take_over(self: &Rc<Self>, _session: HandedSession) {}

    /// Ends what still answers by a socket whose address the configuration has given up.
    fn stop_receiving(&self, _listener: &DatagramListener) {}

    /// Runs the background tasks of the loop's current generation (health checks, name resolution …). The future
    /// never completes: the loop drops it when requests get another generation, and starts that one's; a loop that is
    /// draining has none.
    fn run_background_tasks(self: Rc<Self>) -> impl Future<Output = ()> + 'static;

    /// Frees one part of what has been unused for long enough. Returns the time until the next call.
    fn sweep(&self) -> Duration;

    /// Closes every file that is kept open only for later requests: at a reload, and on command.
    fn close_files(&self);
}

/// Configuration of an application, with the part of it that every protocol shares.
pub trait LoopConfiguration: Clone + Send + 'static {
    /// The part of no protocol.
    fn process(&self) -> GenerationRef<ProcessGeneration>;
}

/// Connections and files of one protocol that a loop can close to make room ([`LoopCore::add_idle_resources`]).
pub trait IdleResources {
    /// Closes the oldest idle connection to an upstream server, if there is one.
    fn close_idle_upstream(&self) -> Eviction;

    /// Closes an idle connection to an upstream server or a cached file without readers, if there is one, to free a
    /// descriptor.
    fn free_descriptor(&self) -> Eviction;
}

/// Facts that a loop needs about a client.
pub trait ClientInfo {
    /// Number of its connection: `*id` in log lines.
    fn id(&self) -> u64;

    /// Address of the client as text.
    fn address(&self) -> &str;
}

/// Accepted connection, before its task starts.
pub struct AcceptedConnection {
    /// Number of the connection: `*id` in log lines.
    pub id: u64,
    /// The socket; for a connection that was passed on, perhaps a TLS stream over it.
    pub transport: Transport,
    /// Address of the peer.
    pub peer: Addr,
    /// Listening address on which it was accepted, or to which it was passed.
    pub listen: Rc<Addr>,
    /// Facts about a connection that a session has passed on; `None` for one that was just accepted.
    pub passed: Option<Box<PassedConnection>>,
}

/// Facts about a connection that was accepted on another listening address and passed on.
pub struct PassedConnection {
    /// Address that stands for that of the socket.
    pub local: Addr,
    /// Bytes of the client that were read and not used.
    pub early: Vec<u8>,
    /// Number of times that the connection was passed on.
    pub passes: u32,
    /// Result of a TLS handshake, in the type of the crate that does handshakes.
    pub tls: Option<Box<dyn Any>>,
    /// PROXY protocol header of the connection.
    pub proxy_header: Option<Box<proxy_protocol::Header>>,
}

/// Commands to a loop.
pub enum LoopCommand<G> {
    /// Start to accept connections. The first command: no client is served before it.
    Start,
    /// Serve new requests with this configuration, accepting on these sockets instead of the old ones.
    Generation(G, Vec<ListenSocket>),
    /// Close every file that is kept open only for later requests.
    CloseFiles,
    /// Look at [`ProcessLinks`]: another process may have begun or ended to receive the datagrams of connections.
    ReceiverChanged,
    /// Take over a session over datagrams of another process.
    TakeOver(HandedSession),
    /// Stop accepting, finish the requests in progress, then end. Sessions over datagrams are offered to the next process, if there is one.
    Quit(HandoverPhase),
    /// Offer sessions over datagrams to the next process, or not, after `Quit`.
    HandOver(HandoverPhase),
}

/// State of one loop that does not depend on a protocol.
pub struct LoopCore {
    /// Number of the loop.
    pub index: usize,
    /// Counters of the process.
    pub counts: Arc<Counts>,
    /// Counters of this loop.
    pub tally: OwnTally,
    /// Open connections of this loop.
    pub connections: Connections,
    /// Reusable buffers.
    pub buffers: Buffers,
    /// Bytes that one turn may copy.
    pub budget: CopyBudget,
    /// Room for datagrams.
    pub datagrams: DatagramBuffer,
    /// Listening datagram sockets of the loop.
    listeners: RefCell<Vec<Weak<DatagramListener>>>,
    handover: RefCell<HandoverPhase>,
    process: RefCell<Rc<LoopGeneration<ProcessConfig>>>,
    idle_resources: RefCell<Vec<Weak<dyn IdleResources>>>,
    datagram_number: Cell<Option<u8>>,
    accepting: Accepting,
    balance: Balance,
}

impl LoopCore {
    /// Creates the state of the current thread's loop.
    pub fn new(index: usize, counts: Arc<Counts>, process: GenerationRef<ProcessGeneration>) -> Rc<Self> {
        Rc::new(Self {
            index,
            tally: counts.tallies.claim(),
            accepting: Accepting::new(&counts.accept_mutex),
            balance: Balance::default(),
            counts,
            connections: Connections::default(),
            buffers: Buffers::new(),
            budget: CopyBudget::new(),
            datagrams: DatagramBuffer::default(),
            listeners: RefCell::default(),
            handover: RefCell::default(),
            process: RefCell::new(LoopGeneration::new(process)),
            idle_resources: RefCell::default(),
            datagram_number: Cell::default(),
        })
    }

    /// Returns the part of the current configuration that belongs to no protocol: settings of the process, logs, pools.
    pub fn process(&self) -> Rc<LoopGeneration<ProcessConfig>> {
        self.process.borrow().clone()
    }

    /// Lets the loop close idle connections and files of a protocol when it runs out of connections or descriptors.
    pub fn add_idle_resources(&self, resources: Weak<dyn IdleResources>) {
        self.idle_resources.borrow_mut().push(resources);
    }

    /// Evicts something of the first protocol that has something idle.
    fn evict_resource(&self, evict: impl Fn(&dyn IdleResources) -> Eviction) -> Eviction {
        let all = self.idle_resources.borrow();
        let mut protocols = all.iter().filter_map(Weak::upgrade);
        if protocols.any(|protocol| evict(&*protocol) == Eviction::Done) {
            Eviction::Done
        } else {
            Eviction::NothingIdle
        }
    }

    /// `worker_connections`
    fn connections_max(&self) -> u64 {
        self.process.borrow().main.worker_connections
    }
}

impl ClientLookup for LoopCore {
    fn address_of(&self, id: u64) -> Option<Box<str>> {
        self.connections.client(id).map(|client| client.address().into())
    }
}

/// A loop that runs: its shared state and its application.
struct Running<A> {
    core: Rc<LoopCore>,
    app: Rc<A>,
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
    fn new(index: usize, counts: Arc<Counts>, generation: A::Generation) -> Self {
        let core = LoopCore::new(index, counts, generation.process());
        Self { app: A::new(core.clone(), generation), core }
    }

    /// Serves new requests by `generation` from now on.
    fn set_generation(&self, generation: A::Generation) {
        let process = generation.process();
        self.tally.generation.set(process.id);
        *self.process.borrow_mut() = LoopGeneration::new(process);
        self.app.set_generation(generation);
    }

    /// Starts the background tasks of the current generation. Dropping the result ends them.
    fn start_background_tasks(&self) -> TaskSet<(), ()> {
        let mut background_tasks = TaskSet::default();
        let subject = Subject { kind: "generation", id: self.process.borrow().id };
        background_tasks.spawn((), subject, self.app.clone().run_background_tasks());
        background_tasks
    }

    /// Starts the task of a new connection.
    fn accepted(&self, socket: Socket, peer: Addr, listen: &Rc<Addr>) {
        let app = self.app.clone();
        let listen = listen.clone();
        let transport = Transport::Plain(socket);
        let serve = |id| app.serve(AcceptedConnection { id, transport, peer, listen, passed: None });
        if let Err(exhausted) = self.core.spawn_connection(serve) {
            tw_log::alert!(self.process().error_log, "{exhausted}");
        }
    }
}

/// Keeps a level one higher while it lives.
pub struct LevelGuard<'c>(&'c LoopCounter);

impl<'c> LevelGuard<'c> {
    /// Raises `level` by one.
    pub fn new(level: &'c LoopCounter) -> Self {
        level.add(1);
        Self(level)
    }
}

impl Drop for LevelGuard<'_> {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

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

/// Removes the loop from those that its siblings see, however it ends.
struct Present(Rc<LoopCore>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.give_up_turn();
        self.0.leave_siblings();
    }
}

/// Runs a loop: serves `generation` until a command replaces it. Dropping the future closes every connection.
///
/// Called on the loop's thread before the loop guard is on; the future does the rest.
pub fn run<A: Application>(
    index: usize,
    counts: Arc<Counts>,
    generation: A::Generation,
    sockets: Vec<ListenSocket>,
    commands: Inbox<LoopCommand<A::Generation>>,
) -> impl Future<Output = ()> {
    Accepting::prepare(&sockets);
    serve(Running::<A>::new(index, counts, generation), sockets, commands)
}

async fn serve<A: Application>(
    running: Running<A>,
    sockets: Vec<ListenSocket>,
    mut commands: Inbox<LoopCommand<A::Generation>>,
) {
    let Some(LoopCommand::Start) = commands.recv().await else { return };
    let here: Rc<dyn ClientLookup> = running.core.clone();
    counts::set_current_loop(Rc::downgrade(&here));
    drop(here);
    let _present = Present(running.core.clone());
    running.tally.generation.set(running.process().id);
    let taking_datagrams = running.start_taking_datagrams();
    running.listen(sockets);
    // The accepting tasks run first, so that siblings which learn of this loop find it at work.
    tw_rt::yield_now().await;
    running.join_siblings(commands.stats());
    let taking_over = Subject { kind: "accept", id: 0 };
    let mut taking_over = tw_rt::spawn_local(taking_over, running.clone().take_over_all());
    let app = running.app.clone();
    let mut sweeping = tw_rt::spawn_local(Subject { kind: "files", id: 0 }, async move {
        let mut release = MemoryRelease::default();
        loop {
            let next = app.sweep();
            release.run_if_due();
            tokio::time::sleep(next.min(MemoryRelease::interval())).await;
        }
    });
    let mut background_tasks = running.start_background_tasks();
    loop {
        let has_ended = |cx: &mut Context<'_>| {
            is_over(&mut sweeping, cx)
                || is_over(&mut taking_over, cx)
                || background_tasks.poll_ended(cx).is_ready()
                || running.has_stopped_accepting(cx)
        };
        let Some(command) = next(&mut commands, has_ended).await else { return };
        match command {
            // The loop has started already.
            LoopCommand::Start => {}
            LoopCommand::Generation(generation, sockets) => {
                running.set_generation(generation);
                background_tasks = running.start_background_tasks();
                running.app.close_files();
                running.listen(sockets);
            }
            LoopCommand::CloseFiles => running.app.close_files(),
            LoopCommand::ReceiverChanged => running.wake_receivers(),
            LoopCommand::TakeOver(session) => running.app.take_over(session),
            // Only a loop that has got `Quit` hands sessions over.
            LoopCommand::HandOver(_) => {}
            LoopCommand::Quit(phase) => {
                drop(background_tasks);
                running.set_handover(phase);
                running.connections.tasks.stop();
                running.stop_listening().await;
                running.leave_siblings();
                running.take_over_rest().await;
                drained(&running, &mut commands).await;
                running.close_datagram_queue(taking_datagrams).await;
                return;
            }
        }
    }
}

/// Next command; `None` when there will be none, or when a task that must not end has panicked. The loop then ends
/// instead of serving nothing, and another one takes its place.
async fn next<O: Send + 'static>(
    commands: &mut Inbox<O>,
    mut has_ended: impl FnMut(&mut Context<'_>) -> bool,
) -> Option<O> {
    let mut command = pin!(commands.recv());
    poll_fn(|cx| if has_ended(cx) { Poll::Ready(None) } else { command.as_mut().poll(cx) }).await
}

fn is_over(task: &mut JoinHandle<()>, cx: &mut Context<'_>) -> bool {
    Pin::new(task).poll(cx).is_ready()
}

/// Waits until no connection is left, or the sender of commands is gone: then the loop ends at once.
async fn drained<G: Send + 'static>(core: &LoopCore, commands: &mut Inbox<LoopCommand<G>>) {
    let tasks = &core.connections.tasks;
    let mut drained = pin!(tasks.drained());
    let mut abandoned = pin!(async {
        while let Some(command) = commands.recv().await {
            match command {
                LoopCommand::HandOver(phase) => {
                    core.set_handover(phase);
                    // Sessions look at it when they are woken.
                    tasks.stop();
                }
                LoopCommand::ReceiverChanged => core.wake_receivers(),
                _ => {}
            }
        }
    });
    poll_fn(|cx| match drained.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => abandoned.as_mut().poll(cx),
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_ends_when_one_of_its_own_tasks_panics() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let event_loop = tw_rt::LoopThread::<LoopCommand<()>>::start(
            tw_rt::LoopOptions::new(0),
            |mut commands| async move {
                let spawn = |panics: bool| {
                    tw_rt::spawn_local(Subject { kind: "test", id: 0 }, async move {
                        assert!(!panics, "expected");
                        std::future::pending().await
                    })
                };
                let mut tasks = [spawn(false), spawn(false)];
                sender
                    .send(matches!(
                        next(&mut commands, |cx| tasks.iter_mut().any(|task| is_over(task, cx))).await,
                        Some(LoopCommand::Quit(HandoverPhase::Closed))
                    ))
                    .unwrap();
                let mut tasks = [spawn(false), spawn(true)];
                sender
                    .send(
                        next(&mut commands, |cx| tasks.iter_mut().any(|task| is_over(task, cx)))
                            .await
                            .is_none(),
                    )
                    .unwrap();
            },
        )
        .unwrap();
        assert!(event_loop.send(LoopCommand::Quit(HandoverPhase::Closed)).is_ok());
        assert_eq!([receiver.recv(), receiver.recv()], [Ok(true), Ok(true)]);
        event_loop.join().unwrap();
    }
}
