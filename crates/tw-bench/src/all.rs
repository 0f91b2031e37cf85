//! `cargo xtask bench all`: every measurement, one after the other, into one file of results and one page.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::contestant::Binaries;
use super::options::Options;
use super::remaining_time::{PROGRESS, since_epoch};
use super::render;
use super::report::number;
use super::supervise::{End, Supervisor};
use super::{Outcome, home, machine};

/// Option with the path of a distributed build, which is measured in addition to ours.
const DISTRIBUTED: &str = "distributed";
/// A part may take this many times as long as estimated; more is a hang.
const PATIENCE: u64 = 4;
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
    /// Cases that are measured with a distributed build, too; `None` if there are none.
    distributed: Option<Distributed>,
}

/// Cases with targets for a distributed build.
#[derive(Clone, Copy)]
struct Distributed {
    only: &'static str,
    /// Expected duration, in seconds.
    seconds: u64,
}

/// Build of our server that a part is measured with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Build {
    /// By `cargo build --release`, or that of `--ours`.
    Plain,
    /// By `cargo xtask dist`.
    Distributed,
}

impl Build {
    /// Key of its parts in the results.
    fn key(self) -> &'static str {
        match self {
            Self::Plain => "parts",
            Self::Distributed => DISTRIBUTED,
        }
    }
}

/// Rounds and seconds of short parts: five short rounds have a steadier median than two long ones.
const SHORT: &str = "--rounds 5 --seconds 1";
const SHORTER: &str = "--rounds 3 --seconds 1";
/// Cases of parts of which another part, with time series, has the others.
const DISK: &str = "--only 32k,stalls";

const PARTS: &[Part] = &[
    Part::new("pools", "--seconds 6", "", 125, 60),
    Part::new("open", "--memory 96m --seconds 4", "--memory 48m", 100, 55),
    Part::new("sharding", "--rounds 3 --seconds 2", "", 115, 45),
    Part::new("disk", "--memory 128m --seconds 5 --only 32k,stalls", DISK, 90, 70),
    Part::new("static", "--rounds 3 --seconds 1 --connections 64", "", 145, 95).distributed("1k,32k,log", 95),
    Part::new("filters", SHORT, "", 60, 20),
    Part { peers: &["haproxy"], ..Part::new("proxy", SHORTER, "", 110, 65).distributed("1k,32k", 70) },
    Part::new(
        "cache",
        "--rounds 3 --seconds 2 --memory 96m --fills 5000 --object 20m",
        "--memory 64m",
        170,
        110,
    )
    .distributed("1k,32k,fills", 120),
    Part::new("gateways", SHORT, "", 60, 25).distributed("1k,1k-close", 40),
    Part::new("grpc", SHORT, "", 25, 10),
    Part::new("tls", SHORT, "", 95, 50),
    Part::new("h2", SHORTER, "", 90, 60).distributed("1m", 35),
    Part::new("h3", SHORTER, "", 90, 60),
    Part { peers: &["haproxy"], ..Part::new("stream", "--rounds 3 --seconds 1 --relays 5000", "", 100, 60) },
    Part::new("idle", "", "", 12, 8),
    Part::new("reload", "--reloads 30 --seconds 3", "", 90, 40),
];

impl Part {
    const fn new(
        name: &'static str,
        args: &'static str,
        quick: &'static str,
        seconds: u64,
        quick_seconds: u64,
    ) -> Self {
        Self { name, args, quick, seconds, quick_seconds, peers: &[], distributed: None }
    }

    const fn distributed(self, only: &'static str, seconds: u64) -> Self {
        Self { distributed: Some(Distributed { only, seconds }), ..self }
    }

