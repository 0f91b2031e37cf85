//! WebDAV of classes 1 and 2: PROPFIND, OPTIONS, LOCK, UNLOCK, and locks that other methods respect.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use tw_testkit::{Response, Server};

use crate::support::reload::reload_until;
use crate::support::{raw, refusal_of, request, server};

const CONF: &str = "dav_methods PUT DELETE MKCOL COPY MOVE; dav_ext_methods PROPFIND OPTIONS LOCK UNLOCK;
    dav_ext_lock zone=locks;";
const EXCLUSIVE: &str = "<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:exclusive/></D:lockscope>\
    <D:locktype><D:write/></D:locktype><D:owner>me &amp; you</D:owner></D:lockinfo>";

fn configured(directives: &str) -> String {
    format!(
        "user root; http {{ dav_ext_lock_zone zone=locks:1m timeout=2h;
         server {{ listen 127.0.0.1:{{port}}; root html; {CONF} {directives} }} }}"
    )
}

fn dav(directives: &str) -> Server {
    server().file("html/a.txt", "old").file("html/d/b.html", "hello").start(&configured(directives)).unwrap()
}

/// Sends a request with a body.
fn send(server: &Server, line: &str, fields: &[&str], body: &str) -> Response {
    let mut client = server.connect().unwrap();
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let length = body.len();
    let head =
        format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n");
    client.send(format!("{head}{fields}\r\n{body}")).unwrap();
    client.read_response().unwrap()
}

fn status(server: &Server, line: &str, fields: &[&str], body: &str) -> u16 {
    send(server, line, fields, body).status
}

/// Locks with `body` and returns the token, in angle brackets.
fn lock(server: &Server, target: &str, fields: &[&str], body: &str, expected: u16) -> String {
    let locked = send(server, &format!("LOCK {target}"), fields, body);
    assert_eq!(locked.status, expected, "{target}: {}", locked.text());
    let token = locked.field("Lock-Token").unwrap().to_owned();
    assert!(locked.text().contains(token.trim_matches(['<', '>'])), "{}", locked.text());
    token
}

/// Links of a multistatus, in the order of their bytes.
fn links(text: &str) -> Vec<&str> {
    let mut links: Vec<_> = text
        .split("<D:response>\n<D:href>")
        .skip(1)
        .filter_map(|rest| rest.split("</D:href>").next())
        .collect();
    links.sort_unstable();
    links
}

