//! `store=log` serves as `store=files` does: HEAD, conditional requests, ranges, slices, variants, validation, followers of a fill,
//! purges, stale responses, all gateways.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use tw_testkit::origin::{Conn, counting, origin};
use tw_testkit::{Response, Server, Signal, TempDir, wait};

use crate::support::cache::{cache_status, wait_stored};
use crate::support::files::files_below;
use crate::support::metrics::metric;
use crate::support::{get, request, server, start};

/// Bytes of a body: two blocks of checksums.
const SIZE: usize = 100_000;

/// Body of a path in one version.
fn body(path: &str, version: usize) -> Vec<u8> {
    let begin = format!("{path} {version}|").into_bytes();
    begin.into_iter().chain((0_usize..).map(|at| (at * 31 + at / 251 + version) as u8)).take(SIZE).collect()
}

/// An origin that answers with a body of its path and the number of the request.
fn versions(fields: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    counting(move |conn, head, nth| {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        conn.answer(fields, body(&path, nth));
    })
}

fn cached(dir: &Path, addr: SocketAddr, more: &str) -> Server {
    start(
        server().with_master(),
        &format!(
            "proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m inactive=1h store=log segment=4m snapshot=1s;
             map $request_method $purge {{ PURGE 1; SOFT soft; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_key $uri;
                     proxy_cache_purge $purge; proxy_cache_purge_tag $http_x_purge;
                     proxy_cache_tag $upstream_http_x_tags;
                     add_header X-Cache $upstream_cache_status; add_header X-Why $cache_why; {more} }}
                 location = /metrics {{ metrics; }} }}",
            dir.display()
        ),
    )
}

fn restart(mut server: Server, again: impl FnOnce() -> Server) -> Server {
    server.signal(Signal::KILL).unwrap();
    let _ = server.wait_exit(wait::TIMEOUT);
    let server = again();
    server.wait_error_log(" files, ").unwrap();
    server
}

