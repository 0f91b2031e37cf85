//! `more_set_headers`, `more_clear_headers` and the same for fields of requests

use tw_testkit::{Response, Server};

use crate::support::http2::{connect, start_http2};
use crate::support::http3::start_http3;
use crate::support::origin::mirror;
use crate::support::{get, page, raw, refusal, request, server, start, start_server};

/// Server with `html/a.txt`.
fn with_file(content: &str) -> Server {
    start_server(server().file("html/a.txt", "hello"), content)
}

fn values(response: &Response, name: &str) -> String {
    response.values(name).collect::<Vec<_>>().join(",")
}

#[test]
fn fields_are_set_on_every_response() {
    let server = with_file(
        "more_set_headers 'X-A: $uri [$arg_x]' 'X-B:b'; add_header X-B added always;
         location = /500 { return 500; } location = /301 { return 301 /to; } location = /204 { return 204; }
         error_page 404 /missing.html; location = /missing.html { internal; return 200 page; }",
    );
    for (target, status) in
        [("/a.txt", 200), ("/500", 500), ("/301", 301), ("/204", 204), ("/none", 404), ("/a.txt/%zz", 400)]
    {
        let response = get(&server, target);
        assert_eq!((response.status, values(&response, "X-B").as_str()), (status, "b,added"), "{target}");
    }
    assert_eq!(get(&server, "/a.txt?x=1").field("X-A"), Some("/a.txt [1]"));
    for (line, field, status) in [
        ("GET /a.txt", "If-None-Match: *", 304),
        ("GET /a.txt", "Range: bytes=0-1", 206),
        ("GET /a.txt", "Range: bytes=9-", 416),
        ("GET /a.txt", "If-Match: \"x\"", 412),
        ("HEAD /a.txt", "X: y", 200),
    ] {
        let response = request(&server, line, &[field]);
        assert_eq!((response.status, response.field("X-A")), (status, Some("/a.txt []")), "{line} {field}");
    }
    assert!(raw(&server, "BAD\r\n\r\n").contains("\r\nX-B: b\r\n"));
}

#[test]
fn statuses_and_types_choose_responses() {
    let server = with_file(
        "types { text/plain txt; } more_set_headers -s '404 500' -s 403 'X-Error: $status' -t 'text/HTML' 'X-Page: y';
         more_set_headers -t 'text/plain text/css' 'X-Text: y'; more_clear_headers -s 500 X-Error;
         location = /403 { return 403; } location = /500 { return 500; } location = /plain { default_type text/plain; return 404 x; }",
    );
    for (target, expected) in [
        ("/a.txt", [None, None, Some("y")]),
        ("/none", [Some("404"), Some("y"), None]),
        ("/403", [Some("403"), Some("y"), None]),
        ("/500", [None, Some("y"), None]),
        ("/plain", [None, None, Some("y")]),
    ] {
        let response = get(&server, target);
        assert_eq!(["X-Error", "X-Page", "X-Text"].map(|name| response.field(name)), expected, "{target}");
    }
}

#[test]
fn rules_of_enclosing_blocks_run_first() {
    let server = start(
        server(),
        "more_set_headers 'X: http' 'X-Http: y'; server { listen 127.0.0.1:{port}; more_set_headers 'X: server';
         location /plain { return 200; }
         location /own { more_set_headers 'X: own'; return 200; }
         location /adds { more_set_headers -a 'X: added' 'X: twice'; return 200; }
         location /clears { more_clear_headers X; location /clears/again { more_set_headers 'X: again'; return 200; } return 200; }
         location /if { more_set_headers 'X: outer'; if ($arg_a) { more_set_headers 'X: if'; } return 200; } }",
    );
    for (target, expected) in [
        ("/plain", "server"),
        ("/own", "own"),
        ("/adds", "server,added,twice"),
        ("/clears", ""),
        ("/clears/again", "again"),
        ("/if", "outer"),
        ("/if?a=1", "if"),
    ] {
        let response = get(&server, target);
        assert_eq!(
            (values(&response, "X").as_str(), response.field("X-Http")),
            (expected, Some("y")),
            "{target}"
        );
    }
}

