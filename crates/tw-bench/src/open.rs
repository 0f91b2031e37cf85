//! `cargo xtask bench open`: opening of files, after Cloudflare's article about tail latency of 2018.
//!
//! A cache has many small responses in thousands of directories, whose names and contents are not in memory, and a few
//! that are. Opening one of the many takes two or three reads from disk, and reading it another: a server that opens
//! files in its event loop makes all its clients wait for these. The measure is the time to the first byte, of the
//! responses in memory and of all. Requests for responses in memory have a fixed rate, so a response that is late
//! because of an earlier one counts as late. The other clients keep the disk busy for a while: each sends its next
//! request as soon as it has its response.

use std::ops::Range;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::{Client, wait};

use super::cache::contestants::{Caches, LOG, NGINX, NGINX_THREADS, OURS, OURS_LOG};
use super::cache::full::{Full, Part};
use super::cgroup::Limits;
use super::contestant::{Contestant, Running};
use super::data::forget_everything;
use super::exec::pin;
use super::loops::{self, LoopMetrics, Loops};
use super::options::Options;
use super::plot::{Kind, Plot};
use super::proxy::origin::{FILE_128K, FILES, OriginFile};
use super::report::{Report, Table, number, progress, span};
use super::sampler::{LoopSamples, Sampler};
use super::spans::Spans;
use super::{Outcome, home};

const THREADS: &str = "nginx, aio threads";
/// Responses in memory.
const HOT: OriginFile = OriginFile { path: "/1k/hot", ..FILES[0] };
const HOT_COUNT: usize = 16;
/// Of ten that are not: nine are under 60 KB, as of what a content network serves.
const COLD: [OriginFile; 10] =
    [FILES[0], FILES[1], FILES[0], FILES[1], FILES[0], FILES[1], FILES[0], FILES[1], FILES[0], FILE_128K];
const HOT_CLIENTS: usize = 4;
const COLD_CLIENTS: usize = 16;
/// Time between two requests of a client for responses in memory.
const HOT_TICK: Duration = Duration::from_millis(10);
/// Stride coprime to every count, so that all responses are requested once before any is repeated.
const STRIDE: usize = 1_000_003;
/// Seconds of a point in plots over time.
const BIN: f64 = 0.25;

/// Directory, servers and times.
struct Plan {
    limits: Limits,
    data: PathBuf,
    /// Tens of responses that are not in memory.
    tens: usize,
    /// Seconds before and after the load of cold ones; that lasts four times as long.
    seconds: f64,
    server_cpu: usize,
    load_cpu: usize,
}

impl Plan {
    /// Beginning and end of the cold load, and the end of all, in seconds.
    fn times(&self) -> (f64, f64, f64) {
        (self.seconds, 5.0 * self.seconds, 6.0 * self.seconds)
    }
}

/// Due time of each request, and the time from then to the head of its response.
type Sent = Vec<(Instant, Duration)>;

/// Results of one server.
struct Score {
    name: &'static str,
    began: Instant,
    hot: Sent,
    cold: Sent,
    samples: LoopSamples,
    loops: Option<Loops>,
}

