//! Concurrent subrequests of SSI includes and additions.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tw_testkit::http2::Http2;
use tw_testkit::origin::{Conn, origin};
use tw_testkit::wait;

use crate::support::{get, page, server, start_server};

/// Number of unanswered requests at an origin, and its maximum.
#[derive(Default)]
struct Requests {
    came: usize,
    open: usize,
    most: usize,
}

type Counted = Arc<(Mutex<Requests>, Condvar)>;

/// An origin that answers once `wanted_number` requests have arrived; each gets the last word of its path, or `alone` if the
/// others do not arrive.
fn meeting(wanted_number: usize) -> (SocketAddr, Counted) {
    let counted = Counted::default();
    let requests = counted.clone();
    let addr = origin(move |mut conn: Conn| {
        while let Some(head) = conn.head() {
            let (lock, changed) = &*requests;
            let mut state = lock.lock().unwrap();
            (state.came, state.open) = (state.came + 1, state.open + 1);
            state.most = state.most.max(state.open);
            changed.notify_all();
            let (mut state, waited) =
                changed.wait_timeout_while(state, wait::TIMEOUT, |state| state.came < wanted_number).unwrap();
            state.open -= 1;
            drop(state);
            let path = head.split(' ').nth(1).unwrap_or_default();
            let word = path.rsplit('/').next().unwrap_or_default();
            conn.answer("", if waited.timed_out() { "alone" } else { word });
        }
    });
    (addr, counted)
}

fn includes(names: impl Iterator<Item = usize>) -> String {
    names.fold(String::new(), |mut all, n| {
        write!(all, "<!--#include virtual='/to/{n}' -->;").unwrap();
        all
    })
}

fn words(names: impl Iterator<Item = usize>) -> String {
    names.map(|n| format!("{n};")).collect()
}

#[test]
fn includes_are_fetched_concurrently_and_sent_in_order() {
    for http2 in [false, true] {
        let (to, _) = meeting(10);
        let server = start_server(
            server().file("html/page.html", includes(0..10)),
            &format!("http2 on; ssi on; location /to/ {{ proxy_pass http://{to}; }}"),
        );
        let text = if http2 {
            Http2::connect(server.addr()).unwrap().get("/page.html").unwrap().text()
        } else {
            page(&server, "/page.html").1
        };
        assert_eq!(text, words(0..10), "http2: {http2}");
    }
}

#[test]
fn nested_includes_are_fetched_concurrently() {
    let (to, _) = meeting(6);
    let server = start_server(
        server()
            .file("html/page.html", "<!--#include virtual='/a.html' -->|<!--#include virtual='/b.html' -->|")
            .file("html/a.html", includes(0..3))
            .file("html/b.html", includes(3..6)),
        &format!("ssi on; location /to/ {{ proxy_pass http://{to}; }}"),
    );
    assert_eq!(page(&server, "/page.html").1, format!("{}|{}|", words(0..3), words(3..6)));
}

#[test]
fn page_is_read_ahead_while_an_include_is_awaited() {
    let (to, requests) = meeting(2);
    let pages = origin(move |mut conn: Conn| {
        if conn.head().is_none() {
            return;
        }
        conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n");
        conn.send(includes(1..2));
        let came = || requests.0.lock().unwrap().came;
        assert!(wait::until(wait::TIMEOUT, || came() == 1));
        conn.send("<p>");
        conn.send(includes(2..3));
    });
    let server = start_server(
        server(),
        &format!(
            "location /to/ {{ proxy_pass http://{to}; }} location /page {{ ssi on; proxy_pass http://{pages}; }}"
        ),
    );
    assert_eq!(page(&server, "/page").1, "1;<p>2;");
}

#[test]
fn variables_of_earlier_includes_keep_their_meaning() {
    let (to, _) = meeting(2);
    let server = start_server(
        server()
            .file("html/page.html", "<!--#include virtual='/a.html' -->|<!--#include virtual='/b.html' -->")
            .file(
                "html/a.html",
                "<!--#include virtual='/to/a' wait='yes' --><!--#set var='v' value='set' -->",
            )
            .file("html/b.html", "<!--#include virtual='/to/b' -->,<!--#echo var='v' -->"),
        &format!("ssi on; location /to/ {{ proxy_pass http://{to}; }}"),
    );
    assert_eq!(page(&server, "/page.html").1, "a|b,set");
}

