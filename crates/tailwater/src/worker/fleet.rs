//! Fleets: one thread of a process for each follows its log, from when the process serves.
//!
//! The worker process does this, not the master: it has the caches, and its sandbox confines what a hostile engine could do. During a
//! reload or an upgrade two processes follow the log, and each applies it to its own caches; the state directory belongs to one of
//! them, which saves the position.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tw_app::Generation;
use tw_app::cache::Cache;
use tw_base::Errno;
use tw_fleet::{Agent, Fleet, FleetPurge, LogFn, NodeCaches};
use tw_log::Level;

use crate::console::Console;

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
        let found =
            names.filter_map(|name| Some((name.to_vec(), objects.find::<Cache>(name).filter(is_in)?)));
        Self { generation: generation.clone(), caches: found.collect() }
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
        let (cache, generation) = (self.caches.get(cache).cloned(), self.generation.clone());
        Box::pin(async move {
            // One that has left the fleet has nothing to apply.
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
        let wanted = generation.shared_objects.of_type::<Fleet>();
        let wanted: Vec<_> = wanted
            .iter()
            .filter_map(|(name, _)| Some((*name, generation.shared_objects.find::<Fleet>(name)?)))
            .collect();
        self.agents.retain(|name, (fleet, _)| {
            // With its handle an agent ends.
            wanted.iter().any(|(known, other)| **known == **name && Arc::ptr_eq(fleet, other))
        });
        for (name, fleet) in wanted {
            let log = (*generation.error_log).clone();
            let log_line: LogFn =
                Arc::new(move |level, message: fmt::Arguments<'_>| log.write(level, None, message));
            let caches = Arc::new(GenerationCaches::of(generation, &fleet));
            match self.agents.get(name) {
                Some((_, agent)) => agent.set_caches(caches, log_line),
                None => {
                    match Agent::start(fleet.clone(), caches, log_line) {
                        Ok(agent) => drop(self.agents.insert(name.into(), (fleet, agent))),
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
        // Those of before have left it to another process.
        self.agents.clear();
        self.follow(generation, console);
    }

    /// Leaves it to another process. Purges of connections that are still open are published.
    pub(super) fn retire(&mut self) {
        self.role = FollowingRole::Standby;
        self.agents.values().for_each(|(_, agent)| agent.retire());
    }
}
