//! `cargo xtask bench reload`: effect on clients of reloads and of upgrades of the binary.
//!
//! Clients at full load on keep-alive connections, and waiting ones, while the configuration changes a little again
//! and again, and while new binaries take over. No client should notice. Then a configuration of 2,000 servers and
//! 20,000 locations, which takes long to load: the loops should not be affected by that either. Then configurations of 10,000
//! servers and of 100,000 locations, without clients: time and memory to load them.

mod clients;
mod daemon;
mod sizes;

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::wait;

use self::clients::{Clients, Counts, OnDemandClient};
use self::daemon::Daemon;
use self::sizes::Size;
use super::Outcome;
use super::contestant::{Binaries, Binary, OURS};
use super::exec::RunPlacement;
use super::options::Options;
use super::prometheus::Histogram;
use super::report::{Report, Table, median, number, progress, span};

/// Pause between two reloads, in which late effects of the last one show.
const PAUSE: Duration = Duration::from_millis(100);
const SERVERS: usize = 2_000;
const LOCATIONS_EACH: usize = 10;
/// Times the large configuration is read again.
const LARGE_RELOADS: usize = 10;
/// Times each of the larger ones is tested and read again.
const SIZE_ROUNDS: usize = 3;

/// Of which time requests are counted.
#[derive(Clone, Copy)]
enum Phase {
    Uncounted,
    Without,
    Reloads,
    Upgrades,
}

const PHASES: usize = Phase::Upgrades as usize + 1;

struct Plan {
    connections: usize,
    idle: usize,
    reloads: usize,
    upgrades: usize,
    seconds: u64,
    server_cpu: usize,
    load_cpu: usize,
}

/// Results of one server.
struct Score {
    name: &'static str,
    counts: Vec<Counts>,
    /// Duration of each reload.
    reloads: Vec<Duration>,
    upgrades: Vec<Duration>,
    /// Why there was no upgrade.
    no_upgrade: Option<String>,
    /// Waiting connections that reloads left open; requests on them that failed.
    kept: usize,
    failed_idle: usize,
}

/// Measures, prints, writes `reload.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let names = ["connections", "idle", "reloads", "upgrades", "seconds"];
    let options = Options::parse(args, &names, &[])?;
    let quick = options.flag("quick");
    let plan = Plan {
        connections: options.number("connections", 64)?,
        idle: options.number("idle", 100)?,
        reloads: options.number("reloads", if quick { 5 } else { 100 })?,
        upgrades: options.number("upgrades", if quick { 1 } else { 5 })?,
        seconds: options.number("seconds", if quick { 1 } else { 5 })?,
        server_cpu: options.number("server-cpu", 0)?,
        load_cpu: options.number("load-cpu", 1)?,
    };
    let binaries = Binaries::find(&options)?;
    let mut report = Report::new("reload", &binaries);
    if options.wants("small") {
        let scores = binaries.named().into_iter().map(|(name, binary)| small(name, binary, &plan));
        let scores = scores.collect::<Outcome<Vec<_>>>()?;
        report_small(&mut report, &plan, &scores);
    }
    if options.wants("large") {
        let scores = binaries.named().into_iter().map(|(name, binary)| large(name, binary, &plan));
        let scores = scores.collect::<Outcome<Vec<_>>>()?;
        report_large(&mut report, &scores);
    }
    let rounds = if quick { 1 } else { SIZE_ROUNDS };
    for (case, size) in [
        ("servers", Size::Servers(if quick { 1_000 } else { 10_000 })),
        ("locations", Size::Locations(if quick { 10_000 } else { 100_000 })),
    ] {
        if options.wants(case) {
            sizes::run(&mut report, &binaries, size, rounds)?;
        }
    }
    report.finish(&options)
}

fn small(name: &'static str, binary: &Binary, plan: &Plan) -> Outcome<Score> {
    let mut daemon = Daemon::start(binary, &RunPlacement::on(plan.server_cpu), String::new())?;
    let mut patients: Vec<_> =
        (0..plan.idle).map(|_| OnDemandClient::open(daemon.addr())).collect::<Outcome<_>>()?;
    let clients = Clients::start(daemon.addr(), plan.connections, PHASES, plan.load_cpu)?;
    wait::pause(Duration::from_secs(1));

    clients.enter(Phase::Without as usize);
    wait::pause(Duration::from_secs(plan.seconds));
    clients.enter(Phase::Reloads as usize);
    let mut reloads = Vec::new();
    for nth in 0..plan.reloads {
        progress(&format!("{name}: reload {nth}"));
        reloads.push(daemon.reload()?);
        wait::pause(PAUSE);
    }
    clients.enter(Phase::Uncounted as usize);
    let kept = patients.iter().filter(|patient| patient.is_open()).count();
    let mut failed_idle = patients.iter_mut().filter_map(|patient| patient.send_requests().err()).count();

    clients.enter(Phase::Upgrades as usize);
    let mut upgrades = Vec::new();
    let mut no_upgrade = None;
    for nth in 0..plan.upgrades {
        progress(&format!("{name}: upgrade {nth}"));
        match daemon.upgrade() {
            Ok(took) => upgrades.push(took),
            Err(why) => {
                no_upgrade = Some(why.to_string());
                break;
            }
        }
        wait::pause(PAUSE);
    }
    clients.enter(Phase::Uncounted as usize);
    failed_idle += patients.iter_mut().filter_map(|patient| patient.send_requests().err()).count();
    progress("");
    Ok(Score { name, counts: clients.finish()?, reloads, upgrades, no_upgrade, kept, failed_idle })
}

