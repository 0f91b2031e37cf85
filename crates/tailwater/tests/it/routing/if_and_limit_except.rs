//! `if` and `limit_except`: conditions, and settings for some of the requests of a location.

use std::os::unix::fs::{PermissionsExt, symlink};

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::wait;

use crate::support::{get, page, raw, refusal, request, server, start, start_server};

#[test]
fn if_conditions_match() {
    let mut conf = String::new();
    for (name, condition) in [
        ("true", "$arg_x"),
        ("equal", "$arg_x = 'a b'"),
        ("other", "$arg_x != a"),
        ("empty", "$arg_x = ''"),
        ("match", "$arg_x ~ ^a(.)"),
        ("caseless", "$arg_x ~* ^A(.)"),
        ("miss", "$arg_x !~ ^a(.)"),
        ("misscase", "$arg_x !~* ^A(.)"),
        ("variable", "$arg_x = $arg_y"),
    ] {
        conf += &format!(
            "location = /{name} {{ if ({condition}) {{ return 200 'yes $1'; }} return 200 'no $1'; }}\n"
        );
    }
    conf += "location = /decoded { set $a 'a b'; if ($a = \"a b\") { return 200 same; } return 200 other; }";
    let server = start_server(server(), &conf);
    for (target, text) in [
        ("/true?x=a", "yes "),
        ("/true?x=00", "yes "),
        ("/true?x=0", "no "),
        ("/true?x=", "no "),
        ("/true", "no "),
        ("/equal?x=a", "no "),
        ("/other?x=a", "no "),
        ("/other?x=", "yes "),
        ("/empty?x=", "yes "),
        ("/empty", "yes "),
        ("/empty?x=0", "no "),
        ("/match?x=ab", "yes b"),
        ("/match?x=AB", "no "),
        ("/caseless?x=ab", "yes b"),
        ("/caseless?x=b", "no "),
        ("/miss?x=ab", "no b"),
        ("/miss?x=b", "yes "),
        ("/misscase?x=AB", "no B"),
        ("/variable?x=a&y=a", "yes "),
        ("/variable?x=a&y=ab", "no "),
        ("/variable", "yes "),
        ("/decoded", "same"),
    ] {
        assert_eq!(page(&server, target), (200, text.to_owned()), "{target}");
    }
}

#[test]
fn if_file_tests_match() {
    let builder = server().file("html/file", "").file("html/dir/x", "").file("html/run", "");
    let mut conf = String::new();
    for test in ["f", "d", "e", "x"] {
        conf += &format!(
            "location /{test}/ {{ set $is no; set $not no; if (-{test} $document_root/$arg_n) {{ set $is yes; }}
             if (!-{test} $document_root/$arg_n) {{ set $not yes; }} return 200 \"$is $not\"; }}"
        );
    }
    conf += "location /nul { if (-e html$uri) { return 200 yes; } return 200 no; }";
    let server = start_server(builder, &conf);
    let html = server.prefix().join("html");
    std::fs::set_permissions(html.join("run"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("file", html.join("link")).unwrap();
    symlink("nowhere", html.join("broken")).unwrap();
    for (name, expected) in [
        ("file", "f e"),
        ("dir", "d e x"),
        ("run", "f e x"),
        ("link", "f e"),
        ("broken", ""),
        ("missing", ""),
        ("file/x", ""),
    ] {
        // The first look may have to ask the disk, the second is answered from memory.
        for _ in 0..2 {
            let mut results = Vec::new();
            for test in ["f", "d", "e", "x"] {
                match &*page(&server, &format!("/{test}/?n={name}")).1 {
                    "yes no" => results.push(test),
                    "no yes" => {}
                    other => panic!("{test} {name}: {other}"),
                }
            }
            assert_eq!(results.join(" "), expected, "{name}");
        }
    }
    let long = "x".repeat(300);
    assert_eq!(page(&server, &format!("/e/?n={long}")).1, "no yes");
    assert_eq!(page(&server, "/nul%01").1, "no");
}

#[test]
fn slow_disk_delays_only_requests_that_test_files() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    disk.write("a", "");
    let slow = disk.path().display();
    let server = start_server(
        server(),
        &format!(
            "location /ask {{ set $v before; if (-f {slow}/$arg_n) {{ set $v $v-a; }}
               if (!-e {slow}/$arg_m) {{ set $v $v-b; }} if (-d {slow}) {{ set $v $v-c; }} return 200 $v; }}
             location /fast {{ return 200 fast; }}"
        ),
    );
    let stall = disk.on(Op::Lookup).inject(Fault::Stall);
    let mut waiting = server.connect().unwrap();
    waiting.send("GET /ask?n=a&m=b HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    assert_eq!(page(&server, "/fast").1, "fast");
    stall.lift();
    assert_eq!(waiting.read_response().unwrap().text(), "before-a-b-c");

    let fault = disk.on(Op::Lookup).name("c").inject(Fault::Error(rustix::io::Errno::IO));
    assert_eq!(page(&server, "/ask?n=c&m=a").1, "before-c");
    server.wait_error_log(&format!("stat() \"{slow}/c\" failed (5: Input/output error)")).unwrap();
    fault.lift();
}

