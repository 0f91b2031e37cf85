//! Memory of connections on which nothing happens.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Happened, Request};
use super::clients::Clients;
use super::{Key, NGINX, OURS, Setup, frames};
use crate::bench::Outcome;
use crate::bench::contestant::Contestant;
use crate::bench::exec::{Pages, RunPlacement, raise_open_files};
use crate::bench::report::{Report, Table, number};
use crate::bench::usage;

/// Connections opened and closed before the first measurement of memory.
const WARM_COUNT: usize = 100;
/// Descriptors for this process and the server in addition to the connections.
const SPARE_FILES: u64 = 200;
/// Time for both ends to acknowledge what they have, and for a server to put its last connections to rest.
const REST: Duration = Duration::from_secs(2);

/// Measures both, one after the other.
pub(super) fn run(report: &mut Report, setup: &Setup, count: usize) -> Outcome {
    let files_max = raise_open_files()?;
    if count as u64 + SPARE_FILES > files_max {
        return Err(format!("only {files_max} open files are allowed: give fewer --idle").into());
    }
    let title = format!("{count} idle connections");
    let mut table = Table::new(&title, &["KiB each", "resident KiB each"]);
    let mut numbers = Vec::new();
    for contestant in &setup.contestants(Key::EcdsaP256, "") {
        let (dirty, resident) = measure(contestant, setup, count)?;
        table.row(&contestant.name, vec![number(dirty), number(resident)]);
        numbers.push(
            json!({ "name": contestant.name, "private_dirty_kib_each": dirty, "resident_kib_each": resident }),
        );
        if contestant.name == OURS {
            let what = format!("memory of an idle connection ({NGINX} beside)");
            report.target(what, dirty);
        }
    }
    report.case(&table, Value::Array(numbers));
    Ok(())
}

fn measure(contestant: &Contestant, setup: &Setup, count: usize) -> Outcome<(f64, f64)> {
    let place = RunPlacement { pages: Pages::Small, ..RunPlacement::default() };
    let running = contestant.start(&place)?;
    let mut clients = Clients::new(running.addr(), &setup.certificates.client)?;
    for key in open(&mut clients, WARM_COUNT)? {
        clients.close(key);
    }
    clients.rest(REST)?;
    let before = usage::memory(running.pid())?;
    open(&mut clients, count)?;
    clients.rest(REST)?;
    let after = usage::memory(running.pid())?;
    let each = |after: u64, before: u64| (after as f64 - before as f64) / count as f64 / 1024.0;
    Ok((each(after.private_dirty, before.private_dirty), each(after.resident, before.resident)))
}

/// Opens connections with one answered request each: none is idle that has done nothing.
fn open(clients: &mut Clients, count: usize) -> Outcome<Vec<usize>> {
    let request = Request { number: 0, bytes: frames::get("/1k") };
    let keys = clients.connect_all(count)?;
    for key in &keys {
        clients.send(*key, &request);
        let deadline = Instant::now() + tw_testkit::wait::TIMEOUT;
        loop {
            let events = clients.turn(deadline)?;
            if events.is_empty() && Instant::now() >= deadline {
                return Err("a request was not answered".into());
            }
            let is_answer = |(from, event): &(usize, Happened)| {
                from == key && matches!(event, Happened::Answered(answer) if answer.is_ok)
            };
            if events.iter().any(is_answer) {
                break;
            }
        }
    }
    Ok(keys)
}
