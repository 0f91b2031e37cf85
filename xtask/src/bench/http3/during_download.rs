//! First byte of a small response beside a large download on the same connection.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Happened, Request};
use super::clients::Clients;
use super::load::on_core;
use super::{FILES, Key, NGINX, OURS, Plan, Setup, frames};
use crate::bench::Outcome;
use crate::bench::contestant::Running;
use crate::bench::exec::RunPlacement;
use crate::bench::report::{Report, Table, number, progress, span};
use crate::bench::spans::Spans;

/// Between two small requests.
const TICK: Duration = Duration::from_millis(5);
/// Numbers of the requests.
const SMALL: usize = 0;
const LARGE: usize = 1;

/// Measures one after the other.
pub(super) fn run(report: &mut Report, setup: &Setup, plan: &Plan) -> Outcome {
    let count = usize::try_from(plan.rounds as u128 * u128::from(plan.seconds) * 1000 / TICK.as_millis())?;
    let title = "1k beside a download of 64 MiB on the same connection";
    let mut table = Table::new(title, &["p50", "p90", "p99", "MB/s"]);
    let (mut numbers, mut firsts) = (Vec::new(), Vec::new());
    for contestant in setup.contestants(Key::EcdsaP256, "") {
        progress(&format!("{title}: {}", contestant.name));
        let server = contestant.start(&RunPlacement::on(plan.server_cpu))?;
        let (spans, speed) = on_core(plan.load_cpu, || send_requests(&server, setup, count))?;
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| spans.percentile(share));
        table.row(&contestant.name, vec![span(p50), span(p90), span(p99), number(speed)]);
        numbers.push(json!({
            "name": contestant.name,
            "p50_us": p50.as_micros() as u64,
            "p90_us": p90.as_micros() as u64,
            "p99_us": p99.as_micros() as u64,
            "megabytes_per_second": speed,
        }));
        firsts.push((contestant.name, p50));
    }
    progress("");
    report.case(&table, Value::Array(numbers));
    let of = |wanted: &str| {
        firsts.iter().find(|(name, _)| name == wanted).map_or(f64::NAN, |(_, p50)| p50.as_secs_f64())
    };
    let what = format!("first byte beside a download, median of {OURS} / {NGINX}");
    report.target(what, of(OURS) / of(NGINX));
    Ok(())
}

/// From each small request to the first byte of its response; and how fast everything was, in megabytes per second.
fn send_requests(server: &Running, setup: &Setup, count: usize) -> Outcome<(Spans, f64)> {
    let [(_, small, _), .., (_, large, _)] = FILES;
    let small = Request { number: SMALL, bytes: frames::get(small) };
    let large = Request { number: LARGE, bytes: frames::get(large) };
    let mut clients = Clients::new(server.addr(), &setup.certificates.client)?;
    let key = clients.connect_all(1)?.into_iter().next().ok_or("no connection")?;
    clients.send(key, &large);
    let start = Instant::now();
    let (mut spans, mut next) = (Vec::with_capacity(count), Some(start + TICK));
    while spans.len() < count {
        let now = Instant::now();
        if next.is_some_and(|next| now >= next) {
            clients.send(key, &small);
            next = None;
        }
        for (_, event) in clients.turn(next.unwrap_or(now + TICK))? {
            match event {
                Happened::Answered(answer) if !answer.is_ok => return Err("not a response".into()),
                Happened::Answered(answer) if answer.number == SMALL => {
                    spans.push(answer.first);
                    next = Some(Instant::now() + TICK);
                }
                Happened::Answered(_) => clients.send(key, &large),
                Happened::Connected => {}
                Happened::Failed => return Err("the connection has failed".into()),
            }
        }
    }
    Ok((Spans::new(spans), clients.bytes as f64 / 1e6 / start.elapsed().as_secs_f64()))
}
