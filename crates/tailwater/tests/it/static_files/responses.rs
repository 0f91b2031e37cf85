//! Responses with files: statuses, validators, conditions, ranges, and changed files.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tw_testkit::{Server, wait};

use crate::support::content::pattern;
use crate::support::{get, is_root, page, request, server, start_server};

/// 1994-11-06 08:49:37 UTC, as in the examples of RFC 9110.
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn set_mtime(path: &Path, unix_s: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s)).unwrap();
}

/// A server whose `html/a.txt` holds `hello, world!` and is as old as [`DATE`].
fn with_a_file(directives: &str) -> Server {
    let server = start_server(server().file("html/a.txt", "hello, world!"), directives);
    set_mtime(&server.prefix().join("html/a.txt"), 784_111_777);
    server
}

#[test]
fn statuses_match_nginx() {
    let builder = server()
        .file("html/a.txt", "hello")
        .file("html/empty.html", "")
        .file("html/dir/x", "")
        .file("html/with/index.html", "index");
    let server = start_server(builder, "");
    let long = format!("GET /{}", "x".repeat(300));
    let table = [
        ("GET /a.txt", 200, "hello"),
        ("HEAD /a.txt", 200, ""),
        ("GET /empty.html", 200, ""),
        ("HEAD /empty.html", 200, ""),
        ("GET /with/", 200, "index"),
        ("GET /missing", 404, "404 Not Found"),
        ("HEAD /missing", 404, ""),
        ("GET /missing/", 404, "404 Not Found"),
        ("GET /a.txt/", 404, "404 Not Found"),
        ("GET /a.txt/b", 404, "404 Not Found"),
        (&long, 404, "404 Not Found"),
        ("GET /dir", 301, "301 Moved Permanently"),
        ("GET /dir/", 403, "403 Forbidden"),
        ("POST /a.txt", 405, "405 Not Allowed"),
        ("POST /missing", 404, "404 Not Found"),
        ("POST /dir", 301, "301 Moved Permanently"),
        ("PUT /a.txt", 405, "405 Not Allowed"),
        ("PUT /dir/", 405, "405 Not Allowed"),
        ("DELETE /a.txt", 405, "405 Not Allowed"),
        ("OPTIONS /a.txt", 405, "405 Not Allowed"),
        ("PATCH /missing", 405, "405 Not Allowed"),
        ("FROB /a.txt", 405, "405 Not Allowed"),
        ("TRACE /a.txt", 405, "405 Not Allowed"),
    ];
    for (line, status, text) in table {
        let response = request(&server, line, &[]);
        assert_eq!(response.status, status, "{line}");
        assert!(response.text().contains(text), "{line}: {}", response.text());
        assert!(!text.is_empty() || response.body.is_empty(), "{line}: {}", response.text());
    }
}

#[test]
fn file_response_has_validators_and_type() {
    let server = with_a_file("types { text/special txt; } default_type x/y;");
    for line in ["GET /a.txt", "HEAD /a.txt"] {
        let response = request(&server, line, &[]);
        for (name, value) in [
            ("Content-Type", "text/special"),
            ("Content-Length", "13"),
            ("Last-Modified", DATE),
            ("ETag", "\"2ebc98a1-d\""),
            ("Accept-Ranges", "bytes"),
            ("Connection", "close"),
        ] {
            assert_eq!(response.field(name), Some(value), "{line} {name}");
        }
    }
    fs::write(server.prefix().join("html/plain"), "x").unwrap();
    assert_eq!(get(&server, "/plain").field("Content-Type"), Some("x/y"));
    // A dot at the beginning makes a hidden file, not an extension.
    fs::write(server.prefix().join("html/.txt"), "x").unwrap();
    assert_eq!(get(&server, "/.txt").field("Content-Type"), Some("x/y"));
}

