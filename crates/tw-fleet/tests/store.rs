//! Stores of a fleet, against a scripted engine and a real one: values, compare-and-set, watches and leases.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{RealNats, TestNode, settings, start};
use tw_fleet::{
    CERTIFICATES, CONFIGURATION, EngineError, Entry, FleetSettings, Lease, SUMMARIES, Store, StoreClient,
    StoreWatch,
};
use tw_testkit::etcd::RealEtcd;
use tw_testkit::nats::FakeNats;
use tw_testkit::{TempDir, wait};

fn run<T>(operation: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(operation)
}

fn nodes<const N: usize>(dir: &TempDir, url: &str) -> [TestNode; N] {
    let nodes = std::array::from_fn(|at| start(settings(dir, &format!("n{at}"), url)));
    nodes.iter().for_each(|node: &TestNode| node.wait(|status| status.engine.is_some()));
    nodes
}

fn certificates(node: &TestNode) -> StoreClient {
    node.fleet.store(&CERTIFICATES)
}

/// Everything that a store has to do, for each engine.
fn check_store(settings: impl Fn(&str) -> FleetSettings) {
    let nodes = ["n0", "n1"].map(|name| start(settings(name)));
    nodes.iter().for_each(|node| node.wait(|status| status.engine.is_some()));
    let [one, two] = [certificates(&nodes[0]), certificates(&nodes[1])];
    run(async {
        assert_eq!(one.get("a").await, Ok(None));
        let mut empty = two.watch().await.unwrap();
        let first = empty.next().await.unwrap();
        assert!(first.entries.is_empty() && first.is_complete, "{first:?}");

        let version = one.set("a", b"first", Some(0)).await.unwrap();
        assert_eq!(one.set("a", b"second", Some(0)).await, Err(EngineError::Conflict));
        assert_eq!(two.set("a", b"second", Some(version + 100)).await, Err(EngineError::Conflict));
        let newer = two.set("a", b"second", Some(version)).await.unwrap();
        assert!(newer > version);
        assert_eq!(one.set("a", b"third", Some(version)).await, Err(EngineError::Conflict));
        let entry = one.get("a").await.unwrap().unwrap();
        assert_eq!((entry.value.as_deref(), entry.version), (Some(&b"second"[..]), newer));
        let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
        one.set("b.c", &bytes, None).await.unwrap();
        assert_eq!(two.get("b.c").await.unwrap().unwrap().value, Some(bytes.clone()));

        // The watch has seen all of it, in order.
        let mut entries: Vec<Entry> = Vec::new();
        while entries.len() < 3 {
            entries.extend(empty.next().await.unwrap().entries);
        }
        let keys: Vec<_> = entries.iter().map(|entry| (&*entry.key, entry.value.as_deref())).collect();
        assert_eq!(
            keys,
            [("a", Some(&b"first"[..])), ("a", Some(&b"second"[..])), ("b.c", Some(&bytes[..]))]
        );
        // Another watch begins with the existing values.
        let mut late = one.watch().await.unwrap();
        let mut entries = Vec::new();
        let mut is_complete = false;
        while !is_complete {
            let changes = late.next().await.unwrap();
            entries.extend(changes.entries);
            is_complete = changes.is_complete;
        }
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(entries.iter().map(|entry| &*entry.key).collect::<Vec<_>>(), ["a", "b.c"]);
        assert_eq!(entries[0].version, newer);

        assert_eq!(one.remove("a", Some(version)).await, Err(EngineError::Conflict));
        one.remove("a", Some(newer)).await.unwrap();
        let removed = two.get("a").await.unwrap();
        assert!(removed.as_ref().is_none_or(|entry| entry.value.is_none()), "{removed:?}");
        let changes = late.next().await.unwrap();
        assert_eq!((&*changes.entries[0].key, &changes.entries[0].value), ("a", &None));
        let version = removed.map_or(0, |entry| entry.version);
        two.set("a", b"again", Some(version)).await.unwrap();

        // Stores do not see each other.
        let other = nodes[0].fleet.store(&CONFIGURATION);
        assert_eq!(other.get("a").await, Ok(None));
        other.set("a", b"x", Some(0)).await.unwrap();
        assert_eq!(two.get("a").await.unwrap().unwrap().value.as_deref(), Some(&b"again"[..]));
        for (key, value) in [("a b", &b"x"[..]), ("", b"x"), ("a", &vec![0; CERTIFICATES.value_size_max + 1])]
        {
            assert!(matches!(one.set(key, value, None).await, Err(EngineError::Refused(_))), "{key}");
        }
    });
    let has_summary = || run(nodes[0].fleet.store(&SUMMARIES).get("n1")).is_ok_and(|entry| entry.is_some());
    assert!(wait::until(wait::TIMEOUT, has_summary), "{}", nodes[1].log());
    check_lease(&nodes);
}

