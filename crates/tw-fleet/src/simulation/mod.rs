//! Simulation of a fleet: a hundred nodes in one process, virtual time, an engine that fails in every way that is known. The same seed
//! gives the same run.
//!
//! The property: every purge that a node has taken is applied by every node, or everything that this node stored before is stale.

mod faults;
mod machine;
mod rates;
mod virtual_time;
mod world;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use tw_testkit::Random;

use crate::agent::{AgentCommand, serve};
use crate::fleet::{Fleet, PublishOutcome};
use crate::nats::Authentication;
use crate::node::{Node, NodeCaches};
use crate::position::Position;
use crate::record::{FleetPurge, FleetPurgeMode, FleetPurgeScope, FleetRecord, RecordKind};
use crate::server_list::ServerList;
use crate::settings::EngineSettings;
use crate::{FleetKeys, FleetSettings, FleetStatus};
use machine::{Disk, Machine};
use virtual_time::VirtualTime;
use world::{Server, SimulatedEngine, Stored};

/// Cache of a node: the times at which purges were applied.
#[derive(Default)]
struct Cache {
    applied: Mutex<Applied>,
    fails: AtomicBool,
}

#[derive(Default)]
struct Applied {
    /// Purges by their numbers.
    purges: BTreeSet<usize>,
    /// Last time at which everything became stale.
    stale_at: Option<Duration>,
    stale_count: usize,
}

/// Cache of a node with the clock of the world.
struct TimedCache {
    cache: Arc<Cache>,
    now: Arc<Mutex<Duration>>,
}

impl NodeCaches for TimedCache {
    fn names(&self) -> Vec<Vec<u8>> {
        vec![b"site".to_vec()]
    }

    fn purge(&self, _: &[u8], purges: Vec<FleetPurge>) -> Pin<Box<dyn Future<Output = Result<(), String>>>> {
        let outcome = if self.cache.fails.load(SeqCst) {
            Err("write() failed (5: Input/output error)".to_owned())
        } else {
            let mut applied = self.cache.applied.lock().unwrap();
            for purge in purges {
                match purge.scope {
                    FleetPurgeScope::Tags(tags) => applied.purges.extend(tags.iter().map(|tag| number(tag))),
                    FleetPurgeScope::Prefix(prefix) if prefix.is_empty() => {
                        applied.stale_at = Some(*self.now.lock().unwrap());
                        applied.stale_count += 1;
                    }
                    scope => panic!("no purge of the simulation: {scope:?}"),
                }
            }
            Ok(())
        };
        Box::pin(async move { outcome })
    }
}

/// Number of a purge, which is its only tag.
fn number(tag: &[u8]) -> usize {
    str::from_utf8(tag).unwrap().parse().unwrap()
}

fn purge_of(numbers: impl IntoIterator<Item = usize>) -> FleetPurge {
    let tags = numbers.into_iter().map(|number| number.to_string().into_bytes()).collect();
    FleetPurge { cache: b"site".to_vec(), scope: FleetPurgeScope::Tags(tags), mode: FleetPurgeMode::Hard }
}

/// A fleet without an agent, as a node with this name has it.
pub(crate) fn fleet(node: &str) -> Arc<Fleet> {
    let settings = FleetSettings {
        name: "edge".into(),
        node: node.into(),
        state: "/nowhere".into(),
        publish_timeout: Duration::from_secs(1),
        keys: FleetKeys::default(),
        secret_rotation: Duration::from_secs(3600),
        engine: EngineSettings {
            servers: ServerList::parse("nats://a").unwrap(),
            authentication: Authentication::Anonymous,
            tls: false,
            trusted: None,
            replicas: 1,
            max_age: Duration::ZERO,
            max_messages: 1,
        },
    };
    Arc::new(Fleet::new(settings))
}

