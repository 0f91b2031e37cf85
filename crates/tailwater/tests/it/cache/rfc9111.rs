//! `proxy_cache_rfc9111`: one rule of RFC 9111, 9211 or 9213 after the other, in front of an origin that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tw_testkit::origin::{Conn, counting};
use tw_testkit::{Response, Server, wait};

use crate::support::cache::wait_stored;
use crate::support::{server, start};

struct Front {
    server: Server,
    request_count: Arc<AtomicUsize>,
}

/// A server with `proxy_cache_rfc9111` in front of an origin whose function gets the head and the number of each
/// request.
fn front(more: &str, answer: impl Fn(&mut Conn, &str, usize) + Send + Sync + Clone + 'static) -> Front {
    let (addr, request_count) = counting(answer);
    let conf = format!(
        "proxy_cache_path cache keys_zone=one:1m;
         server {{ listen 127.0.0.1:{{port}};
             location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_rfc9111 on;
                 proxy_cache_status edge; {more} }}
             location = /metrics {{ metrics; }} }}"
    );
    Front { server: start(server().with_master(), &conf), request_count }
}

impl Front {
    fn request(&self, head: &str) -> Response {
        let mut client = self.server.connect().unwrap();
        client.send(format!("{head}Host: localhost\r\nConnection: close\r\n\r\n")).unwrap();
        if head.starts_with("HEAD ") { client.read_head().unwrap() } else { client.read_response().unwrap() }
    }

    fn get(&self, path: &str, fields: &str) -> Response {
        self.request(&format!("GET {path} HTTP/1.1\r\n{fields}"))
    }

    /// Sends a `GET`, and waits until so many responses are stored.
    fn store(&self, path: &str, count: usize) -> Response {
        let response = self.get(path, "");
        wait_stored(&self.server, count);
        response
    }

    fn request_count(&self) -> usize {
        self.request_count.load(SeqCst)
    }
}

fn cache_status(response: &Response) -> &str {
    response.field("Cache-Status").unwrap_or_default()
}

#[test]
fn age_replaces_the_stored_age_section_5_1() {
    let front = front("", |conn, _, _| conn.answer("Cache-Control: max-age=600\r\nAge: 100\r\n", "a"));
    front.store("/", 1);
    let hit = front.get("/", "");
    let ages: Vec<u32> = hit.values("Age").map(|age| age.parse().unwrap()).collect();
    assert!(matches!(ages[..], [100..=160]), "{ages:?}");
    assert!(cache_status(&hit).starts_with("edge; hit; ttl="), "{}", cache_status(&hit));
}

#[test]
fn request_directives_are_kept_section_5_2_1() {
    let front = front("", |conn, _, nth| {
        conn.answer("Cache-Control: max-age=600\r\nETag: \"x\"\r\n", nth.to_string());
    });
    assert_eq!(front.get("/", "Cache-Control: only-if-cached\r\n").status, 504);
    assert_eq!(front.request_count(), 0);
    front.store("/", 1);
    assert_eq!(front.get("/", "Cache-Control: only-if-cached\r\n").text(), "0");
    for (nth, directive) in ["no-store, no-cache", "min-fresh=700", "no-cache"].iter().enumerate() {
        let response = front.get("/", &format!("Cache-Control: {directive}\r\n"));
        assert_eq!(response.text(), (nth + 1).to_string(), "{directive}");
        assert!(
            cache_status(&response).starts_with("edge; fwd=request; fwd-status=200"),
            "{}",
            cache_status(&response)
        );
    }
}

#[test]
fn authorized_response_is_private_unless_public_section_3_5() {
    let front = front("", |conn, head, nth| {
        let public = if head.contains("/public") { ", public" } else { "" };
        conn.answer(&format!("Cache-Control: max-age=600{public}\r\n"), nth.to_string());
    });
    let secret = "Authorization: Basic eA==\r\n";
    assert!(cache_status(&front.get("/", secret)).ends_with("detail=authorization"));
    assert_eq!(front.get("/", secret).text(), "1");
    assert!(cache_status(&front.get("/public", secret)).contains("; stored"));
}

