//! `sub_filter`

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tw_testkit::wait;

use crate::support::{get, page, refusal, request, server, start_server};

#[test]
fn strings_are_replaced() {
    let server = start_server(
        server().file("html/a.html", "One two ONE two one").file("html/a.txt", "one").file("html/e.html", ""),
        "location /once { alias html; sub_filter one 1; sub_filter TWO '<$arg_x>'; } \
         location /all { alias html; sub_filter_once off; sub_filter one 1; sub_filter two ''; } \
         location /any { alias html; sub_filter_types *; sub_filter one 1; } \
         location /more { alias html; sub_filter_types text/plain; sub_filter one 1; } \
         location /vary { alias html; sub_filter_once off; sub_filter $arg_a A; sub_filter $arg_b B; } \
         location /nested { sub_filter one x; location /nested/own { alias html; sub_filter two y; } \
           location /nested/with { alias html; } }",
    );
    for (target, expected) in [
        ("/once/a.html?x=y", "1 <y> ONE two one"),
        ("/once/a.txt", "one"),
        ("/once/e.html", ""),
        ("/all/a.html", "1  1  1"),
        ("/any/a.txt", "1"),
        ("/more/a.txt", "1"),
        ("/more/a.html", "1 two ONE two one"),
        ("/vary/a.html", "One two ONE two one"),
        ("/vary/a.html?b=oNe", "B two B two B"),
        ("/vary/a.html?a=two&b=one", "B A B A B"),
        ("/nested/own/a.html", "One y ONE two one"),
        ("/nested/with/a.html", "x two ONE two one"),
    ] {
        assert_eq!(page(&server, target), (200, expected.to_owned()), "{target}");
    }
}

#[test]
fn replacement_removes_length_and_validators() {
    let server = start_server(
        server().file("html/a.html", "one"),
        "location / { sub_filter one 1; } location /keep { alias html; sub_filter one 1; sub_filter_last_modified on; }",
    );
    let plain = request(&server, "GET /a.html", &["Range: bytes=0-0"]);
    assert_eq!((plain.status, plain.text().as_str()), (200, "1"));
    for name in ["Last-Modified", "ETag", "Content-Length", "Accept-Ranges"] {
        assert_eq!(plain.field(name), None, "{name}");
    }
    let kept = get(&server, "/keep/a.html");
    assert!(kept.field("Last-Modified").is_some());
    assert!(kept.field("ETag").unwrap().starts_with("W/\""));
    let head = request(&server, "HEAD /a.html", &[]);
    assert_eq!((head.status, head.field("Content-Length"), head.field("ETag")), (200, None, None));
}

#[test]
fn long_bodies_of_partial_matches_are_kept() {
    let almost = "abcabcabx".repeat(100_000);
    let server = start_server(
        server().file("html/a.html", format!("{almost}abcabcabc!")),
        "sub_filter_once off; sub_filter abcabcabc X; sub_filter bxabcabcaby '';",
    );
    let (status, text) = page(&server, "/a.html");
    assert_eq!((status, text.len()), (200, almost.len() + 2));
    assert!(text.ends_with("abxX!"));
}

#[test]
fn many_strings_and_long_replacements_work() {
    let mut conf = String::from("sub_filter_once off; sub_filter_types *; ");
    for n in 0..254 {
        write!(conf, "sub_filter w{n:03} '[{n}]'; ").unwrap();
    }
    let text: String = (0..300).map(|n| format!("w{n:03},")).collect();
    let expected: String =
        (0..300).map(|n| if n < 254 { format!("[{n}],") } else { format!("w{n:03},") }).collect();
    let server = start_server(
        server().file("html/a", &text).file("html/b", "z".repeat(10_000)),
        &format!("{conf} location /long {{ alias html; sub_filter z $arg_x; }}"),
    );
    assert_eq!(page(&server, "/a"), (200, expected));
    let value = "y".repeat(2000);
    let (status, text) = page(&server, &format!("/long/b?x={value}"));
    assert_eq!((status, text.len()), (200, 10_000 * 2000));
}

/// Load that never waits: a client that reads everything at once, and a body in memory.
#[test]
fn long_body_does_not_block_the_loop() {
    const SIZE: usize = 64 << 20;
    let server = start_server(
        server().file("html/long.html", vec![b'x'; SIZE]).file("html/short", "s"),
        "sub_filter y z; sub_filter_once off;",
    );
    let taken = Arc::new(AtomicUsize::new(0));
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.write_all(b"GET /long.html HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let reader = std::thread::spawn({
        let taken = taken.clone();
        move || {
            let mut buf = vec![0; 1 << 20];
            loop {
                match stream.read(&mut buf).unwrap() {
                    0 => break,
                    n => taken.fetch_add(n, Relaxed),
                };
            }
        }
    });
    assert!(wait::until(Duration::from_secs(10), || taken.load(Relaxed) > 1 << 20));
    // The smallest of the measurements counts: a long response may end before the last short one without a fault.
    let mut least = SIZE;
    for _ in 0..5 {
        assert_eq!(page(&server, "/short"), (200, "s".to_owned()));
        least = least.min(taken.load(Relaxed));
    }
    assert!(least < SIZE, "the short one had to wait for the end of the long one");
    reader.join().unwrap();
    assert!(taken.load(Relaxed) > SIZE);
}

#[test]
fn too_long_strings_from_variables_are_ignored() {
    let [longest, more] = [1024, 1025].map(|len| "w".repeat(len));
    let server = start_server(
        server().file("html/a", format!("{longest} x")).file("html/b", format!("{more} x")),
        &format!(
            "sub_filter_types *; sub_filter $arg_w A; sub_filter x B; \
             location /fixed {{ alias html; sub_filter {more} C; }}"
        ),
    );
    assert_eq!(page(&server, &format!("/a?w={longest}")), (200, "A B".to_owned()));
    assert_eq!(page(&server, &format!("/b?w={more}")), (200, format!("{more} B")));
    assert_eq!(page(&server, "/fixed/b"), (200, "C x".to_owned()));
}

#[test]
fn malformed_directives_are_refused() {
    let many = "sub_filter a b; ".repeat(256);
    for (conf, expected) in [
        ("sub_filter '' b;", "empty search pattern"),
        (&*many, "number of search patterns exceeds 255"),
        ("sub_filter a;", "invalid number of arguments in \"sub_filter\" directive"),
        ("sub_filter_once maybe;", "invalid value \"maybe\" in \"sub_filter_once\" directive"),
        ("sub_filter $nothing b;", "unknown \"nothing\" variable"),
    ] {
        let text = refusal(conf);
        assert!(text.contains(expected), "{conf}: {text}");
    }
}