/// Path and content of the segments.
fn segments(dir: &Path) -> Vec<Vec<u8>> {
    let mut paths = files_below(&dir.join("cache/segments"));
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Number of files of responses, none of which is expected: all are in segments.
fn response_files(dir: &Path) -> usize {
    files_below(&dir.join("cache"))
        .iter()
        .filter(|path| path.file_name().is_some_and(|n| n.len() == 32))
        .count()
}

#[test]
fn head_conditions_and_ranges_are_answered_from_a_record() {
    let dir = TempDir::new("segments-served").unwrap();
    let (addr, requests) = versions(
        "ETag: \"v\"\r\nLast-Modified: Mon, 28 Sep 1970 06:00:00 GMT\r\nCache-Control: max-age=3600\r\n",
    );
    let mut server = cached(dir.path(), addr, "");
    assert_eq!(request(&server, "HEAD /head", &[]).field("Content-Length"), Some("100000"));
    assert!(get(&server, "/a").body == body("/a", 1));
    wait_stored(&server, 2);
    for round in 0..2 {
        // A request for the head has stored the whole response.
        assert!(get(&server, "/head").body == body("/head", 0), "{}", server.error_log());
        let whole = body("/a", 1);
        for (method, fields, status, expected) in [
            ("HEAD", &[][..], 200, &b""[..]),
            ("GET", &["If-None-Match: \"v\""], 304, b""),
            ("GET", &["If-None-Match: W/\"v\", \"w\""], 304, b""),
            ("GET", &["If-None-Match: \"w\""], 200, &whole),
            ("GET", &["If-Modified-Since: Mon, 28 Sep 1970 06:00:00 GMT"], 304, b""),
            ("GET", &["If-Match: \"w\""], 412, b"-"),
            ("GET", &["If-Unmodified-Since: Mon, 28 Sep 1970 05:59:59 GMT"], 412, b"-"),
            ("GET", &["Range: bytes=0-0"], 206, &whole[..1]),
            ("GET", &["Range: bytes=65530-65545"], 206, &whole[65_530..65_546]),
            ("GET", &["Range: bytes=-100"], 206, &whole[SIZE - 100..]),
            ("GET", &["Range: bytes=70000-"], 206, &whole[70_000..]),
            ("GET", &["Range: bytes=100000-"], 416, b"-"),
            ("GET", &["Range: bytes=5-9", "If-Range: \"v\""], 206, &whole[5..10]),
            ("GET", &["Range: bytes=5-9", "If-Range: \"w\""], 200, &whole),
        ] {
            let response = request(&server, &format!("{method} /a"), fields);
            assert_eq!(response.status, status, "{round} {fields:?}");
            assert!(
                expected == b"-" || response.body == expected,
                "{round} {fields:?} {}",
                response.body.len()
            );
        }
        let several = request(&server, "GET /a", &["Range: bytes=1-3,99990-"]);
        let is_found = |part: &[u8]| several.body.windows(part.len()).any(|window| window == part);
        assert!(several.status == 206 && is_found(&whole[1..4]) && is_found(&whole[99_990..]), "{round}");
        if round == 0 {
            server = restart(server, || cached(dir.path(), addr, ""));
        }
    }
    assert_eq!(requests.load(SeqCst), 2, "{}", server.error_log());
    assert_eq!(response_files(dir.path()), 0);
}

#[test]
fn variants_are_records_of_their_own() {
    let dir = TempDir::new("segments-served").unwrap();
    let (addr, requests) = counting(|conn, head, _| {
        let kind = head.split("X-Kind: ").nth(1).and_then(|rest| rest.split('\r').next()).unwrap_or("none");
        conn.answer("Vary: X-Kind\r\nCache-Control: max-age=3600\r\n", body(kind, 7));
    });
    let mut server = cached(dir.path(), addr, "");
    let kinds = ["one", "two", "three"];
    let ask = |server: &Server, kind: &str| {
        let response = request(server, "GET /a", &[&format!("X-Kind: {kind}")]);
        assert!(response.body == body(kind, 7), "{kind}");
        cache_status(&response).to_owned()
    };
    for (nth, kind) in kinds.iter().enumerate() {
        assert_eq!(ask(&server, kind), "MISS");
        wait_stored(&server, nth + 1);
    }
    for _ in 0..2 {
        kinds.iter().for_each(|kind| assert_eq!(ask(&server, kind), "HIT", "{kind} {}", server.error_log()));
        server = restart(server, || cached(dir.path(), addr, ""));
    }
    assert_eq!((requests.load(SeqCst), response_files(dir.path())), (3, 0));
    assert_eq!(request(&server, "PURGE /a", &[]).status, 204);
    server = restart(server, || cached(dir.path(), addr, ""));
    kinds.iter().for_each(|kind| assert_eq!(ask(&server, kind), "MISS", "{kind}"));
}

#[test]
fn validation_writes_the_head_and_not_the_body() {
    let dir = TempDir::new("segments-served").unwrap();
    let (addr, requests) = counting(|conn, head, _| {
        if head.contains("If-None-Match: \"v\"") {
            conn.send(
                "HTTP/1.1 304 Not Modified\r\nETag: \"v\"\r\nCache-Control: max-age=3600\r\nX-New: 1\r\n\r\n",
            )
        } else {
            conn.answer("ETag: \"v\"\r\nCache-Control: max-age=1\r\n", body("/a", 0))
        }
    });
    let again = || cached(dir.path(), addr, "proxy_cache_revalidate on;");
    let mut server = again();
    get(&server, "/a");
    wait_stored(&server, 1);
    let before = segments(dir.path());
    let is_validated = || {
        let response = get(&server, "/a");
        assert!(response.body == body("/a", 0));
        cache_status(&response) == "REVALIDATED"
    };
    assert!(wait::until(wait::TIMEOUT, is_validated), "{}", server.error_log());
    // The head is written before or after the response is sent.
    let is_written = || segments(dir.path()) != before;
    assert!(wait::until(wait::TIMEOUT, is_written));
    let after = segments(dir.path());
    assert_eq!(
        after.iter().map(Vec::len).collect::<Vec<_>>(),
        before.iter().map(Vec::len).collect::<Vec<_>>()
    );
    let changed = before[0].iter().zip(&after[0]).filter(|(old, new)| old != new).count();
    assert!((1..2000).contains(&changed), "{changed} bytes are others");
    for _ in 0..2 {
        let response = get(&server, "/a");
        assert_eq!(cache_status(&response), "HIT");
        assert!(response.body == body("/a", 0));
        server = restart(server, again);
    }
    assert_eq!(requests.load(SeqCst), 2, "{}", server.error_log());
}

#[test]
fn followers_of_a_fill_get_it_while_it_arrives() {
    let dir = TempDir::new("segments-served").unwrap();
    let (go, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let (addr, requests) = counting(move |conn: &mut Conn, _, _| {
        let whole = body("/a", 3);
        conn.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\nCache-Control: max-age=3600\r\n\r\n"
        ));
        conn.send(&whole[..SIZE / 2]);
        gate.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
        conn.send(&whole[SIZE / 2..]);
    });
    let server = cached(dir.path(), addr, "proxy_cache_lock on;");
    let whole = body("/a", 3);
    let mut clients: Vec<_> = (0..6)
        .map(|_| {
            let mut client = server.connect().unwrap().timeout(wait::TIMEOUT);
            client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            assert_eq!(client.read_head().unwrap().status, 200);
            assert!(client.read_bytes(SIZE / 2).unwrap() == whole[..SIZE / 2]);
            client
        })
        .collect();
    go.send(()).unwrap();
    for client in &mut clients {
        assert!(client.read_bytes(SIZE / 2).unwrap() == whole[SIZE / 2..]);
    }
    wait_stored(&server, 1);
    let hit = get(&server, "/a");
    assert!(cache_status(&hit) == "HIT" && hit.body == whole);
    assert_eq!((requests.load(SeqCst), response_files(dir.path())), (1, 0));
}

