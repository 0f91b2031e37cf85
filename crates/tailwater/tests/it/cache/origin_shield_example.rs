//! Example with a shield in `docs/caching.md`: two edge nodes, two shield nodes, one request to the origin for a response.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use tw_testkit::origin::counting;
use tw_testkit::{Server, wait};

use super::doc_examples::{example, example_replaced};
use crate::support::get;
use crate::support::metrics::metric_sum;

const RESPONSES: usize = 40;
const CLIENTS: usize = 8;

fn stored(server: &Server) -> u64 {
    metric_sum(server, "cache_entries")
}

#[test]
fn shield_makes_one_request_of_many_nodes_and_its_failure_is_bridged() {
    let (origin, request_count) = counting(|conn, head, _| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        conn.answer("Cache-Control: max-age=3600\r\n", path);
    });
    let mut shields: Vec<_> = (0..2).map(|_| example("CDN edge cache", origin)).collect();
    let addresses = [
        ("10.0.0.11:8001", shields[0].addr().to_string()),
        ("10.0.0.12:8001", shields[1].addr().to_string()),
    ];
    let edges: Vec<_> = (0..2).map(|_| example_replaced("Origin shield", origin, &addresses)).collect();
    let edges = Arc::new(edges);

    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let edges = edges.clone();
            thread::spawn(move || {
                for nth in 0..RESPONSES {
                    let path = format!("/{nth}");
                    assert_eq!(get(&edges[client % 2], &path).text(), path);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(request_count.load(SeqCst), RESPONSES);
    // Each shield node stores its share of the responses, and each edge node all of them.
    assert!(wait::until(wait::TIMEOUT, || shields.iter().map(stored).sum::<u64>() == RESPONSES as u64));
    assert!(shields.iter().all(|shield| stored(shield) >= RESPONSES as u64 / 8));

    // When one shield node is down, the other one fetches the responses of both from the origin.
    shields.pop().unwrap().stop().unwrap();
    for nth in 0..RESPONSES {
        let path = format!("/new/{nth}");
        assert_eq!(get(&edges[0], &path).text(), path);
    }
    assert!(wait::until(wait::TIMEOUT, || stored(&edges[0]) == 2 * RESPONSES as u64));
    assert_eq!(get(&edges[0], "/new/0").text(), "/new/0");
    assert_eq!(request_count.load(SeqCst), 2 * RESPONSES);
    // When both are down, the edge node fetches from the origin itself.
    shields.pop().unwrap().stop().unwrap();
    assert_eq!(get(&edges[0], "/last").text(), "/last");
}
