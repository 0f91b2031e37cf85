//! Thread of a fleet: it connects to the engine, applies the log in order, publishes, and remembers its position. It may wait; no loop
//! waits for it but for the acknowledgement of a purge.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tw_log::Level;

use crate::announcer::SharedParts;
use crate::directory::StateDirectory;
use crate::engine::{Engine, EngineError};
use crate::etcd::EtcdEngine;
use crate::fleet::Fleet;
use crate::host::Machine;
use crate::nats::Nats;
use crate::node::{LogFn, Node, NodeCaches, Role};
use crate::server_list::EngineKind;
use crate::status::NodeSummary;
use crate::store::{SUMMARIES, Store, StoreWatch};

/// Time between two attempts to take the lock, to save the position and to apply again what failed.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two attempts to apply what failed.
const AGAIN_TICKS: u32 = 10;
/// Time between two summaries.
pub(crate) const SUMMARY_INTERVAL: Duration = Duration::from_secs(5);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Purges of a fleet that wait for the disk of a cache.
    pub(crate) const UNAPPLIED_MAX: usize = 10_000, count, "all of that cache is purged";
}

/// Handle of the thread, which ends with it.
#[derive(Debug)]
pub struct Agent(UnboundedSender<AgentCommand>);

pub(crate) enum AgentCommand {
    SetCaches(Arc<dyn NodeCaches>, LogFn),
    Share(SharedParts),
    Retire,
}

impl Agent {
    /// Starts the thread. It applies the log to `caches` from now on.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start(fleet: Arc<Fleet>, caches: Arc<dyn NodeCaches>, log: LogFn) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (send, commands) = unbounded_channel();
        thread::Builder::new().name("fleet".to_owned()).spawn(move || {
            let settings = fleet.settings();
            let tell = log.clone();
            let failed = |error: String| {
                tell(Level::Alert, format_args!("fleet \"{}\": {error}", settings.name));
            };
            let tasks = LocalSet::new();
            let host = Box::new(Machine::new(StateDirectory::new(&settings.state)));
            match settings.engine.servers.kind() {
                EngineKind::Nats => match Nats::new(&settings.engine, &settings.name, &settings.node) {
                    Ok(engine) => {
                        let node = Node::new(engine, host, fleet.clone(), caches, log);
                        tasks.block_on(&runtime, serve(node, commands));
                    }
                    Err(error) => failed(error),
                },
                EngineKind::Etcd => match EtcdEngine::new(&settings.engine, &settings.name) {
                    Ok(engine) => {
                        let node = Node::new(engine, host, fleet.clone(), caches, log);
                        tasks.block_on(&runtime, serve(node, commands));
                    }
                    Err(error) => failed(error),
                },
            }
        })?;
        Ok(Self(send))
    }

    /// Sets the caches of another configuration.
    pub fn set_caches(&self, caches: Arc<dyn NodeCaches>, log: LogFn) {
        // A thread that has ended has logged the reason.
        let _ = self.0.send(AgentCommand::SetCaches(caches, log));
    }

    /// Sets the rates and upstream groups that are shared with other nodes.
    pub fn share(&self, parts: SharedParts) {
        let _ = self.0.send(AgentCommand::Share(parts));
    }

    /// Leaves position and queue to another process, and applies nothing more. Purges are still published.
    pub fn retire(&self) {
        let _ = self.0.send(AgentCommand::Retire);
    }
}

/// Task of a node until its handle is dropped.
pub(crate) async fn serve<E: Engine + 'static>(
    node: Rc<Node<E>>,
    mut commands: UnboundedReceiver<AgentCommand>,
) {
    let (purges, operations) = node.fleet.connect();
    node.take_lock();
    let tasks = [
        spawn_local(node.clone().publish_all(purges)),
        spawn_local(node.clone().write_queue()),
        spawn_local(node.clone().drain_queue()),
        spawn_local(node.clone().run()),
        spawn_local(node.clone().tick()),
        spawn_local(node.clone().summarize()),
        spawn_local(node.clone().follow_own_configuration()),
        spawn_local(node.clone().serve_stores(operations)),
        spawn_local(node.clone().make_secrets()),
        spawn_local(node.clone().follow_secrets()),
        spawn_local(node.clone().announce_all()),
    ];
    while let Some(command) = commands.recv().await {
        match command {
            AgentCommand::SetCaches(caches, log) => {
                *node.caches.borrow_mut() = caches;
                *node.log_line.borrow_mut() = log;
                node.admit_new_caches().await;
            }
            AgentCommand::Share(parts) => node.set_shared_parts(parts),
            AgentCommand::Retire => node.retire(),
        }
    }
    node.save();
    if node.role.get() == Role::Active {
        node.say_goodbye();
        // The connection has a task of its own that writes.
        tokio::task::yield_now().await;
    }
    tasks.iter().for_each(JoinHandle::abort);
}

