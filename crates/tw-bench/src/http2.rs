//! `cargo xtask bench h2`: cost of HTTP/2, plain and over TLS with the same certificate and cipher on both sides.
//!
//! One server core against one load core. Requests come from `h2load`, many streams on each connection; clients of
//! our own send requests beside a large download, and hold waiting streams. The measure is processor time of the
//! server, which shows the cost of a request even where the load is the limit.

mod during_download;
mod idle;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::tls::{Authority, Certificate};
use tw_testkit::{TempDir, wait};

use super::Outcome;
use super::conf;
use super::contestant::{
    Binaries, Binary, Contestant, NGINX, OURS, Running, hot_files, present, root_directive,
};
use super::exec::RunPlacement;
use super::h2load::{Amount, Load, LoadResult};
use super::options::Options;
use super::report::{Report, Table, median, number, progress, span, spread, with_spread};
use super::spans::Spans;
use super::usage;

/// Names, paths and sizes of the files; the last one is the large download.
const FILES: [(&str, &str, usize); 4] =
    [("1k", "/1k", 1 << 10), ("32k", "/32k", 32 << 10), ("1m", "/1m", 1 << 20), ("64m", "/64m", 64 << 20)];
/// Responses from this size on are counted, not timed: a load ends after a number of requests instead of a second.
const LARGE_MIN: usize = 1 << 20;
const LARGE_PER_SECOND: u64 = 1024;

/// Transport of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Tcp,
    /// TCP, with files sent by the kernel (`sendfile`).
    TcpSendfile,
    Tls,
}

impl Over {
    const ALL: [Self; 3] = [Self::Tcp, Self::TcpSendfile, Self::Tls];

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "plain",
            Self::TcpSendfile => "plain, sendfile",
            Self::Tls => "TLS 1.3",
        }
    }
}

/// Servers under measurement, with their common settings.
struct Setup {
    binaries: Binaries,
    /// Certificate and key; removed at the end.
    dir: TempDir,
    files: PathBuf,
}

impl Setup {
    fn new(options: &Options) -> Outcome<Self> {
        let setup = Self {
            binaries: Binaries::find(options)?,
            dir: TempDir::new("certificates")?,
            files: hot_files(&FILES.map(|(name, _, size)| (name, size)))?,
        };
        let Certificate { pem, key } = Authority::new().certify(&["localhost"]);
        setup.dir.write("crt", pem)?;
        setup.dir.write("key", key)?;
        Ok(setup)
    }

    /// Both servers, with additional directives for `http`.
    fn contestants(&self, over: Over, http: &str) -> Vec<Contestant> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let own = match over {
            Over::Tcp => String::new(),
            Over::TcpSendfile => conf::SENDFILE.to_owned(),
            Over::Tls => {
                format!(
                    "ssl_certificate \"{}\"; ssl_certificate_key \"{}\"; {}",
                    file("crt"),
                    file("key"),
                    conf::TLS
                )
            }
        };
        let server = format!("http2 on; {own} {}", root_directive(&self.files));
        let contestant = |name, binary: &Binary| {
            let contestant = Contestant::server(name, binary, &format!("access_log off; {http}"), &server);
            match over {
                Over::Tcp | Over::TcpSendfile => contestant,
                Over::Tls => contestant.with_tls(),
            }
        };
        present([contestant(OURS, &self.binaries.ours), contestant(NGINX, &self.binaries.nginx)])
    }
}

/// Duration and directory.
pub(super) struct Plan {
    pub(super) rounds: usize,
    pub(super) seconds: u64,
    pub(super) connections: usize,
    pub(super) streams: usize,
    pub(super) server_cpu: usize,
    pub(super) load_cpu: usize,
}

