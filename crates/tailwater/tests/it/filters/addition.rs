//! `add_before_body`, `add_after_body`

use crate::support::{get, page, request, server, start_server};

#[test]
fn bodies_get_additions() {
    let server = start_server(
        server()
            .file("html/a.html", "A")
            .file("html/a.txt", "T")
            .file("html/empty.html", "")
            .file("html/head", "<")
            .file("html/foot", ">"),
        "location / { add_before_body /head; add_after_body /foot; location /own { alias html; add_after_body /a.txt; } \
           location /any { alias html; addition_types *; } } \
         location /before { alias html; add_before_body /head; } \
         location /missing-addition { alias html; add_before_body /nothing; } \
         location /code { add_before_body /head; return 202 x; } \
         location /head { alias html/head; } location /foot { alias html/foot; }",
    );
    for (target, expected) in [
        ("/a.html", "<A>"),
        ("/a.txt", "T"),
        ("/empty.html", "<>"),
        ("/own/a.html", "<AT"),
        ("/any/a.txt", "<T>"),
        ("/before/a.html", "<A"),
    ] {
        assert_eq!(page(&server, target), (200, expected.to_owned()), "{target}");
    }
    assert_eq!(page(&server, "/code"), (202, "x".to_owned()));
    let (status, text) = page(&server, "/missing-addition/a.html");
    assert!(status == 200 && text.contains("404 Not Found") && text.ends_with('A'), "{status} {text}");
    assert_eq!(page(&server, "/no.html").0, 404);
}

#[test]
fn additions_remove_length_and_weaken_the_etag() {
    let server = start_server(
        server().file("html/a.html", "A").file("html/head", "<"),
        "add_before_body /head; location /head { add_header X-Part y; default_type text/html; }",
    );
    let response = request(&server, "GET /a.html", &["Range: bytes=0-0"]);
    assert_eq!((response.status, response.text().as_str()), (200, "<A"));
    for name in ["Content-Length", "Accept-Ranges", "X-Part"] {
        assert_eq!(response.field(name), None, "{name}");
    }
    assert!(response.field("Last-Modified").is_some());
    assert!(response.field("ETag").unwrap().starts_with("W/\""));
    let head = request(&server, "HEAD /a.html", &[]);
    assert_eq!((head.status, head.field("Content-Length")), (200, None));
}

#[test]
fn additions_have_filters_of_their_own() {
    let server = start_server(
        server().file("html/a.html", "word").file("html/add.html", "word"),
        "location /a.html { add_before_body /add.html; sub_filter word page; } \
         location /add.html { sub_filter word addition; }",
    );
    assert_eq!(page(&server, "/a.html").1, "additionpage");
    assert_eq!(get(&server, "/add.html").text(), "addition");
}

#[test]
fn additions_share_variables() {
    let server = start_server(
        server()
            .file("html/a.html", "-")
            .file("html/head.html", "<!--#set var='v' value='from the head' -->h")
            .file("html/foot.html", "<!--#echo var='v' -->"),
        "location /a.html { add_before_body /head.html; add_after_body /foot.html; } \
         location /head.html { ssi on; } location /foot.html { ssi on; }",
    );
    assert_eq!(page(&server, "/a.html").1, "h-from the head");
}
