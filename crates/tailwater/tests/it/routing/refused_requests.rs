//! Requests refused before or after the choice of their location, and their error pages.

use crate::support::{raw, request, server, start_server};

#[test]
fn named_error_page_replaces_the_location() {
    let server = start_server(
        server().file("html/f", "0123456789"),
        "client_max_body_size 4; client_body_early_read $arg_early;
         error_page 413 416 @n; error_page 400 494 @bad;
         location / { add_header X-Location root; }
         location @n { return 200 'named $uri'; }
         location @bad { return 200 'bad $uri'; }",
    );
    let head = "Host: x\r\nConnection: close\r\n";
    for (request, status, body) in [
        (format!("POST /f?early=1 HTTP/1.1\r\n{head}Content-Length: 9\r\n\r\n123456789"), "413", "named /f"),
        (
            format!(
                "POST /f?early=1 HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n"
            ),
            "413",
            "named /f",
        ),
        (format!("GET /f HTTP/1.1\r\n{head}Range: bytes=20-\r\n\r\n"), "416", "named /f"),
        ("GET /f HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), "400", "bad /f"),
    ] {
        let answer = raw(&server, &request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}\n{answer}");
        assert!(answer.ends_with(body), "{request}\n{answer}");
    }
}

#[test]
fn unreadable_request_line_has_no_uri_for_a_named_page() {
    let server = start_server(server(), "error_page 400 @bad; location @bad { return 200 'bad'; }");
    let answer = raw(&server, "G\x01T / HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    server.wait_error_log("empty URI in redirect to named location \"@bad\"").unwrap();
}

#[test]
fn many_small_ranges_are_sent_whole() {
    let content: String = (0..2000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    let server = start_server(server().file("html/f", &content), "");
    let ranges: Vec<String> = (0..300).map(|n| format!("{}-{}", n * 3, n * 3)).collect();
    let response = request(&server, "GET /f", &[&format!("Range: bytes={}", ranges.join(","))]);
    // nginx answers with the whole file once the parts would be longer; either is right, nothing may be cut.
    match response.status {
        206 => assert_eq!(response.text().matches("Content-Range").count(), 300),
        status => assert_eq!((status, response.text()), (200, content)),
    }
    let few = request(&server, "GET /f", &["Range: bytes=0-4,100-109,-3"]);
    assert_eq!(few.status, 206);
    let text = few.text();
    for part in ["\r\n\r\nabcde\r\n", "\r\n\r\nwxyzabcdef\r\n", "bytes 1997-1999/2000"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn aio_off_is_refused_under_the_loop_guard() {
    let said = crate::support::refusal("aio off;");
    assert!(said.contains("\"aio off\" cannot be used with \"loop_guard enforce\""), "{said}");
}
