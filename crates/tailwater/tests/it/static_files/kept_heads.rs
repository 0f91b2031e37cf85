//! Kept response heads of hot files: changes by request, location and reload are applied.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use tw_testkit::{Server, wait};

use crate::support::reload::reload;
use crate::support::{get, request, server};

/// Configuration with `with` in the `server` block, beside locations with other settings.
fn conf(with: &str) -> String {
    let alias = |name: &str, more: &str| format!("location /{name}/ {{ alias html/; {more} }}");
    let locations = [
        alias("typed", "types { } default_type text/x-other; charset utf-8; charset_types *;"),
        alias("added", "add_header X-Who $arg_who; add_header X-Same yes;"),
        alias("bare", "etag off; max_ranges 0;"),
    ];
    format!("http {{ server {{ listen 127.0.0.1:{{port}}; root html; {with} {} }} }}", locations.concat())
}

/// A server whose `html/a.txt` is of 1994, and has not changed for so long that it may be kept in memory.
fn started() -> Server {
    let server = server().with_master().file("html/a.txt", "hello, world!").start(&conf("")).unwrap();
    let path = server.prefix().join("html/a.txt");
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)).unwrap();
    let now_s = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    assert!(wait::until(wait::TIMEOUT, || now_s() - fs::metadata(&path).unwrap().ctime() > 3));
    server
}

const LENGTH: &str = "Content-Length: 13|Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT";
const END: &str = "ETag: \"2ebc98a1-d\"|Accept-Ranges: bytes";
const SINCE: &str = "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT";

#[test]
fn kept_head_follows_each_request() {
    let server = started();
    let ours = format!("Server: {}", get(&server, "/a.txt").field("Server").unwrap());
    let usual = format!("{ours}|Content-Type: text/plain|{LENGTH}|Connection: close|{END}");
    let added = |who: &str| format!("{who}X-Same: yes|{LENGTH}|{END}");
    let table = [
        ("GET /a.txt", "", 200, usual.clone()),
        ("HEAD /a.txt", "", 200, usual),
        ("GET /a.txt", "Range: bytes=7-11", 206, "Content-Length: 5|Content-Range: bytes 7-11/13".to_owned()),
        ("GET /a.txt", SINCE, 304, "ETag: \"2ebc98a1-d\"".to_owned()),
        ("GET /a.txt", "If-Match: \"x\"", 412, "Content-Type: text/html".to_owned()),
        ("GET /typed/a.txt", "", 200, format!("Content-Type: text/x-other; charset=utf-8|{LENGTH}")),
        ("GET /added/a.txt?who=me", "", 200, added("X-Who: me|")),
        ("GET /added/a.txt?who=you", "", 200, added("X-Who: you|")),
        ("GET /added/a.txt", "", 200, added("")),
        ("GET /bare/a.txt", "", 200, format!("{ours}|{LENGTH}")),
    ];
    for round in 0..12 {
        for (nth, (line, field, status, expected)) in
            table.iter().cycle().skip(round).take(table.len()).enumerate()
        {
            // The request is sent once, or often enough in a row for the head to be kept.
            for _ in 0..=(round + nth) % 3 {
                let fields: &[&str] = if field.is_empty() { &[] } else { &[field] };
                let response = request(&server, line, fields);
                let head = &response.head;
                let about = format!("{round} {line} {field}: {}", response.head);
                assert_eq!(response.status, *status, "{about}");
                for expected in expected.split('|') {
                    assert_eq!(
                        head.matches(&format!("\r\n{expected}\r\n")).count(),
                        1,
                        "{expected}: {about}"
                    );
                }
                assert_eq!(head.matches("\r\nDate: ").count(), 1, "{about}");
                assert_eq!(head.contains("X-Same"), line.contains("/added/"), "{about}");
                assert_eq!(head.contains("X-Who"), line.contains("who="), "{about}");
                let has_tag = head.contains("ETag");
                let has_ranges = head.contains("Accept-Ranges");
                let is_bare = line.contains("/bare/");
                assert_eq!(has_tag, *status != 412 && !is_bare, "{about}");
                assert_eq!(has_ranges, *status == 200 && !is_bare, "{about}");
            }
        }
    }
}

#[test]
fn kept_head_has_the_connection_field_of_its_request() {
    let server = started();
    for _ in 0..4 {
        let mut client = server.connect().unwrap();
        for (field, expected) in [("", "keep-alive"), ("", "keep-alive"), ("Connection: close\r\n", "close")]
        {
            client.send(format!("GET /a.txt HTTP/1.1\r\nHost: localhost\r\n{field}\r\n")).unwrap();
            let response = client.read_response().unwrap();
            assert_eq!(response.values("Connection").collect::<Vec<_>>(), [expected]);
            assert_eq!(response.text(), "hello, world!");
        }
    }
}

#[test]
fn reload_changes_the_head_of_an_open_file() {
    let mut server = started();
    for turn in 0..3 {
        let with = format!("default_type text/turn-{turn}; add_header X-Turn {turn};");
        reload(&mut server, &conf(&with));
        let is_new = || get(&server, "/a.txt").field("X-Turn") == Some(&turn.to_string());
        assert!(wait::until(wait::TIMEOUT, is_new), "{turn}");
        for _ in 0..4 {
            let response = get(&server, "/a.txt");
            assert_eq!(response.field("Content-Type"), Some(&*format!("text/turn-{turn}")));
            assert_eq!(response.values("X-Turn").collect::<Vec<_>>(), [turn.to_string()]);
        }
    }
}
