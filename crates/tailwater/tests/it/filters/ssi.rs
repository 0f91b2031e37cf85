//! `ssi`

use std::fmt::Write as _;

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::{Server, wait};

use crate::support::{get, page, request, server, start, start_server};

const ERROR: &str = "[an error occurred while processing the directive]";

/// A server with these files, whose pages have the expected text.
fn check(conf: &str, files: &[(&str, &str)], pages: &[(&str, &str)]) -> Server {
    let names: Vec<String> = (0..pages.len()).map(|n| format!("html/page{n}.html")).collect();
    let mut site = server();
    for (name, text) in files {
        site = site.file(format!("html/{name}"), text);
    }
    for (name, (text, _)) in names.iter().zip(pages) {
        site = site.file(name, text);
    }
    let server = start_server(site, &format!("ssi on; {conf}"));
    for (n, (text, expected)) in pages.iter().enumerate() {
        let (status, found_text) = page(&server, &format!("/page{n}.html?a=b&c=<\"&%20"));
        assert_eq!((status, &*found_text), (200, *expected), "{text}");
    }
    server
}

#[test]
fn set_and_echo_variables() {
    check(
        "set $known 'a<b'; set $empty '';",
        &[],
        &[
            ("plain <!-- comment --> <!---->", "plain <!-- comment --> <!---->"),
            ("<!--#echo var='known' -->", "a&lt;b"),
            ("<!--#echo var=\"KNOWN\" encoding='none' -->", "a<b"),
            ("<!--#echo var='known' encoding='url' -->", "a%3Cb"),
            ("<!--#echo var='known' encoding='none' --><!--#echo var='known' -->", "a<ba<b"),
            ("<!--#echo var='known' encoding='odd' -->", "a&lt;b"),
            ("<!--#echo var='nothing' -->|<!--#echo var='nothing' default='d' -->", "(none)|d"),
            ("<!--#echo var='nothing' default='' -->|<!--#echo var='empty' default='d' -->", "|"),
            ("<!--#echo var='arg_a' -->,<!--#echo var='http_host' -->", "b,localhost"),
            ("<!--#set var='V' value='x$known-${arg_a}' --><!--#echo var='v' encoding='none' -->", "xa<b-b"),
            ("<!--#set var='v' value='1' --><!--#set var='v' value='${v}2' --><!--#echo var='v' -->", "12"),
            ("<!--#set var='known' value='mine' --><!--#echo var='known' -->", "mine"),
            (
                r#"<!--#set var='v' value='\$a \'\"\\ \x' --><!--#echo var='v' encoding='none' -->"#,
                r#"$a '"\ \x"#,
            ),
            ("<!--#set var='v' value='$' -->", ERROR),
            ("<!--#set var='v' value='${v' -->", ERROR),
            ("<!--#config errmsg='oops' --><!--#set var='v' -->", "oops"),
        ],
    );
}

#[test]
fn if_elif_else_select_text() {
    let cases = [
        ("$yes", "1"),
        ("$no", "2"),
        ("$no = ", "1"),
        ("$yes = Yes", "1"),
        ("$yes != Yes", "2"),
        ("$yes = yes", "2"),
        ("$yes = /^y/", "2"),
        ("$yes = /^Y(.)/", "1"),
        ("$yes != /^Y/", "2"),
        ("${yes}x = $yes$yes", "2"),
        ("text", "1"),
        ("$yes = /(/", "[E]12"),
        ("$yes Yes", "[E]12"),
    ];
    let set = "<!--#config errmsg='[E]' --><!--#set var='yes' value='Yes' --><!--#set var='no' value='' -->";
    let pages: Vec<(String, &str)> = cases
        .iter()
        .map(|(expr, expected)| {
            (format!("{set}<!--#if expr='{expr}' -->1<!--#else -->2<!--#endif -->"), *expected)
        })
        .map(|(text, expected)| (text, if expected == "[E]12" { "[E]1[E]2[E]" } else { expected }))
        .collect();
    let mut pages: Vec<(&str, &str)> = pages.iter().map(|(text, expected)| (&**text, *expected)).collect();
    pages.extend([
        ("<!--#if expr='' -->1<!--#elif expr='$arg_a = b' -->2<!--#elif expr='x' -->3<!--#else -->4<!--#endif -->5", "25"),
        ("<!--#if expr='$arg_a = /(?P<L>.)(x)?/' --><!--#echo var='0' --><!--#echo var='1' --><!--#echo var='l' --><!--#endif -->", "bbb"),
        ("<!--#if expr='' --><!--#echo var='uri' --><!--#nonsense --><!--#include virtual='/x' --><!--#endif -->a", "a"),
        ("<!--#config errmsg='E' --><!--#if expr='x' -->1<!--#if expr='y' -->2<!--#endif -->3<!--#endif -->", "1E23E"),
        ("<!--#config errmsg='E' --><!--#else --><!--#endif --><!--#elif expr='x' -->", "EEE"),
        ("<!--#config errmsg='E' --><!--#if expr='x' -->1<!--#else -->2<!--#else -->3<!--#endif -->", "1E"),
    ]);
    check("", &[], &pages);
}

