//! Keys of session tickets that all nodes of a fleet share.

use std::sync::Arc;
use std::time::Duration;

use rustls::{ALL_VERSIONS, ClientConfig, HandshakeKind};
use tw_testkit::nats::FakeNats;
use tw_testkit::tls::{Authority, Certificate};
use tw_testkit::{Server, wait};

use crate::support::server;
use crate::support::tls::try_get_tls;

const BUCKET: &str = "tailwater_certificates-edge";
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
const OTHER_KEY: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\n";

fn conf(engine: &FakeNats, node: &str, fleet: &str, ssl: &str) -> String {
    format!(
        "user root root; fleet edge {{ node {node}; engine {}; publish_timeout 1s; {fleet} }} \
         http {{ server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate a.crt; ssl_certificate_key a.key; \
           ssl_session_timeout 1h; {ssl} location / {{ return 200 ok; }} }} }}",
        engine.url()
    )
}

fn node(engine: &FakeNats, name: &str, certificate: &Certificate, key: &str, rotation: &str) -> Server {
    let builder = server().certificate("a", certificate).file("conf/fleet.key", key);
    let fleet = format!("encryption_key fleet.key; secret_rotation {rotation};");
    builder.start(&conf(engine, name, &fleet, "ssl_session_ticket_key fleet=edge;")).unwrap()
}

/// Makes a handshake. Returns true if it resumed a session.
fn is_resumed(node: &Server, config: &Arc<ClientConfig>) -> bool {
    let (client, response) = try_get_tls(node, config, "localhost").unwrap();
    assert_eq!(response.text(), "ok");
    client.session().unwrap().handshake_kind() == Some(HandshakeKind::Resumed)
}

/// Begins a session on one node and goes on at another one.
fn resumes(first: &Server, second: &Server, authority: &Authority) -> bool {
    let config = authority.client(ALL_VERSIONS);
    assert!(!is_resumed(first, &config));
    is_resumed(second, &config)
}

fn stored(engine: &FakeNats) -> Option<Vec<u8>> {
    engine.values(BUCKET).get("secrets").cloned()
}

#[test]
fn session_of_one_node_is_resumed_on_another_one() {
    let engine = FakeNats::start();
    let authority = Authority::new();
    let certificate = authority.certify(&["localhost"]);
    let [one, two] = ["n1", "n2"].map(|name| node(&engine, name, &certificate, KEY, "1h"));
    for (first, second) in [(&one, &two), (&two, &one)] {
        let are_shared = || resumes(first, second, &authority);
        assert!(wait::until(wait::TIMEOUT, are_shared), "{}{}", one.error_log(), two.error_log());
    }
    // Serving goes on with the last keys.
    engine.go_away();
    assert!(resumes(&one, &two, &authority));
    engine.come_back();
    // A node with another key can read nothing, and serves with keys of its own.
    let before = stored(&engine).unwrap();
    let three = node(&engine, "n3", &certificate, OTHER_KEY, "1h");
    let is_reported = || three.error_log().contains("encrypted with none of the keys");
    assert!(wait::until(wait::TIMEOUT, is_reported), "{}", three.error_log());
    assert!(resumes(&three, &three, &authority) && !resumes(&one, &three, &authority));
    assert!(resumes(&one, &two, &authority) && stored(&engine) == Some(before));
}

#[test]
fn rotated_keys_are_known_before_they_are_used() {
    let engine = FakeNats::start();
    let authority = Authority::new();
    let certificate = authority.certify(&["localhost"]);
    let [one, two] = ["n1", "n2"].map(|name| node(&engine, name, &certificate, KEY, "3s"));
    assert!(wait::until(wait::TIMEOUT, || resumes(&one, &two, &authority)), "{}", one.error_log());
    let mut rotations = 0;
    let mut last = stored(&engine);
    let all_resume = || {
        assert!(resumes(&one, &two, &authority) && resumes(&two, &one, &authority), "{rotations}");
        let current = stored(&engine);
        rotations += u32::from(current != last);
        last = current;
        rotations >= 3
    };
    assert!(wait::until(Duration::from_secs(60), all_resume), "{}", one.error_log());
}

#[test]
fn misuse_of_shared_keys_is_refused() {
    let engine = FakeNats::start();
    let authority = Authority::new();
    let certificate = authority.certify(&["localhost"]);
    let keyed = "encryption_key fleet.key;";
    for (fleet, ssl, expected) in [
        ("", "ssl_session_ticket_key fleet=edge;", "fleet \"edge\" has no \"encryption_key\""),
        (keyed, "ssl_session_ticket_key fleet=other;", "unknown fleet \"other\""),
        (
            keyed,
            "ssl_session_ticket_key fleet=edge; ssl_session_ticket_key a.key;",
            "is the only ticket key of a server",
        ),
        ("secret_rotation 0;", "", "\"secret_rotation\" must be between 1s and 30d"),
        ("secret_rotation 31d;", "", "\"secret_rotation\" must be between 1s and 30d"),
    ] {
        let builder = server().certificate("a", &certificate).file("conf/fleet.key", KEY);
        let said = builder.start(&conf(&engine, "n1", fleet, ssl)).unwrap_err().to_string();
        assert!(said.contains(expected), "{fleet} {ssl}: {said}");
    }
}
