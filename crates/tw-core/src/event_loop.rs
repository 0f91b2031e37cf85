//! State of one event loop: its generation, connections, files and reusable buffers.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;
use tw_base::Limit;
use tw_net::{Addr, ListenSocket};
use tw_rt::watch::Subject;
use tw_rt::{Inbox, MemoryRelease, Socket, TaskGroup, TaskSet};

use crate::config_thread::GenerationRef;
use crate::generation::{Configuration, Generation, LoopGeneration};

mod accept;
mod balance;
mod budget;
mod buffers;
mod bulk_queue;
mod connection_list;
mod counts;
mod idle_eviction;
mod tally;

use self::accept::Accepting;
use self::balance::Balance;
use self::counts::{CONNECTION, ClientLookup};

pub use balance::Sibling;
pub use budget::{BULK_MIN, CopyBudget};
pub use buffers::{Buffers, SCRATCH_SIZE};
pub use bulk_queue::{BodySize, BulkTurn};
pub use connection_list::ConnectionSlot;
pub use counts::{Counts, PastStall, Stalls, StartTime};
pub use idle_eviction::{ConnectionPermit, Connections, ConnectionsExhausted, EvictableConnection, Eviction};
pub use tally::{LoopCounter, OwnTally, Tally};

/// Largest number of panics whose stacks have not been written yet.
pub const PANICS_WAITING_MAX: usize = 16;
/// Largest number of remembered stacks: one fault may happen with every request.
pub const STACKS_KNOWN_MAX: usize = 16;

/// Limits of event loops.
pub const LIMITS: &[Limit] = &[
    Limit::directive(
        "worker_connections",
        "Connections open on one loop, to clients and to upstream servers",
        "idle connections to upstream servers are closed, the oldest first, then connections that wait for a request, or linger; with none, a new client is refused, and a request that needs a connection gets 500",
    ),
    idle_eviction::LIMIT,
    accept::AT_ONCE_LIMIT,
    budget::LIMITS[0],
    budget::LIMITS[1],
    Limit::count(
        "PANICS_WAITING_MAX",
        PANICS_WAITING_MAX as u64,
        "Panics whose stacks wait to be written into the error log",
        "further ones are written without",
    ),
    Limit::count(
        "STACKS_KNOWN_MAX",
        STACKS_KNOWN_MAX as u64,
        "Stacks of panics whose names are remembered",
        "the oldest is looked up anew",
    ),
    accept::LIMIT,
    balance::LIMIT,
    counts::LIMIT,
];

/// Application that runs on the loops of a process: its protocols and their state on each loop.
pub trait Application: Sized + 'static {
    /// Configuration with the parts that the protocols made of it.
    type Config: Configuration;
    /// A client, from accept to close.
    type Client: ClientInfo;

    /// Creates the protocols' state of a loop that starts with `generation`.
    fn new(generation: &Generation<Self::Config>) -> Self;

    /// Serves a connection until it is closed. Called once for each.
    fn serve(connection: AcceptedConnection, home: Rc<Loop<Self>>) -> impl Future<Output = ()> + 'static;

    /// Runs the background tasks of the loop's current generation (health checks, name resolution …). It does not end
    /// by itself: the loop drops it when requests get another generation, and starts that one's; a loop that is
    /// draining has none.
    fn run_background_tasks(home: Rc<Loop<Self>>) -> impl Future<Output = ()> + 'static;

    /// Frees one part of what has been unused for long enough. Returns the time until the next call.
    fn sweep(&self, generation: &Generation<Self::Config>) -> Duration;

    /// Closes every file that is kept open only for later requests: at a reload, and on command.
    fn close_files(&self, generation: &Generation<Self::Config>);

    /// Closes the oldest idle connection to an upstream server, if there is one.
    fn close_idle_upstream(&self) -> Eviction;

    /// Closes a cached file without readers, if there is one, to free a descriptor.
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
    /// The socket.
    pub socket: Socket,
    /// Address of the peer.
    pub peer: Addr,
    /// Listening address on which it was accepted.
    pub listen: Rc<Addr>,
}

