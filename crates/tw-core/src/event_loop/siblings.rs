//! The loops of the process as each of them sees the others: their loads, and the share of connections that it passes on.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender};
use tw_base::FatalMutex;
use tw_net::{Accepted, Addr};
use tw_rt::LoopStats;

use super::tally::Tally;

/// Time between two looks at the other loops. One look reads two cache lines of each.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Time constant of the smoothed load.
const SMOOTH: Duration = Duration::from_millis(100);

/// Connections that cost nothing now count like this share of a core for a loop that has as many as all have on average.
const COUNT_WEIGHT: f64 = 0.05;

/// Speed at which the passed-on share follows the load: one that is twice the mean passes everything on after some
/// 0.2 s.
const GAIN: f64 = 0.5;

/// Loads this near to the mean are even.
const EVEN: f64 = 0.02;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Connections on their way from other loops to one loop (connection_balance).
    pub(super) const PASSED_ON_MAX: usize = 64, count, "the loop that accepted them serves them";
}

/// Message from one loop to another.
pub(super) enum Message {
    /// A connection on its way.
    PassedOn(Accepted, Addr),
    /// The process has no descriptor left, and the sender has nothing to close.
    WantsDescriptors,
}

/// A loop as others see it.
pub struct Sibling {
    /// Number of the loop.
    pub index: usize,
    /// Counters of its connections and sessions.
    pub tally: Arc<Tally>,
    /// Statistics of its turns.
    pub stats: Arc<LoopStats>,
    pub(super) inbox: Sender<Message>,
}

/// The loops that accept.
#[derive(Default)]
pub(super) struct Siblings {
    pub(super) all: FatalMutex<Vec<Arc<Sibling>>>,
    /// Changes with every loop that comes or goes.
    version: AtomicU64,
}

impl Siblings {
    pub(super) fn all(&self) -> Vec<Arc<Sibling>> {
        let mut all = self.all.lock().clone();
        all.sort_by_key(|sibling| sibling.index);
        all
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Vec<Arc<Sibling>>)) {
        change(&mut self.all.lock());
        self.version.fetch_add(1, Release);
    }
}

/// Balancing state of one loop: the loads of its siblings and the share that it passes on.
#[derive(Default)]
pub(super) struct Balance {
    pub(super) me: RefCell<Option<Arc<Sibling>>>,
    pub(super) inbox: RefCell<Option<Receiver<Message>>>,
    version: Cell<u64>,
    pub(super) looked: Cell<Option<Instant>>,
    pub(super) loads: RefCell<Vec<SiblingLoad>>,
    /// The part of what it accepts that it passes on, 0 to 1.
    part: Cell<f64>,
    /// Parts of connections that are owed.
    owed: Cell<f64>,
}

/// A loop, and what was seen of it.
pub(super) struct SiblingLoad {
    sibling: Arc<Sibling>,
    /// Time in turns at the last look.
    busy_ns: u64,
    /// Share of time in turns, smoothed.
    busy: f64,
    /// Difference between the mean load and its load, 0 if that is larger.
    lacks: f64,
    /// Parts of connections that it is owed.
    owed: f64,
}

impl SiblingLoad {
    fn new(sibling: Arc<Sibling>, now: Instant) -> Self {
        let busy_ns = sibling.stats.busy.until(now);
        Self { sibling, busy_ns, busy: 0.0, lacks: 0.0, owed: 0.0 }
    }
}

impl Balance {
    /// Looks at all loops, and decides what to pass on until the next look.
    pub(super) fn rebalance(&self, me: &Arc<Sibling>, siblings: &Siblings, now: Instant) {
        // Acquire: a sibling that the version counts is in the list.
        let version = siblings.version.load(Acquire);
        let mut sibling_loads = self.loads.borrow_mut();
        if version != self.version.replace(version) || sibling_loads.is_empty() {
            let mut old = std::mem::take(&mut *sibling_loads);
            sibling_loads.extend(siblings.all.lock().iter().map(|sibling| {
                let at = old.iter().position(|sibling_load| Arc::ptr_eq(&sibling_load.sibling, sibling));
                at.map_or_else(|| SiblingLoad::new(sibling.clone(), now), |at| old.swap_remove(at))
            }));
        }
        let Some(looked) = self.looked.replace(Some(now)) else { return };
        let elapsed = now.saturating_duration_since(looked).as_secs_f64();
        let weight = elapsed / (elapsed + SMOOTH.as_secs_f64());
        for sibling_load in &mut *sibling_loads {
            let busy_ns = sibling_load.sibling.stats.busy.until(now);
            let share = busy_ns.saturating_sub(sibling_load.busy_ns) as f64 / 1e9 / elapsed;
            sibling_load.busy_ns = busy_ns;
            sibling_load.busy += weight * (share.min(1.0) - sibling_load.busy);
        }
        let count = sibling_loads.len() as f64;
        let opens: f64 =
            sibling_loads.iter().map(|sibling_load| sibling_load.sibling.tally.open.value() as f64).sum();
        let load = |sibling_load: &SiblingLoad| {
            let open = sibling_load.sibling.tally.open.value() as f64;
            sibling_load.busy + COUNT_WEIGHT * open / (opens / count).max(1.0)
        };
        let loads: Vec<f64> = sibling_loads.iter().map(load).collect();
        let mean = loads.iter().sum::<f64>() / count;
        for (sibling_load, load) in sibling_loads.iter_mut().zip(&loads) {
            sibling_load.lacks =
                if Arc::ptr_eq(&sibling_load.sibling, me) { 0.0 } else { (mean - load).max(0.0) };
        }
        let own = sibling_loads
            .iter()
            .position(|sibling_load| Arc::ptr_eq(&sibling_load.sibling, me))
            .and_then(|at| loads.get(at));
        let excess = own.map_or(0.0, |own| (own - mean) / mean.max(f64::MIN_POSITIVE));
        if excess.abs() > EVEN {
            self.part.set((self.part.get() + GAIN * weight * excess).clamp(0.0, 1.0));
        }
    }

