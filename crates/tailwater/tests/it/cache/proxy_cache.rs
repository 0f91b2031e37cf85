//! `proxy_cache`: lookup, variants, `proxy_cache_lock`, stale responses, revalidation, eviction and
//! `proxy_cache_purge`.

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;

use tw_testkit::origin::counting;
use tw_testkit::{Response, Server, wait};

use crate::support::cache::{cache_status, wait_stored};
use crate::support::files::files_below;
use crate::support::get;
use crate::support::metrics::{metric, metric_sum};
use crate::support::{server, start};

/// An origin that counts requests, and puts the number into its body.
struct Counting {
    addr: SocketAddr,
    request_count: Arc<AtomicUsize>,
}

impl Counting {
    /// Answers with these field lines.
    fn new(fields: &'static str) -> Self {
        Self::answering(move |conn, head, nth| {
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            conn.answer(fields, format!("{path} {nth}"));
        })
    }

    fn answering(
        answer: impl Fn(&mut tw_testkit::origin::Conn, &str, usize) + Send + Sync + Clone + 'static,
    ) -> Self {
        let (addr, request_count) = counting(answer);
        Self { addr, request_count }
    }

    fn request_count(&self) -> usize {
        self.request_count.load(SeqCst)
    }

    /// A server with a cache in front of it.
    fn cached(&self, more: &str) -> Server {
        self.cached_in("cache levels=1:2 keys_zone=one:1m", more)
    }

    fn cached_in(&self, path: &str, more: &str) -> Server {
        start(
            server().with_master(),
            &format!(
                "proxy_cache_path {path};
                 log_format cached '$request_method $request_uri $status $upstream_cache_status $cache_why';
                 server {{ listen 127.0.0.1:{{port}}; access_log logs/access.log cached;
                     location / {{ proxy_pass http://{}; proxy_cache one; proxy_cache_valid 1h;
                         add_header X-Cache $upstream_cache_status; {more} }}
                     location = /metrics {{ metrics; access_log off; }} }}",
                self.addr
            ),
        )
    }
}

fn request(server: &Server, head: &str) -> Response {
    let mut client = server.connect().unwrap();
    client.send(format!("{head}Host: localhost\r\nConnection: close\r\n\r\n")).unwrap();
    if head.starts_with("HEAD ") { client.read_head().unwrap() } else { client.read_response().unwrap() }
}

/// Every file below the cache's directory.
fn files(server: &Server) -> Vec<PathBuf> {
    files_below(&server.prefix().join("cache"))
}

#[test]
fn second_request_is_a_hit() {
    let origin = Counting::new("X-Odd: a\r\nLast-Modified: Mon, 28 Sep 1970 06:00:00 GMT\r\n");
    let server = origin.cached("");
    let first = get(&server, "/a");
    assert_eq!((cache_status(&first), first.text()), ("MISS", "/a 0".to_owned()));
    wait_stored(&server, 1);
    let second = get(&server, "/a");
    assert_eq!((cache_status(&second), second.text()), ("HIT", "/a 0".to_owned()));
    assert_eq!(second.field("X-Odd"), Some("a"));
    assert_eq!(get(&server, "/b").text(), "/b 1");
    assert_eq!(origin.request_count(), 2);
    wait_stored(&server, 2);
    let paths = files(&server);
    assert_eq!(paths.len(), 2, "{paths:?}");
    // The path is that of nginx: the levels are taken from the end of the MD5 of the key.
    let key = md5(&format!("http://{}/a", origin.addr));
    let place = format!("cache/{}/{}/{key}", &key[31..], &key[29..31]);
    assert!(paths.contains(&server.prefix().join(&place)), "{place} {paths:?}");
    assert_eq!(server.access_log(3).unwrap(), ["GET /a 200 MISS -", "GET /a 200 HIT -", "GET /b 200 MISS -"]);
}