#[test]
fn settings_of_a_true_if_apply() {
    let server = start(
        server()
            .file("html/a.txt", "html")
            .file("other/a.txt", "other")
            .file("html/oops", "oops")
            .file("alias/t", "alias"),
        "log_format uri '$uri $arg_x'; access_log off;
         server { listen 127.0.0.1:{port}; root html; add_header X-Where server;
           location / {
             add_header X-Where location;
             if ($arg_x = root) { root other; }
             if ($arg_x = header) { add_header X-Where if; expires 1h; }
             if ($arg_x = type) { set $seen yes; }
             if ($arg_x ~ log) { access_log logs/access.log uri; }
             if ($arg_x = error) { error_page 404 =200 /oops; }
             if ($arg_x = late) { return 404; }
             if ($arg_two) { add_header X-Where two; }
             if ($arg_break) { add_header X-Where break; break; }
             add_header X-Seen $seen;
             if ($arg_break) { return 500; }
           }
           location /nested { if ($arg_x) { add_header X-Where outer; }
             location /nested/in { if ($arg_y) { add_header X-Where inner; } return 200; }
             return 200; }
           location ~ ^/re/(.) { set $first $1; if ($first = t) { root other; } return 200 $document_root; }
           location /limits { if ($arg_x) { limit_rate 10k; } return 200 $limit_rate; } }",
    );
    let served = |target: &str| {
        let response = get(&server, target);
        (response.status, response.field("X-Where").unwrap_or_default().to_owned(), response.text())
    };
    for (target, status, header, text) in [
        ("/a.txt", 200, "location", "html"),
        ("/a.txt?x=root", 200, "location", "other"),
        ("/a.txt?x=header", 200, "if", "html"),
        ("/a.txt?x=header&two=1", 200, "two", "html"),
        ("/a.txt?x=log", 200, "location", "html"),
        ("/missing?x=error", 200, "location", "oops"),
        ("/a.txt?break=1", 200, "break", "html"),
        ("/nested", 200, "server", ""),
        ("/nested?x=1", 200, "outer", ""),
        ("/nested/in?x=1", 200, "server", ""),
        ("/nested/in?x=1&y=1", 200, "inner", ""),
    ] {
        assert_eq!(served(target), (status, header.to_owned(), text.to_owned()), "{target}");
    }
    assert_eq!(get(&server, "/a.txt?x=late").status, 404);
    assert_eq!(get(&server, "/missing").status, 404);
    assert_eq!(get(&server, "/a.txt?x=header").field("Cache-Control"), Some("max-age=3600"));
    assert_eq!(get(&server, "/a.txt?x=type").field("X-Seen"), Some("yes"));
    // Settings that are inherited as a whole are those of the last matching `if`.
    assert_eq!(get(&server, "/a.txt?x=header&two=1").field("Cache-Control"), None);
    assert_eq!(server.access_log(1).unwrap(), ["/a.txt log"]);
    assert!(page(&server, "/re/t").1.ends_with("/other"));
    assert!(page(&server, "/re/x").1.ends_with("/html"));
}

