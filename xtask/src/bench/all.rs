//! `cargo xtask bench all`: every measurement, one after the other, into one file of results and one page.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::contestant::Binaries;
use super::options::Options;
use super::render;
use super::report::number;
use super::supervise::{End, Supervisor};
use super::{Outcome, home, machine};

/// A part may take this many times as long as estimated; more is a hang.
const PATIENCE: u64 = 4;
/// Variable for a part: its name, and the second (of the clock) at which all parts are expected to end.
const PROGRESS: &str = "TAILWATER_BENCH_PROGRESS";
/// Options of other programs and of data, passed to the parts that know them.
const PASSED: &[&str] = &["ours", "nginx", "server-cpu", "load-cpu", "ours-http", "ours-main", "nginx-main"];

/// One measurement of all.
struct Part {
    /// Name of the measurement, and of the file with its results.
    name: &'static str,
    /// Options of it: rounds and seconds such that all parts take less than 25 minutes.
    args: &'static str,
    /// Options in a quick run, in addition to `--quick`.
    quick: &'static str,
    /// Expected duration on two cores, in seconds.
    seconds: u64,
    quick_seconds: u64,
    /// Peers of its own, given with options of these names.
    peers: &'static [&'static str],
}

/// Rounds and seconds of short parts: five short rounds have a steadier median than two long ones.
const SHORT: &str = "--rounds 5 --seconds 1";
const SHORTER: &str = "--rounds 3 --seconds 1";
/// Cases of parts of which another part, with time series, has the others.
const DISK: &str = "--only 32k,stalls";

const PARTS: &[Part] = &[
    Part::new("pools", "--seconds 6", "", (125, 60)),
    Part::new("open", "--memory 96m --seconds 4", "--memory 48m", (100, 55)),
    Part::new("sharding", "--rounds 3 --seconds 2", "", (115, 45)),
    Part::new("disk", "--memory 128m --seconds 5 --only 32k,stalls", DISK, (90, 70)),
    Part::new("static", "--rounds 3 --seconds 1 --connections 64", "", (145, 95)),
    Part::new("filters", SHORT, "", (60, 20)),
    Part { peers: &["haproxy"], ..Part::new("proxy", SHORTER, "", (110, 65)) },
    Part::new(
        "cache",
        "--rounds 3 --seconds 2 --memory 96m --fills 5000 --object 20m",
        "--memory 64m",
        (170, 110),
    ),
    Part::new("gateways", SHORT, "", (60, 25)),
    Part::new("grpc", SHORT, "", (25, 10)),
    Part::new("tls", SHORT, "", (95, 50)),
    Part::new("h2", SHORTER, "", (90, 60)),
    Part::new("h3", SHORTER, "", (90, 60)),
    Part {
        peers: &["haproxy"],
        ..Part::new("stream", "--rounds 3 --seconds 1 --relays 5000", "", (100, 60))
    },
    Part::new("idle", "", "", (12, 8)),
    Part::new("reload", "--reloads 30 --seconds 3", "", (90, 40)),
];

impl Part {
    const fn new(
        name: &'static str,
        args: &'static str,
        quick: &'static str,
        (seconds, quick_seconds): (u64, u64),
    ) -> Self {
        Self { name, args, quick, seconds, quick_seconds, peers: &[] }
    }

