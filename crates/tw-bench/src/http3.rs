//! `cargo xtask bench h3`: cost of HTTP/3, with the same certificate, cipher and group on both sides, and segments in both.
//!
//! One server core against one load core. The clients are our own, around `quinn-proto`; they share one event loop, and each has its
//! socket. The measure is processor time of the server, which shows the cost of a request even where the load is the limit; the
//! tables tell for which share of the time the load was busy.

pub(super) mod client;
pub(super) mod clients;
mod during_download;
mod during_handshakes;
pub(super) mod frames;
mod handshakes;
mod idle;
mod load;
mod setup;

use super::Outcome;
use super::contestant::{NGINX, Running};
use super::h2load::Amount;
use super::http2::{File, Measure, OwnNumbers, Plan, Sample, compare};
use super::options::Options;
use super::report::Report;
use super::tls::Key;
use load::{Kind, Load};
use setup::{FILES, Setup};

pub(super) use setup::Certificates;

/// Responses from this size on are counted, not timed: a load ends after a number of requests instead of a second.
const LARGE_MIN: usize = 1 << 20;
const LARGE_PER_SECOND: u64 = 512;
/// Streams of a connection with large responses: more would only share its bandwidth.
const LARGE_STREAMS_MAX: usize = 2;
/// Datagrams of 100 that are lost.
const LOST_PERCENT: usize = 1;

/// Measures, prints, writes `h3.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let names = ["rounds", "seconds", "connections", "streams", "rate", "idle"];
    let options = Options::parse(args, &names, &[])?;
    let quick = options.flag("quick");
    let plan = Plan::parse(&options)?;
    let rate = options.number("rate", 500)?;
    let idle_count = options.number("idle", if quick { 100 } else { 1_000 })?;
    let setup = Setup::new(&options)?;
    let mut report = Report::new("h3", &setup.binaries);
    report.note(&format!("{NGINX} is {}", setup.binaries.nginx.library()));
    for (name, measure, lost_percent) in [
        ("1k", Measure::Cpu, 0),
        ("32k", Measure::Cpu, 0),
        ("1m", Measure::Throughput, 0),
        ("loss", Measure::Throughput, LOST_PERCENT),
    ] {
        if options.wants(name) {
            requests(&mut report, &setup, &plan, name, measure, lost_percent)?;
        }
    }
    if options.wants("handshakes") {
        for key in Key::ALL {
            handshakes::run(&mut report, &setup, &plan, key)?;
        }
    }
    if options.wants("beside") {
        during_download::run(&mut report, &setup, &plan)?;
    }
    if options.wants("storm") {
        during_handshakes::run(&mut report, &setup, &plan, rate)?;
    }
    if options.wants("idle") {
        idle::run(&mut report, &setup, idle_count)?;
    }
    report.finish(&options)
}

/// Requests for one file.
fn requests(
    report: &mut Report,
    setup: &Setup,
    plan: &Plan,
    name: &str,
    measure: Measure,
    lost_percent: usize,
) -> Outcome {
    let name = if lost_percent > 0 { "1m" } else { name };
    let row = FILES.iter().find(|(file, ..)| *file == name);
    let &(_, path, size) = row.ok_or("no such file")?;
    let (streams, amount) = match size {
        ..LARGE_MIN => (plan.streams, Amount::Seconds(plan.seconds)),
        _ => (plan.streams.min(LARGE_STREAMS_MAX), Amount::Requests(plan.seconds * LARGE_PER_SECOND)),
    };
    let mut title = format!("{name}, {} connections of {streams} streams", plan.connections);
    if lost_percent > 0 {
        title += &format!(", {lost_percent} % lost");
    }
    let sample = |server: &Running| -> Outcome<Sample> {
        let load = Load {
            server,
            tls: &setup.certificates.client,
            path,
            connections: plan.connections,
            amount,
            kind: Kind::Kept { streams },
            lost_percent,
            cpu: plan.load_cpu,
        };
        let served = load.run()?;
        let result = served.result;
        if result.requests == 0 || result.failed > 0 || result.bytes < result.requests * size as u64 {
            return Err(format!("{}: not a measurement: {result:?}", server.name).into());
        }
        let own = OwnNumbers { latencies: served.latencies, busy: served.busy };
        Ok(Sample { served: result, cpu: served.cpu, own: Some(own) })
    };
    compare(report, plan, &File { title, size, measure }, &setup.contestants(Key::EcdsaP256, ""), sample)
}
