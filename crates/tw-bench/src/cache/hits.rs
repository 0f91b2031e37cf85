//! Hot hits: cost of a response that is in memory.

use super::contestants::{Caches, NGINX, OURS, TRAFFIC_SERVER, VARNISH};
use crate::Outcome;
use crate::conf;
use crate::proxy::origin::{FILES, OriginFile};
use crate::report::{Report, Table, number, span};
use crate::static_files::{Case, Plan, Score, cpu_ratio, measure, warn_if_busy, whole};

const NGINX_SENDFILE: &str = "nginx, sendfile";
const NGINX_OPEN: &str = "nginx, open_file_cache";

/// One size of responses.
pub(super) struct Shape {
    pub(super) name: &'static str,
    title: &'static str,
    file: OriginFile,
}

pub(super) const SHAPES: &[Shape] = &[
    Shape { name: "1k", title: "1 KiB", file: FILES[0] },
    Shape { name: "32k", title: "32 KiB", file: FILES[1] },
];

/// Measures, and adds a table and a target.
pub(super) fn run(
    report: &mut Report,
    caches: &Caches,
    plan: &Plan,
    connections: usize,
    shape: &Shape,
) -> Outcome {
    let OriginFile { path, size } = shape.file;
    let mut contestants = vec![
        caches.ours(OURS, ""),
        caches.nginx(NGINX, ""),
        caches.nginx(NGINX_SENDFILE, "sendfile on;"),
        caches.nginx(NGINX_OPEN, conf::OPEN_FILE_CACHE),
    ];
    contestants.extend(caches.varnish());
    contestants.extend(caches.traffic_server());
    let case = Case {
        title: format!("hits, {}, {connections} connections", shape.title),
        path,
        connections,
        script: String::new(),
        looks_at_memory: false,
        contestants,
    };
    let before = caches.origin_requests()?;
    let results = measure(&case, plan)?;
    whole(&results, size)?;
    // Each connection may have asked before there was anything.
    let origin_requests = caches.origin_requests()? - before;
    let may = (connections * case.contestants.len()) as u64;
    if origin_requests > may {
        return Err(format!("{}: not hits: the origin was asked {origin_requests} times", case.title).into());
    }

    let columns =
        ["CPU µs/req", "of nginx", "of varnish", "of trafficserver", "req/s", "p50", "p99", "peak RSS MB"];
    let mut table = Table::new(&case.title, &columns);
    for result in &results {
        let ratio = |other| number(cpu_ratio(&results, &result.name, other));
        let cells = vec![
            result.cpu_cell(),
            ratio(NGINX),
            ratio(VARNISH),
            ratio(TRAFFIC_SERVER),
            number(result.per_second()),
            span(result.p50()),
            span(result.p99()),
            number(result.peak_megabytes()),
        ];
        table.row(&result.name, cells);
    }
    report.case(&table, results.iter().map(Score::json).collect());
    warn_if_busy(report, &case.title, &results);
    let what = format!("{}: CPU of {OURS} / {NGINX}", case.title);
    report.target(what, cpu_ratio(&results, OURS, NGINX));
    Ok(())
}
