//! A client of small pages at a fixed rate beside other requests of the same server: what it keeps of its rate and its times.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::Client;

use super::Outcome;
use super::contestant::{Contestant, OURS, Running};
use super::exec::RunPlacement;
use super::loops;
use super::paced_client::PacedClient;
use super::prometheus::Histogram;
use super::report::{Report, Table, number, span};
use super::spans::Spans;
use super::static_files::Plan;

/// Interval of the requests of the neighbour.
const TICK: Duration = Duration::from_millis(4);

/// Result of a neighbour beside other requests.
pub(super) struct Neighbour {
    name: String,
    alone: Spans,
    beside: Spans,
    /// Share of the requests in a second that is left.
    share: f64,
    others_per_second: f64,
    /// Longest time that a turn of a loop was computing, in seconds.
    turn: Option<f64>,
}

impl Neighbour {
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "others_per_second": self.others_per_second,
            "p99_us": self.alone.percentile(0.99).as_micros() as u64,
            "p99_us_with_others": self.beside.percentile(0.99).as_micros() as u64,
            "share": self.share,
            "longest_turn_s": self.turn,
        })
    }
}

/// Adds a case with these results to a report, and the targets for ours. `others` is the name of the other requests.
pub(super) fn show(report: &mut Report, title: &str, others: &str, results: &[Neighbour]) {
    let columns = [
        &format!("{others}/s"),
        "neighbour p50",
        "p50 with",
        "p99",
        "p99 with",
        "requests kept",
        "longest turn",
    ];
    let mut table = Table::new(title, &columns);
    for result in results {
        let cells = vec![
            number(result.others_per_second),
            span(result.alone.percentile(0.5)),
            span(result.beside.percentile(0.5)),
            span(result.alone.percentile(0.99)),
            span(result.beside.percentile(0.99)),
            number(result.share),
            result.turn.map_or_else(|| "–".to_owned(), |turn| span(Duration::from_secs_f64(turn))),
        ];
        table.row(&result.name, cells);
    }
    report.case(&table, Value::Array(results.iter().map(Neighbour::json).collect()));
    if let Some(ours) = results.iter().find(|result| result.name == OURS) {
        report.target(format!("{title}: requests that the neighbour keeps"), ours.share);
        report.target(format!("{title}: longest turn"), ours.turn.map_or(f64::NAN, |turn| turn * 1e3));
    }
}

/// Measures requests of `/1k`, first alone, then beside `senders` clients that send `request` again and again.
pub(super) fn beside_requests(
    contestant: &Contestant,
    request: &str,
    senders: usize,
    plan: &Plan,
) -> Outcome<Neighbour> {
    let server = contestant.start(&RunPlacement::on(plan.server_cpu))?;
    let count = usize::try_from(plan.seconds * plan.rounds as u64 * 1000 / TICK.as_millis() as u64)?;
    let client = PacedClient { path: "/1k", size: 1 << 10, tick: TICK, warm_count: 50, count, tls: None };
    let target = [(server.name.as_str(), server.addr())];
    let timed = || -> Outcome<(Spans, Duration)> {
        let begin = Instant::now();
        let spans = client.send_requests(&target, plan.load_cpu)?.pop().ok_or("no result")?;
        Ok((spans, begin.elapsed()))
    };
    let (alone, time_alone) = timed()?;
    let before = computing(contestant, &server)?;
    let is_over = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    let addr = server.addr();
    let beside = std::thread::scope(|scope| {
        let senders: Vec<_> =
            (0..senders).map(|_| scope.spawn(|| send(addr, request, &is_over, &sent))).collect();
        let beside = timed();
        is_over.store(true, Relaxed);
        for sender in senders {
            sender
                .join()
                .map_err(|_| "a client of the other requests panicked")?
                .map_err(|error| format!("other requests: {error}"))?;
        }
        beside
    })?;
    let (beside, time_beside) = beside;
    let turn = match (before, computing(contestant, &server)?) {
        (Some(before), Some(after)) => after.since(&before).quantile(1.0),
        _ => None,
    };
    Ok(Neighbour {
        name: contestant.name.clone(),
        alone,
        beside,
        share: time_alone.as_secs_f64() / time_beside.as_secs_f64(),
        others_per_second: sent.load(Relaxed) as f64 / time_beside.as_secs_f64(),
        turn,
    })
}

/// Times that turns were computing, if the server tells.
fn computing(contestant: &Contestant, server: &Running) -> Outcome<Option<Histogram>> {
    if !contestant.has_metrics() {
        return Ok(None);
    }
    let page = loops::page(server)?;
    Ok(Some(page.histogram("tailwater_event_loop_part_seconds", "cause=\"running\"")?))
}

/// Sends requests, one after the other, each over a connection of its own.
fn send(addr: SocketAddr, request: &str, is_over: &AtomicBool, sent: &AtomicU64) -> std::io::Result<()> {
    while !is_over.load(Relaxed) {
        let mut client = Client::connect(addr)?;
        client.send(request)?;
        client.read_response()?;
        sent.fetch_add(1, Relaxed);
    }
    Ok(())
}