#[test]
fn include_inserts_responses() {
    let server = check(
        "location /sub { ssi off; } location = /found { return 200 'found'; } \
         location = /gone { return 410; } location = /own { error_page 404 /found; return 404; } \
         location = /code { return 404 text; }",
        &[
            ("inc.html", "<<!--#echo var='arg_x' --><!--#echo var='v' -->>"),
            ("dir/inc.html", "{<!--#include virtual='deep.html' -->}"),
            ("dir/deep.html", "deep <!--#echo var='document_uri' -->"),
            ("sub/raw.html", "<!--#raw -->"),
            ("empty.html", ""),
            ("nothing.html", "<!--#set var='v' value='child' -->"),
            ("with space.html", "space"),
            ("text.txt", "<!--#echo -->"),
        ],
        &[
            ("a<!--#include virtual='/inc.html?x=1' -->b", "a<1(none)>b"),
            ("<!--#include file='inc.html' -->", "<(none)(none)>"),
            ("<!--#set var='f' value='inc' --><!--#include virtual='/$f.html?x=$arg_a' -->", "<b(none)>"),
            ("<!--#include virtual='dir/inc.html' -->", "{deep /dir/deep.html}"),
            (
                "<!--#include virtual='/sub/raw.html' -->|<!--#include virtual='/text.txt' -->",
                "<!--#raw -->|<!--#echo -->",
            ),
            ("<!--#include virtual='/with%20space.html' -->", "space"),
            ("<!--#include virtual='/code' -->|<!--#include virtual='/found' -->", "text|found"),
            (
                "<!--#set var='v' value='p' --><!--#include virtual='/nothing.html' --><!--#echo var='v' -->",
                "p",
            ),
            ("<!--#include virtual='/nothing.html' wait='yes' --><!--#echo var='v' -->", "child"),
            ("<!--#include virtual='/found' set='v' --><!--#echo var='v' -->!", "found!"),
            ("<!--#include virtual='/gone' set='v' -->[<!--#echo var='v' -->]", "[]"),
            (
                "<!--#block name='s' -->s <!--#echo var='uri' --><!--#endblock -->[<!--#include virtual='/gone' stub='s' -->]",
                "[s /gone]",
            ),
            ("<!--#block name='s' -->S<!--#endblock --><!--#include virtual='/own' stub='s' -->", "S"),
            ("<!--#block name='s' -->S<!--#endblock --><!--#include virtual='/code' stub='s' -->", "text"),
            (
                "<!--#block name='s' -->S<!--#endblock --><!--#include virtual='/nothing.html' stub='s' -->",
                "",
            ),
            ("<!--#block name='s' -->S<!--#endblock --><!--#include virtual='/found' stub='s' -->", "found"),
            (
                "<!--#block name='one' -->1<!--#endblock -->x<!--#block name='two' -->2<!--#endblock --><!--#include virtual='/gone' stub='two' --><!--#include virtual='/gone' stub='one' -->",
                "x21",
            ),
            ("<!--#include virtual='/../x' -->", ERROR),
            ("<!--#include -->", ERROR),
            ("<!--#include virtual='/a' file='b' -->", ERROR),
            ("<!--#include virtual='/found' set='a' stub='b' -->", ERROR),
            ("<!--#include virtual='/found' stub='none' -->", ERROR),
            ("<!--#include file='inc.html' wait='yes' -->", ERROR),
            ("<!--#include virtual='/found' wait='maybe' -->", ERROR),
        ],
    );
    server.wait_error_log("unsafe URI \"/../x\" was detected").unwrap();
}