impl Plan {
    /// Reads the options that benchmarks of streams have.
    pub(super) fn parse(options: &Options) -> Outcome<Self> {
        let quick = options.flag("quick");
        Ok(Self {
            rounds: options.number("rounds", if quick { 2 } else { 5 })?,
            seconds: options.number("seconds", if quick { 1 } else { 4 })?,
            connections: options.number("connections", 64)?,
            streams: options.number("streams", 16)?,
            server_cpu: options.number("server-cpu", 0)?,
            load_cpu: options.number("load-cpu", 1)?,
        })
    }
}

/// Measure that is compared with nginx.
#[derive(Debug, Clone, Copy)]
pub(super) enum Measure {
    /// Processor time for a request.
    Cpu,
    /// Bytes in a second.
    Throughput,
}

/// Measures, prints, writes `h2.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections", "streams", "idle"], &[])?;
    let quick = options.flag("quick");
    let plan = Plan::parse(&options)?;
    let idle_count = options.number("idle", if quick { 100 } else { 1_000 })?;
    let setup = Setup::new(&options)?;
    let mut report = Report::new("h2", &setup.binaries);
    for over in Over::ALL {
        for (name, measure) in [("1k", Measure::Cpu), ("32k", Measure::Cpu), ("1m", Measure::Throughput)] {
            if options.wants(name) {
                requests(&mut report, &setup, &plan, name, over, measure)?;
            }
        }
    }
    if options.wants("beside") {
        during_download::run(&mut report, &setup, &plan)?;
    }
    if options.wants("idle") {
        idle::run(&mut report, &setup, idle_count)?;
    }
    report.finish(&options)
}

/// One load on one server.
pub(super) struct Sample {
    pub(super) served: LoadResult,
    /// Processor time of the server.
    pub(super) cpu: Duration,
    /// Numbers that only loads of our own have.
    pub(super) own: Option<OwnNumbers>,
}

/// Numbers of a load of our own.
pub(super) struct OwnNumbers {
    pub(super) latencies: Spans,
    /// Share of the time in which the load was busy: near 1, it is the limit.
    pub(super) busy: f64,
}

/// All loads on one server, and their medians.
struct Score {
    name: String,
    samples: Vec<Sample>,
}

impl Score {
    fn median(&self, number: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(number))
    }

    /// Microseconds of the server's processor time per request.
    fn cpu_us(&self) -> f64 {
        median(self.cpu_values())
    }

    fn cpu_values(&self) -> Vec<f64> {
        self.samples.iter().map(|s| s.cpu.as_secs_f64() * 1e6 / s.served.requests as f64).collect()
    }

    fn per_second(&self) -> f64 {
        self.median(|s| s.served.per_second)
    }

    /// Latency that this share of requests does not exceed, if the load tells.
    fn percentile(&self, share: f64) -> Duration {
        let of = |own: &OwnNumbers| own.latencies.percentile(share).as_secs_f64();
        Duration::from_secs_f64(self.median(|s| s.own.as_ref().map_or(0.0, of)))
    }

    fn busy(&self) -> f64 {
        self.median(|s| s.own.as_ref().map_or(f64::NAN, |own| own.busy))
    }
}

/// Requests for one file. All servers run from the beginning, and each round loads them one after the other.
fn requests(
    report: &mut Report,
    setup: &Setup,
    plan: &Plan,
    name: &str,
    over: Over,
    measure: Measure,
) -> Outcome {
    let row = FILES.iter().find(|(file, ..)| *file == name);
    let &(_, path, size) = row.ok_or("no such file")?;
    let title =
        format!("{name}, {} connections of {} streams, {}", plan.connections, plan.streams, over.name());
    compare(report, plan, &File { title, size, measure }, &setup.contestants(over, ""), |server| {
        sample(server, path, size, plan)
    })
}

/// File of a comparison.
pub(super) struct File {
    pub(super) title: String,
    pub(super) size: usize,
    pub(super) measure: Measure,
}

