//! Hot hits while cold ones are requested, ten times as many as fit into memory, on a slow disk.
//!
//! Each server first fetches everything without limits, and is then restarted in a cgroup, so that the pages it reads
//! belong to that group. Compare `bench disk`, which does the same with files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::{Client, wait};

use super::contestants::{
    Caches, NGINX_WITH_THREADS, OURS, OURS_DIRECT, OURS_LOG, SameDirectory, TRAFFIC_SERVER,
};
use super::full::{Full, Limited, Part};
use crate::Outcome;
use crate::cgroup::Limits;
use crate::contestant::{Contestant, Running};
use crate::data::{drop_from_memory, forget_everything};
use crate::load::{Load, LoadResult};
use crate::loops::{self, LoopMetrics, Loops};
use crate::plot::{Kind, Plot};
use crate::proxy::origin::{FILES, OriginFile};
use crate::report::{Report, Table, number, progress, span};

/// Path of the only hot response.
const HOT_BELOW: &str = "/32k/hot";
const HOT: &str = "/32k/hot/0";
const HOT_CONNECTIONS: usize = 16;
const COLD_CONNECTIONS: usize = 64;
/// The cold load begins this long before the hot one, so that the disk is busy when that begins, and ends after it.
const LEAD: Duration = Duration::from_secs(2);

/// Directory, servers and duration.
pub(super) struct Plan {
    pub(super) limits: Limits,
    pub(super) data: PathBuf,
    /// Size of the cold responses, in memories.
    pub(super) factor: u64,
    pub(super) seconds: u64,
    /// True if names and inodes of cold files are evicted from memory too.
    pub(super) forgets_names: bool,
    pub(super) server_cpu: usize,
    pub(super) load_cpu: usize,
}

/// Results of one server.
struct Score {
    name: String,
    alone: LoadResult,
    loaded: LoadResult,
    cold: LoadResult,
    loops: Option<Loops>,
}

/// Measures, and adds a table and targets.
pub(super) fn run(report: &mut Report, caches: &Caches, mut plan: Plan) -> Outcome {
    plan.limits = plan.limits.checked(&plan.data, report)?;
    let plan = &plan;
    let count = usize::try_from((plan.limits.memory * plan.factor).div_ceil(FILES[1].size as u64))?;
    let mut results = Vec::new();
    let hot = OriginFile { path: HOT_BELOW, ..FILES[1] };
    let parts = [Part { file: FILES[1], count }, Part { file: hot, count: 1 }];
    for SameDirectory { binary, parameters, variants } in caches.on_directories() {
        let full =
            Full::make(caches, binary, parameters, &plan.data, &parts, plan.server_cpu, plan.load_cpu)?;
        for variant in variants {
            let contestant = caches.at(variant.name, binary, &full.dir, variant.parameters, variant.http);
            let requests = |score: &Score| score.alone.requests + score.loaded.requests + score.cold.requests;
            let measure = || {
                let limited = full.start(&contestant, plan.limits, plan.server_cpu)?;
                measure(&contestant, plan, &limited, &full.dir, count)
            };
            results.push(caches.hits(variant.name, measure, requests)?);
        }
    }
    let total = plan.limits.memory * plan.factor;
    for contestant in caches.others_on_disk(total * 3 / 2, plan.limits.memory / 4) {
        progress(&format!("cold hits: {}", contestant.name));
        let score =
            Limited::filled(&contestant, plan.limits, &plan.data, &parts, plan.server_cpu, plan.load_cpu)
                .and_then(|limited| {
                    caches
                        .counted(|| measure(&contestant, plan, &limited, limited.server.prefix.path(), count))
                });
        match score {
            Ok(score) => results.push(score),
            Err(why) => report.note(&format!("cold hits: {} is left out: {why}", contestant.name)),
        }
    }
    progress("");
    publish(report, &results);
    Ok(())
}

