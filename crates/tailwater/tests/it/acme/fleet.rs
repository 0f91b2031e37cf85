//! Automatic certificates of a fleet: one node orders, all answer challenges and have the certificate.

use std::time::Duration;

use rustls::ALL_VERSIONS;
use tw_testkit::acme::{Ca, Misbehaviour, Script};
use tw_testkit::etcd::RealEtcd;
use tw_testkit::nats::FakeNats;
use tw_testkit::{Client, Server, Signal, wait};

use crate::support::{refusal_of, server};

const BUCKET: &str = "tailwater_certificates-edge";
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
const OTHER_KEY: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\n";
/// A node waits for the term of a lease before it orders in place of another one.
const PATIENCE: Duration = Duration::from_secs(120);

fn conf(ca: &Ca, engine: &str, node: &str, keys: &str, more: &str) -> String {
    format!(
        "user root root; fleet edge {{ node {node}; engine {engine}; publish_timeout 1s; encryption_key {keys}; }} \
         http {{ acme_issuer ca {{ uri {}; ssl_trusted_certificate ca.crt; state_path state; fleet edge; {more} }} \
           server {{ listen 127.0.0.1:{{port}}; return 301 https://$host$request_uri; }} \
           server {{ listen 127.0.0.1:{{port1}} ssl; server_name example.com; acme_certificate ca; \
             ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; \
             location / {{ return 200 ok; }} }} }}",
        ca.uri()
    )
}

fn node_with(ca: &Ca, engine: &str, node: &str, keys: &str, more: &str) -> Server {
    let builder =
        server().file("conf/ca.crt", &ca.trust).file("conf/a.key", KEY).file("conf/b.key", OTHER_KEY);
    builder.start(&conf(ca, engine, node, keys, more)).unwrap()
}

fn node(ca: &Ca, engine: &FakeNats, name: &str, more: &str) -> Server {
    node_with(ca, &engine.url(), name, "a.key", more)
}

/// Makes the authority validate at this node.
fn validate_at(ca: &Ca, server: &Server) {
    ca.change(|script| script.ports = Some((server.addr().port(), server.addr_of(1).port())));
}

fn leaf(ca: &Ca, server: &Server) -> Option<Vec<u8>> {
    let client = Client::connect_tls(server.addr_of(1), &ca.authority.client(ALL_VERSIONS), "example.com");
    Some(client.ok()?.session()?.peer_certificates()?[0].to_vec())
}

/// Waits until a node presents a certificate that the authority has issued.
fn wait_leaf(ca: &Ca, server: &Server) -> Vec<u8> {
    let value = wait::some(PATIENCE, || leaf(ca, server));
    value.unwrap_or_else(|| panic!("{:?}\n{}", ca.said(), server.error_log()))
}

fn orderer(engine: &FakeNats) -> Option<String> {
    let values = engine.values(BUCKET);
    let lease = values.iter().find(|(key, _)| key.starts_with("lease."))?.1;
    let value: serde_json::Value = serde_json::from_slice(lease).ok()?;
    value["node"].as_str().map(str::to_owned)
}

#[test]
fn one_node_orders_for_all() {
    for challenge in ["http-01", "tls-alpn-01"] {
        let ca = Ca::start(Script::default());
        let engine = FakeNats::start();
        let more = format!("challenge {challenge};");
        let first = node(&ca, &engine, "n0", &more);
        // The node holds the lease and waits for the authority to validate.
        assert!(wait::until(PATIENCE, || orderer(&engine).as_deref() == Some("n0")), "{}", first.error_log());
        let others = ["n1", "n2"].map(|name| node(&ca, &engine, name, &more));
        // The authority asks another node than the one that orders.
        validate_at(&ca, &others[1]);
        let leaves = [&first, &others[0], &others[1]].map(|node| wait_leaf(&ca, node));
        assert!(leaves.iter().all(|leaf| *leaf == leaves[0]), "{:?}", ca.said());
        assert_eq!((ca.count("account"), ca.count("certificate")), (1, 1), "{:?}", ca.said());
        let values = engine.values(BUCKET);
        for (key, value) in &values {
            let is_shown = value.windows(11).any(|bytes| bytes == b"PRIVATE KEY" || bytes == b"example.com");
            assert!(!is_shown && !key.contains("example"), "{key}");
        }
        // Each node has the certificate on its disk, and serves it without the engine.
        engine.go_away();
        for node in [&first, &others[0], &others[1]] {
            let kept = || {
                let files = std::fs::read_dir(node.prefix().join("state")).into_iter().flatten().flatten();
                files.filter(|file| file.file_name().to_string_lossy().ends_with(".pem")).count() == 1
            };
            assert!(wait::until(PATIENCE, kept), "{}", node.error_log());
            assert!(leaf(&ca, node).is_some());
        }
    }
}