/// Loads both servers in turn, and prints medians and the target.
pub(super) fn compare(
    report: &mut Report,
    plan: &Plan,
    File { title, size, measure }: &File,
    contestants: &[Contestant],
    sample: impl Fn(&Running) -> Outcome<Sample>,
) -> Outcome {
    let place = RunPlacement::on(plan.server_cpu);
    let running: Vec<Running> =
        contestants.iter().map(|contestant| contestant.start(&place)).collect::<Outcome<_>>()?;
    let mut scores: Vec<Score> =
        running.iter().map(|server| Score { name: server.name.clone(), samples: Vec::new() }).collect();
    for round in 1..=plan.rounds {
        progress(&format!("{title}: round {round} of {}", plan.rounds));
        for (server, score) in running.iter().zip(&mut scores) {
            score.samples.push(sample(server)?);
        }
    }
    progress("");
    publish(report, title, *size, *measure, &scores);
    Ok(())
}

fn publish(report: &mut Report, title: &str, size: usize, measure: Measure, scores: &[Score]) {
    let has_own = scores.iter().all(|score| score.samples.iter().all(|sample| sample.own.is_some()));
    let mut columns = vec!["CPU µs/req", "of nginx", "req/s", "MB/s", "of nginx"];
    columns.extend(["p50", "p99", "load busy"].iter().filter(|_| has_own));
    let mut table = Table::new(title, &columns);
    let of = |name: &str, number: fn(&Score) -> f64| {
        scores.iter().find(|score| score.name == name).map_or(f64::NAN, number)
    };
    for score in scores {
        let mut cells = vec![
            with_spread(&score.cpu_values()),
            number(score.cpu_us() / of(NGINX, Score::cpu_us)),
            number(score.per_second()),
            number(score.per_second() * size as f64 / 1e6),
            number(score.per_second() / of(NGINX, Score::per_second)),
        ];
        if has_own {
            cells.extend([0.5, 0.99].map(|share| span(score.percentile(share))));
            cells.push(number(score.busy()));
        }
        table.row(&score.name, cells);
    }
    let numbers = scores.iter().map(|score| {
        json!({
            "name": score.name,
            "cpu_us_per_request": score.cpu_us(),
            "spread": spread(score.cpu_values()),
            "requests_per_second": score.per_second(),
            "p99_us": has_own.then(|| score.percentile(0.99).as_micros() as u64),
            "load_busy": has_own.then(|| score.busy()),
            "rounds": score.samples.iter().map(|s| {
                json!({ "requests": s.served.requests, "server_cpu_us": s.cpu.as_micros() as u64 })
            }).collect::<Vec<_>>(),
        })
    });
    report.case(&table, numbers.collect::<Vec<Value>>().into());
    let (what, value) = match measure {
        Measure::Cpu => ("CPU", of(OURS, Score::cpu_us) / of(NGINX, Score::cpu_us)),
        Measure::Throughput => ("throughput", of(OURS, Score::per_second) / of(NGINX, Score::per_second)),
    };
    report.target(format!("{title}: {what} of {OURS} / {NGINX}"), value);
}

fn sample(server: &Running, path: &str, size: usize, plan: &Plan) -> Outcome<Sample> {
    // Leaves the end of the connections of the load before to whoever served them.
    wait::pause(Duration::from_millis(50));
    let load = Load {
        url: server.url(path),
        connections: plan.connections,
        streams: plan.streams,
        amount: match size {
            ..LARGE_MIN => Amount::Seconds(plan.seconds),
            _ => Amount::Requests(plan.seconds * LARGE_PER_SECOND),
        },
        message: None,
        cpu: plan.load_cpu,
    };
    let before = usage::cpu_time(server.pid())?;
    let served = load.run()?;
    let cpu = usage::cpu_time(server.pid())? - before;
    if served.requests == 0 || served.failed > 0 || served.bytes < served.requests * size as u64 {
        return Err(format!("{}: not a measurement: {served:?}", server.name).into());
    }
    Ok(Sample { served, cpu, own: None })
}
