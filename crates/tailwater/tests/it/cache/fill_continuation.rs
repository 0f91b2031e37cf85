//! Fills whose origin stalls or breaks off: a range request continues them for all clients.

use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use tw_testkit::application::{self, ApplicationRequest};
use tw_testkit::http2::Http2;
use tw_testkit::origin::{Conn, counting, origin};
use tw_testkit::{Client, Server, wait};

use crate::support::{server, start};

const CONTENT: &[u8] = b"0123456789";
const TAG: &str = "ETag: \"a\"\r\n";
const LOCK: &str = "proxy_cache_lock on; proxy_cache_lock_timeout 1h; proxy_cache_lock_age 1s;";

fn cached(origin: std::net::SocketAddr, more: &str) -> Server {
    start(
        server().with_master(),
        &format!(
            "proxy_cache_path cache keys_zone=one:1m;
             server {{ listen 127.0.0.1:{{port}}; http2 on;
                 location / {{ proxy_pass http://{origin}; proxy_cache one; proxy_cache_valid 1h;
                     add_header X-Cache $upstream_cache_status; {more} }}
                 location = /metrics {{ metrics; }} }}"
        ),
    )
}

fn head(conn: &mut Conn, fields: &str, len: usize) {
    conn.send(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {len}\r\n\r\n"));
}

/// Answers a request for the range from byte 3 to the end.
fn send_rest(conn: &mut Conn, head: &str, fields: &str) {
    assert!(head.contains("\r\nRange: bytes=3-\r\n") && head.contains("\r\nIf-Range: \"a\"\r\n"), "{head}");
    conn.send(format!("HTTP/1.1 206 Partial Content\r\n{fields}Content-Length: 7\r\n\r\n"));
    conn.send(&CONTENT[3..]);
}

/// Clients that have read the first three bytes, and read on when all have.
fn waiting_clients(server: &Server, count: usize) -> Vec<thread::JoinHandle<Option<Vec<u8>>>> {
    let ready = Arc::new(Barrier::new(count + 1));
    let clients = (0..count).map(|_| {
        let addr = server.addr();
        let ready = ready.clone();
        thread::spawn(move || {
            let mut client = Client::connect(addr).unwrap();
            client.send("GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let response = client.read_head().unwrap();
            assert_eq!((response.status, response.field("Content-Length")), (200, Some("10")));
            let mut body = client.read_bytes(3).unwrap();
            ready.wait();
            body.extend(client.read_bytes(7).ok()?);
            Some(body)
        })
    });
    let clients = clients.collect();
    ready.wait();
    clients
}

fn is_stored(server: &Server) {
    let is_hit = || {
        let response = Client::get(server.addr(), "/a").unwrap();
        response.field("X-Cache") == Some("HIT") && response.text().as_bytes() == CONTENT
    };
    assert!(wait::until(wait::TIMEOUT, is_hit), "{}", server.error_log());
}

/// An origin whose first response stops after three bytes; the test decides how it goes on and how later requests are
/// answered.
fn stalling_origin(
    fields: &'static str,
    then: impl Fn(&mut Conn) + Send + Sync + Clone + 'static,
    later: impl Fn(&mut Conn, &str) + Send + Sync + Clone + 'static,
) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    counting(move |conn, request, nth| match nth {
        0 => {
            head(conn, fields, CONTENT.len());
            conn.send(&CONTENT[..3]);
            then(conn);
        }
        _ => later(conn, request),
    })
}

/// A gate that opens once.
fn gate() -> (Arc<AtomicBool>, impl Fn() + Send + Sync + Clone + 'static) {
    let open = Arc::new(AtomicBool::new(false));
    let seen = open.clone();
    (open, move || assert!(wait::until(wait::TIMEOUT, || seen.load(SeqCst))))
}

fn cut(conn: &mut Conn) {
    let _ = conn.reader.get_ref().shutdown(Shutdown::Both);
}

#[test]
fn broken_fill_is_continued_by_one_range_request() {
    let (open, wait_open) = gate();
    let (addr, request_count) = stalling_origin(
        TAG,
        move |conn| {
            wait_open();
            cut(conn);
        },
        |conn, head| send_rest(conn, head, "ETag: \"a\"\r\nContent-Range: bytes 3-9/10\r\n"),
    );
    let server = cached(addr, LOCK);
    let clients = waiting_clients(&server, 20);
    open.store(true, SeqCst);
    for client in clients {
        assert_eq!(client.join().unwrap().as_deref(), Some(CONTENT), "{}", server.error_log());
    }
    is_stored(&server);
    assert_eq!(request_count.load(SeqCst), 2);
}

/// Gateway to an application: reads a request and writes a response in its protocol.
#[derive(Clone, Copy)]
enum Application {
    Fastcgi,
    Uwsgi,
    Scgi,
}

impl Application {
    fn request(self, conn: &mut Conn) -> Option<ApplicationRequest> {
        match self {
            Self::Fastcgi => conn.fastcgi(),
            Self::Uwsgi => conn.uwsgi(),
            Self::Scgi => conn.scgi(),
        }
    }

    fn respond(self, conn: &mut Conn, output: &str) {
        match self {
            Self::Fastcgi => conn.send(application::record(application::STDOUT, output)),
            Self::Uwsgi | Self::Scgi => conn.send(output),
        }
    }

    fn end(self, conn: &mut Conn) {
        if let Self::Fastcgi = self {
            conn.send(application::response(""));
        }
    }
}

#[test]
fn broken_fill_is_continued_behind_each_kind_of_application() {
    for (application, name) in
        [(Application::Fastcgi, "fastcgi"), (Application::Uwsgi, "uwsgi"), (Application::Scgi, "scgi")]
    {
        let (open, wait_open) = gate();
        let request_count = Arc::new(AtomicUsize::new(0));
        let count = request_count.clone();
        let addr = origin(move |mut conn| {
            let Some(request) = application.request(&mut conn) else { return };
            if count.fetch_add(1, SeqCst) == 0 {
                application
                    .respond(&mut conn, &format!("Status: 200 OK\r\n{TAG}Content-Length: 10\r\n\r\n012"));
                wait_open();
                cut(&mut conn);
                return;
            }
            let said = (request.param("HTTP_RANGE"), request.param("HTTP_IF_RANGE"));
            assert_eq!(said, (Some("bytes=3-"), Some("\"a\"")));
            application.respond(
                &mut conn,
                &format!(
                    "Status: 206 Partial Content\r\n{TAG}Content-Range: bytes 3-9/10\r\nContent-Length: 7\r\n\r\n3456789"
                ),
            );
            application.end(&mut conn);
        });
        let server = start(
            server().with_master(),
            &format!(
                "{name}_cache_path cache keys_zone=one:1m;
                 server {{ listen 127.0.0.1:{{port}};
                     location / {{ {name}_pass {addr}; {name}_cache one; {name}_cache_key $uri; {name}_cache_valid 1h;
                         {name}_cache_lock on; add_header X-Cache $upstream_cache_status; }} }}"
            ),
        );
        let clients = waiting_clients(&server, 5);
        open.store(true, SeqCst);
        for client in clients {
            assert_eq!(client.join().unwrap().as_deref(), Some(CONTENT), "{name}: {}", server.error_log());
        }
        is_stored(&server);
        assert_eq!(request_count.load(SeqCst), 2, "{name}");
    }
}

#[test]
fn clients_of_both_protocols_get_what_continues_a_stalled_fill() {
    let (open, wait_open) = gate();
    let (addr, request_count) = stalling_origin(
        TAG,
        move |_| wait_open(),
        |conn, head| send_rest(conn, head, "ETag: \"a\"\r\nContent-Range: bytes 3-9/10\r\n"),
    );
    let server = cached(addr, LOCK);
    let clients: Vec<_> = (0..6)
        .map(|nth| {
            let addr = server.addr();
            thread::spawn(move || match nth % 2 {
                0 => Client::get(addr, "/a").unwrap().text(),
                _ => Http2::connect(addr).unwrap().get("/a").unwrap().text(),
            })
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().unwrap().as_bytes(), CONTENT, "{}", server.error_log());
    }
    assert_eq!(request_count.load(SeqCst), 2);
    open.store(true, SeqCst);
}

#[test]
fn continuation_of_another_version_is_refused() {
    for (fields, is_weak) in [
        ("ETag: \"b\"\r\nContent-Range: bytes 3-9/10\r\n", false),
        ("ETag: \"a\"\r\nContent-Range: bytes 3-9/11\r\n", false),
        ("ETag: \"a\"\r\nContent-Range: bytes 2-8/10\r\n", false),
        ("", true),
    ] {
        let (open, wait_open) = gate();
        let (addr, request_count) = stalling_origin(
            if is_weak { "ETag: W/\"a\"\r\n" } else { TAG },
            move |conn| {
                wait_open();
                cut(conn);
            },
            move |conn, head| {
                if head.contains("\r\nRange:") {
                    send_rest(conn, head, fields)
                } else {
                    conn.answer(TAG, CONTENT)
                }
            },
        );
        let server = cached(addr, LOCK);
        let clients = waiting_clients(&server, 3);
        open.store(true, SeqCst);
        for client in clients {
            assert_eq!(client.join().unwrap(), None, "{fields}");
        }
        assert_eq!(request_count.load(SeqCst), if is_weak { 1 } else { 2 }, "{fields}");
        let next = Client::get(server.addr(), "/a").unwrap();
        assert_eq!((next.field("X-Cache"), next.text().as_bytes()), (Some("MISS"), CONTENT), "{fields}");
        is_stored(&server);
    }
}

#[test]
fn stalled_fill_is_continued_after_the_lock_age() {
    let (open, wait_open) = gate();
    let (addr, request_count) = stalling_origin(
        TAG,
        move |_| wait_open(),
        |conn, head| send_rest(conn, head, "ETag: \"a\"\r\nContent-Range: bytes 3-9/10\r\n"),
    );
    let server = cached(addr, LOCK);
    for client in waiting_clients(&server, 20) {
        assert_eq!(client.join().unwrap().as_deref(), Some(CONTENT), "{}", server.error_log());
    }
    is_stored(&server);
    assert_eq!(request_count.load(SeqCst), 2);
    open.store(true, SeqCst);
}

#[test]
fn dripping_fill_is_continued_after_the_lock_age() {
    // The origin sends three bytes, and then one byte at a time: the whole would take longer than any client waits.
    const LEN: usize = 100_000;
    let (open, _) = gate();
    let is_over = open.clone();
    let is_dripping = Arc::new(AtomicUsize::new(0));
    let dripped = is_dripping.clone();
    let (addr, request_count) = counting(move |conn, request, nth| {
        if nth == 0 {
            head(conn, TAG, LEN);
            while !is_over.load(SeqCst) && dripped.fetch_add(1, SeqCst) < 1000 {
                conn.send("x");
                wait::pause(Duration::from_millis(50));
            }
            return;
        }
        let from = request.split("\r\nRange: bytes=").nth(1).unwrap().split('-').next().unwrap();
        let from: usize = from.parse().unwrap();
        let remaining = LEN - from;
        conn.send(format!(
            "HTTP/1.1 206 Partial Content\r\n{TAG}Content-Range: bytes {from}-{}/{LEN}\r\nContent-Length: {remaining}\r\n\r\n",
            LEN - 1
        ));
        conn.send("x".repeat(remaining));
    });
    let server = cached(addr, LOCK);
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let addr = server.addr();
            thread::spawn(move || Client::get(addr, "/a").unwrap().text())
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().unwrap(), "x".repeat(LEN), "{}", server.error_log());
    }
    assert_eq!(request_count.load(SeqCst), 2);
    open.store(true, SeqCst);
}

