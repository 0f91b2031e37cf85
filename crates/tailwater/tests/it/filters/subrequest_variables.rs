//! Values of variables in subrequests: the client's method, body and request id, and the subrequest's own URI.

use crate::support::{request, server, start};

/// One line of a log: the kind of subrequest and the variables that differ between a request and its parts, or must not.
const FORMAT: &str = "log_format parts '$kind method=$request_method uri=$uri args=$args request=$request \
    request_uri=$request_uri body=$request_body length=$content_length user=$remote_user cookie=$cookie_c \
    host=$http_host sent=$upstream_http_method'; map $uri $kind { default main; ~^/(?<name>[a-z]+) $name; }";

#[test]
fn subrequest_variables_match_nginx() {
    let part = "log_subrequest on; access_log logs/parts.log parts;";
    let server = start(
        server()
            .file("html/page.shtml", "<!--#include virtual=\"/part?p=1\" -->")
            .file("html/plain.html", ""),
        &format!(
            "{FORMAT} \
             server {{ listen 127.0.0.1:{{port}}; root html; \
               location /checked {{ auth_request /verify; proxy_pass http://127.0.0.1:{{port1}}/; }} \
               location = /verify {{ internal; {part} proxy_pass_request_body off; \
                 proxy_set_header X-Original-Method $request_method; proxy_pass http://127.0.0.1:{{port1}}/; }} \
               location /included {{ ssi on; proxy_pass http://127.0.0.1:{{port1}}/page.shtml; }} \
               location /added {{ add_after_body /part; proxy_pass http://127.0.0.1:{{port1}}/plain.html; }} \
               location /mirrored {{ mirror /copy; proxy_pass http://127.0.0.1:{{port1}}/; }} \
               location /part {{ internal; {part} proxy_pass http://127.0.0.1:{{port1}}/; }} \
               location /copy {{ internal; {part} proxy_pass http://127.0.0.1:{{port1}}/; }} \
               location /missing {{ error_page 404 /part; return 404; }} }} \
             server {{ listen 127.0.0.1:{{port1}}; root html; default_type text/html; add_header Method $request_method/$http_x_original_method; \
               location = / {{ return 200; }} error_page 405 =200 $uri; }}"
        ),
    );
    let name = "user=me cookie=d host=localhost";
    // Method and target of the client; then for the subrequest: its location, what `$request_method` is, its URI with
    // arguments, whether it sees the body, and the method that it was sent with.
    for (count, (line, expected)) in [
        (
            "DELETE /checked?a=7",
            format!(
                "verify method=DELETE uri=/verify args=- request=DELETE /checked?a=7 HTTP/1.1 \
                 request_uri=/checked?a=7 body=- length=6 {name} sent=GET/DELETE"
            ),
        ),
        (
            "POST /included?a=7",
            format!(
                "part method=POST uri=/part args=p=1 request=POST /included?a=7 HTTP/1.1 \
                 request_uri=/included?a=7 body=q=body length=6 {name} sent=GET/"
            ),
        ),
        (
            "POST /added?a=7",
            format!(
                "part method=POST uri=/part args=- request=POST /added?a=7 HTTP/1.1 \
                 request_uri=/added?a=7 body=q=body length=6 {name} sent=GET/"
            ),
        ),
        (
            "PUT /mirrored?a=7",
            format!(
                "copy method=PUT uri=/copy args=a=7 request=PUT /mirrored?a=7 HTTP/1.1 \
                 request_uri=/mirrored?a=7 body=q=body length=6 {name} sent=PUT/"
            ),
        ),
        (
            "POST /missing?a=7",
            format!(
                "part method=GET uri=/part args=- request=POST /missing?a=7 HTTP/1.1 \
                 request_uri=/missing?a=7 body=q=body length=6 {name} sent=GET/"
            ),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = server.connect().unwrap();
        client
            .send(format!(
                "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nCookie: c=d\r\n\
                 Authorization: Basic bWU6cHc=\r\nContent-Length: 6\r\n\r\nq=body"
            ))
            .unwrap();
        client.read_response().unwrap();
        let log = server.log("logs/parts.log", count + 1).unwrap();
        assert_eq!(log[count], expected, "{line}");
    }
}

#[test]
fn auth_request_rules_see_the_method_of_the_client() {
    let server = start(
        server().file("html/page", "content"),
        "server { listen 127.0.0.1:{port}; root html; \
           location / { auth_request /verify; dav_methods DELETE; } \
           location = /verify { internal; if ($request_method = DELETE) { return 403; } return 204; } }",
    );
    assert_eq!(request(&server, "DELETE /page", &[]).status, 403);
    assert_eq!(request(&server, "GET /page", &[]).status, 200);
}

#[test]
fn request_id_is_shared_by_a_request_and_its_subrequests() {
    let server = start(
        server()
            .file("html/page.html", "<!--#include virtual=\"/part\" --> <!--#echo var=\"request_id\" -->"),
        "server { listen 127.0.0.1:{port}; root html; ssi on; location /part { return 200 $request_id; } }",
    );
    let text = request(&server, "GET /page.html", &[]).text();
    let (of_part, of_page) = text.split_once(' ').unwrap();
    assert_eq!((of_part.len(), of_part), (32, of_page));
}
