//! `auth_require`

use crate::support::{get, refusal, server, start};

#[test]
fn values_decide_and_choose_the_status() {
    let server = start(
        server(),
        "map $arg_user $admin { root 1; guest 0; } auth_require $arg_in; \
         server { listen 127.0.0.1:{port}; root html; \
           location / { try_files /none =204; location /inner { try_files /none =204; } } \
           location /off { auth_require off; try_files /none =204; } \
           location /admin { auth_require $admin; try_files /none =204; } \
           location /two { auth_require $arg_in error=404; auth_require $admin $arg_b error=503; try_files /none =204; } \
           location /text { auth_require '$arg_in$arg_b'; try_files /none =204; } \
           location /any { satisfy any; deny all; try_files /none =204; } \
           location /all { deny all; try_files /none =204; } \
           location /get { limit_except GET { auth_require $admin; } try_files /none =204; } }",
    );
    for (target, status) in [
        ("/?in=1", 204),
        ("/?in=yes", 204),
        ("/?in=00", 204),
        ("/", 403),
        ("/?in=", 403),
        ("/?in=0", 403),
        ("/inner", 403),
        ("/inner?in=1", 204),
        ("/off", 204),
        ("/admin?user=root", 204),
        ("/admin?user=guest&in=1", 403),
        ("/two", 404),
        ("/two?in=1", 503),
        ("/two?in=1&user=root", 503),
        ("/two?in=1&user=root&b=1", 204),
        ("/text?b=1", 204),
        ("/text", 403),
        ("/any?in=1", 204),
        ("/any", 403),
        ("/all?in=1", 403),
        ("/get?in=1", 204),
    ] {
        assert_eq!(get(&server, target).status, status, "{target}");
    }
    server.wait_error_log("access forbidden: a value of \"auth_require\" is missing, client: ").unwrap();
}

#[test]
fn malformed_directives_are_refused() {
    for (conf, expected) in [
        ("auth_require;", "invalid number of arguments in \"auth_require\" directive"),
        ("auth_require error=404;", "invalid number of arguments in \"auth_require\" directive"),
        ("auth_require on;", "invalid value \"on\""),
        ("auth_require $host off;", "invalid value \"off\""),
        ("auth_require $host error=200;", "invalid parameter \"error=200\""),
        ("auth_require $host error=600;", "invalid parameter \"error=600\""),
        ("auth_require $host error=4xx;", "invalid parameter \"error=4xx\""),
    ] {
        let said = refusal(conf);
        assert!(said.contains(expected), "{conf}: {said}");
    }
}
