//! `cargo xtask bench accept --stream`: short sessions over TCP with each way to accept them.
//!
//! The three ways are those of nginx's article about socket sharding: `accept_mutex` (its default then), without it (its default
//! now), and `reuseport`. A session gets a text, or is relayed to a server of our own and sends 64 bytes.

use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::wait;

use super::{LOOPS, Whose};
use crate::bench::Outcome;
use crate::bench::contestant::{Binaries, CONF, Contestant, PORT, PREFIX, Running};
use crate::bench::exec::RunPlacement;
use crate::bench::options::Options;
use crate::bench::report::{Limit, Report, Table, Target, median, number, progress, span};
use crate::bench::static_files::Plan;
use crate::bench::stream::load::{self, LoadTarget, Served};
use crate::bench::usage;

const OURS: &str = "ours, reuseport";
const NGINX: &str = "nginx, reuseport";

/// Name, whose, directives in `events`, parameters of `listen`.
const CASES: [(&str, Whose, &str, &str); 6] = [
    ("ours, accept_mutex on", Whose::Ours, "accept_mutex on;", ""),
    ("nginx, accept_mutex on", Whose::Nginx, "accept_mutex on;", ""),
    ("ours, accept_mutex off", Whose::Ours, "accept_mutex off;", ""),
    ("nginx, accept_mutex off", Whose::Nginx, "accept_mutex off;", ""),
    (OURS, Whose::Ours, "", "reuseport"),
    (NGINX, Whose::Nginx, "", "reuseport"),
];

