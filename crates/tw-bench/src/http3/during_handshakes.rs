//! Requests on established connections, beside new ones with an RSA signature in each handshake.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tw_testkit::ports::Port;

use super::client::{Happened, Request};
use super::clients::Clients;
use super::frames;
use super::handshakes::FAILED_MAX;
use super::load::{Kind, Load};
use super::setup::Setup;
use crate::Outcome;
use crate::contestant::{Contestant, Running};
use crate::exec::{RunPlacement, on_core};
use crate::h2load::Amount;
use crate::http2::Plan;
use crate::loops;
use crate::prometheus::{Histogram, Page};
use crate::report::{Report, progress};
use crate::spans::Spans;
use crate::tls::Key;
use crate::tls::during_handshakes::{Score, publish};

/// Between two requests on the established connections.
const TICK: Duration = Duration::from_millis(1);
/// Established connections, which take turns.
const CONNECTIONS: usize = 4;
/// Requests before those that count.
const WARM_COUNT: usize = 100;
/// Clients that shake hands: each has one handshake at a time.
const CLIENTS: usize = 16;

/// Measures each server alone.
pub(super) fn run(report: &mut Report, setup: &Setup, plan: &Plan, rate: u64) -> Outcome {
    let port = Port::reserve()?;
    let metrics =
        format!("server {{ listen 127.0.0.1:{}; {} }}", port.number(), loops::location(&setup.binaries.ours));
    let [ours, nginx] = [setup.contestants(Key::Rsa2048, &metrics), setup.contestants(Key::Rsa2048, "")];
    let mut scores = Vec::new();
    for contestant in ours.iter().take(1).chain(nginx.iter().skip(1)) {
        progress(&format!("{}: {rate} handshakes/s beside requests", contestant.name));
        scores.push(measure(contestant, setup, plan, rate, port.number())?);
        progress("");
    }
    report.note("turns are those of the loop without waiting for the processor, which it shares with the threads that sign");
    publish(report, &format!("requests beside {rate} RSA handshakes/s"), &scores);
    Ok(())
}

/// Turns of the loops so far, less the time for which they waited for the processor, if the server has metrics.
fn turns(contestant: &Contestant, metrics: SocketAddr) -> Outcome<Option<Histogram>> {
    const PARTS: &str = "tailwater_event_loop_part_seconds";
    if contestant.has_metrics() {
        Page::fetch(&format!("http://{metrics}/.metrics"))?.histogram(PARTS, "cause=\"running\"").map(Some)
    } else {
        Ok(None)
    }
}

fn measure(contestant: &Contestant, setup: &Setup, plan: &Plan, rate: u64, metrics: u16) -> Outcome<Score> {
    let server = contestant.start(&RunPlacement::on(plan.server_cpu))?;
    let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, metrics));
    let count = usize::try_from(u128::from(plan.seconds * plan.rounds as u64) * 1000 / TICK.as_millis())?;
    let send_requests = || on_core(plan.load_cpu, || paced(&server, setup, count));
    let without = send_requests()?;
    let before = turns(contestant, metrics)?;
    let (with, rate) = measure_during_handshakes(&server, setup, plan, rate, send_requests)?;
    let turns = before.zip(turns(contestant, metrics)?).map(|(before, after)| after.since(&before));
    Ok(Score { name: contestant.name.clone(), without, with, rate, turns })
}

/// Runs `send_requests` beside handshakes; returns the number of handshakes per second.
fn measure_during_handshakes(
    server: &Running,
    setup: &Setup,
    plan: &Plan,
    rate: u64,
    send_requests: impl Fn() -> Outcome<Spans>,
) -> Outcome<(Spans, f64)> {
    /// Longer than any measurement.
    const SECONDS_MAX: u64 = 3600;
    let over = AtomicBool::new(false);
    let load = Load {
        server,
        tls: &setup.certificates.client,
        path: "/1k",
        connections: CLIENTS,
        amount: Amount::Seconds(SECONDS_MAX),
        kind: Kind::OneRequest { rate: Some(rate as f64) },
        lost_percent: 0,
        cpu: plan.load_cpu,
    };
    thread::scope(|scope| {
        let storm = scope.spawn(|| -> Result<_, String> {
            load.run_until(|| over.load(Relaxed)).map_err(|error| error.to_string())
        });
        let sent = send_requests();
        over.store(true, Relaxed);
        let made = storm.join().map_err(|_| "the storm panicked")??;
        if made.result.failed as f64 > made.result.requests as f64 * FAILED_MAX {
            return Err(format!("{} handshakes have failed", made.result.failed).into());
        }
        Ok((sent?, made.result.per_second))
    })
}

/// Requests at a fixed rate, however long a response takes: from each to the last byte of its response.
fn paced(server: &Running, setup: &Setup, count: usize) -> Outcome<Spans> {
    let request = Request { number: 0, bytes: frames::get("/1k") };
    let mut clients = Clients::new(server.addr(), &setup.certificates.client)?;
    let keys = clients.connect_all(CONNECTIONS)?;
    let mut spans = Vec::with_capacity(count);
    let mut sent = 0;
    let mut answered = 0;
    let mut next = Instant::now();
    while answered < WARM_COUNT + count {
        if Instant::now() >= next && sent < WARM_COUNT + count {
            clients.send(keys[sent % keys.len()], &request);
            sent += 1;
            next += TICK;
        }
        let wake = if sent < WARM_COUNT + count { next } else { Instant::now() + TICK };
        for (_, event) in clients.turn(wake)? {
            match event {
                Happened::Answered(answer) if answer.is_ok => {
                    answered += 1;
                    if answered > WARM_COUNT {
                        spans.push(answer.took);
                    }
                }
                Happened::Connected => {}
                Happened::Answered(_) | Happened::Failed => return Err("not a response".into()),
            }
        }
    }
    Ok(Spans::new(spans))
}
