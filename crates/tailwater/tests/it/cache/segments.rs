//! `store=log`: small responses are packed into segments.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use tw_testkit::{Client, Server, Signal, TempDir, wait};

use crate::support::cache::{sized_body as body, sizes, wait_stored};
use crate::support::metrics::metric;
use crate::support::{server, start};

fn cached(dir: &Path, origin: SocketAddr, parameters: &str) -> Server {
    let inactive = if parameters.contains("inactive=") { "" } else { "inactive=1h" };
    start(
        server(),
        &format!(
            "proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m {inactive} {parameters};
             map $request_method $purge {{ ~^PURGE 1; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{origin}; proxy_cache one; proxy_cache_valid 1h;
                     proxy_cache_key $uri; proxy_cache_purge $purge; add_header X-Cache $upstream_cache_status; }}
                 location = /metrics {{ metrics; }} }}",
            dir.display()
        ),
    )
}

fn is_hit(server: &Server, size: usize) -> bool {
    let response = Client::get(server.addr(), &format!("/{size}")).unwrap();
    assert!(response.body == body(size), "{size}");
    response.field("X-Cache") == Some("HIT")
}

/// Names of the files of entries, and of segments.
fn files(dir: &Path, results: &mut [Vec<String>; 2]) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        match entry.path().is_dir() {
            true => files(&entry.path(), results),
            false if name.len() == 32 => results[0].push(name),
            false if name.len() == 8 && name != "snapshot" => results[1].push(name),
            false => {}
        }
    }
}

#[test]
fn small_responses_are_packed_and_survive_a_kill() {
    let dir = TempDir::new("segments").unwrap();
    let origin = sizes();
    let sizes = [1, 300, 4096, 32 << 10, 100_000, 900_000, 2 << 20];
    for parameters in ["store=log snapshot=off", "store=log snapshot=1s"] {
        let mut killed = cached(dir.path(), origin, parameters);
        sizes.iter().for_each(|size| _ = is_hit(&killed, *size));
        for size in sizes {
            assert!(wait::until(wait::TIMEOUT, || is_hit(&killed, size)), "{size}: {}", killed.error_log());
        }
        let mut results = [Vec::new(), Vec::new()];
        files(&dir.path().join("cache"), &mut results);
        assert_eq!(results[0].len(), 1, "only the largest has a file: {results:?}");
        killed.signal(Signal::KILL).unwrap();
        let _ = killed.wait_exit(wait::TIMEOUT);
        let server = cached(dir.path(), origin, parameters);
        server.wait_error_log(" records in ").unwrap();
        server.wait_error_log(" files, ").unwrap();
        for size in sizes {
            assert!(is_hit(&server, size), "{size}: {}", server.error_log());
        }
        let mut client = server.connect().unwrap();
        let range = "GET /100000 HTTP/1.1\r\nHost: localhost\r\nRange: bytes=70000-70099\r\nConnection: close\r\n\r\n";
        client.send(range).unwrap();
        let part = client.read_response().unwrap();
        assert_eq!((part.status, &part.body[..]), (206, &body(100_000)[70_000..70_100]));
    }
}

#[test]
fn record_is_a_hit_while_the_snapshot_is_read() {
    let dir = TempDir::new("segments").unwrap();
    let origin = sizes();
    let mut killed = cached(dir.path(), origin, "store=log snapshot=1s");
    assert!(wait::until(wait::TIMEOUT, || is_hit(&killed, 7000)));
    // Header and a page.
    let snapshot = dir.path().join("cache/pages");
    let is_in_it = || fs::metadata(&snapshot).is_ok_and(|metadata| metadata.len() >= 2 * 4096);
    assert!(wait::until(wait::TIMEOUT, is_in_it), "{}", killed.error_log());
    killed.signal(Signal::KILL).unwrap();
    let _ = killed.wait_exit(wait::TIMEOUT);
    let server = cached(dir.path(), origin, "store=log snapshot=1s");
    assert!(is_hit(&server, 7000), "{}", server.error_log());
    // The memory of the index stays small, and a response without segments is a miss.
    assert!((1..100_000).contains(&metric(&server, "cache_memory_bytes{cache=\"one\"}")));
    drop(server);
    fs::remove_dir_all(dir.path().join("cache/segments")).unwrap();
    let server = cached(dir.path(), origin, "store=log snapshot=1s");
    assert!(!is_hit(&server, 7000));
    assert!(wait::until(wait::TIMEOUT, || is_hit(&server, 7000)), "{}", server.error_log());
}