#[test]
fn if_at_server_level_applies() {
    let server = start_server(
        server().file("html/a", "a").file("html/b", "b"),
        "if ($arg_x = 1) { set $v one; rewrite ^ /b; }
         if ($arg_x = 2) { set $v two; rewrite ^ /b break; set $v never; }
         if ($arg_x = 3) { return 403; }
         if (!-f $request_filename) { return 410; }
         add_header X-V $v;
         location / { }",
    );
    for (target, status, v, text) in [
        ("/a", 200, None, "a"),
        ("/a?x=1", 200, Some("one"), "b"),
        ("/a?x=2", 200, Some("two"), "b"),
        ("/a?x=3", 403, None, ""),
        ("/c", 410, None, ""),
    ] {
        let response = get(&server, target);
        assert_eq!((response.status, response.field("X-V")), (status, v), "{target}");
        if status == 200 {
            assert_eq!(response.text(), text, "{target}");
        }
    }
}

#[test]
fn realpath_variables_work_in_an_if() {
    let server = start_server(
        server().file("real/x", ""),
        "location / { if ($arg_r) { root linked; add_header X-Root $realpath_root; } return 204; }",
    );
    symlink("real", server.prefix().join("linked")).unwrap();
    assert_eq!(get(&server, "/").field("X-Root"), None);
    let root = get(&server, "/?r=1").field("X-Root").map(str::to_owned).unwrap_or_default();
    assert!(root.ends_with("/real"), "{root}");
}

#[test]
fn limit_except_settings_apply_to_other_methods() {
    let server = start(
        server().file("html/a/f", "html").file("html/in/f", "in"),
        "log_format part '$request_method $uri'; access_log off;
         server { listen 127.0.0.1:{port}; root html;
           location /a { limit_except GET { access_log logs/access.log part; } }
           location /post { limit_except get post { access_log logs/access.log part; } return 200 post; }
           location /in { limit_except GET { access_log logs/access.log part; }
             if ($arg_x) { return 200 'an if'; }
             location /in/side { return 200 side; } } }",
    );
    // Other methods than those of `limit_except` skip the rewrite directives of the location.
    for (line, status, text) in [
        ("GET /a/f", 200, Some("html")),
        ("HEAD /a/f", 200, None),
        ("POST /a/f", 405, None),
        ("OPTIONS /a/f", 405, None),
        ("POST /post", 200, Some("post")),
        ("HEAD /post", 200, None),
        ("PUT /post", 405, None),
        ("POST /in/side", 200, Some("side")),
        ("GET /in/f?x=1", 200, Some("an if")),
        ("DELETE /in/f?x=1", 405, None),
    ] {
        let response = request(&server, line, &["Content-Length: 0"]);
        assert_eq!(response.status, status, "{line}");
        if let Some(text) = text {
            assert_eq!(response.text(), text, "{line}");
        }
    }
    let lines = server.access_log(4).unwrap();
    assert_eq!(lines, ["POST /a/f", "OPTIONS /a/f", "PUT /post", "DELETE /in/f"]);
}