#[test]
fn get_with_a_body_is_cached_only_where_that_is_said() {
    let origin = Counting::answering(|conn, head, nth| {
        let mut body = [0; 1];
        let has_body = head.contains("Content-Length: 1\r\n");
        if has_body {
            conn.reader.read_exact(&mut body).unwrap();
        }
        let body = String::from_utf8_lossy(if has_body { &body } else { b"-" });
        conn.answer("", format!("{body} {nth}"));
    });
    let to = origin.addr;
    let server = origin.cached(&format!(
        "location /key/ {{ proxy_pass http://{to}; proxy_cache_key $uri$request_body; }}
         location /post/ {{ proxy_pass http://{to}; proxy_cache_methods GET POST; }}
         location /off/ {{ proxy_pass http://{to}; proxy_pass_request_body off; proxy_set_header Content-Length ''; }}"
    ));
    let ask = |target: &str, body: &str| {
        let mut client = server.connect().unwrap();
        let length = body.len();
        let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}");
        client.send(head).unwrap();
        client.read_response().unwrap().text()
    };
    assert_eq!(ask("/a", "1"), "1 0");
    assert_eq!(ask("/a", "2"), "2 1");
    assert_eq!(ask("/a", ""), "- 2", "nothing is stored");
    wait_stored(&server, 1);
    assert_eq!(ask("/a", ""), "- 2");
    assert_eq!(ask("/a", "1"), "1 3", "what is stored is not for a request with a body");
    let mut client = server.connect().unwrap();
    client
        .send("GET /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n4\r\n0\r\n\r\n")
        .unwrap();
    assert_eq!(client.read_response().unwrap().text(), "4 4");
    // The key has the body, the configuration caches POST, or the server does not get the body.
    assert_eq!((ask("/key/", "1"), ask("/key/", "2")), ("1 5".into(), "2 6".into()));
    assert_eq!((ask("/post/", "1"), ask("/off/", "1")), ("1 7".into(), "- 8".into()));
    wait_stored(&server, 5);
    assert_eq!((ask("/key/", "1"), ask("/key/", "2")), ("1 5".into(), "2 6".into()));
    assert_eq!((ask("/post/", "2"), ask("/off/", "2")), ("1 7".into(), "- 8".into()));
    let lines = server.access_log(14).unwrap();
    assert_eq!(lines[..3], ["GET /a 200 - request-body", "GET /a 200 - request-body", "GET /a 200 MISS -"]);
}

/// MD5 in hexadecimal, by `md5sum`.
fn md5(text: &str) -> String {
    use std::io::Write;
    let mut child = std::process::Command::new("md5sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout)[..32].to_owned()
}

#[test]
fn entries_survive_restart_and_reload() {
    let origin = Counting::new("");
    let mut server = origin.cached("");
    assert_eq!(get(&server, "/a").text(), "/a 0");
    wait_stored(&server, 1);
    server.signal(tw_testkit::Signal::HUP).unwrap();
    server.wait_error_log("the configuration is taken over").unwrap();
    assert_eq!(get(&server, "/a").text(), "/a 0");
    let files_before = files(&server);
    let kept: Vec<_> = files_before.iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    server.stop().unwrap();
    // A new server finds the files.
    let other =
        origin.cached_in(&format!("{}/cache levels=1:2 keys_zone=one:1m", server.prefix().display()), "");
    let response = get(&other, "/a");
    assert_eq!((cache_status(&response), response.text()), ("HIT", "/a 0".to_owned()));
    assert_eq!(origin.request_count(), 1);
    for (path, content) in kept {
        assert_eq!(fs::read(path).unwrap(), content);
    }
}

#[test]
fn hit_answers_conditions_and_ranges() {
    let origin = Counting::answering(|conn, head, nth| {
        assert!(!head.contains("Range"), "{head}");
        conn.answer(
            "ETag: \"x\"\r\nLast-Modified: Mon, 28 Sep 1970 06:00:00 GMT\r\n",
            format!("0123456789{nth}"),
        );
    });
    let server = origin.cached("");
    // A range request causes the whole response to be fetched.
    let part = request(&server, "GET / HTTP/1.1\r\nRange: bytes=2-4\r\n");
    assert_eq!((part.status, part.text()), (206, "234".to_owned()));
    wait_stored(&server, 1);
    let part = request(&server, "GET / HTTP/1.1\r\nRange: bytes=2-4,6-6\r\n");
    assert_eq!(part.status, 206);
    assert!(part.field("Content-Type").unwrap().starts_with("multipart/byteranges"));
    assert_eq!(request(&server, "GET / HTTP/1.1\r\nIf-None-Match: \"x\"\r\n").status, 304);
    let head = request(&server, "HEAD / HTTP/1.1\r\n");
    assert_eq!((head.status, head.field("Content-Length")), (200, Some("11")));
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn status_412_and_416_have_no_cache_fields() {
    let origin = Counting::new(
        "Cache-Control: max-age=3600\r\nCDN-Cache-Control: max-age=3600\r\nETag: \"a\"\r\n\
         Expires: Thu, 31 Dec 2037 23:55:55 GMT\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
    );
    let server = origin.cached("");
    assert_eq!(get(&server, "/").status, 200);
    for (field, expected) in [("If-Match: \"b\"", 412), ("Range: bytes=100-", 416)] {
        // The response is checked when it comes from the origin, and when it is stored.
        for path in [format!("/{expected}"), "/".to_owned()] {
            let response = request(&server, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n"));
            assert_eq!(response.status, expected, "{path}");
            for name in ["Cache-Control", "CDN-Cache-Control", "Expires", "ETag", "Last-Modified"] {
                assert_eq!(response.field(name), None, "{path} {field}");
            }
        }
    }
}

#[test]
fn status_412_has_no_field_of_the_response() {
    let origin = Counting::new(
        "ETag: \"a\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Encoding: x\r\nContent-Language: de\r\n\
         Content-Disposition: attachment\r\nVary: X-A\r\nX-Up: y\r\n",
    );
    let server = origin.cached("add_header X-Always b always;");
    for path in ["/begun", "/"] {
        for field in ["If-Match: \"b\"", "If-Unmodified-Since: Sat, 05 Nov 1994 08:49:37 GMT"] {
            // The response is checked when it comes from the origin, and when it is stored.
            let response = request(&server, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n"));
            assert_eq!((response.status, response.field("Content-Type")), (412, Some("text/html")), "{path}");
            for name in [
                "ETag",
                "Last-Modified",
                "Content-Encoding",
                "Content-Language",
                "Content-Disposition",
                "Vary",
                "X-Up",
                "Accept-Ranges",
            ] {
                assert_eq!(response.field(name), None, "{path} {field} {name}");
            }
            assert_eq!(response.field("X-Always"), Some("b"), "{path} {field}");
        }
    }
}

#[test]
fn head_fetches_the_whole_response() {
    let origin = Counting::new("");
    let server = origin.cached("");
    let head = request(&server, "HEAD /a HTTP/1.1\r\n");
    assert_eq!((head.status, head.field("Content-Length"), cache_status(&head)), (200, Some("4"), "MISS"));
    wait_stored(&server, 1);
    assert_eq!(get(&server, "/a").text(), "/a 0");
}

#[test]
fn response_fields_decide_what_is_stored() {
    let origin = Counting::answering(|conn, head, nth| {
        let fields = match head.split(' ').nth(1).unwrap() {
            "/private" => "Cache-Control: private\r\n",
            "/no-store" => "Cache-Control: no-store\r\n",
            "/cookie" => "Set-Cookie: a=b\r\n",
            "/star" => "Vary: *\r\n",
            "/zero" => "Cache-Control: max-age=0\r\n",
            "/accel" => "Cache-Control: private\r\nX-Accel-Expires: 100\r\n",
            _ => "",
        };
        conn.answer(fields, nth.to_string());
    });
    let server = origin.cached("");
    for path in ["/private", "/no-store", "/cookie", "/star", "/zero"] {
        for _ in 0..2 {
            assert_eq!(cache_status(&get(&server, path)), "MISS", "{path}");
        }
    }
    assert_eq!(origin.request_count(), 10);
    assert_eq!(cache_status(&get(&server, "/accel")), "MISS");
    wait_stored(&server, 1);
    assert_eq!(cache_status(&get(&server, "/accel")), "HIT");
    let lines = server.access_log(12).unwrap();
    let why: Vec<_> = lines.iter().step_by(2).map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(why, ["private", "no-store", "set-cookie", "vary-star", "max-age", "-"]);
}

#[test]
fn vary_selects_the_variant() {
    let origin = Counting::answering(|conn, head, nth| {
        let language = if head.contains("Accept-Language: de") { "de" } else { "en" };
        conn.answer("Vary: Accept-Language\r\n", format!("{language} {nth}"));
    });
    let server = origin.cached("");
    let of = |language: &str| request(&server, &format!("GET / HTTP/1.1\r\nAccept-Language: {language}\r\n"));
    assert_eq!(of("de").text(), "de 0");
    wait_stored(&server, 1);
    assert_eq!(of("en").text(), "en 1");
    wait_stored(&server, 2);
    assert_eq!((of("de").text(), of("en").text()), ("de 0".to_owned(), "en 1".to_owned()));
    assert_eq!(origin.request_count(), 2);
}

#[test]
fn cache_lock_collapses_concurrent_misses() {
    const CLIENTS: usize = 50;
    let (go, wait_for_go) = channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(wait_for_go));
    let origin = Counting::answering(move |conn, _, nth| {
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n");
        conn.send(vec![b'a' + nth as u8; 100_000]);
        gate.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
        conn.send(vec![b'x'; 200_000]);
    });
    let server = origin.cached("proxy_cache_lock on; proxy_cache_lock_timeout 1h; proxy_cache_lock_age 1h;");
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = server.connect().unwrap().timeout(wait::TIMEOUT);
            client.send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            client
        })
        .collect();
    // Every client gets what has arrived so far, before the rest does.
    for client in &mut clients {
        assert_eq!(client.read_head().unwrap().status, 200);
        assert_eq!(client.read_bytes(100_000).unwrap(), vec![b'a'; 100_000]);
    }
    go.send(()).unwrap();
    for client in &mut clients {
        assert_eq!(client.read_bytes(200_000).unwrap(), vec![b'x'; 200_000]);
    }
    assert_eq!(origin.request_count(), 1);
    assert_eq!(metric(&server, "cache_collapsed_total"), CLIENTS as u64 - 1);
    // A client may have the last byte before that is counted.
    let others = (CLIENTS as u64 - 1) * 300_000;
    let are_counted = || metric(&server, "cache_collapsed_bytes_total") == others;
    assert!(wait::until(wait::TIMEOUT, are_counted), "{}", metric(&server, "cache_collapsed_bytes_total"));
    // The requests had to wait for the origin, not for the cache.
    assert_eq!(metric_sum(&server, "cache_hit_seconds_count"), 0);
    wait_stored(&server, 1);
    assert_eq!(get(&server, "/large").text().len(), 300_000);
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn private_response_ends_the_wait_of_other_requests() {
    let (go, wait_for_go) = channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(wait_for_go));
    let origin = Counting::answering(move |conn, _, nth| {
        if nth == 0 {
            gate.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
        }
        conn.answer("Cache-Control: private\r\n", nth.to_string());
    });
    let server = origin.cached("proxy_cache_lock on; proxy_cache_lock_timeout 1h; proxy_cache_lock_age 1h;");
    let mut clients: Vec<_> = (0..5)
        .map(|_| {
            let mut client = server.connect().unwrap().timeout(wait::TIMEOUT);
            client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            client
        })
        .collect();
    assert!(wait::until(wait::TIMEOUT, || origin.request_count() == 1));
    go.send(()).unwrap();
    let mut bodies: Vec<_> =
        clients.iter_mut().map(|client| client.read_response().unwrap().text()).collect();
    bodies.sort();
    assert_eq!(bodies, ["0", "1", "2", "3", "4"]);
}

#[test]
fn fill_goes_on_when_its_first_client_leaves() {
    let (go, wait_for_go) = channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(wait_for_go));
    let origin = Counting::answering(move |conn, _, nth| {
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n");
        conn.send(vec![b'a'; 100_000]);
        if nth == 0 {
            gate.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
        }
        conn.send(vec![b'b'; 100_000]);
    });
    let server = origin.cached("proxy_cache_lock on;");
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    drop(client);
    go.send(()).unwrap();
    wait_stored(&server, 1);
    assert_eq!(get(&server, "/").text().len(), 200_000);
    assert_eq!(origin.request_count(), 1);
}

#[test]
fn truncated_response_is_not_stored() {
    let origin = Counting::answering(|conn, _, nth| {
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{nth}"));
        conn.reader.get_ref().shutdown(std::net::Shutdown::Both).unwrap();
    });
    let server = origin.cached("");
    for nth in 0..2 {
        let mut client = server.connect().unwrap();
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(client.read_head().unwrap().status, 200);
        assert_eq!(client.read_until_close().unwrap(), nth.to_string().as_bytes());
    }
    server.wait_error_log("upstream prematurely closed connection").unwrap();
    assert!(wait::until(wait::TIMEOUT, || files(&server).is_empty()), "{:?}", files(&server));
    assert_eq!(metric(&server, "cache_stored_total"), 0);
}

#[test]
fn stale_response_is_used_on_origin_error() {
    let origin = Counting::answering(|conn, head, nth| match (nth, head.contains("/error")) {
        (0, _) => conn.answer("Cache-Control: max-age=1\r\n", "first"),
        (_, true) => conn.send("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno"),
        _ => conn.answer("", "other"),
    });
    let server = origin.cached("proxy_cache_use_stale http_500 error; proxy_cache_key a;");
    assert_eq!(get(&server, "/").text(), "first");
    wait_stored(&server, 1);
    let stale = wait::some(wait::TIMEOUT, || {
        let response = get(&server, "/error");
        (cache_status(&response) == "STALE").then_some(response)
    });
    let stale = stale.unwrap();
    assert_eq!((stale.status, stale.text()), (200, "first".to_owned()));
}

#[test]
fn expired_entry_is_revalidated() {
    let origin = Counting::answering(|conn, head, nth| {
        if nth == 0 {
            return conn.answer("ETag: \"x\"\r\nX-Accel-Expires: 1\r\n", "kept");
        }
        assert!(head.contains("If-None-Match: \"x\"\r\n"), "{head}");
        conn.send("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nX-Accel-Expires: 1000\r\n\r\n");
    });
    let server = origin.cached("proxy_cache_revalidate on;");
    assert_eq!(get(&server, "/").text(), "kept");
    wait_stored(&server, 1);
    let again = wait::some(wait::TIMEOUT, || {
        let response = get(&server, "/");
        (cache_status(&response) == "REVALIDATED").then_some(response)
    });
    assert_eq!(again.unwrap().text(), "kept");
    // The revalidated response has the new lifetime, also when its file is opened and read again.
    let is_hit = || {
        server.signal(tw_testkit::Signal::USR1).unwrap();
        cache_status(&get(&server, "/")) == "HIT"
    };
    assert!(wait::until(wait::TIMEOUT, is_hit));
}

#[test]
fn background_update_serves_stale_meanwhile() {
    let origin = Counting::new("Cache-Control: max-age=1\r\n");
    let server = origin.cached("proxy_cache_use_stale updating; proxy_cache_background_update on;");
    assert_eq!(get(&server, "/").text(), "/ 0");
    wait_stored(&server, 1);
    let stale = wait::some(wait::TIMEOUT, || {
        let response = get(&server, "/");
        (cache_status(&response) == "STALE").then_some(response)
    });
    assert_eq!(stale.unwrap().text(), "/ 0");
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/").text() == "/ 1"));
}

#[test]
fn min_uses_bypass_and_no_cache_are_kept() {
    let origin = Counting::new("");
    let server = origin.cached(
        "proxy_cache_min_uses 2; proxy_cache_bypass $arg_bypass; proxy_no_cache $arg_no; proxy_cache_key $uri;",
    );
    assert_eq!((get(&server, "/").text(), get(&server, "/").text()), ("/ 0".to_owned(), "/ 1".to_owned()));
    wait_stored(&server, 1);
    assert_eq!(get(&server, "/").text(), "/ 1");
    let bypassed = get(&server, "/?bypass=1");
    assert_eq!((cache_status(&bypassed), bypassed.text()), ("BYPASS", "/?bypass=1 2".to_owned()));
    wait_stored(&server, 2);
    assert_eq!(get(&server, "/").text(), "/?bypass=1 2");
    for _ in 0..3 {
        assert_eq!(cache_status(&get(&server, "/b?no=1")), "MISS");
    }
}

#[test]
fn bypass_right_after_the_first_fill_leaves_no_gap() {
    for lock in ["off", "on"] {
        let origin = Counting::answering(|conn, _, nth| conn.answer("", vec![b'0' + nth as u8 % 10; 60_000]));
        let server = origin.cached(&format!(
            "proxy_cache_bypass $arg_bypass; proxy_cache_key $uri; proxy_cache_lock {lock};"
        ));
        let mut client = server.connect().unwrap();
        for round in 0..40 {
            let mut get = |query: &str| {
                client.send(format!("GET /{round}{query} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
                client.read_response().unwrap()
            };
            assert_eq!(cache_status(&get("")), "MISS");
            let refreshed = get("?bypass=1");
            assert_eq!(cache_status(&refreshed), "BYPASS");
            for _ in 0..5 {
                let response = get("");
                assert_eq!(cache_status(&response), "HIT", "lock {lock}, round {round}");
                assert_eq!(response.text(), refreshed.text(), "lock {lock}, round {round}");
            }
        }
        assert_eq!(origin.request_count(), 80);
    }
}

#[test]
fn damaged_file_is_a_miss_and_removed() {
    let origin = Counting::new("");
    let server = origin.cached("");
    assert_eq!(get(&server, "/a").text(), "/a 0");
    wait_stored(&server, 1);
    let [path] = &files(&server)[..] else { panic!() };
    let mut content = fs::read(path).unwrap();
    content[20] ^= 1;
    fs::write(path, &content).unwrap();
    // An open file is served as it was; a file that is opened anew is verified.
    server.signal(tw_testkit::Signal::USR1).unwrap();
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/a").text() == "/a 1"));
    assert!(metric(&server, "cache_damaged_total") == 1, "{}", server.error_log());
    wait_stored(&server, 2);
    fs::remove_file(path).unwrap();
    server.signal(tw_testkit::Signal::USR1).unwrap();
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/a").text() == "/a 2"));
}

#[test]
fn max_size_is_kept() {
    let origin = Counting::answering(|conn, _, _| conn.answer("", vec![b'x'; 100_000]));
    let server = origin.cached_in("cache keys_zone=one:1m max_size=1m", "");
    for nth in 0..40 {
        assert_eq!(get(&server, &format!("/{nth}")).text().len(), 100_000);
    }
    wait_stored(&server, 40);
    let is_small = || metric(&server, "cache_bytes") <= 1 << 20 && files(&server).len() <= 10;
    assert!(wait::until(wait::TIMEOUT, is_small), "{}", files(&server).len());
    let of = |name: &str| {
        let text = get(&server, "/metrics").text();
        let line = text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(of("cache_removed_total{cache=\"one\",reason=\"evicted\"}") >= 30);
    assert!(files(&server).len() >= 8, "no more than needed");
}

#[test]
fn inactive_entries_are_removed() {
    let origin = Counting::new("");
    let server = origin.cached_in("cache keys_zone=one:1m inactive=1s", "");
    assert_eq!(cache_status(&get(&server, "/a")), "MISS");
    wait_stored(&server, 1);
    assert!(wait::until(wait::TIMEOUT, || files(&server).is_empty()));
    assert_eq!(metric(&server, "cache_entries"), 0);
}

#[test]
fn chunked_fill_serves_slow_clients() {
    let origin = Counting::answering(|conn, _, _| {
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for nth in 0..100_u8 {
            conn.send("4000\r\n");
            conn.send(vec![nth; 0x4000]);
            conn.send("\r\n");
        }
        conn.send("0\r\n\r\n");
    });
    let server = origin.cached("proxy_cache_lock on;");
    let expected: Vec<u8> = (0..100_u8).flat_map(|nth| vec![nth; 0x4000]).collect();
    let mut slow = server.connect().unwrap().timeout(wait::TIMEOUT);
    slow.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    // A slow client delays neither other clients nor the file.
    wait_stored(&server, 1);
    let mut other = server.connect().unwrap();
    other.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let response = other.read_response().unwrap();
    assert_eq!((cache_status(&response), response.body.len()), ("HIT", expected.len()));
    assert!(response.body == expected && response.field("Content-Length") == Some("1638400"));
    let first = slow.read_response().unwrap();
    assert!(first.body == expected, "{}", first.body.len());
}

#[test]
fn slow_clients_get_all_that_arrived_of_a_stalled_fill() {
    // Half of the body exceeds the socket buffers, with a small piece at the end.
    const HALF: usize = (4 << 20) + 1000;
    const ROUNDS: usize = 8;
    let (go, wait_for_go) = channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(wait_for_go));
    let origin = Counting::answering(move |conn, _, _| {
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 2 * HALF));
        conn.send(vec![b'a'; HALF]);
        gate.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
        conn.send(vec![b'b'; HALF]);
    });
    let server = origin.cached("proxy_cache_lock on; proxy_cache_lock_timeout 1h; proxy_cache_lock_age 1h;");
    for round in 0..ROUNDS {
        let mut clients = [(); 2].map(|()| {
            let mut client = server.connect().unwrap().timeout(wait::TIMEOUT);
            client.send(format!("GET /{round} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
            client
        });
        // The second one takes nothing before the first one has all of it.
        for client in &mut clients {
            assert_eq!(client.read_head().unwrap().status, 200);
            let half = client.read_bytes(HALF);
            assert!(half.is_ok_and(|half| half.iter().all(|byte| *byte == b'a')), "round {round}");
        }
        go.send(()).unwrap();
        for client in &mut clients {
            assert!(client.read_bytes(HALF).unwrap().iter().all(|byte| *byte == b'b'));
        }
    }
    assert_eq!(origin.request_count(), ROUNDS);
}

#[test]
fn cache_names_are_checked() {
    let refused = crate::support::refusal_of(
        "http { server { listen 127.0.0.1:{port}; location / { proxy_pass http://127.0.0.1:1; proxy_cache none; } } }",
    );
    assert!(refused.contains("\"proxy_cache\" zone \"none\" is unknown"), "{refused}");
    let refused = crate::support::refusal_of(
        "http { proxy_cache_path a keys_zone=x:1m; proxy_cache_path b keys_zone=x:1m; server { listen 127.0.0.1:{port}; } }",
    );
    assert!(refused.contains("duplicate zone \"x\""), "{refused}");
    let refused = crate::support::refusal_of(
        "http { proxy_cache_path a inactive=1h; server { listen 127.0.0.1:{port}; } }",
    );
    assert!(refused.contains("must have \"keys_zone\" parameter"), "{refused}");
}

/// A server that purges what `PURGE` names.
fn purging(origin: &Counting, more: &str) -> Server {
    origin.cached(&format!(
        "proxy_cache_key $uri; proxy_cache_purge $http_purge; proxy_cache_tag $upstream_http_surrogate_key;
         proxy_cache_purge_tag $http_tag; {more}"
    ))
}

fn purge(server: &Server, path: &str, fields: &str) -> u16 {
    request(server, &format!("PURGE {path} HTTP/1.1\r\n{fields}")).status
}

#[test]
fn purge_removes_one_response() {
    let origin = Counting::new("");
    let server = purging(&origin, "");
    assert_eq!(
        (get(&server, "/a").text(), get(&server, "/b").text()),
        ("/a 0".to_owned(), "/b 1".to_owned())
    );
    wait_stored(&server, 2);
    assert_eq!(purge(&server, "/a", "Purge: 1\r\n"), 204);
    assert_eq!(files(&server).len(), 1);
    assert_eq!(purge(&server, "/a", "Purge: 1\r\n"), 404);
    assert_eq!(
        (get(&server, "/a").text(), get(&server, "/b").text()),
        ("/a 2".to_owned(), "/b 1".to_owned())
    );
}

#[test]
fn purge_by_prefix_survives_restart() {
    let origin = Counting::new("");
    let mut server = purging(&origin, "");
    for path in ["/a/1", "/a/2", "/b"] {
        get(&server, path);
    }
    wait_stored(&server, 3);
    assert_eq!(purge(&server, "/a/*", "Purge: 1\r\n"), 204);
    assert_eq!(get(&server, "/b").text(), "/b 2");
    assert_eq!(get(&server, "/a/1").text(), "/a/1 3");
    // Purged responses that are not requested are removed in the background.
    assert!(
        wait::until(wait::TIMEOUT, || files(&server).iter().filter(|f| !f.ends_with("purges")).count() == 2)
    );
    wait_stored(&server, 4);
    server.stop().unwrap();
    // A file whose sequence number is larger than the first of the process counts as the oldest. Numbers begin with the
    // start time, so the next process starts in a later second.
    let second = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let then = second();
    assert!(wait::until(wait::TIMEOUT, || second() > then));
    let other = origin.cached_in(
        &format!("{}/cache levels=1:2 keys_zone=one:1m", server.prefix().display()),
        "proxy_cache_key $uri;",
    );
    assert_eq!(
        (get(&other, "/a/1").text(), get(&other, "/a/2").text()),
        ("/a/1 3".to_owned(), "/a/2 4".to_owned())
    );
}

#[test]
fn purge_is_not_undone_by_a_fill_begun_before() {
    for path in ["/a", "/*"] {
        let (go, wait_for_go) = channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(wait_for_go));
        let origin = Counting::answering(move |conn, _, nth| {
            if nth == 0 {
                gate.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
            }
            conn.answer("", format!("{nth}"));
        });
        let server =
            purging(&origin, "proxy_cache_lock on; proxy_cache_lock_age 1h; proxy_cache_lock_timeout 1h;");
        let mut client = server.connect().unwrap().timeout(wait::TIMEOUT);
        client.send("GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert!(wait::until(wait::TIMEOUT, || origin.request_count() == 1));
        purge(&server, path, "Purge: 1\r\n");
        // Later requests do not join the fill that was purged.
        assert_eq!(get(&server, "/a").text(), "1");
        wait_stored(&server, 1);
        go.send(()).unwrap();
        assert_eq!(client.read_response().unwrap().text(), "0");
        assert!(wait::until(wait::TIMEOUT, || metric(&server, "cache_filling") == 0));
        assert_eq!(get(&server, "/a").text(), "1");
    }
}

#[test]
fn tags_are_purged_soft_and_hard() {
    let origin = Counting::answering(|conn, head, nth| {
        let path = head.split(' ').nth(1).unwrap();
        let tag = if path == "/c" { "three" } else { "one, two" };
        if head.contains("/b") && nth > 3 {
            conn.send("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
        } else {
            conn.answer(&format!("Surrogate-Key: {tag}\r\n"), format!("{path} {nth}"))
        }
    });
    let server = purging(&origin, "proxy_cache_use_stale http_500;");
    for path in ["/a", "/b", "/c"] {
        get(&server, path);
    }
    wait_stored(&server, 3);
    assert_eq!(purge(&server, "/", "Purge: soft\r\nTag: two\r\n"), 204);
    assert_eq!((cache_status(&get(&server, "/a")), cache_status(&get(&server, "/c"))), ("EXPIRED", "HIT"));
    let stale = get(&server, "/b");
    assert_eq!((cache_status(&stale), stale.text()), ("STALE", "/b 1".to_owned()));
    assert_eq!(purge(&server, "/", "Purge: 1\r\nTag: nothing two\r\n"), 204);
    assert_eq!((get(&server, "/b").status, cache_status(&get(&server, "/c"))), (500, "HIT"));
}

#[test]
fn background_update_sends_the_original_target() {
    let origin = Counting::new("Cache-Control: max-age=1\r\n");
    let server = origin.cached("proxy_cache_use_stale updating; proxy_cache_background_update on;");
    assert_eq!(get(&server, "/a%6C?b").text(), "/a%6C?b 0");
    let renewed = wait::some(wait::TIMEOUT, || {
        let text = get(&server, "/a%6C?b").text();
        (text != "/a%6C?b 0").then_some(text)
    });
    let renewed = renewed.unwrap_or_else(|| panic!("never renewed: {}", server.error_log()));
    assert!(renewed.starts_with("/a%6C?b "), "{renewed}");
}
