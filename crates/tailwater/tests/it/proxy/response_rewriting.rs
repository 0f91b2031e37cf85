//! Rewriting of responses: `proxy_redirect`, `proxy_cookie_*`, `X-Accel-Redirect`; `$upstream_cookie_*`.

use tw_testkit::Server;
use tw_testkit::origin::origin;

use crate::support::{get, refusal, request, server, start};

/// A server whose origin answers with the field lines in `X-Say`, separated by `|`.
fn start_with_fields(locations: &str) -> Server {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let fields = head.lines().find_map(|line| line.strip_prefix("X-Say: ")).unwrap_or_default();
            let fields: String =
                fields.split('|').filter(|field| !field.is_empty()).map(|f| format!("{f}\r\n")).collect();
            conn.answer(&fields, "from behind");
        }
    });
    let locations = locations.replace("ORIGIN", &addr.to_string());
    start(server(), &format!("server {{ listen 127.0.0.1:{{port}}; server_name here; {locations} }}"))
}

fn said(server: &Server, path: &str, field: &str, value: &str) -> Option<String> {
    let header = format!("X-Say: {field}: {value}");
    request(server, &format!("GET {path}"), &[&header]).field(field).map(str::to_owned)
}

#[test]
fn proxy_redirect_rewrites_location() {
    let server = start_with_fields(
        "location /a/ { proxy_pass http://ORIGIN/b/; proxy_set_header Host origin; }
         location /both/ { proxy_pass http://ORIGIN/b/; proxy_redirect wrong wrong; proxy_redirect default; }
         location /re/ { proxy_pass http://ORIGIN; proxy_redirect ~*^http://old/(?<rest>.*)$ https://new/$rest; }
         location /off/ { proxy_pass http://ORIGIN/b/; proxy_redirect off; }",
    );
    let own = format!("http://localhost:{}", server.addr().port());
    let base = request(&server, "GET /a/", &[]);
    assert_eq!(base.text(), "from behind");
    // The test does not know the URL of proxy_pass, so the default rule is tested with a URL that it leaves alone.
    assert_eq!(
        said(&server, "/a/", "Location", "http://elsewhere/b/x").as_deref(),
        Some("http://elsewhere/b/x")
    );
    assert_eq!(said(&server, "/re/", "Location", "HTTP://OLD/x?y").as_deref(), Some("https://new/x?y"));
    assert_eq!(
        said(&server, "/re/", "Refresh", "7; url=http://old/x").as_deref(),
        Some("7; url=https://new/x")
    );
    assert_eq!(said(&server, "/off/", "Location", "/b/x").as_deref(), Some("/b/x"));
    assert_eq!(said(&server, "/both/", "Location", "wrongly").as_deref(), Some("wrongly"), "a prefix: {own}");
}

#[test]
fn redirect_adds_the_slash_of_a_location() {
    let server = start_with_fields(
        "location \"/a b/\" { proxy_pass http://ORIGIN; } location /c/ { return 200 c; }
         location /d { return 200 d; } location /d/ { proxy_pass http://ORIGIN; } location ~ ^/x?/ { proxy_pass http://ORIGIN; }",
    );
    let moved = |path: &str| {
        let response = get(&server, path);
        (response.status, response.field("Location").map(str::to_owned))
    };
    let here = |path: &str| (301, Some(format!("http://localhost:{}{path}", server.addr().port())));
    assert_eq!(moved("/a%20b?c=d"), here("/a%20b/?c=d"));
    assert_eq!(moved("/a%20b/"), (200, None));
    assert_eq!(moved("/c").0, 404);
    assert_eq!(moved("/d"), (200, None));
    assert_eq!(moved("/x"), (404, None));
}

#[test]
fn proxy_redirect_default_follows_proxy_pass() {
    for (said, expected) in [
        (
            "proxy_redirect default; proxy_pass http://127.0.0.1:1;",
            "should be placed after the \"proxy_pass\" directive",
        ),
        ("proxy_pass http://$host; proxy_redirect default;", "with variables"),
        ("proxy_pass http://127.0.0.1:1; proxy_redirect a b; proxy_redirect off;", "is duplicate"),
        ("proxy_pass http://127.0.0.1:1; proxy_redirect off; proxy_redirect a b;", "is duplicate"),
        ("proxy_cookie_flags a;", "invalid parameter \"a\""),
        ("proxy_cookie_flags a secur;", "invalid cookie flag \"secur\""),
        ("proxy_cookie_flags a secure; proxy_cookie_flags off;", "is duplicate"),
        ("proxy_store \"\";", "empty path"),
    ] {
        let message = refusal(&format!("location / {{ {said} }}"));
        assert!(message.contains(expected), "{said}: {message}");
    }
}

#[test]
fn proxy_cookie_directives_rewrite_attributes() {
    let server = start_with_fields(
        "location / { proxy_pass http://ORIGIN;
             proxy_cookie_domain .old.org .new.org; proxy_cookie_domain ~^(.+)\\.com$ $1.net;
             proxy_cookie_path /old/ /new/; proxy_cookie_path ~*^/x(?<rest>.*)$ /y$rest;
             proxy_cookie_flags a secure $arg_flag samesite=lax; proxy_cookie_flags ~^b nosecure nohttponly nosamesite; }",
    );
    for (path, before, after) in [
        ("/", "v=1; Domain=OLD.org; Path=/old/a", "v=1; Domain=new.org; Path=/new/a"),
        ("/", "v=1; domain=.old.org", "v=1; domain=.new.org"),
        ("/", "v=1; Domain=a.COM; Path=/Xa", "v=1; Domain=a.net; Path=/ya"),
        ("/", "v=1; Domain=not.old.org", "v=1; Domain=not.old.org"),
        ("/", "A=1", "A=1; Secure; SameSite=Lax"),
        ("/?flag=httponly", "a=1; SECURE", "a=1; SECURE; HttpOnly; SameSite=Lax"),
        ("/?flag=samesite=strict", "a=1; SameSite=None", "a=1; SameSite=Strict; Secure"),
        ("/?flag=nonsense", "a=1; samesite=LAX", "a=1; samesite=LAX; Secure"),
        ("/", "bb=1; Secure; HttpOnly; SameSite=None; Max-Age=1", "bb=1; Max-Age=1"),
    ] {
        let mut left: Vec<_> =
            said(&server, path, "Set-Cookie", before).unwrap().split("; ").map(str::to_owned).collect();
        let mut right: Vec<_> = after.split("; ").map(str::to_owned).collect();
        left[1..].sort();
        right[1..].sort();
        assert_eq!(left, right, "{before}");
    }
}

#[test]
fn upstream_cookie_variable_has_its_value() {
    let server = start_with_fields(
        "location / { proxy_pass http://ORIGIN; add_header X-Got \"[$upstream_cookie_tc]\"; }",
    );
    for (cookie, expected) in [
        ("tc=one; Path=/", "[one]"),
        ("tc = one two", "[one two]"),
        ("TC==x", "[=x]"),
        ("tc\t=\tx", "[]"),
        ("other=1; tc=2", "[]"),
        ("tcc=1", "[]"),
    ] {
        let header = format!("X-Say: Set-Cookie: {cookie}");
        assert_eq!(request(&server, "GET /", &[&header]).field("X-Got"), Some(expected), "{cookie}");
    }
}

#[test]
fn x_accel_redirect_cannot_leave_the_root() {
    let server = start_with_fields(
        "if ($upstream_http_x_accel_redirect) { return 200 \"here: $uri?$args $request_method $limit_rate\"; }
         location / { proxy_pass http://ORIGIN; }
         location @named { return 200 named; }",
    );
    let redirect = |line: &str, to: &str| {
        let header = format!(
            "X-Say: X-Accel-Redirect: {to}|X-Accel-Limit-Rate: 900000|Content-Type: text/x-own|Accept-Ranges: none|X-Other: 1"
        );
        request(&server, line, &[&header])
    };
    let response = redirect("POST /a", "/b%20c?d=e");
    assert_eq!(response.text(), "here: /b c?d=e GET 900000");
    assert_eq!(response.field("Content-Type"), Some("text/x-own"));
    assert_eq!((response.field("Accept-Ranges"), response.field("X-Other")), (Some("none"), None));
    assert_eq!(redirect("GET /a", "@named").text(), "named");
    for unsafe_uri in ["..", "../x", "/x/..", "/x/.%2e", "/x/%2e%2e/y", "/x%2f../y", "/x%00", "relative"] {
        assert_eq!(redirect("GET /a", unsafe_uri).status, 404, "{unsafe_uri}");
    }
    server.wait_error_log("unsafe URI \"/x/..\" was detected").unwrap();
}

#[test]
fn unrequested_101_is_502() {
    let addr = origin(|mut conn| {
        let _ = conn.head();
        conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nhello");
    });
    let server = start(
        server(),
        &format!("server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://{addr}; }} }}"),
    );
    assert_eq!(get(&server, "/").status, 502);
    server.wait_error_log("upstream switched protocols and was not asked to").unwrap();
}

#[test]
fn no_content_of_an_origin_keeps_its_type_without_a_length() {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let status = if head.starts_with("GET /204") { "204 No Content" } else { "304 Not Modified" };
            conn.send(format!("HTTP/1.1 {status}\r\nContent-Type: text/x\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    let server = start(
        server(),
        &format!(
            "log_format f '$status $sent_http_content_type'; access_log logs/f.log f; error_page 404 =204 /own; \
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://{addr}; }} \
             location /own {{ default_type text/y; return 200 x; }} location /none {{ return 404; }} }}"
        ),
    );
    for (target, status, content_type) in
        [("/204", 204, Some("text/x")), ("/304", 304, Some("text/x")), ("/none", 204, None)]
    {
        let response = get(&server, target);
        assert_eq!((response.status, response.field("Content-Type")), (status, content_type), "{target}");
        assert_eq!(response.field("Content-Length"), None, "{target}");
    }
    let log = server.prefix().join("logs/f.log");
    let lines = tw_testkit::wait::some(tw_testkit::wait::TIMEOUT, || {
        std::fs::read_to_string(&log).ok().filter(|log| log.lines().count() == 3)
    });
    assert_eq!(lines.as_deref(), Some("204 text/x\n304 text/x\n204 -\n"));
}

#[test]
fn trailer_field_is_passed_with_the_trailers_that_it_announces() {
    let addr = origin(|mut conn| {
        while conn.head().is_some() {
            conn.send(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                 2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n",
            );
        }
    });
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://{addr}; }} \
             location /on {{ proxy_pass_trailers on; proxy_pass http://{addr}; }} \
             location /hidden {{ proxy_pass_trailers on; proxy_hide_header Trailer; proxy_pass http://{addr}; }} \
             location /whole {{ proxy_pass_trailers on; chunked_transfer_encoding off; proxy_pass http://{addr}; }} }}"
        ),
    );
    let sum = vec![("X-Sum".to_owned(), "7".to_owned())];
    for (target, field, trailers) in [
        ("/", None, Vec::new()),
        ("/on", Some("X-Sum"), sum.clone()),
        ("/hidden", None, sum),
        ("/whole", None, Vec::new()),
    ] {
        let response = get(&server, target);
        assert_eq!((response.text(), response.field("Trailer")), ("ok".to_owned(), field), "{target}");
        assert_eq!(response.trailers, trailers, "{target}");
    }
}