impl<E: Engine + 'static> Node<E> {
    /// Takes the right to write the state, if no other process has it, and opens the queue.
    fn take_lock(&self) {
        if self.disk.borrow().is_some() || self.role.get() == Role::Retired {
            return;
        }
        match self.host.lock() {
            Ok(Some(disk)) => {
                let torn = disk.torn_size();
                let queued = disk.queued_count();
                if torn > 0 {
                    self.log(Level::Warn, format_args!("{torn} bytes at the end of the queue are torn"));
                }
                self.fleet.status.lock().queued = queued as u64;
                *self.disk.borrow_mut() = Some(disk);
                // Records applied before this process had the lock may be missing in the file that the previous process
                // wrote.
                self.is_changed.set(true);
                self.has_work.notify_one();
            }
            Ok(None) => {
                self.log_some(Level::Info, "lock", format_args!("another process has the state directory"));
            }
            Err(error) => self.log_some(Level::Error, "lock", format_args!("{error}")),
        }
    }

    fn retire(&self) {
        self.save();
        self.say_goodbye();
        self.role.set(Role::Retired);
        *self.disk.borrow_mut() = None;
    }

    /// Saves the position, if everything up to it is saved in the caches.
    fn save(&self) {
        if !self.is_changed.get() || self.applying.get() > 0 || !self.unapplied.borrow().is_empty() {
            return;
        }
        if let (Some(disk), Some(state)) = (&*self.disk.borrow(), &*self.state.borrow()) {
            let saved = disk.save_position(state);
            self.fleet.status.lock().is_unsaved = saved.is_err();
            match saved {
                Ok(()) => self.is_changed.set(false),
                Err(error) => self.log_some(Level::Crit, "save", format_args!("{error}")),
            }
        }
    }

    async fn tick(self: Rc<Self>) {
        let mut ticks = 0_u32;
        loop {
            self.host.sleep(TICK).await;
            ticks = ticks.wrapping_add(1);
            self.take_lock();
            if ticks.is_multiple_of(AGAIN_TICKS) && !self.unapplied.borrow().is_empty() {
                self.apply_unapplied().await;
            }
            self.save();
        }
    }

    /// Publishes the summary of this node again and again.
    async fn summarize(self: Rc<Self>) {
        loop {
            let is_connected = self.session.borrow().is_some();
            if is_connected && self.role.get() == Role::Active {
                let summary = {
                    let status = self.fleet.status.lock();
                    NodeSummary {
                        node: self.fleet.settings().node.to_string(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                        sequence: status.sequence,
                        lag: status.lag,
                        queued: status.queued,
                        time: self.host.unix_ms(),
                        last_purge: status.last_purge,
                        process: self.process.clone(),
                        configuration: status.configuration.clone(),
                    }
                };
                let text = serde_json::to_vec(&summary).unwrap_or_default();
                let set =
                    async { self.opened_store(&SUMMARIES).await?.set(&summary.node, &text, None).await };
                if let Err(error @ EngineError::Refused(_)) = set.await {
                    self.log_some(
                        Level::Warn,
                        "summary",
                        format_args!("the summary cannot be published: {error}"),
                    );
                }
            }
            self.host.sleep(SUMMARY_INTERVAL).await;
        }
    }

    /// Follows the summaries of all nodes, as long as the connection lasts.
    pub(crate) async fn watch_summaries(self: Rc<Self>) {
        let watch = async { self.opened_store(&SUMMARIES).await?.watch().await };
        let mut watch = match watch.await {
            Ok(watch) => watch,
            Err(error) => {
                return self.log_some(
                    Level::Warn,
                    "watch",
                    format_args!("summaries cannot be read: {error}"),
                );
            }
        };
        while let Ok(changes) = watch.next().await {
            let changes = changes.entries;
            {
                let mut status = self.fleet.status.lock();
                changes.iter().for_each(|entry| status.set_node(&entry.key, entry.value.as_deref()));
            }
            if changes.iter().any(|entry| *entry.key == *self.fleet.settings().node) {
                self.check_name();
            }
        }
    }

    /// Compares the last summary under the name of this node with this process.
    fn check_name(&self) {
        let name = &*self.fleet.settings().node;
        let has_conflict = {
            let mut status = self.fleet.status.lock();
            let Some(process) = status.nodes.get(name).map(|summary| &*summary.process) else { return };
            // Versions before have none.
            let is_ours = process.is_empty() || *process == *self.process;
            let has_conflict = self.name_watch.borrow_mut().note(is_ours, self.host.now());
            status.has_name_conflict = has_conflict;
            has_conflict
        };
        if has_conflict {
            self.log_some(
                Level::Error,
                "name",
                format_args!(
                    "another server has the name \"{name}\", too: set \"node\" to another name on one of them"
                ),
            );
        }
    }
}