#[test]
fn includes_are_not_compressed_separately() {
    let server = start_server(
        server()
            .file("html/a.html", "<!--#include virtual='/part.html' -->")
            .file("html/part.html", "p".repeat(2000)),
        "location /a.html { ssi on; } location /part.html { gzip on; }",
    );
    let response = request(&server, "GET /a.html", &["Accept-Encoding: gzip"]);
    assert_eq!((response.field("Content-Encoding"), response.text()), (None, "p".repeat(2000)));
    assert_eq!(
        request(&server, "GET /part.html", &["Accept-Encoding: gzip"]).field("Content-Encoding"),
        Some("gzip")
    );
}

#[test]
fn ssi_settings_apply() {
    let server = start_server(
        server()
            .file("html/a.html", "<!--#bad -->x")
            .file("html/a.txt", "<!--#bad -->x")
            .file("html/v.html", "<!--#echo var='none' default='12345678' -->|<!--#echo var='none' default='123456789' -->")
            .file("html/d.html", "<!--#config timefmt='%Y' --><!--#echo var='date_gmt' -->|<!--#config timefmt='%s' --><!--#echo var='date_local' -->"),
        "ssi on; location /keep { alias html; ssi_last_modified on; } \
         location /silent { alias html; ssi_silent_errors on; } location /types { alias html; ssi_types text/plain; types { text/html html; text/plain txt; } } \
         location /short { alias html; ssi_value_length 8; } location /off { alias html; ssi off; }",
    );
    let response = request(&server, "GET /a.html", &["Range: bytes=0-0"]);
    assert_eq!((response.status, response.text()), (200, format!("{ERROR}x")));
    for name in ["Last-Modified", "ETag", "Content-Length", "Accept-Ranges"] {
        assert_eq!(response.field(name), None, "{name}");
    }
    let kept = get(&server, "/keep/a.html");
    assert!(kept.field("Last-Modified").is_some() && kept.field("ETag").unwrap().starts_with("W/"));
    let head = request(&server, "HEAD /a.html", &[]);
    assert_eq!((head.status, head.field("Content-Length")), (200, None));
    assert_eq!(page(&server, "/silent/a.html").1, "x");
    assert_eq!(page(&server, "/types/a.txt").1, format!("{ERROR}x"));
    assert_eq!(page(&server, "/a.txt").1, "<!--#bad -->x");
    assert_eq!(page(&server, "/off/a.html").1, "<!--#bad -->x");
    assert_eq!(page(&server, "/short/v.html").1, format!("12345678|{ERROR}"));
    let dates = page(&server, "/d.html").1;
    let (year, unix) = dates.split_once('|').unwrap();
    assert!(year.len() == 4 && unix.parse::<u64>().unwrap() > 1_700_000_000, "{dates}");
}

#[test]
fn recursive_includes_end() {
    let server = start_server(
        server()
            .file("html/loop.html", "x<!--#include virtual='/loop.html' -->y")
            .file("html/wait.html", "x<!--#include file='wait.html' -->y")
            .file("html/stub.html", "<!--#block name='s' -->x<!--#include virtual='/none' stub='s' -->y<!--#endblock --><!--#include virtual='/none' stub='s' -->"),
        "ssi on; sub_filter z Z; charset utf-8; sub_filter_once off; location = /none { return 404; }",
    );
    for target in ["/loop.html", "/wait.html"] {
        let (status, text) = page(&server, target);
        assert_eq!((status, text), (200, format!("{}{ERROR}{}", "x".repeat(52), "y".repeat(52))), "{target}");
    }
    server.wait_error_log("subrequests cycle while processing \"/wait.html\"").unwrap();
    let log = server.error_log();
    assert_eq!(log.matches("subrequests cycle").count(), 2, "{log}");
    assert!(
        log.contains("request: \"GET /loop.html HTTP/1.1\", subrequest: \"/loop.html\", host: \"localhost\""),
        "{log}"
    );
    let (status, text) = page(&server, "/stub.html");
    assert!(status == 200 && text.len() > ERROR.len() && text.contains(ERROR), "{text}");
}

