//! `fancyindex`: lists that can be sorted, with headers and footers of one's own.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use tw_testkit::Server;

use crate::support::{get, page, refusal, request, server, start_server};

fn listing(directives: &str) -> Server {
    let builder = server()
        .file("html/d/b.txt", "hello")
        .file("html/d/A & <b>", "x")
        .file("html/d/.hidden", "x")
        .file("html/d/sub/x", "")
        .file("html/head.html", "<title>head</title><h1>Files of ")
        .file("html/foot.html", "<p>foot");
    let server = start_server(builder, &format!("fancyindex on; {directives}"));
    let dir = server.prefix().join("html/d");
    symlink("b.txt", dir.join("link")).unwrap();
    for (name, second) in [("b.txt", 784_111_777), ("A & <b>", 784_000_000), ("sub", 784_111_778)] {
        let file = fs::File::open(dir.join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
    }
    server
}

/// Names in the order of the table.
fn names(text: &str) -> Vec<&str> {
    let rows = text.split("<td class=\"link\"><a href=\"").skip(1);
    rows.filter_map(|row| row.split('>').nth(1)?.split('<').next()).collect()
}

#[test]
fn table_is_sorted_as_configured_and_as_asked() {
    let server = listing(
        "location /size/ { alias html/d/; fancyindex_default_sort size_desc; }
         location /any/ { alias html/d/; fancyindex_case_sensitive off; fancyindex_directories_first off; }",
    );
    let response = get(&server, "/d/");
    assert_eq!((response.status, response.field("Content-Type")), (200, Some("text/html")));
    let text = response.text();
    assert_eq!(names(&text), ["Parent directory/", "sub/", "A &amp; &lt;b&gt;", "b.txt", "link"], "{text}");
    assert!(
        text.contains(
            "<td class=\"size\">5</td><td class=\"date\"><span>1994-Nov-06</span> <span>08:49</span></td>"
        ),
        "{text}"
    );
    for (target, expected) in [
        ("/d/?C=N&O=D", ["sub/", "link", "b.txt", "A &amp; &lt;b&gt;"]),
        ("/d/?C=S&O=A", ["sub/", "A &amp; &lt;b&gt;", "b.txt", "link"]),
        ("/d/?C=M&O=A", ["sub/", "A &amp; &lt;b&gt;", "b.txt", "link"]),
        ("/size/", ["sub/", "link", "b.txt", "A &amp; &lt;b&gt;"]),
        ("/any/", ["A &amp; &lt;b&gt;", "b.txt", "link", "sub/"]),
    ] {
        let text = page(&server, target).1;
        assert_eq!(names(&text)[1..], expected, "{target}: {text}");
    }
    assert!(page(&server, "/d/?C=S&O=D").1.contains("<a href=\"sub/?C=S&amp;O=D\""));
    for (line, status) in [("HEAD /d/", 200), ("POST /d/", 403), ("GET /none/", 404), ("GET /d/b.txt", 200)] {
        assert_eq!(request(&server, line, &[]).status, status, "{line}");
    }
    assert!(!page(&server, "/").1.contains("Parent directory"));
}

#[test]
fn entries_are_hidden() {
    let server = listing(
        "location /d/ { fancyindex_show_dotfiles on; fancyindex_ignore ^b 'x$'; fancyindex_hide_symlinks on;
         fancyindex_hide_parent_dir on; fancyindex_time_format '%d.%m.%Y'; fancyindex_exact_size off;
         fancyindex_css_href /s.css; fancyindex_name_length 6; }",
    );
    let text = page(&server, "/d/").1;
    assert_eq!(names(&text), ["sub/", ".hi..&gt;", "A &amp;..&gt;"], "{text}");
    assert!(text.contains("<td class=\"date\"><span>06.11.1994</span></td>"), "{text}");
    assert!(text.contains("</style>\n<link rel=\"stylesheet\" href=\"/s.css\">"), "{text}");
}

#[test]
fn header_and_footer_are_responses_or_files() {
    let server = listing("location /own/ { alias html/d/; fancyindex_header /head.html; fancyindex_footer /foot.html subrequest; }
         location /local/ { alias html/d/; fancyindex_header html/head.html local; fancyindex_footer html/foot.html local;
             fancyindex_show_path off; }
         location /broken/ { alias html/d/; fancyindex_header /none.html; fancyindex_footer html/none local; }");
    for (target, begin) in [
        ("/own/", "<title>head</title><h1>Files of /own/</h1>\r\n<table id=\"list\">"),
        ("/local/", "<title>head</title><h1>Files of <table id=\"list\">"),
    ] {
        let text = page(&server, target).1;
        assert!(text.starts_with(begin) && text.ends_with("</table>\r\n<p>foot"), "{target}: {text}");
        assert_eq!(names(&text).len(), 5, "{text}");
        assert_eq!(request(&server, &format!("HEAD {target}"), &[]).status, 200);
    }
    let text = page(&server, "/broken/").1;
    assert!(text.starts_with("<!doctype html>") && text.ends_with("</html>\r\n"), "{text}");
    server.wait_error_log("\"/none.html\" for a listing was answered with 404").unwrap();
    server.wait_error_log("html/none\" failed (2: No such file or directory)").unwrap();
}

#[test]
fn mistakes_in_the_configuration_are_found() {
    for (text, expected) in [
        ("fancyindex_show_path off;", "\"fancyindex_show_path off\" needs a \"fancyindex_header\""),
        ("fancyindex_header /a far;", "invalid parameter \"far\""),
        ("fancyindex_ignore (;", "regex compilation failed"),
        ("fancyindex_default_sort colour;", "invalid value \"colour\""),
    ] {
        let said = refusal(text);
        assert!(said.contains(expected), "{text}: {said}");
    }
}
