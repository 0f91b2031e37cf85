//! Details that clients and operators of nginx rely on, each found by comparison with nginx.

use crate::support::{get, raw, refusal, request, server, start, start_server};

#[test]
fn keepalive_disable_of_the_location_decides() {
    let server = start_server(
        server().file("html/a", "").file("html/mac/a", "").file("html/any/a", ""),
        "location /mac/ { keepalive_disable safari; } location /any/ { keepalive_disable none; }",
    );
    let msie = "MSIE 6.0; Windows";
    let mac = "Mac OS X Safari/534.48";
    for (method, target, agent, kept) in [
        ("GET", "/a", msie, "keep-alive"),
        ("POST", "/a", msie, "close"),
        ("POST", "/mac/a", msie, "keep-alive"),
        ("POST", "/any/a", msie, "keep-alive"),
        ("POST", "/a", "MSIE 7.0; Windows", "keep-alive"),
        ("GET", "/a", mac, "keep-alive"),
        ("GET", "/mac/a", mac, "close"),
        ("GET", "/any/a", mac, "keep-alive"),
    ] {
        let mut client = server.connect().unwrap();
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: a\r\nUser-Agent: {agent}\r\n\r\n")).unwrap();
        let response = client.read_response().unwrap();
        assert_eq!(response.field("Connection"), Some(kept), "{method} {target} {agent}");
    }
}

#[test]
fn redirect_without_host_names_the_address() {
    let server = start_server(
        server(),
        "server_name example.com; error_page 400 /host; location /host { return 301 /there; }
         location /name { server_name_in_redirect on; return 301 /there; }",
    );
    let port = server.addr().port();
    for (target, host, expected) in [
        ("/host", "Host: localhost", "localhost"),
        ("/host", "Host: .", "127.0.0.1"),
        ("/host", "", "127.0.0.1"),
        ("/name", "Host: localhost", "example.com"),
        ("/name", "", "example.com"),
    ] {
        let text = raw(&server, format!("GET {target} HTTP/1.0\r\n{host}\r\n\r\n"));
        let line = format!("\r\nLocation: http://{expected}:{port}/there\r\n");
        assert!(text.contains(&line), "{target} {host}: {text}");
    }
}

#[test]
fn if_range_is_compared_with_the_sent_validators() {
    let date = "Mon, 28 Sep 1970 06:00:00 GMT";
    let server = start_server(
        server().file("html/a", "hello"),
        &format!(
            "location /dated/ {{ alias html/; add_header Last-Modified '{date}'; }}
             location /undated/ {{ alias html/; add_header Last-Modified ''; }}
             location /tagged/ {{ alias html/; add_header ETag '\"x\"'; }}"
        ),
    );
    let own = get(&server, "/a").field("Last-Modified").unwrap().to_owned();
    for (target, validator, status) in [
        ("/a", &*own, 206),
        ("/dated/a", &*own, 200),
        ("/dated/a", date, 206),
        ("/undated/a", &*own, 200),
        ("/tagged/a", "\"x\"", 206),
        ("/tagged/a", "\"y\"", 200),
    ] {
        let fields = ["Range: bytes=1-2", &format!("If-Range: {validator}")];
        let response = request(&server, &format!("GET {target}"), &fields);
        assert_eq!(response.status, status, "{target} {validator}");
        assert_eq!(response.field("Content-Range").is_some(), status == 206, "{target} {validator}");
    }
}

#[test]
fn unsatisfiable_range_has_an_error_page() {
    let server = start_server(
        server().file("html/a", "hello").file("html/page", "a page"),
        "add_header X-Usual a; add_header X-Always b always; location /paged/ { alias html/; error_page 416 /page; }
         location /return { return 416; }",
    );
    for (target, text) in [("/a", "416 Requested Range Not Satisfiable"), ("/paged/a", "a page")] {
        let response = request(&server, &format!("GET {target}"), &["Range: bytes=5-"]);
        assert_eq!((response.status, response.field("Content-Range")), (416, Some("bytes */5")), "{target}");
        assert!(response.text().contains(text), "{target}: {}", response.text());
        assert_eq!(
            (response.field("X-Usual"), response.field("X-Always")),
            (Some("a"), Some("b")),
            "{target}"
        );
    }
    let response = get(&server, "/return");
    assert_eq!((response.field("X-Usual"), response.field("X-Always")), (None, Some("b")));
}

