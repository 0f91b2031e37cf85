//! What one loop has: its generation, its connections, its files and the memory it uses again and again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tw_base::{Counter, Limit, Whole, WholeCell};

use tokio::task::JoinHandle;
use tw_net::{Addr, ListenSocket, Transport};
use tw_rt::clock::UnixTime;
use tw_rt::watch::{Stall, Subject};
use tw_rt::{Inbox, LoopStats, Rest, Socket, TaskGroup};

use crate::config_thread::Live;
use crate::http::client::{Client, Scheme};
use crate::http::files::{FILES_MAX, FileTable};
use crate::http::h1::{self, Conn};
use crate::http::request::{LoopGeneration, Request};

mod accept;
mod balance;
mod roll;
mod room;
mod tally;

use accept::{AcceptMutex, Accepting};
pub use balance::Sibling;
use balance::{Balance, Siblings};
pub(crate) use roll::Place;
use room::Clients;
pub(crate) use room::{Expendable, Room};
pub use tally::{Number, Tally};
use tally::{OwnTally, Tallies};

/// Requests a loop keeps for the next use.
const SPARE_REQUESTS: usize = 64;
/// Bytes of the buffer through which files go to sockets.
pub const SCRATCH_SIZE: usize = 256 << 10;
/// Bytes of files that one turn gives to sockets before it ends: eight buffers, about a millisecond.
const TURN_COPY_MAX: usize = 8 * SCRATCH_SIZE;
/// How long that takes, about.
const TURN_COPY_TIME: Duration = Duration::from_millis(1);
/// Stalls that are remembered.
const STALLS_KEPT: usize = 32;
/// Panics whose stacks wait to be told.
pub const PANICS_WAITING_MAX: usize = 16;
/// Stacks whose names are remembered: one fault may happen with every request.
pub const STACKS_KNOWN_MAX: usize = 16;

pub(crate) const LIMITS: &[Limit] = &[
    Limit::directive(
        "worker_connections",
        "Connections open on one loop",
        "connections that wait for a request, or linger, are closed, the longest waiting first; with none, the new one is",
    ),
    room::LIMIT,
    Limit::bytes(
        "TURN_COPY_MAX",
        TURN_COPY_MAX as u64,
        "Bytes of files that one turn of a loop gives to sockets",
        "the other connections have their turn first",
    ),
    Limit::count(
        "SPARE_REQUESTS",
        SPARE_REQUESTS as u64,
        "Requests a loop keeps in memory for the next use",
        "what is more is freed",
    ),
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
    Limit::count("STALLS_KEPT", STALLS_KEPT as u64, "Stalls that are remembered", "the oldest is forgotten"),
];

/// What loops count for the whole process.
#[derive(Default)]
pub struct Counts {
    /// When the process began.
    pub started: Birth,
    /// The last stalls.
    pub stalls: Stalls,
    /// Panics of all threads.
    pub panics: Counter,
    next_id: AtomicU64,
    tallies: Tallies,
    accept_mutex: AcceptMutex,
    siblings: Siblings,
    /// What each loop counts of its turns.
    loops: Whole<Vec<Arc<LoopStats>>>,
}

impl Counts {
    /// What each loop counts of its turns, by number. Read by scrapes only.
    pub fn loops(&self) -> Vec<Arc<LoopStats>> {
        self.loops.lock().clone()
    }

    /// Takes a loop that was started into account.
    pub fn add_loop(&self, stats: Arc<LoopStats>) {
        self.loops.lock().push(stats);
    }

    /// Forgets a loop that has ended.
    pub fn remove_loop(&self, stats: &Arc<LoopStats>) {
        let mut loops = self.loops.lock();
        loops.retain(|known| !Arc::ptr_eq(known, stats));
    }

    /// The loops that accept connections, by number. Read by scrapes only.
    pub fn siblings(&self) -> Vec<Arc<Sibling>> {
        self.siblings.all()
    }

    /// A number of all loops since the process began, or their level now. Takes no lock: each loop's part is read for itself.
    pub fn total(&self, which: impl Fn(&Tally) -> &Number) -> u64 {
        self.tallies.total(which)
    }
}

/// When something began.
pub struct Birth {
    /// Monotonic.
    pub at: Instant,
    /// Wall clock.
    pub wall: UnixTime,
}

impl Default for Birth {
    fn default() -> Self {
        Self { at: tw_rt::clock::now(), wall: tw_rt::clock::unix() }
    }
}