#[test]
fn lines_of_the_server_are_changed_or_removed() {
    let server = with_file(
        "location /none/ { alias html/; more_clear_headers Server Date ETag Last-Modified Accept-Ranges Content-Type Connection; }
         location /own/ { alias html/; more_set_headers 'server: mine' 'Date: today' 'ETag: \"own\"'
             'Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT' 'Content-Type: text/x; charset=utf-8'; }
         location /length/ { alias html/; more_clear_headers Content-Length; }
         location /longer/ { alias html/; more_set_headers 'Content-Length: 99' 'Transfer-Encoding: chunked'; }
         location = /to { more_set_headers 'Location: /own-place'; return 302 /to; }
         location = /nowhere { more_clear_headers Location; return 302 /to; }",
    );
    let none = get(&server, "/none/a.txt");
    for name in ["Server", "Date", "ETag", "Last-Modified", "Accept-Ranges", "Content-Type"] {
        assert_eq!(none.field(name), None, "{name}");
    }
    assert_eq!((none.field("Connection"), none.text().as_str()), (Some("close"), "hello"));
    let own = get(&server, "/own/a.txt");
    for (name, expected) in [
        ("Server", "mine"),
        ("Date", "today"),
        ("ETag", "\"own\""),
        ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("Content-Type", "text/x; charset=utf-8"),
    ] {
        assert_eq!(values(&own, name), expected);
    }
    let chunked = get(&server, "/length/a.txt");
    assert_eq!(
        (chunked.field("Content-Length"), chunked.field("Transfer-Encoding")),
        (None, Some("chunked"))
    );
    assert_eq!(chunked.text(), "hello");
    let longer = get(&server, "/longer/a.txt");
    assert_eq!((values(&longer, "Content-Length").as_str(), longer.text().as_str()), ("5", "hello"));
    assert_eq!(longer.field("Transfer-Encoding"), None);
    assert_eq!(values(&get(&server, "/to"), "Location"), "/own-place");
    assert_eq!(get(&server, "/nowhere").field("Location"), None);
    // A head that is sent again and again is the same as the first one.
    for _ in 0..4 {
        assert_eq!(get(&server, "/none/a.txt").field("Date"), None);
    }
}

#[test]
fn prefixes_remove_fields_of_upstream_responses() {
    let origin = tw_testkit::origin::origin(|mut conn| {
        while conn.head().is_some() {
            conn.answer(
                "X-Hidden-A: 1\r\nx-hidden-b: 2\r\nX-Hide: 3\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n",
                "body",
            );
        }
    });
    let server = start_server(
        server(),
        &format!(
            "more_clear_headers 'X-Hidden-*'; more_set_headers 'Set-Cookie: one'; location / {{ proxy_pass http://{origin}; }}"
        ),
    );
    let response = get(&server, "/");
    let results = ["X-Hidden-A", "X-Hidden-B", "X-Hide"].map(|name| response.field(name));
    assert_eq!((results, values(&response, "Set-Cookie").as_str()), ([None, None, Some("3")], "one"));
    assert_eq!(response.text(), "body");
}