/// Commands to a loop.
pub enum LoopCommand<C: Configuration> {
    /// Start to accept connections. The first command: no client is served before it.
    Start,
    /// Serve new requests with this configuration, accepting on these sockets instead of the old ones.
    Generation(GenerationRef<Generation<C>>, Vec<ListenSocket>),
    /// Close every file that is kept open only for later requests.
    CloseFiles,
    /// Stop accepting, finish the requests in progress, then end.
    Quit,
}

/// State of one loop.
pub struct Loop<A: Application> {
    /// Number of the loop.
    pub index: usize,
    /// Counters of the process.
    pub counts: Arc<Counts>,
    /// Counters of this loop.
    pub tally: OwnTally,
    /// Open connections of this loop.
    pub connections: Connections<A::Client>,
    /// Reusable buffers.
    pub buffers: Buffers,
    /// Bytes that one turn may copy.
    pub budget: CopyBudget,
    /// State of the protocols.
    pub app: A,
    generation: RefCell<Rc<LoopGeneration<A::Config>>>,
    accepting: Accepting,
    balance: Balance,
}

impl<A: Application> Loop<A> {
    /// Creates the loop of the current thread. It does not accept yet.
    pub fn new(
        index: usize,
        counts: Arc<Counts>,
        generation: GenerationRef<Generation<A::Config>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            index,
            tally: counts.tallies.claim(),
            accepting: Accepting::new(&counts.accept_mutex),
            balance: Balance::default(),
            counts,
            connections: Connections::default(),
            buffers: Buffers::new(),
            budget: CopyBudget::new(),
            app: A::new(&generation),
            generation: RefCell::new(Rc::new(LoopGeneration(generation))),
        })
    }

    /// Returns the configuration that serves new requests.
    pub fn generation(&self) -> Rc<LoopGeneration<A::Config>> {
        self.generation.borrow().clone()
    }

    /// Starts the background tasks of the current generation. Dropping the result ends them.
    fn start_background_tasks(self: &Rc<Self>) -> TaskSet<(), ()> {
        let mut background_tasks = TaskSet::default();
        let subject = Subject { kind: "generation", id: self.generation().id };
        background_tasks.spawn((), subject, A::run_background_tasks(self.clone()));
        background_tasks
    }

    /// `worker_connections`
    fn connections_max(&self) -> u64 {
        self.generation.borrow().main.worker_connections
    }

    /// Starts the task of a new connection.
    fn accepted(self: &Rc<Self>, socket: Socket, peer: Addr, listen: &Rc<Addr>) {
        self.tally.accepted.add(1);
        if let Err(exhausted) = self.ensure_connection_available() {
            self.tally.refused.add(1);
            let generation = self.generation();
            tw_log::alert!(generation.error_log, "{exhausted}");
            return;
        }
        let id = self.counts.next_connection();
        let serving = A::serve(AcceptedConnection { id, socket, peer, listen: listen.clone() }, self.clone());
        let open = Open::new(self.clone());
        self.connections.tasks.spawn(Subject { kind: CONNECTION, id }, async move {
            let _open = open;
            serving.await;
        });
    }
}