#[test]
fn clients_without_a_byte_leave_a_stalled_fill() {
    // A head and nothing else; and no validator by which that could be continued.
    let (open, wait_open) = gate();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = heads.clone();
    let (addr, request_count) = counting(move |conn, request, nth| {
        seen.lock().unwrap().push(request.to_owned());
        if nth == 0 {
            head(conn, "", CONTENT.len());
            wait_open();
        } else {
            conn.answer("", CONTENT);
        }
    });
    let server = cached(addr, LOCK);
    let mut first = server.connect().unwrap();
    first.send("GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(wait::until(wait::TIMEOUT, || request_count.load(SeqCst) == 1));
    let clients: Vec<_> = (0..19)
        .map(|_| {
            let addr = server.addr();
            thread::spawn(move || Client::get(addr, "/a").unwrap().text())
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().unwrap().as_bytes(), CONTENT);
    }
    assert_eq!(request_count.load(SeqCst), 2, "{:?}", heads.lock().unwrap());
    is_stored(&server);
    open.store(true, SeqCst);
}

#[test]
fn origin_without_ranges_continues_with_the_whole_response() {
    let (addr, request_count) = stalling_origin(TAG, cut, |conn, _| conn.answer(TAG, CONTENT));
    let server = cached(addr, "");
    assert_eq!(Client::get(server.addr(), "/a").unwrap().text().as_bytes(), CONTENT);
    is_stored(&server);
    assert_eq!(request_count.load(SeqCst), 2);
}

#[test]
fn continuations_of_one_fill_are_bounded() {
    // The origin sends one byte on each connection.
    let request_count = Arc::new(AtomicUsize::new(0));
    let counted = request_count.clone();
    let addr = origin(move |mut conn| {
        let Some(request) = conn.head() else { return };
        counted.fetch_add(1, SeqCst);
        let from =
            request.split("\r\nRange: bytes=").nth(1).and_then(|rest| rest.split('-').next()?.parse().ok());
        match from {
            None => head(&mut conn, TAG, CONTENT.len()),
            Some(from) => conn.send(format!(
                "HTTP/1.1 206 Partial Content\r\n{TAG}Content-Range: bytes {from}-9/10\r\nContent-Length: {}\r\n\r\n",
                10 - from
            )),
        }
        let from: usize = from.unwrap_or(0);
        conn.send(&CONTENT[from..=from]);
    });
    let server = cached(addr, "");
    let mut client = server.connect().unwrap();
    client.send("GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(client.read_response().is_err());
    assert_eq!(request_count.load(SeqCst), 5);
}
