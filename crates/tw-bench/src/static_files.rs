//! `cargo xtask bench static`: one server core against one load core, files that stay in memory.
//!
//! The measure is processor time per request: it shows the cost of a request even when the load, not the server, is
//! the limit. All servers of a case run from its beginning; each round loads them one after the other, so other
//! activity of the machine affects all of them alike.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::{Client, wait};

use super::Outcome;
use super::conf::{OPEN_FILE_CACHE as CACHE, SENDFILE};
use super::contestant::{Binaries, Binary, Contestant, OURS, Running, hot_files, root_directive};
use super::exec::RunPlacement;
use super::load::{Load, LoadResult};
use super::loops;
use super::options::Options;
use super::report::{Report, Table, median, number, progress, span, spread, with_spread};
use super::usage;

const OURS_CACHE: &str = "ours, open_file_cache";
const OURS_SENDFILE: &str = "ours, open_file_cache, sendfile, tcp_nopush";
const OURS_LOG: &str = "ours, access_log";
const OURS_LOG_CACHE: &str = "ours, access_log, open_file_cache";
const NGINX: &str = "nginx, default (sendfile off)";
const NGINX_SENDFILE: &str = "nginx, sendfile";
const NGINX_CACHE: &str = "nginx, open_file_cache";
const NGINX_CACHE_SENDFILE: &str = "nginx, open_file_cache, sendfile";
const NGINX_NOPUSH: &str = "nginx, open_file_cache, sendfile, tcp_nopush";
const NGINX_LOG: &str = "nginx, access_log";
const NGINX_LOG_BUFFER: &str = "nginx, access_log buffer=32k";
const NGINX_LOG_BUFFER_CACHE: &str = "nginx, access_log buffer=32k, open_file_cache";
const BARE: &str = "bare epoll loop";
const BARE_SENDFILE: &str = "bare epoll loop, sendfile";

/// Counter of bytes sent by `sendfile`.
const SENT: &str = "tailwater_sendfile_bytes_total";
/// Above this share of the server's core in foreign hands the numbers are not worth writing down.
const FOREIGN_MAX: f64 = 0.05;

/// Duration and directory.
pub(super) struct Plan {
    pub(super) rounds: usize,
    pub(super) seconds: u64,
    pub(super) connections: Vec<usize>,
    pub(super) server_cpu: usize,
    pub(super) load_cpu: usize,
}

impl Plan {
    /// Reads the options that most benchmarks have; `connections` is the default of theirs.
    pub(super) fn parse(options: &Options, connections: &[usize]) -> Outcome<Self> {
        let quick = options.flag("quick");
        Ok(Self {
            rounds: options.number("rounds", if quick { 2 } else { 5 })?,
            seconds: options.number("seconds", if quick { 1 } else { 4 })?,
            connections: options.numbers("connections", connections)?,
            server_cpu: options.number("server-cpu", 0)?,
            load_cpu: options.number("load-cpu", 1)?,
        })
    }
}

/// One file, one number of connections, several servers.
pub(super) struct Case {
    pub(super) title: String,
    pub(super) path: &'static str,
    pub(super) connections: usize,
    /// Lua that changes the requests of the load.
    pub(super) script: String,
    /// True to sample the servers' memory during the load, which costs them a little time.
    pub(super) looks_at_memory: bool,
    pub(super) contestants: Vec<Contestant>,
}

/// One load on one server.
struct Sample {
    served: LoadResult,
    /// Processor time of the server.
    cpu: Duration,
    /// Share of the server's core that others used.
    foreign: f64,
    /// The most memory the server ever had resident until the end of the load, in bytes.
    peak: u64,
    /// Memory of its own that it had written half-way through the load, in bytes, if that was looked at.
    heap: Option<u64>,
    /// Bytes that its loops sent by `sendfile`, if it has metrics.
    sent_by_kernel: Option<u64>,
}

/// All loads on one server, and their medians.
pub(super) struct Score {
    pub(super) name: String,
    samples: Vec<Sample>,
}

