//! Memory of connections with many waiting streams: their heads were sent, and the client has no window for the rest.

use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::http2::{Frames, frame, get, kind};
use tw_testkit::wait;

use super::{OURS, Over, Setup};
use crate::Outcome;
use crate::contestant::Contestant;
use crate::exec::{Pages, RunPlacement, raise_open_files};
use crate::report::{Report, Table, number};
use crate::usage;

/// Streams of a connection that wait.
const STREAMS: u32 = 100;
/// Connections opened and closed before the first measurement of memory.
const WARM_COUNT: usize = 20;
/// Descriptors for this process and the server in addition to the connections.
const SPARE_FILES: u64 = 200;
/// Time for a server to put its last connections to rest.
const REST: Duration = Duration::from_millis(500);
/// Long timeouts for slow clients, and shared descriptors for waiting streams: nginx has one for each otherwise.
const PATIENT: &str = "send_timeout 600s; open_file_cache max=16;";
/// SETTINGS_INITIAL_WINDOW_SIZE of 0 (RFC 9113 section 6.5.2).
const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];

/// Measures one after the other, with and without streams.
pub(super) fn run(report: &mut Report, setup: &Setup, count: usize) -> Outcome {
    let files_max = raise_open_files()?;
    if count as u64 + SPARE_FILES > files_max {
        return Err(format!("only {files_max} open files are allowed: give fewer --idle").into());
    }
    let title = format!("{count} connections, plain");
    let mut table = Table::new(&title, &["KiB each, idle", "resident", "with 100 streams", "resident"]);
    let mut numbers = Vec::new();
    for contestant in &setup.contestants(Over::Tcp, PATIENT) {
        let [idle, waiting] = [measure(contestant, count, 0)?, measure(contestant, count, STREAMS)?];
        table.row(&contestant.name, [idle.0, idle.1, waiting.0, waiting.1].map(number).into());
        numbers.push(json!({
            "name": contestant.name,
            "idle_private_dirty_kib_each": idle.0,
            "idle_resident_kib_each": idle.1,
            "waiting_private_dirty_kib_each": waiting.0,
            "waiting_resident_kib_each": waiting.1,
        }));
        if contestant.name == OURS {
            let each = number((waiting.0 - idle.0) / f64::from(STREAMS));
            report.note(&format!("{OURS}: {each} KiB for a stream that waits"));
        }
    }
    report.case(&table, Value::Array(numbers));
    Ok(())
}

fn measure(contestant: &Contestant, count: usize, streams: u32) -> Outcome<(f64, f64)> {
    let place = RunPlacement { pages: Pages::Small, ..RunPlacement::default() };
    let running = contestant.start(&place)?;
    let open = |count: usize| -> Outcome<Vec<Frames>> {
        (0..count)
            .map(|_| {
                let mut client = Frames::connect(running.addr())?;
                // A request that is answered in full comes first, because a connection without one is not an idle one
                // yet.
                client.send(get(1, "/1k", &[]))?;
                client.wait(kind::DATA)?.ok_or("the server has closed")?;
                client.send(frame(kind::SETTINGS, 0, 0, &NO_WINDOW))?;
                for nth in 1..=streams {
                    client.send(get(1 + 2 * nth, "/1k", &[]))?;
                }
                for _ in 0..streams {
                    client.wait(kind::HEADERS)?.ok_or("the server has closed")?;
                }
                Ok(client)
            })
            .collect()
    };
    drop(open(WARM_COUNT)?);
    wait::pause(REST);
    let before = usage::memory(running.pid())?;
    let clients = open(count)?;
    wait::pause(REST);
    let after = usage::memory(running.pid())?;
    drop(clients);
    let each = |after: u64, before: u64| (after as f64 - before as f64) / count as f64 / 1024.0;
    Ok((each(after.private_dirty, before.private_dirty), each(after.resident, before.resident)))
}