/// Measures, prints, writes `open.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["memory", "factor", "iops", "bandwidth", "seconds", "data"], &[])?;
    let quick = options.flag("quick");
    let load_cpu = options.number("load-cpu", 1)?;
    let caches = Caches::find(&options, load_cpu, 0)?;
    let mut report = Report::new("open", &caches.binaries);
    let data = options.text("data").map_or_else(|| home().join("data"), PathBuf::from);
    let limits = Limits::parse(&options, if quick { 64 << 20 } else { 256 << 20 })?;
    let limits = limits.checked(&data, &mut report)?;
    let ten_size: usize = COLD.iter().map(|file| file.size).sum();
    let cold_size = limits.memory * options.number("factor", 10)?;
    let plan = Plan {
        limits,
        data,
        tens: usize::try_from(cold_size.div_ceil(ten_size as u64))?,
        seconds: options.number("seconds", if quick { 1.0 } else { 5.0 })?,
        server_cpu: options.number("server-cpu", 0)?,
        load_cpu,
    };
    // As many of each of the ten.
    let of_ten = |file: OriginFile| COLD.iter().filter(|cold| **cold == file).count();
    let parts: Vec<Part> = [FILES[0], FILES[1], FILE_128K]
        .into_iter()
        .map(|file| Part { file, count: plan.tens * of_ten(file) })
        .chain([Part { file: HOT, count: HOT_COUNT }])
        .collect();
    let ours = &caches.binaries.ours;
    let nginx = &caches.binaries.nginx;
    let mut results = Vec::new();
    for (binary, parameters, takes_part) in [
        (nginx, "", &[(NGINX, ""), (THREADS, NGINX_THREADS)][..]),
        (ours, LOG, &[(OURS_LOG, "")]),
        (ours, "", &[(OURS, "")]),
    ] {
        if binary.is_absent() {
            continue;
        }
        let full =
            Full::make(&caches, binary, parameters, &plan.data, &parts, plan.server_cpu, plan.load_cpu)?;
        for &(name, http) in takes_part {
            let contestant = caches.at(name, binary, &full.dir, parameters, http);
            let requests = |score: &Score| (score.hot.len() + score.cold.len()) as u64;
            results.push(caches.hits(name, || measure(name, &contestant, &plan, &full), requests)?);
        }
    }
    publish(&mut report, &plan, &results);
    report.finish(&options)
}

fn measure(name: &'static str, contestant: &Contestant, plan: &Plan, full: &Full) -> Outcome<Score> {
    progress(&format!("opening files: {name}"));
    let limited = full.start(contestant, plan.limits, plan.server_cpu)?;
    let server = &limited.server;
    // Names and inodes too: there is no way to forget those of one directory.
    forget_everything()?;
    warm(server)?;
    let before = LoopMetrics::by(contestant, server)?;
    let sampler = Sampler::start(server.pid(), plan.load_cpu)?;
    let began = Instant::now();
    let loaded = load(server, plan, began);
    let samples = sampler.finish()?;
    let loops = Loops::since(before, contestant, server)?;
    progress("");
    drop(limited);
    let (hot, cold) = loaded?;
    Ok(Score { name, began, hot, cold, samples, loops })
}

/// Makes the server read the hot responses more than once: some caches do not keep a response after one request.
fn warm(server: &Running) -> Outcome {
    for nth in 0..8 * HOT_COUNT {
        let path = format!("{}/{}", HOT.path, nth % HOT_COUNT);
        let size = HOT.size;
        let response = Client::get(server.addr(), &path)?;
        if response.status != 200 || response.body.len() != size {
            return Err(format!("{}: {path}: status {}", server.name, response.status).into());
        }
    }
    Ok(())
}

/// Path and size of the response that a client of the cold load requests.
fn cold_response(client: usize, nth: usize, tens: usize) -> (String, usize) {
    let place = (client + nth * COLD_CLIENTS).wrapping_mul(STRIDE) % (tens * COLD.len());
    let ten = place / COLD.len();
    let of_ten = place % COLD.len();
    let file = COLD[of_ten];
    // Its number among those of its size.
    let is_same = |other: &&OriginFile| **other == file;
    let before = COLD[..of_ten].iter().filter(is_same).count();
    let each = COLD.iter().filter(is_same).count();
    (format!("{}/{}", file.path, ten * each + before), file.size)
}

/// Requests responses in memory, and with other clients for a while those that are not.
fn load(server: &Running, plan: &Plan, began: Instant) -> Outcome<(Sent, Sent)> {
    let (cold_begin, cold_end, end) = plan.times();
    let at = |seconds| began + Duration::from_secs_f64(seconds);
    let one = |tick: Duration, time: Range<Instant>, what: &dyn Fn(usize) -> (String, usize)| {
        pin(plan.load_cpu)
            .and_then(|()| send_requests(server, time, tick, what))
            .map_err(|error| error.to_string())
    };
    let sent = thread::scope(|scope| {
        let one = &one;
        let hot: Vec<_> = (0..HOT_CLIENTS)
            .map(|client| {
                // Each at its own moment.
                let from = at(0.0) + HOT_TICK * client as u32 / HOT_CLIENTS as u32;
                let hot = move |nth| (format!("{}/{}", HOT.path, (client + nth) % HOT_COUNT), HOT.size);
                scope.spawn(move || one(HOT_TICK, from..at(end), &hot))
            })
            .collect();
        let cold: Vec<_> = (0..COLD_CLIENTS)
            .map(|client| {
                let cold = move |nth| cold_response(client, nth, plan.tens);
                scope.spawn(move || one(Duration::ZERO, at(cold_begin)..at(cold_end), &cold))
            })
            .collect();
        let all = |threads: Vec<thread::ScopedJoinHandle<'_, Result<Sent, String>>>| {
            let ends: Vec<_> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".to_owned())))
                .collect();
            ends.into_iter().collect::<Result<Vec<_>, _>>().map(|sent| sent.concat())
        };
        let hot = all(hot);
        let cold = all(cold);
        hot.and_then(|hot| cold.map(|cold| (hot, cold)))
    });
    Ok(sent?)
}