/// Measures, prints, writes `static.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections"], &[])?;
    let quick = options.flag("quick");
    let plan = Plan::parse(&options, if quick { &[64] } else { &[64, 512] })?;
    let binaries = Binaries::find(&options)?;
    let files = hot_files(&[("1k", 1 << 10), ("16k", 16 << 10), ("32k", 32 << 10), ("4m", 4 << 20)])?;
    let mut report = Report::new("static", &binaries);

    for &connections in &plan.connections {
        for (name, title, path) in
            [("1k", "1 KiB", "/1k"), ("16k", "16 KiB", "/16k"), ("32k", "32 KiB", "/32k")]
        {
            if options.wants(name) {
                let contestants = small_contestants(&binaries, &files, path)?;
                let title = format!("{title}, {connections} connections");
                let case = Case {
                    title,
                    path,
                    connections,
                    script: String::new(),
                    looks_at_memory: false,
                    contestants,
                };
                let results = measure(&case, &plan)?;
                small_report(&mut report, &case, &results, name);
            }
        }
        if options.wants("log") {
            let case = Case {
                title: format!("1 KiB, a line in the access log for each request, {connections} connections"),
                path: "/1k",
                connections,
                script: String::new(),
                looks_at_memory: false,
                contestants: logging_contestants(&binaries, &files),
            };
            let results = measure(&case, &plan)?;
            log_report(&mut report, &case, &results);
        }
    }
    if options.wants("4m") {
        // The number of the hot clients in the article this measurement comes from.
        const CONNECTIONS: usize = 50;
        let case = Case {
            title: format!("4 MiB, {CONNECTIONS} connections"),
            path: "/4m",
            connections: CONNECTIONS,
            script: String::new(),
            looks_at_memory: false,
            contestants: large_contestants(&binaries, &files)?,
        };
        let results = measure(&case, &plan)?;
        large_report(&mut report, &case, &results);
    }
    report.finish(&options)
}

fn small_contestants(binaries: &Binaries, files: &Path, path: &str) -> Outcome<Vec<Contestant>> {
    let Binaries { ours, nginx } = binaries;
    let server = |name, binary: &Binary, http: &str| {
        Contestant::server(name, binary, &format!("access_log off; {http}"), &root_directive(files))
    };
    let mut contestants = vec![
        server(OURS, ours, ""),
        server(OURS_CACHE, ours, CACHE),
        server(NGINX, nginx, "sendfile off;"),
        server(NGINX_SENDFILE, nginx, "sendfile on;"),
        server(NGINX_CACHE, nginx, &format!("sendfile off; {CACHE}")),
        server(NGINX_CACHE_SENDFILE, nginx, &format!("sendfile on; {CACHE}")),
        ours_sendfile(binaries, files),
        server(NGINX_NOPUSH, nginx, &format!("{SENDFILE} {CACHE}")),
    ];
    let response = response_bytes(&server(NGINX, binaries.any(), ""), path)?;
    contestants.push(bare_sendfile(files, path, &response)?);
    contestants.push(Contestant::bare_loop(response));
    Ok(contestants)
}

/// Servers that write every request to a file: nginx with a system call for each line, and with a buffer. Tailwater always has one.
fn logging_contestants(Binaries { ours, nginx }: &Binaries, files: &Path) -> Vec<Contestant> {
    let server = |name, binary: &Binary, parameters: &str, http: &str| {
        let http = format!("access_log logs/access.log {parameters}; {http}");
        Contestant::server(name, binary, &http, &root_directive(files))
    };
    vec![
        server(OURS_LOG, ours, "", ""),
        server(OURS_LOG_CACHE, ours, "", CACHE),
        server(NGINX_LOG, nginx, "", ""),
        server(NGINX_LOG_BUFFER, nginx, "combined buffer=32k", ""),
        server(NGINX_LOG_BUFFER_CACHE, nginx, "combined buffer=32k", CACHE),
    ]
}

/// Tailwater with metrics of the bytes sent by `sendfile`.
fn ours_sendfile(binaries: &Binaries, files: &Path) -> Contestant {
    let ours = &binaries.ours;
    let server = format!("{} {}", root_directive(files), loops::location(ours));
    Contestant::server(OURS_SENDFILE, ours, &format!("access_log off; {SENDFILE} {CACHE}"), &server)
}

