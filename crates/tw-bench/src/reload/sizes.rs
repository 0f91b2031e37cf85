//! Time and memory to load configurations of many servers and of many locations: a test of the configuration (`-t`), reloads, and
//! the memory of the processes that serve by it.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::wait;

use super::daemon::Daemon;
use super::{PAUSE, middle};
use crate::Outcome;
use crate::contestant::{Binaries, Binary};
use crate::exec::RunPlacement;
use crate::report::{Report, Table, number, progress, span};
use crate::usage;

/// Time in which memory that is not needed any more goes back to the system.
const REST: Duration = Duration::from_secs(3);

/// Content of a configuration.
#[derive(Clone, Copy)]
pub(super) enum Size {
    /// Servers with one or two names and one location each.
    Servers(usize),
    /// Locations, a hundred in each server.
    Locations(usize),
}

const LOCATIONS_EACH: usize = 100;

impl Size {
    fn title(self) -> String {
        match self {
            Self::Servers(count) => format!("{} servers", number(count as f64)),
            Self::Locations(count) => format!("{} locations", number(count as f64)),
        }
    }

    /// Directives of `http {}`; `{port}` is the port.
    fn conf(self) -> String {
        // Hash tables that nginx can make; Tailwater sizes its own.
        let mut conf = "server_names_hash_max_size 65536; server_names_hash_bucket_size 128;\n".to_owned();
        let (servers, locations) = match self {
            Self::Servers(count) => (count, 1),
            Self::Locations(count) => (count / LOCATIONS_EACH, LOCATIONS_EACH),
        };
        for server in 0..servers {
            let other = if server % 2 == 0 { String::new() } else { format!(" d{server}.example.net") };
            writeln!(
                conf,
                "server {{ listen 127.0.0.1:{{port}}; server_name www{server}.example.com{other};"
            )
            .expect("writing to memory does not fail");
            for location in 0..locations {
                let content = match (server + location) % 2 {
                    0 => "proxy_pass http://127.0.0.1:9000;",
                    _ => "return 204;",
                };
                let path = if locations == 1 { "/".to_owned() } else { format!("/path{location}/") };
                writeln!(conf, "location {path} {{ {content} }}").expect("writing to memory does not fail");
            }
            conf += "}\n";
        }
        conf
    }
}

/// Results of one server.
struct Score {
    name: &'static str,
    /// Duration of each test of the configuration.
    checks: Vec<Duration>,
    /// The most memory that a test had resident, in bytes.
    check_peak: u64,
    reloads: Vec<Duration>,
    /// Resident memory of all processes after the reloads, in bytes; shared pages once.
    resident: u64,
}

/// Measures one size with both servers in turn.
pub(super) fn run(report: &mut Report, binaries: &Binaries, size: Size, rounds: usize) -> Outcome {
    let measured = binaries.named().into_iter().map(|(name, binary)| measure(name, binary, size, rounds));
    let scores = measured.collect::<Outcome<Vec<_>>>()?;
    progress("");
    publish(report, size, &scores);
    Ok(())
}

fn measure(name: &'static str, binary: &Binary, size: Size, rounds: usize) -> Outcome<Score> {
    progress(&format!("{name}: {}", size.title()));
    let mut daemon = Daemon::start(binary, &RunPlacement::default(), size.conf())?;
    let mut checks = Vec::new();
    let mut check_peak = 0;
    for _ in 0..rounds {
        let (took, peak) = check(daemon.check_command())?;
        checks.push(took);
        check_peak = check_peak.max(peak);
    }
    let mut reloads = Vec::new();
    for _ in 0..rounds {
        wait::pause(PAUSE);
        reloads.push(daemon.reload()?);
    }
    wait::pause(REST);
    let resident = daemon.memory()?.shared_once;
    Ok(Score { name, checks, check_peak, reloads, resident })
}

/// Runs a test of the configuration. Returns its duration and the most memory it had.
fn check(mut command: Command) -> Outcome<(Duration, u64)> {
    const LOOK_EVERY: Duration = Duration::from_millis(1);
    let began = Instant::now();
    let mut child = command.spawn()?;
    let mut peak = 0;
    loop {
        // A process that is ending has no memory any more.
        peak = peak.max(usage::peak(child.id()).unwrap_or(0));
        match child.try_wait()? {
            Some(status) if status.success() => return Ok((began.elapsed(), peak)),
            Some(status) => return Err(format!("the test of the configuration failed: {status}").into()),
            None => wait::pause(LOOK_EVERY),
        }
    }
}

fn publish(report: &mut Report, size: Size, scores: &[Score]) {
    let mut table = Table::new(size.title(), &["-t", "its MB", "reload", "MB in use"]);
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let shown = |spans: &[Duration]| middle(spans).map_or_else(|| "—".to_owned(), span);
    for score in scores {
        let memory = [score.check_peak, score.resident].map(|bytes| number(mb(bytes)));
        let [peak, resident] = memory;
        table.row(score.name, vec![shown(&score.checks), peak, shown(&score.reloads), resident]);
    }
    let us = |spans: &[Duration]| middle(spans).map(|span| span.as_micros() as u64);
    let numbers: Vec<Value> = scores
        .iter()
        .map(|score| {
            json!({
                "name": score.name,
                "check_us": us(&score.checks),
                "check_peak_bytes": score.check_peak,
                "reload_us": us(&score.reloads),
                "resident_bytes": score.resident,
            })
        })
        .collect();
    report.case(&table, Value::Array(numbers));
    let [ours, nginx] = scores else { return };
    let ratio = |spans: fn(&Score) -> &[Duration]| {
        let seconds = |score: &Score| middle(spans(score)).map_or(f64::NAN, |span| span.as_secs_f64());
        seconds(ours) / seconds(nginx)
    };
    let title = size.title();
    for (what, value) in [
        ("time of -t", ratio(|score| &score.checks)),
        ("memory of -t", ours.check_peak as f64 / nginx.check_peak as f64),
        ("time of a reload", ratio(|score| &score.reloads)),
        ("memory in use", ours.resident as f64 / nginx.resident as f64),
    ] {
        report.target(format!("{title}: {what}, of nginx's"), value);
    }
}
