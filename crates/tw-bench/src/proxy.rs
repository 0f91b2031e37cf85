//! `cargo xtask bench proxy`: one core for a proxy; the origin behind it and the load share the other one.
//!
//! The measure for small responses is processor time of the proxy per request: it shows the cost of a request even
//! when the load or the origin, not the proxy, is the limit. For large bodies it is throughput and memory.
//! Connections stay open on both sides. Between the load and the origin a bare relay forwards the same bytes unread:
//! the limit.

mod contestants;
pub(super) mod origin;
mod overhead;
pub(super) mod relay;
mod tunnels;

use serde_json::Value;

use self::contestants::{HAPROXY, NGINX, NO_REQUEST_BUFFER, NO_TEMP_FILE, OURS, Proxies, RELAY};
use self::origin::{FILES, OriginFile, UPLOAD};
use super::Outcome;
use super::options::Options;
use super::report::{Report, Table, number, span};
use super::static_files::{Case, Plan, Score, cpu_ratio, measure, of, warn_if_busy, whole};

const OURS_NO_FILE: &str = "ours, no temp file";
const NGINX_NO_FILE: &str = "nginx, no temp file";
/// Shows how much of its memory is what the allocator rounds up to huge pages.
const OURS_SMALL: &str = "ours, small pages";
/// Connections of the load with large bodies.
const LARGE_CONNECTIONS: usize = 16;
const UPLOAD_SIZE: usize = 1 << 20;

/// Measures, prints, writes `proxy.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections", "haproxy", "tunnels"], &[])?;
    let quick = options.flag("quick");
    let plan = Plan::parse(&options, if quick { &[64] } else { &[64, 512] })?;
    let tunnels = options.number("tunnels", if quick { 1_000 } else { 10_000 })?;
    let proxies = Proxies::find(&options, plan.load_cpu)?;
    let mut report = Report::new("proxy", &proxies.binaries);
    match &proxies.haproxy {
        Some(haproxy) => report.note(&haproxy.version),
        None => report.note("no haproxy on the PATH: left out, and with it the targets that compare with it"),
    }

    let [small, middle, large] = FILES;
    for &connections in &plan.connections {
        if options.wants("1k") {
            costs(&mut report, &proxies, &plan, connections, "1 KiB", small)?;
        }
        if options.wants("32k") {
            costs(&mut report, &proxies, &plan, connections, "32 KiB", middle)?;
        }
    }
    if options.wants("1m") {
        downloads(&mut report, &proxies, &plan, large)?;
    }
    if options.wants("post") {
        uploads(&mut report, &proxies, &plan)?;
    }
    if options.wants("idle") {
        tunnels::run(&mut report, &proxies, tunnels)?;
    }
    if options.wants("overhead") {
        let seconds = plan.seconds * plan.rounds as u64;
        overhead::run(&mut report, &proxies, seconds, plan.server_cpu, plan.load_cpu)?;
    }
    report.finish(&options)
}

/// Processor time per request for a small response.
fn costs(
    report: &mut Report,
    proxies: &Proxies,
    plan: &Plan,
    connections: usize,
    title: &str,
    file: OriginFile,
) -> Outcome {
    let case = Case {
        title: format!("{title}, {connections} connections"),
        path: file.path,
        connections,
        script: String::new(),
        looks_at_memory: false,
        contestants: proxies.all(""),
    };
    let results = measure(&case, plan)?;
    whole(&results, file.size)?;

    let columns = ["CPU µs/req", "of nginx", "of haproxy", "of relay", "req/s", "p50", "p99", "peak RSS MB"];
    let mut table = Table::new(&case.title, &columns);
    for result in &results {
        let ratio = |other| number(cpu_ratio(&results, &result.name, other));
        let cells = vec![
            result.cpu_cell(),
            ratio(NGINX),
            ratio(HAPROXY),
            ratio(RELAY),
            number(result.per_second()),
            span(result.p50()),
            span(result.p99()),
            number(result.peak_megabytes()),
        ];
        table.row(&result.name, cells);
    }
    add_rows(report, &case.title, &table, &results);
    for other in [NGINX, HAPROXY] {
        if of(&results, other).is_some() {
            let what = format!("{}: CPU of {OURS} / {other}", case.title);
            report.target(what, cpu_ratio(&results, OURS, other));
        }
    }
    Ok(())
}