/// The last stalls of all loops, for the status page.
#[derive(Default)]
pub struct Stalls(Whole<VecDeque<PastStall>>);

/// A stall that is remembered.
#[derive(Clone, Debug)]
pub struct PastStall {
    /// When it was over.
    pub at: UnixTime,
    /// How long it was, and who took longest.
    pub stall: Stall,
    /// Address of the client whose connection that was, if it is still open.
    pub client: Option<Box<str>>,
}

impl Stalls {
    /// Keeps `stall`, and forgets the oldest of more than `STALLS_KEPT`. On a loop only after it has stalled: it looks
    /// at every connection.
    pub fn push(&self, stall: Stall) {
        let culprit = stall.culprit.filter(|culprit| culprit.subject.kind == CONNECTION);
        let client = culprit.and_then(|culprit| client_of(culprit.subject.id));
        let mut kept = self.0.lock();
        kept.truncate(STALLS_KEPT - 1);
        kept.push_front(PastStall { at: tw_rt::clock::unix(), stall, client });
    }

    /// The stalls, newest first.
    pub fn newest(&self) -> Vec<PastStall> {
        self.0.lock().iter().cloned().collect()
    }
}

/// What the tasks of connections are called.
const CONNECTION: &str = "connection";

thread_local! {
    /// The worker of this loop, for who asks from outside its tasks.
    static HERE: RefCell<Weak<Loop>> = const { RefCell::new(Weak::new()) };
}

/// The address of a connection of this loop, by its number.
fn client_of(id: u64) -> Option<Box<str>> {
    let home = HERE.with_borrow(Weak::upgrade)?;
    home.client(id).map(|client| client.peer_text().into())
}

/// Orders to a loop.
pub enum Order {
    /// Begin to accept connections. The first one: until then nobody is served.
    Begin,
    /// Serve new requests by this configuration, accepting on these sockets instead of the old ones.
    Generation(Live, Vec<ListenSocket>),
    /// Close every file that is open for the next request.
    CloseFiles,
    /// Stop accepting, finish what is going on, then end.
    Quit,
}

/// One loop's state.
pub struct Loop {
    /// Number of the loop.
    pub index: usize,
    /// Counters of the process.
    pub counts: Arc<Counts>,
    /// What this loop counts.
    pub(crate) tally: OwnTally,
    /// Files it may keep open without `open_file_cache`. What that depends on cannot be asked for under the loop guard.
    files_max: usize,
    /// Files it knows.
    pub files: WholeCell<FileTable>,
    /// Its connections.
    pub connections: TaskGroup,
    /// Buffer for response heads.
    pub head_out: RefCell<Vec<u8>>,
    /// Buffer between files and sockets, [`SCRATCH_SIZE`] bytes.
    pub scratch: RefCell<Box<[u8]>>,
    /// Buffer for file names.
    pub path: Cell<Vec<u8>>,
    /// When this turn began, and what files gave to sockets in it.
    turn: Cell<(Instant, usize)>,
    generation: RefCell<Rc<LoopGeneration>>,
    #[expect(clippy::vec_box, reason = "a request of 2 KiB is handed over without being moved")]
    requests: RefCell<Vec<Box<Request>>>,
    clients: Clients,
    date: Cell<(i64, [u8; 29])>,
    accepting: Accepting,
    balance: Balance,
}

impl Loop {
    pub(crate) fn new(index: usize, counts: Arc<Counts>, generation: Live) -> Rc<Self> {
        // The limit is the process's, and every loop has a table.
        let files_max = FILES_MAX.min(descriptor_limit() / 4 / generation.main.worker_count().max(1));
        let main = &generation.main;
        let files = FileTable::new(main.hot_files_size, (files_max, main.open_files_inactive));
        Rc::new(Self {
            index,
            tally: counts.tallies.claim(),
            accepting: Accepting::new(&counts.accept_mutex),
            balance: Balance::default(),
            counts,
            files_max,
            files: WholeCell::new(files),
            connections: TaskGroup::new(),
            head_out: RefCell::new(Vec::with_capacity(1024)),
            scratch: RefCell::new(vec![0; SCRATCH_SIZE].into()),
            path: Cell::new(Vec::new()),
            turn: Cell::new((tw_rt::clock::now(), 0)),
            generation: RefCell::new(Rc::new(LoopGeneration(generation))),
            requests: RefCell::new(Vec::new()),
            clients: Clients::default(),
            date: Cell::new((i64::MIN, [0; 29])),
        })
    }

