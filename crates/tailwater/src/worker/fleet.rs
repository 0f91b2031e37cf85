//! Fleets: one thread of a process for each follows its log, from when the process serves.
//!
//! The worker process does this, not the master: it has the caches, and its sandbox confines what a hostile engine could do. During a
//! reload or an upgrade two processes follow the log, and each applies it to its own caches; the state directory belongs to one of
//! them, which saves the position.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tailwater_commands::output::console::Console;
use tw_app::Generation;
use tw_app::cache::Cache;
use tw_base::Errno;
use tw_core::shared_objects::SharedObjects;
use tw_fleet::{
    Agent, Fleet, FleetPurge, FleetSettings, FleetStatus, LogFn, NodeCaches, SharedGroup, SharedParts,
    SharedRate, SharedRateState,
};
use tw_log::Level;

/// Time that a client has to take the state of the fleets.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Agents of this process by the name of their fleet.
#[derive(Default)]
pub(super) struct Fleets {
    agents: HashMap<Box<[u8]>, (Arc<Fleet>, Agent)>,
    role: FollowingRole,
}

/// Role of this process.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum FollowingRole {
    /// The process does not serve yet, or leaves.
    #[default]
    Standby,
    Active,
}

/// Caches of a generation that are in one fleet.
struct GenerationCaches {
    generation: Generation,
    caches: HashMap<Vec<u8>, Arc<Cache>>,
}

impl GenerationCaches {
    fn of(generation: &Generation, fleet: &Arc<Fleet>) -> Self {
        let objects = &generation.shared_objects;
        let names = objects.of_type::<Cache>().into_iter().map(|(name, _)| name);
        let is_in = |cache: &Arc<Cache>| cache.fleet().is_some_and(|own| Arc::ptr_eq(own, fleet));
        let results =
            names.filter_map(|name| Some((name.to_vec(), objects.find::<Cache>(name).filter(is_in)?)));
        Self { generation: generation.clone(), caches: results.collect() }
    }
}

impl NodeCaches for GenerationCaches {
    fn names(&self) -> Vec<Vec<u8>> {
        let mut names: Vec<_> = self.caches.keys().cloned().collect();
        names.sort();
        names
    }

