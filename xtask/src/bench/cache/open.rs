//! Opening of files: many small responses in thousands of directories, whose names and contents are not in memory,
//! beside a few that are.
//!
//! Opening one of the many takes two or three reads from disk, and reading it another: a server that opens files in
//! its event loop makes all its clients wait for these. The measure is the time to the first byte, of the responses
//! in memory and of all. Requests for responses in memory have a fixed rate, so a response that is late because of an
//! earlier one counts as late. The other clients keep the disk busy: each sends its next request as soon as it has
//! its response.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::{Client, wait};

use super::contestants::{Caches, NGINX_THREADS, OURS};
use super::full::{Full, Part};
use crate::bench::Outcome;
use crate::bench::cgroup::{Cgroup, Limits};
use crate::bench::contestant::{Contestant, Running};
use crate::bench::data::forget_everything;
use crate::bench::exec::pin;
use crate::bench::proxy::origin::{FILE_128K, FILES};
use crate::bench::report::{Limit, Report, Table, Target, number, progress, span};
use crate::bench::spans::Spans;

const THREADS: &str = "nginx, aio threads";
/// Path and size of the responses in memory.
const HOT: (&str, usize) = ("/1k/hot", FILES[0].1);
const HOT_COUNT: usize = 16;
/// Of ten that are not: nine are under 60 KB, as of what a content network serves.
const COLD: [(&str, usize); 10] =
    [FILES[0], FILES[1], FILES[0], FILES[1], FILES[0], FILES[1], FILES[0], FILES[1], FILES[0], FILE_128K];
const HOT_CLIENTS: usize = 4;
const COLD_CLIENTS: usize = 16;
/// Time between two requests of a client for responses in memory.
const HOT_TICK: Duration = Duration::from_millis(10);
const P99_MAX_MS: f64 = 5.0;
/// Stride coprime to every count, so that all responses are requested once before any is repeated.
const STRIDE: usize = 1_000_003;

/// Directory, servers and duration.
pub(super) struct Plan {
    pub(super) limits: Limits,
    pub(super) data: PathBuf,
    /// Bytes of all that is not in memory.
    pub(super) cold_size: u64,
    pub(super) seconds: u64,
    pub(super) server_cpu: usize,
    pub(super) load_cpu: usize,
}

/// Times to the first byte.
struct Score {
    name: &'static str,
    alone: Spans,
    hot: Spans,
    cold: Spans,
    all: Spans,
}

/// Measures, and adds a table and targets.
pub(super) fn run(report: &mut Report, caches: &Caches, plan: &Plan) -> Outcome {
    Cgroup::check(plan.limits, &plan.data)?;
    let ten_size: usize = COLD.iter().map(|(_, size)| size).sum();
    // As many of each of the ten.
    let tens = usize::try_from(plan.cold_size.div_ceil(ten_size as u64))?;
    let parts: Vec<Part<'_>> = [FILES[0], FILES[1], FILE_128K]
        .into_iter()
        .map(|file| (file, tens * COLD.len()))
        .map(|(file, count)| (file, count * COLD.iter().filter(|cold| **cold == file).count() / COLD.len()))
        .chain([(HOT, HOT_COUNT)])
        .collect();
    let (ours, nginx) = (&caches.binaries.ours, &caches.binaries.nginx);
    let mut results = Vec::new();
    for (name, binary, http) in [(THREADS, nginx, NGINX_THREADS), (OURS, ours, "")] {
        let full = Full::make(caches, binary, &plan.data, &parts, (plan.server_cpu, plan.load_cpu))?;
        let contestant = caches.at(name, binary, &full.dir, http);
        let requests = |score: &Score| (score.alone.count() + score.all.count()) as u64;
        results.push(caches.hits(name, || measure(name, &contestant, plan, &full, tens), requests)?);
    }
    publish(report, &results);
    Ok(())
}

fn measure(
    name: &'static str,
    contestant: &Contestant,
    plan: &Plan,
    full: &Full,
    tens: usize,
) -> Outcome<Score> {
    progress(&format!("opening files: {name}"));
    let limited = full.start(contestant, plan.limits, plan.server_cpu)?;
    let server = &limited.server;
    // Names and inodes too: there is no way to forget those of one directory.
    forget_everything()?;
    warm(server)?;
    let (alone, _) = load(server.addr(), plan, 0, tens)?;
    let (hot, cold) = load(server.addr(), plan, COLD_CLIENTS, tens)?;
    progress("");
    drop(limited);
    let all = Spans::new(hot.iter().chain(&cold).copied().collect());
    Ok(Score { name, alone: Spans::new(alone), hot: Spans::new(hot), cold: Spans::new(cold), all })
}

/// Makes the server read the hot responses more than once: some caches do not keep a response after one request.
fn warm(server: &Running) -> Outcome {
    for nth in 0..8 * HOT_COUNT {
        let (path, size) = (format!("{}/{}", HOT.0, nth % HOT_COUNT), HOT.1);
        let response = Client::get(server.addr(), &path)?;
        if response.status != 200 || response.body.len() != size {
            return Err(format!("{}: {path}: status {}", server.name, response.status).into());
        }
    }
    Ok(())
}