fn check_lease(nodes: &[TestNode]) {
    const TERM: Duration = Duration::from_millis(1500);
    run(async {
        let mut leases: Vec<_> =
            nodes.iter().map(|node| Lease::new(certificates(node), "lease", "node", TERM).unwrap()).collect();
        assert_eq!(leases[0].attempt().await, Ok(true));
        assert_eq!(leases[1].attempt().await, Ok(false));
        // The first holder is silent from now on.
        let began = std::time::Instant::now();
        while !leases[1].attempt().await.unwrap() {
            assert!(began.elapsed() < wait::TIMEOUT);
            wait::pause(Duration::from_millis(50));
        }
        assert!(began.elapsed() >= TERM && !leases[0].is_held());
        assert_eq!(leases[0].attempt().await, Ok(false));
        leases[1].release().await.unwrap();
        assert_eq!(leases[0].attempt().await, Ok(true));
    });
}

#[test]
fn store_over_the_scripted_engine() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet-store").unwrap();
    check_store(|node| settings(&dir, node, &engine.url()));
}

#[test]
fn store_over_a_real_nats_server() {
    let Some(engine) = RealNats::start(&[]) else { return };
    let dir = TempDir::new("fleet-store").unwrap();
    check_store(|node| settings(&dir, node, &engine.url()));
}

#[test]
fn store_over_a_real_etcd() {
    let Some(engine) = RealEtcd::start(&[]) else { return };
    let dir = TempDir::new("fleet-store").unwrap();
    check_store(|node| settings(&dir, node, &engine.url()));
}

#[test]
fn engine_that_is_away_fails_operations_and_ends_watches() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet-store").unwrap();
    let [node] = nodes(&dir, &engine.url());
    let store = certificates(&node);
    run(async {
        store.set("a", b"x", None).await.unwrap();
        let mut watch = store.watch().await.unwrap();
        assert!(watch.next().await.unwrap().is_complete);
        engine.go_away();
        assert!(matches!(watch.next().await, Err(EngineError::Lost(_))));
        assert!(matches!(store.get("a").await, Err(EngineError::Lost(_))));
        assert!(matches!(store.watch().await.unwrap().next().await, Err(EngineError::Lost(_))));
        engine.come_back();
        node.wait(|status| status.engine.is_some());
        assert_eq!(store.get("a").await.unwrap().unwrap().value.as_deref(), Some(&b"x"[..]));
        let mut watch = store.watch().await.unwrap();
        assert_eq!(watch.next().await.unwrap().entries.len(), 1);
    });
}

#[test]
fn store_that_is_not_permitted_fails_alone() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet-store").unwrap();
    let [other] = nodes(&dir, &engine.url());
    run(other.fleet.store(&CONFIGURATION).set("a", b"x", None)).unwrap();
    for pattern in [
        "$JS.API.STREAM.INFO.KV_tailwater_configuration-edge",
        "$JS.API.CONSUMER.MSG.NEXT.KV_tailwater_certificates-edge.*",
    ] {
        engine.forbid(pattern);
    }
    // The node also asks for its own report.
    let node = start(settings(&dir, "n1", &engine.url()));
    node.wait(|status| status.engine.is_some() && status.nodes.contains_key("n1"));
    let store = certificates(&node);
    let is_refused =
        |error: &EngineError| matches!(error, EngineError::Refused(why) if why.contains("Permissions"));
    run(async {
        for _ in 0..3 {
            let error = node.fleet.store(&CONFIGURATION).get("a").await.unwrap_err();
            assert!(is_refused(&error), "{error}");
        }
        store.set("a", b"x", None).await.unwrap();
        let error = store.watch().await.unwrap().next().await.unwrap_err();
        assert!(is_refused(&error), "{error}");
        assert_eq!(store.get("a").await.unwrap().unwrap().value.as_deref(), Some(&b"x"[..]));
    });
    assert_eq!(node.fleet.status().connections, 1, "{}", node.log());
}

#[test]
fn values_of_a_hostile_engine_are_not_taken() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet-store").unwrap();
    let [node] = nodes(&dir, &engine.url());
    let store = certificates(&node);
    const BUCKET: &str = "tailwater_certificates-edge";
    run(async {
        store.set("a", b"x", None).await.unwrap();
        engine.set_value(BUCKET, "a", &vec![b'x'; CERTIFICATES.value_size_max + 1]);
        assert_eq!(store.get("a").await.unwrap().unwrap().value, None);
        engine.set_value(BUCKET, "b*", b"x");
        engine.set_value(BUCKET, &"k".repeat(1000), b"x");
        engine.set_value(BUCKET, "c", b"x");
        let mut watch = store.watch().await.unwrap();
        let mut keys = Vec::new();
        loop {
            let changes = watch.next().await.unwrap();
            keys.extend(changes.entries.into_iter().map(|entry| (entry.key, entry.value)));
            if changes.is_complete {
                break;
            }
        }
        keys.sort();
        assert_eq!(keys, [("a".to_owned(), None), ("c".to_owned(), Some(b"x".to_vec()))]);
    });
}

#[test]
fn operations_without_an_agent_fail() {
    let dir = TempDir::new("fleet-store").unwrap();
    let fleet = Arc::new(tw_fleet::Fleet::new(settings(&dir, "n0", "nats://127.0.0.1:1")));
    run(async {
        let store = fleet.store(&CERTIFICATES);
        assert!(matches!(store.get("a").await, Err(EngineError::Lost(_))));
        assert!(store.watch().await.is_err());
    });
}