    /// Words after `bench` that anybody could repeat: without paths of one machine.
    fn command(&self, is_quick: bool) -> String {
        let words = if is_quick { [self.name, self.quick, "--quick"] } else { [self.name, self.args, ""] };
        words.into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// Arguments of `bench` for this part.
    fn words(&self, options: &Options) -> Vec<String> {
        let command = self.command(options.flag("quick"));
        let mut words: Vec<String> = command.split_ascii_whitespace().map(str::to_owned).collect();
        for name in PASSED.iter().chain(self.peers) {
            if let Some(value) = options.text(name) {
                words.extend([format!("--{name}"), value.to_owned()]);
            }
        }
        words
    }

    fn expected(&self, is_quick: bool) -> u64 {
        if is_quick { self.quick_seconds } else { self.seconds }
    }
}

/// Path of the results of all parts.
pub(super) fn results_path() -> PathBuf {
    home().join("results.json")
}

/// Measures all parts, or those of `--parts`; writes `results.json` and `report.html`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["parts", "haproxy"], &[])?;
    let parts = chosen(&options)?;
    let is_quick = options.flag("quick");
    // A wrong path of a server ends all here, not each part.
    if Binaries::find(&options)?.nginx.is_absent() {
        println!("no nginx: left out, and with it the targets that compare with it (--nginx PATH)\n");
    }
    fs::create_dir_all(home())?;
    let supervisor = Supervisor::new(options.flag("keep-data"))?;
    let mut results = begin(options.text("parts").is_some());
    let mut failed = Vec::new();
    for (nth, part) in parts.iter().enumerate() {
        let rest: u64 = parts[nth..].iter().map(|part| part.expected(is_quick)).sum();
        let title = format!("{}, part {} of {}", part.name, nth + 1, parts.len());
        println!(
            "== {title}: about {} s of {} min left\n",
            part.expected(is_quick),
            number(rest as f64 / 60.0)
        );
        let ends = since_epoch() + rest;
        let began = Instant::now();
        let result = home().join(format!("{}.json", part.name));
        if result.exists() {
            fs::remove_file(&result)?;
        }
        let time_max = Duration::from_secs(part.expected(is_quick) * PATIENCE);
        let end = supervisor.run(
            &part.words(&options),
            &[(PROGRESS, format!("{ends} {title}"))],
            Some(time_max),
        )?;
        if end == End::Interrupted {
            return Err("interrupted".into());
        }
        let measured = fs::read_to_string(&result).ok().filter(|_| end == End::Succeeded);
        let mut value = match measured {
            Some(text) => serde_json::from_str(&text)?,
            None => {
                failed.push(part.name);
                json!({ "measurement": part.name, "failed": format!("{end:?}") })
            }
        };
        value["seconds"] = json!(began.elapsed().as_secs());
        value["command"] = json!(part.command(is_quick));
        keep(&mut results, part.name, value);
        fs::write(results_path(), serde_json::to_string(&results)?)?;
        println!();
    }
    let page = render::write_page(&results)?;
    println!("results: {}\nreport: {}", results_path().display(), page.display());
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("parts that failed: {}", failed.join(", ")).into()),
    }
}

fn chosen(options: &Options) -> Outcome<Vec<&'static Part>> {
    let Some(names) = options.text("parts") else { return Ok(PARTS.iter().collect()) };
    let find = |name: &str| {
        let known = || PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
        let part = PARTS.iter().find(|part| part.name == name);
        part.ok_or_else(|| format!("no part {name}: {}", known()).into())
    };
    names.split(',').map(find).collect()
}

/// Results so far: those of before if only some parts are measured again.
fn begin(continues: bool) -> Value {
    let before = fs::read_to_string(results_path()).ok().filter(|_| continues);
    let before: Option<Value> = before.and_then(|text| serde_json::from_str(&text).ok());
    let mut results = before.unwrap_or_else(|| json!({ "parts": [] }));
    results["machine"] = machine::describe();
    results
}

/// Puts the result of a part to its place in the order of all parts.
fn keep(results: &mut Value, name: &str, value: Value) {
    let Some(list) = results["parts"].as_array_mut() else { return };
    list.retain(|part| part["measurement"] != name);
    list.push(value);
    let place = |part: &Value| PARTS.iter().position(|other| part["measurement"] == other.name);
    list.sort_by_key(place);
}

/// Remaining time of all parts, for the line of progress of one of them; empty for one alone.
pub(super) fn remaining() -> String {
    let Ok(text) = env::var(PROGRESS) else { return String::new() };
    let Some((ends, title)) = text.split_once(' ') else { return String::new() };
    let left = ends.parse::<u64>().unwrap_or(0).saturating_sub(since_epoch());
    format!("[{title}, {}:{:02} left] ", left / 60, left % 60)
}

fn since_epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| span.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_take_less_than_25_minutes() {
        assert!(PARTS.iter().map(|part| part.seconds).sum::<u64>() < 25 * 60);
        assert!(PARTS.iter().all(|part| part.seconds < 4 * 60 && part.quick_seconds <= part.seconds));
    }

    #[test]
    fn parts_are_replaced_and_keep_their_order() {
        let mut results = json!({ "parts": [] });
        for (name, value) in [("static", 1), ("pools", 2), ("static", 3)] {
            keep(&mut results, name, json!({ "measurement": name, "value": value }));
        }
        let found: Vec<_> = results["parts"].as_array().unwrap().iter().map(|part| &part["value"]).collect();
        assert_eq!(found, [2, 3]);
    }

    #[test]
    fn options_are_passed_to_the_parts() {
        let args = ["--quick", "--nginx", "/n", "--haproxy", "/h"].map(str::to_owned);
        let options = Options::parse(&args, &["haproxy"], &[]).unwrap();
        let words = |name| PARTS.iter().find(|part| part.name == name).unwrap().words(&options).join(" ");
        assert_eq!(words("proxy"), "proxy --quick --nginx /n --haproxy /h");
        assert_eq!(words("tls"), "tls --quick --nginx /n");
    }
}
