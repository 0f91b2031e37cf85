//! Counters of the whole process, and the stalls that are remembered.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Weak;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use tw_base::{Counter, FatalMutex};
use tw_rt::LoopStats;
use tw_rt::clock::UnixTime;
use tw_rt::watch::Stall;

use super::accepting::AcceptMutex;
use super::datagram_queues::{DatagramQueues, PassOutcome};
use super::process_links::ProcessLinks;
use super::process_packet::read_packet;
use super::siblings::{Sibling, Siblings};
use super::slow_requests::SlowRequests;
use super::tally::{LoopCounter, Tallies, Tally};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Stalls that are remembered.
    const STALLS_KEPT: usize = 32, count, "the oldest is forgotten";
}

/// State that all loops of the process share: counters, stalls, the accept mutex.
#[derive(Default)]
pub struct Counts {
    /// Start of the process.
    pub started: StartTime,
    /// Limit of open descriptors.
    pub descriptors: DescriptorLimit,
    /// The last stalls.
    pub stalls: Stalls,
    /// The slowest requests of the last minute.
    pub slow_requests: SlowRequests,
    /// Panics of all threads.
    pub panics: Counter,
    /// Reloads of the configuration.
    pub reloads: FatalMutex<Reloads>,
    /// The number that the last connection has got.
    last_connection: AtomicU64,
    /// True once another process receives from the same sockets and passes nothing on.
    is_replaced: AtomicBool,
    /// Sessions over datagrams that are older than the present number of loops.
    pub moved_datagram_sessions: AtomicU64,
    pub(super) tallies: Tallies,
    pub(super) accept_mutex: AcceptMutex,
    pub(super) siblings: Siblings,
    pub(super) datagram_queues: DatagramQueues,
    /// Other worker processes with connections over the same sockets.
    pub links: ProcessLinks,
    /// Packets of other processes that could not be used.
    pub linked_dropped: AtomicU64,
    /// Statistics of the turns of each loop.
    loops: FatalMutex<Vec<Arc<LoopStats>>>,
}

impl Counts {
    /// The number of a connection that begins, the first is 1.
    pub fn next_connection(&self) -> u64 {
        self.last_connection.fetch_add(1, Relaxed) + 1
    }

    /// Notes that another process receives from the same sockets now and passes nothing on.
    pub fn set_replaced(&self) {
        self.is_replaced.store(true, Release);
    }

    /// Returns true if another process receives from the same sockets and passes nothing on: a datagram goes to either of them.
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Acquire)
    }

    /// Takes a packet that another process has sent, and gives its datagram to the loop of its connection. Never waits.
    pub fn take_from_process(&self, packet: &[u8]) {
        let taken = read_packet(packet);
        let outcome = taken.map(|(number, datagram)| self.datagram_queues.pass_received(number, datagram));
        if outcome != Some(PassOutcome::Sent) {
            self.linked_dropped.fetch_add(1, Relaxed);
        }
    }

    /// Statistics of the turns of each loop, in the order of the loops. Read by scrapes only.
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
        loops.retain(|loop_stats| !Arc::ptr_eq(loop_stats, stats));
    }

    /// The loops that accept connections, by number. Read by scrapes only.
    pub fn siblings(&self) -> Vec<Arc<Sibling>> {
        self.siblings.all()
    }

    /// A number of all loops since the process began, or their level now. Takes no lock: each loop's part is read for itself.
    pub fn total(&self, which: impl Fn(&Tally) -> &LoopCounter) -> u64 {
        self.tallies.total(which)
    }
}

/// Reloads of the configuration since the server was started. The process that reads the configuration counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reloads {
    /// Configurations that were taken over.
    pub succeeded: u64,
    /// Configurations that were refused.
    pub failed: u64,
    /// True if the last one was refused.
    pub has_last_failed: bool,
    /// Time of the last one that was taken over, in seconds since 1970; 0 if there is none.
    pub last_success: u64,
}

impl Reloads {
    /// Counts a reload that ends at `now`, in seconds since 1970.
    pub fn add(&mut self, is_taken_over: bool, now: u64) {
        self.has_last_failed = !is_taken_over;
        if is_taken_over {
            self.succeeded += 1;
            self.last_success = now;
        } else {
            self.failed += 1;
        }
    }
}

/// Most descriptors that the process may have open, as it was at the start; `None` without a limit.
pub struct DescriptorLimit(pub Option<u64>);

impl Default for DescriptorLimit {
    fn default() -> Self {
        Self(tw_rt::limits::open_files())
    }
}

/// Time of a start, by both clocks.
pub struct StartTime {
    /// Monotonic.
    pub at: Instant,
    /// Wall clock.
    pub wall: UnixTime,
}

impl Default for StartTime {
    fn default() -> Self {
        Self { at: tw_rt::clock::now(), wall: tw_rt::clock::unix() }
    }
}

/// The last stalls of all loops, for the status page.
#[derive(Default)]
pub struct Stalls(FatalMutex<VecDeque<PastStall>>);

/// A stall that is remembered.
#[derive(Clone, Debug)]
pub struct PastStall {
    /// End of the stall.
    pub at: UnixTime,
    /// Duration of the stall, and the task that took longest.
    pub stall: Stall,
    /// Address of the client whose connection that was, if it is still open.
    pub client: Option<Box<str>>,
}

impl Stalls {
    /// Keeps `stall`, and forgets the oldest of more than `STALLS_KEPT`. On a loop only after it has stalled: it looks
    /// at every connection.
    pub fn push(&self, stall: Stall) {
        let slowest_task = stall.slowest_task.filter(|slowest_task| slowest_task.subject.kind == CONNECTION);
        let client = slowest_task.and_then(|slowest_task| client_of(slowest_task.subject.id));
        let mut kept = self.0.lock();
        kept.truncate(STALLS_KEPT - 1);
        kept.push_front(PastStall { at: tw_rt::clock::unix(), stall, client });
    }

    /// The stalls, newest first.
    pub fn newest(&self) -> Vec<PastStall> {
        self.0.lock().iter().cloned().collect()
    }
}

/// Kind of the tasks of connections, for [`Subject`](tw_rt::watch::Subject).
pub(super) const CONNECTION: &str = "connection";

/// Access to the clients of a loop by connection number.
pub(super) trait ClientLookup {
    /// The address of a client, by the number of its connection.
    fn address_of(&self, id: u64) -> Option<Box<str>>;
}

thread_local! {
    /// The loop of this thread, for callers outside of its tasks.
    static HERE: RefCell<Option<Weak<dyn ClientLookup>>> = const { RefCell::new(None) };
}

/// Makes `event_loop` the loop of this thread.
pub(super) fn set_current_loop(event_loop: Weak<dyn ClientLookup>) {
    HERE.set(Some(event_loop));
}

/// The address of a client of this loop, by the number of its connection.
fn client_of(id: u64) -> Option<Box<str>> {
    let event_loop = HERE.with_borrow(|event_loop| event_loop.as_ref().and_then(Weak::upgrade))?;
    event_loop.address_of(id)
}
