//! `cargo xtask bench mail`: logins over POP3, IMAP and SMTP, and sessions on which nothing happens, beside nginx.
//!
//! The auth server, the mail servers and the clients are threads of this process, which share the core of the load. The measure is
//! processor time of the proxy for each login: a connection of the client, a request to the auth server, a login at a mail server.
//! Rounds alternate, and ratios are medians of those of the rounds, so that other work on the machine falls on both.

mod clients;
mod peers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::version::TLS13;
use serde_json::{Value, json};
use tw_testkit::tls::{Authority, Certificate};
use tw_testkit::{TempDir, wait};

use self::clients::Protocol;
use self::peers::Peers;
use super::Outcome;
use super::conf;
use super::connection_memory::{self, MemoryEach, WARM_COUNT};
use super::contestant::{Binaries, Binary, CONF, Contestant, NGINX, OURS, PREFIX, Running, present};
use super::exec::{Pages, RunPlacement, pin};
use super::options::Options;
use super::report::{Report, Table, median, number, progress, spread, with_spread};
use super::static_files::Plan;
use super::usage;

/// Name in the certificate.
const TLS_NAME: &str = "proxy.example";
/// Time for a proxy to put its last sessions to rest.
const REST: Duration = Duration::from_millis(1500);
/// Connections of a proxy at most.
const CONNECTIONS_MAX: usize = 60_000;

/// Logins of one round.
struct Sample {
    logins: usize,
    took: Duration,
    cpu: Duration,
}

impl Sample {
    fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.logins as f64
    }
}

/// Everything that proxies are measured with.
struct Bench {
    binaries: Binaries,
    peers: Peers,
    /// Certificate and key; removed at the end.
    dir: TempDir,
    tls: Arc<ClientConfig>,
}

/// Measures, prints, writes `mail.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections", "sessions"], &[])?;
    let quick = options.flag("quick");
    let plan = Plan::parse(&options, &[16])?;
    let sessions = options.number("sessions", if quick { 200 } else { 2_000 })?;
    // The threads of the peers and of the clients inherit it.
    pin(plan.load_cpu)?;
    let authority = Authority::new();
    let dir = TempDir::new("certificates")?;
    let Certificate { pem, key, .. } = authority.certify(&[TLS_NAME]);
    dir.write("one.crt", &pem)?;
    dir.write("one.key", &key)?;
    let tls = authority.client(&[&TLS13]);
    let bench = Bench { binaries: Binaries::find(&options)?, peers: Peers::start()?, dir, tls };
    let mut report = Report::new("mail", &bench.binaries);
    for protocol in Protocol::ALL.into_iter().filter(|protocol| options.wants(protocol.name())) {
        logins(&mut report, &bench, protocol, &plan)?;
    }
    if options.wants("idle") {
        idle(&mut report, &bench, sessions)?;
    }
    report.finish(&options)
}

impl Bench {
    /// The proxies, with one server of this protocol.
    fn contestants(&self, protocol: Protocol, is_tls: bool) -> Vec<Contestant> {
        let both = [(OURS, &self.binaries.ours), (NGINX, &self.binaries.nginx)];
        present(both.map(|(name, binary)| self.contestant(name, binary, protocol, is_tls)))
    }

    fn contestant(&self, name: &str, binary: &Binary, protocol: Protocol, is_tls: bool) -> Contestant {
        let guard = if binary.is_tailwater() { "loop_guard enforce;" } else { "" };
        let path = |file: &str| self.dir.join(file).display().to_string();
        let tls = if is_tls {
            let (certificate, key) = (path("one.crt"), path("one.key"));
            format!("ssl_certificate \"{certificate}\"; ssl_certificate_key \"{key}\"; {}", conf::TLS)
        } else {
            String::new()
        };
        let values = [
            ("@MAIN@", binary.main()),
            ("@GUARD@", guard),
            ("@CONNECTIONS@", &CONNECTIONS_MAX.to_string()),
            ("@AUTH@", &self.peers.auth(protocol).to_string()),
            ("@TLS@", &tls),
            ("@SSL@", if is_tls { "ssl" } else { "" }),
            ("@PROTOCOL@", protocol.name()),
        ];
        let conf = conf::fill(conf::MAIL, &values);
        Contestant::other(name, &binary.path, &["-p", PREFIX, "-c", CONF], conf)
    }
}