#[test]
fn one_node_orders_for_all_over_etcd() {
    let Some(mut engine) = RealEtcd::start(&[]) else { return };
    let ca = Ca::start(Script::default());
    let nodes = ["n0", "n1"].map(|name| node_with(&ca, &engine.url(), name, "a.key", ""));
    validate_at(&ca, &nodes[1]);
    let leaves = nodes.each_ref().map(|node| wait_leaf(&ca, node));
    assert!(leaves[0] == leaves[1], "{:?}", ca.said());
    assert_eq!((ca.count("account"), ca.count("certificate")), (1, 1), "{:?}", ca.said());
    engine.stop();
    assert!(nodes.iter().all(|node| leaf(&ca, node).as_ref() == Some(&leaves[0])));
}

#[test]
fn another_node_orders_after_the_one_with_the_lease_was_killed() {
    let script = Script { misbehaviour: Misbehaviour::Silent, ..Script::default() };
    let ca = Ca::start(script);
    let engine = FakeNats::start();
    let first = node(&ca, &engine, "n0", "");
    assert!(wait::until(PATIENCE, || orderer(&engine).as_deref() == Some("n0")), "{}", first.error_log());
    let second = node(&ca, &engine, "n1", "");
    validate_at(&ca, &second);
    first.signal(Signal::KILL).unwrap();
    ca.change(|script| script.misbehaviour = Misbehaviour::None);
    wait_leaf(&ca, &second);
    assert_eq!(ca.count("certificate"), 1, "{:?}", ca.said());
}

#[test]
fn keys_are_rotated_and_a_node_without_them_orders_nothing() {
    let ca = Ca::start(Script::default());
    let engine = FakeNats::start();
    let first = node(&ca, &engine, "n0", "");
    validate_at(&ca, &first);
    let leaf = wait_leaf(&ca, &first);
    let certificate = || {
        let values = engine.values(BUCKET);
        values.into_iter().find(|(key, _)| key.starts_with("certificate.")).map(|(_, value)| value)
    };
    let sealed = wait::some(PATIENCE, certificate).unwrap();
    let stranger = node_with(&ca, &engine.url(), "n1", "b.key", "");
    stranger.wait_error_log("it is encrypted with none of the keys of \"encryption_key\"").unwrap();
    assert_eq!((ca.count("certificate"), certificate()), (1, Some(sealed.clone())), "{:?}", ca.said());
    // A node that has both keys seals the certificate again with its first key.
    let both = node_with(&ca, &engine.url(), "n2", "b.key a.key", "");
    assert_eq!(wait_leaf(&ca, &both), leaf);
    assert!(wait::until(PATIENCE, || certificate().as_ref() != Some(&sealed)), "{}", both.error_log());
    assert_eq!(wait_leaf(&ca, &stranger), leaf, "{}", stranger.error_log());
    assert_eq!(ca.count("certificate"), 1, "{:?}", ca.said());
}

#[test]
fn nothing_is_ordered_without_the_engine() {
    let ca = Ca::start(Script::default());
    let engine = FakeNats::start();
    engine.go_away();
    let node = node(&ca, &engine, "n0", "");
    validate_at(&ca, &node);
    node.wait_error_log("cannot be shared or ordered in the fleet").unwrap();
    assert_eq!(ca.count("order"), 0);
    engine.come_back();
    wait_leaf(&ca, &node);
}

#[test]
fn fleet_of_an_issuer_needs_a_key() {
    let with = |fleet: &str, name: &str| {
        format!(
            "fleet edge {{ node a; engine nats://127.0.0.1:1; {fleet} }} \
             http {{ acme_issuer ca {{ uri https://127.0.0.1:1/; fleet {name}; }} server {{ listen 127.0.0.1:{{port}}; }} }}"
        )
    };
    assert!(refusal_of(&with("", "edge")).contains("fleet \"edge\" has no \"encryption_key\""));
    assert!(refusal_of(&with("", "other")).contains("unknown fleet \"other\""));
    assert!(
        refusal_of(&with("encryption_key nginx.conf;", "edge"))
            .contains("invalid \"encryption_key\": file 1")
    );
}