/// The least that sending the file itself takes: `response` is its head and body.
fn bare_sendfile(files: &Path, path: &str, response: &[u8]) -> Outcome<Contestant> {
    let body = files.join(path.trim_start_matches('/'));
    let head_len = response.len() - usize::try_from(fs::metadata(&body)?.len())?;
    let head = body.with_extension("head");
    fs::write(&head, &response[..head_len])?;
    let words = [("--response", head), ("--body", body)];
    let args: Vec<_> =
        words.iter().flat_map(|(word, file)| [(*word).to_owned(), file.display().to_string()]).collect();
    Ok(Contestant::own_loop(BARE_SENDFILE, "bare-loop", &args))
}

fn large_contestants(binaries: &Binaries, files: &Path) -> Outcome<Vec<Contestant>> {
    let server = |name, binary, http| {
        Contestant::server(name, binary, &format!("access_log off; {http}"), &root_directive(files))
    };
    let response = response_bytes(&server(NGINX, binaries.any(), ""), "/4m")?;
    Ok(vec![
        bare_sendfile(files, "/4m", &response)?,
        server(OURS, &binaries.ours, ""),
        server(NGINX_SENDFILE, &binaries.nginx, "sendfile on;"),
        server(NGINX, &binaries.nginx, "sendfile off;"),
        ours_sendfile(binaries, files),
        server(NGINX_NOPUSH, &binaries.nginx, &format!("{SENDFILE} {CACHE}")),
    ])
}

/// Exact bytes of a server's response, so that the bare loop sends the same.
fn response_bytes(contestant: &Contestant, path: &str) -> Outcome<Vec<u8>> {
    let running = contestant.start(&RunPlacement::default())?;
    let mut client = Client::connect(running.addr())?;
    client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
    let response = client.read_response()?;
    if response.status != 200 {
        return Err(format!("{}: {path}: status {}", contestant.name, response.status).into());
    }
    Ok([response.head.into_bytes(), response.body].concat())
}

pub(super) fn measure(case: &Case, plan: &Plan) -> Outcome<Vec<Score>> {
    let place = RunPlacement::on(plan.server_cpu);
    let contestants: Vec<&Contestant> = case.contestants.iter().filter(|one| one.is_present()).collect();
    let running: Vec<Running> =
        contestants.iter().map(|contestant| contestant.start(&place)).collect::<Outcome<_>>()?;
    let mut results: Vec<Score> =
        running.iter().map(|server| Score { name: server.name.clone(), samples: Vec::new() }).collect();
    for round in 1..=plan.rounds {
        progress(&format!("{}: round {round} of {}", case.title, plan.rounds));
        for ((contestant, server), result) in contestants.iter().zip(&running).zip(&mut results) {
            result.samples.push(sample(contestant, server, case, plan)?);
        }
    }
    progress("");
    Ok(results)
}

fn sample(contestant: &Contestant, server: &Running, case: &Case, plan: &Plan) -> Outcome<Sample> {
    let sent_by_kernel = || {
        let page = contestant.has_metrics().then(|| loops::page(server).ok()).flatten();
        page.map(|page| page.sum(SENT))
    };
    let sent_before = sent_by_kernel();
    // Leaves the end of the connections of the load before to whoever served them.
    wait::pause(Duration::from_millis(50));
    let load = Load {
        url: server.url(case.path),
        connections: case.connections,
        seconds: plan.seconds,
        script: case.script.clone(),
        cpu: plan.load_cpu,
    };
    let start = Instant::now();
    let busy = usage::core_busy(plan.server_cpu)?;
    let cpu = usage::cpu_time(server.pid())?;
    let working = load.start()?;
    let mut heap = None;
    if case.looks_at_memory {
        wait::pause(Duration::from_secs(plan.seconds) / 2);
        heap = Some(usage::memory(server.pid())?.private_dirty);
    }
    let served = working.finish()?;
    let cpu = usage::cpu_time(server.pid())? - cpu;
    let busy = usage::core_busy(plan.server_cpu)?.saturating_sub(busy);
    if served.requests == 0 || served.bad_status > 0 || served.socket_errors > 0 {
        return Err(format!("{}: not a measurement: {served:?}", server.name).into());
    }
    let foreign = busy.saturating_sub(cpu).as_secs_f64() / start.elapsed().as_secs_f64();
    let sent_by_kernel = sent_by_kernel().zip(sent_before).map(|(after, before)| after - before);
    Ok(Sample { served, cpu, foreign, peak: usage::peak(server.pid())?, heap, sent_by_kernel })
}