#[test]
fn status_304_updates_the_stored_response_section_4_3_4() {
    let front = front("", |conn, head, nth| match nth {
        0 => conn.answer("Cache-Control: no-cache\r\nETag: \"x\"\r\nX-Odd: old\r\n", "body"),
        _ => {
            assert!(head.contains("If-None-Match: \"x\"\r\n"), "{head}");
            conn.send("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nX-Odd: new\r\nCache-Control: max-age=600\r\n\r\n");
        }
    });
    front.store("/", 1);
    let validated = front.get("/", "");
    assert_eq!((validated.text(), validated.field("X-Odd")), ("body".to_owned(), Some("new")));
    assert!(
        cache_status(&validated).starts_with("edge; fwd=stale; fwd-status=304"),
        "{}",
        cache_status(&validated)
    );
    let is_hit = || cache_status(&front.get("/", "")).starts_with("edge; hit");
    assert!(wait::until(wait::TIMEOUT, is_hit));
    assert_eq!(front.get("/", "").field("X-Odd"), Some("new"));
}

#[test]
fn unsafe_methods_invalidate_section_4_4() {
    let front = front("", |conn, head, nth| {
        if head.starts_with("POST ") {
            conn.send("HTTP/1.1 201 Created\r\nLocation: /b?x\r\nContent-Length: 0\r\n\r\n")
        } else {
            conn.answer("Cache-Control: max-age=600\r\n", nth.to_string())
        }
    });
    for (nth, path) in ["/a", "/b?x", "/c"].iter().enumerate() {
        front.store(path, nth + 1);
    }
    let post = front.request("POST /a HTTP/1.1\r\nContent-Length: 0\r\n");
    assert_eq!((post.status, cache_status(&post)), (201, "edge; fwd=method; fwd-status=201"));
    let texts = ["/c", "/a", "/b?x"].map(|path| front.get(path, "").text());
    assert_eq!(texts, ["2", "4", "5"]);
}

#[test]
fn targeted_fields_have_precedence_rfc9213() {
    let front = front("proxy_cache_targeted CDN-Cache-Control;", |conn, _, nth| {
        conn.answer("Cache-Control: no-store\r\nCDN-Cache-Control: max-age=600\r\n", nth.to_string());
    });
    front.store("/", 1);
    assert_eq!(front.get("/", "").text(), "0");
}

