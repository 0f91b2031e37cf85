//! Fills: cost of fetching and storing a response, and latency of hot requests meanwhile.

use std::fs::File;
use std::time::Duration;

use rustix::fs::syncfs;
use serde_json::{Value, json};
use tw_testkit::wait;

use super::contestants::{Caches, NGINX, NGINX_THREADS, OURS, OURS_LOG};
use super::fetch::fetch;
use crate::Outcome;
use crate::cgroup::written_bytes;
use crate::contestant::{Running, present};
use crate::exec::RunPlacement;
use crate::paced_client::PacedClient;
use crate::proxy::origin::{FILES, OriginFile};
use crate::report::{Report, Table, median, number, progress, span};
use crate::spans::Spans;
use crate::static_files::Plan;
use crate::usage;

const NGINX_WRITES: &str = "nginx, aio threads, aio_write";
/// Fills that are not measured.
const WARM_UP: usize = 500;
/// Time between two fills, and between two hot requests beside them: neither core is busy, so any delay is caused by
/// the other load.
const FILL_TICK: Duration = Duration::from_millis(2);
const HOT_TICK: Duration = Duration::from_millis(5);
/// Least size of the storages of Varnish and Traffic Server, and memory for the hot responses of the latter.
const STORAGE_MIN: u64 = 256 << 20;
const OTHERS_MEMORY: u64 = 256 << 20;
/// Time for work after a response was sent: its file gets its name.
const REST: Duration = Duration::from_millis(300);

/// Results of one server.
#[derive(Default)]
struct Score {
    /// Microseconds of processor time for each fill, of each round.
    cpu_us: Vec<f64>,
    /// Bytes that the disk wrote for each byte of a body, of each round; `None` if that cannot be found out.
    disk_bytes: Vec<Option<f64>>,
    alone: Spans,
    during_fills: Spans,
}

impl Score {
    /// Median of the bytes that the disk wrote for each byte of a body.
    fn amplification(&self) -> Option<f64> {
        let known_values: Option<Vec<f64>> = self.disk_bytes.iter().copied().collect();
        known_values.filter(|known_values| !known_values.is_empty()).map(median)
    }
}

/// Measures, and adds a table and targets.
pub(super) fn run(report: &mut Report, caches: &Caches, plan: &Plan, count: usize) -> Outcome {
    let threads = format!("{NGINX_THREADS} aio_write on;");
    let nginx = [caches.nginx(NGINX, ""), caches.nginx(NGINX_WRITES, &threads)];
    let mut contestants = present([caches.ours(OURS, ""), caches.ours_log()].into_iter().chain(nginx));
    // Room for everything, warm-up and fills beside hits too.
    let all = (plan.rounds + 1) * count + WARM_UP;
    let beside = plan.seconds * plan.rounds as u64 * 1000 / FILL_TICK.as_millis() as u64;
    let size = (all as u64 + beside) * FILES[1].size as u64 * 3 / 2;
    contestants.extend(caches.others_on_disk(size.max(STORAGE_MIN), OTHERS_MEMORY));
    let place = RunPlacement::on(plan.server_cpu);
    let running: Vec<Running> =
        contestants.iter().map(|contestant| contestant.start(&place)).collect::<Outcome<_>>()?;
    let mut results: Vec<Score> = running.iter().map(|_| Score::default()).collect();
    // Threads, connections and directories are there afterwards.
    let mut first = WARM_UP;
    for server in &running {
        fetch(server.addr(), FILES[1], 0..WARM_UP, Duration::ZERO, plan.load_cpu)?;
        flush_writes(server)?;
    }
    for round in 1..=plan.rounds {
        progress(&format!("fills: round {round} of {}", plan.rounds));
        for (server, result) in running.iter().zip(&mut results) {
            let cpu = usage::cpu_time(server.pid())?;
            let before = caches.origin_requests()?;
            let written_before = written_bytes(server.prefix.path()).ok();
            fetch(server.addr(), FILES[1], first..first + count, Duration::ZERO, plan.load_cpu)?;
            wait::pause(REST);
            let cpu = usage::cpu_time(server.pid())? - cpu;
            if caches.origin_requests()? - before < count as u64 {
                return Err(format!("{}: not fills", server.name).into());
            }
            result.cpu_us.push(cpu.as_secs_f64() * 1e6 / count as f64);
            flush_writes(server)?;
            let bytes = written_before.zip(written_bytes(server.prefix.path()).ok());
            let stored = (count * FILES[1].size) as f64;
            result.disk_bytes.push(bytes.map(|(before, after)| (after - before) as f64 / stored));
        }
        first += count;
    }
    let seconds = plan.seconds * plan.rounds as u64;
    for (server, result) in running.iter().zip(&mut results) {
        progress(&format!("hot hits beside fills: {}", server.name));
        (result.alone, result.during_fills) = hot(server, seconds, first, plan.load_cpu)?;
        flush_writes(server)?;
    }
    progress("");
    publish(report, &running, &results);
    Ok(())
}

