//! `slice`: responses of a server behind this one, fetched and cached in parts of one size.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tw_testkit::origin::{Conn, origin};
use tw_testkit::{Client, Server, wait};

use crate::support::cache::cache_status;
use crate::support::cache::wait_stored;
use crate::support::metrics::metric_sum;
use crate::support::{get, raw, refusal, request, server, start, start_server, try_request};

/// Content of the origin: each byte tells its position.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + (at % 23) as u8).collect()
}

/// An origin that serves ranges, and records them.
#[derive(Clone)]
struct Ranged {
    addr: SocketAddr,
    /// The paths and the ranges, in order; empty for the whole.
    requests: Arc<Mutex<Vec<String>>>,
}

/// First byte of a range and the byte behind its end.
fn range(head: &str) -> Option<(usize, usize)> {
    let line = head.lines().find_map(|line| line.strip_prefix("Range: bytes="))?;
    let (first, last) = line.split_once('-')?;
    Some((first.parse().ok()?, last.parse::<usize>().map_or(usize::MAX, |last| last + 1)))
}

impl Ranged {
    /// Serves `content` under every path, with these field lines beside those of the range.
    fn new(content: Vec<u8>, fields: &'static str) -> Self {
        // Each connection has a copy of the closure, and the content may have a hundred megabytes.
        let content = Arc::new(content);
        Self::answering(move |conn, head| part(conn, head, fields, &content))
    }

    fn answering(answer: impl Fn(&mut Conn, &str) + Send + Sync + Clone + 'static) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let noted = requests.clone();
        let addr = origin(move |mut conn| {
            while let Some(head) = conn.head() {
                let path = head.split(' ').nth(1).unwrap_or_default();
                let range = head.lines().find_map(|line| line.strip_prefix("Range: "));
                noted.lock().unwrap().push(format!("{path} {}", range.unwrap_or_default()));
                answer(&mut conn, &head);
            }
        });
        Self { addr, requests }
    }

    /// Requests since the last call.
    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    /// A server in front of it with these settings in `location /`, and no cache.
    fn sliced(&self, more: &str) -> Server {
        let addr = self.addr;
        start_server(
            server(),
            &format!(
                "location / {{ proxy_pass http://{addr}; proxy_set_header Range $slice_range; {more} }}"
            ),
        )
    }

    /// [`Self::sliced`] with a cache.
    fn cached(&self, more: &str) -> Server {
        let addr = self.addr;
        start(
            server().with_master(),
            &format!(
                "proxy_cache_path cache levels=1:2 keys_zone=one:1m; proxy_cache_key $uri$slice_range; \
                 server {{ listen 127.0.0.1:{{port}}; proxy_set_header Range $slice_range; \
                   location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 200 206 1h; \
                     add_header X-Cache $upstream_cache_status; {more} }} \
                   location = /metrics {{ metrics; }} }}"
            ),
        )
    }
}

/// Answers with the part of `content` that is asked for.
fn part(conn: &mut Conn, head: &str, fields: &str, content: &[u8]) {
    let Some((start, end)) = range(head) else { return conn.answer(fields, content) };
    let end = end.min(content.len());
    let len = content.len();
    if start >= len {
        let unsatisfied = format!("Content-Range: bytes */{len}\r\nContent-Length: 0\r\n\r\n");
        return conn.send(format!("HTTP/1.1 416 Requested Range Not Satisfiable\r\n{unsatisfied}"));
    }
    let last = end - 1;
    let size = end - start;
    let mut said = format!(
        "HTTP/1.1 206 Partial Content\r\nAccept-Ranges: bytes\r\n{fields}\
         Content-Range: bytes {start}-{last}/{len}\r\nContent-Length: {size}\r\n\r\n"
    )
    .into_bytes();
    if !head.starts_with("HEAD ") {
        // Head and body are sent in one write: a second small one would be delayed by Nagle's algorithm.
        said.extend_from_slice(&content[start..end]);
    }
    conn.send(said);
}

/// Requests for these slices of 1000 bytes, as the origin sees them.
fn slices(path: &str, which: impl IntoIterator<Item = usize>) -> Vec<String> {
    which.into_iter().map(|nth| format!("{path} bytes={}-{}", nth * 1000, nth * 1000 + 999)).collect()
}

const ETAG: &str = "ETag: \"x\"\r\nLast-Modified: Mon, 28 Sep 1970 06:00:00 GMT\r\n";

