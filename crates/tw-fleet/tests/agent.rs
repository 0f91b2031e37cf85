//! The agent against a scripted engine, with caches that only remember what they were told.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use support::{PATIENCE, settings, start};
use tw_fleet::{Authentication, FleetPurge, FleetPurgeMode, FleetPurgeScope, PublishOutcome};
use tw_testkit::nats::FakeNats;
use tw_testkit::{Random, TempDir, wait};

fn tag(number: usize) -> FleetPurge {
    let scope = FleetPurgeScope::Tags(vec![format!("tag-{number}").into_bytes()]);
    FleetPurge { cache: b"site".to_vec(), scope, mode: FleetPurgeMode::Hard }
}

#[test]
fn flood_of_tags_arrives_in_order_from_log_and_queue() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet").unwrap();
    let [one, two] = ["one", "two"].map(|node| start(settings(&dir, node, &engine.url())));
    one.wait(|status| status.engine.is_some());
    two.wait(|status| status.engine.is_some());
    assert_eq!(one.flood((0..2000).map(tag)), 0);
    two.wait(|status| status.applied == 2000);
    let tags: Vec<_> =
        two.applied().into_iter().filter(|purge| matches!(purge.scope, FleetPurgeScope::Tags(_))).collect();
    assert_eq!(tags.len(), 2000);
    // Purges of one batch have no order among themselves; batches do.
    let of_batch = |purges: &[FleetPurge], batch: usize| {
        purges.iter().all(|purge| (batch..batch + 500).any(|number| tag(number) == *purge))
    };
    assert!((0..4).all(|batch| of_batch(&tags[batch * 500..(batch + 1) * 500], batch * 500)));
    engine.go_away();
    one.wait(|status| status.engine.is_none());
    wait::pause(Duration::from_millis(1100));
    assert_eq!(one.flood((0..100_000).map(tag)), 100_000);
    engine.come_back();
    two.wait(|status| status.applied == 102_000 && status.lag == 0);
    one.wait(|status| status.queued == 0 && status.published == 102_000);
    // A node recognises its own purges only as long as it remembers them.
    assert!(one.applied().iter().skip(1).all(|purge| matches!(purge.scope, FleetPurgeScope::Tags(_))));
}

#[test]
fn redelivered_records_are_applied_once() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet").unwrap();
    let [one, two] = ["one", "two"].map(|node| start(settings(&dir, node, &engine.url())));
    one.wait(|status| status.engine.is_some());
    two.wait(|status| status.engine.is_some());
    for number in 0..20 {
        assert!(matches!(one.publish(tag(number)), PublishOutcome::Published | PublishOutcome::Queued));
        if number % 5 == 0 {
            engine.disconnect();
        }
    }
    two.wait(|status| status.applied == 20);
    one.wait(|status| status.queued == 0);
    assert_eq!(one.applied().len(), 1, "only everything stale at its start");
    let payloads: Vec<_> = engine.log().into_iter().map(|message| message.payload).collect();
    payloads.iter().for_each(|payload| engine.append(payload));
    two.wait(|status| status.sequence == 40);
    assert_eq!((two.fleet.status().applied, two.applied().len()), (20, 21));
}

#[test]
fn wrong_password_is_reported_without_it() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet").unwrap();
    engine.require_login("edge", "right");
    let mut settings = settings(&dir, "one", &engine.url());
    settings.engine.authentication =
        Authentication::Password("edge".to_owned(), "wrong-secret".to_owned().into());
    let node = start(settings.clone());
    node.wait(|status| status.last_error.is_some());
    // The line comes after the status.
    let is_logged = || node.log.lock().unwrap().contains("the engine refuses: Authorization Violation");
    assert!(wait::until(PATIENCE, is_logged), "{}", node.log.lock().unwrap());
    let log = node.log.lock().unwrap().clone();
    assert!(!log.contains("wrong-secret") && !format!("{:?}", settings).contains("wrong-secret"), "{log}");
    drop(node);
    settings.node = "two".into();
    settings.engine.authentication = Authentication::Password("edge".to_owned(), "right".to_owned().into());
    start(settings).wait(|status| status.engine.is_some());
}

