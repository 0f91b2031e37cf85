//! `rewrite`, `set`, `break`

use crate::support::{get, page, refusal, refusal_of, request, server, start, start_server};

/// Directives that answer with the rewritten URI.
const SHOW: &str = "default_type text/plain; return 200 '$uri|$args';";

#[test]
fn rewrite_replaces_uri_and_arguments() {
    let conf = format!(
        "rewrite ^/server/(.*)$ /shown/$1;
         location /shown {{ {SHOW} }}
         location /plain {{ rewrite ^/plain/(.+) /shown/$1; }}
         location /last {{ rewrite ^/last/(.+) /shown/$1 last; return 500; }}
         location /drop {{ rewrite ^ /shown?; }}
         location /own {{ rewrite ^/own/(.*) /shown?a=$1; }}
         location /instead {{ rewrite ^/instead/(.*) /shown?a=$1?; }}
         location /two {{ rewrite ^ /shown?a=1?b=2; }}
         location /named {{ rewrite ^/named/(?<what>[a-z]+)/(?<more>.*) /shown/$more/$what?; }}
         location /chain {{ rewrite ^/chain/(.*) /step/$1; rewrite ^/step/(.*) /shown/$1; return 200 $uri; }}
         location /chained {{ rewrite ^/chained/(.*) /step/$1; rewrite ^/step/(.*) /shown/$1; }}
         location /break {{ rewrite ^/break/(.*) /shown/$1 break; {SHOW} }}
         location /stay {{ rewrite ^ /shown/x; break; }}
         location /none {{ rewrite ^/(a)bsent /shown; return 200 'none $1.'; }}"
    );
    let server = start_server(server().file("html/shown/x", "a file").file("html/shown/b", "b"), &conf);
    for (target, status, text) in [
        ("/server/a?x=y", 200, "/shown/a|x=y"),
        ("/plain/a", 200, "/shown/a|"),
        ("/plain/a?x", 200, "/shown/a|x"),
        ("/last/a%20b", 200, "/shown/a b|"),
        ("/drop?x=y", 200, "/shown|"),
        ("/own/1?x=y", 200, "/shown|a=1&x=y"),
        ("/own/1", 200, "/shown|a=1"),
        ("/own/%26+%C3", 200, "/shown|a=%26%2B%C3"),
        ("/own/&", 200, "/shown|a=&"),
        ("/instead/1?x=y", 200, "/shown|a=1"),
        ("/two?x", 200, "/shown|a=1?b=2&x"),
        ("/named/abc/1%202?x", 200, "/shown/1 2/abc|"),
        ("/chain/a", 200, "/shown/a"),
        ("/chained/a", 200, "/shown/a|"),
        ("/break/b", 200, "b"),
        ("/stay?x", 200, "a file"),
        ("/none", 200, "none ."),
    ] {
        assert_eq!(page(&server, target), (status, text.to_owned()), "{target}");
    }
}

