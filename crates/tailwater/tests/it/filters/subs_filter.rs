//! `subs_filter`

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tw_testkit::origin::origin;
use tw_testkit::wait;

use crate::support::http2::{connect, start_http2};
use crate::support::http3::start_http3;
use crate::support::{get, page, refusal, request, server, start_server};

#[test]
fn strings_and_patterns_are_replaced_in_lines() {
    let server = start_server(
        server()
            .file("html/a.html", "One two ONE\ntwo one\n")
            .file("html/a.txt", "one")
            .file("html/e.html", ""),
        "location /text { alias html; subs_filter one 1; subs_filter TWO '<$arg_x>' i; } \
         location /once { alias html; subs_filter one 1 io; subs_filter two 2 o; } \
         location /regex { alias html; subs_filter '(?<first>o)(n)e' '$2$first' ir; subs_filter '^(t)wo$' '$1' r; } \
         location /any { alias html; subs_filter_types *; subs_filter one 1; } \
         location /more { alias html; subs_filter_types text/plain; subs_filter one 1; } \
         location /vary { alias html; subs_filter $arg_a A; subs_filter $arg_b B i; } \
         location /bypass { alias html; subs_filter_types *; subs_filter one 1; subs_filter_bypass $arg_p; subs_filter_bypass $http_p; } \
         location /both { alias html; subs_filter one 1; sub_filter 1 2; } \
         location /nested { subs_filter one x; location /nested/own { alias html; subs_filter two y; } \
           location /nested/with { alias html; } }",
    );
    for (target, expected) in [
        ("/text/a.html?x=y", "One <y> ONE\n<y> 1\n"),
        ("/text/a.txt", "one"),
        ("/text/e.html", ""),
        ("/once/a.html", "1 2 ONE\ntwo one\n"),
        ("/regex/a.html", "nO two NO\ntwo no\n"),
        ("/any/a.txt", "1"),
        ("/more/a.txt", "1"),
        ("/vary/a.html", "One two ONE\ntwo one\n"),
        ("/vary/a.html?a=two&b=oNe", "B A B\nA B\n"),
        ("/bypass/a.txt", "1"),
        ("/bypass/a.txt?p=0", "1"),
        ("/bypass/a.txt?p=1", "one"),
        ("/both/a.html", "One two ONE\ntwo 2\n"),
        ("/nested/own/a.html", "One y ONE\ny one\n"),
        ("/nested/with/a.html", "One two ONE\ntwo x\n"),
    ] {
        let entry = page(&server, target);
        assert_eq!(entry, (200, expected.to_owned()), "{target}");
    }
    assert_eq!(request(&server, "GET /bypass/a.txt", &["P: 1"]).text(), "one");
}

#[test]
fn replacement_removes_length_and_validators() {
    let server = start_server(server().file("html/a.html", "one"), "subs_filter one 1;");
    let plain = request(&server, "GET /a.html", &["Range: bytes=0-0"]);
    assert_eq!((plain.status, plain.text().as_str()), (200, "1"));
    for name in ["Last-Modified", "ETag", "Content-Length", "Accept-Ranges"] {
        assert_eq!(plain.field(name), None, "{name}");
    }
    let head = request(&server, "HEAD /a.html", &[]);
    assert_eq!((head.status, head.field("Content-Length"), head.field("ETag")), (200, None, None));
}

#[test]
fn all_versions_of_http_get_the_replacement() {
    let content = "types { text/html txt; } subs_filter hel(lo) '$1$1' r; subs_filter o 0; \
                   gzip on; gzip_min_length 1;";
    let server = start_http2(content);
    assert_eq!(page(&server, "/a.txt"), (200, "l0l0".to_owned()));
    assert_eq!(connect(&server).request("GET", "/a.txt", &[], b"").unwrap().text(), "l0l0");
    let packed = request(&server, "GET /a.txt", &["Accept-Encoding: gzip"]);
    assert_eq!(packed.field("Content-Encoding"), Some("gzip"));
    assert_eq!(start_http3(content).client().get("/a.txt").text(), "l0l0");
}