#[test]
fn engine_that_hangs_costs_a_purge_no_more_than_its_timeout() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet").unwrap();
    let node = start(settings(&dir, "one", &engine.url()));
    node.wait(|status| status.engine.is_some());
    engine.stall(true);
    assert_eq!(node.publish(tag(1)), PublishOutcome::Queued);
    engine.stall(false);
    node.wait(|status| status.queued == 0);
    // The engine may have received the purge directly and from the queue, but has it once.
    assert_eq!(
        engine
            .log()
            .iter()
            .filter(|message| message.payload.windows(5).any(|bytes| bytes == b"tag-1"))
            .count(),
        1
    );
}

#[test]
fn hostile_engines_only_cost_the_connection() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet").unwrap();
    let node = start(settings(&dir, "one", &engine.url()));
    node.wait(|status| status.engine.is_some());
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let len = random.below(200);
        engine.send_all(&[random.bytes(len), b"\r\n".to_vec()].concat());
    }
    engine.send_all(b"MSG _INBOX.x 1 4000000000\r\n");
    engine.send_all(b"MSG a 2 $JS.ACK.S.C.1.18446744073709551615.1.1.1 0\r\n\r\n");
    for greeting in [
        &b"HTTP/1.1 200 OK\r\n\r\n"[..],
        b"INFO {}\r\n",
        b"INFO [1]\r\n",
        b"-ERR 'no'\r\n",
        b"\x16\x03\x01\x00",
    ] {
        engine.greet_with(Some(greeting));
        engine.disconnect();
        node.wait(|status| status.engine.is_none());
    }
    engine.greet_with(None);
    node.wait(|status| status.engine.is_some());
    assert_eq!(node.publish(tag(1)), PublishOutcome::Published);
}

#[test]
fn purge_is_applied_again_after_the_disk_has_failed() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet").unwrap();
    let [one, two] = ["one", "two"].map(|node| start(settings(&dir, node, &engine.url())));
    one.wait(|status| status.engine.is_some());
    two.wait(|status| status.engine.is_some());
    *two.caches.fails.lock().unwrap() = true;
    assert_eq!(one.publish(tag(1)), PublishOutcome::Published);
    two.wait(|status| status.is_unsaved && status.sequence == 1);
    let position = || std::fs::read_to_string(dir.join("two/position")).unwrap_or_default();
    assert!(!position().contains("\"sequence\":1"), "{}", position());
    *two.caches.fails.lock().unwrap() = false;
    assert!(wait::until(PATIENCE, || two.applied().contains(&tag(1))));
    assert!(wait::until(PATIENCE, || position().contains("\"sequence\":1")));
    assert!(wait::until(PATIENCE, || !two.fleet.status().is_unsaved));
}

#[test]
fn newer_records_make_everything_stale() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet").unwrap();
    let node = start(settings(&dir, "one", &engine.url()));
    node.wait(|status| status.engine.is_some());
    engine.append(br#"{"version":2,"purge":"everything"}"#);
    node.wait(|status| status.resets == 1);
    let stale = |purge: &FleetPurge| {
        purge.scope == FleetPurgeScope::Prefix(Vec::new()) && purge.mode == FleetPurgeMode::Soft
    };
    assert_eq!(node.applied().iter().filter(|purge| stale(purge)).count(), 2);
}

#[test]
fn summaries_of_all_nodes_are_known_to_all() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet").unwrap();
    let nodes = ["one", "two"].map(|node| start(settings(&dir, node, &engine.url())));
    for node in &nodes {
        node.wait(|status| status.nodes.keys().eq(["one", "two"]));
    }
}
