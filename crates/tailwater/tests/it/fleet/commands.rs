//! `tailwater purge` and `tailwater fleet status` with a fleet.

use std::process::Command;

use tw_testkit::nats::FakeNats;
use tw_testkit::{Server, wait};

use super::{conf, fill, tagged_origin, wait_connected, wait_for};
use crate::support::server;

/// Status and output of a command for the server.
pub(super) fn run(node: &Server, words: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tailwater"))
        .args(words)
        .arg("-p")
        .arg(node.prefix())
        .arg("-c")
        .arg(node.prefix().join("conf/nginx.conf"))
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn commands_reach_the_fleet() {
    let engine = FakeNats::start();
    let origin = tagged_origin();
    let start = |name: &str| server().with_master().start(&conf(name, &engine.url(), &origin, "")).unwrap();
    let nodes = [start("n0"), start("n1")];
    nodes.iter().for_each(wait_connected);
    fill(&nodes, "/a");
    assert_eq!(run(&nodes[0], &["purge", "--cache", "zone", "/a"]), (true, String::new()));
    nodes.iter().for_each(|node| wait_for(node, "/a", "MISS"));
    let mut last = String::new();
    let has_all = || {
        let (is_done, text) = run(&nodes[1], &["fleet", "status"]);
        last = text;
        is_done && last.contains("\nn0 ") && last.contains("\nn1 ")
    };
    assert!(wait::until(wait::TIMEOUT, has_all), "{last}");
    assert!(last.starts_with("fleet edge, node n1: connected to fake 2.15.0\n"), "{last}");
    engine.go_away();
    let queued = || run(&nodes[0], &["purge", "--cache", "zone", "/a"]).1.contains("other nodes purge when");
    assert!(wait::until(wait::TIMEOUT, queued));
    assert!(run(&nodes[0], &["fleet", "status"]).1.contains("not connected: "), "{last}");
}

#[test]
fn status_without_a_fleet_says_so() {
    let node = server().with_master().start("http { server { listen 127.0.0.1:{port}; } }").unwrap();
    assert_eq!(run(&node, &["fleet", "status"]), (true, "the configuration has no \"fleet\"\n".to_owned()));
}