impl Score {
    fn median(&self, number: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(number))
    }

    /// Bytes of a response, head included.
    pub(super) fn response_bytes(&self) -> f64 {
        self.median(|s| s.served.bytes_per_second / s.served.per_second)
    }

    /// Microseconds of the server's processor time per request.
    pub(super) fn cpu_us(&self) -> f64 {
        median(self.cpu_values())
    }

    /// Microseconds of processor time per request, with their spread.
    pub(super) fn cpu_cell(&self) -> String {
        with_spread(&self.cpu_values())
    }

    fn cpu_values(&self) -> Vec<f64> {
        self.samples.iter().map(|s| s.cpu.as_secs_f64() * 1e6 / s.served.requests as f64).collect()
    }

    pub(super) fn per_second(&self) -> f64 {
        self.median(|s| s.served.per_second)
    }

    /// The most memory ever resident, in megabytes.
    pub(super) fn peak_megabytes(&self) -> f64 {
        self.samples.iter().map(|s| s.peak).max().map_or(f64::NAN, |peak| peak as f64 / 1e6)
    }

    /// Memory of its own under load, in megabytes; NaN if that was not looked at.
    pub(super) fn heap_megabytes(&self) -> f64 {
        median(self.samples.iter().filter_map(|s| s.heap).map(|heap| heap as f64 / 1e6))
    }

    /// The share of all bytes that the kernel sent without a copy; NaN if the server does not tell.
    fn sent_by_kernel(&self) -> f64 {
        let of = |sample: &Sample| {
            let all = sample.served.bytes_per_second / sample.served.per_second;
            Some(sample.sent_by_kernel? as f64 / (all * sample.served.requests as f64))
        };
        median(self.samples.iter().filter_map(of))
    }

    pub(super) fn p50(&self) -> Duration {
        Duration::from_secs_f64(self.median(|s| s.served.p50.as_secs_f64()))
    }

    pub(super) fn p99(&self) -> Duration {
        Duration::from_secs_f64(self.median(|s| s.served.p99.as_secs_f64()))
    }

    pub(super) fn json(&self) -> Value {
        let samples: Vec<Value> = self
            .samples
            .iter()
            .map(|s| {
                json!({
                    "requests": s.served.requests,
                    "requests_per_second": s.served.per_second,
                    "bytes_per_second": s.served.bytes_per_second,
                    "server_cpu_us": s.cpu.as_micros() as u64,
                    "p50_us": s.served.p50.as_micros() as u64,
                    "p99_us": s.served.p99.as_micros() as u64,
                    "foreign_cpu": s.foreign,
                    "peak_resident_bytes": s.peak,
                    "heap_bytes": s.heap,
                    "sent_by_kernel_bytes": s.sent_by_kernel,
                })
            })
            .collect();
        json!({
            "name": self.name,
            "cpu_us_per_request": self.cpu_us(),
            "spread": spread(self.cpu_values()),
            "requests_per_second": self.per_second(),
            "p50_us": self.p50().as_micros() as u64,
            "p99_us": self.p99().as_micros() as u64,
            "rounds": samples,
        })
    }
}

/// Fails if responses were not the file: `wrk` does not look at them.
pub(super) fn whole(results: &[Score], size: usize) -> Outcome {
    match results.iter().find(|result| result.response_bytes() < size as f64) {
        Some(short) => Err(format!(
            "{}: {} bytes in a response instead of {size}",
            short.name,
            number(short.response_bytes())
        )
        .into()),
        None => Ok(()),
    }
}

pub(super) fn of<'a>(results: &'a [Score], name: &str) -> Option<&'a Score> {
    results.iter().find(|result| result.name == name)
}

/// Processor time per request of one server in that of another; NaN if one of them did not take part.
pub(super) fn cpu_ratio(results: &[Score], name: &str, other: &str) -> f64 {
    match (of(results, name), of(results, other)) {
        (Some(one), Some(other)) => one.cpu_us() / other.cpu_us(),
        _ => f64::NAN,
    }
}

