//! WebDAV: PUT, DELETE, MKCOL, COPY, MOVE, on good and failing disks.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::server::Builder;
use tw_testkit::{Response, Server, wait};

use crate::support::files::names_in;
use crate::support::{raw, refusal, request, server};

const METHODS: &str = "dav_methods PUT DELETE MKCOL COPY MOVE;";

fn dav(directives: &str) -> Server {
    serve(server().file("html/a.txt", "old"), &format!("root html; {directives}"))
}

/// A server that stays root if root starts it: root owns the files of the test.
fn serve(builder: Builder, directives: &str) -> Server {
    builder
        .start(&format!(
            "user root; http {{ server {{ listen 127.0.0.1:{{port}}; {METHODS} {directives} }} }}"
        ))
        .unwrap()
}

fn put(server: &Server, target: &str, fields: &[&str], body: &str) -> Response {
    let mut client = server.connect().unwrap();
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let length = body.len();
    client
        .send(format!(
            "PUT {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
        ))
        .unwrap();
    client.read_response().unwrap()
}

fn status(server: &Server, line: &str, fields: &[&str]) -> u16 {
    request(server, line, fields).status
}

/// Status of a `COPY` or `MOVE`.
fn transfer(server: &Server, line: &str, to: &str) -> u16 {
    status(server, line, &[&format!("Destination: {to}")])
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// Checks that no temporary file is left.
fn no_temp_files(server: &Server) {
    let dir = server.prefix().join("client_body_temp");
    assert!(
        wait::until(wait::TIMEOUT, || !dir.exists() || names_in(&dir).is_empty()),
        "{:?}",
        names_in(&dir)
    );
}

#[test]
fn put_creates_and_replaces() {
    let server = dav("absolute_redirect off;");
    let html = server.prefix().join("html");
    let created = put(&server, "/new%20one", &[], "content");
    assert_eq!((created.status, created.field("Location")), (201, Some("/new%20one")));
    assert_eq!((created.field("Content-Length"), created.field("Content-Type")), (Some("0"), None));
    assert_eq!(text(html.join("new one")), "content");
    let replaced = put(&server, "/a.txt", &[], "new");
    assert_eq!(
        (replaced.status, replaced.field("Location"), replaced.field("Content-Length")),
        (204, None, None)
    );
    assert_eq!(text(html.join("a.txt")), "new");
    assert_eq!(put(&server, "/empty", &[], "").status, 201);
    assert_eq!(text(html.join("empty")), "");
    assert_eq!(fs::metadata(html.join("empty")).unwrap().mode() & 0o777, 0o600);
    // A body that is larger than the memory buffer, and a chunked one.
    let large = "0123456789".repeat(30_000);
    assert_eq!(put(&server, "/large", &[], &large).status, 201);
    assert_eq!(text(html.join("large")), large);
    let chunked = "PUT /chunked HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    assert!(raw(&server, chunked).starts_with("HTTP/1.1 201 "));
    assert_eq!(text(html.join("chunked")), "abcde");
    no_temp_files(&server);
    // The connection goes on after a PUT.
    let mut client = server.connect().unwrap();
    for _ in 0..2 {
        client.send("PUT /kept HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok").unwrap();
        assert!(matches!(client.read_response().unwrap().status, 201 | 204));
    }
}

#[test]
fn refused_put_changes_nothing() {
    let server = dav("client_max_body_size 100; location /off/ { dav_methods off; }");
    let html = server.prefix().join("html");
    fs::create_dir(html.join("dir")).unwrap();
    let large = "x".repeat(101);
    for (target, fields, body, expected) in [
        ("/dir/", &[][..], "x", 409),
        ("/dir", &[], "x", 409),
        ("/a.txt", &["Content-Range: bytes 0-0/3"], "x", 501),
        ("/a.txt", &[], &large, 413),
        ("/a.txt/b", &[], "x", 409),
        ("/none/b", &[], "x", 409),
        ("/off/a", &[], "x", 405),
        ("/../a", &[], "x", 400),
        ("/%2e%2e/a", &[], "x", 400),
    ] {
        assert_eq!(put(&server, target, fields, body).status, expected, "{target} {fields:?}");
    }
    assert_eq!(text(html.join("a.txt")), "old");
    assert_eq!(names_in(&html), ["a.txt", "dir"]);
    assert_eq!(names_in(server.prefix().join("html/dir")), [""; 0]);
    no_temp_files(&server);
    // A client that leaves half-way.
    let mut client = server.connect().unwrap();
    client.send("PUT /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf").unwrap();
    drop(client);
    no_temp_files(&server);
    assert_eq!(text(html.join("a.txt")), "old");
}

#[test]
fn put_sets_date_and_permissions() {
    let server = dav("location /g/ { dav_access group:rw all:r; create_full_put_path on; }
         location /r/ { dav_access user:r; create_full_put_path on; }");
    let html = server.prefix().join("html");
    assert_eq!(put(&server, "/dated", &["Date: Sun, 06 Nov 1994 08:49:37 GMT"], "x").status, 201);
    assert_eq!(fs::metadata(html.join("dated")).unwrap().mtime(), 784_111_777);
    let before = SystemTime::now() - Duration::from_secs(60);
    assert_eq!(put(&server, "/undated", &["Date: today"], "x").status, 201);
    assert!(fs::metadata(html.join("undated")).unwrap().modified().unwrap() > before);

    assert_eq!(put(&server, "/g/h/i", &[], "x").status, 201);
    let mode = |path: &str| fs::metadata(html.join(path)).unwrap().mode() & 0o777;
    assert_eq!(mode("g/h/i"), 0o664);
    // The umask of the test process applies to directories.
    assert_eq!(mode("g/h") & 0o700, 0o700);
    assert_eq!(put(&server, "/r", &[], "x").status, 201);
    assert_eq!(status(&server, "MKCOL /m/", &[]), 201);
    assert_eq!(mode("m"), 0o700);
}

#[test]
fn mkcol_creates_collections() {
    let server = dav("absolute_redirect off;");
    let made = request(&server, "MKCOL /c%20d/", &[]);
    assert_eq!((made.status, made.field("Location"), made.text().len()), (201, Some("/c%20d/"), 0));
    assert!(server.prefix().join("html/c d").is_dir());
    for (target, expected) in
        [("/c%20d/", 405), ("/x", 409), ("/no/x/", 409), ("/a.txt/", 405), ("/a.txt/b/", 409)]
    {
        assert_eq!(status(&server, &format!("MKCOL {target}"), &[]), expected, "{target}");
    }
    let body = "MKCOL /x/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx";
    assert!(raw(&server, body).starts_with("HTTP/1.1 415 "));
    assert!(!server.prefix().join("html/x").exists());
}

#[test]
fn delete_removes_files_and_trees() {
    let server = dav("location /deep/ { min_delete_depth 3; }");
    let html = server.prefix().join("html");
    for dir in ["t/u/v", "deep/x", "outside"] {
        fs::create_dir_all(html.join(dir)).unwrap();
    }
    for file in ["f", "t/1", "t/u/2", "t/u/v/3", "deep/f", "deep/x/f", "outside/kept"] {
        fs::write(html.join(file), file).unwrap();
    }
    // More names than one listing holds.
    for i in 0..700 {
        fs::write(html.join(format!("t/u/many{i}")), "").unwrap();
    }
    symlink("../outside", html.join("t/link")).unwrap();
    symlink("nowhere", html.join("t/dangling")).unwrap();
    for (line, fields, expected) in [
        ("DELETE /none", &[][..], 404),
        ("DELETE /f/", &[], 409),
        ("DELETE /t", &[], 409),
        ("DELETE /f", &["Depth: 1"], 400),
        ("DELETE /f", &["Depth: many"], 400),
        ("DELETE /f", &["Content-Length: 0"], 204),
        ("DELETE /t/", &["Depth: 0"], 400),
        ("DELETE /t/", &["Depth: 1"], 400),
        ("DELETE /t/", &["Depth: infinity"], 204),
        ("DELETE /deep/f", &[], 409),
        ("DELETE /deep/", &[], 409),
        ("DELETE /deep/x/", &[], 409),
        ("DELETE /deep/x/f", &[], 204),
    ] {
        assert_eq!(status(&server, line, fields), expected, "{line} {fields:?}");
    }
    server.wait_error_log("insufficient URI depth:2 to DELETE").unwrap();
    assert_eq!(names_in(&html), ["a.txt", "deep", "outside"]);
    assert_eq!(text(html.join("outside/kept")), "outside/kept");
    let body = "DELETE /a.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    assert!(raw(&server, body).starts_with("HTTP/1.1 415 "));
    assert!(html.join("a.txt").exists());
}

#[test]
fn copy_and_move_work_for_files() {
    let server = dav("");
    let html = server.prefix().join("html");
    fs::set_permissions(html.join("a.txt"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(html.join("b"), "b").unwrap();
    fs::hard_link(html.join("b"), html.join("b2")).unwrap();
    fs::create_dir(html.join("d")).unwrap();
    symlink("nowhere", html.join("dangling")).unwrap();
    symlink("d", html.join("to_d")).unwrap();
    assert_eq!(transfer(&server, "COPY /a.txt", "/copy%20of"), 204);
    assert_eq!(text(html.join("copy of")), "old");
    let from = fs::metadata(html.join("a.txt")).unwrap();
    let to = fs::metadata(html.join("copy of")).unwrap();
    assert_eq!((to.mode() & 0o777, to.mtime()), (0o640, from.mtime()));
    assert_eq!(transfer(&server, "COPY /a.txt", "/b"), 204);
    // The target is replaced, not overwritten, so another hard link keeps the old content.
    assert_eq!((text(html.join("b")), text(html.join("b2"))), ("old".to_owned(), "b".to_owned()));
    assert_eq!(transfer(&server, "MOVE /b", "http://localhost:80/new/dir/b?x"), 204);
    assert_eq!(text(html.join("new/dir/b")), "old");
    assert!(!html.join("b").exists());

    for (line, fields, expected) in [
        ("COPY /a.txt", &[][..], 400),
        ("COPY /a.txt", &["Destination: /b2", "Overwrite: F"], 412),
        ("MOVE /a.txt", &["Destination: /b2", "Overwrite: f"], 412),
        ("COPY /a.txt", &["Destination: /b2", "Overwrite: x"], 400),
        ("COPY /a.txt", &["Destination: /b2", "Depth: 1"], 400),
        ("MOVE /a.txt", &["Destination: /b2", "Depth: 0"], 400),
        ("COPY /a.txt", &["Destination: /a.txt"], 403),
        ("COPY /a.txt", &["Destination: /./a%2etxt"], 403),
        ("COPY /a.txt", &["Destination: /d"], 409),
        ("COPY /a.txt", &["Destination: /d/"], 409),
        ("COPY /none", &["Destination: /x"], 404),
        ("COPY /a.txt", &["Destination: /no/x"], 409),
        ("COPY /a.txt", &["Destination: https://localhost/x"], 400),
        ("COPY /a.txt", &["Destination: http://other/x"], 400),
        ("COPY /a.txt", &["Destination: http://localhost.other/x"], 400),
        ("COPY /a.txt", &["Destination: http://localhost"], 400),
        ("COPY /a.txt", &["Destination: x"], 400),
        ("COPY /a.txt", &["Destination: /d/%2e./../x"], 400),
        ("COPY /a.txt", &["Destination: /d/%2e%2e/x?y"], 400),
        ("COPY /a.txt", &["Destination:"], 400),
        ("COPY /dangling", &["Destination: /b2"], 500),
        ("COPY /to_d", &["Destination: /b2"], 403),
        ("COPY /a.txt", &["Destination: /b2", "Content-Length: 0"], 204),
    ] {
        assert_eq!(status(&server, line, fields), expected, "{line} {fields:?}");
    }
    assert_eq!(names_in(&html), ["a.txt", "b2", "copy of", "d", "dangling", "new", "to_d"]);
    for written_text in ["unsafe URI \"/d/%2e./../x\"", "unsafe URI \"/d/../x\""] {
        server.wait_error_log(&format!("{written_text} was detected")).unwrap();
    }
}

#[test]
fn copy_and_move_work_for_trees() {
    let server = dav("");
    let html = server.prefix().join("html");
    fs::create_dir_all(html.join("t/u/v")).unwrap();
    for file in ["t/1", "t/u/2", "t/u/v/3"] {
        fs::write(html.join(file), file).unwrap();
    }
    symlink("1", html.join("t/link")).unwrap();
    symlink("t", html.join("alias")).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::open(html.join("t/u")).unwrap().set_modified(old).unwrap();

    assert_eq!(transfer(&server, "COPY /t/", "/copy/"), 201);
    assert_eq!(text(html.join("copy/u/v/3")), "t/u/v/3");
    assert_eq!(names_in(html.join("copy")), ["1", "u"]);
    assert_eq!(fs::metadata(html.join("copy/u")).unwrap().mtime(), 1_000_000_000);
    // Existing files of the destination are removed.
    fs::write(html.join("copy/more"), "").unwrap();
    assert_eq!(status(&server, "COPY /t/", &["Destination: /copy/", "Overwrite: F"]), 412);
    assert_eq!(transfer(&server, "COPY /t/", "/copy/"), 201);
    assert_eq!(names_in(html.join("copy")), ["1", "u"]);
    assert_eq!(transfer(&server, "MOVE /copy/", "/moved/"), 201);
    assert_eq!((html.join("copy").exists(), text(html.join("moved/1"))), (false, "t/1".to_owned()));

    for (line, to, expected) in [
        ("COPY /t/", "/t/u/", 403),
        ("COPY /t/u/", "/t/", 403),
        ("MOVE /t/", "/t/", 403),
        // The same, behind a link.
        ("MOVE /t/", "/alias/x/", 403),
        ("COPY /t/u/", "/alias/u/", 403),
        ("COPY /t/", "/x", 409),
        ("COPY /t", "/x/", 409),
        ("COPY /t", "/x", 400),
        ("MOVE /t/", "/no/x/", 404),
        ("COPY /none/", "/x/", 404),
        ("COPY /a.txt/", "/x/", 404),
    ] {
        assert_eq!(transfer(&server, line, to), expected, "{line} {to}");
    }
    assert_eq!(text(html.join("t/u/v/3")), "t/u/v/3");
    // A copy into itself ends.
    assert_eq!(transfer(&server, "COPY /t/", "/alias/inner/"), 201);
    assert_eq!(names_in(html.join("t/inner")), ["1", "u"]);
    assert_eq!(names_in(html.join("t")), ["1", "inner", "link", "u"]);
}

#[test]
fn paths_outside_the_root_are_not_touched() {
    let server = serve(
        server()
            .file("html/a.txt", "in")
            .file("outside/f", "out")
            .file("data/f", "data")
            .file("database/f", "db"),
        "root html; location /alias { alias data; } location /safe/ { disable_symlinks on; }
         location ~ ^/one { alias data/f; }",
    );
    let prefix = server.prefix();
    for to in [
        "/../outside/f",
        "/x/../../outside/f",
        "/%2e%2e/outside/f",
        "/..%2foutside/f",
        "/a%00/f",
        "http://localhost/../outside/f",
    ] {
        assert_eq!(transfer(&server, "COPY /a.txt", to), 400, "{to}");
        assert_eq!(transfer(&server, "MOVE /a.txt", to), 400, "{to}");
    }
    // A destination behind the path of another location would lead beside the directory of the alias.
    assert_eq!(transfer(&server, "COPY /alias/f", "/other/g"), 400);
    assert_eq!(transfer(&server, "COPY /alias/f", "/a"), 400);
    assert_eq!(transfer(&server, "COPY /one", "/two"), 403);
    assert_eq!(transfer(&server, "COPY /alias/f", "/alias/g"), 204);

    fs::create_dir(prefix.join("html/safe")).unwrap();
    symlink("../../outside", prefix.join("html/safe/link")).unwrap();
    fs::write(prefix.join("html/safe/f"), "f").unwrap();
    assert_eq!(put(&server, "/safe/link/f", &[], "x").status, 403);
    assert_eq!(put(&server, "/safe/link/new/f", &[], "x").status, 403);
    assert_eq!(status(&server, "MKCOL /safe/link/d/", &[]), 403);
    assert_eq!(status(&server, "DELETE /safe/link/f", &[]), 403);
    assert_eq!(transfer(&server, "COPY /safe/f", "/safe/link/f"), 403);
    assert_eq!(transfer(&server, "COPY /safe/link/f", "/safe/g"), 403);
    assert_eq!(transfer(&server, "MOVE /safe/link/", "/safe/g/"), 403);
    assert_eq!(status(&server, "DELETE /safe/link/", &[]), 403);
    // The link itself may go, and a file may take its place.
    assert_eq!(put(&server, "/safe/g/h", &[], "x").status, 409);
    assert_eq!(status(&server, "DELETE /safe/link", &[]), 204);
    assert_eq!(put(&server, "/safe/link", &[], "x").status, 201);
    assert_eq!(text(prefix.join("outside/f")), "out");
    assert_eq!(names_in(prefix.join("outside")), ["f"]);
    assert_eq!(text(prefix.join("database/f")), "db");
}

#[test]
fn link_is_not_a_collection() {
    let server = dav("");
    let prefix = server.prefix();
    fs::create_dir(prefix.join("outside")).unwrap();
    fs::write(prefix.join("outside/f"), "out").unwrap();
    symlink("../outside", prefix.join("html/link")).unwrap();
    assert_eq!(status(&server, "DELETE /link/", &[]), 409);
    assert_eq!(transfer(&server, "COPY /link/", "/copy/"), 404);
    assert_eq!(transfer(&server, "MOVE /link/", "/moved/"), 404);
    assert_eq!(names_in(prefix.join("html")), ["a.txt", "link"]);
    assert_eq!(text(prefix.join("outside/f")), "out");
    // Without the trailing slash, the link itself is removed.
    assert_eq!(status(&server, "DELETE /link", &[]), 204);
    assert_eq!(names_in(prefix.join("html")), ["a.txt"]);
    assert_eq!(text(prefix.join("outside/f")), "out");
}

#[test]
fn client_mistakes_are_not_logged_as_alerts() {
    let server = dav("");
    let html = server.prefix().join("html");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        html.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    fs::create_dir(html.join("t")).unwrap();
    let long = "x".repeat(300);
    assert_eq!(put(&server, "/none/b", &[], "x").status, 409);
    assert_eq!(put(&server, &format!("/{long}"), &[], "x").status, 409);
    assert_eq!(transfer(&server, "COPY /a.txt", "/none/b"), 409);
    assert_eq!(transfer(&server, "COPY /a.txt", "/a.txt/b"), 404);
    assert_eq!(transfer(&server, "MOVE /a.txt", "/a.txt/b"), 404);
    assert_eq!(transfer(&server, "MOVE /t/", "/none/t/"), 404);
    assert_eq!(transfer(&server, "COPY /pipe", "/b"), 403);
    server
        .wait_error_log(
            "\"{html}/pipe\" is not a regular file".replace("{html}", html.to_str().unwrap()).as_str(),
        )
        .unwrap();
    assert!(!server.error_log().contains("[crit]"), "{}", server.error_log());
    assert_eq!(names_in(&html), ["a.txt", "pipe", "t"]);
}

/// `ETag` of a file.
fn etag(server: &Server, target: &str) -> String {
    request(server, &format!("GET {target}"), &[]).field("ETag").unwrap().to_owned()
}

const OLDER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// Gives a file the time of [`SAME`].
fn date_file(path: &Path) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn preconditions_of_put_are_evaluated() {
    let server = dav("location /untagged/ { etag off; alias html/; }
         location /full/ { create_full_put_path on; }");
    let html = server.prefix().join("html");
    let tag = |tag: &str| format!("If-Match: {tag}");
    fs::create_dir(html.join("dir")).unwrap();
    date_file(&html.join("a.txt"));
    let current = etag(&server, "/a.txt");
    let none_match = format!("If-None-Match: \"x\", W/{current}");
    for (target, fields, expected) in [
        ("/a.txt", vec!["If-None-Match: *"], 412),
        ("/a.txt", vec![&*none_match], 412),
        ("/a.txt", vec!["If-Match: \"x\""], 412),
        ("/a.txt", vec![&*tag(&format!("W/{current}"))], 412),
        ("/a.txt", vec!["If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT"], 412),
        ("/untagged/a.txt", vec![&*tag(&current)], 412),
        ("/none", vec!["If-Match: *"], 412),
        ("/none", vec!["If-Match: \"x\""], 412),
        ("/full/no/x", vec!["If-Match: *"], 412),
        ("/dir", vec!["If-None-Match: *"], 412),
        // Refused whatever the condition.
        ("/dir/", vec!["If-Match: *"], 409),
    ] {
        assert_eq!(put(&server, target, &fields, "x").status, expected, "{target} {fields:?}");
    }
    assert_eq!(
        (text(html.join("a.txt")), names_in(&html)),
        ("old".to_owned(), vec!["a.txt".to_owned(), "dir".to_owned()])
    );
    no_temp_files(&server);
    // A client that waits for the permission to send its body does not send it.
    let waiting = "PUT /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\nIf-None-Match: *\r\n\r\n";
    let mut client = server.connect().unwrap();
    client.send(waiting).unwrap();
    assert_eq!(client.read_response().unwrap().status, 412);

    for (target, fields, expected) in [
        ("/none", vec!["If-None-Match: *"], 201),
        ("/a.txt", vec!["If-Match: *", "If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT"], 204),
        ("/a.txt", vec!["If-Unmodified-Since: yesterday"], 204),
        ("/a.txt", vec!["If-None-Match: \"x\""], 204),
        ("/a.txt", vec!["If-Modified-Since: Sun, 06 Nov 2094 08:49:37 GMT"], 204),
        ("/a.txt", vec!["If-Unmodified-Since: Sun, 06 Nov 2094 08:49:37 GMT"], 204),
        ("/a.txt", vec![], 204),
        ("/new", vec!["If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT"], 201),
        ("/full/no/x", vec!["If-None-Match: *"], 201),
    ] {
        assert_eq!(put(&server, target, &fields, "x").status, expected, "{target} {fields:?}");
    }
    date_file(&html.join("a.txt"));
    let current = tag(&format!("\"x\", {}", etag(&server, "/a.txt")));
    assert_eq!(put(&server, "/a.txt", &[&current], "new").status, 204);
    assert_eq!(text(html.join("a.txt")), "new");
    no_temp_files(&server);
}

#[test]
fn preconditions_of_other_methods_are_evaluated() {
    let server = dav("");
    let html = server.prefix().join("html");
    for name in ["a", "b"] {
        fs::write(html.join(name), name).unwrap();
        date_file(&html.join(name));
    }
    fs::create_dir_all(html.join("d/e")).unwrap();
    let old = format!("If-Unmodified-Since: {OLDER}");
    let same = format!("If-Unmodified-Since: {SAME}");
    let current = format!("If-Match: {}", etag(&server, "/a"));
    for (line, fields, expected) in [
        ("DELETE /a", vec!["If-Match: \"x\""], 412),
        ("DELETE /a", vec!["If-None-Match: *"], 412),
        ("DELETE /a", vec![&*old], 412),
        ("DELETE /d/", vec!["If-None-Match: *"], 412),
        ("DELETE /d/", vec!["If-Match: \"x\""], 412),
        ("DELETE /d/", vec![&*old], 412),
        ("DELETE /none", vec!["If-Match: *"], 404),
        ("MOVE /a", vec!["Destination: /c", "If-Match: \"x\""], 412),
        ("MOVE /a", vec!["Destination: /b", &*old], 412),
        ("MOVE /a", vec!["Destination: /b", "If-None-Match: *"], 412),
        ("MOVE /d/", vec!["Destination: /c/", "If-Match: \"x\""], 412),
        ("MOVE /none", vec!["Destination: /c", "If-Match: *"], 404),
        ("COPY /a", vec!["Destination: /c", "If-Match: \"x\""], 412),
        ("COPY /a", vec!["Destination: /b", &*old], 412),
        ("COPY /a", vec!["Destination: /b", "Overwrite: F", &*current], 412),
        ("COPY /d/", vec!["Destination: /c/", "If-None-Match: *"], 412),
        ("MKCOL /c/", vec!["If-Match: *"], 412),
        ("MKCOL /d/", vec!["If-Match: *"], 405),
        ("MKCOL /d/", vec!["If-None-Match: *"], 405),
    ] {
        assert_eq!(status(&server, line, &fields), expected, "{line} {fields:?}");
    }
    assert_eq!(names_in(&html), ["a", "a.txt", "b", "d"]);
    assert_eq!((text(html.join("a")), text(html.join("b"))), ("a".to_owned(), "b".to_owned()));
    assert_eq!(names_in(html.join("d")), ["e"]);
    for (line, fields, expected) in [
        ("MKCOL /c/", vec!["If-None-Match: *"], 201),
        ("COPY /a", vec!["Destination: /copy", &*current, &*old], 204),
        ("COPY /d/", vec!["Destination: /c/", "If-Match: *"], 201),
        ("MOVE /b", vec!["Destination: /a", &*same], 204),
        ("MOVE /d/", vec!["Destination: /moved/", "If-Match: *", "Overwrite: F"], 201),
        ("DELETE /a", vec![&*current, "If-Modified-Since: Sun, 06 Nov 2094 08:49:37 GMT"], 204),
        ("DELETE /moved/", vec!["If-Match: *"], 204),
    ] {
        assert_eq!(status(&server, line, &fields), expected, "{line} {fields:?}");
    }
    assert_eq!(names_in(&html), ["a.txt", "c", "copy"]);
}

/// Changes that are conditional on the state before them must not lose each other, however many are on their way.
#[test]
fn conditional_changes_lose_nothing() {
    const CLIENTS: usize = 6;
    const CHANGES: usize = 8;
    let server = dav("");
    let html = server.prefix().join("html");
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut changes = 0;
                while changes < CHANGES {
                    let response = request(&server, "GET /a.txt", &[]);
                    let condition = format!("If-Match: {}", response.field("ETag").unwrap());
                    // Each change makes the file longer, so its entity tag differs.
                    let longer = format!("{}x", response.text());
                    match put(&server, "/a.txt", &[&condition], &longer).status {
                        204 => changes += 1,
                        status => assert_eq!(status, 412),
                    }
                }
            });
        }
    });
    assert_eq!(text(html.join("a.txt")), format!("old{}", "x".repeat(CLIENTS * CHANGES)));
    // Of several clients that create a file, move one to a free name, or remove it at the same time, exactly one
    // succeeds.
    let count = |statuses: Vec<u16>, of: u16| statuses.into_iter().filter(|status| *status == of).count();
    let at_once = |run: &(dyn Fn(usize) -> u16 + Sync)| {
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|nth| scope.spawn(move || run(nth))).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<u16>>()
        })
    };
    for round in 0..CHANGES {
        let target = format!("/new{round}");
        let created =
            at_once(&|nth| put(&server, &target, &["If-None-Match: *"], &"y".repeat(nth + 1)).status);
        assert_eq!(count(created, 201), 1, "{round}");
        for nth in 0..CLIENTS {
            fs::write(html.join(format!("from{nth}")), "z").unwrap();
        }
        let free = format!("Destination: /free{round}");
        let moved = at_once(&|nth| status(&server, &format!("MOVE /from{nth}"), &[&free, "Overwrite: F"]));
        assert_eq!(count(moved, 204), 1, "{round}");
        let condition = format!("If-Match: {}", etag(&server, &target));
        let deleted = at_once(&|_| status(&server, &format!("DELETE {target}"), &[&condition]));
        assert_eq!(count(deleted, 204), 1, "{round}");
    }
    no_temp_files(&server);
}

