//! Cost of an idle tunnel: a WebSocket that was used once and stays open.

use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::{Client, wait};

use super::contestants::{NGINX, OURS, Proxies};
use super::origin::TUNNEL;
use crate::Outcome;
use crate::contestant::{Contestant, Running};
use crate::exec::{Pages, RunPlacement, raise_open_files};
use crate::report::{Report, Table, number, progress};
use crate::usage::{self, Memory};

/// Tunnels opened and closed before the first measurement of memory: pools and scratch buffers exist afterwards.
const WARM_COUNT: usize = 100;
/// Descriptors for a proxy in addition to two for each tunnel.
const SPARE_FILES: u64 = 1_000;
/// Time for a proxy to put its last tunnels to rest.
const REST: Duration = Duration::from_millis(500);

struct Score {
    name: String,
    dirty_each: f64,
    resident_each: f64,
    /// Resident with all tunnels open, in bytes.
    resident: u64,
}

/// Opens `wanted_number` tunnels, or as many as possible, through each proxy.
pub(super) fn run(report: &mut Report, proxies: &Proxies, wanted_number: usize) -> Outcome {
    let files_max = raise_open_files()?;
    let room = usize::try_from(files_max.saturating_sub(SPARE_FILES) / 2).unwrap_or(usize::MAX);
    let count = wanted_number.min(room);
    if count < wanted_number {
        report.note(&format!(
            "{count} tunnels instead of {wanted_number}: a proxy may open {files_max} files and needs two for each"
        ));
    }
    let connections_max = 2 * (count + WARM_COUNT);
    let mut contestants = vec![
        proxies.ours(OURS, "").with_connections(connections_max),
        proxies.nginx(NGINX, "").with_connections(connections_max),
    ];
    contestants.extend(proxies.haproxy_with(count + WARM_COUNT));
    let mut results = Vec::new();
    for contestant in contestants.iter().filter(|contestant| contestant.is_present()) {
        results.push(measure(contestant, count)?);
    }
    progress("");
    publish(report, count, &results);
    Ok(())
}

fn measure(contestant: &Contestant, count: usize) -> Outcome<Score> {
    let running = contestant.start(&RunPlacement { pages: Pages::Small, ..RunPlacement::default() })?;
    progress(&format!("{}: {count} tunnels", running.name));
    drop(open(&running, WARM_COUNT)?);
    wait::pause(REST);
    let before = usage::memory(running.pid())?;
    let tunnels = open(&running, count)?;
    wait::pause(REST);
    let after = usage::memory(running.pid())?;
    drop(tunnels);

    let each = |of: fn(&Memory) -> u64| (of(&after) as f64 - of(&before) as f64) / count as f64;
    Ok(Score {
        dirty_each: each(|memory| memory.private_dirty),
        resident_each: each(|memory| memory.resident),
        resident: after.resident,
        name: running.name.clone(),
    })
}

/// Opens tunnels and sends bytes through them in both directions.
fn open(proxy: &Running, count: usize) -> Outcome<Vec<Client>> {
    let request = format!(
        "GET {TUNNEL} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let mut tunnels = Vec::with_capacity(count);
    for nth in 0..count {
        let tunnel = || -> Outcome<Client> {
            let mut client = Client::connect(proxy.addr())?;
            client.send(&request)?;
            let response = client.read_head()?;
            client.send("ping")?;
            match (response.status, client.read_bytes(4)?.as_slice()) {
                (101, b"ping") => Ok(client),
                _ => Err(response.head.into()),
            }
        };
        tunnels.push(tunnel().map_err(|e| format!("{}: tunnel {nth}: {e}", proxy.name))?);
    }
    Ok(tunnels)
}

fn publish(report: &mut Report, count: usize, results: &[Score]) {
    let mut table =
        Table::new(format!("{count} idle tunnels"), &["B each", "resident B each", "resident MB"]);
    for result in results {
        let cells = [result.dirty_each, result.resident_each, result.resident as f64 / 1e6];
        table.row(&result.name, cells.map(number).to_vec());
    }
    let numbers: Vec<Value> = results
        .iter()
        .map(|result| {
            json!({
                "name": result.name,
                "tunnels": count,
                "private_dirty_bytes_each": result.dirty_each,
                "resident_bytes_each": result.resident_each,
                "resident_bytes": result.resident,
            })
        })
        .collect();
    report.case(&table, Value::Array(numbers));
    if let Some(ours) = results.iter().find(|result| result.name == OURS) {
        let what = "memory of an idle tunnel";
        report.target(what, ours.dirty_each);
    }
}