    /// Closes some files that nobody needs any more, and says when to come again.
    fn sweep_files(&self) -> Duration {
        let generation = self.generation();
        self.files.borrow_mut().sweep(generation.disks.default_disk())
    }

    /// Closes every file that no response needs, a few each turn: whoever wants to unmount a file system, or to have the
    /// blocks of what was removed, need not wait.
    fn close_files(&self) {
        let generation = self.generation();
        let main = &generation.main;
        let files = (self.files_max, main.open_files_inactive);
        let mut forgotten = self.files.borrow_mut().forget(main.hot_files_size, files);
        tw_rt::spawn_local(Subject { kind: "files", id: 0 }, async move {
            while forgotten.close_some() {
                tw_rt::yield_now().await;
            }
        });
    }

    /// The configuration new requests are served by.
    pub fn generation(&self) -> Rc<LoopGeneration> {
        self.generation.borrow().clone()
    }

    /// The current date for `Date`, formatted once a second.
    pub fn date(&self) -> [u8; 29] {
        let now = tw_rt::clock::unix().secs;
        let (at, text) = self.date.get();
        if at == now {
            return text;
        }
        let text = tw_http::date::format(now);
        self.date.set((now, text));
        text
    }

    /// Whether this turn may still copy from files to sockets: the other connections then wait at most about a
    /// millisecond. Counts `bytes` as copied.
    pub(crate) fn may_copy(&self, bytes: usize) -> bool {
        let copied = self.copied();
        let is_allowed = copied < TURN_COPY_MAX;
        self.turn.set((tw_rt::clock::now(), if is_allowed { copied + bytes } else { copied }));
        is_allowed
    }

    /// Counts time that this turn spent on making bodies, as if as much as takes that long had been copied.
    pub(crate) fn charge(&self, spent: Duration) {
        let bytes = spent.as_nanos() * TURN_COPY_MAX as u128 / TURN_COPY_TIME.as_nanos();
        let copied = self.copied().saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
        self.turn.set((tw_rt::clock::now(), copied));
    }

    fn copied(&self) -> usize {
        let (turn, copied) = self.turn.get();
        if turn == tw_rt::clock::now() { copied } else { 0 }
    }

    pub(crate) fn take_request(&self) -> Box<Request> {
        self.requests.borrow_mut().pop().unwrap_or_else(|| Box::new(Request::new()))
    }

    pub(crate) fn give_back(&self, mut r: Box<Request>) {
        r.unbind();
        let mut spare = self.requests.borrow_mut();
        if spare.len() < SPARE_REQUESTS {
            spare.push(r);
        }
    }

    /// Takes a new connection in.
    fn accepted(self: &Rc<Self>, socket: Socket, peer: Addr, listen: &Rc<Addr>) {
        self.tally.accepted.add(1);
        let limit = self.generation().main.worker_connections;
        if self.connections.len() as u64 >= limit && self.make_room(limit) == Room::None {
            self.tally.refused.add(1);
            let generation = self.generation();
            tw_log::alert!(generation.error_log, "{limit} worker_connections are not enough");
            return;
        }
        let id = self.counts.next_id.fetch_add(1, Relaxed) + 1;
        let client = Client::new(id, Scheme::Http, peer, listen.clone(), self.clone());
        client.debug(format_args!("accept: {}", client.peer()));
        let conn = Conn::new(client, Transport::Plain(socket));
        let open = Open::new(self.clone());
        self.connections.spawn(Subject { kind: CONNECTION, id }, async move {
            let _open = open;
            h1::serve(conn).await;
        });
    }
}

/// Counts one more while it lives.
pub(crate) struct OneMore<'c>(&'c Number);

impl<'c> OneMore<'c> {
    /// One more from now on.
    pub(crate) fn in_level(level: &'c Number) -> Self {
        level.add(1);
        Self(level)
    }
}

impl Drop for OneMore<'_> {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

/// Counts a connection as open while it lives.
struct Open(Rc<Loop>);

impl Open {
    fn new(home: Rc<Loop>) -> Self {
        home.tally.open.add(1);
        Self(home)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.tally.open.sub(1);
    }
}

/// A loop that others know of, however its life ends.
struct Present(Rc<Loop>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.give_up_turn();
        self.0.leave_siblings();
    }
}