fn log_report(report: &mut Report, case: &Case, results: &[Score]) {
    let columns = ["CPU µs/req", "of nginx with a buffer", "req/s", "p50", "p99"];
    let mut table = Table::new(&case.title, &columns);
    for result in results {
        let cells = vec![
            result.cpu_cell(),
            number(cpu_ratio(results, &result.name, NGINX_LOG_BUFFER)),
            number(result.per_second()),
            span(result.p50()),
            span(result.p99()),
        ];
        table.row(&result.name, cells);
    }
    report.case(&table, results.iter().map(Score::json).collect());
    warn_if_busy(report, &case.title, results);
    for (ours, other) in [(OURS_LOG, NGINX_LOG_BUFFER), (OURS_LOG_CACHE, NGINX_LOG_BUFFER_CACHE)] {
        let what = format!("{}: CPU of {ours} / {other}", case.title);
        report.target(what, cpu_ratio(results, ours, other));
    }
}

fn small_report(report: &mut Report, case: &Case, results: &[Score], name: &str) {
    let columns = ["CPU µs/req", "of nginx", "of bare", "req/s", "p50", "p99"];
    let mut table = Table::new(&case.title, &columns);
    for result in results {
        let cells = vec![
            result.cpu_cell(),
            number(cpu_ratio(results, &result.name, NGINX)),
            number(cpu_ratio(results, &result.name, BARE)),
            number(result.per_second()),
            span(result.p50()),
            span(result.p99()),
        ];
        table.row(&result.name, cells);
    }
    report.case(&table, results.iter().map(Score::json).collect());
    warn_if_busy(report, &case.title, results);

    // Like against like: with the same directives, and nginx either way of sending.
    let pairs: &[(&str, &str)] = match name {
        "1k" => &[(OURS, NGINX), (OURS_CACHE, NGINX_CACHE), (OURS_CACHE, NGINX_CACHE_SENDFILE), (OURS, BARE)],
        _ => &[
            (OURS, NGINX),
            (OURS, NGINX_SENDFILE),
            (OURS_CACHE, NGINX_CACHE),
            (OURS_CACHE, NGINX_CACHE_SENDFILE),
            (OURS, BARE),
            (OURS_SENDFILE, NGINX_NOPUSH),
            (OURS_SENDFILE, BARE_SENDFILE),
        ],
    };
    for (ours, other) in pairs {
        let what = format!("{}: CPU of {ours} / {other}", case.title);
        report.target(what, cpu_ratio(results, ours, other));
    }
    if name != "1k" {
        sent_target(report, case, results);
    }
}

/// Checks that responses measured as `sendfile` were not copied.
fn sent_target(report: &mut Report, case: &Case, results: &[Score]) {
    let what = format!("{}: share of {OURS_SENDFILE} that was not copied", case.title);
    let share = of(results, OURS_SENDFILE).map_or(f64::NAN, Score::sent_by_kernel);
    report.target(what, share);
}

fn large_report(report: &mut Report, case: &Case, results: &[Score]) {
    let mut table = Table::new(&case.title, &["req/s", "of sendfile", "MB/s", "CPU µs/req", "p50", "p99"]);
    let ratio = |name: &str| match (of(results, name), of(results, NGINX_SENDFILE)) {
        (Some(one), Some(other)) => one.per_second() / other.per_second(),
        _ => f64::NAN,
    };
    for result in results {
        let cells = vec![
            number(result.per_second()),
            number(ratio(&result.name)),
            number(result.median(|s| s.served.bytes_per_second) / 1e6),
            result.cpu_cell(),
            span(result.p50()),
            span(result.p99()),
        ];
        table.row(&result.name, cells);
    }
    report.case(&table, results.iter().map(Score::json).collect());
    warn_if_busy(report, &case.title, results);
    let what = format!("{}: throughput of {OURS} / {NGINX_SENDFILE}", case.title);
    report.target(what, ratio(OURS));
    let what = format!("{}: CPU of {OURS_SENDFILE} / {NGINX_NOPUSH}", case.title);
    let ratio = cpu_ratio(results, OURS_SENDFILE, NGINX_NOPUSH);
    report.target(what, ratio);
    sent_target(report, case, results);
}

/// Says in the report that others have used much of the server's core.
pub(super) fn warn_if_busy(report: &mut Report, title: &str, results: &[Score]) {
    let foreign = median(results.iter().map(|result| result.median(|s| s.foreign)));
    if foreign > FOREIGN_MAX {
        report.note(&format!("{title}: others used {} % of the server's core.", number(foreign * 100.0)));
    }
}
