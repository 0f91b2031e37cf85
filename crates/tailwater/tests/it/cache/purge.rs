//! Cache purging by `api` and `tailwater purge`, and the state of caches in the API.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::origin::counting;
use tw_testkit::{Errno, Server, wait};

use crate::support::get;
use crate::support::metrics::metric;
use crate::support::{request, server, start, start_as_we_are};

/// An origin that answers with the number of the request, and with the path as a tag.
fn tagging_origin() -> SocketAddr {
    let (addr, _) = counting(|conn, head, nth| {
        let path = head.split(' ').nth(1).unwrap_or_default().replace('/', "");
        let tail = if head.contains("/large") { 2 << 20 } else { 0 };
        match &*path {
            "elsewhere" => conn.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
            _ => conn.answer(&format!("Tag: all of-{path}\r\n"), format!("{nth} {}", "x".repeat(tail))),
        }
    });
    addr
}

fn conf(dir: &str, addr: SocketAddr) -> String {
    format!(
        "proxy_cache_path {dir} levels=1:2 keys_zone=one:1m max_size=10m; proxy_cache_path idle keys_zone=idle:1m;
         server {{ listen 127.0.0.1:{{port}};
             location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h; proxy_cache_key $host$uri;
                 proxy_cache_tag $upstream_http_tag; proxy_cache_use_stale updating; proxy_cache_background_update on;
                 proxy_cache_bypass $arg_bypass; proxy_cache_valid 404 1h;
                 proxy_intercept_errors on; error_page 404 = /read/http; add_header X-Cache $upstream_cache_status; }}
             location = /metrics {{ metrics; }}
             location /api/ {{ api write=on; }}
             location /read/ {{ api; }} }}"
    )
}

/// Cache status and the number in the body of a response.
fn status_and_number(server: &Server, path: &str) -> (String, usize) {
    let response = get(server, path);
    let number = response.text().split(' ').next().unwrap().parse().unwrap();
    (response.field("X-Cache").unwrap_or_default().to_owned(), number)
}

fn had(server: &Server, path: &str) -> String {
    status_and_number(server, path).0
}

/// Requests these paths until all are hits.
fn store_all(server: &Server, paths: &[&str]) {
    let is_settled = || metric(server, "cache_filling{cache=\"one\"}") == 0;
    for path in paths {
        let is_hit = || {
            let is_hit = had(server, path) == "HIT";
            // A request during the fill would go to the origin again.
            assert!(wait::until(wait::TIMEOUT, is_settled), "{}", server.error_log());
            is_hit
        };
        assert!(wait::until(wait::TIMEOUT, is_hit), "{path}: {}", server.error_log());
    }
}

fn purge(server: &Server, body: &str) -> (u16, String) {
    let length = format!("Content-Length: {}", body.len());
    let mut client = server.connect().unwrap();
    let head =
        format!("POST /api/9/http/caches/one/purge HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{length}");
    client.send(format!("{head}\r\n\r\n{body}")).unwrap();
    let response = client.read_response().unwrap();
    (response.status, response.text())
}

