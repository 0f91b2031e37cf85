//! Weak validators of cached responses.

use tw_testkit::origin::counting;

use crate::support::cache::wait_stored;
use crate::support::{get, request, server, start};

#[test]
fn weak_etag_matches_neither_if_match_nor_if_range() {
    let (addr, _) = counting(|conn, head, _| {
        let tag = if head.starts_with("GET /weak") { "W/\"x\"" } else { "\"x\"" };
        conn.answer(&format!("Cache-Control: max-age=600\r\nETag: {tag}\r\n"), "0123");
    });
    let conf = format!(
        "proxy_cache_path cache keys_zone=one:1m;
         server {{ listen 127.0.0.1:{{port}};
             location / {{ proxy_pass http://{addr}; proxy_cache one; }}
             location = /metrics {{ metrics; }} }}"
    );
    let server = start(server().with_master(), &conf);
    for (nth, path) in ["/weak", "/strong"].iter().enumerate() {
        assert_eq!(get(&server, path).status, 200);
        wait_stored(&server, nth + 1);
    }
    for (path, fields, status) in [
        ("/weak", &["If-Match: W/\"x\""][..], 412),
        ("/weak", &["If-Match: \"x\""], 412),
        ("/weak", &["If-Match: *"], 200),
        ("/weak", &["Range: bytes=0-0", "If-Range: W/\"x\""], 200),
        ("/weak", &["Range: bytes=0-0"], 206),
        ("/weak", &["If-None-Match: W/\"x\""], 304),
        ("/strong", &["If-Match: W/\"x\""], 412),
        ("/strong", &["If-Match: \"x\""], 200),
        ("/strong", &["Range: bytes=0-0", "If-Range: W/\"x\""], 200),
        ("/strong", &["Range: bytes=0-0", "If-Range: \"x\""], 206),
    ] {
        assert_eq!(request(&server, &format!("GET {path}"), fields).status, status, "{path} {fields:?}");
    }
}
