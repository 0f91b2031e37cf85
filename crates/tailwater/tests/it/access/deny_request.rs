//! `deny_request`

use crate::support::metrics::metric;
use crate::support::{page, refusal, refusal_of, request, server, start};

#[test]
fn set_variable_refuses_and_names_the_reason() {
    let server = start(
        server().file("html/index.html", "in"),
        "map $http_user_agent $bad_agent { ~*scraper scraper; ~*probe probe; }
         map $arg_x $other { default $arg_x; }
         log_format l '$request_uri $status $deny_reason'; access_log logs/access.log l;
         server {
           listen 127.0.0.1:{port}; root html; deny_request $bad_agent; error_page 429 /busy;
           location /metrics { metrics; deny_request $arg_none; }
           location /other/ { deny_request $other status=429; }
           location /busy { internal; return 200 'busy $deny_reason'; }
           location /post/ { limit_except GET { deny_request $arg_x; } return 200 post; }
         }",
    );
    assert_eq!(page(&server, "/").0, 200);
    assert_eq!(request(&server, "GET /a", &["User-Agent: a Scraper"]).status, 403);
    assert_eq!(request(&server, "GET /b", &["User-Agent: probe"]).status, 403);
    // A block with rules has those alone.
    assert_eq!(request(&server, "GET /other/", &["User-Agent: probe"]).status, 404);
    assert_eq!(page(&server, "/other/?x=0").0, 404);
    assert_eq!(page(&server, "/other/?x=why"), (429, "busy why".to_owned()));
    assert_eq!(request(&server, "GET /post/?x=1", &[]).text(), "post");
    assert_eq!(request(&server, "DELETE /post/?x=1", &[]).status, 403);
    let lines = server.access_log(8).unwrap();
    assert_eq!(lines[..2], ["/ 200 -", "/a 403 scraper"]);
    server.wait_error_log("[info]").unwrap();
    server.wait_error_log("request denied: \"scraper\", client: 127.0.0.1").unwrap();
    assert_eq!(metric(&server, "denied_requests_total{reason=\"scraper\"}"), 1);
    assert_eq!(metric(&server, "denied_requests_total{reason=\"probe\"}"), 1);
    assert_eq!(metric(&server, "denied_requests_total{reason=\"other\"}"), 2);
}

#[test]
fn denied_request_is_refused_whatever_else_is_satisfied() {
    let server = start(
        server(),
        "map $arg_x $why { 1 reason; }
         server {
           listen 127.0.0.1:{port}; location /metrics { metrics; }
           location /all { allow all; deny_request $why; try_files /none =204; }
           location /any { satisfy any; allow all; deny_request $why; try_files /none =204; }
           location /user { satisfy any; deny all; deny_request $why; auth_request /ok; try_files /none =204; }
           location /ok { internal; return 204; }
           location /only { satisfy any; deny_request $why status=451; try_files /none =204; }
           location /last { satisfy any; deny_request $why status=503; try_files /none =204; }
           location /both { satisfy any; deny all; deny_request $why; try_files /none =204; }
         }",
    );
    for (target, status) in [
        ("/all", 204),
        ("/all?x=1", 403),
        ("/any", 204),
        ("/any?x=1", 403),
        ("/user", 204),
        ("/user?x=1", 403),
        ("/only", 204),
        ("/only?x=1", 451),
        ("/last?x=1", 503),
        ("/both", 403),
        ("/both?x=1", 403),
    ] {
        assert_eq!(page(&server, target).0, status, "{target}");
    }
    // Requests for "/both" are refused by "deny" before.
    assert_eq!(metric(&server, "denied_requests_total{reason=\"reason\"}"), 5);
}

#[test]
fn wrong_rules_are_refused() {
    for (wrong, message) in [
        ("deny_request;", "invalid number of arguments in \"deny_request\" directive"),
        ("deny_request $none;", "unknown \"none\" variable"),
        ("deny_request $uri status=200;", "invalid parameter \"status=200\""),
        ("deny_request $uri status=x;", "invalid parameter \"status=x\""),
        ("deny_request $uri 403;", "invalid parameter \"403\""),
        ("if ($arg_a) { deny_request $uri; }", "\"deny_request\" directive is not allowed here"),
    ] {
        assert!(refusal(wrong).contains(message), "{wrong}: {}", refusal(wrong));
    }
}

#[test]
fn directives_of_firewalls_name_what_there_is() {
    for wrong in [
        "SecRulesEnabled;",
        "CheckRule \"$SQL >= 8\" BLOCK;",
    ] {
        let refused = refusal_of(&format!("http {{ server {{ listen 127.0.0.1:{{port}}; {wrong} }} }}"));
        for part in ["unknown directive", "deny_request", "map", "modsecurity"] {
            assert!(refused.contains(part), "{wrong}: {refused}");
        }
    }
}