/// Measures a server whose cache is in this directory.
fn measure(
    contestant: &Contestant,
    plan: &Plan,
    limited: &Limited,
    dir: &Path,
    count: usize,
) -> Outcome<Score> {
    let name = &contestant.name;
    progress(&format!("cold hits: {name}"));
    let server = &limited.server;
    // The page cache belongs to the cgroup that read it first: it has to be the server's.
    make_cold(dir, plan)?;
    warm(server)?;
    let hot_load = Load {
        url: server.url(HOT),
        connections: HOT_CONNECTIONS,
        seconds: plan.seconds,
        script: String::new(),
        cpu: plan.load_cpu,
    };
    let alone = hot_load.run()?;

    make_cold(dir, plan)?;
    warm(server)?;
    let cold_load = Load {
        url: server.url("/"),
        connections: COLD_CONNECTIONS,
        seconds: plan.seconds + 2 * LEAD.as_secs(),
        script: random_requests(count),
        cpu: plan.load_cpu,
    };
    let cold_running = cold_load.start()?;
    wait::pause(LEAD);
    let before = LoopMetrics::by(contestant, server)?;
    let loaded = hot_load.run()?;
    let loops = Loops::since(before, contestant, server)?;
    let cold = cold_running.finish()?;
    for (what, served) in [("alone", &alone), ("under load", &loaded), ("cold", &cold)] {
        if served.bad_status > 0 || served.socket_errors > 0 {
            return Err(format!("{name}, {what}: not a measurement: {served:?}").into());
        }
    }
    Ok(Score { name: name.clone(), alone, loaded, cold, loops })
}

/// Lua for `wrk`: each request takes any of the responses.
fn random_requests(count: usize) -> String {
    let path = FILES[1].path;
    format!(
        "math.randomseed(os.time())
request = function()
    return wrk.format(\"GET\", string.format(\"{path}/%d\", math.random(0, {})))
end
",
        count - 1
    )
}

fn make_cold(dir: &Path, plan: &Plan) -> Outcome {
    drop_from_memory(dir)?;
    if plan.forgets_names {
        forget_everything()?;
    }
    Ok(())
}

/// Makes the server read the hot responses.
fn warm(server: &Running) -> Outcome {
    let response = Client::get(server.addr(), HOT)?;
    if response.status == 200 && response.body.len() == FILES[1].size {
        Ok(())
    } else {
        Err(format!("{}: {HOT}: status {}", server.name, response.status).into())
    }
}

fn publish(report: &mut Report, results: &[(Score, u64)]) {
    let title = format!("hits, 32 KiB, {HOT_CONNECTIONS} hot + {COLD_CONNECTIONS} cold connections");
    let mut columns = vec![
        "hot alone",
        "hot under load",
        "share",
        "p50",
        "p99",
        "p99.9",
        "max",
        "cold/s",
        "cold p99",
        "origin asked",
    ];
    columns.extend(loops::COLUMNS);
    let mut table = Table::new(title, &columns);
    for (Score { name, alone, loaded, cold, loops }, origin_requests) in results {
        let mut cells = vec![
            number(alone.per_second),
            number(loaded.per_second),
            number(loaded.per_second / alone.per_second),
            span(loaded.p50),
            span(loaded.p99),
            span(loaded.p999),
            span(loaded.max),
            number(cold.per_second),
            span(cold.p99),
            origin_requests.to_string(),
        ];
        cells.extend(loops::cells(loops.as_ref()));
        table.row(name, cells);
    }
    let numbers = results.iter().map(|(result, origin_requests)| {
        json!({
            "name": result.name,
            "hot_alone": result.alone.json(),
            "hot_under_load": result.loaded.json(),
            "cold": result.cold.json(),
            "origin_asked": origin_requests,
            "loops": result.loops.as_ref().map(Loops::json),
        })
    });
    report.case(&table, Value::Array(numbers.collect()));
    let mut latency = Plot::new(Kind::Percentiles, "Hot hits beside cold ones", " ms");
    for (result, _) in results {
        latency.line(&result.name, result.loaded.curve());
    }
    report.plot(&latency);

    let find = |name: &str| results.iter().map(|(score, _)| score).find(|score| score.name == name);
    let (Some(ours), Some(threads)) = (find(OURS), find(NGINX_WITH_THREADS)) else { return };
    let share = ours.loaded.per_second / ours.alone.per_second;
    report.target("hits: hot under load / hot alone", share);
    let ms = ours.loaded.p99.as_secs_f64() * 1e3;
    report.target("hits: p99 under load", ms);
    if let Some(loops) = &ours.loops {
        loops.targets(report, "hits");
    }
    report.target("cold hits, of nginx with threads", ours.cold.per_second / threads.cold.per_second);
    if let Some(direct) = find(OURS_DIRECT) {
        report.target("cold hits with direct=on, per second", direct.cold.per_second);
    }
    if let Some(log) = find(OURS_LOG) {
        report.target("cold hits with store=log, per second", log.cold.per_second);
        report.target(
            "cold hits with store=log, of nginx with threads",
            log.cold.per_second / threads.cold.per_second,
        );
        let traffic_server = find(TRAFFIC_SERVER).map_or(f64::NAN, |score| score.cold.per_second);
        report.target("cold hits with store=log, of Traffic Server", log.cold.per_second / traffic_server);
    }
}
