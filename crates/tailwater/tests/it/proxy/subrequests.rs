//! Subrequests and internal redirects through `proxy_pass`.

use crate::support::{page, raw, request, server, start};

/// An origin that echoes the request.
const ORIGIN: &str = "server { listen 127.0.0.1:{port1}; default_type text/html; \
    location / { return 200 '[$request_method $request_uri <$content_length><$http_transfer_encoding> $http_x_own]'; } \
    location /page { alias html/page; } location /long { alias html/long; } \
    location /missing { return 404 lost; } location /broken { return 503 broken; } location /empty { return 200; } \
    location /local { add_header X-Accel-Redirect /inner/file?a=b; add_header X-Other other; \
      add_header Set-Cookie c=1; return 200; } \
    location /named { add_header X-Accel-Redirect @other; return 200; } }";

#[test]
fn additions_come_from_upstream_servers() {
    let server = start(
        server().file("html/a.html", "A").file("html/long", "0123456789".repeat(20_000)),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; root html; \
               location /a.html {{ add_before_body /origin/before; add_after_body /origin/after; }} \
               location /b/ {{ proxy_pass http://127.0.0.1:{{port1}}/; add_after_body /origin/long; }} \
               location /origin/ {{ proxy_pass http://127.0.0.1:{{port1}}/; }} }} {ORIGIN}"
        ),
    );
    let own = ["X-Own: me"];
    let expected = "[GET /before <><> me]A[GET /after <><> me]";
    assert_eq!(request(&server, "GET /a.html", &own).text(), expected);
    let expected = format!("[GET /x <><> ]{}", "0123456789".repeat(20_000));
    assert_eq!(page(&server, "/b/x"), (200, expected));
}

#[test]
fn includes_come_from_upstream_servers() {
    let parts = "<!--# include virtual=\"/origin/one?a=b\" -->-<!--# include virtual=\"/origin/two\" wait=\"yes\" -->-\
        <!--# include virtual=\"/origin/three\" set=\"x\" --><!--# echo var=\"x\" encoding=\"none\" -->-\
        <!--# block name=\"none\" -->stub<!--# endblock --><!--# include virtual=\"/origin/empty\" stub=\"none\" -->-\
        <!--# include virtual=\"/origin/missing\" stub=\"none\" -->-<!--# include virtual=\"/down\" stub=\"none\" -->";
    let server = start(
        server().file("html/own", parts).file("html/page", parts),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; root html; default_type text/html; ssi on; \
               subrequest_output_buffer_size 1k; \
               location /proxied {{ proxy_pass http://127.0.0.1:{{port1}}/page; }} \
               location /origin/ {{ ssi off; proxy_pass http://127.0.0.1:{{port1}}/; }} \
               location /down {{ ssi off; proxy_pass http://unix:{{prefix}}/nobody; }} }} {ORIGIN}"
        ),
    );
    let own = ["X-Own: me"];
    let expected = "[GET /one?a=b <><> me]-[GET /two <><> me]-[GET /three <><> me]-stub-lost-stub";
    for target in ["/own", "/proxied"] {
        assert_eq!(request(&server, &format!("GET {target}"), &own).text(), expected, "{target}");
    }
}

#[test]
fn page_whose_first_part_fails_is_an_error() {
    let text = |part: &str| {
        format!("<!--# include virtual=\"/origin/{part}\" set=\"x\" --><!--# echo var=\"x\" -->")
    };
    let server = start(
        server()
            .file("html/bad", text("long"))
            .file("html/good", text("page"))
            .file("html/page", "part")
            .file("html/long", "0123456789".repeat(200)),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; root html; default_type text/html; ssi on; sub_filter never x; \
               subrequest_output_buffer_size 1k; \
               location /origin/ {{ ssi off; proxy_pass http://127.0.0.1:{{port1}}/; }} }} {ORIGIN}"
        ),
    );
    assert_eq!(page(&server, "/good"), (200, "part".to_owned()));
    assert_eq!(raw(&server, "GET /bad HTTP/1.1\r\nHost: a\r\n\r\n"), "");
    server.wait_error_log("too big subrequest response").unwrap();
}

#[test]
fn subrequests_have_no_body() {
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; default_type text/html; ssi on; \
               location /page {{ proxy_pass http://127.0.0.1:{{port2}}; add_after_body /origin/after; }} \
               location /origin/ {{ ssi off; proxy_pass http://127.0.0.1:{{port1}}/; }} }} {ORIGIN} \
             server {{ listen 127.0.0.1:{{port2}}; default_type text/html; \
               location / {{ return 200 '$request_method $content_length<!--# include virtual=\"/origin/one\" -->'; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    // Were a part to announce the body of its request, the origin would wait for it.
    for len in [10, 100_000] {
        let body = "b".repeat(len);
        client
            .send(format!("POST /page HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{body}"))
            .unwrap();
        let expected = format!("POST {len}[GET /one <><> ][GET /after <><> ]");
        assert_eq!(client.read_response().unwrap().text(), expected);
    }
}

#[test]
fn error_page_may_be_proxied() {
    let server = start(
        server().file("html/inner/file", "inner"),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; root html; error_page 404 = @other; proxy_intercept_errors on; \
               location /origin/ {{ error_page 503 =201 @other; error_page 404 = @other; \
                 proxy_pass http://127.0.0.1:{{port1}}/; }} \
               location /down {{ error_page 502 /fallback; proxy_pass http://unix:{{prefix}}/nobody; }} \
               location /fallback {{ proxy_pass http://127.0.0.1:{{port1}}; }} \
               location /inner/ {{ internal; add_header X-Args $args; }} \
               location @other {{ proxy_pass http://127.0.0.1:{{port1}}; }} }} {ORIGIN}"
        ),
    );
    for (target, status, text) in [
        ("/nothing?x", 200, "[GET /nothing?x <><> ]"),
        ("/origin/missing", 200, "[GET /origin/missing <><> ]"),
        ("/origin/broken", 201, "[GET /origin/broken <><> ]"),
        ("/down", 502, "[GET /fallback <><> ]"),
        ("/origin/named", 200, "[GET /origin/named <><> ]"),
    ] {
        assert_eq!(page(&server, target), (status, text.to_owned()), "{target}");
    }
    let response = request(&server, "GET /origin/local", &[]);
    assert_eq!((response.status, response.text().as_str()), (200, "inner"));
    assert_eq!((response.field("X-Args"), response.field("Set-Cookie")), (Some("a=b"), Some("c=1")));
    assert_eq!(response.field("X-Other"), None);
    assert_eq!(page(&server, "/inner/file"), (200, "[GET /inner/file <><> ]".to_owned()));
    // A named location gets the body, too.
    let mut client = server.connect().unwrap();
    client.send("POST /origin/missing HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello").unwrap();
    assert_eq!(client.read_response().unwrap().text(), "[POST /origin/missing <5><> ]");
}
