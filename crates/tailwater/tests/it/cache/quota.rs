//! `proxy_cache_quota`: bytes of a cache for the responses with one value of a variable, with both stores, over restarts, and with
//! members.

use std::net::SocketAddr;
use std::path::Path;

use tw_testkit::origin::origin;
use tw_testkit::{Response, Server, Signal, TempDir, wait};

use crate::support::cache::{cache_status, sized_body, sizes, wait_stored};
use crate::support::metrics::metric;
use crate::support::{get, server};

const STORES: [&str; 2] = ["store=files", "store=log segment=4m"];
/// With its head, such a response takes 24 KiB on the disk.
const SIZE: usize = 20_000;
const ENTRY: u64 = 24 << 10;

fn conf(dir: &Path, origin: SocketAddr, parameters: &str, quota: &str) -> String {
    let parameters = parameters.replace('@', &format!("{}/", dir.display()));
    format!(
        "http {{ proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m inactive=1h snapshot=1s {parameters};
         map $request_method $purge {{ PURGE 1; }}
         server {{ listen 127.0.0.1:{{port}};
             location / {{ proxy_pass http://{origin}; proxy_cache one; proxy_cache_valid 1h;
                 proxy_cache_key $request_uri; proxy_cache_purge $purge; proxy_cache_quota {quota};
                 add_header X-Cache $upstream_cache_status; add_header X-Why $cache_why; }}
             location = /metrics {{ metrics; }} }} }}",
        dir.display()
    )
}

fn ask(server: &Server, owner: &str, nth: usize) -> Response {
    let response = get(server, &format!("/{SIZE}/?owner={owner}&n={nth}"));
    assert_eq!((response.status, response.body.len()), (200, SIZE));
    response
}

fn is_hit(server: &Server, owner: &str, nth: usize) -> bool {
    cache_status(&ask(server, owner, nth)) == "HIT"
}

fn entries(server: &Server) -> u64 {
    metric(server, "cache_entries{cache=\"one\"}")
}

fn removed(server: &Server) -> u64 {
    metric(server, "cache_removed_total{cache=\"one\",reason=\"quota\"}")
}

fn wait_entries(server: &Server, expected: u64) {
    let is = || entries(server) == expected;
    assert!(wait::until(wait::TIMEOUT, is), "{} {} {}", entries(server), removed(server), server.error_log());
}

/// Waits until the manager has counted so many owners, and evicted what is above their quotas.
fn wait_owners(server: &Server, expected: u64) {
    let is = || {
        metric(server, "cache_quota_owners{cache=\"one\"}") == expected
            && metric(server, "cache_quota_above{cache=\"one\"}") == 0
    };
    assert!(wait::until(wait::TIMEOUT, is), "{}", server.error_log());
}

fn wait_loaded(server: &Server) {
    server.wait_error_log(" files, ").unwrap();
}

fn wait_snapshot(dir: &Path, server: &Server) {
    // A snapshot that was begun before may lack the last responses.
    for _ in 0..2 {
        let changed = || std::fs::metadata(dir.join("cache/quotas")).and_then(|meta| meta.modified()).ok();
        let before = changed();
        let is_new = || {
            // A cache that has not changed writes none.
            get(server, "/1?owner=z");
            changed().is_some() && changed() != before
        };
        assert!(wait::until(wait::TIMEOUT, is_new), "{}", server.error_log());
    }
}