#[test]
fn purges_hold_over_a_kill() {
    for (what, is_soft) in
        [("key", false), ("prefix", false), ("tag", false), ("key", true), ("prefix", true), ("tag", true)]
    {
        let dir = TempDir::new("segments-served").unwrap();
        let (addr, _) = versions("X-Tags: t1\r\nCache-Control: max-age=3600\r\n");
        let again = || cached(dir.path(), addr, "proxy_cache_use_stale updating;");
        let mut server = again();
        assert!(get(&server, "/p/a").body == body("/p/a", 0));
        wait_stored(&server, 1);
        let method = if is_soft { "SOFT" } else { "PURGE" };
        let answer = match what {
            "key" => request(&server, &format!("{method} /p/a"), &[]),
            "prefix" => request(&server, &format!("{method} /p/*"), &[]),
            _ => request(&server, &format!("{method} /"), &["X-Purge: t1"]),
        };
        assert_eq!(answer.status, 204, "{what}");
        server = restart(server, again);
        let response = get(&server, "/p/a");
        let expected = if is_soft { "EXPIRED" } else { "MISS" };
        assert_eq!(cache_status(&response), expected, "{what} {}", server.error_log());
        assert!(response.body == body("/p/a", 1), "{what} {is_soft}");
        wait_stored(&server, 1);
        // The purge does not concern the response that was stored after it, now and after a restart.
        server = restart(server, again);
        let response = get(&server, "/p/a");
        assert!(cache_status(&response) == "HIT" && response.body == body("/p/a", 1), "{what} {is_soft}");
    }
}

#[test]
fn stale_records_answer_while_the_origin_fails_or_is_asked() {
    let dir = TempDir::new("segments-served").unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let is_failing = fails.clone();
    let (addr, _) = counting(move |conn, _, nth| {
        if is_failing.load(SeqCst) {
            conn.send("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        } else {
            conn.answer("Cache-Control: max-age=1\r\n", body("/a", nth))
        }
    });
    let again = || {
        let more = "proxy_cache_use_stale error http_503 updating; proxy_cache_background_update on;";
        cached(dir.path(), addr, more)
    };
    let mut server = again();
    get(&server, "/a");
    wait_stored(&server, 1);
    fails.store(true, SeqCst);
    let is_stale = |server: &Server| {
        let response = get(server, "/a");
        assert!(response.status == 200 && response.body == body("/a", 0), "{}", response.status);
        matches!(cache_status(&response), "STALE" | "UPDATING")
    };
    assert!(wait::until(wait::TIMEOUT, || is_stale(&server)));
    server = restart(server, again);
    (0..5).for_each(|_| assert!(is_stale(&server), "{}", server.error_log()));
    fails.store(false, SeqCst);
    let is_new = || {
        let response = get(&server, "/a");
        assert_eq!(response.status, 200);
        response.body != body("/a", 0)
    };
    assert!(wait::until(wait::TIMEOUT, is_new), "{}", server.error_log());
}

#[test]
fn rarely_used_responses_are_not_stored() {
    let dir = TempDir::new("segments-served").unwrap();
    let (addr, requests) = versions("Cache-Control: max-age=3600\r\n");
    let server = cached(dir.path(), addr, "proxy_cache_min_uses 3;");
    let statuses: Vec<_> = (0..5)
        .map(|nth| {
            let response = get(&server, "/a");
            if nth == 2 {
                wait_stored(&server, 1);
            }
            cache_status(&response).to_owned()
        })
        .collect();
    assert_eq!(statuses, ["MISS", "MISS", "MISS", "HIT", "HIT"]);
    assert_eq!(requests.load(SeqCst), 3);
}

#[test]
fn slices_are_records() {
    const WHOLE: usize = 300_000;
    let film =
        |from: usize, to: usize| -> Vec<u8> { (from..to).map(|at| (at * 7 + at / 253) as u8).collect() };
    let dir = TempDir::new("segments-served").unwrap();
    let (addr, requests) = counting(move |conn, head, _| {
        let range = head.split("Range: bytes=").nth(1).and_then(|rest| rest.split('\r').next()).unwrap();
        let (first, last) = range.split_once('-').unwrap();
        let first: usize = first.parse().unwrap();
        let last = last.parse::<usize>().unwrap().min(WHOLE - 1);
        conn.send(format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"v\"\r\nCache-Control: max-age=3600\r\n\
             Content-Range: bytes {first}-{last}/{WHOLE}\r\nContent-Length: {}\r\n\r\n",
            last + 1 - first
        ));
        conn.send(film(first, last + 1));
    });
    let again = || {
        let more = "slice 64k; proxy_set_header Range $slice_range; proxy_cache_key $uri$slice_range;
                    proxy_cache_valid 206 1h;";
        // The later directive counts.
        let conf = cached_without_key(dir.path(), addr, more);
        start(server().with_master(), &conf)
    };
    let mut server = again();
    for round in 0..3 {
        for (range, expected) in [
            (None, film(0, WHOLE)),
            (Some("bytes=65530-131080"), film(65_530, 131_081)),
            (Some("bytes=-10"), film(WHOLE - 10, WHOLE)),
        ] {
            let field = range.map(|range| format!("Range: {range}"));
            let response = request(&server, "GET /film", &field.as_deref().into_iter().collect::<Vec<_>>());
            assert!(response.body == expected, "{round} {range:?} {}", response.status);
        }
        if round == 0 {
            wait_stored(&server, 5);
        } else {
            assert_eq!(requests.load(SeqCst), 5, "{}", server.error_log());
        }
        server = restart(server, again);
    }
    assert_eq!(response_files(dir.path()), 0);
}

