//! `cargo xtask bench grpc`: calls through a proxy. One core for the proxy; the load and an echo server share the
//! other one. The measure is processor time of the proxy per call.

pub(super) mod echo;

use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::{TempDir, wait};

use super::Outcome;
use super::contestant::{Binaries, Binary, Contestant, NGINX, OURS, Running, present};
use super::data::noise;
use super::exec::RunPlacement;
use super::h2load::{Amount, Load, LoadResult};
use super::http2::Plan;
use super::options::Options;
use super::report::{Report, Table, median, number, progress, spread, with_spread};
use super::usage;

/// Idle connections that nginx may keep: more than there are concurrent calls.
const KEPT_CONNECTIONS: usize = 4096;
/// Bytes of messages.
const MESSAGES: [(&str, usize); 2] = [("small", 128), ("large", 16 << 10)];

/// All loads on one proxy, and their medians.
struct Score {
    name: String,
    /// With the processor time of the proxy.
    samples: Vec<(LoadResult, Duration)>,
}

impl Score {
    /// Microseconds of the proxy's processor time per call.
    fn cpu_us(&self) -> f64 {
        median(self.cpu_values())
    }

    fn cpu_values(&self) -> Vec<f64> {
        self.samples.iter().map(|(served, cpu)| cpu.as_secs_f64() * 1e6 / served.requests as f64).collect()
    }

    fn per_second(&self) -> f64 {
        median(self.samples.iter().map(|(served, _)| served.per_second))
    }
}

/// Measures, prints, writes `grpc.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections", "streams"], &[])?;
    let plan = Plan::parse(&options)?;
    let binaries = Binaries::find(&options)?;
    let mut report = Report::new("grpc", &binaries);
    for (name, size) in MESSAGES {
        if options.wants(name) {
            calls(&mut report, &plan, &binaries, name, size)?;
        }
    }
    report.finish(&options)
}

/// Calls with messages of one size. Both proxies run from the beginning, and each round loads them one after the
/// other.
fn calls(report: &mut Report, plan: &Plan, binaries: &Binaries, name: &str, size: usize) -> Outcome {
    let title = format!("{name} messages, {} connections of {} streams", plan.connections, plan.streams);
    let dir = TempDir::new("message")?;
    // A message of gRPC: not compressed, its length, its content.
    let message = [&[0], &(size as u32).to_be_bytes()[..], &noise(1, size)].concat();
    dir.write("message", &message)?;
    let echo = Contestant::own_loop("echo", "echo", &[]).start(&RunPlacement::on(plan.load_cpu))?;
    let behind = |name, binary: &Binary| {
        let http = format!(
            "access_log off; upstream echo {{ server {}; keepalive {KEPT_CONNECTIONS}; keepalive_requests 1000000000; }}",
            echo.addr()
        );
        Contestant::server(
            name,
            binary,
            &http,
            "http2 on; keepalive_requests 1000000000; location / { grpc_pass echo; }",
        )
    };
    let contestants = present([behind(OURS, &binaries.ours), behind(NGINX, &binaries.nginx)]);
    let place = RunPlacement::on(plan.server_cpu);
    let running: Vec<Running> =
        contestants.iter().map(|contestant| contestant.start(&place)).collect::<Outcome<_>>()?;
    let mut scores: Vec<Score> =
        running.iter().map(|server| Score { name: server.name.clone(), samples: Vec::new() }).collect();
    for round in 1..=plan.rounds {
        progress(&format!("{title}: round {round} of {}", plan.rounds));
        for (server, score) in running.iter().zip(&mut scores) {
            // Leaves the end of the connections of the load before to whoever served them.
            wait::pause(Duration::from_millis(50));
            let load = Load {
                url: server.url("/echo.Echo/Say"),
                connections: plan.connections,
                streams: plan.streams,
                amount: Amount::Seconds(plan.seconds),
                message: Some(dir.join("message")),
                cpu: plan.load_cpu,
            };
            let before = usage::cpu_time(server.pid())?;
            let served = load.run()?;
            let cpu = usage::cpu_time(server.pid())? - before;
            if served.requests == 0
                || served.failed > 0
                || served.bytes < served.requests * message.len() as u64
            {
                return Err(format!("{}: not a measurement: {served:?}", server.name).into());
            }
            score.samples.push((served, cpu));
        }
    }
    progress("");
    let mut table = Table::new(&title, &["CPU µs/call", "of nginx", "calls/s"]);
    let of = |name: &str| scores.iter().find(|score| score.name == name).map_or(f64::NAN, Score::cpu_us);
    for score in &scores {
        let cells = vec![
            with_spread(&score.cpu_values()),
            number(score.cpu_us() / of(NGINX)),
            number(score.per_second()),
        ];
        table.row(&score.name, cells);
    }
    let numbers = scores.iter().map(|score| {
        json!({
            "name": score.name,
            "cpu_us_per_call": score.cpu_us(),
            "spread": spread(score.cpu_values()),
            "calls_per_second": score.per_second(),
        })
    });
    report.case(&table, numbers.collect::<Vec<Value>>().into());
    let what = format!("{title}: CPU of {OURS} / {NGINX}");
    report.target(what, of(OURS) / of(NGINX));
    Ok(())
}
