//! `valid_referers`

use crate::support::{refusal, request, server, start};

#[test]
fn referers_are_valid_where_they_are_listed() {
    let server = start(
        server(),
        "server { listen 127.0.0.1:{port}; server_name own.example.com *.own.example.net ~^own[0-9]+$;
             valid_referers none blocked www.example.com;
             location / { return 200 '<$invalid_referer>'; }
             location /listed { valid_referers none *.example.org/path ~\\.regex\\.; return 200 '<$invalid_referer>';
                 location /listed/inner { valid_referers a.b/anything; return 200 '<$invalid_referer>'; } }
             location /blocked { valid_referers blocked server_names; return 200 '<$invalid_referer>'; }
             location /if { valid_referers server_names; if ($invalid_referer) { return 403; } return 200 '<>'; }
         }
         server { listen 127.0.0.1:{port}; server_name free; location / { return 200 '<$invalid_referer>'; } }",
    );
    for (target, referer, expected) in [
        ("/", None, "<>"),
        ("/", Some("no scheme at all"), "<>"),
        ("/", Some("https://WWW.Example.com/x"), "<>"),
        ("/", Some("http://other.example.com/"), "<1>"),
        ("/listed", None, "<>"),
        ("/listed", Some("http://a.example.org/path/x"), "<>"),
        ("/listed", Some("http://a.example.org/"), "<1>"),
        ("/listed", Some("http://a.regex.com/"), "<>"),
        ("/listed", Some("http://www.example.com/"), "<1>"),
        ("/listed/inner", None, "<1>"),
        ("/listed/inner", Some("http://a.b/any"), "<1>"),
        ("/listed/inner", Some("http://a.b/anything"), "<>"),
        ("/listed/inner", Some("http://a.regex.com/"), "<>"),
        ("/blocked", None, "<1>"),
        ("/blocked", Some("no scheme"), "<>"),
        ("/blocked", Some("http://own.example.com/"), "<>"),
        ("/blocked", Some("http://a.own.example.net/"), "<>"),
        ("/blocked", Some("http://own12/"), "<>"),
        ("/blocked", Some("http://ownx.com/"), "<1>"),
        ("/if", Some("http://own.example.com/"), "<>"),
    ] {
        let field = referer.map(|referer| format!("Referer: {referer}"));
        let fields: Vec<&str> = field.iter().map(String::as_str).collect();
        assert_eq!(
            request(&server, &format!("GET {target}"), &fields).text(),
            expected,
            "{target} {referer:?}"
        );
    }
    assert_eq!(request(&server, "GET /if", &["Referer: http://other/"]).status, 403);
}

#[test]
fn malformed_directives_are_refused() {
    for (conf, expected) in [
        ("valid_referers '';", "invalid referer \"\" in"),
        ("valid_referers ~;", "empty regex in \"~\" in"),
        ("valid_referers ~(;", "regex compilation failed"),
        ("valid_referers a*b;", "invalid hostname or wildcard \"a*b\" in"),
        ("valid_referers a.b A.b;", "conflicting parameter \"a.b\" in"),
        (
            "valid_referers none blocked;",
            "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive without any valid \
             referer",
        ),
        ("valid_referers;", "invalid number of arguments in \"valid_referers\" directive"),
    ] {
        let said = refusal(conf);
        assert!(said.contains(expected), "{conf}: {said}");
    }
}
