//! `gzip_static`, `brotli_static`, `zstd_static`: files that were compressed before

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::support::{get, is_root, request, server, start_server};

/// Status, `Content-Encoding` and body of a `GET` that accepts `accept`.
fn response_to(server: &tw_testkit::Server, target: &str, accept: &str) -> (u16, Option<String>, String) {
    let response = request(server, &format!("GET {target}"), &[&format!("Accept-Encoding: {accept}")]);
    (response.status, response.field("Content-Encoding").map(str::to_owned), response.text())
}

fn is(status: u16, coding: Option<&str>, body: &str) -> (u16, Option<String>, String) {
    (status, coding.map(str::to_owned), body.to_owned())
}

#[test]
fn compressed_file_is_sent_to_clients_that_accept_it() {
    let mut builder = server();
    for (suffix, content) in [("", "plain"), (".gz", "gzip"), (".br", "brotli"), (".zst", "zstd")] {
        builder = builder.file(format!("html/a.html{suffix}"), content);
    }
    let builder = builder.file("html/plain.html", "plain").file("html/only.html.gz", "gzip");
    let server = start_server(
        builder,
        "gzip_static on; location /all/ { brotli_static on; zstd_static on; alias html/; }
         location /always/ { gzip_static always; alias html/; } location /off/ { gzip_static off; alias html/; }
         location /alias { alias html/a.html; }",
    );
    for (target, accept, expected) in [
        ("/a.html", "gzip", is(200, Some("gzip"), "gzip")),
        ("/a.html", "br", is(200, None, "plain")),
        ("/a.html", "gzip;q=0", is(200, None, "plain")),
        ("/plain.html", "gzip", is(200, None, "plain")),
        ("/only.html", "gzip", is(200, Some("gzip"), "gzip")),
        ("/all/a.html", "gzip, br, zstd", is(200, Some("br"), "brotli")),
        ("/all/a.html", "gzip, zstd", is(200, Some("zstd"), "zstd")),
        ("/all/a.html", "gzip", is(200, Some("gzip"), "gzip")),
        ("/all/plain.html", "gzip, br, zstd", is(200, None, "plain")),
        ("/all/only.html", "gzip, br, zstd", is(200, Some("gzip"), "gzip")),
        ("/always/a.html", "identity", is(200, Some("gzip"), "gzip")),
        ("/always/plain.html", "identity", is(200, None, "plain")),
        ("/off/a.html", "gzip", is(200, None, "plain")),
        ("/alias", "gzip", is(200, Some("gzip"), "gzip")),
    ] {
        assert_eq!(response_to(&server, target, accept), expected, "{target} {accept}");
    }
    assert_eq!(response_to(&server, "/only.html", "identity").0, 404);
    assert_eq!(request(&server, "POST /a.html", &["Accept-Encoding: gzip", "Content-Length: 0"]).status, 405);

    let response = request(&server, "GET /a.html", &["Accept-Encoding: gzip"]);
    assert_eq!(response.field("Content-Type"), Some("text/html"));
    assert_eq!(response.field("Content-Length"), Some("4"));
    assert!(response.field("ETag").unwrap().ends_with("-4\""), "{}", response.head);
    assert_eq!(response.field("Accept-Ranges"), Some("bytes"));
    assert_eq!(response.field("Vary"), None);
    let head = request(&server, "HEAD /a.html", &["Accept-Encoding: gzip"]);
    assert_eq!((head.field("Content-Encoding"), head.field("Content-Length")), (Some("gzip"), Some("4")));
    let part = request(&server, "GET /a.html", &["Accept-Encoding: gzip", "Range: bytes=1-2"]);
    assert_eq!(
        (part.status, part.text().as_str(), part.field("Content-Encoding")),
        (206, "zi", Some("gzip"))
    );
    let failed = request(&server, "GET /a.html", &["Accept-Encoding: gzip", "If-Match: \"x\""]);
    assert_eq!((failed.status, failed.field("Content-Encoding")), (412, None));
    let beyond = request(&server, "GET /a.html", &["Accept-Encoding: gzip", "Range: bytes=9-"]);
    assert_eq!((beyond.status, beyond.field("Content-Encoding")), (416, None));
}

#[test]
fn vary_is_sent_if_both_variants_exist() {
    let builder =
        server().file("html/a.html", "plain").file("html/a.html.gz", "gzip").file("html/b.html", "b");
    let server = start_server(
        builder,
        "gzip_static on; gzip_vary on; location /always/ { gzip_static always; alias html/; }",
    );
    for (target, accept, expected) in [
        ("/a.html", "gzip", Some("Accept-Encoding")),
        ("/a.html", "identity", Some("Accept-Encoding")),
        ("/b.html", "gzip", None),
        ("/b.html", "identity", None),
        ("/always/a.html", "gzip", None),
    ] {
        let response = request(&server, &format!("GET {target}"), &[&format!("Accept-Encoding: {accept}")]);
        assert_eq!(response.field("Vary"), expected, "{target} {accept}");
    }
}

#[test]
fn non_files_are_skipped() {
    let server = start_server(
        server()
            .file("html/dir.html", "plain")
            .file("html/dir.html.gz/x", "")
            .file("html/link.html", "plain")
            .file("html/private.html", "plain")
            .file("html/private.html.gz", "secret")
            .file("html/target", "linked"),
        "gzip_static on; location /strict/ { disable_symlinks on; alias html/; }",
    );
    let html = server.prefix().join("html");
    symlink("target", html.join("link.html.gz")).unwrap();
    fs::set_permissions(html.join("private.html.gz"), fs::Permissions::from_mode(0o000)).unwrap();

    assert_eq!(response_to(&server, "/dir.html", "gzip"), is(200, None, "plain"));
    assert_eq!(response_to(&server, "/link.html", "gzip"), is(200, Some("gzip"), "linked"));
    assert_eq!(response_to(&server, "/strict/link.html", "gzip"), is(200, None, "plain"));
    let log = server.wait_error_log("link.html.gz\" failed (40: Too many levels of symbolic links)").unwrap();
    assert!(log.contains("[error]"), "{log}");
    if !is_root("a file that nobody may read") {
        assert_eq!(response_to(&server, "/private.html", "gzip"), is(200, None, "plain"));
        server.wait_error_log("private.html.gz\" failed (13: Permission denied)").unwrap();
    }
}

#[test]
fn changed_file_is_used_by_the_next_request() {
    let server = start_server(server().file("html/a.html", "plain"), "gzip_static on;");
    assert_eq!(response_to(&server, "/a.html", "gzip"), is(200, None, "plain"));
    let packed = server.prefix().join("html/a.html.gz");
    fs::write(&packed, "one").unwrap();
    assert_eq!(response_to(&server, "/a.html", "gzip"), is(200, Some("gzip"), "one"));
    fs::write(&packed, "other").unwrap();
    assert_eq!(response_to(&server, "/a.html", "gzip"), is(200, Some("gzip"), "other"));
    fs::remove_file(&packed).unwrap();
    assert_eq!(response_to(&server, "/a.html", "gzip"), is(200, None, "plain"));
    assert_eq!(get(&server, "/a.html").text(), "plain");
}