/// Success and output of `tailwater purge` with these arguments.
fn command(server: &Server, words: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let command = command.arg("purge").arg("-p").arg(server.prefix()).args(words).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn api_shows_caches() {
    let addr = tagging_origin();
    let server = start(server(), &conf("cache", addr));
    let json = |path: &str| get(&server, path).text();
    assert_eq!(json("/read/http"), "[\"caches\",\"keyvals\",\"upstreams\"]");
    assert!(wait::until(wait::TIMEOUT, || json("/read/http/caches/one").contains("\"cold\":false")));
    store_all(&server, &["/a"]);
    assert_eq!((had(&server, "/a"), had(&server, "/a?bypass=1")), ("HIT".to_owned(), "BYPASS".to_owned()));
    let is_settled = || json("/read/http/caches/one").contains("\"filling\":0,\"stored\":2");
    assert!(wait::until(wait::TIMEOUT, is_settled), "{}", json("/read/http/caches/one"));
    let text = json("/read/9/http/caches/one");
    let hits = metric(&server, "cache_responses_total{cache=\"one\",status=\"HIT\"}");
    for expected in [
        "{\"size\":4096,\"max_size\":10485760,\"cold\":false,".to_owned(),
        // A number and a space each.
        format!("\"hit\":{{\"responses\":{hits},\"bytes\":{}}}", 2 * hits),
        "\"miss\":{\"responses\":1,\"bytes\":2}".to_owned(),
        "\"bypass\":{\"responses\":1,\"bytes\":2},\"entries\":1,\"filling\":0,\"stored\":2,".to_owned(),
        "\"collapsed\":{\"responses\":".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    let all = json("/read/http/caches/");
    assert!(
        all.starts_with("{\"idle\":{\"size\":0,\"cold\":") && all.contains(",\"one\":{\"size\":4096,"),
        "{all}"
    );
    let status = |line: &str| {
        let response = request(&server, line, &[]);
        (response.status, response.field("Allow").map(str::to_owned))
    };
    assert_eq!(status("GET /read/http/caches/none"), (404, None));
    assert_eq!(status("DELETE /api/http/caches/one"), (405, Some("GET, HEAD".to_owned())));
    assert_eq!(status("GET /api/http/caches/one/purge"), (405, Some("POST".to_owned())));
    assert_eq!(status("POST /read/http/caches/one/purge"), (405, Some(String::new())));
    assert_eq!(status("POST /api/http/caches/none/purge"), (404, None));
}

#[test]
fn api_purges() {
    let addr = tagging_origin();
    let server = start(server(), &conf("cache", addr));
    store_all(&server, &["/a/1", "/a/2", "/b"]);
    let done = (200, "{\"purged\":true}".to_owned());
    let key = |path: &str| format!("{{\"key\":\"localhost{path}\"}}");
    assert_eq!(purge(&server, &key("/a/1")), done, "{}", server.error_log());
    assert_eq!((had(&server, "/a/1"), had(&server, "/a/2")), ("MISS".to_owned(), "HIT".to_owned()));
    let nothing = purge(&server, &key("/nothing"));
    assert!(nothing.0 == 404 && nothing.1.contains("\"code\":\"CacheKeyNotFound\""), "{nothing:?}");
    // A key is a key, whatever it ends in.
    assert_eq!(purge(&server, &key("/a/*")).0, 404);
    store_all(&server, &["/a/1"]);
    assert_eq!(purge(&server, "{\"prefix\":\"localhost/a/\"}"), done);
    assert_eq!(["/a/1", "/a/2", "/b"].map(|path| had(&server, path)), ["MISS", "MISS", "HIT"]);
    store_all(&server, &["/a/1"]);
    assert_eq!(purge(&server, "{\"tag\":\"of-b\",\"soft\":true}"), done);
    assert_eq!(["/b", "/a/1"].map(|path| had(&server, path)), ["STALE", "HIT"]);
    store_all(&server, &["/b"]);
    assert_eq!(purge(&server, "{\"tag\":\"all\"}"), done);
    assert_eq!(["/a/1", "/b"].map(|path| had(&server, path)), ["MISS", "MISS"]);
    for (body, status, code) in [
        ("", 415, "JsonError"),
        ("{}", 400, "CachePurgeFormatError"),
        ("{\"key\":\"a\",\"tag\":\"b\"}", 400, "CachePurgeFormatError"),
    ] {
        let (value, text) = purge(&server, body);
        assert!(value == status && text.contains(&format!("\"code\":\"{code}\"")), "{body}: {text}");
    }
}

#[test]
fn purge_command_purges_in_a_running_server() {
    let addr = tagging_origin();
    for builder in [server(), server().with_master()] {
        let mut server = start(builder, &conf("cache", addr));
        let quiet = (true, String::new());
        store_all(&server, &["/a/1", "/a/2", "/b"]);
        assert_eq!(command(&server, &["--cache", "one", "localhost/a/1"]), quiet, "{}", server.error_log());
        assert_eq!(["/a/1", "/a/2"].map(|path| had(&server, path)), ["MISS", "HIT"]);
        let nothing = (true, "tailwater: nothing in cache \"one\" has this key\n".to_owned());
        assert_eq!(command(&server, &["--cache", "one", "localhost/nothing"]), nothing);
        store_all(&server, &["/a/1"]);
        assert_eq!(command(&server, &["localhost/a/*", "--cache=one"]), quiet);
        assert_eq!(["/a/1", "/a/2", "/b"].map(|path| had(&server, path)), ["MISS", "MISS", "HIT"]);
        assert_eq!(command(&server, &["--cache", "one", "--soft", "--tag", "of-b"]), quiet);
        assert_eq!(had(&server, "/b"), "STALE");
        let refused = command(&server, &["--cache", "none", "a"]);
        let expected = "tailwater: [error] no cache \"none\": the server has \"idle\", \"one\"\n";
        assert_eq!(refused, (false, expected.to_owned()));
        server.wait_error_log("purge in cache \"one\" ordered by process ").unwrap();
        // Several clients purge at the same time.
        store_all(&server, &["/b"]);
        thread::scope(|scope| {
            for client in 0..4 {
                let server = &server;
                scope.spawn(move || {
                    for nth in 0..3 {
                        let key = format!("localhost/{client}/{nth}*");
                        assert_eq!(command(server, &["--cache", "one", &key]), (true, String::new()));
                    }
                });
            }
        });
        assert_eq!(had(&server, "/b"), "HIT");
        server.stop().unwrap();
        // A pid file that could not be removed is empty.
        let (is_done, said) = command(&server, &["--cache", "one", "a"]);
        let is_told =
            ["the server has ended", "the server is not running"].iter().any(|why| said.contains(why));
        assert!(!is_done && said.starts_with("tailwater: [error] ") && is_told, "{said}");
    }
}

#[test]
fn stalled_disk_delays_the_purge_only() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let addr = tagging_origin();
    for builder in [server(), server().with_master()] {
        let dir = disk.path().join("cache");
        let server = start_as_we_are(builder, &conf(dir.to_str().unwrap(), addr));
        let is_warm = || get(&server, "/read/http/caches/one").text().contains("\"cold\":false");
        assert!(wait::until(wait::TIMEOUT, is_warm), "{}", server.error_log());
        store_all(&server, &["/a"]);
        let fault = disk.on(Op::Unlink).inject(Fault::Stall);
        thread::scope(|scope| {
            let ordered = scope.spawn(|| command(&server, &["--cache", "one", "localhost/a"]));
            assert!(wait::until(wait::TIMEOUT, || fault.hits() > 0));
            // Neither its clients nor other orders wait for that.
            assert_eq!(had(&server, "/a"), "MISS");
            assert!(!command(&server, &["--cache", "none", "a"]).0);
            assert!(!ordered.is_finished());
            fault.lift();
            assert_eq!(ordered.join().unwrap(), (true, String::new()));
        });
        // A purge that cannot be recorded is reported.
        let fault = disk.on(Op::Rename).inject(Fault::Error(Errno::NOSPC));
        let (is_done, said) = command(&server, &["--cache", "one", "localhost/b*"]);
        let expected = "tailwater: [error] it is purged, but that may not outlive a restart: ";
        assert!(!is_done && said.starts_with(expected) && said.contains("28: No space left"), "{said}");
        let (status, text) = purge(&server, "{\"prefix\":\"localhost/b\"}");
        assert!(status == 500 && text.contains("\"code\":\"PurgeNotSaved\""), "{text}");
        fault.lift();
    }
}

#[test]
fn hit_times_are_counted_by_source() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let addr = tagging_origin();
    let dir = disk.path().join("cache");
    let server = start_as_we_are(server(), &conf(dir.to_str().unwrap(), addr));
    let count =
        |from: &str| metric(&server, &format!("cache_hit_seconds_count{{cache=\"one\",from=\"{from}\"}}"));
    let hits = || metric(&server, "cache_responses_total{cache=\"one\",status=\"HIT\"}");
    store_all(&server, &["/a"]);
    assert_eq!(had(&server, "/a"), "HIT");
    // The entry is open now, and its body in memory.
    let inline = count("inline");
    let all = hits();
    for _ in 0..5 {
        assert_eq!(had(&server, "/a"), "HIT");
    }
    assert_eq!((count("inline"), hits()), (inline + 5, all + 5));
    // A HEAD request is counted as well.
    assert_eq!(request(&server, "HEAD /a", &[]).field("X-Cache"), Some("HIT"));
    assert_eq!(count("inline"), inline + 6);
    // Files of this disk are never read without waiting for it.
    let before = count("disk");
    store_all(&server, &["/large"]);
    let large = hits();
    assert_eq!(had(&server, "/large"), "HIT");
    assert_eq!(hits(), large + 1);
    assert!(count("disk") > before, "{}", get(&server, "/metrics").text());
    // If another handler responds instead of the cache hit, no time to first byte is recorded.
    let before = (count("inline"), count("disk"));
    let all = hits();
    let is_hit =
        || get(&server, "/elsewhere").text() == "[\"caches\",\"keyvals\",\"upstreams\"]" && hits() > all;
    assert!(wait::until(wait::TIMEOUT, is_hit), "{}", server.error_log());
    assert_eq!((count("inline"), count("disk")), before);
    let bytes = metric(&server, "cache_sent_bytes_total{cache=\"one\",status=\"HIT\"}");
    assert!(bytes > 2 << 20, "{bytes}");
}
