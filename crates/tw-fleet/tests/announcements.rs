//! Announcements over engines: a scripted one, and a real NATS server that refuses them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Instant;

use support::{PATIENCE, RealNats, TestNode, settings, start};
use tw_fleet::{
    Authentication, FleetPurge, FleetPurgeMode, FleetPurgeScope, PublishOutcome, RateKey, SharedRate,
    SharedRateState,
};
use tw_testkit::nats::FakeNats;
use tw_testkit::{TempDir, wait};

const SUBJECT: &str = "tailwater.edge.nodes";

fn wait_state(node: &TestNode, rate: &SharedRate, is_so: impl Fn(&SharedRateState) -> bool) {
    assert!(wait::until(PATIENCE, || is_so(&rate.state())), "{:?} {}", rate.state(), node.log());
}

#[test]
fn shares_follow_the_demand_of_both_nodes() {
    let engine = FakeNats::start();
    let dir = TempDir::new("fleet").unwrap();
    let nodes = ["one", "two"].map(|node| start(settings(&dir, node, &engine.url())));
    let rates = [nodes[0].share_rate(1000), nodes[1].share_rate(1000)];
    for (node, rate) in nodes.iter().zip(&rates) {
        wait_state(node, rate, |state| state.nodes == 2 && state.away == 0 && state.is_shared);
    }
    // Node one has three times the demand of node two: 750 requests a second, and 250. Demand above the rate would
    // count as the rate.
    let key = RateKey::of(b"a");
    let mut shares = [0.0; 2];
    let mut turns = 0;
    let started = Instant::now();
    let is_shared = || {
        while turns < started.elapsed().as_millis() / 4 {
            turns += 1;
            for at in [0, 0, 0, 1] {
                shares[at] = rates[at].count(key, tw_rt::clock::millis()).part();
            }
        }
        (0.65..0.85).contains(&shares[0]) && (0.95..1.05).contains(&(shares[0] + shares[1]))
    };
    assert!(wait::until(PATIENCE, is_shared), "{shares:?}");
    // Announcements of other senders are read with limits, and never believed beyond them.
    engine.say(SUBJECT, b"{");
    engine.say(SUBJECT, &vec![b'x'; 200_000]);
    engine.say(SUBJECT, &vec![b'x'; 2_000_000]);
    nodes[0].wait(|status| status.unreadable_announcements >= 3 && status.engine.is_some());
    engine.go_away();
    wait_state(&nodes[0], &rates[0], |state| state.nodes == 2 && !state.is_shared);
    assert_eq!(rates[0].count(key, tw_rt::clock::millis()).part(), 0.5);
    engine.come_back();
    wait_state(&nodes[0], &rates[0], |state| state.nodes == 2 && state.is_shared);
}

#[test]
fn user_that_may_not_announce_still_purges() {
    let dir = TempDir::new("fleet").unwrap();
    let conf = dir.join("nats.conf");
    let users = format!(
        "authorization {{ users = [ \
           {{ user: all, password: secret }}, \
           {{ user: mute, password: secret, permissions: {{ publish: {{ deny: [\"{SUBJECT}\"] }} }} }}, \
           {{ user: deaf, password: secret, permissions: {{ subscribe: {{ deny: [\"{SUBJECT}\"] }} }} }} ] }}\n"
    );
    std::fs::write(&conf, users).unwrap();
    let Some(engine) = RealNats::start(&["-c", conf.to_str().unwrap()]) else { return };
    let node = |name: &str, user: &str| {
        let mut settings = settings(&dir, name, &engine.url());
        settings.engine.authentication =
            Authentication::Password(user.to_owned(), "secret".to_owned().into());
        let node = start(settings);
        let rate = node.share_rate(10);
        (node, rate)
    };
    let one = node("one", "all");
    let two = node("two", "all");
    for (node, rate) in [&one, &two] {
        wait_state(node, rate, |state| state.nodes == 2 && state.is_shared);
    }
    for (user, message) in [
        ("mute", "announcements cannot be published"),
        ("deaf", "announcements of other nodes cannot be read"),
    ] {
        let (node, rate) = node(user, user);
        node.wait(|status| status.engine.is_some());
        assert!(wait::until(PATIENCE, || node.log().contains(message)), "{}", node.log());
        let scope = FleetPurgeScope::Tags(vec![user.as_bytes().to_vec()]);
        let purge = FleetPurge { cache: b"site".to_vec(), scope, mode: FleetPurgeMode::Hard };
        assert_eq!(node.publish(purge.clone()), PublishOutcome::Published);
        assert!(wait::until(PATIENCE, || one.0.applied().contains(&purge)));
        assert!(!rate.state().is_shared);
        assert_eq!(node.fleet.status().connections, 1, "{}", node.log());
    }
}
