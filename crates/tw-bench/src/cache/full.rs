//! Directory with a full cache, for servers that are started on it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::syncfs;
use tw_testkit::wait;

use super::contestants::Caches;
use super::fetch::fetch;
use crate::cgroup::{Cgroup, Limits};
use crate::contestant::{Binary, Contestant, Running};
use crate::data::remove_tree;
use crate::exec::RunPlacement;
use crate::proxy::origin::OriginFile;
use crate::report::progress;
use crate::{Outcome, loops};

/// Until everything is stored, or known after a start.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);
/// Until what is not stored by then is fetched again: a server may leave out a response while its disk is slow.
const PATIENCE: Duration = Duration::from_secs(30);

/// Metric of the responses that were stored.
const STORED: &str = "tailwater_cache_stored_total";

/// Responses of one kind, and how many of them: numbered from 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) file: OriginFile,
    pub(crate) count: usize,
}

/// The directory, removed in the end.
pub(crate) struct Full {
    pub(crate) dir: PathBuf,
    /// Responses in it.
    count: usize,
}

/// A server with a full cache, in a group of its own, which it leaves before that is removed: in the order of the fields.
pub(crate) struct Limited {
    pub(crate) server: Running,
    _group: Cgroup,
}

impl Limited {
    /// Starts a server whose cache is below its own directory within limits, and makes it fetch all parts.
    pub(crate) fn filled(
        contestant: &Contestant,
        limits: Limits,
        data: &Path,
        parts: &[Part],
        server_cpu: usize,
        load_cpu: usize,
    ) -> Outcome<Self> {
        let group = Cgroup::new(limits, data)?;
        let place = RunPlacement { cpu: Some(server_cpu), cgroups: group.dirs(), ..RunPlacement::default() };
        let server = contestant.start(&place)?;
        for &Part { file, count } in parts {
            fetch(server.addr(), file, 0..count, Duration::ZERO, load_cpu)?;
        }
        // Pages that are not written yet cannot be dropped.
        syncfs(File::open(server.prefix.path())?)?;
        Ok(Self { server, _group: group })
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        // Files that stay are removed by the next measurement.
        let _ = remove_tree(&self.dir);
    }
}

impl Full {
    /// Makes a server fetch all parts, without limits. `parameters` are those of its `proxy_cache_path`.
    pub(crate) fn make(
        caches: &Caches,
        binary: &Binary,
        parameters: &str,
        data: &Path,
        parts: &[Part],
        server_cpu: usize,
        load_cpu: usize,
    ) -> Outcome<Self> {
        let word = if binary.is_tailwater() { "ours" } else { "nginx" };
        let count = parts.iter().map(|part| part.count).sum();
        progress(&format!("{word}: fetching {count} responses"));
        let full = Self { dir: data.join(format!("cache-{word}")), count };
        if full.dir.exists() {
            remove_tree(&full.dir)?;
        }
        let contestant = caches.at(word, binary, &full.dir, parameters, "");
        let server = contestant.start(&RunPlacement::on(server_cpu))?;
        let fetch_all = || {
            let mut parts = parts.iter();
            parts.try_for_each(|&Part { file, count }| {
                fetch(server.addr(), file, 0..count, Duration::ZERO, load_cpu)
            })
        };
        fetch_all()?;
        if full.until(&contestant, &server, STORED, PATIENCE).is_err() {
            fetch_all()?;
            full.until(&contestant, &server, STORED, TIMEOUT)?;
        }
        drop(server);
        // Pages that are not written yet cannot be dropped.
        syncfs(File::open(&full.dir)?)?;
        Ok(full)
    }

    /// Restarts a server within limits, and waits until Tailwater has loaded its index.
    pub(crate) fn start(&self, contestant: &Contestant, limits: Limits, cpu: usize) -> Outcome<Limited> {
        let group = Cgroup::new(limits, &self.dir)?;
        let place = RunPlacement { cpu: Some(cpu), cgroups: group.dirs(), ..RunPlacement::default() };
        let server = contestant.start(&place)?;
        self.until(contestant, &server, "tailwater_cache_entries", TIMEOUT)?;
        Ok(Limited { server, _group: group })
    }

    /// Waits until ours counts as many as there are.
    pub(super) fn until(
        &self,
        contestant: &Contestant,
        server: &Running,
        what: &str,
        within: Duration,
    ) -> Outcome {
        if !contestant.has_metrics() {
            return Ok(());
        }
        let mut last = 0;
        let is_there = wait::until(within, || {
            last = loops::page(server).map_or(0, |page| page.sum(what));
            last >= self.count as u64
        });
        if is_there { Ok(()) } else { Err(format!("{what} is {last} instead of {}", self.count).into()) }
    }
}
