//! Examples of `docs/caching.md`, as they are there.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

use tw_testkit::origin::counting;
use tw_testkit::{Response, Server, TempDir, wait};

use crate::support::cache::{cache_status, wait_stored};
use crate::support::metrics::metric_sum;
use crate::support::{request, server};

/// Texts that stand for the origin in the examples.
const ORIGIN: [&str; 2] = ["10.0.0.1:3000", "server deb.debian.org"];

fn text() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/caching.md");
    fs::read_to_string(file).unwrap()
}

/// All examples with their headings. Each is a whole file, or the content of `http`.
fn examples() -> Vec<(String, String)> {
    let text = text().replace("\n### ", "\n## ");
    let sections = text.split("\n## ").skip(1);
    let results = sections.filter_map(|section| {
        let (_, rest) = section.split_once("```nginx\n")?;
        let example = rest.split("```").next()?.to_owned();
        let whole =
            if example.contains("http {") { example } else { format!("events {{ }} http {{ {example} }}") };
        Some((section.lines().next()?.to_owned(), whole))
    });
    results.collect()
}

/// A server with the example below this heading in front of this origin, with directories of its own.
pub(super) fn example(heading: &str, origin: SocketAddr) -> Server {
    example_with(heading, origin, "")
}

/// [`example`] where other texts are replaced, too.
pub(super) fn example_replaced(heading: &str, origin: SocketAddr, replaced: &[(&str, String)]) -> Server {
    let conf = replaced.iter().fold(conf(heading, origin, ""), |conf, (old, new)| conf.replace(old, new));
    server().with_master().start(&conf).unwrap()
}

/// [`example`] with another block in `http`.
fn example_with(heading: &str, origin: SocketAddr, more: &str) -> Server {
    server().with_master().start(&conf(heading, origin, more)).unwrap()
}

fn conf(heading: &str, origin: SocketAddr, more: &str) -> String {
    let (_, conf) = examples().into_iter().find(|(candidate, _)| candidate == heading).unwrap();
    conf.replacen("http {", &format!("http {{ {more}"), 1)
        .replace(ORIGIN[0], &origin.to_string())
        .replace(ORIGIN[1], &format!("server {origin}"))
        .replace("listen 8000;", "listen 127.0.0.1:{port}; location = /metrics { metrics; }")
        .replace("listen 8000", "listen 127.0.0.1:{port}")
        .replace("events { }", "")
        .replace("/var/cache/", "kept-")
        .replace("/mnt/", "")
}

fn path(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

/// Sends requests until one is a hit and no fill is in progress that could replace it.
fn wait_for_hit(server: &Server, path: &str) -> Response {
    let is_filling = || metric_sum(server, "cache_filling") > 0;
    let found_response = wait::some(wait::TIMEOUT, || {
        let response = request(server, &format!("GET {path}"), &[]);
        (cache_status(&response) == "HIT" && !is_filling())
            .then(|| request(server, &format!("GET {path}"), &[]))
    });
    found_response.unwrap_or_else(|| panic!("{path} is never there: {}", server.error_log()))
}

#[test]
fn every_example_passes_the_configuration_test() {
    let examples = examples();
    let text = text();
    assert_eq!(examples.len(), text.matches("```nginx\n").count(), "one for each heading");
    assert!(examples.len() >= 8);
    for (heading, conf) in examples {
        let dir = TempDir::new("caching").unwrap();
        fs::create_dir(dir.join("logs")).unwrap();
        // The test has no name server and not these directories, so both are replaced.
        let conf =
            conf.replace(ORIGIN[1], "server 127.0.0.1").replace("/var/cache/", "").replace("/mnt/", "");
        let conf = dir.write("nginx.conf", conf).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        let output = command.arg("-tqp").arg(dir.path()).arg("-c").arg(conf).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("[warn]"), "{heading}: {said}");
    }
}

