//! Rules for the head of a request.

use super::start_firewall;
use crate::support::metrics::metric;
use crate::support::{page, request};

#[test]
fn matching_request_is_refused_and_others_pass() {
    let server = start_firewall(
        "SecRule ARGS|REQUEST_HEADERS:User-Agent \"@rx (?i)evil\" \"id:1,phase:1,t:none,t:urlDecodeUni,deny,status:406\"
         SecRule REQUEST_METHOD \"!@within GET HEAD POST\" \"id:2,phase:1,deny\"",
        "location / { } location /metrics { metrics; }",
    );
    assert_eq!(page(&server, "/"), (200, "page".to_owned()));
    for _ in 0..3 {
        assert_eq!(page(&server, "/?a=%2565vil").0, 406);
        assert_eq!(page(&server, "/?a=evil").0, 406);
        assert_eq!(page(&server, "/?a=good").0, 200);
    }
    assert_eq!(request(&server, "GET /", &["User-Agent: EVIL"]).status, 406);
    assert_eq!(request(&server, "GET /", &["Accept: evil"]).status, 200);
    assert_eq!(request(&server, "DELETE /", &[]).status, 403);
    assert_eq!(metric(&server, "modsecurity_requests_total{verdict=\"blocked\"}"), 8);
    assert_eq!(metric(&server, "modsecurity_rule_matches_total{rule=\"1\",paranoia_level=\"0\"}"), 7);
}

#[test]
fn rules_see_a_request_before_return_answers_it() {
    let server = start_firewall(
        "SecRule ARGS:a \"@streq bad\" \"id:1,phase:1,deny\"",
        "location /x { return 200 text; } location /off { modsecurity off; return 200 off; }",
    );
    assert_eq!(page(&server, "/x").1, "text");
    assert_eq!(page(&server, "/x?a=bad").0, 403);
    assert_eq!(page(&server, "/off?a=bad").1, "off");
}

#[test]
fn disruptive_actions_redirect_drop_and_allow() {
    let server = start_firewall(
        "SecRule ARGS:a \"@streq 1\" \"id:1,phase:1,redirect:http://other.example/%{ARGS.b},status:307\"
         SecRule ARGS:a \"@streq 2\" \"id:2,phase:1,drop\"
         SecRule ARGS:a \"@streq 3\" \"id:3,phase:1,allow\"
         SecRule ARGS \"@contains bad\" \"id:4,phase:1,deny\"
         SecRule ARGS \"@contains bad\" \"id:5,phase:2,deny\"",
        "location / { }",
    );
    let redirect = request(&server, "GET /?a=1&b=x", &[]);
    assert_eq!((redirect.status, redirect.field("Location")), (307, Some("http://other.example/x")));
    assert_eq!(page(&server, "/?a=3&b=bad").0, 200);
    assert_eq!(page(&server, "/?a=4&b=bad").0, 403);
    let mut client = server.connect().unwrap();
    client.send("GET /?a=2 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(client.read_response().is_err());
}

#[test]
fn scores_chains_and_markers_decide() {
    let server = start_firewall(
        "SecAction \"id:1,phase:1,pass,nolog,setvar:tx.limit=5\"
         SecRule ARGS \"@rx one\" \"id:2,phase:1,pass,setvar:tx.score=+3\"
         SecRule ARGS:a \"@rx (two)(.*)\" \"id:3,phase:1,pass,capture,chain\"
           SecRule TX:2 \"@streq x\" \"setvar:tx.score=+3\"
         SecRule ARGS:skip \"@eq 1\" \"id:4,phase:1,pass,nolog,skipAfter:END\"
         SecRule TX:score \"@ge %{tx.limit}\" \"id:5,phase:1,deny\"
         SecMarker END",
        "location / { add_header X-Score $modsecurity_verdict always; }",
    );
    assert_eq!(page(&server, "/?a=one").0, 200);
    assert_eq!(page(&server, "/?a=two&b=one").0, 200);
    assert_eq!(page(&server, "/?a=twox&b=one").0, 403);
    assert_eq!(page(&server, "/?a=twox&b=one&skip=1").0, 200);
    assert_eq!(page(&server, "/?a=one&b=one").0, 403);
}

#[test]
fn rules_and_targets_are_removed_for_a_location() {
    let server = start_firewall(
        "SecRule ARGS|REQUEST_COOKIES \"@contains bad\" \"id:10,phase:1,deny,tag:mine\"",
        "location / { }
         location /a { modsecurity_rules 'SecRuleRemoveById 10'; try_files /index.html =404; }
         location /b { modsecurity_rules 'SecRuleUpdateTargetById 10 !ARGS:text'; try_files /index.html =404; }
         location /c {
           modsecurity_rules 'SecRule REQUEST_URI \"@beginsWith /c/x\" \"id:9,phase:1,pass,nolog,ctl:ruleRemoveByTag=mine\"';
           try_files /index.html =404;
         }",
    );
    assert_eq!(page(&server, "/?text=bad").0, 403);
    assert_eq!(page(&server, "/a?text=bad").0, 200);
    assert_eq!(page(&server, "/b?text=bad").0, 200);
    assert_eq!(page(&server, "/b?other=bad").0, 403);
    // The rule with the exception stands behind the one that it removes.
    assert_eq!(page(&server, "/c/x?text=bad").0, 403);
}

#[test]
fn collections_outlive_requests() {
    let server = start_firewall(
        "SecAction \"id:1,phase:1,pass,nolog,initcol:ip=%{REMOTE_ADDR}\"
         SecAction \"id:2,phase:1,pass,nolog,setvar:ip.count=+1\"
         SecRule IP:count \"@gt 3\" \"id:3,phase:1,deny,status:429\"",
        "location / { }",
    );
    for _ in 0..3 {
        assert_eq!(page(&server, "/").0, 200);
    }
    assert_eq!(page(&server, "/").0, 429);
}

#[test]
fn long_head_is_checked_in_the_pool() {
    let server = start_firewall(
        "SecRule ARGS:x \"@rx evil$\" \"id:1,phase:1,deny\"",
        "large_client_header_buffers 4 16k;",
    );
    let long = "a".repeat(6000);
    assert_eq!(page(&server, &format!("/?x={long}")).0, 200);
    assert_eq!(page(&server, &format!("/?x={long}evil")).0, 403);
}
