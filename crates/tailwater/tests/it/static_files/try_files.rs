//! `try_files`

use std::fs;

use tw_testkit::Server;

use crate::support::{get, page, refusal, refusal_of, server, start, start_server};

fn check(server: &Server, table: &[(&str, u16, &str)]) {
    for (target, status, text) in table {
        let (got, body) = page(server, target);
        assert_eq!(got, *status, "{target}: {body}");
        assert!(body.contains(text), "{target}: {body}");
    }
}

#[test]
fn try_files_tests_files_directories_and_falls_back() {
    let builder = server()
        .file("html/a.txt", "a")
        .file("html/b.html", "b")
        .file("html/dir/index.html", "dir")
        .file("html/plain/x", "x")
        .file("html/default", "default")
        .file("html/with space", "space");
    let server = start_server(
        builder,
        "location / { try_files $uri $uri.html $uri/ /fallback?u=$uri&$args; }
         location = /fallback { return 200 \"fallback $uri $args\"; }
         location /code/ { try_files $uri =418; } location /teapot { try_files $uri @named; }
         location @named { return 200 \"named $uri $args\"; } location /first/ { try_files /default $uri =404; }
         location /last/ { try_files $uri /code/never/tested; } location /var/ { try_files /x $arg_where; }
         location /only/ { try_files $uri $uri/ =404; } location /missing { try_files $uri @nowhere; }
         location /twice/ { try_files /nothing /only/b.html; }",
    );
    check(
        &server,
        &[
            ("/a.txt", 200, "a"),
            ("/b", 200, "b"),
            ("/dir/", 200, "dir"),
            ("/dir", 301, "301"),
            ("/with%20space", 200, "space"),
            ("/plain/", 403, "403"),
            ("/no%20thing?q=1", 200, "fallback /fallback u=/no thing&q=1"),
            ("/code/x", 418, ""),
            ("/code/never/tested", 418, ""),
            ("/teapot?x=y", 200, "named /teapot x=y"),
            ("/first/x", 200, "default"),
            ("/last/x", 418, ""),
            ("/var/?where=/a.txt", 200, "a"),
            ("/var/?where=@named", 200, "named /var/"),
            ("/only/x", 404, "404"),
            ("/missing", 500, "500"),
            ("/twice/x", 404, "404"),
            // No path leads out of the root.
            ("/../../etc/passwd", 400, "400"),
            ("/%2e%2e/etc/passwd", 400, "400"),
        ],
    );
    server.wait_error_log("could not find named location \"@nowhere\"").unwrap();
}

#[test]
fn try_files_at_server_level_serves_unmatched_requests() {
    let builder = server().file("html/a", "a").file("html/default", "default");
    let server = start_server(
        builder,
        "try_files $uri /default; location /in/ { } location /round/ { try_files /none /round/again; }",
    );
    let table = [("/a", 200, "a"), ("/b", 200, "default"), ("/in/x", 404, "404"), ("/round/", 500, "500")];
    check(&server, &table);
    server.wait_error_log("rewrite or internal redirection cycle").unwrap();
}

#[test]
fn try_files_works_with_alias() {
    let builder = server()
        .file("files/a", "alias a")
        .file("files/sub/index.html", "alias sub")
        .file("files/deep/x", "x")
        .file("html/al/fallback", "root fallback")
        .file("html/fallback", "other");
    let server = start_server(
        builder,
        "location /al/ { alias files/; try_files $uri $uri/ /fallback; }
         location ~ ^/re/(?<rest>.*)$ { alias files/; try_files $rest $rest/ =404; }
         location /static/ { alias files/; try_files a =404; } location /prefixed/ { alias files/; try_files /prefixed/a =418; }
         location /quirk/ { alias files/; try_files /none /quirk/$arg_to; } location = /to { return 200 to; }
         location = to { return 200 relative; }",
    );
    check(
        &server,
        &[
            ("/al/a", 200, "alias a"),
            ("/al/sub/", 200, "alias sub"),
            ("/al/sub", 301, "301"),
            ("/al/x", 200, "other"),
            ("/re/a", 200, "alias a"),
            ("/re/deep/x", 200, "x"),
            ("/re/none", 404, "404"),
            ("/static/whatever", 200, "alias a"),
            // The prefix of the location is removed only from a path that was made of variables.
            ("/prefixed/x", 418, ""),
        ],
    );
    let redirect = get(&server, "/al/sub");
    assert_eq!(
        redirect.field("Location"),
        Some(&*format!("http://localhost:{}/al/sub/", server.addr().port()))
    );
    // The known quirk: the last argument loses the prefix as well.
    assert_eq!(page(&server, "/quirk/x?to=to"), (200, "relative".into()));
}

#[test]
fn found_file_becomes_the_uri() {
    let builder = server().file("html/page.html", "$uri").file("html/a.css", "css");
    let server = start_server(
        builder,
        "types { text/css css; text/x html; } location / { try_files $uri.html $uri =404; add_header X-Uri $uri; }",
    );
    let response = get(&server, "/page");
    assert_eq!(
        (response.field("X-Uri"), response.field("Content-Type")),
        (Some("/page.html"), Some("text/x"))
    );
    let response = get(&server, "/a.css");
    assert_eq!((response.field("X-Uri"), response.field("Content-Type")), (Some("/a.css"), Some("text/css")));
}

#[test]
fn removed_and_added_files_are_noticed() {
    let server = start_server(server().file("html/f", "fallback"), "location / { try_files $uri /f; }");
    let path = server.prefix().join("html/x");
    for _ in 0..3 {
        assert_eq!(page(&server, "/x"), (200, "fallback".into()));
        fs::write(&path, "there").unwrap();
        assert_eq!(page(&server, "/x"), (200, "there".into()));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("try_files $uri;", "invalid number of arguments in \"try_files\" directive"),
        ("try_files $uri =1000;", "invalid code \"=1000\""),
        ("try_files $uri =x;", "invalid code \"=x\""),
        ("try_files a b; try_files a b;", "\"try_files\" directive is duplicate"),
    ] {
        let error = refusal(&format!("location / {{ {line} }}"));
        assert!(error.contains(message), "{line}: {error}");
    }
    let error = refusal_of("http { try_files a b; server { listen 127.0.0.1:{port}; } }");
    assert!(error.contains("\"try_files\" directive is not allowed here"), "{error}");
    start(server(), "server { listen 127.0.0.1:{port}; location / { try_files $uri =404; } }");
}