#[test]
fn empty_file_has_a_length_and_no_ranges() {
    let server = start_server(server().file("html/empty", ""), "");
    let response = get(&server, "/empty");
    assert_eq!((response.status, response.field("Content-Length")), (200, Some("0")));
    let response = request(&server, "GET /empty", &["Range: bytes=0-"]);
    assert_eq!((response.status, response.field("Content-Range")), (200, None));
}

#[test]
fn directory_redirects_to_its_slash() {
    let builder = server().file("html/a dir/b", "").file("html/dir/b", "");
    let server = start_server(
        builder,
        "location /rel/ { absolute_redirect off; alias html/; } location /noport/ { port_in_redirect off; alias html/; }
         location /name/ { server_name_in_redirect on; alias html/; } server_name example.com;",
    );
    let port = server.addr().port();
    let table = [
        ("/dir", format!("http://localhost:{port}/dir/")),
        ("/dir?x=y&z", format!("http://localhost:{port}/dir/?x=y&z")),
        ("/a%20dir", format!("http://localhost:{port}/a%20dir/")),
        ("//dir", format!("http://localhost:{port}/dir/")),
        ("/x/../dir", format!("http://localhost:{port}/dir/")),
        ("/rel/dir?a", "/rel/dir/?a".to_owned()),
        ("/noport/dir", "http://localhost/noport/dir/".to_owned()),
        ("/name/dir", format!("http://example.com:{port}/name/dir/")),
    ];
    for (target, location) in table {
        let response = get(&server, target);
        assert_eq!((response.status, response.field("Location")), (301, Some(&*location)), "{target}");
    }
}

#[test]
fn conditional_requests_are_answered() {
    let server = with_a_file("");
    let etag = "\"2ebc98a1-d\"";
    let since = |name: &str, date: &str| format!("{name}: {date}");
    let later = "Mon, 07 Nov 1994 08:49:37 GMT";
    let earlier = "Sat, 05 Nov 1994 08:49:37 GMT";
    let table = [
        (since("If-Modified-Since", DATE), 304),
        (since("If-Modified-Since", "Sunday, 06-Nov-94 08:49:37 GMT"), 304),
        (since("If-Modified-Since", later), 200),
        (since("If-Modified-Since", earlier), 200),
        (since("If-Modified-Since", "yesterday"), 200),
        (since("If-Unmodified-Since", DATE), 200),
        (since("If-Unmodified-Since", later), 200),
        (since("If-Unmodified-Since", earlier), 412),
        (since("If-None-Match", etag), 304),
        (since("If-None-Match", &format!("W/{etag}")), 304),
        (since("If-None-Match", &format!("\"x\", {etag}")), 304),
        (since("If-None-Match", "*"), 304),
        (since("If-None-Match", "\"x\""), 200),
        (since("If-Match", etag), 200),
        (since("If-Match", "*"), 200),
        (since("If-Match", &format!("\"x\" , {etag}")), 200),
        (since("If-Match", &format!("W/{etag}")), 412),
        (since("If-Match", "\"x\""), 412),
    ];
    for (field, status) in table {
        let response = request(&server, "GET /a.txt", &[&field]);
        assert_eq!(response.status, status, "{field}");
        assert_eq!(response.field("ETag"), (status != 412).then_some(etag), "{field}");
    }
    let both = ["If-None-Match: \"x\"", "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT"];
    assert_eq!(request(&server, "GET /a.txt", &both).status, 200);
    let response = request(&server, "GET /a.txt", &[&since("If-None-Match", etag)]);
    assert_eq!((response.field("Last-Modified"), response.field("Content-Type")), (Some(DATE), None));
    assert_eq!((response.field("Content-Length"), response.field("Accept-Ranges")), (None, None));
    assert!(response.body.is_empty());
}