/// One client on one connection. Without a tick a request is due when the one before is answered.
fn send_requests(
    server: &Running,
    time: Range<Instant>,
    tick: Duration,
    what: &dyn Fn(usize) -> (String, usize),
) -> Outcome<Sent> {
    let mut client = Client::connect(server.addr())?.timeout(Duration::from_secs(120));
    let mut sent = Vec::new();
    let mut due = time.start;
    while due < time.end {
        wait::pause(due.saturating_duration_since(Instant::now()));
        let (path, size) = what(sent.len());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
        let head = client.read_head()?;
        sent.push((due, due.elapsed()));
        if head.status != 200 || client.read_bytes(size)?.len() != size {
            return Err(format!("{path}: not the response: {}", head.head).into());
        }
        due = if tick.is_zero() { Instant::now() } else { due + tick };
    }
    Ok(sent)
}

impl Score {
    /// Times to the first byte of the requests for responses in memory that were due in a time, in seconds.
    fn hot(&self, from: f64, to: f64) -> Spans {
        let at = |seconds| self.began + Duration::from_secs_f64(seconds);
        let range = at(from)..at(to);
        Spans::new(self.hot.iter().filter(|(due, _)| range.contains(due)).map(|(_, span)| *span).collect())
    }

    fn alone(&self, plan: &Plan) -> Spans {
        self.hot(0.0, plan.times().0)
    }

    fn loaded(&self, plan: &Plan) -> Spans {
        let (from, to, _) = plan.times();
        self.hot(from, to)
    }

    /// Times to the first byte of all requests under load.
    fn all(&self, plan: &Plan) -> Spans {
        let (from, to, _) = plan.times();
        let at = |seconds| self.began + Duration::from_secs_f64(seconds);
        let range = at(from)..at(to);
        let hot = self.hot.iter().filter(|(due, _)| range.contains(due));
        Spans::new(hot.chain(&self.cold).map(|(_, span)| *span).collect())
    }

    /// The longest time to the first byte of those due in each bin, in milliseconds.
    fn series(&self, plan: &Plan) -> Vec<(f64, f64)> {
        let bins = (plan.times().2 / BIN) as usize;
        (0..bins)
            .map(|nth| nth as f64 * BIN)
            .map(|from| (from + BIN / 2.0, self.hot(from, from + BIN)))
            .filter(|(_, spans)| spans.count() > 0)
            .map(|(at, spans)| (at, spans.percentile(1.0).as_secs_f64() * 1e3))
            .collect()
    }

    /// Percentage of the time under load that its loop was in state D.
    fn disk_share(&self, plan: &Plan) -> f64 {
        let (from, to, _) = plan.times();
        self.samples.disk_shares(from, to).into_iter().fold(f64::NAN, f64::max)
    }
}

