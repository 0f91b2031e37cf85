//! Memory of connections on which nothing happens.

use std::time::{Duration, Instant};

use super::client::{Happened, Request};
use super::clients::Clients;
use super::frames;
use super::setup::Setup;
use crate::Outcome;
use crate::connection_memory::{self, MemoryEach, WARM_COUNT};
use crate::contestant::Contestant;
use crate::exec::{Pages, RunPlacement};
use crate::report::Report;
use crate::tls::Key;
use crate::usage;

/// Time for both ends to acknowledge what they have, and for a server to put its last connections to rest.
const REST: Duration = Duration::from_secs(2);

/// Measures both, one after the other.
pub(super) fn run(report: &mut Report, setup: &Setup, count: usize) -> Outcome {
    let contestants = setup.contestants(Key::EcdsaP256, "");
    let title = format!("{count} idle connections");
    connection_memory::run(report, &title, "connection", &contestants, count, |contestant| {
        measure(contestant, setup, count)
    })
}

fn measure(contestant: &Contestant, setup: &Setup, count: usize) -> Outcome<MemoryEach> {
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
    Ok(MemoryEach::between(&before, &after, count))
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