/// The origin sends the second part of the body once the client has the line that is complete.
#[test]
fn matches_across_pieces_of_a_proxied_body_are_found() {
    let goes_on = Arc::new(AtomicBool::new(false));
    let addr = origin({
        let goes_on = goes_on.clone();
        move |mut conn| {
            while let Some(head) = conn.head() {
                let coding = if head.contains("GET /packed") { "Content-Encoding: gzip\r\n" } else { "" };
                conn.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{coding}Content-Length: 24\r\n\r\na needle\nne"
                ));
                assert!(wait::until(Duration::from_secs(10), || goes_on.load(Relaxed)));
                conn.send("edle\nx needle");
            }
        }
    });
    let server = start_server(
        server(),
        &format!(
            "subs_filter needle pin; subs_filter '^p(.)n$' '[$1]' r;
             location / {{ proxy_pass http://{addr}; }}
             location /unbuffered {{ proxy_pass http://{addr}; proxy_buffering off; }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("GET /unbuffered HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    assert_eq!(client.read_bytes(6).unwrap(), b"a pin\n");
    goes_on.store(true, Relaxed);
    assert_eq!(client.read_bytes(9).unwrap(), b"[i]\nx pin");
    assert_eq!(page(&server, "/"), (200, "a pin\n[i]\nx pin".to_owned()));
    let packed = get(&server, "/packed");
    assert_eq!(packed.text(), "a needle\nneedle\nx needle");
    assert_eq!(packed.field("Content-Length"), Some("24"));
}

#[test]
fn long_lines_are_changed_in_parts() {
    let line = format!("{}needle", "abcd".repeat(1 << 18));
    let server = start_server(
        server().file("html/a.html", &line).file("html/short", "s"),
        "location / { subs_filter bc X; subs_filter needle pin; } \
         location /split { alias html; subs_buffers 2 4k; subs_line_buffer_size 3; subs_filter bcd X r; } \
         location /twice { alias html; subs_filter a $arg_x; subs_filter yy z; }",
    );
    let expected = format!("{}pin", "aXd".repeat(1 << 18));
    assert!(page(&server, "/a.html") == (200, expected));
    // Lines of 6 bytes: abcdab, cdabcd.
    let (status, text) = page(&server, "/split/a.html");
    assert_eq!((status, &text[..24]), (200, "aXabcdaXaXabcdaXaXabcdaX"));
    let (status, text) = page(&server, &format!("/twice/a.html?x={}", "y".repeat(100)));
    assert_eq!((status, text.len()), (200, (1 << 18) * 53 + 6));
}

#[test]
fn limit_of_backtracking_ends_the_response() {
    let server = start_server(
        server().file("html/a.html", "a".repeat(64)).file("html/b.html", "b"),
        r"subs_filter '^((a|aa)+)+(?!x)\1c$' x r;",
    );
    assert_eq!(page(&server, "/b.html"), (200, "b".to_owned()));
    let cut = crate::support::try_request(&server, "GET /a.html", &[]);
    assert!(cut.is_err(), "{:?}", cut.map(|response| response.text()));
    server.wait_error_log("exceeded its limit of backtracking").unwrap();
}

#[test]
fn malformed_directives_are_refused() {
    let many = "subs_filter a b; ".repeat(256);
    for (conf, expected) in [
        ("subs_filter '' b;", "empty search pattern"),
        (&*many, "number of rules exceeds 255"),
        ("subs_filter a;", "invalid number of arguments in \"subs_filter\" directive"),
        ("subs_filter a b x;", "invalid parameter \"x\""),
        ("subs_filter ( b r;", "regex compilation failed"),
        ("subs_filter a$uri b r;", "match part cannot contain variable during regex mode"),
        ("subs_filter $nothing b;", "unknown \"nothing\" variable"),
        ("subs_buffers 0 4k;", "invalid value"),
        ("subs_line_buffer_size 0;", "must be between 1 and 67108864"),
        ("subs_line_buffer_size 1m; subs_buffers 65 4k;", "must be between 1 and 67108864"),
        ("subs_line_buffer_size x;", "invalid value"),
    ] {
        let text = refusal(conf);
        assert!(text.contains(expected), "{conf}: {text}");
    }
}
