//! Memory of the servers of a large group. A program of its own, which counts every block.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;

use tw_net::Addr;
use tw_sys::heap::CountingHeap;
use tw_upstream::{BalanceKey, BalanceMethod, Group, PeerOutcome, Rng, Server, ServerId};

#[global_allocator]
static ALLOCATOR: CountingHeap = CountingHeap;

const SERVERS: u16 = 3000;
const SERVERS_USIZE: usize = SERVERS as usize;

fn group(method: BalanceMethod) -> Group {
    let server = |n: u16| {
        let [high, low] = n.to_be_bytes();
        let name = format!("10.1.{high}.{low}:8080");
        Server::fixed(&name, [Addr::Inet((Ipv4Addr::new(10, 1, high, low), 8080).into())])
    };
    Group::new("g", method, (0..SERVERS).map(server).collect(), None)
}

/// Runs `make`, and returns the bytes that its result takes.
fn cost<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let (made, measured) = CountingHeap::measure(make);
    (made, usize::try_from(measured.kept).unwrap_or(0))
}

/// Runs `work`, and returns the most bytes that it had at a time.
fn peak_of(work: impl FnOnce()) -> usize {
    let ((), measured) = CountingHeap::measure(work);
    usize::try_from(measured.peak).unwrap_or(0)
}

#[test]
fn a_server_costs_less_than_two_kilobytes() {
    for (method, most) in [
        (BalanceMethod::RoundRobin, 2000),
        // And 160 points of 8 bytes.
        (BalanceMethod::HashConsistent, 2000 + 160 * 8),
    ] {
        let (_group, bytes) = cost(|| group(method));
        let each = bytes / SERVERS_USIZE;
        assert!(each <= most, "{each} bytes for each server, {method:?}");
    }
}

#[test]
fn server_state_is_allocated_at_its_first_use() {
    let group = group(BalanceMethod::RoundRobin);
    let mut rng = Rng::seeded(1);
    let ((), bytes) = cost(|| {
        for _ in 0..10 {
            let mut lease =
                group.select(&mut group.start_selection(BalanceKey::None, None, 0), 50, &mut rng).unwrap();
            lease.connected(51);
            lease.header(52);
            lease.done(PeerOutcome::Success, 53);
        }
    });
    assert!((10 * 7000..10 * 9000).contains(&bytes), "{bytes} bytes for ten servers that were asked");
}

#[test]
fn a_change_of_one_server_takes_one_more_list_of_references() {
    for (method, most) in [
        (BalanceMethod::RoundRobin, 100),
        // And another ring.
        (BalanceMethod::HashConsistent, 200 + 160 * 8),
    ] {
        let group = group(method);
        let peak = peak_of(|| {
            group.change_server(ServerId(7), |params| params.max_conns = 3).unwrap();
        });
        let each = peak / SERVERS_USIZE;
        assert!(each <= most, "{each} bytes for each server, {method:?}");
        let peak = peak_of(|| {
            let addr = Addr::Inet((Ipv4Addr::LOCALHOST, 1).into());
            let id = group.add(Server::fixed("one more", [addr])).unwrap();
            group.remove_server(id).unwrap();
        });
        let each = peak / SERVERS_USIZE;
        assert!(each <= most + 50, "{each} bytes for each server when one comes and goes, {method:?}");
    }
}
