//! Real engines, if this machine has them: purges over etcd, and logins of both kinds, right and wrong.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use support::{RealNats, TestNode, settings, start};
use tw_fleet::{
    Authentication, FleetPurge, FleetPurgeMode, FleetPurgeScope, FleetSettings, PublishOutcome,
    read_credentials,
};
use tw_testkit::etcd::RealEtcd;
use tw_testkit::tls::Authority;
use tw_testkit::{TempDir, wait};

fn tag(number: usize) -> FleetPurge {
    let scope = FleetPurgeScope::Tags(vec![format!("tag-{number}").into_bytes()]);
    FleetPurge { cache: b"site".to_vec(), scope, mode: FleetPurgeMode::Hard }
}

fn stale_purges(node: &TestNode) -> usize {
    let is_all = |purge: &&FleetPurge| purge.scope == FleetPurgeScope::Prefix(Vec::new());
    node.applied().iter().filter(is_all).count()
}

/// Calls the JSON gateway of etcd.
fn etcd(engine: &RealEtcd, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, engine.port())).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{path} {body}: {text}");
    text
}

#[test]
fn purges_over_etcd_arrive_in_order() {
    let Some(mut engine) = RealEtcd::start(&[]) else { return };
    let dir = TempDir::new("fleet-etcd").unwrap();
    let [one, two] = ["one", "two"].map(|node| start(settings(&dir, node, &engine.url())));
    one.wait(|status| status.engine.as_deref().is_some_and(|engine| engine.starts_with("etcd 3.")));
    two.wait(|status| status.engine.is_some());
    for number in 0..50 {
        let from = if number % 2 == 0 { &one } else { &two };
        assert_eq!(from.publish(tag(number)), PublishOutcome::Published, "{}", from.log());
    }
    // Both nodes publish many purges at the same time.
    assert_eq!(one.flood((50..250).map(tag)), 0);
    two.wait(|status| status.sequence == 250);
    one.wait(|status| status.sequence == 250 && status.lag == 0);
    let own: Vec<_> =
        two.applied().into_iter().filter(|purge| matches!(purge.scope, FleetPurgeScope::Tags(_))).collect();
    assert_eq!(own[..25], (0..25).map(|number| tag(2 * number)).collect::<Vec<_>>());
    assert_eq!(own.len(), 225);
    one.wait(|status| status.nodes.keys().eq(["one", "two"]));
    // Compaction takes nothing away.
    etcd(&engine, "/v3/kv/compaction", r#"{"revision":"200","physical":true}"#);
    drop(two);
    assert_eq!(one.publish(tag(1000)), PublishOutcome::Published);
    let two = start(settings(&dir, "two", &engine.url()));
    two.wait(|status| status.sequence == 251 && status.resets == 0);
    assert!(two.applied().contains(&tag(1000)));
    // Purges that are published while the engine is down are not lost.
    engine.stop();
    one.wait(|status| status.engine.is_none());
    assert_eq!(one.publish(tag(2000)), PublishOutcome::Queued);
    engine.start_again();
    two.wait(|status| status.sequence == 252);
    one.wait(|status| status.queued == 0);
    assert!(two.applied().contains(&tag(2000)));
    assert_eq!((stale_purges(&one), stale_purges(&two)), (1, 0), "{}", two.log());
}

#[test]
fn lost_records_of_etcd_make_everything_stale() {
    let prefix = "dGFpbHdhdGVyLw=="; // tailwater/
    let end = "dGFpbHdhdGVyMA=="; // tailwater0
    let Some(engine) = RealEtcd::start(&[]) else { return };
    let dir = TempDir::new("fleet-etcd").unwrap();
    let one = start(settings(&dir, "one", &engine.url()));
    one.wait(|status| status.engine.is_some());
    for number in 0..3 {
        assert_eq!(one.publish(tag(number)), PublishOutcome::Published);
    }
    one.wait(|status| status.sequence == 3);
    let position = || std::fs::read_to_string(dir.join("one/position")).unwrap_or_default();
    assert!(wait::until(wait::TIMEOUT, || position().contains("\"sequence\":3")));
    drop(one);
    // All keys are deleted, and written anew.
    etcd(&engine, "/v3/kv/deleterange", &format!(r#"{{"key":"{prefix}","range_end":"{end}"}}"#));
    let one = start(settings(&dir, "one", &engine.url()));
    one.wait(|status| status.engine.is_some() && status.resets == 1);
    assert_eq!(stale_purges(&one), 1, "{}", one.log());
    assert_eq!(one.publish(tag(9)), PublishOutcome::Published);
}

/// Waits for the error of a login that is refused.
fn refusal(settings: FleetSettings) -> String {
    let node = start(settings);
    node.wait(|status| status.last_error.is_some());
    let error = node.fleet.status().last_error.unwrap();
    // The error is logged after the status has it.
    assert!(wait::until(wait::TIMEOUT, || node.log().contains(&error)), "{}", node.log());
    error
}

fn connects(settings: FleetSettings) {
    start(settings).wait(|status| status.engine.is_some());
}

fn with(settings: &FleetSettings, node: &str, authentication: Authentication) -> FleetSettings {
    let mut settings = settings.clone();
    settings.node = node.into();
    settings.state = settings.state.parent().unwrap().join(node);
    settings.engine.authentication = authentication;
    settings
}

#[test]
fn nats_checks_tokens_and_passwords() {
    let token = |text: &str| Authentication::Token(text.to_owned().into());
    let dir = TempDir::new("fleet-login").unwrap();
    let Some(engine) = RealNats::start(&["--auth", "right-token"]) else { return };
    let base = settings(&dir, "a", &engine.url());
    connects(with(&base, "a", token("right-token")));
    let error = refusal(with(&base, "b", token("wrong-token")));
    assert!(error.starts_with("the engine refuses: Authorization Violation, engine: 127.0.0.1:"), "{error}");
    let error = refusal(with(&base, "c", Authentication::Anonymous));
    assert!(error.contains("it requires a login"), "{error}");
    let password = |text: &str| Authentication::Password("edge".to_owned(), text.to_owned().into());
    let Some(engine) = RealNats::start(&["--user", "edge", "--pass", "right-word"]) else { return };
    let base = settings(&dir, "a", &engine.url());
    connects(with(&base, "d", password("right-word")));
    assert!(refusal(with(&base, "e", password("wrong-word"))).contains("Authorization Violation"));
}

#[test]
fn nats_checks_nkeys() {
    let (right, key) = nkey(7);
    let (wrong, _) = nkey(8);
    let dir = TempDir::new("fleet-login").unwrap();
    let path = dir.join("nats.conf");
    std::fs::write(&path, format!("authorization {{ users = [ {{ nkey: {key} }} ] }}")).unwrap();
    let Some(engine) = RealNats::start(&["-c", path.to_str().unwrap()]) else { return };
    let base = settings(&dir, "a", &engine.url());
    connects(with(&base, "a", read_credentials(&right).unwrap()));
    let error = refusal(with(&base, "b", read_credentials(&wrong).unwrap()));
    assert!(error.contains("Authorization Violation"), "{error}");
}

/// Seed and public key of an NKEY, as nsc writes them.
fn nkey(byte: u8) -> (String, String) {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
    const USER: u8 = 20 << 3;
    const SEED: u8 = 18 << 3;
    let text = |mut bytes: Vec<u8>| {
        let crc = bytes.iter().fold(0_u16, |crc, byte| {
            (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            })
        });
        bytes.extend(crc.to_le_bytes());
        let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
        let digit = |chunk: &[u8]| {
            let number = u8::from_str_radix(&format!("{:0<5}", str::from_utf8(chunk).unwrap()), 2).unwrap();
            char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[usize::from(number)])
        };
        bits.as_bytes().chunks(5).map(digit).collect::<String>()
    };
    let pair = Ed25519KeyPair::from_seed_unchecked(&[byte; 32]).unwrap();
    let seed = [&[SEED | USER >> 5, (USER & 31) << 3][..], &[byte; 32]].concat();
    let public = [&[USER][..], pair.public_key().as_ref()].concat();
    (text(seed), text(public))
}

#[test]
fn tls_is_verified_by_both_engines() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let made = authority.certify(&["127.0.0.1"]);
    let dir = TempDir::new("fleet-tls").unwrap();
    let cert = dir.join("cert.pem");
    let key = dir.join("key.pem");
    std::fs::write(&cert, &made.pem).unwrap();
    std::fs::write(&key, &made.key).unwrap();
    let cert = cert.to_str().unwrap();
    let key = key.to_str().unwrap();
    let nats = RealNats::start(&["--tls", "--tlscert", cert, "--tlskey", key]);
    let etcd = RealEtcd::start(&["--cert-file", cert, "--key-file", key]);
    let urls = [nats.as_ref().map(|engine| engine.url()), etcd.as_ref().map(|engine| engine.url())];
    for (at, url) in urls.into_iter().flatten().enumerate() {
        let secured = |node: &str, trusted: &Authority| {
            let mut settings = settings(&dir, &format!("{node}{at}"), &url);
            (settings.engine.tls, settings.engine.trusted) = (true, Some(trusted.pem().into_bytes()));
            settings
        };
        connects(secured("a", &authority));
        let error = refusal(secured("b", &stranger));
        assert!(error.contains("certificate"), "{error}");
        let mut plain = secured("c", &authority);
        (plain.engine.tls, plain.engine.trusted) = (false, None);
        let error = refusal(plain);
        // etcd does not announce TLS: it sends bytes that are no HTTP, or closes the connection.
        assert!(
            url.starts_with("etcd") || error.contains("it requires TLS: \"tls on\" is not set"),
            "{error}"
        );
    }
}

#[test]
fn etcd_checks_passwords() {
    let Some(engine) = RealEtcd::start(&[]) else { return };
    for (path, body) in [
        ("/v3/auth/user/add", r#"{"name":"root","password":"right-word"}"#),
        ("/v3/auth/role/add", r#"{"name":"root"}"#),
        ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("/v3/auth/enable", "{}"),
    ] {
        etcd(&engine, path, body);
    }
    let dir = TempDir::new("fleet-login").unwrap();
    let password = |text: &str| Authentication::Password("root".to_owned(), text.to_owned().into());
    let base = settings(&dir, "a", &engine.url());
    connects(with(&base, "a", password("right-word")));
    let error = refusal(with(&base, "b", password("wrong-word")));
    assert!(error.contains("invalid user ID or password") && !error.contains("wrong-word"), "{error}");
    let error = refusal(with(&base, "c", Authentication::Anonymous));
    assert!(error.contains("user name is empty") || error.contains("permission denied"), "{error}");
}
