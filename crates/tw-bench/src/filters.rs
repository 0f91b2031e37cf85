//! `cargo xtask bench filters`: cost of compressing a text for every request.
//!
//! As in `static`, the measure is processor time per request, of all threads of a server, and all servers of a case
//! run from its beginning. The same level is not the same thing everywhere, so the size of the responses stands
//! beside it.

use std::fs;
use std::path::{Path, PathBuf};

use super::contestant::{Binaries, Binary, Contestant, NGINX, OURS, root_directive};
use super::data;
use super::options::Options;
use super::report::{Report, Table, number, span};
use super::static_files::{Case, Plan, Score, cpu_ratio, measure, of, warn_if_busy};
use super::{Outcome, home};

/// Name, file, coding and directives of each case.
const CASES: [(&str, &str, &str, &str); 5] = [
    ("gzip-1-10k", "/10k.html", "gzip", "gzip on;"),
    ("gzip-1", "/100k.html", "gzip", "gzip on;"),
    ("gzip-6", "/100k.html", "gzip", "gzip on; gzip_comp_level 6;"),
    ("brotli", "/100k.html", "br", "brotli on;"),
    ("zstd", "/100k.html", "zstd", "zstd on;"),
];

/// Measures, prints, writes `filters.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections"], &[])?;
    let quick = options.flag("quick");
    let plan = Plan {
        rounds: options.number("rounds", if quick { 2 } else { 5 })?,
        seconds: options.number("seconds", if quick { 1 } else { 2 })?,
        connections: vec![options.number("connections", 32)?],
        server_cpu: options.number("server-cpu", 0)?,
        load_cpu: options.number("load-cpu", 1)?,
    };
    let binaries = Binaries::find(&options)?;
    let files = files()?;
    let mut report = Report::new("filters", &binaries);
    for (name, path, coding, directives) in CASES.into_iter().filter(|case| options.wants(case.0)) {
        let http = format!("access_log off; {directives}");
        let server = |name, binary: &Binary| {
            let root = root_directive(&files);
            Contestant::server(name, binary, &http, &format!("types {{ text/html html; }} {root}"))
        };
        let mut contestants = Vec::new();
        if binaries.nginx.knows(&http)? {
            contestants.push(server(NGINX, &binaries.nginx));
        }
        contestants.push(server(OURS, &binaries.ours));
        let case = Case {
            title: name.to_owned(),
            path,
            connections: plan.connections.first().copied().unwrap_or(1),
            script: format!("wrk.headers[\"Accept-Encoding\"] = \"{coding}\"\n"),
            looks_at_memory: false,
            contestants,
        };
        let results = measure(&case, &plan)?;
        add_rows(&mut report, &case, &results, fs::metadata(files.join(&path[1..]))?.len());
    }
    report.finish(&options)
}

/// Writes the texts; returns their directory.
fn files() -> Outcome<PathBuf> {
    let dir = home().join("texts");
    fs::create_dir_all(&dir)?;
    for (name, size) in [("10k.html", 10 << 10), ("100k.html", 100 << 10)] {
        write(&dir.join(name), data::text(size)?)?;
    }
    Ok(dir)
}

/// Leaves a file alone that is right already: one that is old is kept in memory.
fn write(path: &Path, text: Vec<u8>) -> Outcome {
    if fs::read(path).is_ok_and(|candidate| candidate == text) { Ok(()) } else { Ok(fs::write(path, text)?) }
}

fn add_rows(report: &mut Report, case: &Case, results: &[Score], size: u64) {
    let columns = ["CPU µs/req", "of nginx", "MB/s of text", "times smaller", "req/s", "p50", "p99"];
    let mut table = Table::new(&case.title, &columns);
    for result in results {
        let cells = vec![
            result.cpu_cell(),
            number(cpu_ratio(results, &result.name, NGINX)),
            number(size as f64 / result.cpu_us()),
            number(size as f64 / result.response_bytes()),
            number(result.per_second()),
            span(result.p50()),
            span(result.p99()),
        ];
        table.row(&result.name, cells);
    }
    report.case(&table, results.iter().map(Score::json).collect());
    warn_if_busy(report, &case.title, results);
    if of(results, NGINX).is_some() {
        let what = format!("{}: CPU of ours / nginx", case.title);
        report.target(what, cpu_ratio(results, OURS, NGINX));
    }
}