type RunLoad = fn(&LoadTarget<'_>) -> Outcome<Served>;

/// One load on one server.
struct Sample {
    served: Served,
    /// Processor time of the server.
    cpu: Duration,
    /// Processor time of the busiest loop in that of the mean of all.
    busiest: f64,
}

struct Score {
    name: &'static str,
    samples: Vec<Sample>,
}

/// Measures, prints, writes `accept-stream.json`.
pub(super) fn run(options: &Options) -> Outcome {
    let plan = Plan::parse(options, &[])?;
    let binaries = Binaries::find(options)?;
    let peer = Contestant::own_loop("server", "stream-peer", &[]).start(&RunPlacement::on(plan.load_cpu))?;
    let mut report = Report::new("accept-stream", &binaries);
    let relay = format!("proxy_pass {};", peer.addr());
    let loads: [(&str, &str, RunLoad); 2] = [
        ("short sessions with a text", "return OK;", load::text),
        ("short sessions with a server behind", &relay, load::connect),
    ];
    for (title, content, load) in loads {
        let contestants: Vec<_> = CASES
            .into_iter()
            .filter(|(name, ..)| options.wants(name))
            .map(|(name, whose, events, listen)| {
                (name, contestant(&binaries, (name, whose, events, listen), content))
            })
            .collect();
        let scores = measure(title, &contestants, load, &plan)?;
        publish(&mut report, title, &scores);
    }
    report.finish(options)
}

/// A server with these settings and this content of `server`.
fn contestant(
    binaries: &Binaries,
    (name, whose, events, listen): (&str, Whose, &str, &str),
    content: &str,
) -> Contestant {
    let (binary, own) = match whose {
        Whose::Ours => (&binaries.ours, "loop_guard enforce; master_process off;"),
        Whose::Nginx => (&binaries.nginx, "master_process on;"),
    };
    let conf = format!(
        "{own}
daemon off;
worker_processes {LOOPS};
pid logs/server.pid;
error_log logs/error.log;
events {{ worker_connections 16384; {events} }}
stream {{ server {{ listen 127.0.0.1:{PORT} backlog=4096 {listen}; {content} }} }}
"
    );
    Contestant::other(name, &binary.path, &["-p", PREFIX, "-c", CONF], conf)
}

fn measure(
    title: &str,
    contestants: &[(&'static str, Contestant)],
    load: RunLoad,
    plan: &Plan,
) -> Outcome<Vec<Score>> {
    let mut scores: Vec<Score> =
        contestants.iter().map(|(name, _)| Score { name, samples: Vec::new() }).collect();
    for round in 1..=plan.rounds {
        for ((name, contestant), score) in contestants.iter().zip(&mut scores) {
            progress(&format!("{title}: {name}, round {round} of {}", plan.rounds));
            let running = contestant.start(&RunPlacement::default())?;
            score.samples.push(sample(&running, load, plan)?);
        }
    }
    progress("");
    Ok(scores)
}

fn sample(server: &Running, load: RunLoad, plan: &Plan) -> Outcome<Sample> {
    // Its loops have started by then.
    wait::pause(Duration::from_millis(300));
    let before = usage::thread_times(server.pid())?;
    let served = load(&LoadTarget::plain(server, plan))?;
    let after = usage::thread_times(server.pid())?;
    if served.count < 1.0 {
        return Err(format!("{}: nothing was served", server.name).into());
    }
    let mut spent: Vec<Duration> =
        after.iter().map(|(thread, time)| *time - before.get(thread).copied().unwrap_or_default()).collect();
    let cpu = spent.iter().sum();
    // Loops and workers are what works most; masters, pools and logs hardly run.
    spent.sort_unstable_by(|a, b| b.cmp(a));
    spent.truncate(LOOPS);
    let mean = spent.iter().sum::<Duration>().as_secs_f64() / LOOPS as f64;
    let busiest = spent.first().map_or(f64::NAN, Duration::as_secs_f64) / mean;
    Ok(Sample { served, cpu, busiest })
}

impl Score {
    fn median(&self, number: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(number))
    }

    fn per_second(&self) -> f64 {
        self.median(|sample| sample.served.count / sample.served.took.as_secs_f64())
    }

    fn span(&self, of: impl Fn(&Served) -> Duration) -> Duration {
        Duration::from_secs_f64(self.median(|sample| of(&sample.served).as_secs_f64()))
    }

    fn deviation(&self) -> Duration {
        self.span(|served| served.spans.deviation())
    }

    /// Microseconds of the server's processor time per session.
    fn cpu_us(&self) -> f64 {
        self.median(|sample| sample.cpu.as_secs_f64() * 1e6 / sample.served.count)
    }

    /// Processor time of the server in that of one core.
    fn cores(&self) -> f64 {
        self.median(|sample| sample.cpu.as_secs_f64() / sample.served.took.as_secs_f64())
    }
}

fn publish(report: &mut Report, title: &str, scores: &[Score]) {
    let columns = ["connections/s", "latency", "deviation", "p99", "CPU µs each", "cores", "busiest of mean"];
    let mut table = Table::new(title, &columns);
    let mut numbers = Vec::new();
    for score in scores {
        let (mean, deviation) = (score.span(|served| served.spans.mean()), score.deviation());
        let p99 = score.span(|served| served.spans.percentile(0.99));
        let busiest = score.median(|sample| sample.busiest);
        let cells = vec![
            number(score.per_second()),
            span(mean),
            span(deviation),
            span(p99),
            number(score.cpu_us()),
            number(score.cores()),
            number(busiest),
        ];
        table.row(score.name, cells);
        numbers.push(json!({
            "name": score.name,
            "connections_per_second": score.per_second(),
            "latency_mean_us": mean.as_micros() as u64,
            "latency_deviation_us": deviation.as_micros() as u64,
            "latency_p99_us": p99.as_micros() as u64,
            "cpu_us_per_connection": score.cpu_us(),
            "cores": score.cores(),
            "busiest_of_mean": busiest,
        }));
    }
    report.case(&table, Value::Array(numbers));
    let of = |name: &str| scores.iter().find(|score| score.name == name);
    if let (Some(ours), Some(nginx)) = (of(OURS), of(NGINX)) {
        let what = |what: &str| format!("{title}: {what}");
        let ratio = |number: fn(&Score) -> f64| number(ours) / number(nginx);
        report.target(Target::new(
            what("connections/s of nginx"),
            ratio(Score::per_second),
            Limit::AtLeast(1.0),
            "",
        ));
        let deviation = ratio(|score| score.deviation().as_secs_f64());
        report.target(Target::new(what("deviation of nginx's"), deviation, Limit::AtMost(1.0), ""));
        report.target(Target::new(what("CPU of nginx's"), ratio(Score::cpu_us), Limit::AtMost(1.0), ""));
    }
}
