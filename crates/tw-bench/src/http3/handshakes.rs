//! Connections with one request each, after a full handshake.

use std::time::Duration;

use serde_json::{Value, json};

use super::load::{Kind, Load, Served};
use super::setup::Setup;
use crate::Outcome;
use crate::contestant::{NGINX, OURS, Running};
use crate::exec::RunPlacement;
use crate::h2load::Amount;
use crate::http2::Plan;
use crate::report::{Report, Table, median, number, progress, span};
use crate::tls::Key;

/// Clients at the same time: more than the server has cores, fewer than would only wait for each other.
const CLIENTS: usize = 8;
/// Share of the handshakes that may fail: nginx refuses about one of a thousand (TRANSPORT_PARAMETER_ERROR).
pub(super) const FAILED_MAX: f64 = 0.01;

/// Measures one kind of key.
pub(super) fn run(report: &mut Report, setup: &Setup, plan: &Plan, key: Key) -> Outcome {
    let place = RunPlacement::on(plan.server_cpu);
    let contestants = setup.contestants(key, "");
    let running: Vec<Running> =
        contestants.iter().map(|contestant| contestant.start(&place)).collect::<Outcome<_>>()?;
    let title = format!("{}, full handshakes", key.name());
    let mut samples = running.iter().map(|_| Vec::new()).collect::<Vec<_>>();
    for round in 0..=plan.rounds {
        progress(&format!("{title}: round {round} of {}", plan.rounds));
        for (server, samples) in running.iter().zip(&mut samples) {
            let load = Load {
                server,
                tls: &setup.certificates.client,
                path: "/1k",
                connections: CLIENTS,
                amount: Amount::Seconds(plan.seconds),
                kind: Kind::OneRequest { rate: None },
                lost_percent: 0,
                cpu: plan.load_cpu,
            };
            let served = load.run()?;
            let result = served.result;
            if result.requests == 0 || result.failed as f64 > result.requests as f64 * FAILED_MAX {
                return Err(format!("{}: not a measurement: {result:?}", server.name).into());
            }
            // The first one warms up.
            if round > 0 {
                samples.push(served);
            }
        }
    }
    progress("");
    publish(report, &title, &running, &samples);
    Ok(())
}

fn publish(report: &mut Report, title: &str, running: &[Running], samples: &[Vec<Served>]) {
    let columns =
        ["connections/s", "CPU µs each", "of nginx", "per second and core", "p50", "p99", "load busy"];
    let mut table = Table::new(title, &columns);
    let cpu_us = |name: &str| {
        let of = running.iter().zip(samples).find(|(server, _)| server.name == name);
        let each = |served: &Served| served.cpu.as_secs_f64() * 1e6 / served.result.requests as f64;
        of.map_or(f64::NAN, |(_, samples)| median(samples.iter().map(each)))
    };
    let mut numbers = Vec::new();
    for (server, samples) in running.iter().zip(samples) {
        let per_second = median(samples.iter().map(|served| served.result.per_second));
        let busy = median(samples.iter().map(|served| served.busy));
        let each = cpu_us(&server.name);
        let percentile = |share: f64| {
            let all = samples.iter().map(|served| served.latencies.percentile(share).as_secs_f64());
            Duration::from_secs_f64(median(all))
        };
        let cells = vec![
            number(per_second),
            number(each),
            number(each / cpu_us(NGINX)),
            number(1e6 / each),
            span(percentile(0.5)),
            span(percentile(0.99)),
            number(busy),
        ];
        table.row(&server.name, cells);
        numbers.push(json!({
            "name": server.name,
            "connections_per_second": per_second,
            "cpu_us_per_connection": each,
            "failed": samples.iter().map(|served| served.result.failed).sum::<u64>(),
            "handshakes": samples.iter().map(|served| served.handshakes).sum::<u64>(),
            "p99_us": percentile(0.99).as_micros() as u64,
            "load_busy": busy,
        }));
    }
    report.case(&table, Value::Array(numbers));
    let what = format!("{title}: per second and core, of {NGINX}");
    report.target(what, cpu_us(NGINX) / cpu_us(OURS));
}
