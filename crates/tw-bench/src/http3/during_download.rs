//! First byte of a small response beside a large download on the same connection.

use std::time::{Duration, Instant};

use super::client::{Happened, Request};
use super::clients::Clients;
use super::frames;
use super::setup::{FILES, Setup};
use crate::Outcome;
use crate::contestant::Running;
use crate::exec::on_core;
use crate::first_byte;
use crate::http2::Plan;
use crate::report::Report;
use crate::spans::Spans;
use crate::tls::Key;

/// Between two small requests.
const TICK: Duration = Duration::from_millis(5);
/// Numbers of the requests.
const SMALL: usize = 0;
const LARGE: usize = 1;

/// Measures one after the other.
pub(super) fn run(report: &mut Report, setup: &Setup, plan: &Plan) -> Outcome {
    let count = usize::try_from(plan.rounds as u128 * u128::from(plan.seconds) * 1000 / TICK.as_millis())?;
    let title = "1k beside a download of 64 MiB on the same connection";
    first_byte::run(report, title, &setup.contestants(Key::EcdsaP256, ""), plan.server_cpu, |server| {
        on_core(plan.load_cpu, || send_requests(server, setup, count))
    })
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
    let mut spans = Vec::with_capacity(count);
    let mut next = Some(start + TICK);
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