#[test]
fn example_of_a_cdn_node_caches() {
    let (origin, request_count) = counting(|conn, head, nth| {
        assert!(head.contains("\r\nHost: localhost\r\n"), "{head}");
        match (path(head), nth) {
            ("/quiet", _) => conn.answer("", format!("{nth}")),
            (_, 0) => conn.answer("Cache-Control: max-age=1\r\n", "first"),
            _ => conn.send("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
        }
    });
    let server = example("CDN edge cache", origin);
    assert_eq!(cache_status(&request(&server, "GET /a", &[])), "MISS");
    let stale = wait::some(wait::TIMEOUT, || {
        let response = request(&server, "GET /a", &[]);
        (cache_status(&response) == "STALE").then_some(response)
    });
    assert_eq!(stale.unwrap().text(), "first");
    // The stale response is still served, whatever the origin says.
    assert!(wait::until(wait::TIMEOUT, || request_count.load(SeqCst) > 1));
    assert_eq!(request(&server, "GET /a", &[]).text(), "first");
    // A response without freshness information is not stored.
    for _ in 0..3 {
        assert_eq!(cache_status(&request(&server, "GET /quiet", &[])), "MISS");
    }
}

#[test]
fn example_of_a_package_mirror_caches() {
    let (origin, request_count) = counting(|conn, head, nth| {
        assert!(head.contains("\r\nHost: deb.debian.org\r\n"), "{head}");
        conn.answer("Cache-Control: no-store\r\nVary: *\r\n", format!("{} {nth}", path(head)));
    });
    let server = example("Package mirror", origin);
    for (nth, path) in ["/debian/pool/a.deb", "/debian/dists/stable/Release"].into_iter().enumerate() {
        let first = request(&server, &format!("GET {path}?x"), &[]).text();
        wait_stored(&server, nth + 1);
        assert_eq!(request(&server, &format!("GET {path}"), &[]).text(), first);
    }
    assert_eq!(request_count.load(SeqCst), 2);
}

#[test]
fn example_for_wordpress_caches() {
    let (origin, _) = counting(|conn, head, nth| conn.answer("", format!("{} {nth}", path(head))));
    let server = example("WordPress", origin);
    let kept = {
        request(&server, "GET /post/", &[]);
        wait_for_hit(&server, "/post/").text()
    };
    for cookie in ["Cookie: a=b; wordpress_logged_in_0123=x", "Cookie: woocommerce_items_in_cart=1"] {
        for _ in 0..2 {
            let own = request(&server, "GET /post/", &[cookie]);
            assert_eq!(cache_status(&own), "BYPASS", "{cookie}");
            assert_ne!(own.text(), kept);
        }
    }
    assert_eq!(cache_status(&request(&server, "GET /post/", &["Cookie: a=b"])), "HIT");
    for path in ["/wp-login.php", "/wp-admin/x.php?y", "/cart/"] {
        assert_eq!(cache_status(&request(&server, &format!("GET {path}"), &[])), "BYPASS", "{path}");
        assert_eq!(cache_status(&request(&server, &format!("GET {path}"), &[])), "BYPASS", "{path}");
    }
    assert_eq!(wait_for_hit(&server, "/post/").text(), kept);
    assert_eq!(cache_status(&request(&server, "POST /post/", &[])), "");
}

#[test]
fn example_of_purging_purges() {
    let (origin, _) = counting(|conn, head, nth| conn.answer("", format!("{} {nth}", path(head))));
    let server = example("Purging by request", origin);
    let purge = |path: &str, fields: &[&str]| request(&server, &format!("PURGE {path}"), fields).status;
    let fill = |path: &str| {
        request(&server, &format!("GET {path}"), &[]);
        wait_for_hit(&server, path).text()
    };
    fill("/news/1");
    assert_eq!(purge("/news/1", &[]), 204);
    assert_eq!(cache_status(&request(&server, "GET /news/1", &[])), "MISS");
    assert_eq!(purge("/never", &[]), 404);

    for path in ["/images/a", "/images/b/c", "/other"] {
        fill(path);
    }
    assert_eq!(purge("/images/*", &[]), 204);
    for (path, expected) in [("/images/a", "MISS"), ("/images/b/c", "MISS"), ("/other", "HIT")] {
        assert_eq!(cache_status(&request(&server, &format!("GET {path}"), &[])), expected, "{path}");
    }

    // A response that has arrived but is not stored yet is fetched anew instead, hence the retries.
    let soft = wait::some(wait::TIMEOUT, || {
        let before = fill("/soft");
        assert_eq!(purge("/*", &["Soft-Purge: 1"]), 204);
        let stale = request(&server, "GET /soft", &[]);
        (cache_status(&stale) == "STALE").then(|| (before, stale.text()))
    });
    let (before, stale) = soft.unwrap();
    assert_eq!(stale, before);
    assert_ne!(wait_for_hit(&server, "/soft").text(), before);
}

#[test]
fn example_of_purging_refuses_other_addresses() {
    let (_, conf) = examples().into_iter().find(|(heading, _)| heading == "Purging by request").unwrap();
    assert_eq!(conf.matches("allow 127.0.0.1;").count(), 1);
    let (origin, request_count) = counting(|conn, _, _| conn.answer("", "x"));
    let conf = conf
        .replace("allow 127.0.0.1;", "allow 192.0.2.1;")
        .replace(ORIGIN[0], &origin.to_string())
        .replace("listen 8000;", "listen 127.0.0.1:{port}; location = /metrics { metrics; }")
        .replace("events { }", "")
        .replace("/var/cache/", "kept-");
    let server = server().with_master().start(&conf).unwrap();
    request(&server, "GET /a", &[]);
    wait_for_hit(&server, "/a");
    for method in ["PURGE", "PUT", "DELETE"] {
        assert_eq!(request(&server, &format!("{method} /a"), &[]).status, 403, "{method}");
    }
    let before = request_count.load(SeqCst);
    assert_eq!(cache_status(&request(&server, "GET /a", &[])), "HIT");
    assert_eq!(request(&server, "POST /a", &[]).status, 200);
    assert_eq!(request_count.load(SeqCst), before + 1);
}

#[test]
fn example_of_tags_purges_by_tag() {
    let (origin, _) = counting(|conn, head, nth| {
        let tags = match path(head) {
            "/product/7" => "Surrogate-Key: product-7 category-2\r\n",
            "/category/2" => "Surrogate-Key: category-2\r\n",
            _ => "",
        };
        conn.answer(tags, nth.to_string());
    });
    let server = example("Purging by request", origin);
    let paths = ["/product/7", "/category/2", "/about"];
    let fill = || {
        for path in paths {
            request(&server, &format!("GET {path}"), &[]);
            assert_eq!(wait_for_hit(&server, path).field("Surrogate-Key"), None);
        }
    };
    for (tag, expected) in [
        ("product-7", ["MISS", "HIT", "HIT"]),
        ("category-2", ["MISS", "MISS", "HIT"]),
        ("category", ["HIT", "HIT", "HIT"]),
    ] {
        fill();
        let field = format!("Surrogate-Key: {tag}");
        assert_eq!(request(&server, "PURGE /", &[&field]).status, 204);
        let results =
            paths.map(|path| cache_status(&request(&server, &format!("GET {path}"), &[])).to_owned());
        assert_eq!(results, expected, "{tag}");
    }
}

#[test]
fn example_of_purging_by_api_purges() {
    let (origin, _) = counting(|conn, _, nth| conn.answer("", nth.to_string()));
    let api = "server { listen 127.0.0.1:{port1}; location /api/ { api write=on; } }";
    let server = example_with("Purging by request", origin, api);
    let purge = |body: &str| {
        let mut client = tw_testkit::Client::connect(server.addr_of(1)).unwrap();
        let length = body.len();
        client
            .send(format!(
                "POST /api/http/caches/site/purge HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"
            ))
            .unwrap();
        client.read_response().unwrap().status
    };
    // The commands are taken from the text, with this host in place of the example's.
    let text = text().replace("www.example.com", "localhost");
    let bodies = text.split("curl -d '").skip(1).map(|rest| rest.split('\'').next().unwrap().to_owned());
    let bodies: Vec<_> = bodies.collect();
    assert_eq!(bodies.len(), 3);
    request(&server, "GET /news/1", &[]);
    wait_for_hit(&server, "/news/1");
    for (body, expected) in bodies.iter().zip(["MISS", "MISS", "HIT"]) {
        assert_eq!(purge(body), 200, "{body}");
        assert_eq!(cache_status(&request(&server, "GET /news/1", &[])), expected, "{body}");
        wait_for_hit(&server, "/news/1");
    }
    let page = tw_testkit::Client::get(server.addr_of(1), "/api/http/caches").unwrap().text();
    assert!(page.starts_with("{\"site\":{\"size\":"), "{page}");
}

#[test]
fn example_of_rfc9111_caches() {
    let (origin, _) = counting(|conn, head, nth| match path(head) {
        "/targeted" => {
            conn.answer("Cache-Control: no-store\r\nCDN-Cache-Control: max-age=60\r\n", nth.to_string())
        }
        _ => conn.answer("Cache-Control: max-age=60\r\nETag: \"x\"\r\n", nth.to_string()),
    });
    let server = example("RFC 9111 mode", origin);
    let said = |line: &str, fields: &[&str]| {
        request(&server, line, fields).field("Cache-Status").unwrap_or_default().to_owned()
    };
    for (nth, path) in ["/targeted", "/a"].into_iter().enumerate() {
        let miss = said(&format!("GET {path}"), &[]);
        let ttl = miss.strip_prefix("edge; fwd=uri-miss; fwd-status=200; ttl=");
        let ttl = ttl.and_then(|rest| rest.strip_suffix("; stored")?.parse::<u32>().ok());
        // The seconds in which it was asked for may be over.
        assert!(ttl.is_some_and(|ttl| (1..=60).contains(&ttl)), "{miss}");
        wait_stored(&server, nth + 1);
        let hit = said(&format!("GET {path}"), &[]);
        assert!(hit.starts_with("edge; hit; ttl="), "{path}: {hit}");
    }
    assert!(said("GET /a", &["Cache-Control: no-cache"]).starts_with("edge; fwd=request; fwd-status=200"));
    assert_eq!(request(&server, "GET /b", &["Cache-Control: only-if-cached"]).status, 504);
}

#[test]
fn example_of_slices_caches() {
    const SLICE: usize = 4 << 20;
    let (origin, request_count) = counting(|conn, head, _| {
        let range = head.split("\r\nRange: bytes=").nth(1).unwrap().split("\r\n").next().unwrap();
        let (first, last) = range.split_once('-').unwrap();
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        let last = last.min(SLICE + 9);
        conn.send(format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"x\"\r\nContent-Range: bytes {first}-{last}/{}\r\nContent-Length: {}\r\n\r\n{}",
            SLICE + 10,
            last + 1 - first,
            "y".repeat(last + 1 - first)
        ));
    });
    let server = example("Slices for large files", origin);
    let end = request(&server, "GET /film", &[&format!("Range: bytes={}-", SLICE + 5)]);
    assert_eq!((end.status, end.text(), request_count.load(SeqCst)), (206, "yyyyy".to_owned(), 1));
    let is_hit =
        || cache_status(&request(&server, "GET /film", &[&format!("Range: bytes={SLICE}-")])) == "HIT";
    assert!(wait::until(wait::TIMEOUT, is_hit), "{}", server.error_log());
    assert_eq!(request(&server, "GET /film", &[]).text().len(), SLICE + 10);
    assert_eq!(request_count.load(SeqCst), 2);
}

