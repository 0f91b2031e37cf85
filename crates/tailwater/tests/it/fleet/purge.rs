//! Purges of one node reach all others, whatever the engine does.

use tw_testkit::nats::FakeNats;
use tw_testkit::{Server, wait};

use super::{
    conf, fill, fleet_metric, nodes, position, start_node, state, tagged_origin, wait_connected, wait_for,
};
use crate::support::{refusal_of, request, server};

fn status(node: &Server, line: &str, fields: &[&str]) -> u16 {
    request(node, line, fields).status
}

#[test]
fn purge_on_one_node_reaches_all() {
    let engine = FakeNats::start();
    let nodes = nodes::<3>(&engine.url());
    fill(&nodes, "/a");
    fill(&nodes, "/b");
    assert_eq!(status(&nodes[0], "PURGE /a", &[]), 204);
    for node in &nodes {
        wait_for(node, "/a", "MISS");
        assert_eq!(state(node, "/b"), "HIT");
    }
    // This node does not have the key, but another node may.
    assert_eq!(status(&nodes[1], "PURGE /nothing", &[]), 204);
    fill(&nodes, "/a");
    assert_eq!(status(&nodes[1], "PURGE /*", &[]), 204);
    for node in &nodes {
        wait_for(node, "/a", "MISS");
        wait_for(node, "/b", "MISS");
    }
    fill(&nodes, "/a");
    assert_eq!(status(&nodes[2], "PURGE /", &["Purge-Tag: news"]), 204);
    nodes.iter().for_each(|node| wait_for(node, "/a", "MISS"));
    fill(&nodes, "/a");
    assert_eq!(status(&nodes[0], "REFRESH /a", &[]), 204);
    nodes.iter().for_each(|node| wait_for(node, "/a", "EXPIRED"));
    // The node that was asked does not apply it again.
    assert_eq!(fleet_metric(&nodes[0], "published_total"), 2);
    assert!(wait::until(wait::TIMEOUT, || fleet_metric(&nodes[0], "applied_total") == 3));
    assert!(wait::until(wait::TIMEOUT, || nodes.iter().all(|node| position(node) == 5)));
}

