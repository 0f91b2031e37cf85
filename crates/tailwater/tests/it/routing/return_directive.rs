//! `return`

use crate::support::{get, page, raw, refusal, request, server, start, start_server};

#[test]
fn return_sends_codes_texts_and_redirects() {
    let server = start_server(
        server().file("html/page.css", ""),
        "types { text/css css; } default_type text/x;
         location = /200 { return 200; } location = /text { return 200 'a text: $uri $arg_x'; }
         location = /text.css { return 200 css; } location = /204 { return 204 ignored; }
         location = /301 { return 301 http://example.com/$arg_x; } location = /302 { return http://example.com/; }
         location = /https { return https://example.com$request_uri; } location = /scheme { return $scheme://a; }
         location = /303 { return 303 /there; } location = /307 { return 307 ?query; } location = /308 { return 308 @x; }
         location = /301plain { return 301; } location = /404 { return 404; } location = /404text { return 404 'not here'; }
         location = /empty { return 200 ''; } location = /599 { return 599; } location = /402 { return 402 'pay'; }
         location = /two { return 200 first; return 200 second; } location = /var { return 200 $arg_x; }
         location = /000 { return 000; } location = /304 { return 304 text; }",
    );
    let port = server.addr().port();
    let table: [(&str, u16, &str, &str); 21] = [
        ("/200", 200, "", ""),
        ("/text?x=y", 200, "", "a text: /text y"),
        ("/text.css", 200, "", "css"),
        ("/204", 204, "", ""),
        ("/301?x=y", 301, "http://example.com/y", "301 Moved Permanently"),
        ("/302", 302, "http://example.com/", "302 Found"),
        ("/https", 302, "https://example.com/https", "302 Found"),
        ("/scheme", 302, "http://a", "302 Found"),
        ("/303", 303, "http://localhost:{port}/there", "303 See Other"),
        ("/307", 307, "?query", "307 Temporary Redirect"),
        ("/308", 308, "@x", "308 Permanent Redirect"),
        ("/301plain", 301, "", "301 Moved Permanently"),
        ("/404", 404, "", "404 Not Found"),
        ("/404text", 404, "", "not here"),
        ("/empty", 200, "", ""),
        ("/599", 599, "", ""),
        ("/402", 402, "", "pay"),
        ("/two", 200, "", "first"),
        ("/var?x=1", 200, "", "1"),
        ("/var", 200, "", ""),
        ("/var?x=%0D%0A", 200, "", "%0D%0A"),
    ];
    for (target, status, location, text) in table {
        let response = get(&server, target);
        assert_eq!(response.status, status, "{target}");
        let location = location.replace("{port}", &port.to_string());
        assert_eq!(response.field("Location").unwrap_or_default(), location, "{target}");
        match text {
            "" => assert_eq!(response.text(), "", "{target}"),
            text => assert!(response.text().contains(text), "{target}: {}", response.text()),
        }
        if status != 204 {
            assert_eq!(response.field("Content-Length"), Some(&*response.body.len().to_string()), "{target}");
        }
    }
    for (target, content_type) in
        [("/text", "text/x"), ("/text.css", "text/css"), ("/404text", "text/x"), ("/404", "text/html")]
    {
        assert_eq!(get(&server, target).field("Content-Type"), Some(content_type), "{target}");
    }
    assert_eq!(get(&server, "/204").field("Content-Type"), None);
    // The length of a 304 would be that of content which the client has.
    let not_modified = get(&server, "/304");
    assert_eq!((not_modified.status, not_modified.field("Content-Length")), (304, None));
    // An empty reference would lead to the same page again.
    assert_eq!(get(&server, "/301plain").field("Location"), None);
}

#[test]
fn return_at_server_level_answers_everything() {
    let server = start_server(server().file("html/a", ""), "return 200 $uri; location /a { return 500; }");
    for target in ["/", "/a", "/missing", "/%41"] {
        assert_eq!(page(&server, target).0, 200, "{target}");
    }
    assert_eq!(page(&server, "/%41").1, "/A");
}

#[test]
fn return_answers_every_method() {
    let server = start_server(server(), "return 200 hello;");
    for (line, fields, text) in [
        ("GET /", [].as_slice(), "hello"),
        ("HEAD /", &[], ""),
        ("POST /", &["Content-Length: 0"], "hello"),
        ("OPTIONS /", &[], "hello"),
        ("FROB /", &[], "hello"),
    ] {
        let response = request(&server, line, fields);
        assert_eq!((response.status, response.text()), (200, text.to_owned()), "{line}");
        assert_eq!(response.field("Content-Length"), Some("5"), "{line}");
    }
    assert!(raw(&server, "GET /\r\n").ends_with("hello"));
}

#[test]
fn return_444_closes_without_a_response() {
    let server = start_server(server(), "location / { return 444; } location /ok { return 200 ok; }");
    assert_eq!(raw(&server, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"), "");
    // An earlier request on the same connection is still answered.
    let both = raw(
        &server,
        "GET /ok HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nGET /ok HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert_eq!(both.matches("HTTP/1.1 200 OK").count(), 1, "{both}");
}

#[test]
fn redirect_value_cannot_inject_a_field() {
    let server = start_server(
        server(),
        "location /r { return 302 http://example.com$uri; } location /h { add_header X-Uri $uri; return 200; }",
    );
    for target in ["/r%0d%0aSet-Cookie:%20a=b", "/h%0d%0aSet-Cookie:%20a=b", "/h%0aSet-Cookie:%20a=b"] {
        let response = get(&server, target);
        assert_eq!(response.field("Set-Cookie"), None, "{target}: {}", response.head);
    }
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("return;", "invalid number of arguments in \"return\" directive"),
        ("return 200 a b;", "invalid number of arguments in \"return\" directive"),
        ("return 1000;", "invalid return code \"1000\""),
        ("return x;", "invalid return code \"x\""),
        ("return 200 $no_such_variable;", "unknown \"no_such_variable\" variable"),
        ("return 200 ${uri;", "the closing bracket in \"uri\" variable is missing"),
        ("return 200 $;", "invalid variable name"),
    ] {
        let error = refusal(line);
        assert!(error.contains(message), "{line}: {error}");
    }
    start(server(), "server { listen 127.0.0.1:{port}; return 200; }");
}
