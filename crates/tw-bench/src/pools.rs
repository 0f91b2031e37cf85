//! `cargo xtask bench pools`: the experiment of nginx's article about thread pools, in small.
//!
//! A cold set of 4 MiB files has ten times the memory of the server. Some clients read one hot file all the time; for
//! a while, more clients read files of the cold set at random. A server whose loops wait for the disk serves the hot
//! file no faster than the cold ones. Throughput is counted over time, and the states of the loops are sampled.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::Client;

use super::bulk::{Bulk, BulkResult};
use super::cgroup::{Cgroup, Limits};
use super::conf;
use super::contestant::{Binaries, Binary, Contestant, OURS, Running, root_directive};
use super::data::{ColdSet, drop_file, hot_file};
use super::exec::RunPlacement;
use super::loops::{self, LoopMetrics, Loops};
use super::options::Options;
use super::plot::{Kind, Plot};
use super::report::{Report, Table, number, progress, span};
use super::sampler::{LoopSamples, Sampler};
use super::spans::Spans;
use super::{Outcome, home};

const THREADS: &str = "nginx, aio threads";
const FILE_SIZE: usize = 4 << 20;
/// The article's numbers of connections.
const HOT_CLIENTS: usize = 50;
const COLD_CLIENTS: usize = 200;
/// Loops, or workers, on the core of the server. The kernel spreads connections evenly over them (`reuseport`): otherwise one
/// worker may get all that read cold files, by chance.
const LOOPS: usize = 2;
/// The cold load lasts this many times as long as the time before and after it.
const COLD_FACTOR: u64 = 4;

/// Directory, limits and times.
struct Plan {
    limits: Limits,
    data: PathBuf,
    cold_size: u64,
    /// Seconds before and after the cold load.
    seconds: u64,
    server_cpu: usize,
    load_cpu: usize,
}

impl Plan {
    /// Beginning and end of the cold load, and the end of all, in seconds.
    fn times(&self) -> (f64, f64, f64) {
        let before = self.seconds as f64;
        let cold = (self.seconds * COLD_FACTOR) as f64;
        (before, before + cold, 2.0 * before + cold)
    }
}

/// Results of one server.
struct Score {
    name: String,
    began: Instant,
    hot: BulkResult,
    cold: BulkResult,
    samples: LoopSamples,
    loops: Option<Loops>,
}

/// Measures, prints, writes `pools.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["memory", "factor", "iops", "bandwidth", "seconds", "data"], &[])?;
    let quick = options.flag("quick");
    let binaries = Binaries::find(&options)?;
    let mut report = Report::new("pools", &binaries);
    let data = options.text("data").map_or_else(|| home().join("data"), PathBuf::from);
    let limits = Limits::parse(&options, if quick { 128 << 20 } else { 512 << 20 })?;
    let limits = limits.checked(&data, &mut report)?;
    let plan = Plan {
        limits,
        cold_size: limits.memory * options.number("factor", 10)?,
        data,
        seconds: options.number("seconds", if quick { 2 } else { 6 })?,
        server_cpu: options.number("server-cpu", 0)?,
        load_cpu: options.number("load-cpu", 1)?,
    };
    hot_file(&plan.data, "4m", FILE_SIZE)?;
    let cold = ColdSet::prepare(&plan.data, FILE_SIZE, plan.cold_size)?;
    let server = |name, binary: &Binary, more: &str| {
        let content = format!("{} {}", root_directive(&plan.data), loops::location(binary));
        let http = format!("{} {more}", conf::POOLS);
        Contestant::server(name, binary, &http, &content).with_loops(LOOPS, "", "reuseport")
    };
    let contestants = [
        server("nginx, blocking", &binaries.nginx, ""),
        server(THREADS, &binaries.nginx, "aio threads;"),
        server(OURS, &binaries.ours, ""),
    ];
    let present = contestants.iter().filter(|contestant| contestant.is_present());
    let scores = present.map(|contestant| measure(contestant, &plan, &cold)).collect::<Outcome<Vec<_>>>()?;
    publish(&mut report, &plan, &scores);
    report.finish(&options)
}

fn measure(contestant: &Contestant, plan: &Plan, cold: &ColdSet) -> Outcome<Score> {
    progress(&format!("thread pools: {}", contestant.name));
    let group = Cgroup::new(plan.limits, &plan.data)?;
    let cpu = Some(plan.server_cpu);
    let server = contestant.start(&RunPlacement { cpu, cgroups: group.dirs(), ..RunPlacement::default() })?;
    // The page cache belongs to the cgroup that read it first: it has to be the server's.
    drop_file(&plan.data.join("hot/4m"))?;
    cold.drop_from_memory()?;
    warm(&server)?;

    let (cold_begin, cold_end, end) = plan.times();
    let before = LoopMetrics::by(contestant, &server)?;
    let sampler = Sampler::start(server.pid(), plan.load_cpu)?;
    let began = Instant::now();
    let load = |clients, from: f64, to: f64, path: &(dyn Fn(u64) -> String + Sync)| {
        let at = |seconds| began + Duration::from_secs_f64(seconds);
        let load =
            Bulk { server: server.addr(), clients, span: (at(from), at(to)), path, cpu: plan.load_cpu };
        load.run().map_err(|error| error.to_string())
    };
    let cold_path = |random| format!("/{FILE_SIZE}/{}", cold.name(random));
    let (hot, cold) = thread::scope(|scope| {
        let cold = scope.spawn(|| load(COLD_CLIENTS, cold_begin, cold_end, &cold_path));
        let hot = load(HOT_CLIENTS, 0.0, end, &|_| "/hot/4m".to_owned());
        (hot, cold.join().unwrap_or_else(|_| Err("the cold load panicked".to_owned())))
    });
    let samples = sampler.finish()?;
    let loops = Loops::since(before, contestant, &server)?;
    progress("");
    // The server leaves its cgroup before the group is removed.
    drop(server);
    drop(group);
    Ok(Score { name: contestant.name.clone(), began, hot: hot?, cold: cold?, samples, loops })
}