#[test]
fn long_values_and_split_commands_are_parsed() {
    let long = "v".repeat(65_536);
    let mut text = format!("<!--#set var='a' value='{long}' -->");
    for _ in 0..300 {
        text.push_str("<!--#echo var='a' -->,");
    }
    let server = start_server(
        server().file("html/a.html", &text).file("html/half.html", "x<!--#echo var='uri"),
        "ssi on; ssi_value_length 64k;",
    );
    let (status, found_text) = page(&server, "/a.html");
    assert!(status == 200 && found_text == format!("{long},").repeat(300), "{} bytes", found_text.len());
    assert_eq!(page(&server, "/half.html").1, "x");
}

/// Pages on which nginx takes memory and time without bound.
#[test]
fn malformed_pages_are_harmless() {
    let mut many = String::new();
    for n in 0..40_000 {
        write!(many, "<!--#set var='v{n}' value='{n}' -->").unwrap();
    }
    let double = format!(
        "<!--#set var='a' value='x' -->{}[<!--#echo var='a' -->]",
        "<!--#set var='a' value='$a$a' -->".repeat(40)
    );
    let server = start_server(
        server()
            .file("html/two.html", "<!--#include virtual='/two.html' -->".repeat(2))
            .file("html/starts.html", "<!--#".repeat(200_000))
            .file("html/dashes.html", "<!--".repeat(250_000))
            .file("html/many.html", format!("{many}<!--#echo var='v39999' -->"))
            .file("html/double.html", &double)
            .file(
                "html/block.html",
                format!("<!--#block name='b' -->{}<!--#endblock -->x", "y".repeat(6 << 20)),
            )
            .file("html/a.html", "fine"),
        "ssi on;",
    );
    let (status, text) = page(&server, "/two.html");
    assert!(status == 200 && text.contains(ERROR), "{status}");
    server.wait_error_log("subrequests").unwrap();
    let log = server.error_log();
    assert!(log.lines().filter(|line| line.contains("[error]")).count() <= 2, "{log}");
    assert_eq!(page(&server, "/starts.html"), (200, String::new()));
    assert_eq!(page(&server, "/dashes.html").1.len(), 4 * 250_000 - 4);
    assert_eq!(page(&server, "/many.html").1, "39999");
    let (_, text) = page(&server, "/double.html");
    assert!(text.starts_with(ERROR) && text.len() < 4 << 20, "{} bytes", text.len());
    assert_eq!(page(&server, "/block.html").1, "x");
    assert_eq!(page(&server, "/a.html").1, "fine");
}

#[test]
fn closed_client_connection_during_an_include_is_logged_with_page_variables() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let mut site = server();
    let include = |name: String| format!("<!--#include virtual='/slow/{name}' -->");
    let cases = [("open", Op::Open, ""), ("read", Op::Read, ""), ("stub", Op::Open, " stub='s'")];
    for (name, _, stub) in cases {
        let first = include(format!("{name}-a"));
        let second = include(format!("{name}-b"));
        let page = if stub.is_empty() {
            format!("It: {first} and {second}")
        } else {
            let missing = format!("<!--#include virtual='/missing'{stub} -->");
            format!("It: <!--#block name='s' -->{second}<!--#endblock -->{first} and {missing}")
        };
        site = site.file(format!("html/{name}.html"), page);
        disk.write(format!("{name}-a"), "first");
        disk.write(format!("{name}-b"), "second");
    }
    let server = start(
        site,
        &format!(
            "log_format known '$uri $mark'; access_log logs/known.log known;
             server {{ listen 127.0.0.1:{{port}}; root html;
               location / {{ set $mark kept; ssi on; }} location /slow/ {{ alias {}/; }} }}",
            disk.path().display()
        ),
    );
    for (n, (name, op, _)) in cases.into_iter().enumerate() {
        let first = disk.on(Op::Open).name(format!("{name}-a")).inject(Fault::Stall);
        let second = disk.on(op).name(format!("{name}-b")).inject(Fault::Stall);
        let mut client = server.connect().unwrap();
        client.send(format!("GET /{name}.html HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
        assert!(wait::until(wait::TIMEOUT, || first.waiting() > 0));
        // Output behind the first include cannot be written any more.
        client.read_head().unwrap();
        client.reset().unwrap();
        first.lift();
        let lines = server.log("logs/known.log", n + 1).unwrap();
        assert_eq!(lines[n], format!("/{name}.html kept"));
        second.lift();
    }
}
