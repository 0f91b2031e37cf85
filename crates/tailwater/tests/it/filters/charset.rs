//! `charset`, `charset_map`

use tw_testkit::origin::counting;
use tw_testkit::{Response, Server};

use crate::support::{get, raw, refusal_of, request, server, start};

const MAPS: &str = "charset_map koi8-r utf-8 { C0 D18E; c1 d0b0; 95 E280A2; } \
                    charset_map koi8-r windows-1251 { C0 FE; C1 E0; }";

/// Bytes of a body as received, in any charset.
fn bytes(server: &Server, target: &str) -> Vec<u8> {
    let mut client = server.connect().unwrap();
    client.send(format!("GET {target} HTTP/1.0\r\n\r\n")).unwrap();
    let all = client.read_until_close().unwrap();
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    all[end + 4..].to_vec()
}

fn site() -> Server {
    start(
        server()
            .file("html/koi.html", b"a\xc0\xc1\x95\xff")
            .file("html/utf.html", "aюа•ы😀")
            .file("html/a.txt", "x")
            .file("html/a.gif", "x"),
        &format!(
            "{MAPS} map $arg_c $named {{ default ''; k koi8-r; w windows-1251; }} \
             server {{ listen 127.0.0.1:{{port}}; root html; \
             types {{ text/html html; text/plain txt; image/gif gif; }} charset utf-8; \
             location /off {{ alias html; charset off; }} \
             location /to-utf {{ alias html; source_charset koi8-r; }} \
             location /to-koi {{ alias html; charset koi8-r; source_charset utf-8; }} \
             location /to-win {{ alias html; charset windows-1251; source_charset koi8-r; }} \
             location /back {{ alias html; charset koi8-r; source_charset windows-1251; }} \
             location /var {{ alias html; charset $named; source_charset koi8-r; }} \
             location /source-var {{ alias html; source_charset $arg_s; }} \
             location /types {{ alias html; charset_types image/gif; }} \
             location /any {{ alias html; charset_types *; }} \
             location /moved {{ return 301 /x; }} location /found {{ return 307 /x; }} \
             location /none {{ default_type ''; return 200 x; }} }}"
        ),
    )
}

fn content_type(response: &Response) -> String {
    response.field("Content-Type").unwrap_or("-").to_owned()
}

#[test]
fn charset_is_added_to_content_type() {
    let server = site();
    for (target, expected) in [
        ("/koi.html", "text/html; charset=utf-8"),
        ("/a.txt", "text/plain; charset=utf-8"),
        ("/a.gif", "image/gif"),
        ("/off/koi.html", "text/html"),
        ("/to-win/koi.html", "text/html; charset=windows-1251"),
        ("/types/a.gif", "image/gif; charset=utf-8"),
        ("/types/koi.html", "text/html; charset=utf-8"),
        ("/types/a.txt", "text/plain"),
        ("/any/a.gif", "image/gif; charset=utf-8"),
        ("/moved", "text/html"),
        ("/found", "text/html; charset=utf-8"),
        ("/missing", "text/html; charset=utf-8"),
        ("/var/koi.html?c=w", "text/html; charset=windows-1251"),
        ("/var/koi.html", "text/html"),
        ("/none", "-"),
    ] {
        assert_eq!(content_type(&get(&server, target)), expected, "{target}");
    }
}

#[test]
fn bodies_are_recoded() {
    let server = site();
    for (target, expected) in [
        ("/koi.html", &b"a\xc0\xc1\x95\xff"[..]),
        ("/to-utf/koi.html", "aюа•?".as_bytes()),
        ("/to-koi/utf.html", b"a\xc0\xc1\x95&#1099;&#128512;"),
        ("/to-win/koi.html", b"a\xfe\xe0??"),
        ("/var/koi.html?c=w", b"a\xfe\xe0??"),
        ("/var/koi.html?c=k", b"a\xc0\xc1\x95\xff"),
        ("/source-var/koi.html?s=KOI8-R", "aюа•?".as_bytes()),
        ("/source-var/koi.html?s=other", b"a\xc0\xc1\x95\xff"),
    ] {
        assert_eq!(bytes(&server, target), expected, "{target}");
    }
    server.wait_error_log("no \"charset_map\" between the charsets \"other\" and \"utf-8\"").unwrap();
}

#[test]
fn recoding_to_another_length_removes_length_and_ranges() {
    let server = site();
    let same = get(&server, "/to-win/koi.html");
    assert_eq!(same.field("Content-Length"), Some("5"));
    assert_eq!(same.field("Accept-Ranges"), Some("bytes"));
    let other = get(&server, "/to-utf/koi.html");
    assert_eq!((other.field("Content-Length"), other.field("Accept-Ranges")), (None, None));
    assert!(other.field("ETag").is_some() && other.field("Last-Modified").is_some());
    let part = request(&server, "GET /to-win/koi.html", &["Range: bytes=0-0,3-3"]);
    assert_eq!(part.status, 206);
    let text = raw(
        &server,
        "GET /to-win/koi.html HTTP/1.1\r\nHost: a\r\nConnection: close\r\nRange: bytes=0-0,3-4\r\n\r\n",
    );
    assert!(
        text.contains(
            "Content-Type: text/html; charset=windows-1251\r\nContent-Range: bytes 3-4/5\r\n\r\n??\r\n"
        ),
        "{text}"
    );
}

