//! `cargo xtask bench gateways`: one core for the server; a FastCGI application of our own and the load share the
//! other one.
//!
//! The measure is processor time of the server per request. The application says the same to everybody, over a Unix
//! socket, as PHP is mostly run.

pub(super) mod responder;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use tw_testkit::TempDir;

use super::Outcome;
use super::conf;
use super::contestant::{Binaries, Binary, Contestant, NGINX, OURS, Running};
use super::exec::RunPlacement;
use super::options::Options;
use super::proxy::origin::{FILES, OriginFile};
use super::report::{Report, Table, number, span};
use super::static_files::{Case, Plan, Score, cpu_ratio, measure, warn_if_busy, whole};

const CACHED: &str = "ours, fastcgi_cache";
const CACHED_PROXY: &str = "ours, proxy_cache";

/// An application with its socket. Dropping it ends it.
pub(super) struct Application {
    dir: TempDir,
    _running: Running,
}

impl Application {
    pub(super) fn start(size: usize, cpu: usize) -> Outcome<Self> {
        let dir = TempDir::new("responder")?;
        let socket = dir.join("app.sock").display().to_string();
        let args = ["--socket".to_owned(), socket, "--size".to_owned(), size.to_string()];
        let running = Contestant::own_loop("responder", "responder", &args).start(&RunPlacement::on(cpu))?;
        // A server that was started by root asks as somebody else.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
        fs::set_permissions(dir.join("app.sock"), Permissions::from_mode(0o777))?;
        Ok(Self { dir, _running: running })
    }

    /// A server in front of it, with directives for `http {}` and for its location.
    pub(super) fn behind(&self, name: &str, binary: &Binary, http: &str, location: &str) -> Contestant {
        let socket = self.dir.join("app.sock");
        let upstream = conf::upstream("app", &format!("unix:{}", socket.display()));
        let http = format!("{}{upstream}{http}", conf::FASTCGI);
        let server = conf::fill(conf::FASTCGI_SERVER, &[("@LOCATION@", location)]);
        Contestant::server(name, binary, &http, &server)
    }
}

/// Measures, prints, writes `gateways.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections"], &[])?;
    let plan = Plan::parse(&options, &[64])?;
    let binaries = Binaries::find(&options)?;
    let mut report = Report::new("gateways", &binaries);
    let [small, _, large] = FILES;
    for (case, title, file, stays) in [
        ("1k", "FastCGI, 1 KiB, connections stay", small, true),
        ("1k-close", "FastCGI, 1 KiB, a connection each", small, false),
        ("1m", "FastCGI, 1 MiB, connections stay", large, true),
    ] {
        if !options.wants(case) {
            continue;
        }
        let application = Application::start(file.size, plan.load_cpu)?;
        let location = if stays { "fastcgi_keep_conn on;" } else { "" };
        let contestants = vec![
            application.behind(OURS, &binaries.ours, "", location),
            application.behind(NGINX, &binaries.nginx, "", location),
        ];
        compare(&mut report, &plan, title, file, contestants, &[(OURS, NGINX)])?;
    }
    if options.wants("cached") {
        cached(&mut report, &plan, &binaries, small)?;
    }
    report.finish(&options)
}

/// Cost of a cached page, whichever upstream protocol has filled the cache.
fn cached(report: &mut Report, plan: &Plan, binaries: &Binaries, file: OriginFile) -> Outcome {
    let application = Application::start(file.size, plan.load_cpu)?;
    let origin = Contestant::own_loop("origin", "origin", &[]).start(&RunPlacement::on(plan.load_cpu))?;
    let cache = |prefix: &str| {
        let place = format!("{prefix}_cache_path cache keys_zone=c:8m;");
        let use_it = format!("{prefix}_cache c; {prefix}_cache_key $uri; {prefix}_cache_valid 1h;");
        (place, use_it)
    };
    let (place, use_it) = cache("fastcgi");
    let (proxy_place, use_proxy) = cache("proxy");
    let contestants = vec![
        application.behind(CACHED, &binaries.ours, &place, &use_it),
        Contestant::server(
            CACHED_PROXY,
            &binaries.ours,
            &format!("access_log off; {proxy_place}"),
            &format!("location / {{ proxy_pass http://{}; {use_proxy} }}", origin.addr()),
        ),
        application.behind(NGINX, &binaries.nginx, &place, &use_it),
    ];
    let pairs = [(CACHED, CACHED_PROXY), (CACHED, NGINX)];
    compare(report, plan, "1 KiB from a cache", file, contestants, &pairs)
}

/// Processor time per request; that of the first of each pair, in that of the second.
fn compare(
    report: &mut Report,
    plan: &Plan,
    title: &str,
    file: OriginFile,
    contestants: Vec<Contestant>,
    pairs: &[(&str, &str)],
) -> Outcome {
    for &connections in &plan.connections {
        let case = Case {
            title: format!("{title}, {connections} connections"),
            path: file.path,
            connections,
            script: String::new(),
            looks_at_memory: false,
            contestants: contestants.clone(),
        };
        let results = measure(&case, plan)?;
        whole(&results, file.size)?;
        let columns = ["CPU µs/req", "of nginx", "req/s", "p50", "p99", "peak RSS MB"];
        let mut table = Table::new(&case.title, &columns);
        for result in &results {
            let cells = vec![
                result.cpu_cell(),
                number(cpu_ratio(&results, &result.name, NGINX)),
                number(result.per_second()),
                span(result.p50()),
                span(result.p99()),
                number(result.peak_megabytes()),
            ];
            table.row(&result.name, cells);
        }
        report.case(&table, Value::Array(results.iter().map(Score::json).collect()));
        warn_if_busy(report, &case.title, &results);
        for (one, other) in pairs {
            let what = format!("{}: CPU of {one} / {other}", case.title);
            report.target(what, cpu_ratio(&results, one, other));
        }
    }
    Ok(())
}
