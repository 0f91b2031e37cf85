//! `cargo xtask bench sharding`: the three ways to spread connections over loops, of nginx's article about socket
//! sharding, over HTTP and over TCP.
//!
//! Each request has a connection of its own. Two loops or workers run on both cores, which the load shares with them:
//! the measure is what a server makes of the same machine, how evenly, and at what cost.

use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::wait;

use super::Outcome;
use super::accept::{LOOPS, Whose};
use super::conf;
use super::contestant::{Binaries, CONF, Contestant, PREFIX, Running, hot_files, root_directive};
use super::exec::RunPlacement;
use super::load::Load;
use super::options::Options;
use super::plot::{Kind, Plot};
use super::report::{Report, Table, median, number, progress, span, spread, with_spread};
use super::sampler::Sampler;
use super::static_files::Plan;
use super::stream::load::{self, LoadTarget};
use super::usage;

const OURS: &str = "ours, default";
const OURS_REUSEPORT: &str = "ours, reuseport";
const NGINX_REUSEPORT: &str = "nginx, reuseport";

/// Name, whose, directives in `events`, parameters of `listen`.
const CASES: [(&str, Whose, &str, &str); 5] = [
    // The default of the article's time.
    ("nginx, accept_mutex on", Whose::Nginx, "accept_mutex on;", ""),
    ("nginx, accept_mutex off", Whose::Nginx, "accept_mutex off;", ""),
    (NGINX_REUSEPORT, Whose::Nginx, "", "reuseport"),
    (OURS, Whose::Ours, "", ""),
    (OURS_REUSEPORT, Whose::Ours, "", "reuseport"),
];

/// Protocol of the short connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    /// Sessions with a text of the server.
    Tcp,
    /// Sessions that send 64 bytes to a server behind and back.
    Relay,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Tcp => "TCP",
            Self::Relay => "TCP relay",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Http => "HTTP: a connection for each request of 1 KiB",
            Self::Tcp => "TCP: short sessions with a text",
            Self::Relay => "TCP relay: short sessions with a server behind",
        }
    }
}

/// One load on one server.
struct Sample {
    per_second: f64,
    mean: Duration,
    deviation: Duration,
    p99: Duration,
    /// Percentiles, for the plot.
    curve: Vec<(f64, f64)>,
    /// Processor time of the server for each connection, in microseconds, and in that of one core.
    cpu_us: f64,
    cores: f64,
    /// Percentage of the processor time of each loop.
    shares: Vec<f64>,
}

/// All loads on one server.
struct Score {
    name: &'static str,
    samples: Vec<Sample>,
}

/// Measures, prints, writes `sharding.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections"], &[])?;
    let plan = Plan::parse(&options, &[64])?;
    let binaries = Binaries::find(&options)?;
    let files = hot_files(&[("1k", 1 << 10)])?;
    let mut report = Report::new("sharding", &binaries);
    report.note(&format!(
        "{LOOPS} loops share both cores with the load. The article had 36 cores: differences in throughput are smaller here."
    ));
    let peer = Contestant::own_loop("server", "stream-peer", &[]).start(&RunPlacement::on(plan.load_cpu))?;
    let relay = format!("proxy_pass {};", peer.addr());
    for protocol in [Protocol::Http, Protocol::Tcp, Protocol::Relay] {
        let contestants: Vec<_> = CASES
            .into_iter()
            .map(|(name, whose, events, listen)| {
                let binary = if whose == Whose::Ours { &binaries.ours } else { &binaries.nginx };
                let contestant = match protocol {
                    Protocol::Http => {
                        Contestant::server(name, binary, "access_log off;", &root_directive(&files))
                            .with_loops(LOOPS, events, listen)
                    }
                    Protocol::Tcp => tcp(&binaries, name, whose, events, listen, "return OK;"),
                    Protocol::Relay => tcp(&binaries, name, whose, events, listen, &relay),
                };
                (name, contestant)
            })
            .filter(|(_, contestant)| contestant.is_present())
            .collect();
        let scores = measure(protocol, &contestants, &plan)?;
        publish(&mut report, protocol, &scores);
    }
    report.finish(&options)
}

