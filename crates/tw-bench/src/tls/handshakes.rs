//! Connections with one request each: with a full handshake, and with a resumed session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::version::TLS13;
use rustls::{ClientConfig, HandshakeKind};
use serde_json::{Value, json};
use tw_testkit::tls::Authority;
use tw_testkit::{Client, wait};

use super::{Key, NGINX, OURS, Plan, Setup};
use crate::Outcome;
use crate::contestant::Running;
use crate::exec::{RunPlacement, pin};
use crate::report::{Report, Table, median, number, progress, spread, with_spread};
use crate::usage;

/// Clients at the same time: more than the server has cores, fewer than would only wait for each other.
const CLIENTS: usize = 8;
/// Handshakes of each client before those that count.
const WARM_COUNT: usize = 4;

/// Session resumption of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Session {
    New,
    Resumed,
}

impl Session {
    /// Configuration of a client of this kind; each has its own, with its sessions.
    pub(crate) fn config(self, authority: &Authority) -> Arc<ClientConfig> {
        let config = authority.client(&[&TLS13]);
        match self {
            Self::Resumed => config,
            Self::New => {
                let mut config = ClientConfig::clone(&config);
                config.resumption = Resumption::disabled();
                Arc::new(config)
            }
        }
    }
}

/// One connection with one request; fails if the handshake was of another kind, or the response not the file.
pub(super) fn connect_once(addr: SocketAddr, config: &Arc<ClientConfig>, session: Session) -> Outcome {
    const REQUEST: &str = "GET /1k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut client = Client::connect_tls(addr, config, "localhost")?;
    client.send(REQUEST)?;
    let response = client.read_response()?;
    let kind = client.session().and_then(|session| session.handshake_kind());
    let is_right = match session {
        Session::New => kind == Some(HandshakeKind::Full),
        Session::Resumed => kind == Some(HandshakeKind::Resumed),
    };
    if !is_right || response.status != 200 || response.body.len() != 1 << 10 {
        return Err(format!("not a measurement: {kind:?}, status {}", response.status).into());
    }
    Ok(())
}

/// One load on one server.
struct Sample {
    /// Connections per second.
    per_second: f64,
    /// Microseconds of the server's processor time for each.
    cpu_us: f64,
}

/// Measures one kind of key, with and without sessions.
pub(super) fn run(report: &mut Report, setup: &Setup, plan: &Plan, key: Key) -> Outcome {
    let place = RunPlacement::on(plan.server_cpu);
    let running: Vec<Running> = setup
        .contestants(key, "")
        .iter()
        .map(|contestant| contestant.start(&place))
        .collect::<Outcome<_>>()?;
    for session in [Session::New, Session::Resumed] {
        let kind = if session == Session::New { "full handshakes" } else { "resumed" };
        let title = format!("{}, {kind}", key.name());
        let mut samples = running.iter().map(|_| Vec::new()).collect::<Vec<_>>();
        for round in 1..=plan.rounds {
            progress(&format!("{title}: round {round} of {}", plan.rounds));
            for (server, samples) in running.iter().zip(&mut samples) {
                samples.push(sample(server, setup, plan, session)?);
            }
        }
        progress("");
        publish(report, &title, &running, &samples);
    }
    Ok(())
}

fn sample(server: &Running, setup: &Setup, plan: &Plan, session: Session) -> Outcome<Sample> {
    let span = Duration::from_secs(plan.seconds);
    let counting = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    let count = AtomicU64::new(0);
    let addr = server.addr();
    thread::scope(|scope| {
        let client = || -> Result<(), String> {
            pin(plan.load_cpu).map_err(|error| error.to_string())?;
            let config = session.config(&setup.authority);
            if session == Session::Resumed {
                // The first one is new, and brings tickets.
                connect_once(addr, &config, Session::New).map_err(|error| error.to_string())?;
            }
            for nth in 0.. {
                if over.load(Relaxed) {
                    break;
                }
                connect_once(addr, &config, session).map_err(|error| error.to_string())?;
                if counting.load(Relaxed) && nth >= WARM_COUNT {
                    count.fetch_add(1, Relaxed);
                }
            }
            Ok(())
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        // Every client has shaken hands a few times by then.
        wait::pause(span / 4);
        let cpu = usage::cpu_time(server.pid());
        let start = Instant::now();
        counting.store(true, Relaxed);
        wait::pause(span);
        counting.store(false, Relaxed);
        let taken = start.elapsed();
        let after = usage::cpu_time(server.pid());
        over.store(true, Relaxed);
        for client in clients {
            client.join().map_err(|_| "a client panicked")??;
        }
        let count = count.load(Relaxed) as f64;
        let cpu = after?.saturating_sub(cpu?);
        Ok(Sample { per_second: count / taken.as_secs_f64(), cpu_us: cpu.as_secs_f64() * 1e6 / count })
    })
}

fn publish(report: &mut Report, title: &str, running: &[Running], samples: &[Vec<Sample>]) {
    let columns = ["connections/s", "CPU µs each", "of nginx", "per second and core"];
    let mut table = Table::new(title, &columns);
    let cpu_us = |name: &str| {
        let of = running.iter().zip(samples).find(|(server, _)| server.name == name);
        of.map_or(f64::NAN, |(_, samples)| median(samples.iter().map(|sample| sample.cpu_us)))
    };
    let mut numbers = Vec::new();
    let cpu_values = |samples: &[Sample]| samples.iter().map(|sample| sample.cpu_us).collect::<Vec<_>>();
    for (server, samples) in running.iter().zip(samples) {
        let per_second = median(samples.iter().map(|sample| sample.per_second));
        let each = cpu_us(&server.name);
        let cells = vec![
            number(per_second),
            with_spread(&cpu_values(samples)),
            number(each / cpu_us(NGINX)),
            number(1e6 / each),
        ];
        table.row(&server.name, cells);
        numbers.push(json!({
            "name": server.name,
            "connections_per_second": per_second,
            "cpu_us_per_connection": each,
            "spread": spread(cpu_values(samples)),
        }));
    }
    report.case(&table, Value::Array(numbers));
    let ratio = cpu_us(NGINX) / cpu_us(OURS);
    report.target(format!("{title}: per second and core, of {NGINX}"), ratio);
}