/// Process of a node, while it runs.
struct Process {
    tasks: LocalSet,
    woken: Arc<Woken>,
    waker: Waker,
    node: Rc<Node<SimulatedEngine>>,
    commands: UnboundedSender<AgentCommand>,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// Machine of a node with everything that outlives its processes.
struct Member {
    name: String,
    disk: Rc<RefCell<Disk>>,
    cache: Arc<Cache>,
    clock_ms: i64,
    log: Arc<Mutex<Vec<String>>>,
    process: Option<Process>,
}

/// Purge that a node was ordered.
struct Ordered {
    at: Duration,
    by: usize,
    outcome: Rc<RefCell<Option<PublishOutcome>>>,
    /// Nodes that know that the engine has lost it: while one does, it is not lost unnoticed. `None` if it was never lost.
    witnesses: Option<BTreeSet<usize>>,
}

/// A fleet in virtual time.
struct World {
    time: Rc<VirtualTime>,
    now: Arc<Mutex<Duration>>,
    random: Random,
    server: Rc<Server>,
    members: Vec<Member>,
    ordered: BTreeMap<usize, Ordered>,
    next_number: usize,
    /// Times of records that the engine has lost.
    lost_times: BTreeSet<u64>,
    _runtime: tokio::runtime::Runtime,
}

impl World {
    fn new(seed: u64, count: usize) -> Self {
        let time = Rc::new(VirtualTime::default());
        let mut random = Random::new(seed);
        let server = Server::new(time.clone(), random.next_number());
        let mut world = Self {
            time,
            now: Arc::default(),
            random,
            server,
            members: Vec::new(),
            ordered: BTreeMap::new(),
            next_number: 0,
            lost_times: BTreeSet::new(),
            _runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
        };
        for at in 0..count {
            world.add(&format!("node-{at}"));
        }
        world
    }

    /// Adds a machine and starts its process.
    fn add(&mut self, name: &str) -> usize {
        let day_ms = 86_400_000;
        let clock_ms = self.random.below(2 * day_ms) as i64 - day_ms as i64;
        self.members.push(Member {
            name: name.to_owned(),
            disk: Rc::default(),
            cache: Arc::default(),
            clock_ms,
            log: Arc::default(),
            process: None,
        });
        self.start(self.members.len() - 1);
        self.members.len() - 1
    }

    fn start(&mut self, at: usize) {
        let random = RefCell::new(Random::new(self.random.next_number()));
        let member = &mut self.members[at];
        assert!(member.process.is_none());
        let host =
            Machine { time: self.time.clone(), random, clock_ms: member.clock_ms, disk: member.disk.clone() };
        let engine = SimulatedEngine { server: self.server.clone(), node: format!("{} {at}", member.name) };
        let caches = TimedCache { cache: member.cache.clone(), now: self.now.clone() };
        let lines = member.log.clone();
        let log = move |level, message: std::fmt::Arguments<'_>| {
            lines.lock().unwrap().push(format!("{level} {message}"));
        };
        let fleet = fleet(&member.name);
        let node = Node::new(engine, Box::new(host), fleet, Arc::new(caches), Arc::new(log));
        let (commands, receiver) = unbounded_channel();
        let tasks = LocalSet::new();
        tasks.spawn_local(serve(node.clone(), receiver));
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(woken.clone());
        member.process = Some(Process { tasks, woken, waker, node, commands });
    }

    /// Ends the process of a node at once, as a power cut does.
    fn crash(&mut self, at: usize) {
        let process = self.members[at].process.take().unwrap();
        drop(process);
        let disk = self.members[at].disk.borrow();
        let saved = disk.position.position.as_ref().map(|position| position.time_ns);
        // A position on disk notices it at the next start.
        if saved.is_some_and(|time_ns| self.lost_times.contains(&time_ns)) {
            return;
        }
        for witnesses in self.ordered.values_mut().filter_map(|ordered| ordered.witnesses.as_mut()) {
            witnesses.remove(&at);
        }
    }

    fn status(&self, at: usize) -> FleetStatus {
        self.members[at].process.as_ref().unwrap().node.fleet.status()
    }

    /// Orders a purge of so many tags on a node.
    fn order(&mut self, at: usize, tags: usize) {
        let numbers = self.next_number..self.next_number + tags;
        self.next_number = numbers.end;
        let outcome: Rc<RefCell<Option<PublishOutcome>>> = Rc::default();
        for number in numbers.clone() {
            let ordered = Ordered { at: self.time.now(), by: at, outcome: outcome.clone(), witnesses: None };
            self.ordered.insert(number, ordered);
        }
        let process = self.members[at].process.as_ref().unwrap();
        // A node applies its own purge before it publishes it.
        self.members[at].cache.applied.lock().unwrap().purges.extend(numbers.clone());
        let fleet = process.node.fleet.clone();
        process.tasks.spawn_local(async move {
            let done = fleet.publish(purge_of(numbers)).await;
            *outcome.borrow_mut() = Some(done);
        });
        process.woken.0.store(true, SeqCst);
    }

