//! Memory of TLS connections on which nothing happens.

use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::{Client, wait};

use super::handshakes::Session;
use super::{Key, NGINX, OURS, Setup};
use crate::bench::Outcome;
use crate::bench::contestant::Contestant;
use crate::bench::exec::{Pages, RunPlacement, raise_open_files};
use crate::bench::report::{Report, Table, number};
use crate::bench::usage;

const REQUEST: &str = "GET /1k HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// Connections opened and closed before the first measurement of memory.
const WARM_COUNT: usize = 100;
/// Descriptors for this process and the server in addition to the connections.
const SPARE_FILES: u64 = 200;
/// Time for a server to put its last connections to rest.
const REST: Duration = Duration::from_millis(500);

/// Measures both, one after the other.
pub(super) fn run(report: &mut Report, setup: &Setup, count: usize) -> Outcome {
    let files_max = raise_open_files()?;
    if count as u64 + SPARE_FILES > files_max {
        return Err(format!("only {files_max} open files are allowed: give fewer --idle").into());
    }
    let title = format!("{count} idle connections, TLS 1.3");
    let mut table = Table::new(&title, &["KiB each", "resident KiB each"]);
    let mut numbers = Vec::new();
    for contestant in &setup.contestants(Key::EcdsaP256, "") {
        let (dirty, resident) = measure(contestant, setup, count)?;
        table.row(&contestant.name, vec![number(dirty), number(resident)]);
        numbers.push(
            json!({ "name": contestant.name, "private_dirty_kib_each": dirty, "resident_kib_each": resident }),
        );
        if contestant.name == OURS {
            let what = format!("memory of an idle TLS connection ({NGINX} beside)");
            report.target(what, dirty);
        }
    }
    report.case(&table, Value::Array(numbers));
    Ok(())
}

fn measure(contestant: &Contestant, setup: &Setup, count: usize) -> Outcome<(f64, f64)> {
    let place = RunPlacement { pages: Pages::Small, ..RunPlacement::default() };
    let running = contestant.start(&place)?;
    let config = Session::New.config(&setup.authority);
    let open = |count: usize| -> Outcome<Vec<Client>> {
        (0..count)
            .map(|_| {
                let mut client = Client::connect_tls(running.addr(), &config, "localhost")?;
                client.send(REQUEST)?;
                client.read_response()?;
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