/// Processor time of each proxy for a login, in alternating rounds.
fn logins(report: &mut Report, bench: &Bench, protocol: Protocol, plan: &Plan) -> Outcome {
    let place = RunPlacement::on(plan.server_cpu);
    let contestants = bench.contestants(protocol, false);
    let running: Vec<Running> = contestants.iter().map(|one| one.start(&place)).collect::<Outcome<_>>()?;
    let mut samples: Vec<Vec<Sample>> = running.iter().map(|_| Vec::new()).collect();
    let clients = plan.connections.first().copied().unwrap_or(1);
    for round in 1..=plan.rounds {
        for (server, samples) in running.iter().zip(&mut samples) {
            progress(&format!("{}: round {round} of {}, {}", protocol.name(), plan.rounds, server.name));
            let before = usage::cpu_time(server.pid())?;
            let time = Duration::from_secs(plan.seconds);
            let (logins, took) = clients::log_in_for(time, clients, server.addr(), protocol)?;
            let cpu = usage::cpu_time(server.pid())?.saturating_sub(before);
            samples.push(Sample { logins, took, cpu });
        }
    }
    progress("");
    publish(report, protocol, &running, &samples);
    Ok(())
}

fn publish(report: &mut Report, protocol: Protocol, running: &[Running], samples: &[Vec<Sample>]) {
    let title = format!("logins over {}", protocol.name().to_uppercase());
    let mut table = Table::new(&title, &["CPU µs/login", "of nginx", "logins/s"]);
    let nginx = running.iter().position(|server| server.name == NGINX).and_then(|at| samples.get(at));
    let mut numbers = Vec::new();
    for (server, samples) in running.iter().zip(samples) {
        let cpu: Vec<f64> = samples.iter().map(Sample::cpu_us).collect();
        let ratio = median(
            samples.iter().zip(nginx.into_iter().flatten()).map(|(one, other)| one.cpu_us() / other.cpu_us()),
        );
        let speed = median(samples.iter().map(|sample| sample.logins as f64 / sample.took.as_secs_f64()));
        table.row(&server.name, vec![with_spread(&cpu), number(ratio), number(speed)]);
        numbers.push(json!({
            "name": server.name,
            "cpu_us_each": median(cpu.iter().copied()),
            "spread": spread(cpu.iter().copied()),
            "of_nginx": ratio,
            "per_second": speed,
        }));
        if server.name == OURS {
            report.target(format!("{title}: CPU of {OURS} / {NGINX}"), ratio);
        }
    }
    report.case(&table, Value::Array(numbers));
}

/// Memory of sessions that are logged in, and on which nothing happens.
fn idle(report: &mut Report, bench: &Bench, count: usize) -> Outcome {
    for is_tls in [false, true] {
        let kind = if is_tls { "session of IMAP over TLS" } else { "session of IMAP" };
        let title = format!("{count} idle sessions{}", if is_tls { ", TLS 1.3" } else { "" });
        let contestants = bench.contestants(Protocol::Imap, is_tls);
        let tls = is_tls.then(|| bench.tls.clone());
        connection_memory::run(report, &title, kind, &contestants, count, |contestant| {
            progress(&format!("{title}: {}", contestant.name));
            idle_memory(contestant, tls.as_ref(), count)
        })?;
    }
    progress("");
    Ok(())
}

fn idle_memory(
    contestant: &Contestant,
    tls: Option<&Arc<ClientConfig>>,
    count: usize,
) -> Outcome<MemoryEach> {
    let running = contestant.start(&RunPlacement { pages: Pages::Small, ..RunPlacement::default() })?;
    let open = |addr: SocketAddr, count: usize| clients::open(addr, Protocol::Imap, tls, TLS_NAME, count);
    drop(open(running.addr(), WARM_COUNT)?);
    wait::pause(REST);
    let before = usage::memory(running.pid())?;
    let sessions = open(running.addr(), count)?;
    wait::pause(REST);
    let after = usage::memory(running.pid())?;
    drop(sessions);
    Ok(MemoryEach::between(&before, &after, count))
}