#[test]
fn api_purges_all_nodes() {
    let engine = FakeNats::start();
    let nodes = nodes::<2>(&engine.url());
    fill(&nodes, "/a");
    let post = |node: &Server| {
        let mut client = node.connect().unwrap();
        let body = r#"{"key":"/a"}"#;
        client.send(format!(
            "POST /api/http/caches/zone/purge HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )).unwrap();
        client.read_response().unwrap()
    };
    let answer = post(&nodes[0]);
    assert_eq!((answer.status, answer.text()), (200, "{\"purged\":true}".to_owned()));
    nodes.iter().for_each(|node| wait_for(node, "/a", "MISS"));
    engine.go_away();
    assert!(wait::until(wait::TIMEOUT, || fleet_metric(&nodes[0], "connected") == 0));
    let answer = post(&nodes[0]);
    assert_eq!((answer.status, answer.text()), (202, "{\"purged\":true,\"queued\":true}".to_owned()));
}

#[test]
fn purges_wait_on_disk_while_the_engine_is_away() {
    let engine = FakeNats::start();
    let mut nodes = nodes::<3>(&engine.url());
    fill(&nodes, "/a");
    fill(&nodes, "/b");
    engine.go_away();
    for node in &nodes {
        assert!(wait::until(wait::TIMEOUT, || fleet_metric(node, "connected") == 0));
        assert_eq!(state(node, "/a"), "HIT", "serving goes on");
    }
    assert_eq!(status(&nodes[0], "PURGE /a", &[]), 202);
    assert_eq!((&*state(&nodes[0], "/a"), &*state(&nodes[1], "/a")), ("MISS", "HIT"));
    assert_eq!(fleet_metric(&nodes[0], "queued"), 1);
    // The process ends before the engine is back.
    let origin = tagged_origin();
    let prefix = nodes[0].prefix().to_owned();
    let queue = std::fs::read(prefix.join("fleet_edge/queue")).unwrap();
    nodes[0].stop().unwrap();
    let again = start_node(server().file("fleet_edge/queue", queue), "n0", &engine.url(), &origin);
    assert!(wait::until(wait::TIMEOUT, || fleet_metric(&again, "queued") == 1), "{}", again.error_log());
    engine.come_back();
    for node in &nodes[1..] {
        wait_for(node, "/a", "MISS");
        assert_eq!(state(node, "/b"), "HIT");
    }
    assert!(wait::until(wait::TIMEOUT, || fleet_metric(&again, "queued") == 0));
    let emptied = || std::fs::metadata(again.prefix().join("fleet_edge/queue")).unwrap().len() == 0;
    assert!(wait::until(wait::TIMEOUT, emptied));
}

#[test]
fn node_that_was_away_catches_up_in_order() {
    let engine = FakeNats::start();
    let nodes = nodes::<2>(&engine.url());
    for target in ["/a", "/b", "/c"] {
        fill(&nodes, target);
    }
    assert_eq!(status(&nodes[0], "PURGE /a", &[]), 204);
    wait_for(&nodes[1], "/a", "MISS");
    // The node that was asked reads its own purge in the log, too.
    for node in &nodes {
        assert!(wait::until(wait::TIMEOUT, || position(node) == 1), "{}", node.error_log());
    }
    fill(&nodes, "/a");
    engine.disconnect();
    engine.append(
        br#"{"version":1,"id":"x","node":"n9","time":1,"purge":{"cache":"zone","mode":"hard","key":"/b"}}"#,
    );
    engine.append(
        br#"{"version":1,"id":"x","node":"n9","time":1,"purge":{"cache":"zone","mode":"hard","key":"/c"}}"#,
    );
    engine.append(b"nonsense");
    engine.append(&vec![b'x'; 2 << 20]);
    engine.append(
        br#"{"version":1,"id":"y","node":"n9","time":1,"purge":{"cache":"other","mode":"hard","prefix":""}}"#,
    );
    for node in &nodes {
        wait_for(node, "/b", "MISS");
        assert!(wait::until(wait::TIMEOUT, || position(node) == 6), "{}", node.error_log());
        // A purge that comes twice is one, and one of another cache none.
        assert_eq!((&*state(node, "/a"), &*state(node, "/c")), ("HIT", "HIT"));
        assert_eq!((fleet_metric(node, "unreadable_total"), fleet_metric(node, "resets_total")), (2, 0));
    }
}

#[test]
fn everything_is_stale_after_the_engine_has_lost_records() {
    for loss in ["rewound", "anew", "trimmed"] {
        let engine = FakeNats::start();
        let nodes = nodes::<2>(&engine.url());
        fill(&nodes, "/a");
        for target in ["/x", "/y"] {
            assert_eq!(status(&nodes[0], &format!("PURGE {target}"), &[]), 204);
        }
        assert!(wait::until(wait::TIMEOUT, || nodes.iter().all(|node| position(node) == 2)), "{loss}");
        engine.go_away();
        assert!(wait::until(wait::TIMEOUT, || engine.connections() == 0));
        match loss {
            "rewound" => engine.rewind_log(1),
            "anew" => engine.forget_all(),
            _ => {
                (0..3).for_each(|_| engine.append(b"nonsense"));
                engine.trim_log(4);
            }
        }
        engine.come_back();
        for node in &nodes {
            wait_for(node, "/a", "EXPIRED");
            assert!(fleet_metric(node, "resets_total") >= 1, "{loss}");
            let log = node.error_log();
            assert!(log.contains("everything stored in its caches is stale"), "{loss}: {log}");
        }
        // Purges work again after the loss.
        nodes.iter().for_each(wait_connected);
        fill(&nodes, "/b");
        assert_eq!(status(&nodes[1], "PURGE /b", &[]), 204, "{loss}");
        nodes.iter().for_each(|node| wait_for(node, "/b", "MISS"));
    }
}

#[test]
fn log_that_went_back_and_grew_is_noticed() {
    let engine = FakeNats::start();
    let nodes = nodes::<1>(&engine.url());
    fill(&nodes, "/a");
    assert_eq!(status(&nodes[0], "PURGE /x", &[]), 204);
    assert!(wait::until(wait::TIMEOUT, || position(&nodes[0]) == 1));
    engine.go_away();
    engine.rewind_log(0);
    (0..3).for_each(|_| engine.append(b"nonsense"));
    engine.come_back();
    wait_for(&nodes[0], "/a", "EXPIRED");
    assert_eq!(fleet_metric(&nodes[0], "resets_total"), 1);
}

#[test]
fn one_process_after_the_other_continues_the_position() {
    let engine = FakeNats::start();
    let origin = tagged_origin();
    let mut node = server().with_master().start(&conf("n0", &engine.url(), &origin, "")).unwrap();
    wait_connected(&node);
    let other = start_node(server(), "n1", &engine.url(), &origin);
    wait_connected(&other);
    assert_eq!(status(&other, "PURGE /x", &[]), 204);
    assert!(wait::until(wait::TIMEOUT, || position(&node) == 1));
    // The changed limit makes the reload start a new worker process.
    let with_limit = format!("worker_rlimit_nofile 4000; {}", conf("n0", &engine.url(), &origin, ""));
    node.write_conf(&with_limit).unwrap();
    node.signal(tw_testkit::Signal::HUP).unwrap();
    // The old process may have gone before the new one connects.
    let has_both = || node.error_log().matches("connected to the engine, at sequence").count() == 2;
    assert!(wait::until(wait::TIMEOUT, has_both), "{}", node.error_log());
    let nodes = [node];
    fill(&nodes, "/a");
    assert_eq!(status(&other, "PURGE /a", &[]), 204);
    wait_for(&nodes[0], "/a", "MISS");
    assert!(wait::until(wait::TIMEOUT, || position(&nodes[0]) == 2), "{}", nodes[0].error_log());
    assert_eq!(fleet_metric(&nodes[0], "resets_total"), 0, "{}", nodes[0].error_log());
    engine.go_away();
    assert!(wait::until(wait::TIMEOUT, || fleet_metric(&nodes[0], "connected") == 0));
    assert_eq!(
        status(&nodes[0], "PURGE /a", &[]),
        202,
        "the new process has the queue: {}",
        nodes[0].error_log()
    );
}

#[test]
fn reload_changes_caches_and_engine() {
    let first = FakeNats::start();
    let second = FakeNats::start();
    let origin = tagged_origin();
    let mut node = start_node(server(), "n0", &first.url(), &origin);
    wait_connected(&node);
    node.write_conf(&conf("n0", &second.url(), &origin, "")).unwrap();
    node.signal(tw_testkit::Signal::HUP).unwrap();
    assert!(
        wait::until(wait::TIMEOUT, || second.connections() == 1 && first.connections() == 0),
        "{}",
        node.error_log()
    );
    wait_connected(&node);
    assert_eq!(status(&node, "PURGE /x", &[]), 204);
    let is_record = |payload: &[u8]| payload.starts_with(b"{\"version\":1");
    let published = second.log().iter().filter(|message| is_record(&message.payload)).count();
    // Beside the purge, the log may have a record for nodes that were away: one is written if the position in the first
    // log had been saved.
    assert!((1..=2).contains(&published), "{published}");
    assert_eq!(first.log().len(), 0);
}

#[test]
fn configuration_mistakes_are_refused() {
    let http = "http { server { listen 127.0.0.1:{port}; } }";
    let block = |content: &str| format!("fleet a {{ {content} }} {http}");
    for (conf, expected) in [
        (block("node a;"), "fleet \"a\" has no \"engine\""),
        (block("engine nats://a;"), "fleet \"a\" has no \"node\""),
        (block("node a.b; engine nats://a;"), "invalid name \"a.b\""),
        (block("node a; engine redis://a;"), "invalid engine: it has to begin with \"nats://\""),
        (block("node a; engine nats://u:secret@a;"), "invalid engine: a host is missing or invalid"),
        (block("node a; engine nats://a; engine nats://b;"), "directive is duplicate"),
        (block("node a; engine nats://a; nonsense on;"), "unknown directive \"nonsense\""),
        (block("node a; engine nats://a; replicas 2;"), "invalid value \"2\""),
        (
            block("node a; engine nats://a; trusted_certificate x;"),
            "\"trusted_certificate\" needs \"tls on\"",
        ),
        (block("node a; engine nats://a; token x; login a x;"), "more than one of"),
        (block("node a; engine nats://a; token nothing;"), "cannot load token"),
        (block("node a; engine nats://a; publish_timeout 2m;"), "is longer than 60s"),
        (
            "http { proxy_cache_path c keys_zone=z:1m fleet=none; server { listen 127.0.0.1:{port}; } }"
                .to_owned(),
            "unknown fleet \"none\"",
        ),
        (
            format!("fleet a {{ node a; engine nats://a; }} {}", block("node b; engine nats://a;")),
            "duplicate fleet \"a\"",
        ),
    ] {
        let refused = refusal_of(&conf);
        assert!(refused.contains(expected), "{conf}: {refused}");
        assert!(!refused.contains("invalid engine \""), "{refused}");
    }
}