impl<A: Application> ClientLookup for Loop<A> {
    fn address_of(&self, id: u64) -> Option<Box<str>> {
        self.connections.client(id).map(|client| client.address().into())
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
struct Open<A: Application>(Rc<Loop<A>>);

impl<A: Application> Open<A> {
    fn new(home: Rc<Loop<A>>) -> Self {
        home.tally.open.add(1);
        Self(home)
    }
}

impl<A: Application> Drop for Open<A> {
    fn drop(&mut self) {
        self.0.tally.open.sub(1);
    }
}

/// Removes the loop from those that its siblings see, however it ends.
struct Present<A: Application>(Rc<Loop<A>>);

impl<A: Application> Drop for Present<A> {
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
    generation: GenerationRef<Generation<A::Config>>,
    sockets: Vec<ListenSocket>,
    commands: Inbox<LoopCommand<A::Config>>,
) -> impl Future<Output = ()> {
    Accepting::prepare(&sockets);
    serve(Loop::<A>::new(index, counts, generation), sockets, commands)
}

async fn serve<A: Application>(
    home: Rc<Loop<A>>,
    sockets: Vec<ListenSocket>,
    mut commands: Inbox<LoopCommand<A::Config>>,
) {
    let Some(LoopCommand::Start) = commands.recv().await else { return };
    let here: Rc<dyn ClientLookup> = home.clone();
    counts::set_current_loop(Rc::downgrade(&here));
    drop(here);
    let _present = Present(home.clone());
    home.tally.generation.set(home.generation().id);
    home.listen(sockets);
    // Who knows of it finds it at work: what accepts has had its turn.
    tw_rt::yield_now().await;
    home.join_siblings(commands.stats());
    let taking_over = Subject { kind: "accept", id: 0 };
    let mut taking_over = tw_rt::spawn_local(taking_over, home.clone().take_over_all());
    let sweeper = home.clone();
    let mut sweeping = tw_rt::spawn_local(Subject { kind: "files", id: 0 }, async move {
        let mut release = MemoryRelease::default();
        loop {
            let next = sweeper.app.sweep(&sweeper.generation());
            release.run_if_due();
            tokio::time::sleep(next).await;
        }
    });
    let mut background_tasks = home.start_background_tasks();
    loop {
        let has_ended = |cx: &mut Context<'_>| {
            is_over(&mut sweeping, cx)
                || is_over(&mut taking_over, cx)
                || background_tasks.poll_ended(cx).is_ready()
                || home.has_stopped_accepting(cx)
        };
        let Some(command) = next(&mut commands, has_ended).await else { return };
        match command {
            // It has.
            LoopCommand::Start => {}
            LoopCommand::Generation(generation, sockets) => {
                home.tally.generation.set(generation.id);
                *home.generation.borrow_mut() = Rc::new(LoopGeneration(generation));
                background_tasks = home.start_background_tasks();
                home.app.close_files(&home.generation());
                home.listen(sockets);
            }
            LoopCommand::CloseFiles => home.app.close_files(&home.generation()),
            LoopCommand::Quit => {
                drop(background_tasks);
                home.connections.tasks.stop();
                home.stop_listening().await;
                home.leave_siblings();
                home.clone().take_over_rest().await;
                drained(&home.connections.tasks, &mut commands).await;
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
async fn drained<O: Send + 'static>(connections: &TaskGroup, commands: &mut Inbox<O>) {
    let mut drained = pin!(connections.drained());
    let mut abandoned = pin!(async { while commands.recv().await.is_some() {} });
    poll_fn(|cx| match drained.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => abandoned.as_mut().poll(cx),
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bare;

    #[test]
    fn loop_ends_when_one_of_its_own_tasks_panics() {
        let (tell, told) = std::sync::mpsc::channel();
        let home = tw_rt::LoopThread::<LoopCommand<Bare>>::start(
            tw_rt::LoopOptions::new(0),
            |mut commands| async move {
                let spawn = |panics: bool| {
                    tw_rt::spawn_local(Subject { kind: "test", id: 0 }, async move {
                        assert!(!panics, "expected");
                        std::future::pending().await
                    })
                };
                let mut tasks = [spawn(false), spawn(false)];
                tell.send(matches!(
                    next(&mut commands, |cx| tasks.iter_mut().any(|task| is_over(task, cx))).await,
                    Some(LoopCommand::Quit)
                ))
                .unwrap();
                let mut tasks = [spawn(false), spawn(true)];
                tell.send(
                    next(&mut commands, |cx| tasks.iter_mut().any(|task| is_over(task, cx))).await.is_none(),
                )
                .unwrap();
            },
        )
        .unwrap();
        assert!(home.send(LoopCommand::Quit).is_ok());
        assert_eq!([told.recv(), told.recv()], [Ok(true), Ok(true)]);
        home.join().unwrap();
    }
}