/// Measures hot requests, alone and beside fills that begin with this number.
fn hot(server: &Running, seconds: u64, first: usize, cpu: usize) -> Outcome<(Spans, Spans)> {
    let OriginFile { path, size } = FILES[0];
    let span = Duration::from_secs(seconds);
    let times = |tick: Duration| usize::try_from(span.as_millis() / tick.as_millis());
    let paced_client =
        PacedClient { path, size, tick: HOT_TICK, warm_count: 10, count: times(HOT_TICK)?, tls: None };
    let send_requests = || -> Outcome<Spans> {
        Ok(paced_client.send_requests(&[(&server.name, server.addr())], cpu)?.pop().unwrap_or_default())
    };
    let alone = send_requests()?;
    let fills = first..first + times(FILL_TICK)?;
    let during_fills = std::thread::scope(|scope| {
        let filling = scope.spawn(move || {
            fetch(server.addr(), FILES[1], fills, FILL_TICK, cpu).map_err(|error| error.to_string())
        });
        let during_fills = send_requests();
        let filled = filling.join().unwrap_or_else(|_| Err("a client panicked".to_owned()));
        filled.map_err(Into::into).and(during_fills)
    })?;
    Ok((alone, during_fills))
}

/// Flushes written data, so that it does not slow down the next server.
fn flush_writes(server: &Running) -> Outcome {
    Ok(syncfs(File::open(server.prefix.path())?)?)
}

fn publish(report: &mut Report, running: &[Running], results: &[Score]) {
    let cpu = |name: &str| {
        let entry = running.iter().zip(results).find(|(server, _)| server.name == name);
        entry.map_or(f64::NAN, |(_, result)| median(result.cpu_us.iter().copied()))
    };
    let columns = [
        "CPU µs/fill",
        "of nginx",
        "disk bytes/byte",
        "hot p50",
        "beside fills",
        "hot p99",
        "beside fills",
        "hot max",
        "beside fills",
    ];
    let mut table = Table::new("fills, 32 KiB, beside hits, 1 KiB", &columns);
    let mut numbers = Vec::new();
    for (server, result) in running.iter().zip(results) {
        let mut cells = vec![
            number(cpu(&server.name)),
            number(cpu(&server.name) / cpu(NGINX)),
            result.amplification().map_or_else(|| "—".to_owned(), number),
        ];
        for share in [0.5, 0.99, 1.0] {
            cells.extend([&result.alone, &result.during_fills].map(|spans| span(spans.percentile(share))));
        }
        table.row(&server.name, cells);
        let us = |spans: &Spans, share| spans.percentile(share).as_micros() as u64;
        numbers.push(json!({
            "name": server.name,
            "cpu_us_per_fill": result.cpu_us,
            "disk_bytes_per_byte": result.amplification(),
            "hot_requests": result.during_fills.count(),
            "hot_p50_us": us(&result.alone, 0.5),
            "hot_p99_us": us(&result.alone, 0.99),
            "hot_beside_p50_us": us(&result.during_fills, 0.5),
            "hot_beside_p99_us": us(&result.during_fills, 0.99),
        }));
    }
    report.case(&table, Value::Array(numbers));
    let ratio = cpu(OURS) / cpu(NGINX);
    report.target("fills: CPU of ours / nginx", ratio);
    let log = running.iter().zip(results).find(|(server, _)| server.name == OURS_LOG);
    if let Some((_, log)) = log {
        report.target("fills: CPU of ours with store=log / nginx", cpu(OURS_LOG) / cpu(NGINX));
        if let Some(amplification) = log.amplification() {
            report.target("fills: bytes that the disk writes for a stored byte, store=log", amplification);
        }
    }
    if let Some(ours) = results.first() {
        let ms = ours.during_fills.percentile(0.99).as_secs_f64() * 1e3;
        report.target("hits beside fills: p99", ms);
    }
}