#[test]
fn etag_off_and_if_modified_since_off_disable_conditions() {
    let server = with_a_file(
        "location /noetag/ { alias html/; etag off; } location /off/ { alias html/; if_modified_since off; }
         location /before/ { alias html/; if_modified_since before; }",
    );
    assert_eq!(get(&server, "/noetag/a.txt").field("ETag"), None);
    let later = "If-Modified-Since: Mon, 07 Nov 1994 08:49:37 GMT";
    let earlier = "If-Modified-Since: Sat, 05 Nov 1994 08:49:37 GMT";
    for (target, field, status) in [
        ("/off/a.txt", &*format!("If-Modified-Since: {DATE}"), 200),
        ("/before/a.txt", later, 304),
        ("/before/a.txt", earlier, 200),
        ("/noetag/a.txt", "If-None-Match: *", 304),
        ("/noetag/a.txt", "If-None-Match: \"2ebc98a1-d\"", 200),
    ] {
        assert_eq!(request(&server, &format!("GET {target}"), &[field]).status, status, "{target} {field}");
    }
}

#[test]
fn single_ranges_are_sent() {
    let server = with_a_file("");
    let table = [
        ("bytes=0-4", 206, "bytes 0-4/13", "hello"),
        ("bytes=0-0", 206, "bytes 0-0/13", "h"),
        ("bytes=7-", 206, "bytes 7-12/13", "world!"),
        ("bytes=-6", 206, "bytes 7-12/13", "world!"),
        ("bytes=-100", 206, "bytes 0-12/13", "hello, world!"),
        ("bytes=5-1000", 206, "bytes 5-12/13", ", world!"),
        ("bytes=0-12", 206, "bytes 0-12/13", "hello, world!"),
        ("bytes= 1 - 2 ", 206, "bytes 1-2/13", "el"),
        ("BYTES=1-2", 206, "bytes 1-2/13", "el"),
        ("bytes=13-", 416, "bytes */13", ""),
        ("bytes=100-200", 416, "bytes */13", ""),
        ("bytes=4-2", 416, "bytes */13", ""),
        ("bytes=-0", 416, "bytes */13", ""),
        ("bytes=x-", 416, "bytes */13", ""),
        ("bytes=", 200, "", "hello, world!"),
        ("bytes=99999999999999999999-", 416, "bytes */13", ""),
        ("lines=1-2", 200, "", "hello, world!"),
        ("bytes", 200, "", "hello, world!"),
    ];
    for (range, status, content_range, text) in table {
        let response = request(&server, "GET /a.txt", &[&format!("Range: {range}")]);
        assert_eq!(response.status, status, "{range}");
        assert_eq!(response.field("Content-Range").unwrap_or_default(), content_range, "{range}");
        if status != 416 {
            assert_eq!(response.text(), text, "{range}");
            assert_eq!(response.field("Content-Length"), Some(&*text.len().to_string()), "{range}");
            assert_eq!(response.field("Accept-Ranges"), (status == 200).then_some("bytes"), "{range}");
        }
    }
    let response = request(&server, "HEAD /a.txt", &["Range: bytes=0-4"]);
    assert_eq!((response.status, response.field("Content-Length")), (206, Some("5")));
}

#[test]
fn several_ranges_are_multipart() {
    let server = with_a_file("types { } default_type text/x;");
    let response = request(&server, "GET /a.txt", &["Range: bytes=0-1,7-8,-1"]);
    assert_eq!(response.status, 206);
    let content_type = response.field("Content-Type").unwrap();
    let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let part = |range: &str, text: &str| {
        format!("\r\n--{boundary}\r\nContent-Type: text/x\r\nContent-Range: bytes {range}/13\r\n\r\n{text}")
    };
    let expected = [part("0-1", "he"), part("7-8", "wo"), part("12-12", "!")].concat();
    assert_eq!(response.text(), format!("{expected}\r\n--{boundary}--\r\n"));
    assert_eq!(response.field("Content-Length"), Some(&*response.body.len().to_string()));

    for (range, status) in [
        // One satisfiable range is enough.
        ("bytes=0-1,100-", 206),
        ("bytes=100-,200-", 416),
        // Ranges that are together larger than the file get the whole file.
        ("bytes=0-,0-,0-", 200),
        ("bytes=0-12,1-12", 200),
    ] {
        let response = request(&server, "GET /a.txt", &[&format!("Range: {range}")]);
        assert_eq!(response.status, status, "{range}");
    }
}

