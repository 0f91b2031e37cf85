//! `cargo xtask bench cache`: one core for a caching proxy; the origin behind it and the load share the other one.
//!
//! Measured are hits in memory, and hits in memory beside reads from a slow disk, beside fills, and beside many
//! simultaneous requests for one missing response. The request counter of the origin shows whether requests really
//! were hits.
//!
//! `--endurance` measures what a cache of years lives from, in one run: restarts and memory for each response, cold hits and small
//! responses on a slow disk, fills with the bytes that the disk writes, and hit ratios. Servers that are not installed, or fail, are
//! left out by name; the numbers are in `cache-endurance.json`.

mod cold;
pub(super) mod contestants;
mod crowd;
mod fetch;
mod fills;
pub(super) mod full;
mod hits;
mod restart;
mod small;

use std::path::PathBuf;

use self::contestants::Caches;
use super::cgroup::Limits;
use super::options::Options;
use super::report::{Report, progress};
use super::static_files::Plan;
use super::{Outcome, hit_ratio, home};

/// Cases of `--endurance`.
const ENDURANCE: &[&str] = &["restart", "restart-log", "cold", "small", "fills", HIT_RATIO];
const HIT_RATIO: &str = "hit-ratio";

/// Measures, prints, writes `cache.json` or `cache-endurance.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    const NAMES: &[&str] = &[
        "rounds",
        "seconds",
        "connections",
        "memory",
        "factor",
        "iops",
        "bandwidth",
        "data",
        "fills",
        "clients",
        "object",
        "objects",
    ];
    let options = Options::parse(args, NAMES, &["cold-names", "endurance"])?;
    let endurance = options.flag("endurance");
    let wants = |case: &str| match endurance {
        true => ENDURANCE.contains(&case) && options.wants(case),
        // Only if they are named: one takes minutes, the other has a command of its own.
        false if case == "small" || case == HIT_RATIO => {
            options.text("only").is_some() && options.wants(case)
        }
        false => options.wants(case),
    };
    let quick = options.flag("quick");
    let plan = Plan::parse(&options, &[64])?;
    let limits = Limits::parse(&options, if quick { 128 << 20 } else { 512 << 20 })?;
    let cold = cold::Plan {
        limits,
        data: options.text("data").map_or_else(|| home().join("data"), PathBuf::from),
        factor: options.number("factor", 10)?,
        // The disk takes longer than a round to show what it does to others.
        seconds: 2 * plan.seconds,
        // No machine has the names of all files of a large cache in memory.
        forgets_names: endurance || options.flag("cold-names"),
        server_cpu: plan.server_cpu,
        load_cpu: plan.load_cpu,
    };
    let fill_count = options.number("fills", if quick { 1_000 } else { 10_000 })?;
    let crowd = crowd::Plan {
        clients: options.number("clients", if quick { 200 } else { 1_000 })?,
        size: options.size("object", if quick { 10 << 20 } else { 100 << 20 })?,
        server_cpu: plan.server_cpu,
        load_cpu: plan.load_cpu,
    };

    let caches = Caches::find(&options, plan.load_cpu, crowd.size)?;
    let mut report = Report::new("cache", &caches.binaries);
    if endurance {
        report = report.in_file("cache-endurance");
    }
    if caches.binaries.nginx.is_absent() {
        report.note("no nginx: left out");
    }
    for (other, name) in [(&caches.varnish, "varnishd"), (&caches.traffic_server, "traffic_server")] {
        match other {
            Some(other) => report.note(&other.version),
            None => report.note(&format!("no {name}: left out")),
        }
    }
    for &connections in &plan.connections {
        for shape in hits::SHAPES.iter().filter(|shape| wants(shape.name)) {
            hits::run(&mut report, &caches, &plan, connections, shape)?;
        }
    }
    let count = options.number("objects", if quick { 2_000 } else { 100_000 })?;
    restart::run(&mut report, &caches, &cold, count, wants)?;
    if wants("small") {
        small::run(&mut report, &caches, &cold)?;
    }
    if wants("cold") {
        cold::run(&mut report, &caches, cold)?;
    }
    if wants("fills") {
        fills::run(&mut report, &caches, &plan, fill_count)?;
    }
    if wants("crowd") {
        crowd::run(&mut report, &caches, &crowd)?;
    }
    if wants(HIT_RATIO) {
        progress("hit ratios");
        let (requests, objects) = hit_ratio::sizes(quick);
        hit_ratio::each_table(requests, objects, |table, numbers| {
            progress("");
            report.case(table, numbers);
        });
    }
    report.finish(&options)
}