/// Requests responses in memory, and with other clients those that are not; returns the times to the first byte of
/// each.
fn load(
    server: SocketAddr,
    plan: &Plan,
    cold_clients: usize,
    tens: usize,
) -> Outcome<(Vec<Duration>, Vec<Duration>)> {
    let span = Duration::from_secs(plan.seconds);
    let hot = |client: usize, nth: usize| (format!("{}/{}", HOT.0, (client + nth) % HOT_COUNT), HOT.1);
    let cold = |client: usize, nth: usize| {
        let place = (client + nth * COLD_CLIENTS).wrapping_mul(STRIDE) % (tens * COLD.len());
        let (ten, of_ten) = (place / COLD.len(), place % COLD.len());
        let file = COLD[of_ten];
        // Its number among those of its size.
        let (before, each) = (
            COLD[..of_ten].iter().filter(|other| **other == file).count(),
            COLD.iter().filter(|other| **other == file).count(),
        );
        (format!("{}/{}", file.0, ten * each + before), file.1)
    };
    let one = |number: usize, tick: Duration, what: &(dyn Fn(usize) -> (String, usize) + Sync)| {
        // Each at its own moment.
        let begin = Instant::now() + tick * number as u32 / HOT_CLIENTS as u32;
        pin(plan.load_cpu)
            .and_then(|()| send_requests(server, (begin, begin + span), tick, what))
            .map_err(|error| error.to_string())
    };
    let origin_requests = thread::scope(|scope| {
        let (one, hot, cold) = (&one, &hot, &cold);
        let hot: Vec<_> = (0..HOT_CLIENTS)
            .map(|number| scope.spawn(move || one(number, HOT_TICK, &|nth| hot(number, nth))))
            .collect();
        let cold: Vec<_> = (0..cold_clients)
            .map(|number| scope.spawn(move || one(number, Duration::ZERO, &|nth| cold(number, nth))))
            .collect();
        let all = |threads: Vec<thread::ScopedJoinHandle<'_, Result<Vec<Duration>, String>>>| {
            let ends: Vec<_> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".to_owned())))
                .collect();
            ends.into_iter().collect::<Result<Vec<_>, _>>().map(|spans| spans.concat())
        };
        let (hot, cold) = (all(hot), all(cold));
        hot.and_then(|hot| cold.map(|cold| (hot, cold)))
    });
    Ok(origin_requests?)
}

/// One client on one connection: from when each request was due to the head of its response. Without a tick one is
/// due when the last one is answered.
fn send_requests(
    server: SocketAddr,
    (begin, end): (Instant, Instant),
    tick: Duration,
    what: &dyn Fn(usize) -> (String, usize),
) -> Outcome<Vec<Duration>> {
    let mut client = Client::connect(server)?.timeout(Duration::from_secs(120));
    let (mut spans, mut due) = (Vec::new(), begin);
    while due < end {
        wait::pause(due.saturating_duration_since(Instant::now()));
        let (path, size) = what(spans.len());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
        let head = client.read_head()?;
        spans.push(due.elapsed());
        if head.status != 200 || client.read_bytes(size)?.len() != size {
            return Err(format!("{path}: not the response: {}", head.head).into());
        }
        due = if tick.is_zero() { Instant::now() } else { due + tick };
    }
    Ok(spans)
}

fn publish(report: &mut Report, results: &[(Score, u64)]) {
    let columns = ["hot p50", "beside cold", "hot p99", "beside cold", "hot max", "beside cold"];
    let columns =
        [&columns[..], &["cold p50", "cold p99", "all p99", "cold requests", "origin asked"]].concat();
    let mut table = Table::new("time to the first byte, few in memory and many on a disk", &columns);
    let mut numbers = Vec::new();
    for (Score { name, alone, hot, cold, all }, origin_requests) in results {
        let mut cells = Vec::new();
        for share in [0.5, 0.99, 1.0] {
            cells.extend([alone, hot].map(|spans| span(spans.percentile(share))));
        }
        cells.extend(
            [(cold, 0.5), (cold, 0.99), (all, 0.99)].map(|(spans, share)| span(spans.percentile(share))),
        );
        cells.extend([number(cold.count() as f64), origin_requests.to_string()]);
        table.row(name, cells);
        let us = |spans: &Spans, share| spans.percentile(share).as_micros() as u64;
        numbers.push(json!({
            "name": name,
            "hot_alone_p99_us": us(alone, 0.99),
            "hot_p50_us": us(hot, 0.5),
            "hot_p99_us": us(hot, 0.99),
            "hot_max_us": us(hot, 1.0),
            "cold_p50_us": us(cold, 0.5),
            "cold_p99_us": us(cold, 0.99),
            "all_p99_us": us(all, 0.99),
            "hot_requests": hot.count(),
            "cold_requests": cold.count(),
            "origin_asked": origin_requests,
        }));
    }
    report.case(&table, Value::Array(numbers));

    let find = |name: &str| results.iter().map(|(score, _)| score).find(|score| score.name == name);
    let (Some(ours), Some(threads)) = (find(OURS), find(THREADS)) else { return };
    let ms = |spans: &Spans| spans.percentile(0.99).as_secs_f64() * 1e3;
    report.target(Target::new(
        "opening files: p99 in memory",
        ms(&ours.hot),
        Limit::AtMost(P99_MAX_MS),
        " ms",
    ));
    let ratio = ms(&ours.all) / ms(&threads.all);
    report.target(Target::new("opening files: p99 of all, of nginx's", ratio, Limit::AtMost(1.0), ""));
}
