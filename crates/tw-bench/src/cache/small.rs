//! Small responses on a slow disk, ten times as many as fit into memory: time to the first byte at a rate that the disk can bear.
//!
//! 90 of 100 are smaller than 60 KB. A request is due at a time that does not depend on the answers before, and its time begins
//! then, so a server that falls behind does not get fewer requests.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::random::Random;
use tw_testkit::{Client, wait};

use super::cold::Plan;
use super::contestants::{Caches, NGINX, OURS, OURS_LOG, SameDirectory};
use super::full::{Full, Limited, Part};
use crate::Outcome;
use crate::data::{drop_from_memory, forget_everything};
use crate::exec::pin;
use crate::proxy::origin::{FILE_128K, FILES, OriginFile};
use crate::report::{Report, Table, number, progress, span};
use crate::spans::Spans;

/// Responses of each kind among a hundred, and their mean size.
const SHARES: [usize; 3] = [45, 45, 10];
const MEAN: u64 = (45 * (1 << 10) + 45 * (32 << 10) + 10 * (128 << 10)) / 100;
/// Connections: a server that answers in time needs few of them.
const CONNECTIONS: usize = 32;
/// Longest time of a response: a server whose loop waits for the disk has all requests wait for all reads.
const RESPONSE_MAX: Duration = Duration::from_secs(120);
/// Requests in a second are one part in so many of the reads that the disk may do.
const RATE_SHARE: u64 = 4;

/// Results of one server.
struct Score {
    name: String,
    spans: Spans,
    per_second: f64,
    origin_requests: u64,
}

/// Measures, and adds a table and targets.
pub(super) fn run(report: &mut Report, caches: &Caches, plan: &Plan) -> Outcome {
    let limits = plan.limits.checked(&plan.data, report)?;
    let total = limits.memory * plan.factor;
    let hundreds = usize::try_from(total / MEAN)?.div_ceil(100);
    let kinds = [FILES[0], FILES[1], FILE_128K];
    let parts: Vec<Part> =
        kinds.into_iter().zip(SHARES).map(|(file, share)| Part { file, count: share * hundreds }).collect();
    let rate = limits.iops / RATE_SHARE;
    let mut results = Vec::new();
    for SameDirectory { binary, parameters, variants } in caches.on_directories() {
        let full =
            Full::make(caches, binary, parameters, &plan.data, &parts, plan.server_cpu, plan.load_cpu)?;
        for variant in variants {
            progress(&format!("small responses: {}", variant.name));
            let contestant = caches.at(variant.name, binary, &full.dir, variant.parameters, variant.http);
            let limited = full.start(&contestant, limits, plan.server_cpu)?;
            results.push(measure(variant.name, caches, &limited, &full.dir, &parts, rate, plan)?);
        }
    }
    for contestant in caches.others_on_disk(total * 3 / 2, limits.memory / 4) {
        let name = &contestant.name;
        progress(&format!("small responses: {name}"));
        let score = Limited::filled(&contestant, limits, &plan.data, &parts, plan.server_cpu, plan.load_cpu)
            .and_then(|limited| {
                measure(name, caches, &limited, limited.server.prefix.path(), &parts, rate, plan)
            });
        match score {
            Ok(score) => results.push(score),
            Err(why) => report.note(&format!("small responses: {name} is left out: {why}")),
        }
    }
    progress("");
    publish(report, &results, rate);
    Ok(())
}

/// Puts the cache in this directory out of memory, and measures its server.
fn measure(
    name: &str,
    caches: &Caches,
    limited: &Limited,
    dir: &Path,
    parts: &[Part],
    rate: u64,
    plan: &Plan,
) -> Outcome<Score> {
    drop_from_memory(dir)?;
    forget_everything()?;
    let ((spans, per_second), origin_requests) =
        caches.counted(|| load(limited.server.addr(), parts, rate, plan))?;
    Ok(Score { name: name.to_owned(), spans, per_second, origin_requests })
}

/// Sends requests at a rate. Returns their times to the first byte, and how many were answered in a second.
fn load(server: SocketAddr, parts: &[Part], rate: u64, plan: &Plan) -> Outcome<(Spans, f64)> {
    let count = usize::try_from(rate * plan.seconds)?;
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let tick = Duration::from_secs(1) / u32::try_from(rate)?;
    let all: usize = parts.iter().map(|part| part.count).sum();
    let one = |seed: usize| -> Outcome<Vec<Duration>> {
        pin(plan.load_cpu)?;
        let mut client = Client::connect(server)?.timeout(RESPONSE_MAX);
        let mut random = Random::new(seed as u64 + 1);
        let mut spans = Vec::new();
        loop {
            let nth = next.fetch_add(1, Relaxed);
            if nth >= count {
                return Ok(spans);
            }
            let due = began + tick * u32::try_from(nth)?;
            let early = due.saturating_duration_since(Instant::now());
            if !early.is_zero() {
                wait::pause(early);
            }
            let mut chosen = random.below(all);
            let mut parts = parts.iter();
            let (OriginFile { path, size }, nth) = loop {
                match parts.next() {
                    Some(part) if chosen < part.count => break (part.file, chosen),
                    Some(part) => chosen -= part.count,
                    None => return Err("no response has this number".into()),
                }
            };
            client.send(format!("GET {path}/{nth} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
            let head = client.read_head()?;
            spans.push(due.elapsed());
            if head.status != 200 || client.read_bytes(size)?.len() != size {
                return Err(format!("{path}/{nth}: not the response: {}", head.head).into());
            }
        }
    };
    let ended: Result<Vec<_>, String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|seed| scope.spawn(move || one(seed).map_err(|error| error.to_string())))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".to_owned())))
            .collect()
    });
    let spans: Vec<_> = ended?.into_iter().flatten().collect();
    let per_second = spans.len() as f64 / began.elapsed().as_secs_f64();
    Ok((Spans::new(spans), per_second))
}

fn publish(report: &mut Report, results: &[Score], rate: u64) {
    let title = format!("small responses on a slow disk, {rate} requests/s: time to the first byte");
    let mut table = Table::new(title, &["p50", "p99", "p99.9", "answered/s", "origin asked"]);
    let mut numbers = Vec::new();
    for Score { name, spans, per_second, origin_requests } in results {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| spans.percentile(share));
        table.row(
            name,
            vec![span(p50), span(p99), span(p999), number(*per_second), origin_requests.to_string()],
        );
        numbers.push(json!({
            "name": name,
            "p50_us": p50.as_micros() as u64,
            "p99_us": p99.as_micros() as u64,
            "p999_us": p999.as_micros() as u64,
            "answered_per_second": per_second,
            "origin_asked": origin_requests,
        }));
    }
    report.case(&table, Value::Array(numbers));
    let p99 = |wanted_name: &str| {
        let score = results.iter().find(|result| result.name == wanted_name);
        score.map_or(f64::NAN, |result| result.spans.percentile(0.99).as_secs_f64())
    };
    for (row, name) in [("store=log", OURS_LOG), ("store=files", OURS)] {
        let row = format!("small responses: p99 of the first byte of {row} / nginx");
        report.target(row, p99(name) / p99(NGINX));
    }
}