/// The life of a loop: serves `generation` until told otherwise. Dropping it closes every connection.
///
/// Called on the loop's thread before the loop guard is on; the future does the rest.
pub fn run(
    index: usize,
    counts: Arc<Counts>,
    generation: Live,
    sockets: Vec<ListenSocket>,
    orders: Inbox<Order>,
) -> impl Future<Output = ()> {
    Accepting::prepare(&sockets);
    serve(Loop::new(index, counts, generation), sockets, orders)
}

async fn serve(home: Rc<Loop>, sockets: Vec<ListenSocket>, mut orders: Inbox<Order>) {
    let Some(Order::Begin) = orders.recv().await else { return };
    HERE.set(Rc::downgrade(&home));
    let _present = Present(home.clone());
    home.tally.generation.set(home.generation().id);
    home.listen(sockets);
    // Who knows of it finds it at work: what accepts has had its turn.
    tw_rt::yield_now().await;
    home.join_siblings(orders.stats());
    let taking_over = Subject { kind: "accept", id: 0 };
    let mut taking_over = tw_rt::spawn_local(taking_over, home.clone().take_over_all());
    let sweeper = home.clone();
    let mut sweeping = tw_rt::spawn_local(Subject { kind: "files", id: 0 }, async move {
        let mut rest = Rest::default();
        loop {
            let next = sweeper.sweep_files();
            rest.if_due();
            tokio::time::sleep(next).await;
        }
    });
    let mut has_ended = |cx: &mut Context<'_>| {
        is_over(&mut sweeping, cx) || is_over(&mut taking_over, cx) || home.has_stopped_accepting(cx)
    };
    while let Some(order) = next(&mut orders, &mut has_ended).await {
        match order {
            // It has.
            Order::Begin => {}
            Order::Generation(generation, sockets) => {
                home.tally.generation.set(generation.id);
                *home.generation.borrow_mut() = Rc::new(LoopGeneration(generation));
                home.close_files();
                home.listen(sockets);
            }
            Order::CloseFiles => home.close_files(),
            Order::Quit => {
                home.connections.stop();
                home.listen_no_more().await;
                home.leave_siblings();
                home.clone().take_over_rest().await;
                drained(&home.connections, &mut orders).await;
                return;
            }
        }
    }
}

/// The next order; `None` when there will be none, or when a task that does not end by itself has panicked. Without it the
/// loop would seem to serve: it ends, and another one takes its place.
async fn next(
    orders: &mut Inbox<Order>,
    mut has_ended: impl FnMut(&mut Context<'_>) -> bool,
) -> Option<Order> {
    let mut order = pin!(orders.recv());
    poll_fn(|cx| if has_ended(cx) { Poll::Ready(None) } else { order.as_mut().poll(cx) }).await
}

fn is_over(task: &mut JoinHandle<()>, cx: &mut Context<'_>) -> bool {
    Pin::new(task).poll(cx).is_ready()
}

/// Waits until no connection is left, or nobody is left who could give orders: then it must end at once.
async fn drained(connections: &TaskGroup, orders: &mut Inbox<Order>) {
    let mut drained = pin!(connections.drained());
    let mut abandoned = pin!(async { while orders.recv().await.is_some() {} });
    poll_fn(|cx| match drained.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => abandoned.as_mut().poll(cx),
    })
    .await;
}

fn descriptor_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_without_one_of_its_own_tasks_ends() {
        let (tell, told) = std::sync::mpsc::channel();
        let home = tw_rt::LoopThread::<Order>::start(tw_rt::LoopOptions::new(0), |mut orders| async move {
            let spawn = |panics: bool| {
                tw_rt::spawn_local(Subject { kind: "test", id: 0 }, async move {
                    assert!(!panics, "expected");
                    std::future::pending().await
                })
            };
            let mut tasks = [spawn(false), spawn(false)];
            tell.send(matches!(
                next(&mut orders, |cx| tasks.iter_mut().any(|task| is_over(task, cx))).await,
                Some(Order::Quit)
            ))
            .unwrap();
            let mut tasks = [spawn(false), spawn(true)];
            tell.send(next(&mut orders, |cx| tasks.iter_mut().any(|task| is_over(task, cx))).await.is_none())
                .unwrap();
        })
        .unwrap();
        assert!(home.send(Order::Quit).is_ok());
        assert_eq!([told.recv(), told.recv()], [Ok(true), Ok(true)]);
        home.join().unwrap();
    }
}
