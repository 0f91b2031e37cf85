//! Cache files that another program removes while the server runs.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use tw_testkit::origin::counting;
use tw_testkit::{Client, Server, wait};

use crate::support::cache::wait_stored;
use crate::support::{server, start};

fn hits(server: &Server, path: &str, expected: &str) -> bool {
    let response = Client::get(server.addr(), path).unwrap();
    response.field("X-Cache") == Some(expected)
}

/// Removes everything in a directory.
fn empty(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
}

fn cached(addr: SocketAddr) -> Server {
    start(
        server().with_master(),
        &format!(
            "proxy_cache_path cache levels=1:2 keys_zone=one:1m;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h;
                     add_header X-Cache $upstream_cache_status; }}
                 location = /metrics {{ metrics; }} }}"
        ),
    )
}

#[test]
fn removed_files_of_hot_responses_are_misses_and_stored_again() {
    // The small response is served from memory, the large one from its file.
    let (addr, request_count) = counting(|conn, request, _| {
        let len = if request.starts_with("GET /small ") { 100 } else { 200_000 };
        conn.answer("", "x".repeat(len));
    });
    let server = cached(addr);
    let cache = server.prefix().join("cache");
    for round in 1..=3 {
        for path in ["/small", "/large"] {
            assert!(hits(&server, path, if round == 1 { "MISS" } else { "HIT" }), "{path} {round}");
        }
        // A fill that is not yet stored could put its file in place after the removal, so the test waits for it.
        wait_stored(&server, 2 * round);
        for path in ["/small", "/large"] {
            assert!(hits(&server, path, "HIT"), "{path} {round}");
        }
        assert_eq!(request_count.load(SeqCst), 2 * round);
        empty(&cache);
        for path in ["/small", "/large"] {
            assert!(wait::until(wait::TIMEOUT, || hits(&server, path, "MISS")), "{path} {round}");
        }
    }
    wait_stored(&server, 8);
    assert_eq!(server.error_log().matches("[crit]").count(), 0, "{}", server.error_log());
}

#[test]
fn hot_response_is_a_miss_when_the_directory_of_its_cache_is_removed() {
    let (addr, request_count) = counting(|conn, _, _| conn.answer("", "content"));
    let server = cached(addr);
    assert!(wait::until(wait::TIMEOUT, || hits(&server, "/", "HIT")));
    fs::remove_dir_all(server.prefix().join("cache")).unwrap();
    assert!(wait::until(wait::TIMEOUT, || hits(&server, "/", "MISS")));
    assert_eq!(Client::get(server.addr(), "/").unwrap().text(), "content");
    assert!(request_count.load(SeqCst) >= 2);
}
