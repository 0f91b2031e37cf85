//! `index`: choice of the file for a directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::{get, is_root, page, request, server, start_server};

#[test]
fn first_existing_index_answers() {
    let builder = server()
        .file("html/index.html", "default")
        .file("html/one/a.html", "a")
        .file("html/one/b.html", "b")
        .file("html/two/b.html", "b of two")
        .file("html/none/x", "")
        .file("html/host/localhost.html", "by host")
        .file("html/shared.html", "shared")
        .file("html/dir/a.html/b.html", "")
        .file("html/dir/b.html", "");
    let server = start_server(
        builder,
        "location /one/ { index a.html b.html; } location /two/ { index a.html b.html; }
         location /none/ { index a.html b.html; } location /host/ { index $host.html; }
         location /abs/ { index none /shared.html; } location /dir/ { index a.html b.html; }
         location /inherited/ { index one.html; location /inherited/deeper/ { root html; } }",
    );
    for (target, status, text) in [
        ("/", 200, "default"),
        ("/one/", 200, "a"),
        ("/two/", 200, "b of two"),
        ("/none/", 403, "403"),
        ("/host/", 200, "by host"),
        // A directory is there as well as a file: it is redirected to.
        ("/dir/", 301, "301"),
        ("/inherited/", 404, "404"),
    ] {
        let (got, body) = page(&server, target);
        assert_eq!(got, status, "{target}: {body}");
        assert!(body.contains(text), "{target}: {body}");
    }
    fs::create_dir_all(server.prefix().join("html/abs")).unwrap();
    assert_eq!(page(&server, "/abs/"), (200, "shared".into()));
    fs::create_dir_all(server.prefix().join("html/inherited/deeper")).unwrap();
    fs::write(server.prefix().join("html/inherited/deeper/one.html"), "one").unwrap();
    assert_eq!(page(&server, "/inherited/deeper/"), (200, "one".into()));
}

#[test]
fn index_is_an_internal_redirect() {
    let builder =
        server().file("html/index.html", "").file("html/index.php", "").file("html/a/index.html", "");
    let server = start_server(
        builder,
        "location / { index index.php; } location ~ \\.php$ { return 200 \"$uri?$args\"; }
         location /a/ { internal; }",
    );
    assert_eq!(page(&server, "/?x=y"), (200, "/index.php?x=y".into()));
    assert_eq!(request(&server, "POST /?p", &["Content-Length: 0"]).text(), "/index.php?p");
    // Only the first URI is the client's: internal locations match the redirect, but not the request.
    assert_eq!(get(&server, "/a/").status, 404);
}

#[test]
fn index_depends_on_the_method() {
    let server = start_server(server().file("html/index.html", "x"), "");
    for (line, status) in [
        ("GET /", 200),
        ("HEAD /", 200),
        // The file answers, and a file cannot be posted to.
        ("POST /", 405),
        ("PUT /", 405),
        ("OPTIONS /", 405),
    ] {
        assert_eq!(request(&server, line, &[]).status, status, "{line}");
    }
}

#[test]
fn index_works_below_aliases() {
    let builder = server().file("files/index.html", "alias").file("files/sub/index.html", "sub");
    let server = start_server(
        builder,
        "location /a/ { alias files/; } location ~ ^/re/(.*)$ { alias files/$1; } location /noslash { alias files; }",
    );
    for (target, status, text) in [
        ("/a/", 200, "alias"),
        ("/a/sub/", 200, "sub"),
        ("/a/sub", 301, "301"),
        ("/re/", 200, "alias"),
        ("/re/sub/", 200, "sub"),
        ("/noslash/", 200, "alias"),
    ] {
        let (got, body) = page(&server, target);
        assert_eq!(got, status, "{target}: {body}");
        assert!(body.contains(text), "{target}: {body}");
    }
}

#[test]
fn missing_index_is_logged() {
    let builder = server().file("html/empty/x", "").file("html/file", "");
    let server = start_server(builder, "location /quiet/ { log_not_found off; }");
    let html = server.prefix().join("html");
    for (target, status) in [("/empty/", 403), ("/missing/", 404), ("/file/", 404), ("/quiet/", 404)] {
        assert_eq!(get(&server, target).status, status, "{target}");
    }
    for text in [
        format!("directory index of \"{}/empty/\" is forbidden, client: ", html.display()),
        format!(
            "\"{}/missing/index.html\" is not found (2: No such file or directory), client",
            html.display()
        ),
        format!("\"{}/file/index.html\" is not found (20: Not a directory), client", html.display()),
    ] {
        assert!(server.wait_error_log(&text).unwrap().contains("[error]"));
    }
    assert!(!server.error_log().contains("/quiet/index"));
}

#[test]
fn unsearchable_directory_is_403() {
    if is_root("a directory that may not be searched") {
        return;
    }
    let server = start_server(server().file("html/closed/index.html", ""), "");
    let path = server.prefix().join("html/closed");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(get(&server, "/closed/").status, 403);
    let line = server.wait_error_log("closed/index.html\" is forbidden (13: Permission denied)").unwrap();
    assert!(line.contains("[error]"), "{line}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
}
