//! Requests: most of them find a location, and many are odd in one respect.

use tw_testkit::random::Random;

use super::Area;
use crate::node::{self, Node};
use crate::request::{Exchange, Request, RequestBody, Wire};

/// Paths that locations of a configuration may match.
pub(super) fn paths(nodes: &[Node]) -> Vec<String> {
    let text = node::render(nodes);
    let mut paths: Vec<String> = Vec::new();
    for rest in text.split("location ").skip(1) {
        let pattern = rest.split(" {").next().unwrap_or_default();
        let path = pattern.trim_start_matches(['=', '^', '~', '*', ' ']);
        if path.starts_with('/') && !path.contains(['(', '$', '\\']) {
            paths.push(path.to_owned());
            paths.push(format!("{}/a.txt", path.trim_end_matches('/')));
        } else if let Some(index) = path.chars().find(char::is_ascii_digit) {
            paths.push(format!("/l{index}/in.x{index}"));
            paths.push(format!("/f.x{index}"));
        }
    }
    paths
}

fn target(random: &mut Random, paths: &[String]) -> String {
    let common = random.one_of(&[
        "/",
        "/a.txt",
        "/a.html",
        "/dir",
        "/dir/",
        "/dir/c.txt",
        "/missing",
        "/dir/sub/d.txt",
        "/bare/",
        "/bare",
        "/empty.txt",
        "/noext",
        "/p.shtml",
        "/q.shtml",
        "/index.html",
        "/l0/x",
        "/l1",
        "/l2/",
        "/old/a",
        "/l3/y.x0",
    ]);
    let odd = random.one_of(&[
        "/sp%20ace.txt",
        "//a.txt",
        "/dir/../a.txt",
        "/dir/./c.txt",
        "/%61.txt",
        "/dir//c.txt",
        "/a.txt/",
        "/..",
        "/dir/%2e%2e/a.txt",
        "/a%2ftxt",
        "/a%00b",
        "/%",
        "/%zz",
        "http://a.test/a.txt",
        "http://b.test",
        "*",
        "/a.txt#frag",
        "/a.txt?x#f",
        "/l0/a%20b%3fc",
        "/caf%c3%a9",
        "/l1/\u{e9}",
        "/l0//x",
        "/l0/.",
        "/l0/x/..",
        "/../x",
        "/l1/a+b",
        "/l2/%25",
        "HTTP://A.test/l0/z",
        "/l0;p=1",
        "/a.txt.",
        "?a=1",
        "/l1/a%0ab",
        "/dir/.",
        "/l3/a\\b",
        "/:80",
        "a.txt",
        "http://a.test?x=1",
        "/l0/%e2%82",
        "/A.TXT",
    ]);
    let mut target = match random.below(100) {
        0..45 if !paths.is_empty() => paths.get(random.below(paths.len())).cloned().unwrap_or_default(),
        0..85 => common.to_owned(),
        _ => odd.to_owned(),
    };
    if random.happens(45) && !target.contains(['?', '#']) {
        target += random.one_of(&[
            "?", "?a=1", "?a=2&b=x", "?a=1&a=2", "?b=%20z", "?A=3", "?a", "?a=&b=1", "??", "?a=1?b=2",
            "?&a=1", "?a=utf-8", "?x=a%26b", "?a=30", "?want=1", "?a=b",
        ]);
    }
    target
}