    fn purge(
        &self,
        cache: &[u8],
        purges: Vec<FleetPurge>,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>>>> {
        let cache = self.caches.get(cache).cloned();
        let generation = self.generation.clone();
        Box::pin(async move {
            // A cache that has left the fleet has nothing to apply.
            let Some(cache) = cache else { return Ok(()) };
            let log = |level, message: fmt::Arguments<'_>| generation.error_log.write(level, None, message);
            let disk = generation.disks.default_disk();
            cache.purge_all(disk, &purges, log).await.map_err(|error| error.to_string())
        })
    }
}

impl Fleets {
    /// Follows the fleets of `generation`.
    pub(super) fn follow(&mut self, generation: &Generation, console: &Console) {
        if self.role == FollowingRole::Standby {
            return;
        }
        let wanted_values = generation.shared_objects.of_type::<Fleet>();
        let wanted_values: Vec<_> = wanted_values
            .iter()
            .filter_map(|(name, _)| Some((*name, generation.shared_objects.find::<Fleet>(name)?)))
            .collect();
        self.agents.retain(|name, (fleet, _)| {
            // An agent ends when its handle is dropped.
            wanted_values.iter().any(|(candidate, other)| **candidate == **name && Arc::ptr_eq(fleet, other))
        });
        for (name, fleet) in wanted_values {
            let log = (*generation.error_log).clone();
            let log_line: LogFn =
                Arc::new(move |level, message: fmt::Arguments<'_>| log.write(level, None, message));
            let caches = Arc::new(GenerationCaches::of(generation, &fleet));
            let parts = shared_parts(&generation.shared_objects, &fleet);
            match self.agents.get(name) {
                Some((_, agent)) => {
                    // Requests meet a new rate already, and the disk of a cache may be slow.
                    agent.share(parts);
                    agent.set_caches(caches, log_line);
                }
                None => {
                    match Agent::start(fleet.clone(), caches, log_line) {
                        Ok(agent) => {
                            agent.share(parts);
                            self.agents.insert(name.into(), (fleet, agent));
                        }
                        Err(error) => {
                            let errno = Errno::from(&error);
                            let name = tw_log::Text(name);
                            console.report(
                            Level::Alert,
                            format_args!("fleet \"{name}\": starting a thread failed ({errno}), purges are not shared"),
                        );
                        }
                    }
                }
            }
        }
    }

    /// Begins to follow.
    pub(super) fn begin(&mut self, generation: &Generation, console: &Console) {
        self.role = FollowingRole::Active;
        // The agents from before have handed over to another process, and are replaced.
        self.agents.clear();
        self.follow(generation, console);
    }

    /// Leaves it to another process. Purges of connections that are still open are published.
    pub(super) fn retire(&mut self) {
        self.role = FollowingRole::Standby;
        self.agents.values().for_each(|(_, agent)| agent.retire());
    }
}

/// Rates and upstream groups of a configuration that the nodes of one fleet share.
fn shared_parts(objects: &SharedObjects, fleet: &Arc<Fleet>) -> SharedParts {
    let rates =
        objects.of_type::<SharedRate>().into_iter().filter_map(|(name, _)| objects.find::<SharedRate>(name));
    let groups = objects.of_type::<SharedGroup>().into_iter().map(|(_, group)| group);
    SharedParts {
        rates: rates.filter(|rate| Arc::ptr_eq(rate.fleet(), fleet)).collect(),
        peers: groups
            .filter(|group| Arc::ptr_eq(&group.fleet, fleet))
            .map(|group| group.peers.clone())
            .collect(),
    }
}

/// Describes what nodes share by announcements.
fn describe_shared(status: &FleetStatus, text: &mut String) {
    for (name, rate) in &status.rates {
        let name = tw_log::Text(name.as_bytes());
        let SharedRateState { nodes, away, keys, is_shared } = rate;
        let _ = if *is_shared {
            writeln!(text, "rate of zone \"{name}\": {nodes} nodes, {away} away, {keys} keys by demand")
        } else {
            writeln!(text, "rate of zone \"{name}\": nothing is heard, this node has 1/{nodes} of it")
        };
    }
    if status.announcements > 0 {
        let FleetStatus { announcements, unreadable_announcements, hints, .. } = status;
        let _ = writeln!(
            text,
            "announcements {announcements}, not understood {unreadable_announcements}, hints about upstream servers followed {hints}"
        );
    }
}

/// Sends a client the state of all fleets of `generation`, on a thread of its own.
pub(super) fn send_status(client: OwnedFd, generation: &Generation) {
    let mut lines = String::from("done\n");
    let fleets = generation.shared_objects.of_type::<Fleet>();
    if fleets.is_empty() {
        lines.push_str("notice the configuration has no \"fleet\"\n");
    }
    let now = u64::try_from(tw_rt::clock::unix().secs).unwrap_or(0) * 1000;
    for (_, fleet) in fleets {
        for line in describe(fleet.settings(), &fleet.status(), now).lines() {
            // Writing into a String does not fail.
            let _ = writeln!(lines, "notice {line}");
        }
    }
    // If no thread can be started, the connection is closed.
    let _ = thread::Builder::new().name("fleet status".to_owned()).spawn(move || {
        let mut client = UnixStream::from(client);
        // A client that does not read the status does not get it.
        let _ = client
            .set_nonblocking(false)
            .and_then(|()| client.set_write_timeout(Some(STATUS_TIMEOUT)))
            .and_then(|()| client.write_all(lines.as_bytes()));
    });
}

/// Text for an operator, at a time in milliseconds since 1970.
fn describe(settings: &FleetSettings, status: &FleetStatus, now_ms: u64) -> String {
    let FleetSettings { name, node, .. } = settings;
    let mut text = format!("fleet {name}, node {node}: ");
    let _ = match (&status.engine, &status.last_error) {
        (Some(engine), _) => writeln!(text, "connected to {engine}"),
        (None, Some(error)) => writeln!(text, "not connected: {error}"),
        (None, None) => writeln!(text, "not connected yet"),
    };
    let FleetStatus { sequence, lag, queued, published, applied, resets, .. } = status;
    let _ = writeln!(
        text,
        "sequence {sequence}, lag {lag}, queued {queued}, published {published}, applied {applied}, resets {resets}"
    );
    if status.has_name_conflict {
        let _ = writeln!(
            text,
            "another server has the name {node}, too: set \"node\" to another name on one of them"
        );
    }
    if status.is_unsaved {
        let _ = writeln!(text, "the position or a purge could not be saved: the error log has the reason");
    }
    describe_shared(status, &mut text);
    for (lease, node) in &status.leases {
        let _ = writeln!(
            text,
            "lease \"{}\": {}",
            tw_log::Text(lease.as_bytes()),
            node.as_deref().unwrap_or("nobody")
        );
    }
    let _ = writeln!(
        text,
        "{:<24} {:>12} {:>8} {:>8} {:>12} {:>10}  {:<13}  version",
        "node", "sequence", "lag", "queued", "last purge", "seen", "configuration"
    );
    let ago = |time: u64| match time {
        0 => "never".to_owned(),
        time => format!("{} s ago", now_ms.saturating_sub(time) / 1000),
    };
    for node_summary in status.nodes.values() {
        let lag = status.lag_of(node_summary);
        let configuration =
            node_summary.configuration.as_ref().map_or_else(|| "-".to_owned(), |it| it.describe());
        let _ = writeln!(
            text,
            "{:<24} {:>12} {lag:>8} {:>8} {:>12} {:>10}  {configuration:<13}  {}",
            node_summary.node,
            node_summary.sequence,
            node_summary.queued,
            ago(node_summary.last_purge),
            ago(node_summary.time),
            node_summary.version
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use tw_fleet::{Authentication, EngineSettings, NodeConfiguration, NodeSummary, ServerList};

    use super::*;

    #[test]
    fn status_lists_all_nodes_with_their_lag() {
        let engine = EngineSettings {
            servers: ServerList::parse("nats://a").unwrap(),
            authentication: Authentication::Anonymous,
            tls: false,
            trusted: None,
            replicas: 1,
            max_age: Duration::ZERO,
            max_messages: 1,
        };
        let settings = FleetSettings {
            name: "edge".into(),
            node: "n1".into(),
            state: "/s".into(),
            publish_timeout: Duration::ZERO,
            keys: tw_fleet::FleetKeys::default(),
            secret_rotation: Duration::from_secs(1),
            engine,
        };
        let mut status =
            FleetStatus { sequence: 17, engine: Some("nats 2".to_owned()), ..FleetStatus::default() };
        let summary = |node: &str, sequence| NodeSummary {
            node: node.to_owned(),
            version: "0.1.0".to_owned(),
            sequence,
            time: 8_000,
            ..NodeSummary::default()
        };
        status.nodes = [("n1", 17), ("n2", 12)]
            .map(|(node, sequence)| (node.to_owned(), summary(node, sequence)))
            .into();
        status.leases =
            [("certificates le".to_owned(), Some("n2".to_owned())), ("secrets".to_owned(), None)].into();
        let served = NodeConfiguration { number: 12, previous: 11, state: "refused".to_owned() };
        status.nodes.get_mut("n2").unwrap().configuration = Some(served);
        assert_eq!(
            describe(&settings, &status, 10_000),
            "fleet edge, node n1: connected to nats 2\n\
             sequence 17, lag 0, queued 0, published 0, applied 0, resets 0\n\
             lease \"certificates le\": n2\n\
             lease \"secrets\": nobody\n\
             node                         sequence      lag   queued   last purge       seen  configuration  version\n\
             n1                                 17        0        0        never    2 s ago  -              0.1.0\n\
             n2                                 12        5        0        never    2 s ago  12 refused     0.1.0\n"
        );
        let rate = SharedRateState { nodes: 3, away: 1, keys: 7, is_shared: true };
        status.rates = [("api".to_owned(), rate)].into();
        (status.announcements, status.hints) = (9, 2);
        let text = describe(&settings, &status, 10_000);
        assert!(text.contains("\nrate of zone \"api\": 3 nodes, 1 away, 7 keys by demand\n"), "{text}");
        assert!(
            text.contains("\nannouncements 9, not understood 0, hints about upstream servers followed 2\n"),
            "{text}"
        );
        status.rates = [("api".to_owned(), SharedRateState { is_shared: false, ..rate })].into();
        let text = describe(&settings, &status, 10_000);
        assert!(
            text.contains("\nrate of zone \"api\": nothing is heard, this node has 1/3 of it\n"),
            "{text}"
        );
        status.has_name_conflict = true;
        assert!(describe(&settings, &status, 10_000).contains("\nanother server has the name n1, too: "));
    }
}