#[test]
fn options_name_the_methods_of_the_location() {
    let server = dav("location /plain/ { dav_methods off; dav_ext_methods OPTIONS; }
         location /off/ { dav_ext_methods off; }");
    let all = request(&server, "OPTIONS /d/", &[]);
    assert_eq!((all.status, all.field("DAV"), all.field("Content-Length")), (200, Some("1, 2"), Some("0")));
    assert_eq!(
        all.field("Allow"),
        Some("GET, HEAD, PUT, DELETE, MKCOL, COPY, MOVE, PROPFIND, OPTIONS, LOCK, UNLOCK")
    );
    assert_eq!(request(&server, "OPTIONS /plain/", &[]).field("Allow"), Some("GET, HEAD, OPTIONS"));
    assert_eq!(request(&server, "OPTIONS /off/", &[]).status, 405);
}

#[test]
fn propfind_tells_properties_of_files_and_collections() {
    let server = dav("");
    let html = server.prefix().join("html");
    fs::create_dir(html.join("d/sub &")).unwrap();
    symlink("b.html", html.join("d/link")).unwrap();
    symlink("nowhere", html.join("d/dangling")).unwrap();
    let answer = send(&server, "PROPFIND /d", &["Depth: 1"], "");
    assert_eq!((answer.status, answer.field("Content-Type")), (207, Some("application/xml; charset=utf-8")));
    let text = answer.text();
    assert_eq!(links(&text), ["/d/", "/d/b.html", "/d/link", "/d/sub%20&amp;/"], "{text}");
    for expected in [
        "<D:getcontenttype>text/html</D:getcontenttype>",
        "<D:getcontentlength>5</D:getcontentlength>",
        "<D:resourcetype><D:collection/></D:resourcetype>",
        "<D:lockdiscovery></D:lockdiscovery>",
        "<D:displayname>sub &amp;</D:displayname>",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    // The entity tag is the one that GET sends.
    let etag = request(&server, "GET /d/b.html", &[]).field("ETag").unwrap().replace('"', "&quot;");
    assert!(text.contains(&format!("<D:getetag>{etag}</D:getetag>")), "{etag} {text}");
    assert_eq!(links(&send(&server, "PROPFIND /d/", &[], "").text()), ["/d/"]);
    assert_eq!(links(&send(&server, "PROPFIND /d/b.html", &["Depth: 1"], "").text()), ["/d/b.html"]);

    let body = "<propfind xmlns='DAV:'><prop><getetag/><x:y xmlns:x='urn:z'/></prop></propfind>";
    let text = send(&server, "PROPFIND /d/", &["Depth: 0"], body).text();
    let missing = "<D:propstat>\n<D:prop>\n<D:getetag/>\n<x:y xmlns:x=\"urn:z\"/>\n</D:prop>\n<D:status>HTTP/1.1 404 Not Found";
    assert!(text.contains(missing) && !text.contains("200 OK"), "{text}");
    let names = send(&server, "PROPFIND /a.txt", &[], "<propfind xmlns='DAV:'><propname/></propfind>").text();
    assert!(names.contains("<D:getetag/>") && !names.contains("<D:getetag>"), "{names}");
}

#[test]
fn hostile_propfind_is_refused() {
    let server = dav("");
    let infinite = send(&server, "PROPFIND /", &["Depth: infinity"], "");
    assert_eq!(infinite.status, 403);
    assert!(infinite.text().contains("<D:propfind-finite-depth/>"), "{}", infinite.text());
    let doctype = "<!DOCTYPE x [<!ENTITY e SYSTEM \"file:///etc/passwd\">]><propfind xmlns='DAV:'><prop>&e;</prop></propfind>";
    let deep = "<a>".repeat(5000);
    for (line, fields, body, expected) in [
        ("PROPFIND /none", &[][..], "", 404),
        ("PROPFIND /a.txt/", &[], "", 404),
        ("PROPFIND /../a", &[], "", 400),
        ("PROPFIND /", &["Depth: 2"], "", 400),
        ("PROPFIND /", &[], "<propfind xmlns='DAV:'>", 400),
        ("PROPFIND /", &[], doctype, 400),
        ("PROPFIND /", &[], &deep, 400),
        ("PROPFIND /", &[], &"x".repeat(16 * 1024 + 1), 413),
        ("LOCK /a.txt", &[], doctype, 400),
    ] {
        assert_eq!(status(&server, line, fields, body), expected, "{line} {fields:?}");
    }
    let chunked = "PROPFIND / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunks = format!("{chunked}4001\r\n{}\r\n0\r\n\r\n", "x".repeat(0x4001));
    assert!(raw(&server, chunks).starts_with("HTTP/1.1 413 "));
}

#[test]
fn names_of_any_bytes_stay_well_formed() {
    let server = dav("");
    let dir = server.prefix().join("html/d");
    for name in [&b"\x01\x1f"[..], b"\xff\xfe", b"<b>&\"'", b"a\nb", b"%41?#", b"]]>"] {
        fs::write(dir.join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
    }
    let text = send(&server, "PROPFIND /d/", &["Depth: 1"], "").text();
    let results = links(&text).into_iter().map(|link| link.replace("&amp;", "&").replace("&quot;", "\""));
    let results: Vec<_> = results.collect();
    assert_eq!(results.len(), 8, "{text}");
    // Every href leads to its resource.
    for link in &results {
        let link = link.replace("&#39;", "'");
        assert_eq!(status(&server, &format!("PROPFIND {link}"), &[], ""), 207, "{link}");
    }
    assert!(text.bytes().all(|byte| byte >= b' ' || byte == b'\n'), "{text}");
}

#[test]
fn large_directory_is_listed_whole() {
    let server = dav("");
    let dir = server.prefix().join("html/d");
    for number in 0..3000 {
        fs::write(dir.join(format!("{number:0100}")), "").unwrap();
    }
    let text = send(&server, "PROPFIND /d/", &["Depth: 1"], "").text();
    assert_eq!(links(&text).len(), 3002);
    assert!(text.ends_with("</D:multistatus>\n"));
}

#[test]
fn disable_symlinks_hides_links() {
    let server = dav("location /d/ { disable_symlinks on; }");
    let html = server.prefix().join("html");
    symlink("b.html", html.join("d/link")).unwrap();
    fs::create_dir(html.join("other")).unwrap();
    symlink("../other", html.join("d/dir")).unwrap();
    let text = send(&server, "PROPFIND /d/", &["Depth: 1"], "").text();
    assert_eq!(links(&text), ["/d/", "/d/b.html"], "{text}");
    for line in ["PROPFIND /d/link", "PROPFIND /d/dir/", "LOCK /d/link", "LOCK /d/dir/x"] {
        assert_eq!(
            status(&server, line, &["Depth: 0"], if line.starts_with('L') { EXCLUSIVE } else { "" }),
            403,
            "{line}"
        );
    }
}

#[test]
fn locked_file_is_changed_with_its_token_only() {
    let server = dav("");
    let token = lock(&server, "/a.txt", &["Timeout: Infinite, Second-300"], EXCLUSIVE, 200);
    let text = send(&server, "PROPFIND /a.txt", &[], "").text();
    for expected in [
        "<D:owner>me &amp; you</D:owner>",
        "<D:depth>infinity</D:depth>",
        "<D:lockscope><D:exclusive/></D:lockscope>",
        "<D:lockroot><D:href>/a.txt</D:href></D:lockroot>",
        "<D:timeout>Second-300</D:timeout>",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let listed = send(&server, "PROPFIND /", &["Depth: 1"], "").text();
    assert_eq!(listed.matches("<D:activelock>").count(), 1, "{listed}");
    let with = format!("If: ({token})");
    let elsewhere = format!("If: </a.txt> ({token})");
    let other = "If: (<urn:uuid:00000000-0000-4000-8000-000000000000>)";
    let refused = send(&server, "PUT /a.txt", &[], "new");
    assert_eq!(refused.status, 423);
    assert!(refused.text().contains("<D:lock-token-submitted><D:href>/a.txt</D:href>"), "{}", refused.text());
    for (line, fields, body, expected) in [
        ("DELETE /a.txt", &[][..], "", 423),
        ("MOVE /a.txt", &["Destination: /b"], "", 423),
        ("MOVE /d/b.html", &["Destination: /a.txt"], "", 423),
        ("COPY /d/b.html", &["Destination: http://localhost/a.txt"], "", 423),
        ("LOCK /a.txt", &[], EXCLUSIVE, 423),
        ("LOCK /", &["Depth: infinity"], EXCLUSIVE, 423),
        ("PUT /a.txt", &[other], "new", 412),
        ("PUT /a.txt", &["If: ("], "new", 400),
        ("GET /a.txt", &[], "", 200),
        ("COPY /a.txt", &["Destination: /copy"], "", 204),
        ("PUT /other", &[], "new", 201),
        ("PUT /a.txt", &[&with], "new", 204),
        ("COPY /d/b.html", &["Destination: /a.txt", &elsewhere], "", 204),
        ("UNLOCK /a.txt", &["Lock-Token: <urn:uuid:00000000-0000-4000-8000-000000000000>"], "", 409),
        ("UNLOCK /a.txt", &[], "", 400),
        ("UNLOCK /other", &[&format!("Lock-Token: {token}")], "", 409),
        ("UNLOCK /a.txt", &[&format!("Lock-Token: {token}")], "", 204),
        ("PUT /a.txt", &[], "newer", 204),
    ] {
        assert_eq!(status(&server, line, fields, body), expected, "{line} {fields:?}");
    }
}

#[test]
fn conditions_of_the_if_field_are_checked() {
    let server = dav("");
    let etag = request(&server, "GET /a.txt", &[]).field("ETag").unwrap().to_owned();
    let token = lock(&server, "/a.txt", &[], EXCLUSIVE, 200);
    for (field, expected) in [
        (format!("({token} [\"x\"])"), 412),
        (format!("({token} Not [\"x\"])"), 204),
        (format!("({token}) (Not <DAV:no-lock>)"), 204),
        ("(Not <DAV:no-lock>)".to_owned(), 423),
        (format!("({token}) </d/b.html>"), 400),
        (format!("</d/b.html> ({token})"), 412),
        (format!("<http://localhost/a.txt> ({token})"), 204),
        (format!("<http://elsewhere/a.txt> ({token})"), 412),
    ] {
        let length = format!("If: {field}");
        assert_eq!(status(&server, "PUT /a.txt", &[&length], "old"), expected, "{field}");
    }
    assert_eq!(status(&server, "PUT /d/b.html", &[&format!("If: ([{etag}])")], "x"), 412);
}

#[test]
fn preconditions_of_lock_are_evaluated() {
    let server = dav("");
    let etag = request(&server, "GET /a.txt", &[]).field("ETag").unwrap().to_owned();
    for (target, field) in
        [("/a.txt", "If-None-Match: *"), ("/a.txt", "If-Match: \"x\""), ("/new", "If-Match: *")]
    {
        assert_eq!(status(&server, &format!("LOCK {target}"), &[field], EXCLUSIVE), 412, "{target} {field}");
    }
    assert!(!server.prefix().join("html/new").exists());
    // None of these requests has locked the file.
    assert_eq!(status(&server, "PUT /a.txt", &[&format!("If-Match: {etag}")], "old"), 204);
    lock(&server, "/a.txt", &["If-Match: *"], EXCLUSIVE, 200);
    lock(&server, "/new", &["If-None-Match: *"], EXCLUSIVE, 201);
}

#[test]
fn shared_and_collection_locks() {
    let server = dav("");
    let shared = EXCLUSIVE.replace("exclusive", "shared");
    let [one, other] = [(); 2].map(|()| lock(&server, "/a.txt", &[], &shared, 200));
    assert_ne!(one, other);
    assert_eq!(status(&server, "LOCK /a.txt", &[], EXCLUSIVE), 423);
    assert_eq!(status(&server, "PUT /a.txt", &[&format!("If: ({other})")], "x"), 204);

    // A lock of depth 0 protects the names of a collection.
    let names = lock(&server, "/d/", &["Depth: 0"], EXCLUSIVE, 200);
    let with = format!("If: </d/> ({names})");
    for (line, fields, body, expected) in [
        ("PUT /d/b.html", &[][..], "x", 204),
        ("PUT /d/new", &[], "x", 423),
        ("MKCOL /d/new/", &[], "", 423),
        ("DELETE /d/b.html", &[], "", 423),
        ("COPY /a.txt", &["Destination: /d/new"], "", 423),
        ("LOCK /d/new", &[], EXCLUSIVE, 423),
        ("PUT /d/new", &[&with], "x", 201),
        ("DELETE /d/b.html", &[&with], "", 204),
    ] {
        assert_eq!(status(&server, line, fields, body), expected, "{line} {fields:?}");
    }
    assert_eq!(status(&server, "UNLOCK /d/", &[&format!("Lock-Token: {names}")], ""), 204);
    // A lock of infinite depth protects everything below, and a lock on a member also protects its collections.
    let tree = lock(&server, "/d/", &[], EXCLUSIVE, 200);
    assert_eq!(status(&server, "PUT /d/x/y", &[], "x"), 423);
    assert_eq!(status(&server, "PUT /d/new", &[&format!("If: </d/> ({tree})")], "x"), 204);
    assert!(send(&server, "PROPFIND /d/new", &[], "").text().contains("<D:lockroot><D:href>/d/</D:href>"));
    assert_eq!(status(&server, "UNLOCK /d/new", &[&format!("Lock-Token: {tree}")], ""), 204);
    lock(&server, "/d/new", &[], EXCLUSIVE, 200);
    assert_eq!(status(&server, "DELETE /d/", &[], ""), 423);
}

#[test]
fn lock_creates_an_empty_file_and_ends_with_it() {
    let server = dav("dav_access user:rw group:r;");
    let html = server.prefix().join("html");
    let token = lock(&server, "/new", &[], EXCLUSIVE, 201);
    assert_eq!(fs::read(html.join("new")).unwrap(), b"");
    let with = format!("If: ({token})");
    assert_eq!(status(&server, "DELETE /new", &[&with], ""), 204);
    assert_eq!(status(&server, "PUT /new", &[], "x"), 201);
    let token = lock(&server, "/new", &[], EXCLUSIVE, 200);
    assert_eq!(status(&server, "MOVE /new", &["Destination: /moved", &format!("If: ({token})")], ""), 204);
    assert_eq!(status(&server, "PUT /new", &[], "x"), 201);
    for target in ["/none/new", "/none/", "/a.txt/x"] {
        assert_eq!(status(&server, &format!("LOCK {target}"), &[], EXCLUSIVE), 409, "{target}");
        assert_eq!(status(&server, &format!("PUT {target}x"), &[], "x"), 409, "{target}");
    }
    // A refresh takes its token from the If field.
    let token = lock(&server, "/a.txt", &["Timeout: Second-60"], EXCLUSIVE, 200);
    let refreshed = send(&server, "LOCK /a.txt", &["Timeout: Second-600", &format!("If: ({token})")], "");
    assert_eq!((refreshed.status, refreshed.field("Lock-Token")), (200, None));
    assert!(refreshed.text().contains("Second-600"), "{}", refreshed.text());
    assert_eq!(status(&server, "LOCK /a.txt", &[], ""), 412);
    assert_eq!(status(&server, "LOCK /a.txt", &["Depth: 1"], EXCLUSIVE), 400);
}

#[test]
fn tokens_are_of_use_to_their_user_only() {
    let server = dav("");
    let [me, you] = ["bWU6eA==", "eW91Ong="].map(|user| format!("Authorization: Basic {user}"));
    let token = lock(&server, "/a.txt", &[&me], EXCLUSIVE, 200);
    let with = format!("If: ({token})");
    let unlock = format!("Lock-Token: {token}");
    for (line, fields, body, expected) in [
        ("PUT /a.txt", &[&*with, &you][..], "x", 423),
        ("UNLOCK /a.txt", &[&unlock, &you], "", 403),
        ("PUT /a.txt", &[&with, &me], "x", 204),
        ("UNLOCK /a.txt", &[&unlock, &me], "", 204),
    ] {
        assert_eq!(status(&server, line, fields, body), expected, "{line} {fields:?}");
    }
}

#[test]
fn locks_outlive_reloads_and_a_full_zone_refuses() {
    let mut server = server()
        .file("html/a.txt", "old")
        .start(&configured("location /v { return 200 one; }").replace("1m", "32k"))
        .unwrap();
    lock(&server, "/a.txt", &[], EXCLUSIVE, 200);
    let conf = configured("location /v { return 200 two; }").replace("1m", "32k");
    reload_until(&mut server, &conf, "/v", "two");
    assert_eq!(status(&server, "PUT /a.txt", &[], "x"), 423);
    let full = (0..100).find_map(|number| {
        let answer = send(&server, &format!("LOCK /{number}"), &[], EXCLUSIVE);
        (answer.status != 201).then_some((number, answer.status))
    });
    let (number, status) = full.unwrap();
    assert_eq!(status, 503, "{number}");
    assert!(!server.prefix().join(format!("html/{number}")).exists());
    server.wait_error_log("zone \"locks\" has no room for a lock").unwrap();
}

#[test]
fn mistakes_in_the_configuration_are_found() {
    for (http, expected) in [
        ("dav_ext_lock_zone zone=a:1m; dav_ext_lock_zone zone=a:1m;", "duplicate zone \"a\""),
        ("dav_ext_lock_zone timeout=1s;", "\"dav_ext_lock_zone\" must have \"zone\" parameter"),
        ("dav_ext_lock_zone zone=a:1m timeout=0;", "invalid timeout value \"timeout=0\""),
        ("dav_ext_lock_zone zone=a:1m x=y;", "invalid parameter \"x=y\""),
        ("dav_ext_lock zone=b;", "zero size shared memory zone \"b\""),
        ("dav_ext_lock b;", "invalid parameter \"b\""),
        ("dav_ext_methods PUT;", "invalid value \"PUT\""),
    ] {
        let said = refusal_of(&format!("http {{ {http} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(said.contains(expected), "{http}: {said}");
    }
    let off = server()
        .file("html/a", "x")
        .start("http { server { listen 127.0.0.1:{port}; root html; dav_ext_methods LOCK UNLOCK; } }")
        .unwrap();
    assert_eq!(status(&off, "LOCK /a", &[], EXCLUSIVE), 405);
    assert_eq!(status(&off, "PROPFIND /a", &[], ""), 405);
}
