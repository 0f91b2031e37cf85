//! Requests on established connections, beside new ones with an RSA signature in each handshake.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::ports::Port;
use tw_testkit::wait;

use super::handshakes::{Session, connect_once};
use super::{Key, OURS, Plan, Setup};
use crate::Outcome;
use crate::contestant::{Contestant, Running};
use crate::exec::{RunPlacement, pin};
use crate::loops;
use crate::paced_client::PacedClient;
use crate::prometheus::Histogram;
use crate::report::{Report, Table, number, progress, span};
use crate::spans::Spans;

/// Between two requests on the established connection.
const TICK: Duration = Duration::from_millis(1);
/// Clients that shake hands: each has one handshake at a time.
const CLIENTS: usize = 16;
/// Histogram of the length of turns.
const TURNS: &str = "tailwater_event_loop_blocked_seconds";

/// Latencies of established connections of one server.
pub(crate) struct Score {
    pub(crate) name: String,
    /// Alone.
    pub(crate) without: Spans,
    /// Beside handshakes.
    pub(crate) with: Spans,
    /// Handshakes per second that were made meanwhile.
    pub(crate) rate: f64,
    /// Turns of the loops meanwhile, if the server has metrics.
    pub(crate) turns: Option<Histogram>,
}

/// Measures each server alone.
pub(super) fn run(report: &mut Report, setup: &Setup, plan: &Plan, rate: u64) -> Outcome {
    let seconds = plan.seconds * plan.rounds as u64;
    let port = Port::reserve()?;
    let metrics =
        format!("server {{ listen 127.0.0.1:{}; {} }}", port.number(), loops::location(&setup.binaries.ours));
    let [ours, nginx] = [setup.contestants(Key::Rsa2048, &metrics), setup.contestants(Key::Rsa2048, "")];
    let mut scores = Vec::new();
    for contestant in ours.iter().take(1).chain(nginx.iter().skip(1)) {
        progress(&format!("{}: {rate} handshakes/s beside requests", contestant.name));
        scores.push(measure(contestant, setup, plan, Duration::from_secs(seconds), rate, port.number())?);
        progress("");
    }
    publish(report, &format!("requests beside {rate} RSA handshakes/s"), &scores);
    Ok(())
}

fn measure(
    contestant: &Contestant,
    setup: &Setup,
    plan: &Plan,
    seconds: Duration,
    rate: u64,
    metrics: u16,
) -> Outcome<Score> {
    let server = contestant.start(&RunPlacement::on(plan.server_cpu))?;
    let paced_client = PacedClient {
        path: "/1k",
        size: 1 << 10,
        tick: TICK,
        warm_count: 100,
        count: usize::try_from(seconds.as_millis() / TICK.as_millis())?,
        tls: Some(Session::New.config(&setup.authority)),
    };
    let send_requests = || -> Outcome<Spans> {
        let sent = paced_client.send_requests(&[(&server.name, server.addr())], plan.load_cpu)?;
        sent.into_iter().next().ok_or_else(|| "nobody was asked".into())
    };
    let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, metrics));
    let without = send_requests()?;
    let before = turns(contestant, metrics)?;
    let (with, rate) = measure_during_handshakes(&server, setup, plan, rate, send_requests)?;
    let turns = before.zip(turns(contestant, metrics)?).map(|(before, after)| after.since(&before));
    Ok(Score { name: contestant.name.clone(), without, with, rate, turns })
}

/// Turns of the loops so far, if the server has metrics.
fn turns(contestant: &Contestant, metrics: SocketAddr) -> Outcome<Option<Histogram>> {
    if contestant.has_metrics() {
        Ok(Some(Histogram::fetch(&format!("http://{metrics}/.metrics"), TURNS)?))
    } else {
        Ok(None)
    }
}

/// Runs `send_requests` beside handshakes; returns the number of handshakes per second.
fn measure_during_handshakes(
    server: &Running,
    setup: &Setup,
    plan: &Plan,
    rate: u64,
    send_requests: impl Fn() -> Outcome<Spans>,
) -> Outcome<(Spans, f64)> {
    let over = AtomicBool::new(false);
    let made = AtomicU64::new(0);
    let addr = server.addr();
    thread::scope(|scope| {
        let client = |nth: u32| {
            let over = &over;
            let made = &made;
            move || -> Result<(), String> {
                pin(plan.load_cpu).map_err(|error| error.to_string())?;
                let config = Session::New.config(&setup.authority);
                let every =
                    Duration::from_secs(CLIENTS as u64) / u32::try_from(rate.max(1)).unwrap_or(u32::MAX);
                let mut next = Instant::now() + every * nth / CLIENTS as u32;
                while !over.load(Relaxed) {
                    wait::pause(next.saturating_duration_since(Instant::now()));
                    next += every;
                    connect_once(addr, &config, Session::New).map_err(|error| error.to_string())?;
                    made.fetch_add(1, Relaxed);
                }
                Ok(())
            }
        };
        let clients: Vec<_> = (0..CLIENTS as u32).map(|nth| scope.spawn(client(nth))).collect();
        let start = Instant::now();
        let sent = send_requests();
        let rate = made.load(Relaxed) as f64 / start.elapsed().as_secs_f64();
        over.store(true, Relaxed);
        for client in clients {
            client.join().map_err(|_| "a client panicked")??;
        }
        Ok((sent?, rate))
    })
}

/// Prints the scores, with targets for ours: the longest turn, and an unchanged 99th percentile.
pub(crate) fn publish(report: &mut Report, title: &str, scores: &[Score]) {
    let columns = ["p50", "p99", "p50 with", "p99 with", "handshakes/s", "turn p99.9", "longest turn"];
    let mut table = Table::new(title, &columns);
    let turn = |score: &Score, share: f64| score.turns.as_ref().and_then(|turns| turns.quantile(share));
    let at_most = |seconds: Option<f64>| {
        seconds.map_or("—".to_owned(), |seconds| format!("≤ {} ms", number(seconds * 1e3)))
    };
    let mut numbers = Vec::new();
    for score in scores {
        let cells = vec![
            span(score.without.percentile(0.5)),
            span(score.without.percentile(0.99)),
            span(score.with.percentile(0.5)),
            span(score.with.percentile(0.99)),
            number(score.rate),
            at_most(turn(score, 0.999)),
            at_most(turn(score, 1.0)),
        ];
        table.row(&score.name, cells);
        numbers.push(json!({
            "name": score.name,
            "p99_us": score.without.percentile(0.99).as_micros() as u64,
            "p99_us_with_handshakes": score.with.percentile(0.99).as_micros() as u64,
            "handshakes_per_second": score.rate,
            "turn_p999_seconds": turn(score, 0.999),
            "turn_max_seconds": turn(score, 1.0),
        }));
    }
    report.case(&table, Value::Array(numbers));
    let Some(ours) = scores.iter().find(|score| score.name == OURS) else { return };
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    let added = ms(ours.with.percentile(0.99)) - ms(ours.without.percentile(0.99));
    report.target(format!("{title}: p99, longer than without"), added);
    let longest = turn(ours, 1.0).map_or(f64::NAN, |seconds| seconds * 1e3);
    report.target(format!("{title}: longest turn"), longest);
}