#[test]
fn oldest_responses_of_an_owner_above_its_quota_are_evicted() {
    for store in STORES {
        let dir = TempDir::new("quota").unwrap();
        let origin = sizes();
        let server = server().start(&conf(dir.path(), origin, store, "$arg_owner 200k")).unwrap();
        wait_loaded(&server);
        (0..3).for_each(|nth| assert!(!is_hit(&server, "b", nth)));
        // Responses without an owner have no quota.
        (0..12).for_each(|nth| assert!(!is_hit(&server, "", nth)));
        wait_stored(&server, 15);
        // Each response is stored before the next, so that their ages differ.
        for nth in 0..20 {
            assert!(!is_hit(&server, "a", nth));
            wait_stored(&server, 16 + nth);
        }
        let remaining = (200 << 10) / ENTRY;
        wait_entries(&server, 3 + 12 + remaining);
        assert_eq!(removed(&server), 20 - remaining, "{store}");
        wait_owners(&server, 2);
        for nth in 20 - remaining as usize..20 {
            assert!(is_hit(&server, "a", nth), "{store} {nth}");
        }
        (0..3).for_each(|nth| assert!(is_hit(&server, "b", nth), "{store}"));
        (0..12).for_each(|nth| assert!(is_hit(&server, "", nth), "{store}"));
        // Purged responses do not count, so there is room for others.
        for nth in 16..20 {
            let mut client = server.connect().unwrap();
            client
                .send(format!("PURGE /{SIZE}/?owner=a&n={nth} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
                .unwrap();
            assert_eq!(client.read_response().unwrap().status, 204);
        }
        (30..34).for_each(|nth| assert!(!is_hit(&server, "a", nth)));
        wait_stored(&server, 39);
        (13..16).chain(30..34).for_each(|nth| assert!(is_hit(&server, "a", nth), "{store} {nth}"));
        assert_eq!(removed(&server), 20 - remaining, "{store}");
    }
}

#[test]
fn quotas_count_over_a_restart_and_a_kill() {
    for store in STORES {
        let dir = TempDir::new("quota").unwrap();
        let origin = sizes();
        let conf = |quota: &str| conf(dir.path(), origin, store, quota);
        let mut first = server().start(&conf("$arg_owner 1m")).unwrap();
        wait_loaded(&first);
        // Each response is stored before the next, so that their ages differ.
        for nth in 0..10 {
            assert!(!is_hit(&first, "a", nth));
            wait_stored(&first, nth + 1);
        }
        wait_snapshot(dir.path(), &first);
        first.stop().unwrap();
        // A smaller quota counts when there is a request for the owner.
        let mut second = server().start(&conf("$arg_owner 100k")).unwrap();
        wait_loaded(&second);
        wait_entries(&second, 11);
        assert!(is_hit(&second, "a", 9), "{store} {}", second.error_log());
        let remaining = (100 << 10) / ENTRY;
        wait_entries(&second, 1 + remaining);
        (10 - remaining as usize..10).for_each(|nth| assert!(is_hit(&second, "a", nth), "{store} {nth}"));
        // A response that is in no snapshot is counted when it is requested.
        wait_snapshot(dir.path(), &second);
        second.signal(Signal::KILL).unwrap();
        let _ = second.wait_exit(wait::TIMEOUT);
        // The file is removed only after the kill: a running server may be about to write a new one.
        std::fs::remove_file(dir.path().join("cache/quotas")).unwrap();
        let third = server().start(&conf("$arg_owner 60k")).unwrap();
        wait_loaded(&third);
        wait_entries(&third, 1 + remaining);
        (10 - remaining as usize..10).for_each(|nth| assert!(is_hit(&third, "a", nth), "{store} {nth}"));
        wait_entries(&third, 1 + (60 << 10) / ENTRY);
        assert!(is_hit(&third, "a", 9), "{store}");
    }
}

#[test]
fn response_larger_than_its_quota_is_not_stored() {
    for store in STORES {
        let dir = TempDir::new("quota").unwrap();
        let origin = sizes();
        let server = server().start(&conf(dir.path(), origin, store, "$arg_owner 10k")).unwrap();
        for _ in 0..2 {
            let response = ask(&server, "a", 0);
            assert_eq!(
                (cache_status(&response), response.field("X-Why")),
                ("MISS", Some("quota")),
                "{store}"
            );
        }
        assert!(wait::until(wait::TIMEOUT, || cache_status(&get(&server, "/5000/?owner=a")) == "HIT"));
    }
}

#[test]
fn response_of_unknown_length_above_its_quota_evicts_no_others() {
    for store in STORES {
        let dir = TempDir::new("quota").unwrap();
        let origin = origin(|mut conn| {
            while let Some(head) = conn.head() {
                if !head.contains("chunked") {
                    conn.answer("", sized_body(SIZE));
                    continue;
                }
                conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                (0..8).for_each(|_| conn.send(format!("{SIZE:x}\r\n{}\r\n", "x".repeat(SIZE))));
                conn.send("0\r\n\r\n");
            }
        });
        let server = server().start(&conf(dir.path(), origin, store, "$arg_owner 60k")).unwrap();
        wait_loaded(&server);
        (0..2).for_each(|nth| assert!(!is_hit(&server, "a", nth)));
        wait_stored(&server, 2);
        assert_eq!(get(&server, "/chunked?owner=a").body.len(), 8 * SIZE);
        wait_stored(&server, 3);
        wait_entries(&server, 2);
        assert_eq!(removed(&server), 1, "{store}");
        (0..2).for_each(|nth| assert!(is_hit(&server, "a", nth), "{store}"));
    }
}

#[test]
fn responses_of_freed_segments_count_no_more() {
    let dir = TempDir::new("quota").unwrap();
    let origin = sizes();
    let conf = conf(dir.path(), origin, "store=log segment=4m max_size=16m", "$arg_owner 200k");
    // Without snapshots, nothing makes the store look for removed responses.
    let server = server().start(&conf.replace("snapshot=1s", "snapshot=off")).unwrap();
    wait_loaded(&server);
    (0..1000).for_each(|nth| assert!(!is_hit(&server, &format!("o{nth}"), nth)));
    wait_stored(&server, 1000);
    let owners = || metric(&server, "cache_quota_owners{cache=\"one\"}");
    let is = || entries(&server) < 1000 && owners() == entries(&server);
    assert!(wait::until(wait::TIMEOUT, is), "{} {}", owners(), entries(&server));
}

#[test]
fn members_share_a_quota() {
    for store in STORES {
        let dir = TempDir::new("quota").unwrap();
        let origin = sizes();
        let members = format!("{store} member=@b member=@c:1g max_size=3g");
        let server = server().start(&conf(dir.path(), origin, &members, "$arg_owner 600k")).unwrap();
        (0..80).for_each(|nth| assert!(!is_hit(&server, "a", nth)));
        wait_stored(&server, 80);
        // Each member has a third of the quota: 200 KiB.
        wait_entries(&server, 3 * ((200 << 10) / ENTRY));
        wait_owners(&server, 3);
    }
}

#[test]
fn quota_parameters_are_checked() {
    let dir = TempDir::new("quota").unwrap();
    let origin = "127.0.0.1:9".parse().unwrap();
    for (quota, expected) in [
        ("$arg_owner", "a size is missing"),
        ("$arg_owner x", "invalid size \"x\""),
        ("$arg_owner 0", "invalid size \"0\""),
        ("$arg_owner 1g 2", "invalid number of arguments in \"proxy_cache_quota\""),
    ] {
        let output = server().arg("-t").run(&conf(dir.path(), origin, "", quota)).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{quota}: {said}");
    }
    let output = server().arg("-t").run(&conf(dir.path(), origin, "", "off")).unwrap();
    assert!(output.status.success());
}