#[test]
fn every_value_of_cache_why_is_documented_once() {
    let text = text();
    let section = text.split("\n## Why a response is not cached\n").nth(1).unwrap();
    let rows = section.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split(" |").next()).filter(|cell| !cell.starts_with('$'));
    let mut explained: Vec<_> =
        cells.flat_map(|cell| cell.split(", ")).map(|word| word.trim_matches('`').to_owned()).collect();
    let mut words: Vec<_> = tw_request::miss_reason::MissReason::words().map(str::to_owned).collect();
    explained.sort();
    words.sort();
    assert_eq!(explained, words);
}

#[test]
fn example_of_webdav_invalidates() {
    let (origin, _) = counting(|conn, head, nth| {
        if head.starts_with("PUT ") {
            assert!(head.contains("\r\nHost: localhost\r\n"), "{head}");
        }
        conn.answer("", format!("{nth}"));
    });
    let server = example("WebDAV", origin);
    request(&server, "GET /file", &[]);
    request(&server, "GET /other", &[]);
    let file = wait_for_hit(&server, "/file").text();
    let other = wait_for_hit(&server, "/other").text();
    assert_eq!(request(&server, "PUT /file", &["Content-Length: 0"]).status, 200);
    let is_new = || request(&server, "GET /file", &[]).text() != file;
    assert!(wait::until(wait::TIMEOUT, is_new), "{}", server.error_log());
    assert_eq!(wait_for_hit(&server, "/other").text(), other);
}

#[test]
fn example_of_logging_logs_cache_decisions() {
    let (origin, _) = counting(|conn, head, _| match path(head) {
        "/own" => conn.answer("Cache-Control: private\r\n", "own"),
        _ => conn.answer("", "all"),
    });
    let server = example("Cache status and logging", origin);
    request(&server, "GET /own", &[]);
    request(&server, "GET /a", &[]);
    let lines = server.access_log(2).unwrap();
    assert!(lines[0].contains("cache=MISS age=- why=private "), "{lines:?}");
    assert!(
        lines[1].contains("cache=MISS age=- why=- ") && lines[1].ends_with("key=\"localhost/a\""),
        "{lines:?}"
    );
    wait_for_hit(&server, "/a");
    let page = request(&server, "GET /metrics", &[]).text();
    let counter = "\ntailwater_cache_responses_total{cache=\"seen\",status=\"HIT\"} ";
    assert!(page.contains(counter), "{page}");
}
