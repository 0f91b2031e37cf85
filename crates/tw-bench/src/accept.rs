//! `cargo xtask bench accept`: many short connections beside some long-lived ones with different loads.
//!
//! Every request of `wrk` has a connection of its own. Meanwhile 100 connections stay open, and each sends requests
//! at a pace of its own: some often, most rarely. They are opened first, one after the other, so a server can observe
//! their load. Two loops or two workers run on both cores, which the load shares with them: the measure is what a
//! server makes of the same machine.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::wait;

use super::Outcome;
use super::contestant::{Binaries, Binary, Contestant, Running, hot_files, root_directive};
use super::exec::RunPlacement;
use super::load::{Load, LoadResult};
use super::options::Options;
use super::report::{Report, Table, median, number, progress, span};
use super::usage;

/// Loops, or workers.
pub(super) const LOOPS: usize = 2;
/// Connections that stay open.
const LONG_COUNT: usize = 100;
/// Requests per second of all of them. A third or so of what one core can do: what they cost matters, and leaves room.
const LONG_RATE: f64 = 6_000.0;
/// Ratio of the request rates of two consecutive connections: the first tenth makes nine tenths of all requests.
const FALL: f64 = 0.8;
/// One look at all connections.
const TICK: Duration = Duration::from_millis(2);

const OURS: &str = "ours, reuseport";
const NGINX: &str = "nginx, reuseport";

/// Name, whose, directives in `events`, parameters of `listen`.
const CASES: [(&str, Whose, &str, &str); 8] = [
    ("ours, default", Whose::Ours, "", ""),
    ("nginx, default", Whose::Nginx, "", ""),
    ("ours, accept_mutex", Whose::Ours, "accept_mutex on;", ""),
    ("nginx, accept_mutex", Whose::Nginx, "accept_mutex on;", ""),
    (OURS, Whose::Ours, "", "reuseport"),
    (NGINX, Whose::Nginx, "", "reuseport"),
    ("ours, balance off", Whose::Ours, "connection_balance off;", ""),
    ("ours, reuseport, balance off", Whose::Ours, "connection_balance off;", "reuseport"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Ours,
    Nginx,
}

struct Plan {
    rounds: usize,
    seconds: u64,
    connections: usize,
    load_cpu: usize,
}

/// One load on one server.
struct Sample {
    served: LoadResult,
    /// Processor time of the server.
    cpu: Duration,
    /// Processor time of the busiest loop in that of the mean of all.
    busiest: f64,
}

struct Score {
    name: String,
    samples: Vec<Sample>,
}

/// Measures, prints, writes `accept.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections"], &[])?;
    let quick = options.flag("quick");
    let plan = Plan {
        rounds: options.number("rounds", if quick { 1 } else { 5 })?,
        seconds: options.number("seconds", if quick { 1 } else { 4 })?,
        connections: options.number("connections", 64)?,
        load_cpu: options.number("load-cpu", 1)?,
    };
    let binaries = Binaries::find(&options)?;
    let files = hot_files(&[("1k", 1 << 10)])?;
    let contestants: Vec<Contestant> = CASES
        .into_iter()
        .filter(|(name, ..)| options.wants(name))
        .map(|(name, whose, events, listen)| {
            let binary: &Binary = if whose == Whose::Ours { &binaries.ours } else { &binaries.nginx };
            Contestant::server(name, binary, "access_log off;", &root_directive(&files))
                .with_loops(LOOPS, events, listen)
        })
        .filter(Contestant::is_present)
        .collect();
    let mut report = Report::new("accept", &binaries);
    for (title, long_count) in [("short connections", 0), ("short and 100 long ones", LONG_COUNT)] {
        let scores = measure(title, &contestants, long_count, &plan)?;
        publish(&mut report, title, long_count, &scores);
    }
    report.finish(&options)
}

fn measure(title: &str, contestants: &[Contestant], long_count: usize, plan: &Plan) -> Outcome<Vec<Score>> {
    let mut scores: Vec<Score> = contestants
        .iter()
        .map(|contestant| Score { name: contestant.name.clone(), samples: Vec::new() })
        .collect();
    for round in 1..=plan.rounds {
        for (contestant, score) in contestants.iter().zip(&mut scores) {
            progress(&format!("{title}: {}, round {round} of {}", contestant.name, plan.rounds));
            // A new one for each round: connections that are open already would decide about the next round.
            let running = contestant.start(&RunPlacement::default())?;
            score.samples.push(sample(&running, long_count, plan)?);
        }
    }
    progress("");
    Ok(scores)
}

fn sample(server: &Running, long_count: usize, plan: &Plan) -> Outcome<Sample> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let long = scope.spawn(|| send_steadily(server.addr(), long_count, &over));
        let sample = short(server, plan);
        over.store(true, Relaxed);
        long.join().map_err(|_| "the long connections panicked")??;
        sample
    })
}