fn extra_field(random: &mut Random, area: Area) -> (&'static str, &'static str) {
    let common: &[(&str, &str)] = &[
        ("X-A", "1"),
        ("X-A", "abb"),
        ("X-A", "1.2.3.4"),
        ("X_Under", "u"),
        ("Cookie", "a=1; b=2"),
        ("Cookie", "a=2"),
        ("Accept-Encoding", "gzip"),
        ("Accept-Encoding", "gzip;q=0, identity"),
        ("Accept-Encoding", "x, gzip;q=0.5"),
        ("Referer", "http://www.a.test/x"),
        ("Referer", "http://x.b.c/"),
        ("User-Agent", "Mozilla/4.0 (compatible; MSIE 6.0)"),
        ("Connection", "close"),
        ("Connection", "keep-alive"),
        ("Connection", "Close, x"),
        ("X-Forwarded-For", "1.2.3.4, 10.0.0.1"),
        ("Authorization", "Basic dTpw"),
        ("Expect", "100-continue"),
        ("Content-Type", "text/x"),
        ("X-A", ""),
        ("X.Dot", "1"),
        ("Accept", "*/*"),
        ("TE", "trailers"),
        ("Keep-Alive", "1"),
        ("Upgrade", "h2c"),
        ("Via", "1.1 x"),
        ("Host", "b.test"),
        ("Expect", "x"),
    ];
    let ranges: &[(&str, &str)] = &[
        ("Range", "bytes=0-3"),
        ("Range", "bytes=-5"),
        ("Range", "bytes=5-"),
        ("Range", "bytes=0-1,3-4"),
        ("Range", "bytes=99-"),
        ("Range", "bytes=3-1"),
        ("Range", "bytes=0-0,-1"),
        ("Range", "bytes=0-"),
        ("Range", "Bytes=1-2"),
        ("Range", "bytes= 1 - 2"),
        ("Range", "bytes=0-99999999999999999999"),
        ("Range", "bytes=-0"),
        ("Range", "items=0-1"),
        ("Range", "bytes=0-1,0-2,0-3"),
        ("Range", "bytes=a-b"),
        ("Range", "bytes="),
        ("If-Modified-Since", "Wed, 01 Jan 2025 00:00:00 GMT"),
        ("If-Modified-Since", "Thu, 02 Jan 2025 00:00:00 GMT"),
        ("If-Modified-Since", "x"),
        ("If-None-Match", "*"),
        ("If-None-Match", "\"67748580-1b\""),
        ("If-None-Match", "W/\"67748580-1b\", \"y\""),
        ("If-Match", "\"x\""),
        ("If-Match", "*"),
        ("If-Range", "Wed, 01 Jan 2025 00:00:00 GMT"),
        ("If-Range", "\"67748580-1b\""),
        ("If-Range", "x"),
        ("If-Unmodified-Since", "Tue, 31 Dec 2024 00:00:00 GMT"),
        ("If-Unmodified-Since", "Wednesday, 01-Jan-25 00:00:00 GMT"),
    ];
    let passwords: &[(&str, &str)] = &[
        ("Authorization", "Basic dTpw"),
        ("Authorization", "Basic dTpx"),
        ("Authorization", "basic dTpw"),
        ("Authorization", "Basic dg=="),
        ("Authorization", "Basic !!"),
        ("Authorization", "Bearer x"),
        ("Authorization", "Basic  dTpw"),
    ];
    match area {
        Area::Files | Area::Filters if random.happens(60) => random.one_of(ranges),
        Area::Access if random.happens(60) => random.one_of(passwords),
        Area::Proxy | Area::Gateways if random.happens(15) => random.one_of(ranges),
        Area::Cache if random.happens(40) => random.one_of(ranges),
        _ => random.one_of(common),
    }
}

pub(super) fn request(random: &mut Random, area: Area, paths: &[String]) -> Request {
    let method = if random.happens(72) {
        "GET"
    } else {
        random.one_of(&[
            "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "POST", "TRACE", "PATCH", "get", "MKCOL",
            "X-ODD", "PROPFIND", "HEAD",
        ])
    };
    let protocol = if random.happens(88) {
        "HTTP/1.1"
    } else {
        random.one_of(&[
            "HTTP/1.0",
            "HTTP/1.0",
            "HTTP/1.0",
            "HTTP/1.2",
            "HTTP/2.0",
            "http/1.1",
            "HTTP/1.10",
            "HTTP/01.1",
        ])
    };
    let host = if random.happens(80) {
        "a.test"
    } else {
        random.one_of(&[
            "b.test",
            "A.Test",
            "x.b.test",
            "a.test:81",
            "w.re.test",
            "",
            "a.test.",
            "other",
            "[::1]",
            "a..test",
            "b.test:x",
            "a/b",
            "c.test",
            "x_y.c.test",
            "1.2.3.4",
        ])
    };
    let mut fields = Vec::new();
    if !(random.happens(1) || protocol == "HTTP/1.0" && random.happens(50)) {
        fields.push(("Host".to_owned(), host.to_owned()));
    }
    for _ in 0..random.below(4) {
        let (name, value) = extra_field(random, area);
        fields.push((name.to_owned(), value.to_owned()));
    }
    if matches!(area, Area::Proxy | Area::Gateways) || random.happens(10) {
        fields.push(("X-Script".to_owned(), format!("want={}", random.below(8))));
    }
    let body = match (method, random.below(10)) {
        ("POST" | "PUT" | "PATCH", 0..4) => {
            RequestBody::Sized(random.one_of(&["", "a=1", "hello body", "0123456789abcdef"]).to_owned())
        }
        ("POST" | "PUT" | "PATCH", 4..8) if protocol == "HTTP/1.1" => {
            RequestBody::Chunked(vec!["abc".to_owned(), random.one_of(&["d", "efghijklmnop"]).to_owned()])
        }
        ("GET" | "DELETE", 0) => RequestBody::Sized("xy".to_owned()),
        _ => RequestBody::Absent,
    };
    Request {
        method: method.to_owned(),
        target: target(random, paths),
        protocol: protocol.to_owned(),
        fields,
        body,
    }
}

pub(super) fn exchange(random: &mut Random, area: Area, wire: Wire, paths: &[String]) -> Exchange {
    let count = if random.happens(12) { 2 + random.below(2) } else { 1 };
    Exchange { wire, requests: (0..count).map(|_| request(random, area, paths)).collect() }
}
