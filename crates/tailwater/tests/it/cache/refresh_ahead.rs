//! Popular responses are updated before they become stale (`proxy_cache_refresh_ahead`), and background fetches are limited
//! (`proxy_cache_background_max`).

use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use tw_testkit::origin::counting;
use tw_testkit::{Server, wait};

use crate::support::cache::{cache_status, wait_stored};
use crate::support::metrics::metric;
use crate::support::{get, server, start};

/// A server with a cache whose responses are valid for `valid`.
fn cached(addr: std::net::SocketAddr, valid: &str, directives: &str) -> Server {
    start(
        server(),
        &format!(
            "proxy_cache_path cache levels=1:2 keys_zone=one:1m;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid any {valid}; {directives}
                     add_header X-Cache $upstream_cache_status; add_header X-Why $cache_why; }}
                 location = /metrics {{ metrics; }} }}"
        ),
    )
}

fn fetches(server: &Server, reason: &str) -> u64 {
    metric(server, &format!("cache_background_fetches_total{{cache=\"one\",reason=\"{reason}\"}}"))
}

#[test]
fn popular_response_never_becomes_stale() {
    let (addr, _) = counting(|conn, head, nth| {
        if head.contains("If-None-Match: \"v\"") {
            conn.send("HTTP/1.1 304 Not Modified\r\nETag: \"v\"\r\n\r\n");
        } else {
            conn.answer("ETag: \"v\"\r\n", format!("answer {nth}"));
        }
    });
    let server = cached(
        addr,
        "4s",
        "proxy_cache_refresh_ahead 50% min_uses=3; proxy_cache_revalidate on; proxy_cache_lock on;",
    );
    assert_eq!(cache_status(&get(&server, "/a")), "MISS");
    wait_stored(&server, 1);
    let is_renewed_twice = || {
        let response = get(&server, "/a");
        // The response is never EXPIRED, and is validated by a conditional request.
        assert_eq!((cache_status(&response), response.text().as_str()), ("HIT", "answer 0"));
        fetches(&server, "refresh-ahead") >= 2
    };
    assert!(wait::until(wait::TIMEOUT, is_renewed_twice), "{}", server.error_log());
    assert_eq!(fetches(&server, "update"), 0);
}

#[test]
fn response_that_is_used_too_rarely_is_not_updated() {
    let (addr, request_count) = counting(|conn, _, nth| conn.answer("", format!("answer {nth}")));
    let server = cached(addr, "1h", "proxy_cache_refresh_ahead 1h min_uses=200;");
    get(&server, "/a");
    wait_stored(&server, 1);
    (0..100).for_each(|_| assert_eq!(cache_status(&get(&server, "/a")), "HIT"));
    assert_eq!((request_count.load(SeqCst), fetches(&server, "refresh-ahead")), (1, 0));
}

#[test]
fn failing_origin_leaves_the_fresh_response() {
    let (addr, request_count) = counting(|conn, _, nth| match nth {
        0 => conn.answer("", "answer"),
        _ => conn.send("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nerror"),
    });
    // Valid for long, so that only the update ahead asks.
    let server = cached(addr, "4s", "proxy_cache_refresh_ahead 50%;");
    get(&server, "/a");
    wait_stored(&server, 1);
    let is_asked = || {
        let response = get(&server, "/a");
        request_count.load(SeqCst) > 1 || {
            assert_eq!((cache_status(&response), response.text().as_str()), ("HIT", "answer"));
            false
        }
    };
    assert!(wait::until(wait::TIMEOUT, is_asked));
    assert!(wait::until(wait::TIMEOUT, || metric(&server, "cache_filling") == 0));
    assert_eq!(fetches(&server, "refresh-ahead"), 1);
    assert_eq!(metric(&server, "cache_stored_total"), 1);
    assert_eq!(get(&server, "/a").text(), "answer");
}

#[test]
fn background_updates_are_limited() {
    const PAGES: usize = 6;
    let (go, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let (addr, request_count) = counting(move |conn, _, nth| {
        if nth >= PAGES {
            let _ = gate.lock().unwrap().recv();
        }
        conn.answer("", format!("answer {nth}"));
    });
    let server = cached(
        addr,
        "1s",
        "proxy_cache_background_update on; proxy_cache_use_stale updating; proxy_cache_background_max 2;",
    );
    let paths: Vec<String> = (0..PAGES).map(|page| format!("/{page}")).collect();
    for path in &paths {
        get(&server, path);
    }
    wait_stored(&server, PAGES);
    let refused = "cache_background_refused_total{cache=\"one\",reason=\"update\"}";
    for (nth, path) in paths.iter().enumerate() {
        // Hits until it is stale.
        let mut response = get(&server, path);
        assert!(wait::until(wait::TIMEOUT, || {
            response = get(&server, path);
            cache_status(&response) != "HIT"
        }));
        assert_eq!(response.text(), format!("answer {nth}"));
        let expected = if nth < 2 { ["STALE", "UPDATING"] } else { ["STALE", "STALE"] };
        assert!(expected.contains(&cache_status(&response)));
        assert_eq!(response.field("X-Why") == Some("background-max"), nth >= 2, "{nth}");
    }
    assert_eq!(
        (fetches(&server, "update"), metric(&server, "cache_background_running{cache=\"one\"}")),
        (2, 2)
    );
    assert!(metric(&server, refused) >= PAGES as u64 - 2);
    assert!(wait::until(wait::TIMEOUT, || request_count.load(SeqCst) == PAGES + 2));
    (0..PAGES).for_each(|_| go.send(()).unwrap());
    drop(go);
    // The others have their turn now.
    let are_updated =
        || paths.iter().enumerate().all(|(nth, path)| get(&server, path).text() != format!("answer {nth}"));
    assert!(wait::until(wait::TIMEOUT, are_updated), "{}", server.error_log());
}
