//! `autoindex`: listing directories.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use tw_testkit::Server;

use crate::support::{get, is_root, page, request, server, start_server};

/// A server that lists `html/d`, in which everything is as old as the examples of RFC 9110.
fn listing(directives: &str) -> Server {
    let builder = server()
        .file("html/d/b.txt", "hello")
        .file("html/d/a & <b>", "x")
        .file("html/d/.hidden", "x")
        .file("html/d/sub/x", "");
    let server = start_server(builder, &format!("autoindex on; {directives}"));
    let dir = server.prefix().join("html/d");
    symlink("nowhere", dir.join("broken")).unwrap();
    for name in ["b.txt", "a & <b>", "sub"] {
        let file = fs::File::open(dir.join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)).unwrap();
    }
    server
}

#[test]
fn html_listing_matches_nginx() {
    let server = listing("");
    let response = get(&server, "/d/");
    assert_eq!((response.status, response.field("Content-Type")), (200, Some("text/html")));
    assert_eq!(response.field("Content-Length"), Some(&*response.body.len().to_string()));
    let text = response.text();
    let lines: Vec<_> = text.split("\r\n").collect();
    assert_eq!(
        lines[..4],
        [
            "<html>",
            "<head><title>Index of /d/</title></head>",
            "<body>",
            "<h1>Index of /d/</h1><hr><pre><a href=\"../\">../</a>",
        ]
    );
    let column = |name: &str, size: &str| format!("{name:<51}06-Nov-1994 08:49{size:>20}");
    let entry = |href: &str, name: &str, shown: &str, size: &str| {
        let padding = " ".repeat(51 - name.len());
        format!("<a href=\"{href}\">{shown}</a>{}", column("", size).replacen(&" ".repeat(51), &padding, 1))
    };
    assert_eq!(lines[4], entry("sub/", "sub/", "sub/", "-"));
    assert_eq!(lines[5], entry("a%20%26%20%3Cb%3E", "a & <b>", "a &amp; &lt;b&gt;", "1"));
    assert_eq!(lines[6], entry("b.txt", "b.txt", "b.txt", "5"));
    assert!(lines[7].starts_with("<a href=\"broken\">broken</a>   "), "{}", lines[7]);
    assert_eq!(lines[8..], ["</pre><hr></body>", "</html>", ""]);
}

#[test]
fn every_link_of_a_listing_works() {
    let names = ["a b", "100%", "q?x", "h#x", "semi;colon", "a&b=c", "\u{e4}", "'\"", "a:b", "<x>", "\\"];
    let builder = names.iter().fold(server(), |builder, name| builder.file(format!("html/d/{name}"), name));
    let server = start_server(builder, "autoindex on;");
    let text = page(&server, "/d/").1;
    let hrefs: Vec<_> = text.split("<a href=\"").skip(2).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(hrefs.len(), names.len(), "{text}");
    for href in hrefs {
        let (status, body) = page(&server, &format!("/d/{href}"));
        assert_eq!(status, 200, "{href}");
        assert!(names.contains(&&*body), "{href}: {body}");
    }
}

#[test]
fn autoindex_format_selects_html_xml_json_or_jsonp() {
    let server = listing(
        "location /json/ { alias html/d/; autoindex_format json; } location /xml/ { alias html/d/; autoindex_format xml; }
         location /jsonp/ { alias html/d/; autoindex_format jsonp; } location /off/ { alias html/d/; autoindex off; }
         location /rounded/ { alias html/d/; autoindex_exact_size off; }",
    );
    fs::remove_file(server.prefix().join("html/d/broken")).unwrap();
    let time = "Sun, 06 Nov 1994 08:49:37 GMT";
    let json = format!(
        "[\r\n{{ \"name\":\"sub\", \"type\":\"directory\", \"mtime\":\"{time}\" }},\r\n\
         {{ \"name\":\"a & <b>\", \"type\":\"file\", \"mtime\":\"{time}\", \"size\":1 }},\r\n\
         {{ \"name\":\"b.txt\", \"type\":\"file\", \"mtime\":\"{time}\", \"size\":5 }}\r\n]"
    );
    let xml = "<?xml version=\"1.0\"?>\r\n<list>\r\n\
        <directory mtime=\"1994-11-06T08:49:37Z\">sub</directory>\r\n\
        <file mtime=\"1994-11-06T08:49:37Z\" size=\"1\">a &amp; &lt;b&gt;</file>\r\n\
        <file mtime=\"1994-11-06T08:49:37Z\" size=\"5\">b.txt</file>\r\n</list>\r\n";
    for (target, content_type, text) in [
        ("/json/", "application/json", json.clone()),
        ("/jsonp/", "application/json", json.clone()),
        ("/jsonp/?callback=", "application/json", json.clone()),
        (
            "/jsonp/?x=y&callback=a.b_C1",
            "application/javascript",
            format!("/* callback */\r\na.b_C1({json});"),
        ),
        ("/xml/", "text/xml; charset=utf-8", xml.to_owned()),
    ] {
        let response = get(&server, target);
        assert_eq!(response.text(), text, "{target}");
        assert_eq!(response.field("Content-Type"), Some(content_type), "{target}");
    }
    assert_eq!(get(&server, "/off/").status, 403);
    assert!(page(&server, "/rounded/").1.contains(" 06-Nov-1994 08:49       5\r\n"));
    let long = format!("/jsonp/?callback={}", "x".repeat(129));
    for target in ["/jsonp/?callback=a()", "/jsonp/?callback=%61", &long] {
        assert_eq!(get(&server, target).status, 400, "{target}");
    }
    server.wait_error_log("client sent invalid callback name: \"a()\"").unwrap();
    server.wait_error_log("client sent too long callback name: ").unwrap();
}