#[test]
fn rewrite_redirects() {
    let server = start_server(
        server(),
        "location /r { rewrite ^/r/(.*) http://example.com/$1; }
         location /s { rewrite ^/s/(.*) $scheme://example.com/$1?a=b last; return 500; }
         location /p { rewrite ^/p/(.*) /to/$1 permanent; }
         location /t { rewrite ^/t/(.*) /to/$1? redirect; }
         location /u { rewrite ^ http://example.com$uri redirect; }
         location /a { rewrite ^/a/(.*) http://example.com/?q=$1 redirect; }",
    );
    let here = format!("http://localhost:{}", server.addr().port());
    for (target, status, location) in [
        ("/r/x", 302, "http://example.com/x"),
        ("/r/x?a=b", 302, "http://example.com/x?a=b"),
        ("/r/a%20b%2Fc%25", 302, "http://example.com/a%20b/c%25"),
        ("/r/a+b", 302, "http://example.com/a+b"),
        ("/s/x?c=d", 302, "http://example.com/x?a=b&c=d"),
        ("/p/x?a", 301, &*format!("{here}/to/x?a")),
        ("/t/x?a", 302, &*format!("{here}/to/x")),
        ("/u%20x", 302, "http://example.com/u x"),
        ("/a/%26x", 302, "http://example.com/?q=%26x"),
        ("/a/&x", 302, "http://example.com/?q=&x"),
        ("/r/%0d%0aA:b", 302, "http://example.com/%0D"),
    ] {
        let response = get(&server, target);
        assert_eq!((response.status, response.field("Location")), (status, Some(location)), "{target}");
    }
}

#[test]
fn set_assigns_variables() {
    let server = start_server(
        server().file("html/f", ""),
        "set $a server; set $list $arg_x;
         location /a { set $a '${a}1'; set $a $a-2; return 200 $a; }
         location /both { set $list $list,$list; return 200 '$list $a'; }
         location /args { set $args 'x=new'; return 200 '$args $arg_x'; }
         location /rate { set $limit_rate 1k; return 200 $limit_rate; }
         location ~ ^/(?<part>[a-z]+)/c { set $b $1; rewrite ^/(.) /; set $b $b$1; return 200 $part,$b; }
         location /escaped { rewrite ^/escaped/(.*) /; set $c $1; return 200 $c; }
         location ~ ^/quoted/(.*) { set $c $1; return 200 $c; }
         location /long { set $d $arg_x$arg_x$arg_x; set $d $d$d$d; return 200 $d; }
         location /unset { add_header X-Late \"$late.\"; return 200 '<$late>'; }
         location /later { set $late x; return 200 $late; }
         location /family { return 200 '$http_x $arg_x'; }
         location /set-family { set $http_x set; set $arg_x $arg_x$arg_y; return 200 '$http_x $arg_x'; }
         add_header X-Family $http_x;",
    );
    for (target, text) in [
        ("/a", "server1-2"),
        ("/both?x=1", "1,1 server"),
        ("/args?x=old", "x=new new"),
        ("/rate", "1024"),
        ("/abc/c", "abc,abca"),
        ("/escaped/a%20b", "a b"),
        ("/quoted/a%20b", "a%20b"),
        ("/quoted/a+b", "a%2Bb"),
        ("/quoted/a&b", "a&b"),
        ("/long?x=abcdefgh", "abcdefghabcdefghabcdefghabcdefghabcdefghabcdefghabcdefghabcdefghabcdefgh"),
        ("/unset", "<>"),
        ("/later", "x"),
    ] {
        assert_eq!(page(&server, target), (200, text.to_owned()), "{target}");
    }
    assert_eq!(get(&server, "/unset").field("X-Late"), Some("."));
    for (target, field, text) in
        [("/family?x=1&y=2", "sent", "sent 1"), ("/set-family?x=1&y=2", "set", "set 12")]
    {
        let response = request(&server, &format!("GET {target}"), &["X: sent"]);
        assert_eq!((response.field("X-Family"), &*response.text()), (Some(field), text), "{target}");
    }
}

#[test]
fn rewrite_cycles_end_and_reach_internal_locations() {
    let server = start_server(
        server().file("html/in/f", "inner").file("html/10/f", "ten"),
        "location /cycle { rewrite ^ /cycle; }
         location /in { internal; }
         location /into { rewrite ^/into(.*) /in$1; }
         location /page { error_page 404 = /in/f; return 404; }
         location /empty { rewrite ^ $arg_to?; }
         location /count { rewrite ^/count(x*)x$ /count$1; rewrite ^/count$ /10/f last; }",
    );
    for (target, status, text) in [
        ("/cycle", 500, None),
        ("/in/f", 404, None),
        ("/into/f", 200, Some("inner")),
        ("/page", 200, Some("inner")),
        ("/empty", 500, None),
        ("/empty?to=/10/f", 200, Some("ten")),
        ("/countxxxxxxxxx", 200, Some("ten")),
        ("/countxxxxxxxxxx", 200, Some("ten")),
        ("/countxxxxxxxxxxx", 500, None),
    ] {
        let response = page(&server, target);
        assert_eq!(response.0, status, "{target}");
        if let Some(text) = text {
            assert_eq!(response.1, text, "{target}");
        }
    }
    for text in [
        "the rewritten URI has a zero length, ",
        "rewrite or internal redirection cycle while processing \"/cycle\", ",
    ] {
        server.wait_error_log(text).unwrap();
    }
}

#[test]
fn rewrite_log_logs_rewrites() {
    let server = start(
        server(),
        "error_log logs/error.log notice;
         server { listen 127.0.0.1:{port};
             location /on { rewrite_log on; rewrite ^/no /x; rewrite ^/on/(.*) /off/$1?a; }
             location /to { rewrite_log on; if ($uri ~ to) { rewrite ^ http://example.com/; } }
             location /off { rewrite ^/off /; return 200; }
             location /end { set $x '$x'; return 200; }
             location /warn { set $y $z; set $z $z; return 200 $y$z; }
             location /silent { uninitialized_variable_warn off; set $y $z; return 200; } }",
    );
    for target in ["/on/x", "/to", "/silent", "/off", "/warn", "/end"] {
        request(&server, &format!("GET {target}"), &[]);
    }
    server.wait_error_log("using uninitialized \"x\" variable").unwrap();
    let log = server.error_log();
    for text in [
        "[notice]",
        "\"^/no\" does not match \"/on/x\", client: 127.0.0.1",
        "\"^/on/(.*)\" matches \"/on/x\", client",
        "rewritten data: \"/off/x\", args: \"a\", client",
        "\"to\" matches \"/to\"",
        "rewritten redirect: \"http://example.com/\"",
        "[warn]",
    ] {
        assert!(log.contains(text), "{text}: {log}");
    }
    assert!(!log.contains("\"^/off\""), "{log}");
    assert_eq!(log.matches("using uninitialized \"z\" variable").count(), 1, "{log}");
}

#[test]
fn rewrite_keeps_the_method_and_limits_backtracking() {
    let server = start_server(
        server(),
        "location /go { rewrite ^ /there last; } location /there { return 200 '$request_method $uri'; }
         location /slow { if ($arg_x ~ '^((a|aa)+)+(?!x)\\1c$') { return 200; } return 204; }",
    );
    for (line, text) in [("POST /go", "POST /there"), ("PUT /go", "PUT /there"), ("FROB /go", "FROB /there")]
    {
        let response = request(&server, line, &["Content-Length: 0"]);
        assert_eq!((response.status, response.text()), (200, text.to_owned()), "{line}");
    }
    assert_eq!(get(&server, "/slow?x=b").status, 204);
    assert_eq!(get(&server, &format!("/slow?x={}", "a".repeat(52))).status, 500);
    server.wait_error_log("exceeded its limit of backtracking").unwrap();
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("rewrite ^;", "invalid number of arguments in \"rewrite\" directive"),
        ("rewrite ^ /a last x;", "invalid number of arguments in \"rewrite\" directive"),
        ("rewrite ^ '';", "empty replacement"),
        ("rewrite ^ /a first;", "invalid parameter \"first\""),
        ("rewrite ( /a;", "in \"(\""),
        ("rewrite ^ $no_such_variable;", "unknown \"no_such_variable\" variable"),
        ("set a b;", "invalid variable name \"a\""),
        ("set $a;", "invalid number of arguments in \"set\" directive"),
        ("set $uri a;", "the duplicate \"uri\" variable"),
        ("set $a $b;", "unknown \"b\" variable"),
        ("rewrite ^/(?<uri>.*) /a;", "the duplicate \"uri\" variable"),
        ("break x;", "invalid number of arguments in \"break\" directive"),
        (
            "rewrite_log yes;",
            "invalid value \"yes\" in \"rewrite_log\" directive, it must be \"on\" or \"off\"",
        ),
    ] {
        let error = refusal(line);
        assert!(error.contains(message), "{line}: {error}");
    }
    for (conf, name) in
        [("rewrite ^ /a;", "rewrite"), ("set $a b;", "set"), ("break;", "break"), ("if ($uri) { }", "if")]
    {
        let error = refusal_of(&format!("http {{ {conf} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(error.contains(&format!("\"{name}\" directive is not allowed here")), "{conf}: {error}");
    }
}
