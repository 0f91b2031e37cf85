//! `cargo xtask bench stream`: one core relays TCP and UDP; the server behind the relay and the load share the other one.
//!
//! The measure is processor time of the relay: per connection, per message, per datagram, and per byte of a large transfer.
//! A bare relay, which copies what it reads, is the limit for messages.

mod contestants;
pub(super) mod load;
pub(super) mod peer;

use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::wait;

use self::contestants::{Relays, Want};
use self::load::{LoadTarget, Served};
use super::Outcome;
use super::contestant::{Contestant, NGINX, OURS, Running};
use super::exec::{Pages, RunPlacement, raise_open_files};
use super::options::Options;
use super::report::{Report, Table, median, number, progress, span, spread, with_spread};
use super::spans::Spans;
use super::static_files::Plan;
use super::usage;

/// Descriptors for a relay in addition to two for each connection.
const SPARE_FILES: u64 = 1_000;
/// Connections opened and closed before the first measurement of memory.
const WARM_COUNT: usize = 100;
/// Time for a relay to put its last connections to rest.
const REST: Duration = Duration::from_millis(500);
/// Large transfers beside small messages.
const BULK_COUNT: usize = 10;

/// A load.
struct Case {
    name: &'static str,
    title: &'static str,
    /// Unit of which the cost is told.
    unit: &'static str,
    load: fn(&LoadTarget<'_>) -> Outcome<Served>,
    want: Want,
}

/// Bytes of a transfer are counted in millions.
const MEGABYTE: f64 = 1e6;

const CASES: [Case; 7] = [
    Case { name: "transfer", title: "one large transfer", unit: "MB", load: load::transfer, want: Want::Tcp },
    Case {
        name: "connect",
        title: "connect, 64 bytes each way, close",
        unit: "connection",
        load: load::connect,
        want: Want::Tcp,
    },
    Case {
        name: "message",
        title: "64 bytes each way on open connections",
        unit: "message",
        load: load::message,
        want: Want::Tcp,
    },
    Case {
        name: "udp",
        title: "datagrams of 64 bytes and their echo",
        unit: "datagram",
        load: load::datagram,
        want: Want::Udp,
    },
    Case {
        name: "tls",
        title: "one large transfer over TLS",
        unit: "MB",
        load: load::tls_transfer,
        want: Want::Tls,
    },
    Case {
        name: "tls-message",
        title: "64 bytes each way on open connections over TLS",
        unit: "message",
        load: load::tls_message,
        want: Want::Tls,
    },
    Case {
        name: "tls-connect",
        title: "resumed handshake, 64 bytes each way, close",
        unit: "connection",
        load: load::tls_connect,
        want: Want::Tls,
    },
];

/// One load on one relay.
struct Sample {
    served: Served,
    cpu: Duration,
}

/// All loads on one relay.
struct Score {
    name: String,
    samples: Vec<Sample>,
}

/// Measures, prints, writes `stream.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections", "haproxy", "relays"], &[])?;
    let quick = options.flag("quick");
    let plan = Plan::parse(&options, &[64])?;
    let count = options.number("relays", if quick { 1_000 } else { 100_000 })?;
    let relays = Relays::find(&options, plan.load_cpu)?;
    let mut report = Report::new("stream", &relays.binaries);
    match &relays.haproxy {
        Some(haproxy) => report.note(&haproxy.version),
        None => report.note("no haproxy on the PATH: left out"),
    }
    for case in CASES.iter().filter(|case| options.wants(case.name)) {
        costs(&mut report, case, &relays, &plan)?;
    }
    if options.wants("beside") {
        beside(&mut report, &relays, &plan)?;
    }
    if options.wants("idle") {
        idle(&mut report, &relays, count)?;
    }
    report.finish(&options)
}

/// Processor time of each relay for a load, in alternating rounds.
fn costs(report: &mut Report, case: &Case, relays: &Relays, plan: &Plan) -> Outcome {
    let contestants = relays.all(&case.want);
    let place = RunPlacement::on(plan.server_cpu);
    let running: Vec<Running> =
        contestants.iter().map(|contestant| contestant.start(&place)).collect::<Outcome<_>>()?;
    let mut scores: Vec<Score> =
        contestants.iter().map(|one| Score { name: one.name.clone(), samples: Vec::new() }).collect();
    for round in 1..=plan.rounds {
        for (server, score) in running.iter().zip(&mut scores) {
            progress(&format!("{}: round {round} of {}, {}", case.title, plan.rounds, server.name));
            let before = usage::cpu_time(server.pid())?;
            let served = (case.load)(&LoadTarget { server, plan, tls: Some(&relays.tls) })?;
            let cpu = usage::cpu_time(server.pid())?.saturating_sub(before);
            if served.count < 1.0 {
                return Err(format!("{}: {}: nothing was served", case.title, server.name).into());
            }
            score.samples.push(Sample { served, cpu });
        }
    }
    progress("");
    publish(report, case, &scores);
    Ok(())
}

impl Score {
    /// Microseconds of processor time for each unit.
    fn cpu_us(&self) -> f64 {
        median(self.cpu_values())
    }

