//! `track_uploads`, `report_uploads`

use tw_testkit::http2::{END_STREAM, Frames, frame, kind};
use tw_testkit::{Server, wait};

use crate::support::http2::post_frame;
use crate::support::http3::{Http3Client, start_http3_with};
use crate::support::{get, page, refusal_of, request, server, start};

const LOCATIONS: &str = "
    client_max_body_size 1m;
    location /up { track_uploads u 30s; proxy_pass http://127.0.0.1:{port}/sink; }
    location /stream { track_uploads u 30s; proxy_request_buffering off; proxy_pass http://127.0.0.1:{port}/hop; }
    location /hop { proxy_pass http://127.0.0.1:{port}/sink; }
    location /short { track_uploads u 0s; proxy_pass http://127.0.0.1:{port}/sink; }
    location /refused { track_uploads u 30s; return 403; }
    location /sink { return 303; }
    location /progress { report_uploads u; }
    location /json { report_uploads u; upload_progress_json_output; }
    location /jsonp { report_uploads u; upload_progress_jsonp_output; upload_progress_jsonp_parameter cb; }
    location /own { report_uploads u; upload_progress_json_output; upload_progress_content_type text/xml;
        upload_progress_template uploading '<$uploadprogress_received of $uploadprogress_length>';
        upload_progress_template error '<$uploadprogress_status>'; }
    location /header { report_uploads u; upload_progress_header X-Upload; }";

fn start_tracking() -> Server {
    start(
        server(),
        &format!("upload_progress u 64k; server {{ listen 127.0.0.1:{{port}}; http2 on; {LOCATIONS} }}"),
    )
}

/// Waits for a report.
fn becomes(server: &Server, target: &str, expected: &str) {
    let is_found = wait::until(wait::TIMEOUT, || page(server, target).1.trim_end() == expected);
    assert!(is_found, "{target} is not {expected}: {}", page(server, target).1);
}

const DONE: &str = "{ \"state\" : \"done\" }";

#[test]
fn upload_is_reported_while_it_comes_and_when_it_is_over() {
    let server = start_tracking();
    for (path, id) in [("/up", "a"), ("/stream", "b")] {
        let starting = page(&server, &format!("/progress?X-Progress-ID={id}"));
        assert_eq!(starting, (200, "new Object({ 'state' : 'starting' })\r\n".to_owned()));
        let mut client = server.connect().unwrap();
        client
            .send(format!(
                "POST {path}?X-Progress-ID={id} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{}",
                "x".repeat(400)
            ))
            .unwrap();
        let target = |report: &str| format!("/{report}?X-Progress-ID={id}");
        becomes(
            &server,
            &target("progress"),
            "new Object({ 'state' : 'uploading', 'received' : 400, 'size' : 1000 })",
        );
        becomes(
            &server,
            &target("json"),
            "{ \"state\" : \"uploading\", \"received\" : 400, \"size\" : 1000 }",
        );
        becomes(&server, &target("own"), "<400 of 1000>");
        client.send("x".repeat(600)).unwrap();
        assert_eq!(client.read_response().unwrap().status, 303);
        becomes(&server, &target("progress"), "new Object({ 'state' : 'done' })");
        becomes(&server, &target("own"), DONE);
    }
}

#[test]
fn errors_and_ends_are_reported() {
    let server = start_tracking();
    let post = |target: &str, length: &str| {
        request(&server, &format!("POST {target}"), &["X-Progress-ID: e", length]).status
    };
    assert_eq!(post("/up", "Content-Length: 2000000"), 413);
    becomes(&server, "/json?X-Progress-ID=e", "{ \"state\" : \"error\", \"status\" : 413 }");
    becomes(&server, "/own?X-Progress-ID=e", "<413>");
    // A client that goes away.
    let mut client = server.connect().unwrap();
    client.send("POST /up?X-Progress-ID=gone HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc").unwrap();
    becomes(&server, "/own?X-Progress-ID=gone", "<3 of 9>");
    drop(client);
    becomes(&server, "/own?X-Progress-ID=gone", "<400>");
    // The end is forgotten at once.
    let mut client = server.connect().unwrap();
    client.send("POST /short?X-Progress-ID=s HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").unwrap();
    assert_eq!(client.read_response().unwrap().status, 303);
    becomes(&server, "/json?X-Progress-ID=s", "{ \"state\" : \"starting\" }");
    // The next upload with the identifier of one that is over.
    let mut client = server.connect().unwrap();
    client.send("PUT /up?X-Progress-ID=e HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").unwrap();
    assert_eq!(client.read_response().unwrap().status, 303);
    becomes(&server, "/json?X-Progress-ID=e", DONE);
}

#[test]
fn reports_have_formats_and_identifiers() {
    let server = start_tracking();
    for (target, content_type, expected) in [
        ("/progress?X-Progress-ID=z", "text/javascript", "new Object({ 'state' : 'starting' })\r\n"),
        ("/json?x-progress-id=z", "application/json", "{ \"state\" : \"starting\" }\r\n"),
        ("/jsonp?X-Progress-ID=z&cb=a.b", "application/javascript", "a.b({ \"state\" : \"starting\" });\r\n"),
        ("/jsonp?X-Progress-ID=z&cb=<i>", "application/javascript", "({ \"state\" : \"starting\" });\r\n"),
        ("/own?X-Progress-ID=z", "text/xml", "{ \"state\" : \"starting\" }\r\n"),
        ("/header?X-Upload=z", "text/javascript", "new Object({ 'state' : 'starting' })\r\n"),
    ] {
        let response = get(&server, target);
        assert_eq!((response.status, response.field("Content-Type")), (200, Some(content_type)), "{target}");
        assert_eq!(response.field("Cache-Control"), Some("no-cache"));
        assert_eq!(response.text(), expected, "{target}");
    }
    assert_eq!(request(&server, "GET /progress", &["X-Progress-ID: z"]).status, 200);
    assert_eq!(request(&server, "GET /header", &["X-Upload: z"]).status, 200);
    for (line, status) in [
        ("GET /progress", 400),
        ("GET /header?X-Progress-ID=z", 400),
        ("POST /progress?X-Progress-ID=z", 405),
    ] {
        assert_eq!(request(&server, line, &[]).status, status, "{line}");
    }
    let long = format!("GET /progress?X-Progress-ID={}", "x".repeat(256));
    assert_eq!(request(&server, &long, &[]).status, 400);
}

#[test]
fn uploads_over_http2_and_http3_are_tracked() {
    let server = start_tracking();
    let mut client = Frames::connect(server.addr()).unwrap();
    client.send(post_frame(1, "/up?X-Progress-ID=h2", &[("content-length", "10")])).unwrap();
    client.send(frame(kind::DATA, 0, 1, b"four")).unwrap();
    becomes(&server, "/own?X-Progress-ID=h2", "<4 of 10>");
    client.send(frame(kind::DATA, END_STREAM, 1, b"sixsix")).unwrap();
    becomes(&server, "/own?X-Progress-ID=h2", DONE);

    let plain = "server { listen 127.0.0.1:{port1}; location /sink { return 303; } }";
    let locations = LOCATIONS.replace("{port}", "{port1}");
    let server =
        start_http3_with(crate::support::server(), &format!("upload_progress u 64k; {plain}"), &locations);
    let mut upload = server.client();
    let id = upload.begin("POST", "/up?X-Progress-ID=h3", &[("content-length", "10")], false);
    upload.send(id, b"four", false);
    let state = |client: &mut Http3Client| client.get("/own?X-Progress-ID=h3").text().trim_end().to_owned();
    let is_found = wait::until(wait::TIMEOUT, || state(&mut upload) == "<4 of 10>");
    assert!(is_found, "{}", state(&mut upload));
    upload.send(id, b"sixsix", true);
    upload.finish(id).unwrap();
    assert!(wait::until(wait::TIMEOUT, || state(&mut upload) == DONE), "{}", state(&mut upload));
}

#[test]
fn bad_directives_are_refused() {
    for (http, location, expected) in [
        ("", "track_uploads u 30s;", "zero size shared memory zone \"u\""),
        ("", "report_uploads u;", "zero size shared memory zone \"u\""),
        ("upload_progress u;", "", "invalid number of arguments in \"upload_progress\""),
        ("upload_progress u x;", "", "invalid zone size \"x\""),
        ("upload_progress u 1k;", "", "zone \"1k\" is too small"),
        ("upload_progress u 64k; upload_progress u 64k;", "", "duplicate zone \"u\""),
        (
            "limit_req_zone $uri zone=u:64k rate=1r/s; upload_progress u 64k;",
            "",
            "already declared for a different use",
        ),
        ("upload_progress u 64k;", "track_uploads u x;", "invalid timeout value \"x\""),
        ("upload_progress u 64k;", "track_uploads u 1s; track_uploads u 1s;", "directive is duplicate"),
        ("upload_progress u 64k; report_uploads u;", "", "directive is not allowed here"),
        ("", "upload_progress_header 'a b';", "invalid value \"a b\""),
        ("", "upload_progress_template ended a;", "invalid value \"ended\""),
        ("", "upload_progress_json_output on;", "invalid number of arguments"),
    ] {
        let conf =
            format!("http {{ {http} server {{ listen 127.0.0.1:{{port}}; location / {{ {location} }} }} }}");
        let said = refusal_of(&conf);
        assert!(said.contains(expected), "{http} {location}: {said}");
    }
}
