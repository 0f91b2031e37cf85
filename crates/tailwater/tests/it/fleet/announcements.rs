//! Announcements of nodes: shared rates of requests, and hints about upstream servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tw_testkit::nats::FakeNats;
use tw_testkit::origin::origin;
use tw_testkit::{Server, wait};

use super::commands::run;
use super::real_engine::RealNats;
use crate::support::metrics::try_metric;
use crate::support::{refusal_of, request, server};

fn limited(engine: &str, node: &str, rate: &str) -> Server {
    let conf = format!(
        "user root root; fleet edge {{ node {node}; engine {engine}; publish_timeout 1s; }} \
         http {{ limit_req_zone $arg_key zone=api:1m rate={rate} fleet=edge; limit_req_status 429; \
           server {{ listen 127.0.0.1:{{port}}; \
             location / {{ limit_req zone=api burst=2 nodelay; try_files /none =204; }} \
             location = /metrics {{ metrics; }} }} }}"
    );
    server().with_master().start(&conf).unwrap()
}

fn zone_metric(node: &Server, name: &str) -> Option<u64> {
    try_metric(node, &format!("limit_req_fleet_{name}{{zone=\"api\"}}"))
}

fn wait_shared(nodes: &[Server], count: u64) {
    for node in nodes {
        let is_shared =
            || zone_metric(node, "shared") == Some(1) && zone_metric(node, "nodes") == Some(count);
        assert!(wait::until(wait::TIMEOUT, is_shared), "{}", node.error_log());
    }
}

/// Requests to some of the nodes in turn, for so long. Returns those that passed in a second, of each.
fn passed(nodes: &[&Server], length: Duration) -> Vec<f64> {
    let began = Instant::now();
    let mut passed = vec![0_u32; nodes.len()];
    while began.elapsed() < length {
        for (at, node) in nodes.iter().enumerate() {
            passed[at] += u32::from(request(node, "GET /?key=a", &[]).status == 204);
        }
        wait::pause(Duration::from_millis(4));
    }
    passed.iter().map(|count| f64::from(*count) / began.elapsed().as_secs_f64()).collect()
}

/// Three nodes share a rate of 20 requests per second.
fn share(engine: &str, stop: impl FnOnce(), go_on: impl FnOnce()) {
    let nodes = ["n0", "n1", "n2"].map(|name| limited(engine, name, "20r/s"));
    wait_shared(&nodes, 3);
    // One node has requests: it has the whole rate.
    passed(&[&nodes[0]], Duration::from_secs(2));
    let one = passed(&[&nodes[0]], Duration::from_secs(3));
    assert!((15.0..=25.0).contains(&one[0]), "{one:?}");
    // Once all nodes have requests, each has a third of the rate.
    let all = [&nodes[0], &nodes[1], &nodes[2]];
    passed(&all, Duration::from_secs(3));
    let each = passed(&all, Duration::from_secs(4));
    let sum: f64 = each.iter().sum();
    assert!((15.0..=25.0).contains(&sum) && each.iter().all(|one| (3.0..=12.0).contains(one)), "{each:?}");
    let status = run(&nodes[0], &["fleet", "status"]).1;
    assert!(status.contains("rate of zone \"api\": 3 nodes, 0 away, 1 keys by demand"), "{status}");
    // Without the engine, each node has a third, whichever is asked.
    stop();
    let is_alone = || zone_metric(&nodes[0], "shared") == Some(0);
    assert!(wait::until(wait::TIMEOUT, is_alone), "{}", nodes[0].error_log());
    let one = passed(&[&nodes[0]], Duration::from_secs(3));
    assert!((4.0..=9.5).contains(&one[0]), "{one:?}");
    go_on();
    wait_shared(&nodes, 3);
}

#[test]
fn rate_is_shared_by_demand_and_equal_without_the_engine() {
    let engine = FakeNats::start();
    share(&engine.url(), || engine.go_away(), || engine.come_back());
}

#[test]
fn rate_is_shared_over_a_real_server() {
    let Some(engine) = RealNats::start() else { return };
    let engine = std::cell::RefCell::new(engine);
    let url = engine.borrow().url();
    share(&url, || engine.borrow_mut().stop(), || engine.borrow_mut().start_again());
}

#[test]
fn engines_and_directives_that_cannot_share_are_refused() {
    let test = |engine: &str, http: &str| {
        let conf = format!(
            "user root root; fleet edge {{ node a; engine {engine}; }} http {{ {http} server {{ listen 127.0.0.1:{{port}}; }} }}"
        );
        refusal_of(&conf)
    };
    let zone = "limit_req_zone $uri zone=a:1m rate=1r/s fleet=edge;";
    for (engine, http, expected) in [
        ("etcd://127.0.0.1:1", zone, "fleet \"edge\" has etcd as its engine, which cannot share rates"),
        (
            "nats://127.0.0.1:1",
            "limit_req_zone $uri zone=a:1m rate=1r/s fleet=other;",
            "unknown fleet \"other\"",
        ),
        (
            "nats://127.0.0.1:1",
            "limit_conn_zone $uri zone=a:1m fleet=edge;",
            "nodes share rates, not numbers of connections",
        ),
        (
            "nats://127.0.0.1:1",
            "limit_req_zone $uri zone=a:1m rate=1r/s fleet=edge; limit_req zone=a cost=$arg_c;",
            "\"cost\" cannot be used with zone \"a\", whose rate a fleet shares",
        ),
        (
            "etcd://127.0.0.1:1",
            "upstream b { zone b 64k fleet=edge; server 127.0.0.1:1; }",
            "which cannot share the health of upstream servers",
        ),
        (
            "nats://127.0.0.1:1",
            "upstream b { zone b fleet=other; server 127.0.0.1:1; }",
            "unknown fleet \"other\"",
        ),
        (
            "nats://127.0.0.1:1",
            "upstream b { zone b 64k more=edge; server 127.0.0.1:1; }",
            "invalid parameter \"more=edge\"",
        ),
    ] {
        let error = test(engine, http);
        assert!(error.contains(expected), "{http}: {error}");
    }
}

