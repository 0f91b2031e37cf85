//! `add_header` and `expires`

use std::fs;
use std::time::{Duration, SystemTime};

use tw_testkit::origin::counting;
use tw_testkit::{Response, Server};

use crate::support::{get, raw, refusal, request, server, start, start_server};

/// Seconds since 1970 of a field that holds an IMF-fixdate.
fn seconds(response: &Response, name: &str) -> i64 {
    let text = response.field(name).unwrap_or_else(|| panic!("no {name} in {}", response.head));
    let words: Vec<_> = text.split([' ', ':']).collect();
    let [_, day, month, year, hour, minute, second, "GMT"] = words[..] else { panic!("{name}: {text}") };
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = 1 + months.iter().position(|name| *name == month).unwrap() as i64;
    let year = year.parse::<i64>().unwrap();
    let day = day.parse::<i64>().unwrap();
    // Days since 0000-03-01, with years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let clock = [hour, minute, second].iter().fold(0, |sum, part| sum * 60 + part.parse::<i64>().unwrap());
    days * 86_400 + clock
}

#[test]
fn add_header_depends_on_the_status() {
    let server = start_server(
        server().file("html/a", "hello"),
        &format!("add_header X-Usual a; add_header X-Always b always; expires 1h; {}", codes()),
    );
    for code in CODES {
        let response = get(&server, &format!("/code/{code}"));
        let usual = matches!(code, 200 | 201 | 204 | 206 | 301 | 302 | 303 | 304 | 307 | 308);
        assert_eq!(response.status, code);
        assert_eq!(response.field("X-Usual"), usual.then_some("a"), "{code}");
        assert_eq!(response.field("X-Always"), Some("b"), "{code}");
        assert_eq!(response.field("Cache-Control"), usual.then_some("max-age=3600"), "{code}");
        assert_eq!(response.field("Expires").is_some(), usual, "{code}");
    }
    for (line, field, status) in [
        ("GET /a", "Range: bytes=0-1", 206),
        ("GET /a", "If-None-Match: *", 304),
        ("HEAD /a", "X: y", 200),
        ("GET /a", "X: y", 200),
    ] {
        let response = request(&server, line, &[field]);
        assert_eq!((response.status, response.field("X-Usual")), (status, Some("a")), "{line} {field}");
    }
    let missing = get(&server, "/missing");
    assert_eq!((missing.field("X-Usual"), missing.field("X-Always")), (None, Some("b")));
}

