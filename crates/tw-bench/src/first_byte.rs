//! First byte of a small response beside a large download on the same connection, for protocols with streams.

use serde_json::{Value, json};

use super::Outcome;
use super::contestant::{Contestant, NGINX, OURS, Running};
use super::exec::RunPlacement;
use super::report::{Report, Table, number, progress, span};
use super::spans::Spans;

/// Measures `contestants` one after the other. `send_requests` returns times to the first byte, and the speed of the download in
/// megabytes per second.
pub(super) fn run(
    report: &mut Report,
    title: &str,
    contestants: &[Contestant],
    server_cpu: usize,
    mut send_requests: impl FnMut(&Running) -> Outcome<(Spans, f64)>,
) -> Outcome {
    let mut table = Table::new(title, &["p50", "p90", "p99", "MB/s"]);
    let mut numbers = Vec::new();
    let mut firsts = Vec::new();
    for contestant in contestants {
        progress(&format!("{title}: {}", contestant.name));
        let server = contestant.start(&RunPlacement::on(server_cpu))?;
        let (spans, speed) = send_requests(&server)?;
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| spans.percentile(share));
        table.row(&contestant.name, vec![span(p50), span(p90), span(p99), number(speed)]);
        numbers.push(json!({
            "name": contestant.name,
            "p50_us": p50.as_micros() as u64,
            "p90_us": p90.as_micros() as u64,
            "p99_us": p99.as_micros() as u64,
            "megabytes_per_second": speed,
        }));
        firsts.push((&contestant.name, p50));
    }
    progress("");
    report.case(&table, Value::Array(numbers));
    let of = |wanted_name: &str| {
        firsts.iter().find(|(name, _)| *name == wanted_name).map_or(f64::NAN, |(_, p50)| p50.as_secs_f64())
    };
    let what = format!("first byte beside a download, median of {OURS} / {NGINX}");
    report.target(what, of(OURS) / of(NGINX));
    Ok(())
}
