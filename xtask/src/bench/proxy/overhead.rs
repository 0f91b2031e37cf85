//! How much later an answer comes through a proxy than without one, when there is little to do.
//!
//! One client on the core of the load asks the origin and every proxy in turn, each a hundred times a second and at its own
//! moment, so whatever else the machine does meets all of them alike.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::{Client, wait};

use super::contestants::{OURS, Proxies};
use super::origin::FILES;
use crate::bench::Outcome;
use crate::bench::contestant::Running;
use crate::bench::exec::{Place, pin};
use crate::bench::report::{Limit, Report, Table, Target, number, progress, span};

/// Between two requests to the same server.
const TICK: Duration = Duration::from_millis(10);
/// Requests to each server before any counts.
const WARM_COUNT: usize = 10;
/// Milliseconds by which the 99th percentile may be later.
const ADDED_MAX: f64 = 0.3;

/// All that was measured with one server.
struct Score {
    name: String,
    /// From the first byte of a request to the last of its response, in order of size.
    spans: Vec<Duration>,
}

/// Asks all for `seconds`.
pub(super) fn run(
    report: &mut Report,
    proxies: &Proxies,
    seconds: u64,
    server_cpu: usize,
    load_cpu: usize,
) -> Outcome {
    let place = Place::on(server_cpu);
    let running: Vec<Running> =
        proxies.all("").iter().map(|contestant| contestant.start(&place)).collect::<Outcome<_>>()?;
    let direct = ("direct", proxies.origin.addr());
    let servers: Vec<(&str, SocketAddr)> =
        [direct].into_iter().chain(running.iter().map(|one| (one.name.as_str(), one.addr()))).collect();
    progress(&format!("added time: {seconds} s"));
    let count = WARM_COUNT + usize::try_from(Duration::from_secs(seconds).as_millis() / TICK.as_millis())?;
    let results = thread::scope(|scope| {
        let client = scope.spawn(|| {
            pin(load_cpu).and_then(|()| ask_all(&servers, count)).map_err(|error| error.to_string())
        });
        client.join().unwrap_or_else(|_| Err("the client panicked".to_owned()))
    })?;
    progress("");
    publish(report, &results);
    Ok(())
}

fn ask_all(servers: &[(&str, SocketAddr)], count: usize) -> Outcome<Vec<Score>> {
    let (path, size) = FILES[0];
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut clients =
        servers.iter().map(|&(_, addr)| Client::connect(addr)).collect::<Result<Vec<_>, _>>()?;
    let mut results: Vec<Score> = servers
        .iter()
        .map(|&(name, _)| Score { name: name.to_owned(), spans: Vec::with_capacity(count) })
        .collect();
    let gap = TICK / u32::try_from(servers.len())?;
    let mut next = Instant::now();
    for nth in 0..count {
        for (client, result) in clients.iter_mut().zip(&mut results) {
            next += gap;
            wait::pause(next.saturating_duration_since(Instant::now()));
            let start = Instant::now();
            client.send(&request)?;
            let response = client.read_response().map_err(|e| format!("{}: {e}", result.name))?;
            let taken = start.elapsed();
            if response.status != 200 || response.body.len() != size {
                return Err(format!("{}: not the file: {}", result.name, response.head).into());
            }
            if nth >= WARM_COUNT {
                result.spans.push(taken);
            }
        }
    }
    for result in &mut results {
        result.spans.sort_unstable();
    }
    Ok(results)
}

impl Score {
    /// The span that this share of all does not exceed; zero of none.
    fn percentile(&self, share: f64) -> Duration {
        let index = (self.spans.len() as f64 * share).ceil() as usize;
        self.spans.get(index.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// Milliseconds by which it is later than another one; negative if it is earlier.
    fn added_ms(&self, direct: &Self, share: f64) -> f64 {
        (self.percentile(share).as_secs_f64() - direct.percentile(share).as_secs_f64()) * 1e3
    }
}

fn publish(report: &mut Report, results: &[Score]) {
    let Some(direct) = results.first() else { return };
    let title = format!("{} requests each, 100 a second", direct.spans.len());
    let mut table = Table::new(title, &["p50", "p99", "added p50 ms", "added p99 ms"]);
    let mut numbers = Vec::new();
    for result in results {
        let (p50, p99) = (result.percentile(0.5), result.percentile(0.99));
        let (added_p50, added_p99) = (result.added_ms(direct, 0.5), result.added_ms(direct, 0.99));
        table.row(&result.name, vec![span(p50), span(p99), number(added_p50), number(added_p99)]);
        numbers.push(json!({
            "name": result.name,
            "requests": result.spans.len(),
            "p50_us": p50.as_micros() as u64,
            "p99_us": p99.as_micros() as u64,
            "added_p50_ms": added_p50,
            "added_p99_ms": added_p99,
        }));
    }
    report.case(&table, Value::Array(numbers));
    if let Some(ours) = results.iter().find(|result| result.name == OURS) {
        let what = "p99 of a proxied request, less that of a direct one";
        report.target(Target::new(what, ours.added_ms(direct, 0.99), Limit::AtMost(ADDED_MAX), " ms"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_spans_that_were_measured() {
        let score = |factor: u64| Score {
            name: String::new(),
            spans: (1..=200).map(|ms| Duration::from_millis(ms * factor)).collect(),
        };
        assert_eq!(score(1).percentile(0.99), Duration::from_millis(198));
        assert_eq!(score(1).percentile(0.5), Duration::from_millis(100));
        assert_eq!(score(2).added_ms(&score(1), 0.5), 100.0);
        assert_eq!(Score { name: String::new(), spans: Vec::new() }.percentile(0.99), Duration::ZERO);
    }
}