/// Throughput and memory with a large response.
fn downloads(report: &mut Report, proxies: &Proxies, plan: &Plan, file: OriginFile) -> Outcome {
    let mut contestants = proxies.all("");
    contestants.push(proxies.ours(OURS_SMALL, "").with_small_pages());
    contestants.push(proxies.ours(OURS_NO_FILE, NO_TEMP_FILE));
    contestants.push(proxies.nginx(NGINX_NO_FILE, NO_TEMP_FILE));
    let title = format!("1 MiB, {LARGE_CONNECTIONS} connections");
    let case = Case {
        title,
        path: file.path,
        connections: LARGE_CONNECTIONS,
        script: String::new(),
        looks_at_memory: true,
        contestants,
    };
    let results = measure(&case, plan)?;
    whole(&results, file.size)?;
    large_report(
        report,
        &case,
        file.size,
        &results,
        &[(OURS, NGINX), (OURS_SMALL, NGINX), (OURS_NO_FILE, NGINX_NO_FILE)],
    );
    Ok(())
}

/// Uploads of a large request body, received completely before it is sent on, and streamed.
fn uploads(report: &mut Report, proxies: &Proxies, plan: &Plan) -> Outcome {
    let small = |http| proxies.ours(OURS_SMALL, http).with_small_pages();
    let buffered = vec![proxies.ours(OURS, ""), proxies.nginx(NGINX, ""), small("")];
    let mut streamed = proxies.all(NO_REQUEST_BUFFER);
    streamed.push(small(NO_REQUEST_BUFFER));
    for (title, contestants) in [("buffered", buffered), ("not buffered", streamed)] {
        let case = Case {
            title: format!("POST 1 MiB, {title}, {LARGE_CONNECTIONS} connections"),
            path: UPLOAD,
            connections: LARGE_CONNECTIONS,
            script: format!("wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", {UPLOAD_SIZE})\n"),
            looks_at_memory: true,
            contestants,
        };
        let results = measure(&case, plan)?;
        large_report(report, &case, UPLOAD_SIZE, &results, &[(OURS, NGINX), (OURS_SMALL, NGINX)]);
    }
    Ok(())
}

/// A table of throughput and memory, and for each pair that neither is worse.
fn large_report(report: &mut Report, case: &Case, size: usize, results: &[Score], pairs: &[(&str, &str)]) {
    let columns =
        ["req/s", "of nginx", "of relay", "MB/s", "CPU µs/req", "p50", "p99", "heap MB", "peak RSS MB"];
    let mut table = Table::new(&case.title, &columns);
    for result in results {
        let speed = |other| number(ratio(results, &result.name, other, Score::per_second));
        let cells = vec![
            number(result.per_second()),
            speed(NGINX),
            speed(RELAY),
            number(result.per_second() * size as f64 / 1e6),
            result.cpu_cell(),
            span(result.p50()),
            span(result.p99()),
            number(result.heap_megabytes()),
            number(result.peak_megabytes()),
        ];
        table.row(&result.name, cells);
    }
    add_rows(report, &case.title, &table, results);
    for (ours, other) in pairs {
        let speed = ratio(results, ours, other, Score::per_second);
        let what = format!("{}: throughput of {ours} / {other}", case.title);
        report.target(what, speed);
        let heap = ratio(results, ours, other, Score::heap_megabytes);
        let what = format!("{}: heap of {ours} / {other}", case.title);
        report.target(what, heap);
        let peak = ratio(results, ours, other, Score::peak_megabytes);
        let what = format!("{}: peak RSS of {ours} / {other}", case.title);
        report.target(what, peak);
    }
}

fn add_rows(report: &mut Report, title: &str, table: &Table, results: &[Score]) {
    let numbers: Vec<Value> = results.iter().map(Score::json).collect();
    report.case(table, Value::Array(numbers));
    warn_if_busy(report, title, results);
}

/// A number of one in that of another; NaN if one of them did not take part.
fn ratio(results: &[Score], name: &str, other: &str, number: fn(&Score) -> f64) -> f64 {
    match (of(results, name), of(results, other)) {
        (Some(one), Some(other)) => number(one) / number(other),
        _ => f64::NAN,
    }
}