#[test]
fn unsatisfiable_range_has_no_lifetime() {
    let (addr, _) = counting(|conn, _, _| {
        conn.answer(
            "Cache-Control: max-age=600\r\nETag: \"x\"\r\nSurrogate-Control: max-age=9\r\nX-Up: y\r\n",
            "hello",
        );
    });
    let (stored, _) = counting(|conn, _, _| {
        conn.send("HTTP/1.1 416 No\r\nCache-Control: max-age=600\r\nContent-Length: 2\r\n\r\nno");
    });
    let server = start(
        server().file("html/a", "hello").file("html/page", "a page"),
        &format!(
            "proxy_cache_path cache keys_zone=c:1m; proxy_cache_valid any 1m;
             server {{ listen 127.0.0.1:{{port}}; root html; expires modified 1h;
                 add_header X-Usual a; add_header Cache-Control public; add_header CDN-Cache-Control max-age=1;
                 add_header ETag '\"own\"'; add_header X-Always b always; add_header Surrogate-Control no-store always;
                 location /paged/ {{ alias html/; error_page 416 /page; }}
                 location /cached {{ proxy_pass http://{addr}; proxy_cache c; }}
                 location /stored {{ proxy_pass http://{stored}; proxy_cache c; }}
                 location /forced {{ proxy_pass http://{stored}; proxy_force_ranges on; }} }}"
        ),
    );
    for target in ["/a", "/paged/a", "/cached", "/cached"] {
        let response = request(&server, &format!("GET {target}"), &["Range: bytes=5-"]);
        assert_eq!((response.status, response.field("X-Usual")), (416, Some("a")), "{target}");
        for name in ["Expires", "Cache-Control", "CDN-Cache-Control", "ETag", "Last-Modified"] {
            // An error page from a file has the tag of that.
            if (target, name) == ("/paged/a", "ETag") {
                continue;
            }
            assert_eq!(response.field(name), None, "{target} {name}: {}", response.head);
        }
        // Fields of `add_header … always` are set for this status, too.
        let always = response.values("Surrogate-Control").collect::<Vec<_>>();
        assert_eq!((response.field("X-Always"), &*always), (Some("b"), &["no-store"][..]), "{target}");
    }
    // A 416 of an upstream server is a status like any other.
    for target in ["/stored", "/stored", "/forced"] {
        let response = request(&server, &format!("GET {target}"), &["Range: bytes=5-"]);
        assert_eq!((response.status, response.field("X-Usual")), (416, None), "{target}");
        assert_eq!(response.field("Cache-Control"), Some("max-age=600"), "{target}");
    }
}

const CODES: [u16; 18] =
    [200, 201, 202, 203, 204, 206, 300, 301, 302, 303, 304, 307, 308, 400, 403, 404, 418, 503];

fn codes() -> String {
    CODES.iter().map(|code| format!("location = /code/{code} {{ return {code} x; }} ")).collect()
}

#[test]
fn add_header_takes_variables_and_is_inherited() {
    let server = start_server(
        server(),
        "add_header X-Server server; add_header X-Var \"$uri [$arg_x]\"; add_header X-Empty $arg_none;
         location /inherits { return 200; } location /replaces { add_header X-Own own; return 200; }
         location /both { add_header Link a; add_header link b; add_header Cache-Control no-store; expires 1m; return 200; }
         location /cased { add_header x-LOWER-Upper 'a b'; return 200; }",
    );
    let response = get(&server, "/inherits?x=y");
    assert_eq!(response.field("X-Server"), Some("server"));
    assert_eq!(response.field("X-Var"), Some("/inherits [y]"));
    assert_eq!(response.field("X-Empty"), None);

    let response = get(&server, "/replaces");
    assert_eq!((response.field("X-Own"), response.field("X-Server")), (Some("own"), None));

    let response = get(&server, "/both");
    assert_eq!(response.values("Link").collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(response.values("Cache-Control").collect::<Vec<_>>(), ["max-age=60", "no-store"]);
    assert!(get(&server, "/cased").head.contains("\r\nx-LOWER-Upper: a b\r\n"));
}

#[test]
fn validators_are_replaced_or_removed() {
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let server = start_server(
        server().file("html/a", "hello"),
        &format!(
            "location /none/ {{ alias html/; add_header Last-Modified ''; add_header ETag ''; }}
             location /own/ {{ alias html/; add_header Last-Modified '{date}'; add_header ETag '\"own\"'; }}
             location /text/ {{ add_header Last-Modified '{date}'; return 200 x; }}"
        ),
    );
    let response = get(&server, "/none/a");
    assert_eq!((response.status, response.field("Last-Modified"), response.field("ETag")), (200, None, None));
    let response = get(&server, "/own/a");
    assert_eq!(response.values("Last-Modified").collect::<Vec<_>>(), [date]);
    assert_eq!(response.values("ETag").collect::<Vec<_>>(), ["\"own\""]);
    assert_eq!(get(&server, "/text/").field("Last-Modified"), Some(date));
}

/// A server with `html/a`, changed 100 s ago, and one location per `expires`.
fn expiring(values: &[&str]) -> Server {
    let locations: String = values
        .iter()
        .enumerate()
        .map(|(at, value)| format!("location /{at}/ {{ alias html/; expires {value}; }}\n"))
        .collect();
    let server = start_server(server().file("html/a", "x"), &locations);
    let file = fs::File::options().write(true).open(server.prefix().join("html/a")).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
    server
}

#[test]
fn expires_takes_times() {
    /// Time from which `Expires` is counted.
    enum From {
        Date,
        Modified,
    }
    let table = [
        ("1h", From::Date, 3600, "max-age=3600"),
        ("+1d2h", From::Date, 93_600, "max-age=93600"),
        ("0", From::Date, 0, "max-age=0"),
        ("-1", From::Date, -1, "no-cache"),
        ("modified 0", From::Date, 0, "max-age=0"),
        ("modified 50s", From::Modified, 50, "no-cache"),
        ("modified -1h", From::Modified, -3600, "no-cache"),
        ("$arg_e", From::Date, 60, "max-age=60"),
        ("modified $arg_e", From::Modified, 60, "no-cache"),
    ];
    let server = expiring(&table.iter().map(|row| row.0).collect::<Vec<_>>());
    for (at, (value, from, span, cache_control)) in table.iter().enumerate() {
        let response = get(&server, &format!("/{at}/a?e=60s"));
        let from = match from {
            From::Date => seconds(&response, "Date"),
            From::Modified => seconds(&response, "Last-Modified"),
        };
        assert_eq!(seconds(&response, "Expires") - from, *span, "{value}");
        assert_eq!(response.field("Cache-Control"), Some(*cache_control), "{value}");
    }
    let modified = expiring(&["modified 1h"]);
    let response = get(&modified, "/0/a");
    let expires = seconds(&response, "Expires");
    assert_eq!(expires - seconds(&response, "Last-Modified"), 3600);
    let age = expires - seconds(&response, "Date");
    assert_eq!(response.field("Cache-Control"), Some(&*format!("max-age={age}")));
}

#[test]
fn expires_takes_epoch_max_and_off() {
    let server = expiring(&["epoch", "max", "off", "$arg_e", "modified $arg_e", "@12h"]);
    let both = |response: &Response| {
        let field = |name| response.field(name).unwrap_or_default().to_owned();
        (field("Expires"), field("Cache-Control"))
    };
    let epoch = ("Thu, 01 Jan 1970 00:00:01 GMT".to_owned(), "no-cache".to_owned());
    let max = ("Thu, 31 Dec 2037 23:55:55 GMT".to_owned(), "max-age=315360000".to_owned());
    let none = (String::new(), String::new());
    for (target, expected) in [
        ("/0/a", &epoch),
        ("/1/a", &max),
        ("/2/a", &none),
        ("/3/a?e=epoch", &epoch),
        ("/3/a?e=max", &max),
        ("/3/a?e=off", &none),
        ("/3/a?e=nonsense", &none),
        ("/3/a", &none),
        ("/4/a?e=max", &none),
    ] {
        assert_eq!(both(&get(&server, target)), *expected, "{target}");
    }
    let response = get(&server, "/5/a");
    let remaining = seconds(&response, "Expires") - seconds(&response, "Date");
    assert!((1..=86_400 + 3600).contains(&remaining), "{remaining}");
    assert_eq!(response.field("Cache-Control"), Some(&*format!("max-age={remaining}")));
}

#[test]
fn daily_expires_time_is_local() {
    let conf = "http { server { listen 127.0.0.1:{port}; location / { expires @12h; return 200; } } }";
    for (zone, utc) in [("UTC", 12), ("<+03>-3", 9), ("<-0530>5:30", 17)] {
        let server = server().env("TZ", zone).start(conf).unwrap();
        let expires = seconds(&get(&server, "/"), "Expires");
        assert_eq!(expires % 86_400 / 3600, utc, "{zone}");
    }
    let conf = format!("env TZ=<+05>-5; env OTHER=x; env HOME; {conf}");
    let server = server().env("TZ", "UTC").start(&conf).unwrap();
    assert_eq!(seconds(&get(&server, "/"), "Expires") % 86_400 / 3600, 7);
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("add_header X;", "invalid number of arguments in \"add_header\" directive"),
        ("add_header X y sometimes;", "invalid parameter \"sometimes\""),
        ("expires soon;", "\"expires\" directive invalid value"),
        ("expires created 1h;", "\"expires\" directive invalid value"),
        ("expires @25h;", "\"expires\" directive daily time value must be less than 24 hours"),
        ("expires modified @1h;", "daily time cannot be used with \"modified\" parameter"),
        ("expires 1h; expires 2h;", "\"expires\" directive is duplicate"),
    ] {
        let error = refusal(line);
        assert!(error.contains(message), "{line}: {error}");
    }
}

/// Bytes behind the head of the response to a request of this version.
fn behind_head(server: &Server, line: &str) -> String {
    let text = raw(server, format!("{line}\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    text.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())
}

#[test]
fn trailers_follow_a_chunked_body() {
    let server = start_server(
        server().file("html/a", "hello").file("html/empty", ""),
        "add_trailer X-A $host; add_trailer X-None ''; add_trailer X-Seen $sent_trailer_x_a; \
         add_trailer X-Always b always; \
         location /plain { chunked_transfer_encoding off; alias html/; } \
         location /204 { return 204; } location /own { alias html/; add_trailer X-Own $status; }",
    );
    let all = "X-A: localhost\r\nX-Seen: localhost\r\nX-Always: b\r\n\r\n";
    let body = |target: &str| behind_head(&server, &format!("GET {target} HTTP/1.1"));
    assert_eq!(body("/a"), format!("5\r\nhello\r\n0\r\n{all}"));
    assert_eq!(body("/empty"), format!("0\r\n{all}"));
    assert_eq!(body("/own/a"), "5\r\nhello\r\n0\r\nX-Own: 200\r\n\r\n");
    assert!(body("/missing").ends_with("0\r\nX-Always: b\r\n\r\n"));
    assert_eq!(body("/plain/a"), "hello");
    assert_eq!(body("/204"), "");
    assert_eq!(behind_head(&server, "GET /a HTTP/1.0"), "hello");
    assert_eq!(behind_head(&server, "HEAD /a HTTP/1.1"), "");
    let head = request(&server, "HEAD /a", &[]);
    assert_eq!((head.field("Content-Length"), head.field("Transfer-Encoding")), (Some("5"), None));
    let part = request(&server, "GET /a", &["Range: bytes=1-2"]);
    assert_eq!((part.status, part.field("Transfer-Encoding")), (206, Some("chunked")));
    assert_eq!(part.text(), "el");
}

#[test]
fn fields_and_trailers_of_enclosing_blocks() {
    let block = |name: &str, inherit: &str, own: bool| {
        let own = if own { "add_header X-H own; add_trailer X-T own;" } else { "" };
        format!("location /{name} {{ {inherit} {own} return 200 x; }} ")
    };
    let on = "add_header_inherit on; add_trailer_inherit on;";
    let off = "add_header_inherit off; add_trailer_inherit off;";
    let merge = "add_header_inherit merge; add_trailer_inherit merge;";
    let locations: String = [
        block("none", "", false),
        block("own", "", true),
        block("off-none", off, false),
        block("merge-none", merge, false),
        block("merge-own", merge, true),
        format!(
            "location /deep {{ {merge} add_header X-H mid; {} {} }}",
            block("deep/own", "", true),
            block("deep/on", on, true)
        ),
    ]
    .concat();
    let server = start_server(server(), &format!("add_header X-H outer; add_trailer X-T outer; {locations}"));
    for (target, fields, trailers) in [
        ("none", "outer", "outer"),
        ("own", "own", "own"),
        ("off-none", "", ""),
        ("merge-none", "outer", "outer"),
        ("merge-own", "own outer", "own outer"),
        ("deep/own", "own mid outer", "own outer"),
        ("deep/on", "own", "own"),
    ] {
        let text = raw(&server, format!("GET /{target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        let values = |name: &str| -> String {
            let results = text.lines().filter_map(|line| line.strip_prefix(name));
            results.collect::<Vec<_>>().join(" ")
        };
        assert_eq!((&*values("X-H: "), &*values("X-T: ")), (fields, trailers), "{target}\n{text}");
    }
    let wrong = refusal("add_header_inherit maybe;");
    assert!(wrong.contains("invalid value \"maybe\""), "{wrong}");
}

#[test]
fn head_response_of_unknown_length_has_no_transfer_encoding() {
    let server = start_server(
        server().file("html/a.html", "<html>some text that is long enough</html>".repeat(5000)),
        "location /gzip/ { gzip on; alias html/; } location /ssi/ { ssi on; alias html/; }
         location /sub/ { sub_filter text words; alias html/; } location /after/ { add_after_body /a.html; alias html/; }",
    );
    for place in ["gzip", "ssi", "sub", "after"] {
        let request = |method, version| {
            format!(
                "{method} /{place}/a.html HTTP/{version}\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: keep-alive\r\n\r\n"
            )
        };
        let mut client = server.connect().unwrap();
        // The connection goes on: the second answer comes right behind the first.
        for version in ["1.1", "1.0", "1.1"] {
            client.send(request("HEAD", version)).unwrap();
            let head = client.read_head().unwrap();
            assert_eq!((head.status, head.field("Transfer-Encoding")), (200, None), "{place}: {}", head.head);
            assert_eq!(
                head.field("Content-Length").is_some(),
                place == "gzip" && version == "1.0",
                "{place}: {}",
                head.head
            );
            assert_eq!(head.field("Connection"), Some("keep-alive"), "{place}: {}", head.head);
        }
        client.send(request("GET", "1.1")).unwrap();
        let response = client.read_response().unwrap();
        assert_eq!(response.field("Transfer-Encoding"), Some("chunked"), "{place}");
    }
}

#[test]
fn configured_fields_never_change_framing() {
    let server = start_server(
        server().file("html/page", "static body"),
        "add_header Content-Length 0; add_header transfer-encoding chunked; add_header Connection close; \
         add_header Keep-Alive timeout=1; add_header Proxy-Connection close; add_header Trailer X-None; \
         add_trailer Content-Length 3; location /said { return 200 'hello body'; } location /page { }",
    );
    let mut client = server.connect().unwrap();
    for (target, body) in [("/said", "hello body"), ("/page", "static body"), ("/said", "hello body")] {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
        let response = client.read_response().unwrap();
        assert_eq!(response.text(), body, "{target}");
        let length = body.len().to_string();
        assert_eq!(response.values("Content-Length").collect::<Vec<_>>(), [&*length], "{target}");
        assert_eq!(response.values("Connection").collect::<Vec<_>>(), ["keep-alive"], "{target}");
        for name in ["Transfer-Encoding", "Keep-Alive", "Proxy-Connection", "Trailer"] {
            assert_eq!(response.field(name), None, "{target} {name}");
        }
    }
}

#[test]
fn framing_fields_are_warned_of_and_end_inheritance() {
    let conf = "http { add_header X-Outer 1; server { listen 127.0.0.1:{port}; root html; \
        location /page { add_header Content-Length 0; } location /trailer { alias html/page; add_trailer Transfer-Encoding x; } } }";
    let said = server().arg("-t").run(conf).unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    for name in ["Content-Length", "Transfer-Encoding"] {
        let expected =
            format!("[warn] \"{name}\" frames the response and is written by the server, ignored in ");
        assert!(said.contains(&expected), "{said}");
    }
    let server = server().file("html/page", "").start(conf).unwrap();
    assert_eq!(get(&server, "/page").field("X-Outer"), None);
    assert_eq!(get(&server, "/trailer").field("X-Outer"), Some("1"));
}