/// Origin that answers its health checks as `is_well` says, and counts them.
fn checked_origin(is_well: &Arc<AtomicBool>, checks: &Arc<AtomicUsize>) -> std::net::SocketAddr {
    let is_well = is_well.clone();
    let checks = checks.clone();
    origin(move |mut conn| {
        while let Some(head) = conn.head() {
            if head.starts_with("GET /check") {
                checks.fetch_add(1, SeqCst);
            }
            if is_well.load(SeqCst) {
                conn.answer("", "body")
            } else {
                conn.send(b"HTTP/1.1 500 Failed\r\nContent-Length: 0\r\n\r\n")
            };
        }
    })
}

fn checking(engine: &FakeNats, node: &str, origins: [std::net::SocketAddr; 2], check: &str) -> Server {
    let [one, two] = origins;
    let conf = format!(
        "user root root; fleet edge {{ node {node}; engine {}; }} \
         http {{ upstream app {{ zone app 64k fleet=edge; server {one}; server {two}; }} \
           server {{ listen 127.0.0.1:{{port}}; \
             location / {{ proxy_pass http://app; {check} }} \
             location = /metrics {{ metrics; }} }} }}",
        engine.url()
    );
    server().with_master().start(&conf).unwrap()
}

#[test]
fn health_of_another_node_makes_a_node_check_at_once() {
    let engine = FakeNats::start();
    let is_well = Arc::new(AtomicBool::new(true));
    let checks = Arc::new(AtomicUsize::new(0));
    let always = Arc::new(AtomicBool::new(true));
    let origins = [checked_origin(&is_well, &checks), checked_origin(&always, &Arc::default())];
    // One node checks often, the other one once a minute.
    let often = checking(&engine, "often", origins, "health_check uri=/check interval=200ms;");
    let rarely = checking(&engine, "rarely", origins, "health_check uri=/check interval=60s;");
    for node in [&often, &rarely] {
        super::wait_connected(node);
    }
    let state = |node: &Server, word: &str| {
        let metrics = request(node, "GET /metrics", &[]).text();
        metrics.lines().any(|line| {
            line.contains("upstream_peer_info{")
                && line.contains(&format!("peer=\"{}\"", origins[0]))
                && line.contains(&format!("state=\"{word}\""))
        })
    };
    assert!(wait::until(wait::TIMEOUT, || state(&rarely, "up") && checks.load(SeqCst) > 2));
    is_well.store(false, SeqCst);
    assert!(wait::until(wait::TIMEOUT, || state(&rarely, "unhealthy")), "{}", rarely.error_log());
    is_well.store(true, SeqCst);
    assert!(wait::until(wait::TIMEOUT, || state(&rarely, "up")), "{}", rarely.error_log());
    // A server whose checks pass here stays up, whatever another node reports.
    assert!(state(&rarely, "up"));
    for _ in 0..20 {
        assert_eq!(request(&rarely, "GET /", &[]).status, 200);
    }
}

#[test]
fn node_that_lies_about_health_takes_no_server_away() {
    let engine = FakeNats::start();
    let always = Arc::new(AtomicBool::new(true));
    let origins = [checked_origin(&always, &Arc::default()), checked_origin(&always, &Arc::default())];
    let node = checking(&engine, "n1", origins, "");
    super::wait_connected(&node);
    let lie = |is_up: bool| {
        let peers: Vec<_> = origins.iter().map(|origin| (origin.to_string(), is_up)).collect();
        let peers = serde_json::json!({ "http/app": peers });
        let lie = serde_json::json!({ "version": 1, "node": "liar", "process": "x", "peers": peers });
        engine.say("tailwater.edge.nodes", lie.to_string().as_bytes());
    };
    let hints = || {
        let status = run(&node, &["fleet", "status"]).1;
        let (_, hints) = status.split_once("servers followed ")?;
        hints.lines().next()?.parse::<u64>().ok()
    };
    let is_followed = || {
        lie(true);
        lie(false);
        hints().is_some_and(|hints| hints >= 2)
    };
    assert!(wait::until(wait::TIMEOUT, is_followed), "{:?} {}", hints(), node.error_log());
    for round in 0..200 {
        lie(round % 2 == 0);
        assert_eq!(request(&node, "GET /", &[]).status, 200);
    }
}