#[test]
fn must_revalidate_is_never_used_stale_section_5_2_2_2() {
    let front = front("proxy_cache_use_stale http_500;", |conn, head, nth| match nth {
        0 | 1 => {
            let more = if head.contains("/must") { ", must-revalidate" } else { "" };
            conn.answer(&format!("Cache-Control: max-age=600{more}\r\nAge: 599\r\nETag: \"x\"\r\n"), "kept");
        }
        _ => conn.send("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
    });
    front.store("/must", 1);
    front.store("/may", 2);
    assert!(wait::until(wait::TIMEOUT, || front.get("/must", "").status == 500));
    assert!(
        wait::until(wait::TIMEOUT, || cache_status(&front.get("/may", "")).starts_with("edge; fwd=stale"))
    );
    assert_eq!(front.get("/may", "").text(), "kept");
}

#[test]
fn max_stale_accepts_a_stale_response_section_5_2_1_2() {
    let front = front("", |conn, head, nth| {
        let more = if head.contains("/must") { ", must-revalidate" } else { "" };
        conn.answer(
            &format!("Cache-Control: max-age=600{more}\r\nAge: 599\r\nETag: \"x\"\r\n"),
            nth.to_string(),
        );
    });
    front.store("/may", 1);
    front.store("/must", 2);
    // The stored responses are stale within two seconds. Until then these requests reach the origin once, if at all,
    // and what it responds is not stored.
    let is_stale = |path: &str| {
        let fresh = front.get(path, "Cache-Control: only-if-cached\r\n");
        fresh.status == 504
    };
    let are_stale = wait::until(wait::TIMEOUT, || is_stale("/may") && is_stale("/must"));
    let responses = ["/may", "/must"].map(|path| front.get(path, "Cache-Control: only-if-cached\r\n"));
    assert!(are_stale, "{responses:?}");
    let before = front.request_count();
    let accepted = front.get("/may", "Cache-Control: max-stale=100\r\n");
    assert_eq!(
        (accepted.text(), front.request_count()),
        ("0".to_owned(), before),
        "{}",
        cache_status(&accepted)
    );
    let ttl = cache_status(&accepted).strip_prefix("edge; hit; ttl=").and_then(|ttl| ttl.parse::<i64>().ok());
    assert!(ttl.is_some_and(|ttl| ttl <= 0), "{}", cache_status(&accepted));
    let refused = front.get("/must", "Cache-Control: max-stale=100, only-if-cached\r\n");
    assert_eq!(refused.status, 504, "{}", cache_status(&refused));
}

#[test]
fn head_is_answered_from_a_stored_get_section_4() {
    let front = front("", |conn, head, nth| {
        let field = "Cache-Control: max-age=600\r\nX-Nth: ";
        if head.starts_with("HEAD ") {
            conn.send(format!("HTTP/1.1 200 OK\r\n{field}{nth}\r\nContent-Length: 3\r\n\r\n"))
        } else {
            conn.answer(&format!("{field}{nth}\r\n"), "abc")
        }
    });
    // The upstream server is asked with GET for it (proxy_cache_convert_head), and both are answered from then on.
    let first = front.request("HEAD / HTTP/1.1\r\n");
    assert_eq!((first.status, first.field("Content-Length")), (200, Some("3")));
    wait_stored(&front.server, 1);
    assert!(cache_status(&front.get("/", "")).starts_with("edge; hit"));
    let head = front.request("HEAD / HTTP/1.1\r\n");
    assert_eq!((head.field("X-Nth"), head.field("Content-Length")), (Some("0"), Some("3")));
    assert!(cache_status(&head).starts_with("edge; hit"), "{}", cache_status(&head));
    assert_eq!((front.get("/", "").text(), front.request_count()), ("abc".to_owned(), 1));
}

#[test]
fn ranges_are_served_from_the_whole_and_not_stored_section_3_3() {
    let front = front("", |conn, head, _| {
        let field = "Cache-Control: max-age=600\r\nETag: \"x\"\r\n";
        // The origin sends a part of this path whatever was requested.
        if head.contains("/part") {
            conn.send(format!(
                "HTTP/1.1 206 Partial Content\r\n{field}Content-Range: bytes 2-3/10\r\nContent-Length: 2\r\n\r\n23"
            ))
        } else {
            conn.answer(field, "0123456789")
        }
    });
    front.store("/whole", 1);
    let part = front.get("/whole", "Range: bytes=2-3\r\n");
    assert_eq!(
        (part.status, part.text(), part.field("Content-Range")),
        (206, "23".into(), Some("bytes 2-3/10"))
    );
    assert!(cache_status(&part).starts_with("edge; hit"), "{}", cache_status(&part));
    assert_eq!(front.request_count(), 1);
    for request_count in [2, 3] {
        let part = front.get("/part", "Range: bytes=2-3\r\n");
        assert_eq!((part.status, part.text(), front.request_count()), (206, "23".into(), request_count));
        assert!(!cache_status(&part).contains("stored"), "{}", cache_status(&part));
    }
}

#[test]
fn concurrent_requests_are_collapsed_section_4() {
    let (release, released) = std::sync::mpsc::channel();
    let released = Arc::new(std::sync::Mutex::new(released));
    let lock = "proxy_cache_lock on; proxy_cache_lock_timeout 1h; proxy_cache_lock_age 1h;";
    let front = front(lock, move |conn, _, nth| {
        let _ = released.lock().unwrap().recv();
        conn.answer("Cache-Control: max-age=600\r\nVary: Accept-Language\r\n", nth.to_string());
    });
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept-Language: de\r\nConnection: close\r\n\r\n";
    let mut clients: Vec<_> = (0..8).map(|_| front.server.connect().unwrap()).collect();
    for client in &mut clients {
        client.send(request).unwrap();
    }
    assert!(wait::until(wait::TIMEOUT, || front.request_count() == 1));
    release.send(()).unwrap();
    let responses: Vec<_> = clients.iter_mut().map(|client| client.read_response().unwrap()).collect();
    assert!(responses.iter().all(|response| response.text() == "0"));
    assert_eq!(front.request_count(), 1);
    let followed = responses.iter().filter(|response| cache_status(response).contains("collapsed")).count();
    let stored = responses.iter().filter(|response| cache_status(response).contains("stored")).count();
    assert!(stored <= 1 && followed + stored <= 8, "{followed} {stored}");
    // A request for another language selects another variant.
    release.send(()).unwrap();
    let other = front.get("/", "Accept-Language: en\r\n");
    assert_eq!(other.text(), "1", "{}", cache_status(&other));
}

#[test]
fn variants_are_validated_separately_section_4_3() {
    let front = front("", |conn, head, nth| {
        let of = if head.contains("Accept-Language: de\r\n") { "de" } else { "en" };
        let fields = format!("Cache-Control: no-cache\r\nVary: Accept-Language\r\nETag: \"{of}\"\r\n");
        match head.contains(&format!("If-None-Match: \"{of}\"\r\n")) {
            true => conn.send(format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n")),
            false => conn.answer(&fields, format!("{of} {nth}")),
        }
    });
    let request = |of: &str| front.get("/", &format!("Accept-Language: {of}\r\n"));
    let validated = |of: &str, text: &str| {
        let is = || {
            let response = request(of);
            cache_status(&response).contains("fwd-status=304") && response.text() == text
        };
        assert!(wait::until(wait::TIMEOUT, is), "{of} {text}: {}", cache_status(&request(of)));
    };
    assert_eq!(request("de").text(), "de 0");
    wait_stored(&front.server, 1);
    validated("de", "de 0");
    let english = request("en").text();
    wait_stored(&front.server, 2);
    validated("en", &english);
    validated("de", "de 0");
    validated("en", &english);
}

#[test]
fn etag_has_precedence_over_last_modified_rfc9110_section_13_2_2() {
    const OLDER: &str = "If-Modified-Since: Sat, 05 Nov 1994 08:49:37 GMT\r\n";
    let front = front("", |conn, _, _| {
        let modified = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        conn.answer(&format!("Cache-Control: max-age=600\r\nETag: \"x\"\r\n{modified}"), "a");
    });
    front.store("/", 1);
    let table = [
        (format!("If-None-Match: \"x\"\r\n{OLDER}"), 304),
        (format!("If-None-Match: \"y\"\r\n{OLDER}"), 200),
        (OLDER.to_owned(), 200),
    ];
    for (fields, status) in table {
        assert_eq!(front.get("/", &fields).status, status, "{fields}");
    }
    assert_eq!(front.request_count(), 1);
}

#[test]
fn expires_in_another_time_zone_is_in_the_past_section_4_2() {
    let front = front("", |conn, head, _| {
        let zone = head.strip_prefix("GET /").and_then(|rest| rest.split(' ').next()).unwrap();
        let expires = format!("Expires: Tue, 06 Nov 2096 08:49:37 {zone}\r\n");
        conn.answer(&expires, "a");
    });
    for zone in ["UTC", "AEST"] {
        for _ in 0..2 {
            let response = front.get(&format!("/{zone}"), "");
            assert!(!cache_status(&response).contains("hit"), "{zone}: {}", cache_status(&response));
        }
    }
    front.store("/GMT", 1);
    assert!(cache_status(&front.get("/GMT", "")).starts_with("edge; hit"));
    assert_eq!(front.request_count(), 5);
}

#[test]
fn media_type_is_stored_as_written() {
    let front = front("", |conn, _, _| {
        conn.answer("Cache-Control: max-age=600\r\nContent-Type: text/plain;charset=utf-8\r\n", "a");
    });
    for _ in 0..2 {
        let response = front.store("/", 1);
        assert_eq!(response.field("Content-Type"), Some("text/plain;charset=utf-8"));
    }
    assert_eq!(front.request_count(), 1);
}