/// Has the server read the hot file.
fn warm(server: &Running) -> Outcome {
    let response = Client::get(server.addr(), "/hot/4m")?;
    if response.status == 200 && response.body.len() == FILE_SIZE {
        Ok(())
    } else {
        Err(format!("{}: /hot/4m: status {}", server.name, response.status).into())
    }
}

impl Score {
    /// Latencies of the requests for the hot file that began under load.
    fn latencies(&self, plan: &Plan) -> Spans {
        let (from, to, _) = plan.times();
        let at = |seconds| self.began + Duration::from_secs_f64(seconds);
        Spans::new(self.hot.spans(at(from), at(to)))
    }

    /// Megabytes per second of the hot file alone.
    fn alone(&self, plan: &Plan) -> f64 {
        // The first second warms up.
        self.hot.rate(self.began, (plan.seconds as f64 / 4.0).min(1.0), plan.times().0)
    }

    fn loaded(&self, plan: &Plan) -> f64 {
        let (from, to, _) = plan.times();
        self.hot.rate(self.began, from, to)
    }

    fn cold(&self, plan: &Plan) -> f64 {
        let (from, to, _) = plan.times();
        self.cold.rate(self.began, from, to)
    }

    /// Percentages of the time under load that each loop was in state D.
    fn disk_shares(&self, plan: &Plan) -> Vec<f64> {
        let (from, to, _) = plan.times();
        self.samples.disk_shares(from, to)
    }
}

fn publish(report: &mut Report, plan: &Plan, scores: &[Score]) {
    let title = format!("4 MiB files, {HOT_CLIENTS} hot + {COLD_CLIENTS} cold connections");
    let mut columns = vec![
        "hot alone MB/s",
        "hot under load",
        "share",
        "p50",
        "p99",
        "max",
        "cold MB/s",
        "loops in D state",
    ];
    columns.extend(loops::COLUMNS);
    let mut table = Table::new(title, &columns);
    let mut numbers = Vec::new();
    for score in scores {
        let alone = score.alone(plan);
        let loaded = score.loaded(plan);
        let cold = score.cold(plan);
        let latencies = score.latencies(plan);
        let shares = score.disk_shares(plan);
        let shown: Vec<String> = shares.iter().map(|share| format!("{share:.0}")).collect();
        let mut cells = vec![number(alone), number(loaded), number(loaded / alone)];
        cells.extend([0.5, 0.99, 1.0].map(|share| span(latencies.percentile(share))));
        cells.extend([number(cold), format!("{} %", shown.join(", "))]);
        cells.extend(loops::cells(score.loops.as_ref()));
        table.row(&score.name, cells);
        numbers.push(json!({
            "name": score.name,
            "hot_alone_megabytes_per_second": alone,
            "hot_under_load_megabytes_per_second": loaded,
            "cold_megabytes_per_second": cold,
            "hot_p99_us": latencies.percentile(0.99).as_micros() as u64,
            "loops_in_d_state_percent": shares,
            "loops": score.loops.as_ref().map(Loops::json),
        }));
    }
    report.case(&table, Value::Array(numbers));
    plots(report, plan, scores);

    let find = |name: &str| scores.iter().find(|score| score.name == name);
    let Some(ours) = find(OURS) else { return };
    let threads = |number: &dyn Fn(&Score) -> f64| find(THREADS).map_or(f64::NAN, number);
    report.target("hot under load / hot alone", ours.loaded(plan) / ours.alone(plan));
    let loaded = ours.loaded(plan) / threads(&|score| score.loaded(plan));
    report.target("hot under load, of nginx with threads", loaded);
    report.target("cold, of nginx with threads", ours.cold(plan) / threads(&|score| score.cold(plan)));
    let worst = ours.disk_shares(plan).into_iter().fold(f64::NAN, f64::max);
    report.target("time that loops were in D state under load", worst);
    if let Some(loops) = &ours.loops {
        loops.targets(report, "pools");
    }
}

fn plots(report: &mut Report, plan: &Plan, scores: &[Score]) {
    /// Seconds of a point in the plot of states.
    const STATE_BIN: f64 = 0.5;
    let (from, to, end) = plan.times();
    let over_time = |title: &str, unit| Plot::new(Kind::Time, title, unit).mark(from, to, "cold load");
    let mut hot = over_time("Throughput of the hot file, MB/s", "");
    let mut cold = over_time("Throughput of cold files, MB/s", "");
    let mut states = over_time("Time that loops were in D state", " %");
    let mut latency = Plot::new(Kind::Percentiles, "Latency of the hot file under load", " ms");
    for score in scores {
        hot.line(&score.name, score.hot.series(score.began));
        cold.line(&score.name, score.cold.series(score.began));
        states.line(&score.name, score.samples.disk_series(STATE_BIN, end));
        latency.line(&score.name, score.latencies(plan).curve());
    }
    for plot in [hot, states, latency, cold] {
        report.plot(&plot);
    }
}
