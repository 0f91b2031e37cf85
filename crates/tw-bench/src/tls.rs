//! `cargo xtask bench tls`: cost of TLS, with the same certificate, cipher and group on both sides.
//!
//! One server core against one load core. Requests on persistent connections come from `wrk`; handshakes from clients
//! of our own, because `wrk` cannot tell whether a session was resumed. The measure is processor time of the server,
//! which shows the cost of a handshake even where the load is the limit.

pub(super) mod during_handshakes;
pub(super) mod handshakes;
mod idle;

use std::path::PathBuf;

use tw_testkit::TempDir;
use tw_testkit::tls::{Authority, Certificate};

use super::Outcome;
use super::conf;
use super::contestant::{Binaries, Binary, Contestant, NGINX, OURS, hot_files, present, root_directive};
use super::options::Options;
use super::report::{Report, Table, number, span};
use super::static_files::{Case, Plan, Score, cpu_ratio, measure, of, warn_if_busy, whole};

/// Name, path and size of the files.
const FILES: [(&str, &str, usize); 3] =
    [("1k", "/1k", 1 << 10), ("32k", "/32k", 32 << 10), ("4m", "/4m", 4 << 20)];
/// Connections of the load with large bodies.
const LARGE_CONNECTIONS: usize = 16;

/// Kinds of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    EcdsaP256,
    Rsa2048,
}

impl Key {
    pub(super) const ALL: [Self; 2] = [Self::EcdsaP256, Self::Rsa2048];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::EcdsaP256 => "ECDSA P-256",
            Self::Rsa2048 => "RSA-2048",
        }
    }

    /// Writes a certificate for each kind to a directory.
    pub(super) fn write_all(authority: &Authority, dir: &TempDir) -> Outcome {
        for key in Self::ALL {
            let names = &["localhost"];
            let Certificate { pem, key: private } = match key {
                Self::EcdsaP256 => authority.certify(names),
                Self::Rsa2048 => authority.certify_rsa(names),
            };
            dir.write(format!("{key:?}.crt"), pem)?;
            dir.write(format!("{key:?}.key"), private)?;
        }
        Ok(())
    }

    /// Directives for a certificate in this directory, and what servers offer.
    pub(super) fn directives(self, dir: &TempDir) -> String {
        let file = |ending: &str| dir.join(format!("{self:?}.{ending}")).display().to_string();
        format!("ssl_certificate \"{}\"; ssl_certificate_key \"{}\"; {}", file("crt"), file("key"), conf::TLS)
    }
}

/// Servers under measurement, with their common settings.
struct Setup {
    binaries: Binaries,
    authority: Authority,
    /// Certificates and keys; removed at the end.
    dir: TempDir,
    files: PathBuf,
}

impl Setup {
    fn new(options: &Options) -> Outcome<Self> {
        let setup = Self {
            binaries: Binaries::find(options)?,
            authority: Authority::new(),
            dir: TempDir::new("certificates")?,
            files: hot_files(&FILES.map(|(name, _, size)| (name, size)))?,
        };
        Key::write_all(&setup.authority, &setup.dir)?;
        Ok(setup)
    }

    /// Both servers with a certificate of this key type, and additional directives for `http`.
    fn contestants(&self, key: Key, http: &str) -> Vec<Contestant> {
        let server = format!("{} {}", key.directives(&self.dir), root_directive(&self.files));
        let contestant = |name, binary: &Binary| {
            Contestant::server(name, binary, &format!("access_log off; {http}"), &server).with_tls()
        };
        present([contestant(OURS, &self.binaries.ours), contestant(NGINX, &self.binaries.nginx)])
    }
}

/// Measures, prints, writes `tls.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections", "rate", "idle"], &[])?;
    let quick = options.flag("quick");
    let plan = Plan::parse(&options, &[64])?;
    let rate = options.number("rate", 500)?;
    let idle_count = options.number("idle", if quick { 1_000 } else { 10_000 })?;
    let setup = Setup::new(&options)?;
    let mut report = Report::new("tls", &setup.binaries);

    for &connections in &plan.connections {
        for name in ["1k", "32k"] {
            if options.wants(name) {
                requests(&mut report, &setup, &plan, name, connections, Measure::Cpu)?;
            }
        }
    }
    if options.wants("4m") {
        requests(&mut report, &setup, &plan, "4m", LARGE_CONNECTIONS, Measure::Throughput)?;
    }
    if options.wants("handshakes") {
        for key in Key::ALL {
            handshakes::run(&mut report, &setup, &plan, key)?;
        }
    }
    if options.wants("beside") {
        during_handshakes::run(&mut report, &setup, &plan, rate)?;
    }
    if options.wants("idle") {
        idle::run(&mut report, &setup, idle_count)?;
    }
    report.finish(&options)
}

/// Measure that is compared with nginx.
#[derive(Debug, Clone, Copy)]
enum Measure {
    /// Processor time for a request.
    Cpu,
    /// Bytes in a second.
    Throughput,
}

/// Requests for one file on connections that stay.
fn requests(
    report: &mut Report,
    setup: &Setup,
    plan: &Plan,
    name: &str,
    connections: usize,
    wanted_measure: Measure,
) -> Outcome {
    let row = FILES.iter().find(|(file, ..)| *file == name);
    let &(_, path, size) = row.ok_or("no such file")?;
    let case = Case {
        title: format!("{name}, {connections} connections, TLS 1.3"),
        path,
        connections,
        script: String::new(),
        looks_at_memory: false,
        contestants: setup.contestants(Key::EcdsaP256, ""),
    };
    let results = measure(&case, plan)?;
    whole(&results, size)?;
    let mut table = Table::new(&case.title, &["CPU µs/req", "of nginx", "req/s", "MB/s", "p50", "p99"]);
    for result in &results {
        let cells = vec![
            result.cpu_cell(),
            number(cpu_ratio(&results, &result.name, NGINX)),
            number(result.per_second()),
            number(result.per_second() * result.response_bytes() / 1e6),
            span(result.p50()),
            span(result.p99()),
        ];
        table.row(&result.name, cells);
    }
    report.case(&table, results.iter().map(Score::json).collect());
    warn_if_busy(report, &case.title, &results);
    let throughput = || match (of(&results, OURS), of(&results, NGINX)) {
        (Some(ours), Some(nginx)) => ours.per_second() / nginx.per_second(),
        _ => f64::NAN,
    };
    let (what, value) = match wanted_measure {
        Measure::Cpu => ("CPU", cpu_ratio(&results, OURS, NGINX)),
        Measure::Throughput => ("throughput", throughput()),
    };
    report.target(format!("{}: {what} of {OURS} / {NGINX}", case.title), value);
    Ok(())
}
