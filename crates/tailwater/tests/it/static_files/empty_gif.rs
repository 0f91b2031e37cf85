//! `empty_gif`

use crate::support::{get, request, server, start_server};

#[test]
fn empty_gif_sends_one_pixel() {
    let server = start_server(
        server(),
        "location /gif { empty_gif; if ($arg_x) { add_header X-If yes; } } location /gif/inner { } location /outer { location /outer/gif { empty_gif; } }",
    );
    let response = get(&server, "/gif");
    assert_eq!((response.status, response.body.len()), (200, 43));
    assert!(response.body.starts_with(b"GIF89a\x01\x00\x01\x00"));
    assert_eq!(response.field("Content-Type"), Some("image/gif"));
    assert_eq!(response.field("Last-Modified"), Some("Mon, 28 Sep 1970 06:00:00 GMT"));
    assert_eq!(response.field("Content-Length"), Some("43"));
    assert_eq!(get(&server, "/outer/gif").status, 200);
    assert_eq!(request(&server, "HEAD /gif", &[]).field("Content-Length"), Some("43"));
    assert_eq!(request(&server, "POST /gif", &["Content-Length: 0"]).status, 405);
    assert_eq!(
        request(&server, "GET /gif", &["If-Modified-Since: Mon, 28 Sep 1970 06:00:00 GMT"]).status,
        304
    );
    let response = get(&server, "/gif?x=1");
    assert_eq!((response.status, response.field("X-If")), (200, Some("yes")));
    // `empty_gif` holds for its own location only.
    assert_eq!(get(&server, "/gif/inner").status, 404);
    assert_eq!(get(&server, "/outer").status, 404);
}