    /// Words after `bench` that anybody could repeat: without paths of one machine.
    fn command(&self, is_quick: bool, build: Build) -> String {
        let [name, args, quick] =
            if is_quick { [self.name, self.quick, "--quick"] } else { [self.name, self.args, ""] };
        let only = self.distributed.filter(|_| build == Build::Distributed);
        let only = only.map_or_else(String::new, |cases| format!("--only {}", cases.only));
        [name, args, quick, &only].into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// Arguments of `bench` for this part.
    fn words(&self, options: &Options, build: Build) -> Vec<String> {
        let command = self.command(options.flag("quick"), build);
        let mut words: Vec<String> = command.split_ascii_whitespace().map(str::to_owned).collect();
        for name in PASSED.iter().chain(self.peers) {
            let value = match *name {
                "ours" if build == Build::Distributed => options.text(DISTRIBUTED),
                name => options.text(name),
            };
            if let Some(value) = value {
                words.extend([format!("--{name}"), value.to_owned()]);
            }
        }
        words
    }

    /// Expected duration in seconds.
    fn expected(&self, is_quick: bool, build: Build) -> u64 {
        match (build, self.distributed) {
            (Build::Distributed, Some(cases)) => cases.seconds,
            _ if is_quick => self.quick_seconds,
            _ => self.seconds,
        }
    }
}

/// Measures all parts, or those of `--parts`; writes `results.json` and `report.html`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["parts", "haproxy", DISTRIBUTED], &[])?;
    let parts = chosen(&options)?;
    let is_quick = options.flag("quick");
    if let Some(path) = options.text(DISTRIBUTED).filter(|path| !Path::new(path).is_file()) {
        return Err(format!("{path}: build it with cargo xtask dist").into());
    }
    // A wrong path of a server ends all here, not each part.
    if Binaries::find(&options)?.nginx.is_absent() {
        println!("no nginx: left out, and with it the targets that compare with it (--nginx PATH)\n");
    }
    fs::create_dir_all(home())?;
    let supervisor = Supervisor::new(options.flag("keep-data"))?;
    let mut results = begin(options.text("parts").is_some());
    let mut failed = Vec::new();
    for (nth, &(part, build)) in parts.iter().enumerate() {
        let rest: u64 = parts[nth..].iter().map(|(part, build)| part.expected(is_quick, *build)).sum();
        let title = match build {
            Build::Plain => part.name.to_owned(),
            Build::Distributed => format!("{} of the distributed build", part.name),
        };
        let title = format!("{title}, part {} of {}", nth + 1, parts.len());
        println!(
            "== {title}: about {} s of {} min left\n",
            part.expected(is_quick, build),
            number(rest as f64 / 60.0)
        );
        let ends = since_epoch() + rest;
        let began = Instant::now();
        let result = home().join(format!("{}.json", part.name));
        if result.exists() {
            fs::remove_file(&result)?;
        }
        let time_max = Duration::from_secs(part.expected(is_quick, build) * PATIENCE);
        let end = supervisor.run(
            &part.words(&options, build),
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
        value["command"] = json!(part.command(is_quick, build));
        keep(&mut results, build.key(), part.name, value);
        fs::write(render::results_path(), serde_json::to_string(&results)?)?;
        println!();
    }
    let page = render::write_page(&results)?;
    println!("results: {}\nreport: {}", render::results_path().display(), page.display());
    if failed.is_empty() { Ok(()) } else { Err(format!("parts that failed: {}", failed.join(", ")).into()) }
}

/// Parts to be measured, each with a build: a distributed one right behind ours, if there is one.
fn chosen(options: &Options) -> Outcome<Vec<(&'static Part, Build)>> {
    let find = |name: &str| {
        let known_names = || PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
        let part = PARTS.iter().find(|part| part.name == name);
        part.ok_or_else(|| format!("no part {name}: {}", known_names()))
    };
    let parts: Vec<&Part> = match options.text("parts") {
        None => PARTS.iter().collect(),
        Some(names) => names.split(',').map(find).collect::<Result<_, _>>()?,
    };
    let has_distributed = options.text(DISTRIBUTED).is_some();
    let with_builds = |part: &'static Part| {
        let distributed = part.distributed.filter(|_| has_distributed).map(|_| (part, Build::Distributed));
        [Some((part, Build::Plain)), distributed].into_iter().flatten()
    };
    Ok(parts.into_iter().flat_map(with_builds).collect())
}

/// Results so far: those of before if only some parts are measured again.
fn begin(continues: bool) -> Value {
    let before = fs::read_to_string(render::results_path()).ok().filter(|_| continues);
    let before: Option<Value> = before.and_then(|text| serde_json::from_str(&text).ok());
    let mut results = before.unwrap_or_else(|| json!({}));
    for build in [Build::Plain, Build::Distributed] {
        if results[build.key()].is_null() {
            results[build.key()] = json!([]);
        }
    }
    results["machine"] = machine::describe();
    results
}

/// Puts the result of a part to its place in the order of all parts of a build.
fn keep(results: &mut Value, key: &str, name: &str, value: Value) {
    let Some(list) = results[key].as_array_mut() else { return };
    list.retain(|part| part["measurement"] != name);
    list.push(value);
    let place = |part: &Value| PARTS.iter().position(|other| part["measurement"] == other.name);
    list.sort_by_key(place);
}

#[cfg(test)]
mod tests {
    use super::super::targets;
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
            keep(&mut results, "parts", name, json!({ "measurement": name, "value": value }));
        }
        let found_values: Vec<_> =
            results["parts"].as_array().unwrap().iter().map(|part| &part["value"]).collect();
        assert_eq!(found_values, [2, 3]);
    }

    #[test]
    fn options_are_passed_to_the_parts() {
        let args = ["--quick", "--nginx", "/n", "--haproxy", "/h"].map(str::to_owned);
        let options = Options::parse(&args, &["haproxy"], &[]).unwrap();
        let words = |name, build| {
            PARTS.iter().find(|part| part.name == name).unwrap().words(&options, build).join(" ")
        };
        assert_eq!(words("proxy", Build::Plain), "proxy --quick --nginx /n --haproxy /h");
        assert_eq!(words("tls", Build::Plain), "tls --quick --nginx /n");
    }

    #[test]
    fn distributed_build_is_measured_behind_the_plain_one() {
        let args = ["--parts", "grpc,h2", "--ours", "/plain", "--distributed", "/d"].map(str::to_owned);
        let options = Options::parse(&args, &["parts", DISTRIBUTED], &[]).unwrap();
        let commands: Vec<_> = chosen(&options)
            .unwrap()
            .iter()
            .map(|(part, build)| part.words(&options, *build).join(" "))
            .collect();
        assert_eq!(
            commands,
            [
                "grpc --rounds 5 --seconds 1 --ours /plain",
                "h2 --rounds 3 --seconds 1 --ours /plain",
                "h2 --rounds 3 --seconds 1 --only 1m --ours /d"
            ]
        );
    }

    #[test]
    fn parts_of_the_distributed_build_have_targets() {
        for part in PARTS {
            let is_wanted = targets::of(part.name).any(|row_limit| row_limit.distributed.is_some());
            assert_eq!(part.distributed.is_some(), is_wanted, "{}", part.name);
        }
    }
}