fn publish(report: &mut Report, plan: &Plan, results: &[(Score, u64)]) {
    let mut columns = vec![
        "hot p50",
        "beside cold",
        "hot p99",
        "beside cold",
        "p99.9",
        "max",
        "all p50",
        "all p99",
        "all p99.9",
    ];
    columns.extend(["cold requests", "origin asked", "loop in D state"]);
    columns.extend(loops::COLUMNS);
    let mut table = Table::new("time to the first byte, few in memory and many on a disk", &columns);
    let mut numbers = Vec::new();
    for (score, origin_requests) in results {
        let alone = score.alone(plan);
        let loaded = score.loaded(plan);
        let all = score.all(plan);
        let shown = [
            (&alone, 0.5),
            (&loaded, 0.5),
            (&alone, 0.99),
            (&loaded, 0.99),
            (&loaded, 0.999),
            (&loaded, 1.0),
            (&all, 0.5),
            (&all, 0.99),
            (&all, 0.999),
        ];
        let mut cells: Vec<String> =
            shown.iter().map(|(spans, share)| span(spans.percentile(*share))).collect();
        cells.push(number(score.cold.len() as f64));
        cells.push(origin_requests.to_string());
        cells.push(format!("{} %", number(score.disk_share(plan))));
        cells.extend(loops::cells(score.loops.as_ref()));
        table.row(score.name, cells);
        let us = |spans: &Spans, share| spans.percentile(share).as_micros() as u64;
        numbers.push(json!({
            "name": score.name,
            "hot_alone_p99_us": us(&alone, 0.99),
            "hot_p50_us": us(&loaded, 0.5),
            "hot_p99_us": us(&loaded, 0.99),
            "hot_p999_us": us(&loaded, 0.999),
            "all_p99_us": us(&all, 0.99),
            "all_p999_us": us(&all, 0.999),
            "cold_requests": score.cold.len(),
            "origin_asked": origin_requests,
            "loop_in_d_state_percent": score.disk_share(plan),
            "loops": score.loops.as_ref().map(Loops::json),
        }));
    }
    report.case(&table, Value::Array(numbers));
    plots(report, plan, results);

    let find = |name: &str| results.iter().map(|(score, _)| score).find(|score| score.name == name);
    let Some(ours) = find(OURS) else { return };
    let ms = |spans: &Spans, share| spans.percentile(share).as_secs_f64() * 1e3;
    let loaded = ours.loaded(plan);
    report.target("p99 in memory beside cold ones", ms(&loaded, 0.99));
    report.target("p99.9 in memory beside cold ones", ms(&loaded, 0.999));
    let nginx_p99 = find(NGINX).map_or(f64::NAN, |nginx| ms(&nginx.all(plan), 0.99));
    let threads = find(THREADS).map_or(f64::NAN, |threads| ms(&threads.all(plan), 0.99));
    report.target("p99 of all, of nginx with threads", ms(&ours.all(plan), 0.99) / threads);
    if let Some(log) = find(OURS_LOG) {
        report.target("p99 of all with store=log, of nginx", ms(&log.all(plan), 0.99) / nginx_p99);
        report.target("p99 of all with store=log, of nginx with threads", ms(&log.all(plan), 0.99) / threads);
    }
    report.target("time that loops were in D state under load", ours.disk_share(plan));
    if let Some(loops) = &ours.loops {
        loops.targets(report, "open");
    }
}

fn plots(report: &mut Report, plan: &Plan, results: &[(Score, u64)]) {
    let (from, to, end) = plan.times();
    let over_time = |title: &str, unit| Plot::new(Kind::Time, title, unit).mark(from, to, "cold load");
    let mut first = over_time("Longest time to the first byte, responses in memory", " ms");
    let mut states = over_time("Time that the loop was in D state", " %");
    let mut hot =
        Plot::new(Kind::Percentiles, "Time to the first byte beside cold load, responses in memory", " ms");
    let mut all =
        Plot::new(Kind::Percentiles, "Time to the first byte beside cold load, all responses", " ms");
    for (score, _) in results {
        first.line(score.name, score.series(plan));
        states.line(score.name, score.samples.disk_series(2.0 * BIN, end));
        hot.line(score.name, score.loaded(plan).curve());
        all.line(score.name, score.all(plan).curve());
    }
    for plot in [first, states, hot, all] {
        report.plot(&plot);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn cold_responses_are_all_different_at_first() {
        let tens = 100;
        let all: BTreeSet<_> = (0..tens * COLD.len())
            .map(|nth| cold_response(nth % COLD_CLIENTS, nth / COLD_CLIENTS, tens))
            .collect();
        assert_eq!(all.len(), tens * COLD.len());
        let small = all.iter().filter(|(_, size)| *size < 60_000).count();
        assert_eq!(small, tens * 9);
    }
}