fn report_small(report: &mut Report, plan: &Plan, scores: &[Score]) {
    let columns = ["answered", "failed", "reset", "reopened", "p50", "p99", "took"];
    for (title, phase) in [
        (format!("{} connections, nothing else", plan.connections), Phase::Without),
        (format!("{} reloads", plan.reloads), Phase::Reloads),
        (format!("{} upgrades of the binary", plan.upgrades), Phase::Upgrades),
    ] {
        let mut table = Table::new(title, &columns);
        let mut numbers = Vec::new();
        for score in scores {
            let counts = &score.counts[phase as usize];
            let took = match phase {
                Phase::Reloads => middle(&score.reloads),
                Phase::Upgrades => middle(&score.upgrades),
                Phase::Without | Phase::Uncounted => None,
            };
            let cells = vec![
                number(counts.answered as f64),
                counts.failed.to_string(),
                counts.resets.to_string(),
                counts.reopened.to_string(),
                span(counts.quantile(0.5)),
                span(counts.quantile(0.99)),
                took.map_or_else(|| "—".to_owned(), span),
            ];
            table.row(score.name, cells);
            numbers.push(counts_json(score.name, counts, took));
        }
        report.case(&table, Value::Array(numbers));
    }
    let mut table = Table::new(format!("{} idle connections", plan.idle), &["kept by reloads", "failed"]);
    for score in scores {
        table.row(score.name, vec![score.kept.to_string(), score.failed_idle.to_string()]);
        if let Some(why) = &score.no_upgrade {
            println!("{}: {why}\n", score.name);
        }
    }
    let idle = |score: &Score| json!({ "name": score.name, "kept": score.kept, "failed": score.failed_idle });
    report.case(&table, scores.iter().map(idle).collect());

    let Some(ours) = scores.iter().find(|score| score.name == OURS) else { return };
    let [without, reloads, upgrades] =
        [Phase::Without, Phase::Reloads, Phase::Upgrades].map(|phase| &ours.counts[phase as usize]);
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    report.target("reloads: requests that failed", reloads.failed as f64);
    report.target("reloads: connections reset", reloads.resets as f64);
    report.target("reloads: p99, of that without", ms(reloads.quantile(0.99)) / ms(without.quantile(0.99)));
    report.target("reloads: share of idle connections that stay", ours.kept as f64 / plan.idle as f64);
    report.target("idle connections: requests that failed", ours.failed_idle as f64);
    let missing = plan.upgrades as f64 - ours.upgrades.len() as f64;
    report.target("upgrades that did not happen", missing);
    report.target("upgrades: requests that failed", upgrades.failed as f64);
    report.target("upgrades: connections reset", upgrades.resets as f64);
}

fn counts_json(name: &str, counts: &Counts, took: Option<Duration>) -> Value {
    json!({
        "name": name,
        "answered": counts.answered,
        "failed": counts.failed,
        "resets": counts.resets,
        "reopened": counts.reopened,
        "p50_us": counts.quantile(0.5).as_micros() as u64,
        "p99_us": counts.quantile(0.99).as_micros() as u64,
        "took_us": took.map(|took| took.as_micros() as u64),
    })
}

/// Results of one server with the large configuration.
struct LargeScore {
    name: &'static str,
    idle: Vec<Duration>,
    loaded: Vec<Duration>,
    counts: Vec<Counts>,
    /// The longest turn of a loop, without load and under load; `None` if the server does not tell.
    turn_idle: Option<Duration>,
    turn_loaded: Option<Duration>,
}

