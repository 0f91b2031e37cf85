//! `cargo xtask bench disk`: latency of a hot file while the disk is busy with cold ones.
//!
//! The server lives in a cgroup with little memory and a slow disk. One load reads a set of files ten times larger
//! than that memory at random, while another requests a single file that fits. The second load should not be
//! affected. The method follows nginx's own experiment with thread pools of 2015. A third part is in [`stalls`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::{Client, wait};

use super::cgroup::{Cgroup, Limits};
use super::contestant::{Binaries, Binary, Contestant, OURS, Running, root_directive};
use super::data::{ColdSet, drop_file, forget_everything, hot_file};
use super::exec::RunPlacement;
use super::load::{Load, LoadResult};
use super::loops::{self, LoopMetrics, Loops};
use super::options::Options;
use super::plot::{Kind, Plot};
use super::report::{Report, Table, number, progress, span};
use super::{Outcome, home, stalls};

const NGINX_THREADS: &str = "nginx, aio threads";
/// The cold load begins this long before the hot one, so that the disk is busy when that begins, and ends after it.
const LEAD: Duration = Duration::from_secs(2);

/// One size of files and the loads on it.
struct Shape {
    name: &'static str,
    title: &'static str,
    file_size: usize,
    hot_connections: usize,
    cold_connections: usize,
    /// Configuration of nginx in addition to the defaults.
    nginx_http: &'static str,
    /// The load lasts this many times longer than the hot file alone: where 200 clients share the disk's bandwidth,
    /// each waits several seconds for one large file.
    load_factor: u64,
}

const SHAPES: &[Shape] = &[
    Shape {
        name: "32k",
        title: "32 KiB files, 16 hot + 64 cold connections",
        file_size: 32 << 10,
        hot_connections: 16,
        cold_connections: 64,
        nginx_http: "",
        load_factor: 1,
    },
    Shape {
        name: "4m",
        title: "4 MiB files, 50 hot + 200 cold connections",
        file_size: 4 << 20,
        hot_connections: 50,
        cold_connections: 200,
        nginx_http: "sendfile on; sendfile_max_chunk 512k;",
        load_factor: 3,
    },
];

/// Directory, servers and duration.
struct Plan {
    limits: Limits,
    data: PathBuf,
    cold_size: u64,
    seconds: u64,
    /// True if names and inodes of cold files are evicted from memory too.
    forgets_names: bool,
    server_cpu: usize,
    load_cpu: usize,
}

/// Results of one server.
struct Score {
    name: String,
    alone: LoadResult,
    loaded: LoadResult,
    cold: LoadResult,
    /// Statistics of its event loops under load, if it has metrics.
    loops: Option<Loops>,
}

/// Measures, prints, writes `disk.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    const NAMES: &[&str] = &["memory", "factor", "iops", "bandwidth", "seconds", "data"];
    let options = Options::parse(args, NAMES, &["cold-names"])?;
    let quick = options.flag("quick");
    let binaries = Binaries::find(&options)?;
    let mut report = Report::new("disk", &binaries);
    let data = options.text("data").map_or_else(|| home().join("data"), PathBuf::from);
    let shapes: Vec<&Shape> = SHAPES.iter().filter(|shape| options.wants(shape.name)).collect();
    let mut limits = Limits::parse(&options, if quick { 128 << 20 } else { 512 << 20 })?;
    if !shapes.is_empty() {
        // Says what is missing before gigabytes are written.
        limits = limits.checked(&data, &mut report)?;
    }
    let plan = Plan {
        limits,
        data,
        cold_size: limits.memory * options.number("factor", 10)?,
        seconds: options.number("seconds", if quick { 3 } else { 8 })?,
        forgets_names: options.flag("cold-names"),
        server_cpu: options.number("server-cpu", 0)?,
        load_cpu: options.number("load-cpu", 1)?,
    };
    for shape in shapes {
        let results = measure(shape, &plan, &binaries)?;
        publish(&mut report, shape, &results);
    }
    if options.wants("stalls") {
        let loads =
            stalls::Plan { seconds: plan.seconds, server_cpu: plan.server_cpu, load_cpu: plan.load_cpu };
        stalls::run(&mut report, &loads, &binaries)?;
    }
    report.finish(&options)
}

fn measure(shape: &Shape, plan: &Plan, binaries: &Binaries) -> Outcome<Vec<Score>> {
    let hot = hot_file(&plan.data, shape.name, shape.file_size)?;
    let cold = ColdSet::prepare(&plan.data, shape.file_size, plan.cold_size)?;
    let server = |name, binary: &Binary, http: &str| {
        let root = root_directive(&plan.data);
        let metrics = loops::location(binary);
        Contestant::server(name, binary, &format!("access_log off; {http}"), &format!("{root} {metrics}"))
    };
    // Ours comes last: whoever comes first may find names that nobody has looked up for long.
    let contestants = [
        server("nginx, blocking", &binaries.nginx, shape.nginx_http),
        server(NGINX_THREADS, &binaries.nginx, &format!("aio threads; {}", shape.nginx_http)),
        server(OURS, &binaries.ours, ""),
    ];
    let present = contestants.iter().filter(|contestant| contestant.is_present());
    present.map(|contestant| measure_one(contestant, shape, plan, &hot, &cold)).collect()
}