#[test]
fn limit_except_refuses_other_methods() {
    let server = start_server(
        server().file("html/a", "a").file("html/denied", "denied"),
        "error_page 403 /denied;
         location / { limit_except GET { deny all; } if ($arg_if) { add_header X-If yes; } }
         location = /denied { }
         location /early { deny all; if ($arg_if) { return 200 'before access'; } }
         location /nested { deny all; if ($arg_if) { root other; } location /nested/in { allow all; } }",
    );
    for (line, status, text) in [
        ("GET /a", 200, Some("a")),
        ("HEAD /a", 200, None),
        ("GET /a?if=1", 200, Some("a")),
        ("DELETE /a?if=1", 403, Some("denied")),
        ("DELETE /a", 403, Some("denied")),
        ("GET /early", 403, Some("denied")),
        ("GET /early?if=1", 200, Some("before access")),
        ("GET /nested/in", 404, None),
        ("GET /nested/x?if=1", 403, Some("denied")),
    ] {
        let response = request(&server, line, &[]);
        assert_eq!(response.status, status, "{line}");
        if let Some(text) = text {
            assert_eq!(response.text(), text, "{line}");
        }
    }
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("if { }", "invalid number of arguments in \"if\" directive"),
        ("if () { }", "invalid condition \")\""),
        ("if $uri { }", "invalid condition \"$uri\""),
        ("if (uri = a) { }", "invalid condition \"uri\""),
        ("if ($uri is a) { }", "unexpected \"is\" in condition"),
        ("if ($uri ~ '(') { }", "in \"(\""),
        ("if (-z $uri) { }", "invalid condition \"-z\""),
        ("if ($none) { }", "unknown \"none\" variable"),
        ("if ($uri) { root x; }", "\"root\" directive is not allowed here"),
        ("location / { if ($uri) { if ($uri) { } } }", "\"if\" directive is not allowed here"),
        ("location / { if ($uri) { location /a { } } }", "\"location\" directive is not allowed here"),
        ("location / { if ($uri) { alias x; } }", "\"alias\" directive is not allowed here"),
        ("if ($uri) { unknown_thing; }", "unknown directive \"unknown_thing\""),
        ("limit_except GET { }", "\"limit_except\" directive is not allowed here"),
        ("location / { limit_except FROB { } }", "invalid method \"FROB\""),
        ("location / { limit_except { } }", "invalid number of arguments in \"limit_except\" directive"),
        ("location / { limit_except GET { return 403; } }", "\"return\" directive is not allowed here"),
    ] {
        let error = refusal(line);
        assert!(error.contains(message), "{line}: {error}");
    }
}

#[test]
fn if_does_not_outlive_its_request() {
    let server = start_server(
        server(),
        "location / { if ($arg_x) { set $v set; add_header X-If $1$v; } return 200 '<$v>'; }",
    );
    let both = raw(
        &server,
        "GET /?x=1 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    assert_eq!((both.matches("X-If: set").count(), both.matches("<set>").count()), (1, 1), "{both}");
    assert!(both.ends_with("<>"), "{both}");
}

#[test]
fn second_if_keeps_the_content_handler_of_the_first() {
    let server = start(
        server().file("html/secret.php", "<?php source"),
        "server { listen 127.0.0.1:{port}; root html; set $t 1; \
           location /secret.php { \
             if ($t) { proxy_pass http://127.0.0.1:{port1}; } if ($t) { add_header X-Second 1; } } \
           location /last { if ($t) { fastcgi_pass 127.0.0.1:1; } if ($t) { proxy_pass http://127.0.0.1:{port1}; } if ($t) { } } \
           location /moved { if ($t) { proxy_pass http://127.0.0.1:{port1}; } if ($t) { rewrite ^ /secret.html last; } } \
           location /secret.html { alias html/secret.php; } } \
         server { listen 127.0.0.1:{port1}; return 200 'from $uri'; }",
    );
    let secret = get(&server, "/secret.php");
    assert_eq!((secret.text(), secret.field("X-Second")), ("from /secret.php".to_owned(), Some("1")));
    assert_eq!(page(&server, "/last"), (200, "from /last".to_owned()));
    // After a change of the location, the content handlers of the new one are used.
    assert_eq!(page(&server, "/moved"), (200, "<?php source".to_owned()));
}