/// A server of `stream` with these settings and this content of `server`.
fn tcp(
    binaries: &Binaries,
    name: &str,
    whose: Whose,
    events: &str,
    listen: &str,
    content: &str,
) -> Contestant {
    let (binary, own) = match whose {
        Whose::Ours => (&binaries.ours, "loop_guard enforce; master_process off;"),
        Whose::Nginx => (&binaries.nginx, "master_process on;"),
    };
    let workers = LOOPS.to_string();
    let values = [
        ("@GUARD@", own),
        ("@WORKERS@", workers.as_str()),
        ("@EVENTS@", events),
        ("@LISTEN@", listen),
        ("@SERVER@", content),
    ];
    let conf = conf::fill(conf::STREAM_WORKERS, &values);
    Contestant::other(name, &binary.path, &["-p", PREFIX, "-c", CONF], conf)
}

fn measure(
    protocol: Protocol,
    contestants: &[(&'static str, Contestant)],
    plan: &Plan,
) -> Outcome<Vec<Score>> {
    let mut scores: Vec<Score> =
        contestants.iter().map(|(name, _)| Score { name, samples: Vec::new() }).collect();
    for round in 1..=plan.rounds {
        for ((name, contestant), score) in contestants.iter().zip(&mut scores) {
            progress(&format!("{}: {name}, round {round} of {}", protocol.name(), plan.rounds));
            let running = contestant.start(&RunPlacement::default())?;
            score.samples.push(sample(protocol, &running, plan)?);
        }
    }
    progress("");
    Ok(scores)
}

fn sample(protocol: Protocol, server: &Running, plan: &Plan) -> Outcome<Sample> {
    // Its loops have started by then.
    wait::pause(Duration::from_millis(300));
    let sampler = Sampler::start(server.pid(), plan.load_cpu)?;
    let before = usage::cpu_time(server.pid())?;
    let (count, took, [mean, deviation, p99], curve) = match protocol {
        Protocol::Http => http(server, plan)?,
        Protocol::Tcp | Protocol::Relay => {
            let load = if protocol == Protocol::Tcp { load::text } else { load::connect };
            let served = load(&LoadTarget::plain(server, plan))?;
            let spans = &served.spans;
            let times = [spans.mean(), spans.deviation(), spans.percentile(0.99)];
            (served.count, served.took.as_secs_f64(), times, spans.curve())
        }
    };
    let cpu = (usage::cpu_time(server.pid())? - before).as_secs_f64();
    let shares = sampler.finish()?.cpu_shares();
    if count < 1.0 {
        return Err(format!("{}: nothing was served", server.name).into());
    }
    Ok(Sample {
        per_second: count / took,
        mean,
        deviation,
        p99,
        curve,
        cpu_us: cpu * 1e6 / count,
        cores: cpu / took,
        shares,
    })
}

/// Connections, seconds, times of a connection, and percentiles.
type HttpLoad = (f64, f64, [Duration; 3], Vec<(f64, f64)>);

fn http(server: &Running, plan: &Plan) -> Outcome<HttpLoad> {
    let load = Load {
        url: server.url("/1k"),
        connections: plan.connections.first().copied().unwrap_or(64),
        seconds: plan.seconds,
        script: "wrk.headers[\"Connection\"] = \"close\"\n".to_owned(),
        cpu: plan.load_cpu,
    };
    let served = load.run()?;
    if served.bad_status > 0 || served.socket_errors > 0 {
        return Err(format!("{}: not a measurement: {served:?}", server.name).into());
    }
    let count = served.requests as f64;
    Ok((count, count / served.per_second, [served.mean, served.deviation, served.p99], served.curve()))
}

impl Score {
    fn values(&self, number: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(number).collect()
    }

    fn median(&self, number: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(number))
    }

    fn span(&self, of: impl Fn(&Sample) -> Duration) -> Duration {
        Duration::from_secs_f64(self.median(|sample| of(sample).as_secs_f64()))
    }

    /// Shares of the loops, the busiest first: medians over the rounds.
    fn shares(&self) -> Vec<f64> {
        let sorted = |sample: &Sample| {
            let mut shares = sample.shares.clone();
            shares.sort_by(|a, b| b.total_cmp(a));
            shares
        };
        let rounds: Vec<Vec<f64>> = self.samples.iter().map(sorted).collect();
        (0..LOOPS).map(|nth| median(rounds.iter().filter_map(|shares| shares.get(nth).copied()))).collect()
    }

    /// Processor time of the busiest loop in that of the mean of all.
    fn busiest(&self) -> f64 {
        self.shares().first().map_or(f64::NAN, |share| share / 100.0 * LOOPS as f64)
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "connections_per_second": self.median(|sample| sample.per_second),
            "latency_mean_us": self.span(|sample| sample.mean).as_micros() as u64,
            "latency_deviation_us": self.span(|sample| sample.deviation).as_micros() as u64,
            "latency_p99_us": self.span(|sample| sample.p99).as_micros() as u64,
            "cpu_us_per_connection": self.median(|sample| sample.cpu_us),
            "spread": spread(self.values(|sample| sample.cpu_us)),
            "cores": self.median(|sample| sample.cores),
            "busiest_of_mean": self.busiest(),
        })
    }
}