#[test]
fn max_ranges_limits_ranges() {
    let server = with_a_file(
        "location /0/ { alias html/; max_ranges 0; } location /1/ { alias html/; max_ranges 1; }",
    );
    for (target, range, status) in
        [("/0/a.txt", "bytes=0-1", 200), ("/1/a.txt", "bytes=0-1", 206), ("/1/a.txt", "bytes=0-1,3-4", 200)]
    {
        let response = request(&server, &format!("GET {target}"), &[&format!("Range: {range}")]);
        assert_eq!(response.status, status, "{target} {range}");
    }
    assert_eq!(get(&server, "/0/a.txt").field("Accept-Ranges"), None);
}

#[test]
fn if_range_decides_between_part_and_whole() {
    let server = with_a_file("");
    for (validator, status) in [
        ("\"2ebc98a1-d\"", 206),
        (DATE, 206),
        ("\"other\"", 200),
        ("W/\"2ebc98a1-d\"", 200),
        ("Mon, 07 Nov 1994 08:49:37 GMT", 200),
        ("nonsense", 200),
    ] {
        let response =
            request(&server, "GET /a.txt", &["Range: bytes=0-4", &format!("If-Range: {validator}")]);
        assert_eq!(response.status, status, "{validator}");
    }
}

#[test]
fn names_with_odd_bytes_are_found() {
    let builder = server()
        .file("html/a b", "space")
        .file("html/a+b", "plus")
        .file("html/100%", "percent")
        .file("html/q?x", "question")
        .file("html/\u{e4}", "umlaut")
        .file("html/a\nb", "line");
    let server = start_server(builder, "");
    for (target, status, text) in [
        ("/a%20b", 200, "space"),
        ("/a+b", 200, "plus"),
        ("/100%25", 200, "percent"),
        ("/q%3Fx", 200, "question"),
        ("/q?x", 404, "404"),
        ("/%C3%A4", 200, "umlaut"),
        ("/\u{e4}", 200, "umlaut"),
        ("/a%0Ab", 200, "line"),
        ("/a%0ab#fragment", 200, "line"),
    ] {
        let (got, body) = page(&server, target);
        assert_eq!(got, status, "{target}");
        assert!(body.contains(text), "{target}: {body}");
    }
}

