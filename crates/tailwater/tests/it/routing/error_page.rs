//! `error_page` and the built-in pages.

use tw_testkit::origin::origin;

use crate::support::{get, page, raw, refusal, request, server, start, start_server};

/// Status and something the body contains.
fn check(server: &tw_testkit::Server, table: &[(&str, u16, &str)]) {
    for (target, status, text) in table {
        let (got, body) = page(server, target);
        assert_eq!(got, *status, "{target}: {body}");
        assert!(body.contains(text), "{target}: {body}");
    }
}

/// The reason of an upstream server belongs to its status only.
#[test]
fn status_line_of_an_upstream_server_is_replaced_with_the_status() {
    let addr = origin(|mut conn| {
        while conn.head().is_some() {
            let fields =
                "Content-Length: 20\r\nAccept-Ranges: bytes\r\nETag: \"a\"\r\nCache-Control: max-age=60";
            conn.send(format!("HTTP/1.1 200 Fine\r\n{fields}\r\n\r\n0123456789abcdefghij"));
        }
    });
    let server = start(
        server(),
        &format!(
            "proxy_cache_path cache keys_zone=z:1m;
             server {{ listen 127.0.0.1:{{port}};
                 location @page {{ proxy_pass http://{addr}; }} location /page {{ proxy_pass http://{addr}; }}
                 location /same {{ return 404; error_page 404 @page; }}
                 location /other {{ return 404; error_page 404 =410 /page; }}
                 location /own {{ return 404; error_page 404 = @page; }}
                 location /cached {{ proxy_pass http://{addr}; proxy_cache z; }} }}"
        ),
    );
    for (path, field, expected) in [
        ("/page", "X: x", "HTTP/1.1 200 Fine"),
        ("/own", "X: x", "HTTP/1.1 200 Fine"),
        ("/same", "X: x", "HTTP/1.1 404 Not Found"),
        ("/other", "X: x", "HTTP/1.1 410 Gone"),
        ("/cached", "X: x", "HTTP/1.1 200 Fine"),
        ("/cached", "Range: bytes=100-", "HTTP/1.1 416 Requested Range Not Satisfiable"),
        ("/cached", "Range: bytes=1-2", "HTTP/1.1 206 Partial Content"),
        ("/cached", "If-Match: \"b\"", "HTTP/1.1 412 Precondition Failed"),
        ("/cached", "If-None-Match: \"a\"", "HTTP/1.1 304 Not Modified"),
    ] {
        let mut client = server.connect().unwrap();
        client
            .send(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{field}\r\n\r\n"))
            .unwrap();
        let response = String::from_utf8(client.read_until_close().unwrap()).unwrap();
        assert_eq!(response.lines().next(), Some(expected), "{path} {field}");
    }
}

#[test]
fn error_page_takes_uris_named_locations_and_redirects() {
    let builder =
        server().file("html/404.html", "my 404").file("html/50x.html", "my 50x").file("html/dir/x", "");
    let server = start_server(
        builder,
        "error_page 404 /404.html; error_page 500 502 503 504 /50x.html; error_page 410 =301 /moved;
         error_page 418 =200 /404.html; error_page 403 = /own; error_page 405 =404 @named; error_page 409 @named;
         error_page 407 =303 http://example.com/$status; error_page 411 http://example.com/x; error_page 412 =200 http://example.com/;
         error_page 413 /404.html?a=b; error_page 415 /args?a=$arg_x; error_page 417 =206 /404.html; error_page 421 =  @teapot;
         location = /own { return 201 'own answer'; } location = /moved { return 200 'moved $args'; }
         location @named { return 200 'named $uri $status'; } location @teapot { return 207 teapot; }
         location = /args { return 200 'args: $args'; }
         location ~ ^/(?<code>\\d+)$ { return 404; } location = /503 { return 503; } location = /410 { return 410; }
         location = /418 { return 418; } location = /403 { return 403; } location = /405 { return 405; } location = /409 { return 409; }
         location = /407 { return 407; } location = /411 { return 411; } location = /412 { return 412; } location = /415 { return 415; }
         location = /417 { return 417; } location = /421 { return 421; } location = /402 { return 402; }",
    );
    check(
        &server,
        &[
            ("/missing", 404, "my 404"),
            ("/404.html", 200, "my 404"),
            ("/1234", 404, "my 404"),
            ("/503", 503, "my 50x"),
            ("/410", 301, "moved"),
            ("/418", 200, "my 404"),
            ("/403", 201, "own answer"),
            ("/dir/", 201, "own answer"),
            ("/405", 404, "named /405"),
            ("/409", 409, "named /409"),
            ("/417", 206, "my 404"),
            ("/421", 207, "teapot"),
            ("/415?x=y", 415, "args: a=y"),
            ("/402", 402, "402 Payment Required"),
        ],
    );
    for (target, status, location) in [
        ("/407", 303, Some("http://example.com/303")),
        ("/411", 302, Some("http://example.com/x")),
        ("/412", 302, Some("http://example.com/")),
        ("/503", 503, None),
    ] {
        let response = get(&server, target);
        assert_eq!((response.status, response.field("Location")), (status, location), "{target}");
    }
    // A post for a page that is a file becomes a GET.
    assert_eq!(request(&server, "POST /missing", &["Content-Length: 0"]).text(), "my 404");
    let head = request(&server, "HEAD /missing", &[]);
    assert_eq!((head.status, head.field("Content-Length")), (404, Some("6")));
}

#[test]
fn error_page_is_internal_and_missing_page_is_404() {
    let builder = server().file("html/err/404.html", "internal");
    let server = start_server(
        builder,
        "location / { error_page 404 /err/404.html; } location /err/ { internal; }
         location /nopage/ { error_page 404 /nowhere.html; }
         location /chain/ { error_page 404 /chain2/x; } location /chain2/ { error_page 404 /err/404.html; }
         location /rec/ { recursive_error_pages on; error_page 404 /rec2/x; }
         location /rec2/ { recursive_error_pages on; error_page 404 /err/404.html; }
         location /round/ { recursive_error_pages on; error_page 404 /round/again; }
         location /none/ { error_page 404 @nowhere; }",
    );
    check(
        &server,
        &[
            ("/missing", 404, "internal"),
            ("/err/404.html", 404, "404 Not Found"),
            ("/nopage/x", 404, "404 Not Found"),
            ("/chain/x", 404, "404 Not Found"),
            ("/rec/x", 404, "internal"),
            ("/round/x", 500, "500 Internal Server Error"),
            ("/none/x", 500, "500 Internal Server Error"),
        ],
    );
}

#[test]
fn error_page_of_an_inner_level_replaces_outer_ones() {
    let builder = server().file("html/a.html", "a").file("html/b.html", "b").file("html/c.html", "c");
    let server = start(
        builder,
        "error_page 404 /a.html; server { listen 127.0.0.1:{port}; root html; error_page 500 /b.html;
           location /own/ { error_page 403 /c.html; } location /same/ { }
         } server { listen 127.0.0.1:{port1}; root html; }
         server { listen 127.0.0.1:{port2}; root html; error_page 404 /b.html; error_page 404 /c.html; }",
    );
    check(
        &server,
        &[("/x", 404, "404 Not Found"), ("/own/x", 404, "404 Not Found"), ("/same/x", 404, "404 Not")],
    );
    let text = |index| tw_testkit::Client::get(server.addr_of(index), "/x").unwrap().text();
    assert_eq!(text(1), "a");
    assert_eq!(text(2), "b", "the first of one level counts");
}

#[test]
fn validators_and_conditions_of_an_error_page() {
    let server = start_server(server().file("html/404.html", "0123456789"), "error_page 404 /404.html;");
    for field in [
        "If-None-Match: *",
        "If-Modified-Since: Mon, 01 Jan 2091 00:00:00 GMT",
        "Range: bytes=0-1",
        "If-Match: \"x\"",
    ] {
        let response = request(&server, "GET /x", &[field]);
        assert_eq!((response.status, response.text()), (404, "0123456789".into()), "{field}");
        assert_eq!(response.field("Last-Modified"), None);
    }
}

#[test]
fn malformed_requests_have_error_pages() {
    let server = start_server(
        server().file("html/400.html", "my 400").file("html/414.html", "my 414"),
        "error_page 400 494 /400.html; error_page 414 /414.html; large_client_header_buffers 2 1k;",
    );
    assert!(raw(&server, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").ends_with("my 400"));
    assert!(raw(&server, "nonsense\r\n\r\n").ends_with("my 400"));
    let long = raw(&server, format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(2000)));
    assert!(long.starts_with("HTTP/1.1 414 ") && long.ends_with("my 414"), "{long}");
    let long = raw(&server, format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(2000)));
    assert!(long.starts_with("HTTP/1.1 400 ") && long.ends_with("my 400"), "{long}");
}

#[test]
fn built_in_pages_match_nginx() {
    let codes = [
        (301, "Moved Permanently"),
        (400, "Bad Request"),
        (401, "Authorization Required"),
        (402, "Payment Required"),
        (403, "Forbidden"),
        (404, "Not Found"),
        (405, "Not Allowed"),
        (406, "Not Acceptable"),
        (409, "Conflict"),
        (410, "Gone"),
        (411, "Length Required"),
        (412, "Precondition Failed"),
        (413, "Request Entity Too Large"),
        (414, "Request-URI Too Large"),
        (415, "Unsupported Media Type"),
        (416, "Requested Range Not Satisfiable"),
        (421, "Misdirected Request"),
        (425, "Too Early"),
        (429, "Too Many Requests"),
        (500, "Internal Server Error"),
        (501, "Not Implemented"),
        (502, "Bad Gateway"),
        (503, "Service Temporarily Unavailable"),
        (504, "Gateway Time-out"),
        (505, "HTTP Version Not Supported"),
        (507, "Insufficient Storage"),
    ];
    let locations: String =
        codes.iter().map(|(code, _)| format!("location = /{code} {{ return {code}; }} ")).collect();
    let server = start_server(server(), &format!("server_tokens off; {locations}"));
    for (code, text) in codes {
        let response = get(&server, &format!("/{code}"));
        assert_eq!(response.status, code);
        assert_eq!(response.field("Content-Type"), Some("text/html"), "{code}");
        let body = response.text();
        let lines: Vec<_> = body.split("\r\n").collect();
        let [html, title, open, heading, name, close, end, ""] = lines[..] else { panic!("{code}: {body}") };
        assert_eq!([html, open, close, end], ["<html>", "<body>", "</body>", "</html>"]);
        assert_eq!(title, format!("<head><title>{code} {text}</title></head>"));
        assert_eq!(heading, format!("<center><h1>{code} {text}</h1></center>"));
        assert!(
            name.starts_with("<hr><center>") && !name.contains('/') || name.ends_with("</center>"),
            "{name}"
        );
    }
    // The client gets no response with one of these codes.
    for code in [408, 499] {
        let server = start_server(crate::support::server(), &format!("return {code};"));
        assert_eq!(raw(&server, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"), "");
    }
    // Codes without a built-in page have an empty body.
    for code in [418, 426, 451, 599] {
        let server = start_server(crate::support::server(), &format!("return {code};"));
        assert_eq!(page(&server, "/"), (code, String::new()));
    }
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("error_page 404;", "invalid number of arguments in \"error_page\" directive"),
        ("error_page 200 /x;", "value \"200\" must be between 300 and 599"),
        ("error_page 600 /x;", "value \"600\" must be between 300 and 599"),
        ("error_page x /x;", "invalid value \"x\""),
        ("error_page 499 /x;", "invalid value \"499\""),
        ("error_page 404 =x /x;", "invalid value \"=x\""),
    ] {
        let error = refusal(line);
        assert!(error.contains(message), "{line}: {error}");
    }
}
