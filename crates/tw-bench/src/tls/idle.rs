//! Memory of TLS connections on which nothing happens.

use std::time::Duration;

use tw_testkit::{Client, wait};

use super::handshakes::Session;
use super::{Key, Setup};
use crate::Outcome;
use crate::connection_memory::{self, MemoryEach, WARM_COUNT};
use crate::contestant::Contestant;
use crate::exec::{Pages, RunPlacement};
use crate::report::Report;
use crate::usage;

const REQUEST: &str = "GET /1k HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// Time for a server to put its last connections to rest.
const REST: Duration = Duration::from_millis(500);

/// Measures both, one after the other.
pub(super) fn run(report: &mut Report, setup: &Setup, count: usize) -> Outcome {
    let contestants = setup.contestants(Key::EcdsaP256, "");
    let title = format!("{count} idle connections, TLS 1.3");
    connection_memory::run(report, &title, "TLS connection", &contestants, count, |contestant| {
        measure(contestant, setup, count)
    })
}

fn measure(contestant: &Contestant, setup: &Setup, count: usize) -> Outcome<MemoryEach> {
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
    Ok(MemoryEach::between(&before, &after, count))
}