#[test]
fn malformed_unread_body_is_refused() {
    let server = start_server(
        server().file("html/a", "hello"),
        "location /text { return 200 text; } keepalive_timeout 100ms;",
    );
    let chunked = "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (target, body, status) in [
        ("/a", "3\r\nabc\r\n0\r\n\r\n", "200 OK"),
        ("/a", "3\r\nabcd\r\n0\r\n\r\n", "400 Bad Request"),
        ("/text", "x\r\n", "400 Bad Request"),
        ("/missing", "x\r\n", "404 Not Found"),
    ] {
        let text = raw(&server, format!("GET {target} HTTP/1.1\r\n{chunked}{body}"));
        assert!(text.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{target} {body:?}: {text}");
        assert_eq!(text.matches("HTTP/1.1").count(), 1, "{target} {body:?}: {text}");
        let kept = text.contains("\r\nConnection: keep-alive\r\n");
        assert_eq!(kept, status == "200 OK", "{target} {body:?}: {text}");
    }
}

#[test]
fn error_page_may_be_a_return_without_text() {
    let server = start_server(
        server(),
        "location /204 { return 204; } location /200 { return 200; } location /300 { return 300; }
         location /to204 { error_page 405 /204; return 405; } location /to200 { error_page 405 /200; return 405; }
         location /own { error_page 405 = /204; return 405; }",
    );
    for (target, status, length) in [
        ("/204", 204, None),
        ("/200", 200, Some("0")),
        ("/300", 300, Some("0")),
        ("/to204", 405, Some("0")),
        ("/to200", 405, Some("0")),
        ("/own", 204, None),
    ] {
        let response = get(&server, target);
        assert_eq!((response.status, response.field("Content-Length")), (status, length), "{target}");
        assert_eq!(response.text(), "", "{target}");
    }
}

#[test]
fn pcre_syntax_is_supported() {
    let server = start_server(
        server(),
        r#"server_name "~^(?P<name>www\p{N}+)\Q.example.com\E$"; location / { return 200 "$name"; }
           location ~ "^/(?<n>\d{2})\/\Qa+b\E$" { return 200 "$n"; }
           location ~ "(*UTF8)^/\p{L}$" { return 200 letter; }
           location ~* "^/\x42[]\[-]$" { return 200 bracket; }"#,
    );
    for (target, host, expected) in [
        ("/", "WWW12.example.com", "www12"),
        ("/", "www12xexample.com", ""),
        ("/12/a+b", "a", "12"),
        ("/12/aab", "a", ""),
        ("/%C3%A4", "a", "letter"),
        ("/b]", "a", "bracket"),
        ("/b-", "a", "bracket"),
    ] {
        let mut client = server.connect().unwrap();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
        let response = client.read_response().unwrap();
        assert_eq!((response.status, response.text()), (200, expected.to_owned()), "{target} {host}");
    }
}

#[test]
fn error_log_names_the_part_being_read() {
    let server = start_server(server(), "server_name example.com; location / { return 200; }");
    for (sent, line) in [
        ("<\r\n\r\n", "client sent invalid method while reading client request line, client: 127.0.0.1"),
        (
            "GET /a HTTP/1.1\r\nHost: a/b\r\n\r\n",
            "client sent invalid host header while reading client request headers, client: 127.0.0.1, server: example.com, \
             request: \"GET /a HTTP/1.1\", host: \"a/b\"",
        ),
        (
            "GET /b HTTP/1.1\r\nHost: b\r\nX_Y: z\r\nConnection: close\r\n\r\n",
            "client sent invalid header line: \"X_Y: z\" while reading client request headers, client: 127.0.0.1, \
             server: example.com, request: \"GET /b HTTP/1.1\", host: \"b\"",
        ),
    ] {
        raw(&server, sent);
        server.wait_error_log(line).unwrap();
    }
    for (sent, part) in [("GET /c HT", "line"), ("GET /d HTTP/1.1\r\nHo", "headers")] {
        let mut client = server.connect().unwrap();
        client.send(sent).unwrap();
        client.finish_sending().unwrap();
        client.read_until_close().unwrap();
        let line = format!(
            "client prematurely closed connection while reading client request {part}, client: 127.0.0.1"
        );
        server.wait_error_log(&line).unwrap();
    }
}