fn cached_without_key(dir: &Path, addr: SocketAddr, more: &str) -> String {
    format!(
        "proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m inactive=1h store=log segment=4m snapshot=1s;
         server {{ listen 127.0.0.1:{{port}};
             location / {{ proxy_pass http://{addr}; proxy_cache one; {more} }}
             location = /metrics {{ metrics; }} }}",
        dir.display()
    )
}

#[test]
fn responses_of_all_gateways_are_records() {
    let head = "Content-Type: a/b\r\nCache-Control: max-age=3600\r\n\r\n";
    let output = move || [head.as_bytes(), &body("gateway", 1)[..60_000]].concat();
    let gateways: [(&str, SocketAddr); 3] = [
        (
            "fastcgi",
            origin(move |mut conn| {
                while conn.fastcgi().is_some() {
                    conn.answer_fastcgi(output());
                }
            }),
        ),
        (
            "uwsgi",
            origin(move |mut conn| {
                if conn.uwsgi().is_some() {
                    conn.send([b"HTTP/1.1 200 OK\r\n", &output()[..]].concat());
                }
            }),
        ),
        (
            "scgi",
            origin(move |mut conn| {
                if conn.scgi().is_some() {
                    conn.send([b"Status: 200 OK\r\n", &output()[..]].concat());
                }
            }),
        ),
    ];
    for (name, addr) in gateways {
        let dir = TempDir::new("segments-served").unwrap();
        let again = || {
            start(
                server().with_master(),
                &format!(
                    "{name}_cache_path {}/cache keys_zone=one:1m store=log;
                     server {{ listen 127.0.0.1:{{port}};
                         location / {{ {name}_pass {addr}; {name}_cache one; {name}_cache_key $uri;
                             {name}_param SCGI 1; add_header X-Cache $upstream_cache_status; }}
                         location = /metrics {{ metrics; }} }}",
                    dir.path().display()
                ),
            )
        };
        let mut server = again();
        let ask = |server: &Server| -> Response {
            let response = get(server, "/a");
            assert!(response.body == body("gateway", 1)[..60_000], "{name} {}", response.status);
            assert_eq!(response.field("Content-Type"), Some("a/b"), "{name}");
            response
        };
        assert_eq!(cache_status(&ask(&server)), "MISS", "{name}");
        wait_stored(&server, 1);
        assert_eq!(cache_status(&ask(&server)), "HIT", "{name}");
        server = restart(server, again);
        assert_eq!(cache_status(&ask(&server)), "HIT", "{name} {}", server.error_log());
        assert_eq!(response_files(dir.path()), 0, "{name}");
        assert_eq!(metric(&server, "cache_damaged_total"), 0);
    }
}