/// Checks that the error log has only notices, and warnings about turns that a busy machine made long.
fn assert_no_errors(server: &Server) {
    let is_usual = |line: &&str| {
        line.contains("[notice]")
            || line.contains("[info]")
            || line.contains("[warn]") && line.contains(": event loop of worker ")
    };
    let log = server.error_log();
    let complaints: Vec<_> = log.lines().filter(|line| !is_usual(line)).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn response_is_assembled_from_slices() {
    let origin = Ranged::new(content(4500), "ETag: \"x\"\r\nX-Odd: a\r\n");
    let server = origin.sliced("slice 1000;");
    let response = get(&server, "/file?a=b");
    assert_eq!((response.status, response.field("Content-Length")), (200, Some("4500")));
    assert_eq!((response.field("Content-Range"), response.field("X-Odd")), (None, Some("a")));
    assert_eq!(response.field("Accept-Ranges"), Some("bytes"));
    assert!(response.body == content(4500));
    assert_eq!(origin.requests(), slices("/file?a=b", 0..5));
    // The connection is as good as before.
    let mut client = server.connect().unwrap();
    for _ in 0..3 {
        client.send("GET /file HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert!(client.read_response().unwrap().body == content(4500));
    }
    assert_no_errors(&server);
}

#[test]
fn only_the_slices_of_a_range_are_fetched() {
    let origin = Ranged::new(content(4500), ETAG);
    let server = origin.sliced("slice 1000;");
    for (requested, part, which) in [
        ("bytes=0-0", 0..1, vec![0]),
        ("bytes=999-1000", 999..1001, vec![0, 1]),
        ("bytes=2345-2346", 2345..2347, vec![2]),
        ("bytes=2000-2999", 2000..3000, vec![2]),
        ("bytes=3999-", 3999..4500, vec![3, 4]),
        ("bytes=4000-99999", 4000..4500, vec![4]),
        // The first slice tells the length of the whole.
        ("bytes=-600", 3900..4500, vec![0, 3, 4]),
        ("bytes=-4500", 0..4500, vec![0, 1, 2, 3, 4]),
    ] {
        let response = request(&server, "GET /", &[&format!("Range: {requested}")]);
        let first = part.start;
        let last = part.end - 1;
        let expected = format!("bytes {first}-{last}/4500");
        assert_eq!(
            (response.status, response.field("Content-Range")),
            (206, Some(&*expected)),
            "{requested}"
        );
        assert!(response.body == content(4500)[part], "{requested}");
        assert_eq!(origin.requests(), slices("/", which), "{requested}");
    }
    // Several ranges are no range.
    let response = request(&server, "GET /", &["Range: bytes=1-2,2001-2002"]);
    assert_eq!((response.status, response.body == content(4500)), (200, true));
    assert_eq!(origin.requests(), slices("/", 0..5));
    let response = request(&server, "GET /", &["Range: bytes=5000-"]);
    assert_eq!((response.status, response.field("Content-Range")), (416, Some("bytes */4500")));
    assert_eq!(origin.requests(), slices("/", [5]));
}

#[test]
fn refused_range_gets_the_whole_response() {
    let origin = Ranged::new(content(2500), ETAG);
    let server = origin.sliced("slice 1000; max_ranges 0;");
    let response = request(&server, "GET /", &["Range: bytes=1500-"]);
    assert_eq!((response.status, response.body == content(2500)), (200, true));
    let mut requests = origin.requests();
    requests.sort();
    // The slice that came first was not the first one.
    assert_eq!(requests, slices("/", [0, 1, 1, 2]));
}

#[test]
fn conditions_and_head_are_answered_from_slices() {
    let origin = Ranged::new(content(2500), ETAG);
    let server = origin.cached("slice 1000;");
    let head = request(&server, "HEAD /", &[]);
    assert_eq!((head.status, head.field("Content-Length"), cache_status(&head)), (200, Some("2500"), "MISS"));
    assert_eq!(origin.requests(), slices("/", [0]));
    wait_stored(&server, 1);
    assert_eq!(request(&server, "GET /", &["If-None-Match: \"x\""]).status, 304);
    assert_eq!(request(&server, "GET /", &["If-Match: \"y\""]).status, 412);
    let one = request(&server, "GET /", &["Range: bytes=1500-1501", "If-Range: \"x\""]);
    assert_eq!((one.status, one.body == content(2500)[1500..1502]), (206, true));
    // The first fetched slice gives the entity tag that If-Range is compared with.
    assert_eq!(origin.requests(), slices("/", [1]));
    wait_stored(&server, 2);
    let all = request(&server, "GET /", &["Range: bytes=1500-1501", "If-Range: \"y\""]);
    assert_eq!((all.status, all.body == content(2500)), (200, true));
    assert_eq!(origin.requests(), slices("/", [2]));
}

#[test]
fn slices_are_cached_one_by_one() {
    let origin = Ranged::new(content(4500), ETAG);
    let server = origin.cached("slice 1000; proxy_cache_lock on;");
    let middle = request(&server, "GET /a", &["Range: bytes=2100-3100"]);
    assert_eq!((middle.status, cache_status(&middle)), (206, "MISS"));
    assert!(middle.body == content(4500)[2100..3101]);
    assert_eq!(origin.requests(), slices("/a", [2, 3]));
    wait_stored(&server, 2);
    let again = request(&server, "GET /a", &["Range: bytes=2500-2501"]);
    assert_eq!((again.status, cache_status(&again)), (206, "HIT"));
    assert!(again.body == content(4500)[2500..2502]);
    assert!(origin.requests().is_empty());
    let all = get(&server, "/a");
    assert_eq!((all.status, cache_status(&all), all.body == content(4500)), (200, "MISS", true));
    assert_eq!(origin.requests(), slices("/a", [0, 1, 4]));
    wait_stored(&server, 5);
    let all = get(&server, "/a");
    assert_eq!((cache_status(&all), all.body == content(4500)), ("HIT", true));
    assert!(origin.requests().is_empty());
    assert_no_errors(&server);
    // Hits are one slice, then two beside three that were fetched, then five. Each slice is timed as a hit of its own.
    let timed = || metric_sum(&server, "cache_hit_seconds_count");
    assert!(wait::until(wait::TIMEOUT, || timed() == 8), "{}", timed());
}

#[test]
fn expired_slice_is_fetched_alone() {
    let origin = Ranged::new(content(2500), "ETag: \"x\"\r\nCache-Control: max-age=1\r\n");
    let server =
        origin.cached("slice 1000; proxy_cache_use_stale updating; proxy_cache_background_update on;");
    assert!(get(&server, "/").body == content(2500));
    wait_stored(&server, 3);
    let known_names = slices("/", 0..3);
    // The slices need not become stale in the same second.
    let mut was_stale = false;
    let mut requests = Vec::new();
    let all_anew = || {
        let response = get(&server, "/");
        assert!(response.body == content(2500));
        was_stale |= cache_status(&response) == "STALE";
        requests.extend(origin.requests());
        was_stale
            && known_names
                .iter()
                .all(|slice| requests.iter().filter(|requested| *requested == slice).count() > 1)
    };
    assert!(wait::until(wait::TIMEOUT, all_anew), "{requests:?}");
    assert!(requests.iter().all(|requested| known_names.contains(requested)), "{requests:?}");
}

#[test]
fn slices_are_fetched_as_the_client_reads() {
    const SLICE: usize = 4 << 20;
    let origin = Ranged::answering(|conn, head| {
        let (start, end) = range(head).unwrap();
        let last = end - 1;
        let len = SLICE * 100;
        conn.send(format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{last}/{len}\r\nContent-Length: {SLICE}\r\n\r\n"
        ));
        conn.send(vec![b'x'; SLICE]);
    });
    let server = origin.sliced("slice 4m;");
    let mut client = server.connect().unwrap().timeout(wait::TIMEOUT);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    assert_eq!(client.read_bytes(1000).unwrap(), vec![b'x'; 1000]);
    // Sockets hold about ten megabytes. Slices beyond that are requested later, not a hundred in advance.
    assert!(!wait::until(Duration::from_millis(300), || origin.requests.lock().unwrap().len() > 10));
    // Each read has its own timeout: a busy machine may need long for all of them.
    (0..20).for_each(|_| drop(client.read_bytes(SLICE).unwrap()));
    let count = origin.requests().len();
    assert!((21..=31).contains(&count), "{count}");
}

#[test]
fn wrong_range_from_the_origin_is_an_error() {
    let origin = Ranged::answering(|conn, head| {
        let path = head.split(' ').nth(1).unwrap();
        let nth = range(head).unwrap().0 / 1000;
        let body = vec![b'x'; 1000];
        let respond = |conn: &mut Conn, fields: &str, body: &[u8]| {
            let len = body.len();
            conn.send(format!("HTTP/1.1 206 Partial Content\r\n{fields}\r\nContent-Length: {len}\r\n\r\n"));
            conn.send(body);
        };
        let good = format!("Content-Range: bytes {}-{}/3000", nth * 1000, nth * 1000 + 999);
        match (path, nth) {
            ("/status", 1) => conn.answer("", &body),
            ("/etag", _) => respond(conn, &format!("{good}\r\nETag: \"{nth}\""), &body),
            ("/no-etag", 0) => respond(conn, &format!("{good}\r\nETag: \"x\""), &body),
            ("/none", 0) => respond(conn, "X-Odd: a", &body),
            ("/bad", 0) => respond(conn, "Content-Range: bytes", &body),
            ("/length", 0) => respond(conn, "Content-Range: bytes 0-999/*", &body),
            ("/wider", 0) => respond(conn, "Content-Range: bytes 0-1000/3000", &body),
            ("/other", 0) => respond(conn, "Content-Range: bytes 1-1000/3000", &body),
            ("/grown", 1) => respond(conn, "Content-Range: bytes 1000-1999/3001", &body),
            ("/shorter", 1) => respond(conn, &good, &body[1..]),
            ("/longer", 1) => respond(conn, &good, &[b'x'; 1001]),
            _ => respond(conn, &good, &body),
        }
    });
    let server = origin.sliced("slice 1000;");
    assert_eq!(get(&server, "/good").body, vec![b'x'; 3000]);
    for (path, sent, said) in [
        ("/status", 1000, "unexpected status code 200 in slice response"),
        ("/etag", 1000, "etag mismatch in slice response"),
        ("/no-etag", 1000, "etag mismatch in slice response"),
        ("/none", 0, "invalid range in slice response"),
        ("/bad", 0, "invalid range in slice response"),
        ("/length", 0, "no complete length in slice response"),
        ("/wider", 0, "unexpected range in slice response: 0-1001, expected: 0-1000"),
        ("/other", 0, "unexpected range in slice response: 1-1001, expected: 0-1000"),
        ("/grown", 1000, "unexpected complete length in slice response: 3001, expected: 3000"),
        ("/shorter", 1999, "slice response is shorter than its range"),
        ("/longer", 2000, "slice response is longer than its range"),
    ] {
        let got = raw(&server, format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let body = got.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
        // Bytes with an error are never sent, and all in front of them may have been.
        assert!(body <= sent && (sent > 0) != got.is_empty(), "{path} {body} {got}");
        let request = format!("request: \"GET {path} HTTP/1.1\"");
        let is_told =
            || server.error_log().lines().any(|line| line.contains(said) && line.contains(&request));
        assert!(wait::until(wait::TIMEOUT, is_told), "{path} {}", server.error_log());
    }
}

/// An origin with two versions of one content, and a flag that switches to the second one.
fn changing_origin() -> (Ranged, Arc<AtomicBool>) {
    let is_new = Arc::new(AtomicBool::new(false));
    let serves_new = is_new.clone();
    let origin = Ranged::answering(move |conn, head| {
        if serves_new.load(SeqCst) {
            part(conn, head, "ETag: \"new\"\r\n", &[b'n'; 3000])
        } else {
            part(conn, head, "ETag: \"old\"\r\n", &[b'o'; 3000])
        }
    });
    (origin, is_new)
}

#[test]
fn stored_slices_of_an_older_version_are_fetched_anew() {
    let (origin, is_new) = changing_origin();
    let server = origin.cached("slice 1000;");
    assert!(request(&server, "GET /a", &["Range: bytes=1000-2999"]).body == [b'o'; 2000]);
    wait_stored(&server, 2);
    is_new.store(true, SeqCst);
    assert!(get(&server, "/a").body == [b'n'; 3000]);
    wait_stored(&server, 5);
    origin.requests();
    assert!(get(&server, "/a").body == [b'n'; 3000]);
    assert_eq!(origin.requests(), Vec::<String>::new(), "{}", server.error_log());
}

#[test]
fn changed_slice_behind_stored_ones_ends_one_response_only() {
    let (origin, is_new) = changing_origin();
    let server = origin.cached("slice 1000;");
    assert!(request(&server, "GET /a", &["Range: bytes=0-1999"]).body == [b'o'; 2000]);
    wait_stored(&server, 2);
    is_new.store(true, SeqCst);
    assert!(try_request(&server, "GET /a", &[]).is_err());
    let complaint = "etag mismatch in slice response";
    assert!(wait::until(wait::TIMEOUT, || server.error_log().contains(complaint)));
    assert!(get(&server, "/a").body == [b'n'; 3000]);
}

#[test]
fn slices_of_two_versions_are_never_mixed() {
    // Two servers share a name, and only one of them has the new version.
    let nth = Arc::new(AtomicUsize::new(0));
    let agree = Arc::new(AtomicBool::new(false));
    let is_agreed = agree.clone();
    let origin = Ranged::answering(move |conn, head| {
        let is_odd = nth.fetch_add(1, SeqCst) % 2 == 1;
        if is_odd || is_agreed.load(SeqCst) {
            part(conn, head, "ETag: \"new\"\r\n", &[b'n'; 3000])
        } else {
            part(conn, head, "ETag: \"old\"\r\n", &[b'o'; 3000])
        }
    });
    let server = origin.cached("slice 1000;");
    for _ in 0..4 {
        assert!(try_request(&server, "GET /a", &[]).is_err());
        // Neither the slice that does not fit is kept nor the one before it.
        assert_eq!(origin.requests(), slices("/a", 0..2));
    }
    agree.store(true, SeqCst);
    assert!(get(&server, "/a").body == [b'n'; 3000]);
}

#[test]
fn slice_of_another_length_is_not_kept() {
    let is_new = Arc::new(AtomicBool::new(false));
    let serves_new = is_new.clone();
    let origin = Ranged::answering(move |conn, head| {
        // Without an entity tag, only the length reveals the change.
        let len = if serves_new.load(SeqCst) { 3500 } else { 3000 };
        part(conn, head, "", &content(len));
    });
    let server = origin.cached("slice 1000;");
    assert!(request(&server, "GET /a", &["Range: bytes=0-1999"]).body == content(3000)[..2000]);
    wait_stored(&server, 2);
    is_new.store(true, SeqCst);
    assert!(try_request(&server, "GET /a", &[]).is_err());
    assert!(get(&server, "/a").body == content(3500));
}

#[test]
fn status_412_and_416_have_no_cache_fields() {
    let origin = Ranged::new(
        content(2500),
        "Cache-Control: max-age=3600\r\nCDN-Cache-Control: max-age=3600\r\nETag: \"a\"\r\n\
         Expires: Thu, 31 Dec 2037 23:55:55 GMT\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
    );
    let server = origin.cached("slice 1000;");
    // Fetched for that, and stored before.
    for _ in 0..2 {
        for (field, expected) in [("If-Match: \"b\"", 412), ("Range: bytes=2600-", 416)] {
            let response = request(&server, "GET /a", &[field]);
            assert_eq!(response.status, expected);
            for name in ["Cache-Control", "CDN-Cache-Control", "Expires", "ETag", "Last-Modified"] {
                assert_eq!(response.field(name), None, "{field}");
            }
        }
        get(&server, "/a");
        wait_stored(&server, 3);
    }
}

#[test]
fn slice_that_its_key_does_not_name_is_not_stored() {
    let origin = Ranged::answering(|conn, head| {
        conn.send("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1-2/10\r\nContent-Length: 2\r\n\r\n");
        if !head.starts_with("HEAD ") {
            conn.send("xx");
        }
    });
    let server = origin.cached("slice 2;");
    for count in 1..=2 {
        assert_eq!(raw(&server, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"), "");
        assert_eq!(origin.requests.lock().unwrap().len(), count);
    }
    wait_stored(&server, 0);
}

#[test]
fn response_of_an_origin_without_ranges_is_passed() {
    let origin = Ranged::answering(|conn, head| match head.split(' ').nth(1).unwrap() {
        "/missing" => conn.send("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nlost"),
        _ => conn.answer("", content(2500)),
    });
    let server = origin.sliced("slice 1000;");
    let response = get(&server, "/");
    assert_eq!((response.status, response.body == content(2500)), (200, true));
    let response = get(&server, "/missing");
    assert_eq!((response.status, response.text().as_str()), (404, "lost"));
    assert_eq!(origin.requests(), ["/ bytes=0-999", "/missing bytes=0-999"]);
}

#[test]
fn slice_without_slice_range_has_no_effect() {
    let origin = Ranged::new(content(2500), ETAG);
    let server =
        start_server(server(), &format!("location / {{ slice 1000; proxy_pass http://{}; }}", origin.addr));
    let response = request(&server, "GET /", &["Range: bytes=5-6"]);
    assert_eq!((response.status, response.field("Content-Range")), (206, Some("bytes 5-6/2500")));
    assert_eq!(origin.requests(), ["/ bytes=5-6"]);
    // Without slices, the variable is empty.
    let server = origin.sliced("add_header X-Range <$slice_range>;");
    let response = request(&server, "GET /", &["Range: bytes=5-6"]);
    assert_eq!((response.status, response.field("X-Range")), (200, Some("<>")));
    assert_eq!(origin.requests(), ["/ "]);
}

#[test]
fn subrequests_are_not_sliced() {
    let origin = Ranged::new(content(2500), "Content-Type: text/html\r\n");
    let addr = origin.addr;
    let server = start_server(
        server().file("html/page.html", "<<!--# include virtual=\"/part\" -->>"),
        &format!(
            "ssi on; slice 1000; location / {{ }} \
             location /part {{ proxy_pass http://{addr}; proxy_set_header Range $slice_range; }}"
        ),
    );
    let response = get(&server, "/page.html");
    assert_eq!(response.text(), format!("<{}>", String::from_utf8(content(2500)).unwrap()));
    assert_eq!(origin.requests(), ["/part "]);
}

#[test]
fn filters_see_one_body_of_all_slices() {
    let mut whole = content(2500);
    whole[998..1002].copy_from_slice(b"THIS");
    let expected = String::from_utf8(whole.clone()).unwrap().replace("THIS", "that one");
    let origin = Ranged::new(whole, "Content-Type: text/html\r\n");
    let server = origin.sliced("slice 1000; sub_filter THIS 'that one'; gzip on; gzip_min_length 1;");
    assert_eq!(get(&server, "/").text(), expected);
    let packed = request(&server, "GET /", &["Accept-Encoding: gzip", "Range: bytes=1500-"]);
    assert_eq!((packed.status, packed.field("Content-Encoding")), (200, Some("gzip")));
}

#[test]
fn slices_stay_in_the_location_of_their_response() {
    let origin = Ranged::new(content(2500), ETAG);
    let addr = origin.addr;
    let server = start_server(
        server(),
        &format!(
            "slice 1000; proxy_set_header Range $slice_range; error_page 404 = @other; \
             location @other {{ proxy_pass http://{addr}/named$uri; }} \
             location ~ ^/re/(.+)$ {{ proxy_pass http://{addr}/$1; }} \
             location /moved/ {{ rewrite ^/moved/(.*) /kept/$1 break; proxy_pass http://{addr}; }} \
             location /if/ {{ if ($arg_a) {{ proxy_pass http://{addr}; }} }}"
        ),
    );
    for (target, path) in
        [("/none", "/named/none"), ("/re/a/b", "/a/b"), ("/moved/a", "/kept/a"), ("/if/a?a=1", "/if/a?a=1")]
    {
        let response = get(&server, target);
        assert_eq!((response.status, response.body == content(2500)), (200, true), "{target}");
        assert_eq!(origin.requests(), slices(path, 0..3), "{target}");
    }
}

#[test]
fn many_slices_do_not_exceed_the_subrequest_limit() {
    let origin = Ranged::new(content(12_000), "");
    let server = origin.sliced("slice 1;");
    let mut client = Client::connect(server.addr()).unwrap().timeout(wait::TIMEOUT * 6);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(client.read_response().unwrap().body == content(12_000));
    assert_eq!(origin.requests().len(), 12_000);
}

#[test]
fn closed_client_connection_ends_the_fetching() {
    let origin = Ranged::new(content(100_000_000), "");
    let server = origin.sliced("slice 1m;");
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.read_bytes(1000).unwrap();
    drop(client);
    assert_eq!(server.access_log(1).unwrap().len(), 1);
    let count = origin.requests().len();
    assert!(count < 60, "{count}");
}

#[test]
fn malformed_directives_are_refused() {
    for (text, said) in [
        ("slice x;", "\"slice\" directive invalid value"),
        ("slice 1m; slice 2m;", "\"slice\" directive is duplicate"),
        ("slice;", "invalid number of arguments in \"slice\" directive"),
    ] {
        let refused = refusal(text);
        assert!(refused.contains(said), "{refused}");
    }
}