#[test]
fn fields_after_host_follow_the_settings_of_the_server() {
    let server = start(
        server(),
        "server { listen 127.0.0.1:{port}; server_name default; location / { return 200 \"[$http_a_b]\"; } }
         server { listen 127.0.0.1:{port}; server_name own; underscores_in_headers on; max_headers 5;
             large_client_header_buffers 4 16k; error_page 494 =431 /large; location / { return 200 \"[$http_a_b]\"; }
             location /large { return 200 large; } }
         server { listen 127.0.0.1:{port}; server_name \"\"; error_page 400 =404 /none; location / { return 200 none; } }",
    );
    let long = format!("X: {}\r\n", "x".repeat(10_000));
    let many = "X: y\r\n".repeat(9);
    let cookies = format!("X: {}\r\n", "x".repeat(17_000));
    for (target, fields, status, text) in [
        ("/", "Host: default\r\nA_B: c\r\n", 200, "[]"),
        ("/", "Host: own\r\nA_B: c\r\n", 200, "[c]"),
        ("/", "A_B: c\r\nHost: own\r\n", 200, "[]"),
        ("http://own/", "A_B: c\r\nHost: default\r\n", 200, "[c]"),
        ("/", &format!("Host: default\r\n{long}"), 400, "Too Large"),
        ("/", &format!("Host: own\r\n{long}"), 200, "[]"),
        ("/", &format!("{long}Host: own\r\n"), 400, "Too Large"),
        ("/", &format!("Host: own\r\n{cookies}"), 431, "large"),
        ("/", &format!("Host: default\r\n{many}"), 200, "[]"),
        ("/", &format!("Host: own\r\n{many}"), 431, "large"),
        ("/", "", 404, "none"),
    ] {
        let mut client = server.connect().unwrap();
        client.send(format!("GET {target} HTTP/1.1\r\n{fields}\r\n")).unwrap();
        let response = client.read_response().unwrap();
        let shown = fields.get(..40).unwrap_or(fields);
        assert_eq!(response.status, status, "{target} {shown}: {}", response.text());
        assert!(response.text().contains(text), "{target} {shown}: {}", response.text());
    }
}

#[test]
fn configuration_errors_have_the_text_of_nginx() {
    for (line, message) in [
        ("disable_symlinks off from=/x;", "\"from=\" cannot be used with \"off\" parameter"),
        ("disable_symlinks off x;", "invalid parameter \"x\""),
        ("limit_rate x;", "\"limit_rate\" directive invalid value"),
        ("keepalive_timeout 1 x;", "\"keepalive_timeout\" directive invalid value"),
        ("listen 127.0.0.1:1 backlog=x;", "invalid backlog \"backlog=x\""),
        ("listen 127.0.0.1:1 fastopen=x;", "invalid fastopen \"fastopen=x\""),
        ("listen [::1]:1 ipv6only=x;", "invalid parameter \"ipv6only=x\""),
        ("listen 127.0.0.1:1 setfib=1;", "invalid parameter \"setfib=1\""),
    ] {
        let error = refusal(line);
        assert!(error.contains(&format!("[emerg] {message} in ")), "{line}: {error}");
    }
    let checked =
        server().arg("-t").run("http { server { listen 127.0.0.1:{port} accept_filter=x; } }").unwrap();
    let text = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{text}");
    assert!(
        text.contains("accept filters \"accept_filter=x\" are not supported on this platform, ignored"),
        "{text}"
    );
}
