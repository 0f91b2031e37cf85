//! Helpers for the tests of groups.

mod bounded;
mod changes;
mod failures;
mod leases;
mod nginx;
mod sticky;

use std::sync::Arc;

use tw_net::Addr;

use crate::{BalanceKey, BalanceMethod, Group, Lease, PeerOutcome, PeerParams, PeerSelection, Rng, Server};

/// A peer `127.0.0.N:9` of weight `weight`, without limits.
fn server(n: u8, weight: u32) -> Server {
    with(n, |params| (params.weight, params.max_fails) = (weight, 0))
}

/// A peer `127.0.0.N:9`.
fn with(n: u8, change: impl FnOnce(&mut PeerParams)) -> Server {
    let addr = format!("127.0.0.{n}:9");
    let mut server = Server::fixed(&addr, [addr_of(&addr)]);
    change(&mut server.params);
    server
}

fn addr_of(text: &str) -> Addr {
    match text.strip_prefix("unix:") {
        Some(path) => Addr::Unix(Some(std::path::Path::new(path).into())),
        None => Addr::Inet(text.parse().unwrap()),
    }
}

fn group(method: BalanceMethod, servers: Vec<Server>) -> Group {
    Group::new("g", method, servers, None)
}

/// The last number of an address of [`server`].
fn number(lease: &Lease) -> u8 {
    match lease.peer().addr() {
        Addr::Inet(std::net::SocketAddr::V4(addr)) => addr.ip().octets()[3],
        addr => panic!("{addr}"),
    }
}

/// A request that has not chosen yet.
fn new_selection(group: &Group, key: BalanceKey) -> (PeerSelection, Rng) {
    (group.start_selection(key, None, 0), Rng::seeded(1))
}

/// The numbers of the peers that as many requests get, each of which succeeds at once.
fn turns(group: &Group, count: usize, now: u64) -> Vec<u8> {
    let one = |_| {
        let (mut selection, mut rng) = new_selection(group, BalanceKey::None);
        let lease = group.select(&mut selection, now, &mut rng).unwrap();
        let number = number(&lease);
        lease.done(PeerOutcome::Success, now);
        number
    };
    (0..count).map(one).collect()
}

/// The peers that one request gets which fails everywhere.
fn all_fail(group: &Group, key: BalanceKey, now: u64) -> Vec<u8> {
    let (mut selection, mut rng) = new_selection(group, key);
    let mut tried = Vec::new();
    while let Ok(lease) = group.select(&mut selection, now, &mut rng) {
        tried.push(number(&lease));
        lease.done(PeerOutcome::Failed, now);
        if selection.tries_left() == 0 {
            break;
        }
    }
    tried
}

fn route(text: &str) -> Option<Arc<[u8]>> {
    Some(text.as_bytes().into())
}
