//! A server that is killed and started again knows its cache before it has looked at the files (`snapshot=`).

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use tw_testkit::origin::origin;
use tw_testkit::{Client, Server, Signal, TempDir, wait};

use crate::support::cache::wait_stored;
use crate::support::metrics::{metric, metrics_text};
use crate::support::{server, start};

const PAGES: u64 = 20;

fn origin_of_pages() -> SocketAddr {
    origin(|mut conn| {
        while let Some(head) = conn.head() {
            conn.answer("", head.split(' ').nth(1).unwrap_or_default());
        }
    })
}

/// A server whose walk over the directory takes hours.
fn cached(dir: &Path, origin: SocketAddr, parameters: &str) -> Server {
    start(
        server(),
        &format!(
            "proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m inactive=1h
                 loader_files=1 loader_sleep=1h {parameters};
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{origin}; proxy_cache one; proxy_cache_valid 1h;
                     proxy_cache_key $uri; add_header X-Cache $upstream_cache_status; }}
                 location = /metrics {{ metrics; }} }}",
            dir.display()
        ),
    )
}

fn kill(server: &mut Server) {
    server.signal(Signal::KILL).unwrap();
    let _ = server.wait_exit(wait::TIMEOUT);
}

/// Stores all pages and waits for a snapshot that has them.
fn fill(server: &Server, snapshot: &Path) {
    for page in 0..PAGES {
        assert_eq!(Client::get(server.addr(), &format!("/{page}")).unwrap().status, 200);
    }
    wait_stored(server, PAGES as usize);
    // A block for the header, one for the entries, one for the table.
    let is_written = || fs::metadata(snapshot).is_ok_and(|file| file.len() == 3 * 4096);
    assert!(wait::until(wait::TIMEOUT, is_written));
    // A snapshot may have been begun before the last request. The one after it was not.
    for _ in 0..2 {
        fs::remove_file(snapshot).unwrap();
        Client::get(server.addr(), "/0").unwrap();
        assert!(wait::until(wait::TIMEOUT, is_written));
    }
}

#[test]
fn killed_server_knows_its_cache_at_once() {
    let dir = TempDir::new("warm").unwrap();
    let origin = origin_of_pages();
    let snapshot = dir.path().join("cache/snapshot");
    let mut killed = cached(dir.path(), origin, "snapshot=1s");
    fill(&killed, &snapshot);
    kill(&mut killed);
    let server = cached(dir.path(), origin, "snapshot=1s");
    server.wait_error_log("cache \"one\": 20 of 20 entries from the snapshot").unwrap();
    assert_eq!(metric(&server, "cache_entries{cache=\"one\"}"), PAGES);
    assert_eq!(metric(&server, "cache_bytes{cache=\"one\"}"), PAGES * 4096);
    for page in 0..PAGES {
        let response = Client::get(server.addr(), &format!("/{page}")).unwrap();
        assert_eq!((response.text(), response.field("X-Cache")), (format!("/{page}"), Some("HIT")));
    }
}

#[test]
fn limits_hold_before_the_directory_is_walked() {
    let dir = TempDir::new("warm").unwrap();
    let origin = origin_of_pages();
    let mut killed = cached(dir.path(), origin, "snapshot=1s");
    fill(&killed, &dir.path().join("cache/snapshot"));
    kill(&mut killed);
    let server = cached(dir.path(), origin, "max_size=16k");
    let are_four = || metric(&server, "cache_entries{cache=\"one\"}") == 4;
    assert!(wait::until(wait::TIMEOUT, are_four), "{}", metrics_text(&server));
    // The page that was used last is one of them.
    assert_eq!(Client::get(server.addr(), "/0").unwrap().field("X-Cache"), Some("HIT"));
}

#[test]
fn damaged_snapshot_is_told_and_costs_nothing_else() {
    let dir = TempDir::new("warm").unwrap();
    let origin = origin_of_pages();
    let snapshot = dir.path().join("cache/snapshot");
    let mut killed = cached(dir.path(), origin, "snapshot=1s");
    fill(&killed, &snapshot);
    kill(&mut killed);
    fs::write(&snapshot, "something else").unwrap();
    let server = cached(dir.path(), origin, "snapshot=off");
    server.wait_error_log("cache \"one\": the snapshot of its index is not used: no snapshot").unwrap();
    let response = Client::get(server.addr(), "/7").unwrap();
    assert_eq!((response.text(), response.field("X-Cache")), ("/7".to_owned(), Some("HIT")));
}

#[test]
fn interval_of_snapshots_is_a_time_or_off() {
    for value in ["", "0", "x"] {
        let conf = format!("http {{ proxy_cache_path cache keys_zone=one:1m snapshot={value}; }}");
        let output = server().arg("-t").run(&conf).unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let expected = format!("invalid snapshot value \"snapshot={value}\"");
        assert!(!output.status.success() && text.contains(&expected), "{text}");
    }
}
