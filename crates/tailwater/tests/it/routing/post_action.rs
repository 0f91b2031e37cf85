//! `post_action`: a location that runs after the response.

use crate::support::{get, page, server, start};

#[test]
fn post_action_sees_the_outcome_of_the_response() {
    let server = start(
        server().file("html/a", "hello").file("html/quiet", "quiet"),
        "log_format told '$arg_status $arg_bytes $arg_done $arg_uri $request_method'; \
         log_format own '$status $body_bytes_sent $request $uri'; \
         server { listen 127.0.0.1:{port}; root html; access_log logs/own.log own; \
           location / { post_action @tell; } location /inner { post_action /tell; return 404; } \
           location /quiet { } \
           location /broken { post_action /nothing; return 200 fine; } \
           location @tell { proxy_pass http://127.0.0.1:{port1}/?status=$status&bytes=$body_bytes_sent&done=$request_completion&uri=$uri; } \
           location /tell { internal; \
             proxy_pass http://127.0.0.1:{port1}/?status=$status&bytes=$body_bytes_sent&done=$request_completion&uri=inner; } } \
         server { listen 127.0.0.1:{port1}; access_log logs/told.log told; \
           location / { return 500 HIDDEN; } }",
    );
    let mut client = server.connect().unwrap();
    for (target, status, text) in
        [("/a", 200, "hello"), ("/quiet", 200, "quiet"), ("/broken", 200, "fine"), ("/a", 200, "hello")]
    {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
        let response = client.read_response().unwrap();
        assert_eq!((response.status, response.text().as_str()), (status, text), "{target}");
    }
    let (status, text) = page(&server, "/inner");
    assert!(status == 404 && !text.contains("HIDDEN"), "{status} {text}");
    let len = text.len();
    assert_eq!(
        server.log("logs/told.log", 3).unwrap(),
        ["200 5 OK /a GET", "200 5 OK /a GET", format!("404 {len} OK inner GET").as_str()]
    );
    assert_eq!(
        server.log("logs/own.log", 5).unwrap(),
        [
            "200 5 GET /a HTTP/1.1 /a",
            "200 5 GET /quiet HTTP/1.1 /quiet",
            "200 4 GET /broken HTTP/1.1 /nothing",
            "200 5 GET /a HTTP/1.1 /a",
            format!("404 {len} GET /inner HTTP/1.1 /tell").as_str(),
        ]
    );
}

#[test]
fn post_action_runs_once_without_the_body() {
    let server = start(
        server(),
        "log_format told '$request_method <$content_length> $request_body'; \
         server { listen 127.0.0.1:{port}; post_action /tell; \
           location /echo { trap echo; } location /proxied { proxy_pass http://127.0.0.1:{port1}/echo; } \
           location /tell { proxy_pass http://127.0.0.1:{port1}; } } \
         server { listen 127.0.0.1:{port1}; location /echo { trap echo; access_log off; } \
           location / { access_log logs/told.log told; return 204; } }",
    );
    let mut client = server.connect().unwrap();
    for target in ["/echo", "/proxied"] {
        client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")).unwrap();
        assert_eq!(client.read_response().unwrap().text(), "hello", "{target}");
    }
    // A client that has gone does not end it.
    client.send("POST /nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello").unwrap();
    drop(client);
    assert_eq!(server.log("logs/told.log", 3).unwrap(), ["POST <-> -"; 3]);
    assert_eq!(get(&server, "/tell").status, 204);
    assert_eq!(server.log("logs/told.log", 5).unwrap().len(), 5);
}
