//! `cargo xtask bench scripts`: cost of scripts, beside nginx with njs, and what hostile scripts take from other requests.
//!
//! nginx needs its module for njs (`NGINX_JS`). It has no limits for scripts: an endless one stops its worker, so only ours runs beside them.
//! The script processes of ours count: processor times are those of a server and of all processes below it.

use std::fs;
use std::path::Path;

use super::contestant::{Binaries, Binary, Contestant, NGINX, OURS, hot_files, root_directive};
use super::neighbour::{Neighbour, beside_requests, show};
use super::options::Options;
use super::report::{Report, Table, number, span};
use super::static_files::{Case, Plan, Score, cpu_ratio, measure, of, warn_if_busy};
use super::{Outcome, home, loops};

/// Module of nginx where Debian has it.
const MODULE: &str = "/usr/share/nginx/modules/ngx_http_js_module.so";
/// Program of ours for scripts, beside the server.
const PROGRAM: &str = "tailwater-scripts";
/// Clients of hostile scripts at the same time.
const HOSTILE_COUNT: usize = 10;
/// Hostile functions, with what they do.
const HOSTILE: [(&str, &str); 4] = [
    ("endless", "endless loops"),
    ("json", "parsers of 2 MB of JSON"),
    ("regexp", "catastrophic regular expressions"),
    ("memory", "memory bombs"),
];
const SCRIPT: &str = "
function hello(r) { r.return(200, 'hello'); }
function tenant(r) { return r.headersIn.Host; }
function endless() { for (;;) { 'x'.repeat(1e6); } }
function json() {
    const text = '[' + Array(2000).fill('\"' + 'x'.repeat(1000) + '\"').join(',') + ']';
    for (;;) { JSON.parse(text); }
}
function regexp() { /^(a+)+$/.test('a'.repeat(64) + 'b'); }
function memory() { const all = []; for (;;) { all.push('x'.repeat(1e5) + all.length); } }
export default {hello, tenant, endless, json, regexp, memory};
";
const LOCATIONS: &str = "location = /return { return 200 hello; } \
     location = /content { js_content bench.hello; } \
     location = /set { add_header X-Tenant $tenant; return 200 hello; } \
     location = /endless { js_content bench.endless; } \
     location = /json { js_content bench.json; } \
     location = /regexp { js_content bench.regexp; } \
     location = /memory { js_content bench.memory; }";

/// Measures, prints, writes `scripts.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections"], &[])?;
    let plan = Plan::parse(&options, &[8])?;
    let mut binaries = Binaries::find(&options)?;
    let program = binaries.ours.path().with_file_name(PROGRAM);
    if !program.is_file() {
        return Err(format!("no {}: cargo build --release -p {PROGRAM}", program.display()).into());
    }
    let module = std::env::var("NGINX_JS").unwrap_or_else(|_| MODULE.to_owned());
    let has_module = !binaries.nginx.is_absent() && Path::new(&module).is_file();
    if has_module {
        binaries.nginx = binaries.nginx.with_main(&format!("load_module {module};"));
    }
    fs::create_dir_all(home())?;
    let script = home().join("bench.js");
    fs::write(&script, SCRIPT)?;
    let root = root_directive(&hot_files(&[("1k", 1 << 10)])?);
    let http =
        format!("access_log off; js_import bench from {}; js_set $tenant bench.tenant;", script.display());
    let server = |name: &str, binary: &Binary| {
        let site = format!("{root} {LOCATIONS} {}", loops::location(binary));
        Contestant::server(name, binary, &http, &site).with_master()
    };
    let mut contestants = vec![server(OURS, &binaries.ours)];
    if has_module && binaries.nginx.knows(&http)? {
        contestants.push(server(NGINX, &binaries.nginx));
    }
    let mut report = Report::new("scripts", &binaries);
    if options.wants("calls") {
        calls(&mut report, &contestants, &plan)?;
    }
    for (function, what) in HOSTILE {
        if options.wants(function) {
            hostile(&mut report, &contestants, &plan, function, what)?;
        }
    }
    report.finish(&options)
}

/// Cost of a call, over that of a response without one.
fn calls(report: &mut Report, contestants: &[Contestant], plan: &Plan) -> Outcome {
    let mut plain: Vec<Score> = Vec::new();
    for (title, path) in [("return", "/return"), ("js_content", "/content"), ("js_set", "/set")] {
        let case = Case {
            title: title.to_owned(),
            path,
            connections: plan.connections.first().copied().unwrap_or(1),
            script: String::new(),
            looks_at_memory: false,
            contestants: contestants.to_vec(),
        };
        let results = measure(&case, plan)?;
        let mut table = Table::new(title, &["CPU µs/req", "of it the call", "req/s", "p50", "p99"]);
        for result in &results {
            let call = of(&plain, &result.name).map_or(0.0, |plain| result.cpu_us() - plain.cpu_us());
            let cells = vec![
                result.cpu_cell(),
                number(call),
                number(result.per_second()),
                span(result.p50()),
                span(result.p99()),
            ];
            table.row(&result.name, cells);
        }
        report.case(&table, results.iter().map(Score::json).collect());
        warn_if_busy(report, title, &results);
        if title == "return" {
            plain = results;
            continue;
        }
        let times = of(&results, OURS).zip(of(&plain, OURS));
        let cost = times.map(|(with, without)| with.p50().saturating_sub(without.p50()).as_secs_f64() * 1e6);
        report.target(format!("{title}: p50 of the call"), cost.unwrap_or(f64::NAN));
        if of(&results, NGINX).is_some() {
            report.target(format!("{title}: CPU of ours / nginx"), cpu_ratio(&results, OURS, NGINX));
        }
    }
    Ok(())
}

/// Requests of a small page beside a hostile function.
fn hostile(
    report: &mut Report,
    contestants: &[Contestant],
    plan: &Plan,
    function: &str,
    what: &str,
) -> Outcome {
    let request = format!("GET /{function} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let ours = contestants.iter().filter(|one| one.name == OURS);
    let results: Vec<Neighbour> =
        ours.map(|one| beside_requests(one, &request, HOSTILE_COUNT, plan)).collect::<Outcome<_>>()?;
    show(report, &format!("hostile scripts, {HOSTILE_COUNT} {what}"), function, &results);
    Ok(())
}