#[test]
fn ranges_of_recoded_bodies_read_only_their_bytes() {
    use std::os::unix::fs::FileExt as _;

    // The hole is too large for any client to read to the end within its timeout.
    const HOLE: u64 = 1 << 40;
    let server = site();
    let file = std::fs::File::create(server.prefix().join("html/large.html")).unwrap();
    file.write_all_at(b"a\xc0\xc1\x95\xff", HOLE).unwrap();
    let one = format!("Range: bytes={}-{}", HOLE, HOLE + 1);
    for (target, expected) in [("/to-win/large.html", &b"a\xfe"[..]), ("/large.html", b"a\xc0")] {
        let part = request(&server, &format!("GET {target}"), &[&one]);
        assert_eq!((part.status, &part.body[..]), (206, expected), "{target}");
    }
    let many: Vec<String> = (0..200).map(|n| format!("{0}-{0}", HOLE + n % 5)).collect();
    let parts = request(&server, "GET /to-win/large.html", &[&format!("Range: bytes={}", many.join(","))]);
    assert_eq!(parts.status, 206);
    let has =
        |byte: &[u8]| parts.body.windows(7).filter(|at| *at == [b"\r\n\r\n", byte, b"\r\n"].concat()).count();
    assert_eq!([has(b"a"), has(b"\xfe"), has(b"\xe0"), has(b"?")], [40, 40, 40, 80]);
    let last = request(&server, "GET /to-win/large.html", &["Range: bytes=-5"]);
    assert_eq!((last.status, &last.body[..]), (206, &b"a\xfe\xe0??"[..]));
    // A body that becomes longer is served without ranges.
    let other = request(&server, "GET /to-utf/koi.html", &["Range: bytes=1-1"]);
    assert_eq!((other.status, other.field("Content-Range"), other.text()), (200, None, "aюа•?".to_owned()));
}

#[test]
fn subrequests_are_recoded_to_the_charset_of_the_main_request() {
    let server = start(
        server().file("html/a.html", "<").file("html/koi.html", b"\xc0").file("html/utf.html", "ы"),
        &format!(
            "{MAPS} server {{ listen 127.0.0.1:{{port}}; root html; \
             location /a.html {{ charset utf-8; add_after_body /koi.html; add_before_body /utf.html; }} \
             location /koi.html {{ source_charset koi8-r; }} }}"
        ),
    );
    assert_eq!(get(&server, "/a.html").text(), "ы<ю");
}

#[test]
fn split_sequences_are_recoded() {
    let text = format!("x{}", "юа•ы😀".repeat(20_000));
    let server = start(
        server().file("html/a.html", &*text),
        &format!(
            "{MAPS} server {{ listen 127.0.0.1:{{port}}; root html; charset koi8-r; source_charset utf-8; }}"
        ),
    );
    let expected = [b"x".to_vec(), b"\xc0\xc1\x95&#1099;&#128512;".repeat(20_000)].concat();
    assert!(bytes(&server, "/a.html") == expected);
}

#[test]
fn malformed_directives_are_refused() {
    for (conf, expected) in [
        ("charset_map a A { }", "\"charset_map\" between the same charsets \"a\" and \"A\""),
        (
            "charset_map utf-8 a { }",
            "\"charset_map\" with \"utf-8\" charset should be given in the second column",
        ),
        ("charset_map a b { } charset_map B A { }", "duplicate \"charset_map\" between \"B\" and \"A\""),
        ("charset_map a b { 1; }", "invalid parameters number"),
        ("charset_map a b { 1 100; }", "invalid value \"100\""),
        ("charset_map a utf-8 { 1 F09F9880; }", "invalid value \"F09F9880\""),
        (
            "server { charset a; source_charset b; }",
            "no \"charset_map\" between the charsets \"b\" and \"a\"",
        ),
        ("server { charset a; charset b; }", "\"charset\" directive is duplicate"),
        ("server { charset $nothing; }", "unknown \"nothing\" variable"),
    ] {
        let text = refusal_of(&format!("http {{ server {{ listen 127.0.0.1:{{port}}; }} {conf} }}"));
        assert!(text.contains(expected), "{conf}: {text}");
    }
}

#[test]
fn media_type_is_passed_as_written() {
    const WRITTEN: [&str; 4] = [
        "text/html;charset=utf-8",
        "text/html ; Charset=\"UTF-8\"",
        "text/html; a=b;charset=utf-8; c=d",
        "text/html;charset=",
    ];
    let (addr, _) = counting(|conn, head, _| {
        let nth: usize = head.rsplit_once(" HTTP/").unwrap().0.rsplit_once('/').unwrap().1.parse().unwrap();
        conn.answer(&format!("Cache-Control: max-age=600\r\nContent-Type: {}\r\n", WRITTEN[nth]), "a");
    });
    let server = start(
        server(),
        &format!(
            "{MAPS} proxy_cache_path cache keys_zone=one:1m; proxy_set_header Host x;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{addr}; charset koi8-r; }}
                 location /kept {{ proxy_pass http://{addr}; proxy_cache one; }}
                 location /changed {{ proxy_pass http://{addr}; charset koi8-r; override_charset on; }} }}"
        ),
    );
    for (nth, text) in WRITTEN.iter().enumerate() {
        // The second one may be kept by now.
        for dir in ["", "/kept", "/kept"] {
            let expected = match (dir, nth) {
                // The origin names no charset, so the server adds its own.
                ("", 3) => "text/html;charset=; charset=koi8-r",
                _ => text,
            };
            assert_eq!(content_type(&get(&server, &format!("{dir}/{nth}"))), expected, "{dir}");
        }
    }
    for (nth, expected) in ["text/html", "text/html ", "text/html; a=b"].iter().enumerate() {
        let expected = format!("{expected}; charset=koi8-r");
        assert_eq!(content_type(&get(&server, &format!("/changed/{nth}"))), expected);
    }
}