#[test]
fn prefixes_remove_fields_with_a_place_of_their_own() {
    let origin = tw_testkit::origin::origin(|mut conn| {
        while let Some(head) = conn.head() {
            let status = if head.starts_with("GET /moved") { "302 Found" } else { "200 OK" };
            conn.send(format!(
                "HTTP/1.1 {status}\r\nServer: origin\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: a/b\r\n\
                 Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nETag: \"x\"\r\nLocation: http://there/b\r\n\
                 Cache-Control: no-cache\r\nContent-Length: 4\r\nX-A: 1\r\n\r\nbody"
            ));
        }
    });
    let server = start_server(
        server().file("html/a.txt", "hello"),
        &format!(
            "location / {{ proxy_pass http://{origin}; proxy_redirect http://there/ /here/; }}
             location /last {{ more_clear_headers 'last-*'; proxy_pass http://{origin}; }}
             location /all {{ more_clear_headers *; proxy_pass http://{origin}; proxy_redirect http://there/ /here/; }}
             location /moved {{ more_clear_headers 'Loc*'; proxy_pass http://{origin}; proxy_redirect http://there/ /here/; }}
             location /passed {{ more_clear_headers *; proxy_pass http://{origin}; proxy_pass_header Server; proxy_pass_header Date; }}
             location /file/ {{ alias html/; more_clear_headers *; }}
             location /own {{ more_clear_headers 'L*'; return 302 /to; }}"
        ),
    );
    let find = |target: &str, names: &[&str]| {
        let response = get(&server, target);
        assert!(!response.head.contains("\r\nContent-Length: \r\n"), "{}", response.head);
        names.iter().map(|name| u8::from(response.field(name).is_some())).collect::<Vec<_>>()
    };
    let names =
        ["Last-Modified", "ETag", "Location", "X-A", "Content-Type", "Content-Length", "Server", "Date"];
    for (target, expected) in [
        ("/", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("/last", [0, 1, 1, 1, 1, 1, 1, 1]),
        ("/all", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("/moved", [1, 1, 0, 1, 1, 1, 1, 1]),
        // The line of this server does not take the place of the origin's.
        ("/passed", [0, 0, 0, 0, 1, 1, 0, 0]),
        ("/file/a.txt", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("/own", [0, 0, 0, 0, 1, 1, 1, 1]),
    ] {
        assert_eq!(find(target, &names), expected, "{target}");
    }
    assert_eq!(get(&server, "/file/a.txt").text(), "hello");
}

#[test]
fn prefixes_remove_every_field_of_a_request() {
    let server = start_server(
        server().file("html/a.txt", "hello").file("conf/users", "a:{PLAIN}b\n"),
        &format!(
            "server_name named.example;
             location /all {{ more_clear_input_headers *; proxy_pass http://{}; proxy_set_header X-Seen \"$host|$http_host|$http_user_agent|$http_cookie|$http_x_forwarded_for|$proxy_add_x_forwarded_for\"; }}
             location /file/ {{ alias html/; more_clear_input_headers 'Ra*' 'I*' 'Acc*'; gzip on; gzip_types *; gzip_min_length 1; }}
             location /asked/ {{ alias html/; auth_basic x; auth_basic_user_file users; }}
             location /named/ {{ alias html/; more_clear_input_headers 'Auth*'; auth_basic x; auth_basic_user_file users; }}",
            mirror()
        ),
    );
    let fields = ["User-Agent: u", "Cookie: c=d", "X-Forwarded-For: 192.0.2.1", "X-A: b", "Range: bytes=0-1"];
    let text = request(&server, "GET /all", &fields).text();
    assert!(text.contains("X-Seen: named.example|||||127.0.0.1\r\n"), "{text}");
    for absent in ["User-Agent", "Cookie", "X-Forwarded", "X-A", "Range"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    let body = request(&server, "POST /all", &["X-A: b", "Content-Length: 4", "\r\nbody"]).text();
    assert!(body.contains("Content-Length: 4\r\n") && body.ends_with("4 bytes"), "{body}");
    for field in ["Range: bytes=0-1", "If-None-Match: *", "If-Match: \"x\"", "Accept-Encoding: gzip"] {
        let response = request(&server, "GET /file/a.txt", &[field]);
        assert_eq!((response.status, response.text().as_str()), (200, "hello"), "{field}");
        assert_eq!(response.field("Content-Encoding"), None, "{field}");
    }
    let password = ["Authorization: Basic YTpi"];
    assert_eq!(request(&server, "GET /asked/a.txt", &password).status, 200);
    assert_eq!(request(&server, "GET /named/a.txt", &password).status, 401);
}

#[test]
fn values_of_variables_cannot_split_messages() {
    let server = start_server(
        server(),
        &format!(
            "location ~ (?s)^/out/(.*)$ {{ more_set_headers 'X-A: $1'; return 200; }}
             location ~ (?s)^/in/(.*)$ {{ more_set_input_headers 'X-A: $1' 'X-End: y'; proxy_pass http://{}; }}",
            mirror()
        ),
    );
    let response = get(&server, "/out/a%0D%0AX-B:%20b%0A%0Abody");
    assert_eq!((response.status, response.field("X-B")), (200, None), "{}", response.head);
    assert!(response.field("X-A").is_some_and(|value| value.starts_with("a  X-B: b")), "{}", response.head);
    let text = page(&server, "/in/a%0D%0AX-B:%20b%0D%0A%0D%0AGET").1;
    assert!(
        !text.contains("\nX-B") && text.contains("X-A: a  X-B: b") && text.contains("X-End: y"),
        "{text}"
    );
}

#[test]
fn request_fields_are_changed_behind_the_rewrite_phase() {
    let server = start_server(
        server(),
        &format!(
            "set $seen $http_x_a; more_set_input_headers 'X-Server: $host';
             location /said {{ more_set_input_headers 'Host: Other.Example:81' 'X-A: new' -r 'X-None: x' 'X-Old: y'; more_clear_input_headers 'X-Hidden-*' Cookie;
               return 200 '$seen'; }}
             location /vars {{ set $before $http_x_a; more_set_input_headers 'Host: Other.Example:81' 'User-Agent: faked' 'X-A: new'; 
               more_set_input_headers -r 'X-None: x' 'X-Old: y'; more_clear_input_headers 'X-Hidden-*' Cookie;
               if ($arg_if) {{ more_set_input_headers 'X-If: $arg_if'; }}
               more_set_input_headers -t 'text/css' 'X-Css: y'; proxy_pass http://{};
               proxy_set_header X-Seen \"$before|$host|$http_host|$http_user_agent|$http_x_server\"; }}
             server_name named.example; location /no-host {{ more_clear_input_headers Host; proxy_pass http://{}; proxy_set_header X-Seen \"$host|$http_host\"; }}
             location /gzip {{ more_clear_input_headers Accept-Encoding; gzip on; gzip_types *; gzip_min_length 1; alias html/; }}
             location /framing {{ more_set_input_headers 'Content-Length: 99' 'Transfer-Encoding: chunked'; proxy_pass http://{}; }}",
            mirror(),
            mirror(),
            mirror()
        ),
    );
    let fields =
        ["X-A: old", "X-Old: o", "X-Hidden-B: b", "Cookie: c=d", "Content-Type: text/css; charset=utf-8"];
    let text = request(&server, "GET /vars?if=1", &fields).text();
    for expected in ["X-A: new", "X-Old: y", "X-If: 1", "X-Css: y", "User-Agent: faked"] {
        assert_eq!(text.matches(&format!("\n{expected}")).count(), 1, "{expected}: {text}");
    }
    for absent in ["X-None", "X-Hidden", "Cookie", "X-A: old"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    assert!(text.contains("X-Seen: old|other.example|Other.Example:81|faked|localhost"), "{text}");
    assert!(!request(&server, "GET /vars", &fields).text().contains("X-If"));
    let text = request(&server, "GET /no-host", &[]).text();
    assert!(text.contains("X-Seen: named.example|\r\n"), "{text}");
    let body = request(&server, "POST /framing", &["Content-Length: 4", "\r\nbody"]).text();
    assert!(body.contains("Content-Length: 4\r\n") && body.ends_with("4 bytes"), "{body}");
    assert_eq!(request(&server, "GET /said", &["X-A: first"]).text(), "first");
}

#[test]
fn changed_request_fields_keep_the_next_request() {
    let server = with_file(
        "more_set_input_headers 'X-A: a long value that has to be put somewhere'; location /x { return 200 $http_x_a$arg_n; }",
    );
    let mut client = server.connect().unwrap();
    let one = |n: usize| format!("GET /x?n={n} HTTP/1.1\r\nHost: a\r\n\r\n");
    client
        .send(format!(
            "{}{}POST /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc{}",
            one(1),
            one(2),
            one(3)
        ))
        .unwrap();
    for (status, expected) in [(200, "1"), (200, "2"), (405, ""), (200, "3")] {
        let response = client.read_response().unwrap();
        assert_eq!(response.status, status);
        assert!(status == 405 || response.text().ends_with(expected), "{}", response.text());
    }
}

#[test]
fn every_protocol_gets_the_same_fields() {
    let content =
        "more_set_headers 'X-Set: $http_x_in' 'Connection: x'; more_clear_headers Server Date 'X-Hidden-*';
        more_set_input_headers 'X-In: in'; add_header X-Hidden-A y;
        location = /said { echo -n $http_x_in; }";
    let server = start_http2(content);
    let answer = connect(&server).get("/said").unwrap();
    assert_eq!(
        (answer.text().as_str(), answer.field("x-set"), answer.field("x-hidden-a")),
        ("in", Some("in"), Some("y"))
    );
    assert_eq!(
        (answer.field("server"), answer.field("date"), answer.field("connection")),
        (None, None, None)
    );
    let server = start_http3(content);
    let answer = server.client().get("/said");
    assert_eq!(
        (answer.text().as_str(), answer.field("x-set"), answer.field("x-hidden-a")),
        ("in", Some("in"), Some("y"))
    );
    assert_eq!(
        (answer.field("server"), answer.field("date"), answer.field("connection")),
        (None, None, None)
    );
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("more_set_headers;", "invalid number of arguments in \"more_set_headers\" directive"),
        ("more_set_headers 'X Y: z';", "invalid name of a field \"X Y\""),
        ("more_set_headers 'X-$uri: z';", "variables are not allowed in the name \"X-$uri\""),
        ("more_set_headers 'X*: z';", "\"X*\" with \"*\" can only be removed"),
        ("more_set_headers -s 4oo X;", "invalid value \"4oo\""),
        ("more_set_headers -x X;", "invalid parameter \"-x\""),
        ("more_clear_headers -a X;", "invalid parameter \"-a\""),
        ("more_set_input_headers -s 404 X;", "invalid parameter \"-s\""),
        ("if ($arg_a) { more_set_headers 'X: y'; }", "\"more_set_headers\" directive is not allowed here"),
        ("more_set_headers 'X: $nonsense';", "unknown \"nonsense\" variable"),
    ] {
        let error = refusal(line);
        assert!(error.contains(message), "{line}: {error}");
    }
}