fn measure_one(
    contestant: &Contestant,
    shape: &Shape,
    plan: &Plan,
    hot: &Path,
    cold: &ColdSet,
) -> Outcome<Score> {
    progress(&format!("{}: {}", shape.title, contestant.name));
    let group = Cgroup::new(plan.limits, &plan.data)?;
    let server = contestant.start(&RunPlacement {
        cpu: Some(plan.server_cpu),
        cgroups: group.dirs(),
        ..RunPlacement::default()
    })?;

    // The page cache belongs to the cgroup that read it first: it has to be the server's.
    drop_file(hot)?;
    make_cold(cold, plan)?;
    let hot_path = format!("/hot/{}", shape.name);
    warm(&server, &hot_path, shape.file_size)?;
    let hot_load = Load {
        url: server.url(&hot_path),
        connections: shape.hot_connections,
        seconds: plan.seconds,
        script: String::new(),
        cpu: plan.load_cpu,
    };
    let alone = hot_load.run()?;

    make_cold(cold, plan)?;
    warm(&server, &hot_path, shape.file_size)?;
    let cold_load = Load {
        url: server.url("/"),
        connections: shape.cold_connections,
        seconds: plan.seconds * shape.load_factor + 2 * LEAD.as_secs(),
        script: cold.random_requests(&format!("/{}/", shape.file_size)),
        cpu: plan.load_cpu,
    };
    let cold_running = cold_load.start()?;
    wait::pause(LEAD);
    let before = LoopMetrics::by(contestant, &server)?;
    let loaded = Load { seconds: plan.seconds * shape.load_factor, ..hot_load }.run()?;
    let loops = Loops::since(before, contestant, &server)?;
    let cold = cold_running.finish()?;
    progress("");
    // The server leaves its cgroup before the group is removed.
    drop(server);
    drop(group);
    Ok(Score { name: contestant.name.clone(), alone, loaded, cold, loops })
}

fn make_cold(cold: &ColdSet, plan: &Plan) -> Outcome {
    cold.drop_from_memory()?;
    if plan.forgets_names {
        forget_everything()?;
    }
    Ok(())
}

/// Has the server read the hot file.
fn warm(server: &Running, path: &str, size: usize) -> Outcome {
    let response = Client::get(server.addr(), path)?;
    if response.status == 200 && response.body.len() == size {
        Ok(())
    } else {
        Err(format!("{}: {path}: status {}", server.name, response.status).into())
    }
}

fn publish(report: &mut Report, shape: &Shape, results: &[Score]) {
    let mut columns = vec!["hot alone", "hot under load", "share", "p50", "p99", "p99.9", "max", "cold/s"];
    columns.extend(loops::COLUMNS);
    let mut table = Table::new(shape.title, &columns);
    for result in results {
        let Score { name, alone, loaded, cold, loops } = result;
        let mut cells = vec![
            number(alone.per_second),
            number(loaded.per_second),
            number(loaded.per_second / alone.per_second),
            span(loaded.p50),
            span(loaded.p99),
            span(loaded.p999),
            span(loaded.max),
            number(cold.per_second),
        ];
        cells.extend(loops::cells(loops.as_ref()));
        table.row(name, cells);
    }
    report.case(&table, results.iter().map(Score::json).collect());
    let mut latency = Plot::new(Kind::Percentiles, format!("{}: hot file under load", shape.title), " ms");
    for result in results {
        latency.line(&result.name, result.loaded.curve());
    }
    report.plot(&latency);

    let find = |name: &str| results.iter().find(|result| result.name == name);
    let (Some(ours), Some(threads)) = (find(OURS), find(NGINX_THREADS)) else { return };
    let row = |what: &str| format!("{}: {what}", shape.name);
    let share = ours.loaded.per_second / ours.alone.per_second;
    report.target(row("hot under load / hot alone"), share);
    report.target(row("p99 under load"), ours.loaded.p99.as_secs_f64() * 1e3);
    if let Some(loops) = &ours.loops {
        loops.targets(report, shape.name);
    }
    report.target(row("cold, of nginx with threads"), ours.cold.per_second / threads.cold.per_second);
}

impl Score {
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "hot_alone": self.alone.json(),
            "hot_under_load": self.loaded.json(),
            "cold": self.cold.json(),
            "loops": self.loops.as_ref().map(Loops::json),
        })
    }
}