    fn cpu_values(&self) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.cpu.as_secs_f64() * 1e6 / sample.served.count).collect()
    }

    fn per_second(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.served.count / sample.served.took.as_secs_f64()))
    }

    fn p99(&self) -> Duration {
        let seconds = self.samples.iter().map(|sample| sample.served.spans.percentile(0.99).as_secs_f64());
        Duration::from_secs_f64(median(seconds))
    }
}

fn publish(report: &mut Report, case: &Case, scores: &[Score]) {
    let cpu = format!("CPU µs/{}", case.unit);
    let mut table = Table::new(case.title, &[&cpu, "of nginx", &format!("{}s/s", case.unit), "p99"]);
    let nginx = scores.iter().find(|score| score.name == NGINX).map_or(f64::NAN, Score::cpu_us);
    for score in scores {
        let cells = vec![
            with_spread(&score.cpu_values()),
            number(score.cpu_us() / nginx),
            number(score.per_second()),
            span(score.p99()),
        ];
        table.row(&score.name, cells);
    }
    let numbers = scores.iter().map(|score| {
        json!({
            "name": score.name,
            "cpu_us_each": score.cpu_us(),
            "spread": spread(score.cpu_values()),
            "per_second": score.per_second(),
            "p99_us": score.p99().as_micros() as u64,
        })
    });
    report.case(&table, Value::Array(numbers.collect()));
    let ours = scores.iter().find(|score| score.name == OURS).map_or(f64::NAN, Score::cpu_us);
    let what = format!("{}: CPU of {OURS} / {NGINX}", case.title);
    report.target(what, ours / nginx);
}

/// Small messages beside large transfers.
fn beside(report: &mut Report, relays: &Relays, plan: &Plan) -> Outcome {
    let title = format!("200 messages/s beside {BULK_COUNT} large transfers");
    let mut table = Table::new(&title, &["p50", "p99", "longest", "MB/s beside"]);
    let mut numbers = Vec::new();
    for contestant in relays.all(&Want::Tcp) {
        let running = contestant.start(&RunPlacement::on(plan.server_cpu))?;
        progress(&format!("{title}: {}", running.name));
        let seconds = plan.seconds * plan.rounds as u64;
        let (spans, bytes) = load::beside(&running, BULK_COUNT, Duration::from_secs(seconds), plan.load_cpu)?;
        let at = |share: f64| spans.percentile(share);
        let speed = bytes / MEGABYTE / seconds as f64;
        table.row(&running.name, vec![span(at(0.5)), span(at(0.99)), span(at(1.0)), number(speed)]);
        numbers.push(json!({
            "name": running.name,
            "p99_us": at(0.99).as_micros() as u64,
            "megabytes_per_second": speed,
        }));
        if running.name == OURS {
            let ms = at(0.99).as_secs_f64() * 1e3;
            report.target(format!("{title}: p99"), ms);
        }
    }
    progress("");
    report.case(&table, Value::Array(numbers));
    Ok(())
}

/// Memory of relays through which bytes went once in both directions.
fn idle(report: &mut Report, relays: &Relays, wanted_number: usize) -> Outcome {
    let files_max = raise_open_files()?;
    // This process has one for each, the server behind the relay one, and the relay two; HAProxy wants room for half of
    // one more.
    let room = usize::try_from(files_max.saturating_sub(SPARE_FILES) * 2 / 5).unwrap_or(usize::MAX);
    // Ports of one address.
    let count = wanted_number.min(room).min(25_000);
    if count < wanted_number {
        report.note(&format!(
            "{count} idle relays instead of {wanted_number}: descriptors and ports of one address"
        ));
    }
    let mut table = Table::new(format!("{count} idle relays"), &["B each", "resident B each"]);
    let mut numbers = Vec::new();
    for contestant in relays.all(&Want::Connections(2 * (count + WARM_COUNT))) {
        let (dirty, resident) = idle_memory(&contestant, count)?;
        table.row(&contestant.name, vec![number(dirty), number(resident)]);
        numbers.push(json!({ "name": contestant.name, "private_dirty_bytes_each": dirty }));
        if contestant.name == OURS {
            report.target("memory of an idle relay", dirty);
        }
    }
    progress("");
    report.case(&table, Value::Array(numbers));
    Ok(())
}

fn idle_memory(contestant: &Contestant, count: usize) -> Outcome<(f64, f64)> {
    let running = contestant.start(&RunPlacement { pages: Pages::Small, ..RunPlacement::default() })?;
    progress(&format!("{}: {count} idle relays", running.name));
    drop(load::open(&running, WARM_COUNT)?);
    wait::pause(REST);
    let before = usage::memory(running.pid())?;
    let connections = load::open(&running, count)?;
    wait::pause(REST);
    let after = usage::memory(running.pid())?;
    drop(connections);
    let each = |after: u64, before: u64| (after as f64 - before as f64) / count as f64;
    Ok((each(after.private_dirty, before.private_dirty), each(after.resident, before.resident)))
}

/// Spans of a load that counts none.
fn no_spans() -> Spans {
    Spans::default()
}
