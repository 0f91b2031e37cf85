//! Added latency of a proxy, when there is little to do.
//!
//! One client on the core of the load sends requests to the origin and to every proxy in turn, a hundred times a
//! second each and at different moments, so other activity of the machine affects all of them alike.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::contestants::{OURS, Proxies};
use super::origin::{FILES, OriginFile};
use crate::Outcome;
use crate::contestant::Running;
use crate::exec::RunPlacement;
use crate::paced_client::PacedClient;
use crate::report::{Report, Table, number, progress, span};
use crate::spans::Spans;

/// Between two requests to the same server.
const TICK: Duration = Duration::from_millis(10);
/// Requests to each server before any counts.
const WARM_COUNT: usize = 10;

/// All that was measured with one server: from the first byte of a request to the last of its response.
struct Score {
    name: String,
    spans: Spans,
}

/// Sends requests to all for `seconds`.
pub(super) fn run(
    report: &mut Report,
    proxies: &Proxies,
    seconds: u64,
    server_cpu: usize,
    load_cpu: usize,
) -> Outcome {
    let place = RunPlacement::on(server_cpu);
    let running: Vec<Running> =
        proxies.all("").iter().map(|contestant| contestant.start(&place)).collect::<Outcome<_>>()?;
    let direct = ("direct", proxies.origin.addr());
    let servers: Vec<(&str, SocketAddr)> =
        [direct].into_iter().chain(running.iter().map(|one| (one.name.as_str(), one.addr()))).collect();
    progress(&format!("added time: {seconds} s"));
    let OriginFile { path, size } = FILES[0];
    let count = usize::try_from(Duration::from_secs(seconds).as_millis() / TICK.as_millis())?;
    let paced_client = PacedClient { path, size, tick: TICK, warm_count: WARM_COUNT, count, tls: None };
    let spans = paced_client.send_requests(&servers, load_cpu)?;
    let named = servers.iter().zip(spans).map(|(&(name, _), spans)| Score { name: name.to_owned(), spans });
    let results: Vec<Score> = named.collect();
    progress("");
    publish(report, &results);
    Ok(())
}

fn publish(report: &mut Report, results: &[Score]) {
    let Some(direct) = results.first() else { return };
    let title = format!("{} requests each, 100 a second", direct.spans.count());
    let mut table = Table::new(title, &["p50", "p99", "added p50 ms", "added p99 ms"]);
    let mut numbers = Vec::new();
    for result in results {
        let p50 = result.spans.percentile(0.5);
        let p99 = result.spans.percentile(0.99);
        let added = |share| result.spans.longer_ms(&direct.spans, share);
        let added_p50 = added(0.5);
        let added_p99 = added(0.99);
        table.row(&result.name, vec![span(p50), span(p99), number(added_p50), number(added_p99)]);
        numbers.push(json!({
            "name": result.name,
            "requests": result.spans.count(),
            "p50_us": p50.as_micros() as u64,
            "p99_us": p99.as_micros() as u64,
            "added_p50_ms": added_p50,
            "added_p99_ms": added_p99,
        }));
    }
    report.case(&table, Value::Array(numbers));
    if let Some(ours) = results.iter().find(|result| result.name == OURS) {
        let what = "p99 of a proxied request, less that of a direct one";
        report.target(what, ours.spans.longer_ms(&direct.spans, 0.99));
    }
}