#[test]
fn full_disk_keeps_the_old_file() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    disk.write("f", "old");
    let slow = disk.path().display();
    let server = serve(
        server().file("html/a.txt", "new"),
        &format!(
            "location /slow/ {{ alias {slow}/; }}
             location /both/ {{ alias {slow}/; client_body_temp_path {slow}/tmp; }}"
        ),
    );
    let full = || Fault::Error(rustix::io::Errno::NOSPC);
    // The temporary file is on another file system: it is copied, then renamed.
    assert_eq!(put(&server, "/slow/f", &[], "new").status, 204);
    assert_eq!(disk.read("f").unwrap(), b"new");
    assert_eq!(put(&server, "/slow/f", &["Date: Sun, 06 Nov 1994 08:49:37 GMT"], "old").status, 204);
    assert_eq!(fs::metadata(disk.join("f")).unwrap().mtime(), 784_111_777);
    for op in [Op::Create, Op::Write, Op::Rename, Op::Setattr] {
        for target in ["/slow/f", "/both/f"] {
            let fault = disk.on(op).inject(full());
            let date = "Date: Sun, 06 Nov 1994 08:49:38 GMT";
            assert_eq!(put(&server, target, &[date], "something longer").status, 500, "{op:?} {target}");
            fault.lift();
            assert_eq!(disk.read("f").unwrap(), b"old", "{op:?} {target}");
        }
    }
    server.wait_error_log("failed (28: No space left on device)").unwrap();
    no_temp_files(&server);
    assert!(wait::until(wait::TIMEOUT, || names_in(disk.join("tmp")).is_empty()));
    assert_eq!(names_in(disk.path()), ["f", "tmp"]);
    for op in [Op::Create, Op::Write, Op::Rename] {
        let fault = disk.on(op).inject(full());
        disk.write("g", "source");
        assert_eq!(transfer(&server, "COPY /slow/g", "/slow/f"), 500, "{op:?}");
        fault.lift();
        assert_eq!(disk.read("f").unwrap(), b"old", "{op:?}");
    }
    assert_eq!(names_in(disk.path()), ["f", "g", "tmp"]);
}