    /// Runs for so long in virtual time.
    fn run(&mut self, length: Duration) {
        let end = self.time.now() + length;
        loop {
            self.settle();
            let is_before = self.time.advance(end);
            *self.now.lock().unwrap() = self.time.now();
            if !is_before {
                return;
            }
        }
    }

    /// Runs everything that need not wait.
    fn settle(&mut self) {
        loop {
            let mut is_idle = true;
            for member in &mut self.members {
                let Some(process) = &mut member.process else { continue };
                if process.woken.0.swap(false, SeqCst) {
                    is_idle = false;
                    let mut cx = Context::from_waker(&process.waker);
                    if let Poll::Ready(()) = pin!(&mut process.tasks).poll(&mut cx) {
                        panic!("the agent of {} has ended", member.name);
                    }
                }
            }
            if is_idle {
                return;
            }
        }
    }

    /// Notes which nodes know of purges that the engine has lost.
    fn note_lost(&mut self, lost: &[Stored]) {
        self.lost_times.extend(lost.iter().map(|record| record.time_ns));
        for record in lost {
            let Ok(FleetRecord { kind: RecordKind::Purge(purge), .. }) = FleetRecord::decode(&record.payload)
            else {
                continue;
            };
            let FleetPurgeScope::Tags(tags) = purge.scope else { continue };
            let knows = |at: &usize| {
                let member = &self.members[*at];
                let has_read = |position: &Position| {
                    position.sequence >= record.sequence && self.lost_times.contains(&position.time_ns)
                };
                let in_memory = member.process.as_ref().is_some_and(|process| {
                    let state = process.node.state.borrow();
                    let position = state.as_ref().and_then(|state| state.position.as_ref());
                    let unconfirmed = process.node.unconfirmed.borrow();
                    position.is_some_and(has_read) || unconfirmed.contains(record.sequence, &record.id)
                });
                in_memory || member.disk.borrow().position.position.as_ref().is_some_and(has_read)
            };
            let witnesses: BTreeSet<usize> = (0..self.members.len()).filter(knows).collect();
            for tag in tags {
                self.ordered.get_mut(&number(&tag)).unwrap().witnesses = Some(witnesses.clone());
            }
        }
    }

    /// Checks the property. Returns the number of pairs of a purge and a node at which the purge itself was applied.
    fn check(&self, seed: u64) -> usize {
        let mut applied_count = 0;
        for (number, ordered) in &self.ordered {
            let outcome = ordered.outcome.borrow().clone();
            let is_taken = matches!(outcome, Some(PublishOutcome::Published | PublishOutcome::Queued));
            let is_noticed = ordered.witnesses.as_ref().is_none_or(|witnesses| !witnesses.is_empty());
            if !is_taken || !is_noticed {
                continue;
            }
            for member in &self.members {
                let applied = member.cache.applied.lock().unwrap();
                let is_applied = applied.purges.contains(number);
                let is_stale = applied.stale_at.is_some_and(|stale| stale >= ordered.at);
                assert!(
                    is_applied || is_stale,
                    "seed {seed}: {} has neither applied purge {number} of {} at {:?} ({outcome:?}, {:?}), nor is its older \
                     content stale ({:?})\n{}\n{}",
                    member.name,
                    self.members[ordered.by].name,
                    ordered.at,
                    ordered.witnesses,
                    applied.stale_at,
                    member.log.lock().unwrap().join("\n"),
                    self.members[ordered.by].log.lock().unwrap().join("\n"),
                );
                applied_count += usize::from(is_applied);
            }
        }
        applied_count
    }

    /// Text of everything that has happened, to compare two runs.
    fn digest(&self) -> String {
        let members = self.members.iter().map(|member| {
            let applied = member.cache.applied.lock().unwrap();
            format!("{} {:?} {} {}", member.name, applied.stale_at, applied.purges.len(), applied.stale_count)
        });
        format!(
            "{:?} {} {}",
            self.time.now(),
            self.server.content.borrow().last,
            members.collect::<Vec<_>>().join("\n")
        )
    }
}
