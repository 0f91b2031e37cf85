//! What servers of a large group cost in memory. A program of its own, which counts every block.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

use tw_net::Addr;
use tw_sys::counted_heap::CountedHeap;
use tw_upstream::{Group, Key, Method, Outcome, Rng, Server, ServerId};

#[global_allocator]
static ALLOCATOR: CountedHeap = CountedHeap;

const SERVERS: u16 = 3000;
const SERVERS_USIZE: usize = SERVERS as usize;

/// Held by each test: they count what the process has.
static ALONE: Mutex<()> = Mutex::new(());

fn group(method: Method) -> Group {
    let server = |n: u16| {
        let [high, low] = n.to_be_bytes();
        let name = format!("10.1.{high}.{low}:8080");
        Server::fixed(&name, [Addr::Inet((Ipv4Addr::new(10, 1, high, low), 8080).into())])
    };
    Group::new("g", method, (0..SERVERS).map(server).collect(), None)
}

/// Bytes of what `make` makes, beyond what is there when it is gone.
fn cost<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = CountedHeap::live();
    let made = make();
    (made, CountedHeap::live().saturating_sub(before))
}

#[test]
fn a_server_costs_less_than_two_kilobytes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (method, most) in [
        (Method::RoundRobin, 2000),
        // Beside 160 points of 8 bytes.
        (Method::HashConsistent, 2000 + 160 * 8),
    ] {
        let (_group, bytes) = cost(|| group(method));
        let each = bytes / SERVERS_USIZE;
        assert!(each <= most, "{each} bytes for each server, {method:?}");
    }
}

#[test]
fn a_server_costs_more_only_when_it_is_asked() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let group = group(Method::RoundRobin);
    let mut rng = Rng::seeded(1);
    let ((), bytes) = cost(|| {
        for _ in 0..10 {
            let mut lease = group.select(&mut group.begin(Key::None, None, 0), 50, &mut rng).unwrap();
            lease.connected(51);
            lease.header(52);
            lease.done(Outcome::Success, 53);
        }
    });
    assert!((10 * 7000..10 * 9000).contains(&bytes), "{bytes} bytes for ten servers that were asked");
}

#[test]
fn a_change_of_one_server_takes_one_more_list_of_references() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (method, most) in [
        (Method::RoundRobin, 100),
        // Beside another ring.
        (Method::HashConsistent, 200 + 160 * 8),
    ] {
        let group = group(method);
        let peak = CountedHeap::peak_of(|| {
            group.change_server(ServerId(7), |params| params.max_conns = 3).unwrap();
        });
        let each = peak / SERVERS_USIZE;
        assert!(each <= most, "{each} bytes for each server, {method:?}");
        let peak = CountedHeap::peak_of(|| {
            let addr = Addr::Inet((Ipv4Addr::LOCALHOST, 1).into());
            let id = group.add(Server::fixed("one more", [addr])).unwrap();
            group.remove_server(id).unwrap();
        });
        let each = peak / SERVERS_USIZE;
        assert!(each <= most + 50, "{each} bytes for each server when one comes and goes, {method:?}");
    }
}
