//! `scgi_pass` and its kin, in front of scripted applications.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tw_testkit::application::ApplicationRequest;
use tw_testkit::origin::origin;

use crate::support::cache::wait_stored;
use crate::support::{get, page, request, server, start, start_server};

/// An application that answers every request by `answer`, and closes.
fn application(answer: impl Fn(ApplicationRequest) -> String + Send + Sync + Clone + 'static) -> SocketAddr {
    origin(move |mut conn| {
        if let Some(request) = conn.scgi() {
            conn.send(answer(request));
        }
    })
}

#[test]
fn configured_parameters_are_sent() {
    let addr = application(|request| format!("\r\n{}[{}]", request.lines(), request.body.escape_ascii()));
    let server = start(
        server(),
        &format!(
            "scgi_param SCGI 1; scgi_param REQUEST_URI $request_uri;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ scgi_pass {addr}; }}
                 location /off {{ scgi_pass {addr}; scgi_pass_request_body off; }} }}"
        ),
    );
    assert_eq!(
        request(&server, "GET /a?b", &[]).text(),
        "CONTENT_LENGTH=0\nSCGI=1\nREQUEST_URI=/a?b\nHTTP_HOST=localhost\nHTTP_CONNECTION=close\n[]"
    );
    for (target, body, expected) in [
        ("/", "Content-Length: 4\r\n\r\nbody", ("CONTENT_LENGTH=4\n", "[body]")),
        ("/", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", ("CONTENT_LENGTH=3\n", "[abc]")),
        // The announced length is that of the body that is passed, which is empty here.
        ("/off", "Content-Length: 4\r\n\r\nbody", ("CONTENT_LENGTH=0\n", "[]")),
    ] {
        let mut client = server.connect().unwrap();
        client.send(format!("POST {target} HTTP/1.1\r\nHost: x\r\n{body}")).unwrap();
        let text = client.read_response().unwrap().text();
        assert!(text.starts_with(expected.0) && text.ends_with(expected.1), "{body}: {text}");
    }
}

#[test]
fn parameter_value_cannot_inject_a_parameter() {
    let addr = application(|request| format!("\r\n{}", request.lines()));
    let server = start_server(
        server(),
        &format!(
            "location ~ ^/(.*)$ {{ rewrite ^ /x break; scgi_pass {addr}; scgi_param NAME $http_x_name; }}"
        ),
    );
    assert!(request(&server, "GET /", &["X-Name: fine"]).text().contains("NAME=fine\n"));
    for target in ["/a%00B", "/%00"] {
        assert_eq!(get(&server, target).status, 400, "{target}");
    }
}

#[test]
fn responses_are_cached() {
    let request_count = Arc::new(AtomicUsize::new(0));
    let count = request_count.clone();
    let addr = application(move |_| format!("Content-Type: text/html\r\n\r\n{}", count.fetch_add(1, SeqCst)));
    let server = start(
        server().with_master(),
        &format!(
            "scgi_cache_path cache keys_zone=one:1m;
             server {{ listen 127.0.0.1:{{port}};
                 location = /metrics {{ metrics; }}
                 location / {{ scgi_pass {addr}; scgi_cache one; scgi_cache_key $uri; scgi_cache_valid 1h;
                     add_header X-Cache $upstream_cache_status; }} }}"
        ),
    );
    assert_eq!(page(&server, "/a").1, "0");
    wait_stored(&server, 1);
    assert_eq!(get(&server, "/a").field("X-Cache"), Some("HIT"));
    assert_eq!(page(&server, "/a").1, "0");
    assert_eq!(page(&server, "/b").1, "1");
}