fn publish(report: &mut Report, protocol: Protocol, scores: &[Score]) {
    let columns = ["connections/s", "latency", "deviation", "p99", "CPU µs each", "cores", "busiest of mean"];
    let mut table = Table::new(protocol.title(), &columns);
    for score in scores {
        let cells = vec![
            with_spread(&score.values(|sample| sample.per_second)),
            span(score.span(|sample| sample.mean)),
            span(score.span(|sample| sample.deviation)),
            span(score.span(|sample| sample.p99)),
            with_spread(&score.values(|sample| sample.cpu_us)),
            number(score.median(|sample| sample.cores)),
            number(score.busiest()),
        ];
        table.row(score.name, cells);
    }
    report.case(&table, scores.iter().map(Score::json).collect());

    let name = protocol.name();
    let mut latency = Plot::new(Kind::Percentiles, format!("{name}: latency of a connection"), " ms");
    let mut shares = Plot::new(Kind::Bars, format!("{name}: share of the processor time of the loops"), " %");
    for score in scores {
        if let Some(sample) = score.samples.last() {
            latency.line(score.name, sample.curve.clone());
        }
        for (nth, share) in score.shares().into_iter().enumerate() {
            shares.line(&format!("{}, loop {}", score.name, nth + 1), vec![(share, 0.0)]);
        }
    }
    report.plot(&latency);
    report.plot(&shares);

    let of = |wanted_name: &str| scores.iter().find(|score| score.name == wanted_name);
    let ratio = |number: fn(&Score) -> f64| match (of(OURS_REUSEPORT), of(NGINX_REUSEPORT)) {
        (Some(ours), Some(nginx)) => number(ours) / number(nginx),
        _ => f64::NAN,
    };
    let row = |what: &str| format!("{name}: {what} of latency, ours / nginx, both with reuseport");
    report.target(row("deviation"), ratio(|score| score.span(|sample| sample.deviation).as_secs_f64()));
    let row = |what: &str| format!("{name}: {what} of ours / nginx, both with reuseport");
    report.target(row("CPU"), ratio(|score| score.median(|sample| sample.cpu_us)));
    report.target(row("connections/s"), ratio(|score| score.median(|sample| sample.per_second)));
    if let Some(ours) = of(OURS) {
        report.target(format!("{name}: busiest loop of the mean, ours"), ours.busiest());
    }
}