#[test]
fn failing_disks_report_partial_results() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    for file in ["t/1", "t/u/2", "t/u/3"] {
        disk.write(file, file);
    }
    let slow = disk.path().display().to_string();
    let server = serve(server(), &format!("root {slow};"));
    // If the copy is incomplete, an error is reported and the source of a move stays.
    let fault = disk.on(Op::Create).name("2").inject(Fault::Error(rustix::io::Errno::NOSPC));
    assert_eq!(transfer(&server, "COPY /t/", "/c/"), 507);
    fault.lift();
    let fault = disk.on(Op::Create).name("2").inject(Fault::Error(rustix::io::Errno::IO));
    let cross = disk.on(Op::Rename).inject(Fault::Error(rustix::io::Errno::XDEV));
    assert_eq!(transfer(&server, "MOVE /t/", "/c/"), 500);
    assert_eq!(disk.read("t/u/3").unwrap(), b"t/u/3");
    fault.lift();
    assert_eq!(transfer(&server, "MOVE /t/", "/c/"), 201);
    cross.lift();
    assert_eq!(disk.read("c/u/2").unwrap(), b"t/u/2");
    assert!(!disk.join("t").exists());
    // A file that cannot be removed is logged, and the others are removed.
    let fault = disk.on(Op::Unlink).name("2").inject(Fault::Error(rustix::io::Errno::PERM));
    assert_eq!(status(&server, "DELETE /c/", &[]), 500);
    server.wait_error_log("unlink() \"{slow}/c/u/2\" failed (1: ".replace("{slow}", &slow).as_str()).unwrap();
    fault.lift();
    assert_eq!(names_in(disk.join("c")), ["u"]);
    assert_eq!(names_in(disk.join("c/u")), ["2"]);
    let fault = disk.on(Op::Rmdir).inject(Fault::Error(rustix::io::Errno::ACCESS));
    assert_eq!(status(&server, "DELETE /c/", &[]), 403);
    fault.lift();
    assert_eq!(status(&server, "DELETE /c/", &[]), 204);
    assert_eq!(names_in(disk.path()), [""; 0]);
}

#[test]
fn malformed_directives_are_refused() {
    for (directives, expected) in [
        ("dav_methods GET;", "invalid value \"GET\""),
        ("dav_access all;", "invalid value \"all\""),
        ("dav_access user:w;", "invalid value \"user:w\""),
        ("dav_access user:rw; dav_access user:rw;", "\"dav_access\" directive is duplicate"),
        ("min_delete_depth x;", "invalid number"),
    ] {
        let said = refusal(directives);
        assert!(said.contains(expected), "{directives}: {said}");
    }
}
