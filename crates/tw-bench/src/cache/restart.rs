//! Restarts with a full cache: time to the first hit, and until all responses are known.
//!
//! The server is killed, not stopped, and nothing of its files is in memory afterwards.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::{Client, wait};

use super::contestants::{Caches, LOG, OURS, OURS_LOG};
use super::full::{Full, Part, TIMEOUT};
use crate::Outcome;
use crate::cgroup::{Cgroup, Limits};
use crate::contestant::Running;
use crate::data::forget_everything;
use crate::exec::RunPlacement;
use crate::proxy::origin::{FILES, OriginFile};
use crate::report::{Report, Table, number, progress, span};
use crate::usage;

use super::cold::Plan;

/// Parameters of the cache beside those of its store: a snapshot of the index every second, so that there is one when
/// the server is killed.
const SNAPSHOT: &str = "snapshot=1s";
/// Time for a snapshot of all responses.
const SNAPSHOT_TIME: Duration = Duration::from_secs(5);

/// Results of one store.
struct Score {
    name: &'static str,
    first_hit: Duration,
    all_known: Duration,
    /// Memory of the process per response in bytes, without that of a process whose cache is empty.
    memory: f64,
}

/// Measures restarts with `count` responses, and adds a table and targets.
pub(super) fn run(
    report: &mut Report,
    caches: &Caches,
    plan: &Plan,
    count: usize,
    wants: impl Fn(&str) -> bool,
) -> Outcome {
    let stores = [("restart", OURS, ""), ("restart-log", OURS_LOG, LOG)];
    let stores: Vec<_> = stores.into_iter().filter(|(case, ..)| wants(case)).collect();
    if stores.is_empty() {
        return Ok(());
    }
    let limits = plan.limits.checked(&plan.data, report)?;
    let mut results = Vec::new();
    for (_, name, store) in stores {
        let parameters = format!("{store} {SNAPSHOT}");
        let ours = &caches.binaries.ours;
        let parts = [Part { file: FILES[0], count }];
        let full = Full::make(caches, ours, &parameters, &plan.data, &parts, plan.server_cpu, plan.load_cpu)?;
        let contestant = caches.at(name, ours, &full.dir, &parameters, "");
        // Memory of a server with an empty cache.
        let empty = caches.at(name, ours, Path::new("cache"), &parameters, "");
        let empty = usage::memory(empty.start(&RunPlacement::on(plan.server_cpu))?.pid())?.private_dirty;
        // Another process, whose snapshot has all of them.
        let server = contestant.start(&RunPlacement::on(plan.server_cpu))?;
        full.until(&contestant, &server, "tailwater_cache_entries", TIMEOUT)?;
        wait::pause(SNAPSHOT_TIME);
        // The memory that loading took is free by now.
        let memory = usage::memory(server.pid())?.private_dirty.saturating_sub(empty) as f64 / count as f64;
        drop(server);
        forget_everything()?;

        progress(&format!("restart: {name}"));
        let group = Cgroup::new(limits, &full.dir)?;
        let place =
            RunPlacement { cpu: Some(plan.server_cpu), cgroups: group.dirs(), ..RunPlacement::default() };
        let began = Instant::now();
        let server = contestant.start(&place)?;
        let first_hit = first_hit(caches, &server, count, began)?;
        full.until(&contestant, &server, "tailwater_cache_entries", TIMEOUT)?;
        results.push(Score { name, first_hit, all_known: began.elapsed(), memory });
        drop(server);
    }
    progress("");
    publish(report, &results, limits, count);
    Ok(())
}

/// Requests a response from the middle of the cache. Returns the time since `began`.
fn first_hit(caches: &Caches, server: &Running, count: usize, began: Instant) -> Outcome<Duration> {
    let before = caches.origin_requests()?;
    let OriginFile { path, size } = FILES[0];
    let response = Client::get(server.addr(), &format!("{path}/{}", count / 2))?;
    let took = began.elapsed();
    if response.status != 200 || response.body.len() != size || caches.origin_requests()? > before {
        return Err(format!("{}: not a hit after a restart", server.name).into());
    }
    Ok(took)
}

fn publish(report: &mut Report, results: &[Score], limits: Limits, count: usize) {
    let title = format!("restart after a kill, {count} responses of 1 KiB");
    let mut table = Table::new(title, &["first hit", "all known", "memory B each"]);
    let mut numbers = Vec::new();
    for result in results {
        table.row(result.name, vec![span(result.first_hit), span(result.all_known), number(result.memory)]);
        numbers.push(json!({
            "name": result.name,
            "first_hit_ms": result.first_hit.as_secs_f64() * 1e3,
            "all_known_ms": result.all_known.as_secs_f64() * 1e3,
            "memory_bytes_each": result.memory,
            "iops": limits.iops,
        }));
        report.target(format!("restart, {}: first hit", result.name), result.first_hit.as_secs_f64() * 1e3);
        report.target(format!("restart, {}: all known", result.name), result.all_known.as_secs_f64() * 1e3);
        report.target(format!("restart, {}: memory for a response", result.name), result.memory);
    }
    report.case(&table, Value::Array(numbers));
}