#[test]
fn unused_segment_is_removed_as_a_whole() {
    let dir = TempDir::new("segments").unwrap();
    let origin = sizes();
    let server = cached(dir.path(), origin, "store=log segment=4m inactive=3s");
    for size in [100, 200, 2 << 20] {
        assert!(wait::until(wait::TIMEOUT, || is_hit(&server, size)), "{size}");
    }
    assert_eq!(metric(&server, "cache_entries{cache=\"one\"}"), 3);
    let is_empty = || metric(&server, "cache_entries{cache=\"one\"}") == 0;
    assert!(wait::until(wait::TIMEOUT, is_empty), "{}", server.error_log());
    let mut results = [Vec::new(), Vec::new()];
    files(&dir.path().join("cache"), &mut results);
    assert_eq!(results, [Vec::<String>::new(), Vec::new()]);
    assert_eq!(metric(&server, "cache_removed_total{cache=\"one\",reason=\"inactive\"}"), 3);
}

#[test]
fn purged_record_stays_purged_after_a_kill() {
    let dir = TempDir::new("segments").unwrap();
    let origin = sizes();
    let mut killed = cached(dir.path(), origin, "store=log");
    for size in [5000, 6000] {
        assert!(wait::until(wait::TIMEOUT, || is_hit(&killed, size)));
    }
    let mut client = killed.connect().unwrap();
    client.send("PURGE /5000 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().status, 204);
    killed.signal(Signal::KILL).unwrap();
    let _ = killed.wait_exit(wait::TIMEOUT);
    let server = cached(dir.path(), origin, "store=log");
    server.wait_error_log(" files, ").unwrap();
    assert!(is_hit(&server, 6000));
    assert!(!is_hit(&server, 5000));
}

#[test]
fn segments_are_freed_and_used_responses_are_kept() {
    let dir = TempDir::new("segments").unwrap();
    let origin = sizes();
    let server = cached(dir.path(), origin, "store=log segment=4m max_size=12m");
    assert!(wait::until(wait::TIMEOUT, || is_hit(&server, 1000)));
    for nth in 0..40_usize {
        is_hit(&server, 900_000 + nth);
        assert!(is_hit(&server, 1000), "{nth}: {}", server.error_log());
        wait_stored(&server, nth + 2);
        let is_within = || metric(&server, "cache_bytes{cache=\"one\"}") <= 16 << 20;
        assert!(wait::until(wait::TIMEOUT, is_within), "{nth}: {}", server.error_log());
    }
    let is_within = || metric(&server, "cache_bytes{cache=\"one\"}") <= 12 << 20;
    assert!(wait::until(wait::TIMEOUT, is_within));
    assert!(metric(&server, "cache_removed_total{cache=\"one\",reason=\"evicted\"}") > 20);
    assert!(is_hit(&server, 1000), "{}", server.error_log());
}

#[test]
fn store_parameters_are_checked() {
    for (parameters, expected) in [
        ("store=other", "invalid store value \"other\", it must be \"files\" or \"log\""),
        ("segment=16m", "\"segment\" requires \"store=log\""),
        ("store=log segment=1m", "invalid segment value \"1m\", it must be between 4m and 1g"),
        ("store=log segment=2g", "invalid segment value \"2g\", it must be between 4m and 1g"),
    ] {
        let conf = format!("http {{ proxy_cache_path cache keys_zone=one:1m {parameters}; }}");
        let output = server().arg("-t").run(&conf).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{parameters}: {said}");
    }
}