#[test]
fn listing_accepts_get_and_head_of_directories_only() {
    let server = listing("");
    for (line, status) in [
        ("GET /d/", 200),
        ("HEAD /d/", 200),
        ("POST /d/", 403),
        ("PUT /d/", 405),
        ("GET /d", 301),
        ("GET /missing/", 404),
        ("GET /d/b.txt/", 404),
        ("GET /d/sub/../", 200),
    ] {
        assert_eq!(request(&server, line, &[]).status, status, "{line}");
    }
    fs::write(server.prefix().join("html/d/index.html"), "index").unwrap();
    assert_eq!(page(&server, "/d/"), (200, "index".into()));
}

#[test]
fn changed_directory_is_listed_anew() {
    let server = listing("");
    let dir = server.prefix().join("html/d");
    fs::write(dir.join("new"), "").unwrap();
    assert!(page(&server, "/d/").1.contains("\"new\""));
    fs::remove_file(dir.join("new")).unwrap();
    assert!(!page(&server, "/d/").1.contains("\"new\""));
    fs::rename(&dir, server.prefix().join("html/e")).unwrap();
    assert_eq!(get(&server, "/d/").status, 404);
    assert_eq!(get(&server, "/e/").status, 200);
}

#[test]
fn many_entries_and_odd_names_are_listed() {
    let server = start_server(server(), "autoindex on;");
    let dir = server.prefix().join("html");
    for number in 0..3000 {
        fs::write(dir.join(format!("{number:05}")), "").unwrap();
    }
    let odd = std::ffi::OsStr::from_bytes(b"\xff\x01\n");
    fs::write(dir.join(odd), "").unwrap();
    let text = page(&server, "/").1;
    assert_eq!(text.matches("<a href=").count(), 3002);
    let results: Vec<_> = (0..3000).map(|number| text.find(&format!("\"{number:05}\"")).unwrap()).collect();
    assert!(results.is_sorted());
    assert!(text.contains("<a href=\"%FF%01%0A\">"));
}

#[test]
fn unreadable_directory_is_403() {
    if is_root("a directory that may not be read") {
        return;
    }
    let server = listing("");
    let dir = server.prefix().join("html/d");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o300)).unwrap();
    assert_eq!(get(&server, "/d/").status, 403);
    let line = server.wait_error_log("opendir() \"").unwrap();
    assert!(line.contains("html/d\" failed (13: Permission denied)"), "{line}");

    // A directory that may be read but not searched yields names without metadata, so no entries are shown.
    let server = listing("index /none;");
    let dir = server.prefix().join("html/d");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o400)).unwrap();
    let response = get(&server, "/d/");
    assert!(response.status != 200 || !response.text().contains("b.txt"), "{}", response.text());
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn truncated_listing_is_marked() {
    let server = start_server(
        server().file("html/d/0", ""),
        "autoindex on;
         location /json/ { alias html/d/; autoindex_format json; }
         location /xml/ { alias html/d/; autoindex_format xml; }
         location /page/ { alias html/d/; autoindex_format page; }",
    );
    let dir = server.prefix().join("html/d");
    let text = |target: &str| page(&server, target).1;
    assert!(!text("/d/").contains("not complete") && !text("/json/").contains("truncated"));
    // One name more than the limit. Links are cheaper than files, and a file has at most 65,000 of them.
    for number in 1..=tw_disk::LIST_MAX {
        match number % 50_000 {
            1 => drop(fs::write(dir.join(number.to_string()), "")),
            rest => {
                let first = number - (rest + 49_999) % 50_000;
                fs::hard_link(dir.join(first.to_string()), dir.join(number.to_string())).unwrap();
            }
        }
    }
    let note = "This list is not complete: the directory has more than 100000 entries.";
    assert!(text("/d/").ends_with(&format!("\r\n{note}\r\n</pre><hr></body>\r\n</html>\r\n")));
    assert!(text("/json/").ends_with(",\r\n{ \"type\":\"truncated\", \"limit\":100000 }\r\n]"));
    assert!(text("/xml/").ends_with("<truncated limit=\"100000\"/>\r\n</list>\r\n"));
    assert!(text("/page/").contains(note));
}
