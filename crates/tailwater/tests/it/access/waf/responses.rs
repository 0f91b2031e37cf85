//! Rules for responses.

use super::start_firewall;
use crate::support::{page, request, server, start};

#[test]
fn response_is_checked_before_it_is_sent() {
    let server = start_firewall(
        "SecResponseBodyAccess On
         SecRule RESPONSE_STATUS \"@streq 418\" \"id:1,phase:3,deny,status:502\"
         SecRule RESPONSE_BODY \"@contains stack trace\" \"id:3,phase:4,deny,status:500\"",
        "location / { }
         location /text { try_files /none =404; error_page 404 /trace; }
         location /status { return 418 status; }
         location /trace { return 404 'a stack trace'; }",
    );
    assert_eq!(page(&server, "/"), (200, "page".to_owned()));
    assert_eq!(page(&server, "/status").0, 502);
    let body = page(&server, "/trace");
    assert_eq!(body.0, 500);
    assert!(!body.1.contains("stack trace"));
}

#[test]
fn response_of_an_upstream_server_is_checked() {
    let server = start(
        server().file("html/ok.txt", "fine").file("html/bad.txt", format!("{}stack trace", "x".repeat(20_000))),
        "server {
           listen 127.0.0.1:{port}; root html; modsecurity on;
           modsecurity_rules '
             SecRuleEngine On
             SecResponseBodyAccess On
             SecResponseBodyLimit 100000
             SecRule RESPONSE_HEADERS:X-Secret \"@rx .\" \"id:2,phase:3,deny\"
             SecRule RESPONSE_BODY \"@contains stack trace\" \"id:3,phase:4,deny,status:500\"
           ';
           location / { proxy_pass http://127.0.0.1:{port}/origin/; }
           location /origin/ { modsecurity off; alias html/; location /origin/secret { add_header X-Secret yes; return 200; } }
         }",
    );
    assert_eq!(page(&server, "/ok.txt"), (200, "fine".to_owned()));
    assert_eq!(page(&server, "/secret").0, 403);
    assert_eq!(page(&server, "/bad.txt").0, 500);
    assert_eq!(request(&server, "HEAD /bad.txt", &[]).status, 200);
}

#[test]
fn response_beyond_its_limit_is_refused_or_checked_in_part() {
    let rules = "SecResponseBodyAccess On
         SecResponseBodyLimit 3
         SecRule RESPONSE_BODY \"@contains page\" \"id:3,phase:4,deny\"";
    assert_eq!(page(&start_firewall(rules, "location / { }"), "/").0, 500);
    let rules = format!("{rules}\nSecResponseBodyLimitAction ProcessPartial");
    assert_eq!(page(&start_firewall(&rules, "location / { }"), "/"), (200, "page".to_owned()));
}