    /// The loop that gets the next connection, if not this one.
    pub(super) fn next(&self) -> Option<Arc<Sibling>> {
        let part = self.part.get();
        if part <= 0.0 {
            return None;
        }
        let owed = self.owed.get() + part;
        if owed < 1.0 {
            self.owed.set(owed);
            return None;
        }
        self.owed.set(owed - 1.0);
        let mut loads = self.loads.borrow_mut();
        let lack: f64 = loads.iter().map(|load| load.lacks).sum();
        if lack <= 0.0 {
            return None;
        }
        loads.iter_mut().for_each(|load| load.owed += load.lacks / lack);
        let next =
            loads.iter_mut().filter(|load| load.lacks > 0.0).max_by(|a, b| a.owed.total_cmp(&b.owed))?;
        next.owed -= 1.0;
        Some(next.sibling.clone())
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::channel;

    use super::*;
    use crate::event_loop::tally::{OwnTally, Tallies};

    struct Bench {
        siblings: Siblings,
        balances: Vec<(Balance, Arc<Sibling>)>,
        tallies: Vec<OwnTally>,
    }

    /// Loops with so many connections each, which do nothing.
    fn bench(opens: &[u64]) -> Bench {
        let all = Tallies::default();
        let siblings = Siblings::default();
        let mut balances = Vec::new();
        let mut tallies = Vec::new();
        for (index, open) in opens.iter().enumerate() {
            let tally = all.claim();
            tally.open.add(*open);
            let (inbox, _) = channel(1);
            let tally_of = tally.share();
            let stats = Arc::default();
            let sibling = Arc::new(Sibling { index, tally: tally_of, stats, inbox });
            siblings.change(|all| all.push(sibling.clone()));
            balances.push((Balance::default(), sibling));
            tallies.push(tally);
        }
        Bench { siblings, balances, tallies }
    }

    impl Bench {
        /// Accepts `count` connections on the first loop, some at each look; where they go.
        fn accept(&self, count: u64) -> Vec<u64> {
            let (balance, me) = &self.balances[0];
            let mut now = Instant::now();
            let mut went = vec![0; self.balances.len()];
            for number in 0..count {
                if number % 5 == 0 {
                    now += LOOK_EVERY;
                    balance.rebalance(me, &self.siblings, now);
                }
                let index = balance.next().map_or(0, |sibling| sibling.index);
                self.tallies[index].open.add(1);
                went[index] += 1;
            }
            went
        }
    }

    #[test]
    fn connections_of_one_loop_are_spread_over_all() {
        let went = bench(&[0, 0, 0, 0]).accept(4000);
        assert!(went.iter().all(|went| (900..1100).contains(went)), "{went:?}");
    }

    #[test]
    fn loaded_loop_gets_fewer_connections() {
        let went = bench(&[100, 100, 400]).accept(600);
        assert!(went[2] < 50 && went[0] > 250 && went[1] > 200, "{went:?}");
    }

    #[test]
    fn even_load_is_not_moved() {
        let bench = bench(&[500, 500]);
        let (balance, me) = &bench.balances[0];
        let mut now = Instant::now();
        for _ in 0..100 {
            now += LOOK_EVERY;
            balance.rebalance(me, &bench.siblings, now);
            assert!(balance.next().is_none());
        }
    }

    #[test]
    fn started_and_stopped_loops_are_noticed() {
        let bench = bench(&[10, 10]);
        let (balance, me) = &bench.balances[0];
        let mut now = Instant::now();
        let mut look = || {
            now += LOOK_EVERY;
            balance.rebalance(me, &bench.siblings, now);
            balance.loads.borrow().len()
        };
        assert_eq!(look(), 2);
        let gone_sibling = bench.balances[1].1.clone();
        bench.siblings.change(|all| all.retain(|sibling| !Arc::ptr_eq(sibling, &gone_sibling)));
        assert_eq!(look(), 1);
        assert!(balance.next().is_none());
    }
}