fn short(server: &Running, plan: &Plan) -> Outcome<Sample> {
    // The long connections are open by then, and seen.
    wait::pause(Duration::from_millis(500));
    let load = Load {
        url: server.url("/1k"),
        connections: plan.connections,
        seconds: plan.seconds,
        script: "wrk.headers[\"Connection\"] = \"close\"\n".to_owned(),
        cpu: plan.load_cpu,
    };
    let before = usage::thread_times(server.pid())?;
    let cpu = usage::cpu_time(server.pid())?;
    let served = load.run()?;
    let cpu = usage::cpu_time(server.pid())? - cpu;
    let after = usage::thread_times(server.pid())?;
    if served.requests == 0 || served.bad_status > 0 || served.socket_errors > 0 {
        return Err(format!("{}: not a measurement: {served:?}", server.name).into());
    }
    let mut spent: Vec<f64> = after
        .iter()
        .map(|(thread, time)| (*time - before.get(thread).copied().unwrap_or_default()).as_secs_f64())
        .collect();
    // Loops and workers are what works most; masters, pools and logs hardly run.
    spent.sort_by(|a, b| b.total_cmp(a));
    spent.truncate(LOOPS);
    let mean = spent.iter().sum::<f64>() / LOOPS as f64;
    Ok(Sample { served, cpu, busiest: spent.first().copied().unwrap_or_default() / mean })
}

/// Connection that sends requests at its own rate.
struct Long {
    stream: TcpStream,
    every: Duration,
    next: Instant,
    is_awaited: bool,
}

fn send_steadily(addr: SocketAddr, count: usize, over: &AtomicBool) -> io::Result<()> {
    let whole: f64 = (0..count).map(|number| FALL.powi(number as i32 / 4)).sum();
    let mut all = Vec::with_capacity(count);
    for number in 0..count {
        let stream = TcpStream::connect(addr)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let rate = LONG_RATE * FALL.powi(number as i32 / 4) / whole;
        let every = Duration::from_secs_f64(1.0 / rate);
        all.push(Long { stream, every, next: Instant::now(), is_awaited: false });
        turn(&mut all)?;
        wait::pause(TICK);
    }
    while !over.load(Relaxed) {
        turn(&mut all)?;
        wait::pause(TICK);
    }
    Ok(())
}

/// Reads responses, and sends the requests that are due. A late connection sends several at once.
fn turn(all: &mut [Long]) -> io::Result<()> {
    const REQUEST: &[u8] = b"GET /1k HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut ignored = [0; 64 << 10];
    let now = Instant::now();
    for long in all {
        if long.is_awaited {
            match long.stream.read(&mut ignored) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => long.is_awaited = false,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e),
            }
        }
        let mut requests = Vec::new();
        while long.next <= now && requests.len() < 16 * REQUEST.len() {
            requests.extend_from_slice(REQUEST);
            long.next += long.every;
        }
        if !requests.is_empty() {
            long.next = long.next.max(now);
            long.stream.write_all(&requests)?;
            long.is_awaited = true;
        }
    }
    Ok(())
}

impl Score {
    fn median(&self, number: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(number))
    }

    fn per_second(&self) -> f64 {
        self.median(|s| s.served.per_second)
    }

    fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.median(|s| s.served.mean.as_secs_f64()))
    }

    fn deviation(&self) -> Duration {
        Duration::from_secs_f64(self.median(|s| s.served.deviation.as_secs_f64()))
    }

    /// Microseconds of the server's processor time per short connection, what the long ones cost included.
    fn cpu_us(&self) -> f64 {
        self.median(|s| s.cpu.as_secs_f64() * 1e6 / s.served.requests as f64)
    }

    fn busiest(&self) -> f64 {
        self.median(|s| s.busiest)
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "connections_per_second": self.per_second(),
            "latency_mean_us": self.mean().as_micros() as u64,
            "latency_deviation_us": self.deviation().as_micros() as u64,
            "cpu_us_per_connection": self.cpu_us(),
            "busiest_of_mean": self.busiest(),
        })
    }
}

fn publish(report: &mut Report, title: &str, long_count: usize, scores: &[Score]) {
    let columns = ["connections/s", "mean", "deviation", "p99", "CPU µs each", "busiest of mean"];
    let mut table = Table::new(title, &columns);
    for score in scores {
        let p99 = Duration::from_secs_f64(score.median(|s| s.served.p99.as_secs_f64()));
        let cells = vec![
            number(score.per_second()),
            span(score.mean()),
            span(score.deviation()),
            span(p99),
            number(score.cpu_us()),
            number(score.busiest()),
        ];
        table.row(&score.name, cells);
    }
    report.case(&table, scores.iter().map(Score::json).collect());
    let of = |name: &str| scores.iter().find(|score| score.name == name);
    if let (0, Some(ours), Some(nginx)) = (long_count, of(OURS), of(NGINX)) {
        let ratio = |number: fn(&Score) -> f64| number(ours) / number(nginx);
        let per_second = ratio(Score::per_second);
        report.target("connections/s of nginx", per_second);
        let deviation = ratio(|score| score.deviation().as_secs_f64());
        report.target("deviation of nginx's", deviation);
    }
    if long_count > 0 {
        for score in ["ours, default", OURS].into_iter().filter_map(of) {
            let what = format!("{}: busiest loop of the mean", score.name);
            report.target(what, score.busiest());
        }
    }
}