#[test]
fn non_files_are_not_served() {
    let server = start_server(server(), "");
    let html = server.prefix().join("html");
    let fifo = CString::new(html.join("fifo").into_os_string().into_encoded_bytes()).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    std::os::unix::fs::symlink("/dev/zero", html.join("zero")).unwrap();
    std::os::unix::fs::symlink("loop", html.join("loop")).unwrap();
    std::os::unix::fs::symlink("nowhere", html.join("broken")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(html.join("socket")).unwrap();
    for (target, statuses) in [
        ("/fifo", [404].as_slice()),
        ("/zero", &[404]),
        ("/broken", &[404]),
        ("/loop", &[403, 500]),
        ("/socket", &[500]),
    ] {
        let (status, body) = page(&server, target);
        assert!(statuses.contains(&status), "{target}: {status} {body}");
    }
    let log = server.wait_error_log("/html/zero\" is not a regular file").unwrap();
    assert!(log.contains("[crit]"), "{log}");
}

#[test]
fn unreadable_files_are_forbidden() {
    if is_root("unreadable files") {
        return;
    }
    let builder = server().file("html/a", "x").file("html/dir/b", "x");
    let server = start_server(builder, "");
    for (name, mode) in [("html/a", 0o000), ("html/dir", 0o644)] {
        fs::set_permissions(server.prefix().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for target in ["/a", "/dir/b", "/dir/"] {
        assert_eq!(get(&server, target).status, 403, "{target}");
    }
    let log = server.wait_error_log("html/a\" failed").unwrap();
    assert!(log.contains("open() \"") && log.contains("(13: Permission denied)"), "{log}");
    fs::set_permissions(server.prefix().join("html/dir"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn missing_files_are_logged_like_nginx() {
    let server = start_server(server(), "location /quiet/ { log_not_found off; }");
    get(&server, "/quiet/x");
    let client = server.connect().unwrap().local_addr().unwrap().ip();
    get(&server, "/missing?a=b");
    let line = server.wait_error_log("missing").unwrap();
    let expected = format!(
        "open() \"{}/html/missing\" failed (2: No such file or directory), client: {client}, server: , \
         request: \"GET /missing?a=b HTTP/1.1\", host: \"localhost\"",
        server.prefix().display()
    );
    assert!(line.contains("[error]") && line.ends_with(&expected), "{line}");
    assert!(!server.error_log().contains("quiet"), "{}", server.error_log());
}

/// Requests the file often enough for it to be kept in memory.
fn make_hot(server: &Server, target: &str, text: &str) {
    for _ in 0..5 {
        assert_eq!(page(server, target), (200, text.to_owned()));
    }
}

#[test]
fn changed_file_is_used_by_the_next_request() {
    let server = with_a_file("");
    let path = server.prefix().join("html/a.txt");
    let old = 784_111_777;
    // Only a file that was not changed recently is kept in memory.
    let settled = || {
        let changed = fs::metadata(&path).unwrap().modified().unwrap();
        wait::until(wait::TIMEOUT, || changed.elapsed().is_ok_and(|age| age > Duration::from_secs(4)))
    };
    set_mtime(&path, old);
    assert!(settled());
    make_hot(&server, "/a.txt", "hello, world!");

    // The same size within the same second.
    fs::write(&path, "HELLO, WORLD!").unwrap();
    assert_eq!(page(&server, "/a.txt").1, "HELLO, WORLD!");
    fs::write(&path, "hello, WORLD!").unwrap();
    assert_eq!(page(&server, "/a.txt").1, "hello, WORLD!");
    make_hot(&server, "/a.txt", "hello, WORLD!");

    // With the modification time set back, only the change time reveals the change.
    fs::write(&path, "hello, moon!!").unwrap();
    set_mtime(&path, old);
    assert_eq!(page(&server, "/a.txt").1, "hello, moon!!");

    // The size has changed.
    fs::write(&path, "short").unwrap();
    let response = get(&server, "/a.txt");
    assert_eq!((response.text(), response.field("Content-Length")), ("short".into(), Some("5")));

    // Another file has replaced it under the same name.
    make_hot(&server, "/a.txt", "short");
    fs::write(server.prefix().join("html/new"), "other").unwrap();
    fs::rename(server.prefix().join("html/new"), &path).unwrap();
    assert_eq!(page(&server, "/a.txt").1, "other");

    // The file is removed, then created again.
    make_hot(&server, "/a.txt", "other");
    fs::remove_file(&path).unwrap();
    assert_eq!(get(&server, "/a.txt").status, 404);
    fs::write(&path, "again").unwrap();
    assert_eq!(page(&server, "/a.txt"), (200, "again".into()));

    // A directory instead.
    make_hot(&server, "/a.txt", "again");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(get(&server, "/a.txt").status, 301);
}

#[test]
fn changed_hot_file_is_used_on_an_open_connection() {
    let server = with_a_file("");
    let path = server.prefix().join("html/a.txt");
    let mut client = server.connect().unwrap();
    for round in 0..50 {
        let text = format!("round {round:03}!!!!");
        fs::write(&path, &text).unwrap();
        for _ in 0..3 {
            client.send("GET /a.txt HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            assert_eq!(client.read_response().unwrap().text(), text);
        }
    }
}

#[test]
fn removed_directory_is_404_at_once() {
    let server = start_server(server().file("html/d/a", "x").file("html/e/a", "y"), "");
    make_hot(&server, "/d/a", "x");
    fs::rename(server.prefix().join("html/d"), server.prefix().join("html/f")).unwrap();
    assert_eq!(get(&server, "/d/a").status, 404);
    fs::rename(server.prefix().join("html/e"), server.prefix().join("html/d")).unwrap();
    assert_eq!(page(&server, "/d/a"), (200, "y".into()));
}

#[test]
fn large_file_is_sent_whole_and_in_ranges() {
    let content = pattern(5 << 20);
    for directives in
        ["", "sendfile on;", "sendfile on; sendfile_max_chunk 64k;", "output_buffers 1 4k;", "tcp_nopush on;"]
    {
        let server = start_server(server().file("html/big", &content), directives);
        let response = get(&server, "/big");
        assert!(response.body == content, "{directives}");
        for (range, from, to) in [
            ("0-1048575", 0, 1 << 20),
            ("1000000-3000000", 1_000_000, 3_000_001),
            ("-1", content.len() - 1, content.len()),
            ("262143-262145", 262_143, 262_146),
        ] {
            let response = request(&server, "GET /big", &[&format!("Range: bytes={range}")]);
            assert!(response.status == 206 && response.body == content[from..to], "{directives} {range}");
        }
        let several = request(&server, "GET /big", &["Range: bytes=0-99,1000000-2999999,5242879-"]);
        assert_eq!(several.status, 206);
        let is_found = |part: &[u8]| several.body.windows(part.len()).any(|window| window == part);
        assert!(is_found(&content[..100]), "{directives}");
        assert!(several.body.len() > 2_000_101 && is_found(&content[2_999_000..3_000_000]), "{directives}");
    }
}

#[test]
fn files_of_sizes_around_the_buffers_are_sent_whole() {
    let sizes = [1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 262_143, 262_144, 262_145, 1_000_003];
    let builder =
        sizes.iter().fold(server(), |builder, size| builder.file(format!("html/{size}"), pattern(*size)));
    let server = start_server(builder, "");
    let mut client = server.connect().unwrap();
    for size in sizes.iter().chain(&sizes) {
        client.send(format!("GET /{size} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
        assert!(client.read_response().unwrap().body == pattern(*size), "{size}");
    }
}

#[test]
fn file_that_grows_or_shrinks_keeps_its_framing() {
    let content = pattern(5 << 20);
    let server = start_server(server().file("html/big", &content).file("html/cut", &content), "");
    let mut client = server.connect().unwrap();
    client
        .send("GET /big HTTP/1.1\r\nHost: localhost\r\n\r\nGET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let head = client.read_head().unwrap();
    assert_eq!(head.field("Content-Length"), Some("5242880"));
    fs::OpenOptions::new()
        .append(true)
        .open(server.prefix().join("html/big"))
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"more"))
        .unwrap();
    assert!(client.read_bytes(5 << 20).unwrap() == content);
    assert_eq!(client.read_response().unwrap().body.len(), (5 << 20) + 4);

    // The promised length can no longer be sent: the connection ends, and nothing else is made up.
    let mut client = server.connect().unwrap();
    client.send("GET /cut HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    client.read_head().unwrap();
    let file = fs::File::options().write(true).open(server.prefix().join("html/cut")).unwrap();
    file.set_len(4096).unwrap();
    let got = client.read_until_close().unwrap_or_default();
    assert!(got.len() < content.len() && content.starts_with(&got), "{} bytes", got.len());
}

#[test]
fn open_file_cache_serves_for_its_valid_time() {
    let cache = "open_file_cache max=10 inactive=1h; open_file_cache_valid 1h; open_file_cache_errors on;
        location /unsure/ { alias html/; open_file_cache_errors off; }
        location /off/ { alias html/; open_file_cache off; }";
    let server = start_server(server().file("html/a", "old").file("html/b", "old"), cache);
    let path = server.prefix().join("html/a");
    make_hot(&server, "/a", "old");
    assert_eq!(get(&server, "/missing").status, 404);
    assert_eq!(get(&server, "/unsure/unsure").status, 404);
    // The cached descriptor is used, even if the name now leads to another file.
    fs::remove_file(&path).unwrap();
    for name in ["html/a", "html/missing", "html/unsure"] {
        fs::write(server.prefix().join(name), "new").unwrap();
    }
    make_hot(&server, "/a", "old");
    assert_eq!(get(&server, "/missing").status, 404);
    assert_eq!(page(&server, "/unsure/unsure"), (200, "new".into()));
    assert_eq!(page(&server, "/off/a"), (200, "new".into()));
}

#[test]
fn open_file_cache_checks_again_after_its_valid_time() {
    let cache = "open_file_cache max=2; open_file_cache_valid 1s; open_file_cache_min_uses 2;";
    let server = start_server(server().file("html/a", "old"), cache);
    make_hot(&server, "/a", "old");
    let path = server.prefix().join("html/a");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "new").unwrap();
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/a") == (200, "new".into())));
    fs::remove_file(&path).unwrap();
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/a").status == 404));
    for name in 0..20 {
        fs::write(server.prefix().join(format!("html/{name}")), name.to_string()).unwrap();
        assert_eq!(page(&server, &format!("/{name}")), (200, name.to_string()));
    }
}

#[test]
fn disable_symlinks_refuses_links() {
    let builder = server().file("html/real/a", "x").file("other/b", "y");
    let server = start_server(
        builder,
        "location /off/ { alias html/; } location /on/ { alias html/; disable_symlinks on; }
         location /from/ { alias html/link/; disable_symlinks on from=$document_root; }
         location /owner/ { alias html/; disable_symlinks if_not_owner; }",
    );
    let html = server.prefix().join("html");
    std::os::unix::fs::symlink("real", html.join("link")).unwrap();
    std::os::unix::fs::symlink("real/a", html.join("file")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", html.join("passwd")).unwrap();
    for (target, statuses) in [
        ("/off/link/a", [200].as_slice()),
        ("/off/file", &[200]),
        ("/on/real/a", &[200]),
        // A link to a directory is "not a directory" to the flags with which nginx opens it.
        ("/on/link/a", &[403, 404]),
        ("/on/file", &[403]),
        ("/on/missing", &[404]),
        ("/from/a", &[200]),
        ("/owner/link/a", &[200]),
        ("/owner/file", &[200]),
        ("/on/passwd", &[403]),
    ] {
        for _ in 0..3 {
            let status = get(&server, target).status;
            assert!(statuses.contains(&status), "{target}: {status}");
        }
    }
}

#[test]
fn root_and_alias_map_paths() {
    let builder = server()
        .file("html/a", "root")
        .file("one/a", "one")
        .file("one/x/a", "one/x")
        .file("hosts/localhost/a", "by host");
    let server = start_server(
        builder,
        "location /x/ { root one; } location /one/ { alias one/; } location = /exact { alias one/a; }
         location ~ ^/re/(.*)$ { alias one/$1; } location /abs/ { alias {prefix}/one/; } location /noslash { alias one; }
         location /host/ { alias hosts/$host/; }",
    );
    for (target, status, text) in [
        ("/a", 200, "root"),
        ("/x/a", 200, "one/x"),
        ("/one/a", 200, "one"),
        ("/one/x/a", 200, "one/x"),
        ("/exact", 200, "one"),
        ("/re/a", 200, "one"),
        ("/re/x/a", 200, "one/x"),
        ("/abs/a", 200, "one"),
        ("/noslash/a", 200, "one"),
        ("/host/a", 200, "by host"),
        // nginx documents this as the trap of an alias without a slash.
        ("/noslash../html/a", 404, "404"),
        ("/one../html/a", 404, "404"),
    ] {
        let (got, body) = page(&server, target);
        assert_eq!(got, status, "{target}: {body}");
        assert!(body.contains(text), "{target}: {body}");
    }
}