fn large(name: &'static str, binary: &Binary, plan: &Plan) -> Outcome<LargeScore> {
    progress(&format!("{name}: large configuration"));
    let more = large_conf();
    let mut daemon = Daemon::start(binary, &RunPlacement::default(), more)?;
    let reloads = |daemon: &mut Daemon| -> Outcome<Vec<Duration>> {
        (0..LARGE_RELOADS)
            .map(|_| {
                wait::pause(PAUSE);
                daemon.reload()
            })
            .collect()
    };
    let before = turns(&daemon, binary)?;
    let idle = reloads(&mut daemon)?;
    let between = turns(&daemon, binary)?;
    let clients = Clients::start(daemon.addr(), plan.connections, PHASES, plan.load_cpu)?;
    clients.enter(Phase::Without as usize);
    wait::pause(Duration::from_secs(plan.seconds));
    clients.enter(Phase::Reloads as usize);
    let loaded = reloads(&mut daemon)?;
    let after = turns(&daemon, binary)?;
    let longest = |from: &Option<Histogram>, to: &Option<Histogram>| {
        Some(Duration::from_secs_f64(to.as_ref()?.since(from.as_ref()?).quantile(1.0)?.min(1e6)))
    };
    progress("");
    Ok(LargeScore {
        name,
        idle,
        loaded,
        counts: clients.finish()?,
        turn_idle: longest(&before, &between),
        turn_loaded: longest(&between, &after),
    })
}

/// The histogram of turns, if the server has one.
fn turns(daemon: &Daemon, binary: &Binary) -> Outcome<Option<Histogram>> {
    if !binary.is_tailwater() {
        return Ok(None);
    }
    let url = format!("http://{}/metrics", daemon.addr());
    Histogram::fetch(&url, "tailwater_event_loop_blocked_seconds").map(Some)
}

/// Servers and locations of every kind, as sites have them.
fn large_conf() -> String {
    let mut conf = String::from("map $http_user_agent $is_bot { default 0; ~*bot 1; }\n");
    for server in 0..SERVERS {
        write!(
            conf,
            "server {{ listen 127.0.0.1:{{port}}; server_name www{server}.example.com *.d{server}.example.net;
root /srv/{server}; index index.html; error_page 404 /404.html; add_header X-Site site{server};\n"
        )
        .expect("writing to memory does not fail");
        for location in 0..LOCATIONS_EACH {
            let line = match location % 5 {
                0 => format!("location /p{location}/ {{ try_files $uri $uri/ /index.html; }}"),
                1 => format!("location /static{location}/ {{ expires 30d; access_log off; }}"),
                2 => format!("location = /old{location} {{ return 301 https://$host/new$is_args$args; }}"),
                3 => format!("location ~ ^/u{location}/s{server}/(\\d+)$ {{ alias /srv/u/$1; }}"),
                _ => format!(
                    "location ^~ /api{location}/ {{ if ($is_bot) {{ return 403; }} rewrite ^/api/(.*)$ /v2/$1 break; gzip on; }}"
                ),
            };
            conf += &line;
            conf.push('\n');
        }
        conf += "}\n";
    }
    conf
}

fn report_large(report: &mut Report, scores: &[LargeScore]) {
    let title = format!("{SERVERS} servers, {} locations", SERVERS * LOCATIONS_EACH);
    let columns =
        ["reload", "under load", "longest turn", "under load", "p99", "p99 while", "failed", "reset"];
    let mut table = Table::new(title, &columns);
    let mut numbers = Vec::new();
    let shown = |span_of: Option<Duration>| span_of.map_or_else(|| "—".to_owned(), span);
    for score in scores {
        let [without, reloads] = [Phase::Without, Phase::Reloads].map(|phase| &score.counts[phase as usize]);
        let cells = vec![
            shown(middle(&score.idle)),
            shown(middle(&score.loaded)),
            shown(score.turn_idle),
            shown(score.turn_loaded),
            span(without.quantile(0.99)),
            span(reloads.quantile(0.99)),
            reloads.failed.to_string(),
            reloads.resets.to_string(),
        ];
        table.row(score.name, cells);
        let mut one = counts_json(score.name, reloads, middle(&score.loaded));
        let us = |span: Option<Duration>| span.map(|span| span.as_micros() as u64);
        if let Some(fields) = one.as_object_mut() {
            fields.insert("idle_took_us".to_owned(), json!(us(middle(&score.idle))));
            fields.insert("longest_turn_idle_us".to_owned(), json!(us(score.turn_idle)));
            fields.insert("longest_turn_us".to_owned(), json!(us(score.turn_loaded)));
        }
        numbers.push(one);
    }
    report.case(&table, Value::Array(numbers));
    let Some(ours) = scores.iter().find(|score| score.name == OURS) else { return };
    let ms = |span: Option<Duration>| span.map_or(f64::NAN, |span| span.as_secs_f64() * 1e3);
    report.target("large: time of a reload", ms(middle(&ours.idle)));
    report.target("large: longest turn of a loop", ms(ours.turn_idle));
}

/// Median; `None` without values.
fn middle(spans: &[Duration]) -> Option<Duration> {
    let seconds = median(spans.iter().map(Duration::as_secs_f64));
    seconds.is_finite().then(|| Duration::from_secs_f64(seconds))
}
