//! `internal_redirect`

use crate::support::{page, refusal, server, start, start_server};

#[test]
fn another_location_answers() {
    let server = start_server(
        server(),
        "location /to/ { internal_redirect /inner?a=$arg_a; return 200 never; }
         location /named { internal_redirect @named; }
         location /maybe { internal_redirect $arg_to; }
         location /outer/ { internal_redirect /inner; location /outer/in { } location /outer/none { internal_redirect ''; } }
         location = /inner { internal; return 200 'inner $uri $arg_a'; }
         location @named { return 200 'named $uri'; }
         location /circle { internal_redirect /circle; }",
    );
    // A response of the rewrite phase comes first.
    assert_eq!(page(&server, "/to/x").1, "never");
    for (target, expected) in [
        ("/named", "named /named"),
        ("/maybe?to=/inner", "inner /inner "),
        ("/maybe?to=/inner?a=1", "inner /inner 1"),
        ("/maybe?to=@named", "named /maybe"),
        ("/outer/in", "inner /inner "),
    ] {
        assert_eq!(page(&server, target).1, expected, "{target}");
    }
    for (target, status) in [
        ("/maybe", 404),
        ("/maybe?to=/../x", 500),
        ("/maybe?to=x", 500),
        ("/circle", 500),
        ("/outer/none", 404),
        ("/inner", 404),
    ] {
        assert_eq!(page(&server, target).0, status, "{target}");
    }
}

#[test]
fn access_rules_and_limits_come_before() {
    let server = start(
        server(),
        "limit_req_zone $arg_user zone=one:32k rate=1r/m;
         server {
           listen 127.0.0.1:{port};
           location / { deny all; internal_redirect @inner; }
           location /in { internal_redirect @inner; }
           location @inner { limit_req zone=one; limit_req_status 429; return 200 unlimited; }
           location /limited { internal_redirect @served; }
           location @served { limit_req zone=one; limit_req_status 429; try_files /none =204; }
         }",
    );
    assert_eq!(page(&server, "/").0, 403);
    assert_eq!(page(&server, "/in?user=a").1, "unlimited");
    assert_eq!(page(&server, "/limited?user=b").0, 204);
    assert_eq!(page(&server, "/limited?user=b").0, 429);
}

#[test]
fn wrong_redirects_are_refused() {
    for (wrong, message) in [
        ("internal_redirect;", "invalid number of arguments in \"internal_redirect\" directive"),
        ("internal_redirect /a; internal_redirect /b;", "\"internal_redirect\" directive is duplicate"),
        ("if ($arg_a) { internal_redirect /a; }", "\"internal_redirect\" directive is not allowed here"),
        ("internal_redirect $none;", "unknown \"none\" variable"),
    ] {
        assert!(refusal(wrong).contains(message), "{wrong}: {}", refusal(wrong));
    }
}