#[test]
fn include_for_a_variable_is_fetched_concurrently() {
    let (to, _) = meeting(2);
    let server = start_server(
        server().file(
            "html/page.html",
            "<!--#include virtual='/to/a' -->|<!--#include virtual='/to/b' set='v' -->\
             [<!--#echo var='v' -->]<!--#include virtual='/to/$v' -->",
        ),
        &format!("ssi on; location /to/ {{ proxy_pass http://{to}; }}"),
    );
    assert_eq!(page(&server, "/page.html").1, "a|[b]b");
}

#[test]
fn concurrent_includes_are_bounded() {
    // At most 33 requests are in progress: the one whose output is due, and 32 more.
    let (to, requests) = meeting(33);
    let server = start_server(
        server().file("html/page.html", includes(0..60)),
        &format!("ssi on; location /to/ {{ proxy_pass http://{to}; }}"),
    );
    assert_eq!(page(&server, "/page.html").1, words(0..60));
    assert_eq!(requests.0.lock().unwrap().most, 33);
}

#[test]
fn failed_include_leaves_the_others() {
    let (to, _) = meeting(2);
    let fails = origin(|mut conn: Conn| {
        conn.head();
    });
    let cut = origin(|mut conn: Conn| {
        if conn.head().is_some() {
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
        }
    });
    let server = start_server(
        server()
            .file(
                "html/page.html",
                "<!--#include virtual='/to/a' -->|<!--#include virtual='/fails' -->|<!--#include virtual='/to/b' -->",
            )
            .file("html/cut.html", "begin <!--#include virtual='/half' -->|end"),
        &format!(
            "ssi on; location /to/ {{ proxy_pass http://{to}; }} location /half {{ proxy_pass http://{cut}; }} \
             location /fails {{ proxy_pass http://{fails}; error_page 502 =502 /fallback; }} \
             location /fallback {{ return 502 failed; }}"
        ),
    );
    assert_eq!(page(&server, "/page.html"), (200, "a|failed|b".to_owned()));
    let text = crate::support::raw(&server, "GET /cut.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(text.contains("begin ") && !text.contains("end") && !text.ends_with("0\r\n\r\n"), "{text}");
}

#[test]
fn early_include_does_not_fill_memory() {
    const SIZE: usize = 64 << 20;
    let blocked = Arc::new((Mutex::new(false), Condvar::new()));
    let waits = blocked.clone();
    let to = origin(move |mut conn: Conn| {
        let Some(head) = conn.head() else { return };
        let (lock, changed) = &*waits;
        if head.starts_with("GET /to/first") {
            let waited = changed.wait_timeout_while(lock.lock().unwrap(), wait::TIMEOUT, |is| !*is);
            return conn
                .answer("", if waited.unwrap().1.timed_out() { "nothing holds the other" } else { "first" });
        }
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
        let stream = conn.reader.get_mut();
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut remaining = SIZE;
        while remaining > 0 {
            match stream.write(&vec![b'x'; remaining.min(64 << 10)]) {
                Ok(count) => remaining -= count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    *lock.lock().unwrap() = true;
                    changed.notify_all();
                }
                Err(_) => return,
            }
        }
    });
    let server = start_server(
        server().file(
            "html/page.html",
            "<!--#include virtual='/to/first' -->|<!--#include virtual='/to/second' -->|",
        ),
        &format!("ssi on; location /to/ {{ proxy_pass http://{to}; proxy_max_temp_file_size 0; }}"),
    );
    let text = get(&server, "/page.html").body;
    assert!(text.starts_with(b"first|xxx"), "{:?}", String::from_utf8_lossy(&text[..text.len().min(64)]));
    assert_eq!(text.len(), "first|".len() + SIZE + 1);
}

#[test]
fn additions_are_fetched_concurrently() {
    for body in ["body".to_owned(), "b".repeat(48 << 10)] {
        let (to, _) = meeting(2);
        let server = start_server(
            server().file("html/page.html", &body),
            &format!(
                "location / {{ add_before_body /to/a; add_after_body /to/z; }} \
                 location /to/ {{ proxy_pass http://{to}; }}"
            ),
        );
        assert_eq!(page(&server, "/page.html").1, format!("a{body}z"));
    }
}

#[test]
fn body_longer_than_its_buffer_is_sent_whole_between_additions() {
    let (to, _) = meeting(1);
    let body = "b".repeat(300 << 10);
    let server = start_server(
        server().file("html/page.html", &body),
        &format!(
            "location / {{ add_before_body /to/a; add_after_body /to/z; }} \
             location /to/ {{ proxy_pass http://{to}; }}"
        ),
    );
    assert_eq!(page(&server, "/page.html").1, format!("a{body}z"));
}
