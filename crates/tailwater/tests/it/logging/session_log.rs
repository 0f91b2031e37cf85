//! `session_log`

use crate::support::metrics::metric;
use crate::support::{page, refusal_of, request, server, start};

#[test]
fn session_has_one_line_with_the_sum_of_its_bytes() {
    let server = start(
        server(),
        "session_log_format short '$request_uri $body_bytes_sent $http_user_agent $session_log_id';
         session_log_zone logs/sessions.log zone=one:1m format=short timeout=300ms id=$arg_id md5=$http_user_agent;
         server {
           listen 127.0.0.1:{port}; session_log one;
           location / { return 200 0123456789; }
           location /off { session_log off; return 200 '[$session_log_id]'; }
           location /metrics { session_log off; metrics; }
         }",
    );
    for target in ["/a", "/b", "/c"] {
        assert_eq!(request(&server, &format!("GET {target}"), &["User-Agent: x"]).text(), "0123456789");
    }
    assert_eq!(request(&server, "GET /off", &["User-Agent: x"]).text(), "[]");
    assert_eq!(request(&server, "GET /y", &["User-Agent: y"]).status, 200);
    let id = "00112233445566778899aabbccddeeff";
    assert_eq!(page(&server, &format!("/d?id={id}")).0, 200);
    let mut lines = server.log("logs/sessions.log", 3).unwrap();
    lines.sort();
    let expected = [
        "/a 30 x 9dd4e461268c8034f5c8564e155c67a6".to_owned(),
        format!("/d?id={id} 10 - {id}"),
        "/y 10 y 415290769594460e2e485922904f345d".to_owned(),
    ];
    assert_eq!(lines, expected);
    assert_eq!(metric(&server, "session_log_sessions{zone=\"one\"}"), 0);
}

#[test]
fn sessions_that_need_room_are_written_early() {
    let server = start(
        server(),
        "session_log_format short '$arg_n $body_bytes_sent$http_x';
         session_log_zone logs/sessions.log zone=one:32k format=short timeout=1h md5=$arg_n;
         server { listen 127.0.0.1:{port}; session_log one; return 200 x; }",
    );
    let field = format!("X: {}", "y".repeat(8000));
    for n in 0..6 {
        assert_eq!(request(&server, &format!("GET /?n={n}"), &[&field]).status, 200);
    }
    let lines = server.log("logs/sessions.log", 2).unwrap();
    assert!(lines[0].starts_with("0 1yy") && lines[1].starts_with("1 1yy"), "{lines:?}");
}

#[test]
fn wrong_session_logs_are_refused() {
    for (wrong, message) in [
        ("session_log_zone a zone=s:1m;", "\"session_log_zone\" must have \"id\" or \"md5\" parameter"),
        ("session_log_zone a md5=$uri;", "\"session_log_zone\" must have \"zone\" parameter"),
        ("session_log_zone a zone=s:1k md5=$uri;", "is too small"),
        ("session_log_zone a zone=s:1m md5=$uri timeout=0;", "invalid parameter \"timeout=0\""),
        ("session_log_zone a zone=s:1m md5=$uri format=x;", "unknown session log format \"x\""),
        ("session_log_zone a zone=s:1m md5=$none;", "unknown \"none\" variable"),
        ("session_log_format combined x;", "duplicate \"session_log_format\" name \"combined\""),
        ("session_log nothing;", "zero size shared memory zone \"nothing\""),
    ] {
        let refused = refusal_of(&format!("http {{ {wrong} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(refused.contains(message), "{wrong}: {refused}");
    }
}
