//! Changes of groups by the API.

use std::io::Write;
use std::net::SocketAddr;

use tw_testkit::{Response, Server};

use super::metrics::start;
use super::{text, upstream};
use crate::support::get;

const SERVERS: &str = "/api/9/stream/upstreams/u/servers";

fn send(server: &Server, line: &str, body: &str) -> Response {
    let mut client = server.connect().unwrap();
    let length = body.len();
    client
        .send(format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
        .unwrap();
    client.read_response().unwrap()
}

/// An upstream server that sends its name.
fn named(name: &'static str) -> SocketAddr {
    upstream(move |mut stream| stream.write_all(name.as_bytes()).unwrap())
}

/// Names of the servers of so many sessions, sorted.
fn names(server: &Server, count: usize) -> String {
    let mut names: Vec<_> = (0..count).map(|_| text(server.addr_of(1))).collect();
    names.sort();
    names.concat()
}

#[test]
fn api_adds_changes_and_removes_servers_of_stream() {
    let a = named("a");
    let b = named("b");
    let server = start(&format!(
        "upstream u {{ server {a}; }} server {{ listen 127.0.0.1:{{port1}}; proxy_pass u; }}"
    ));
    assert_eq!(get(&server, "/api/9/").text(), "[\"http\",\"stream\",\"mail\"]");
    assert_eq!(get(&server, "/api/9/stream").text(), "[\"keyvals\",\"server_zones\",\"upstreams\"]");
    assert_eq!(names(&server, 2), "aa");

    let added = send(&server, &format!("POST {SERVERS}"), &format!("{{\"server\":\"{b}\"}}"));
    assert_eq!(added.status, 201, "{}", added.text());
    let one = added.field("Location").unwrap().to_owned();
    assert_eq!(one, format!("{SERVERS}/1"));
    assert_eq!(names(&server, 4), "aabb");
    let patch = |body: &str| send(&server, &format!("PATCH {one}"), body).status;
    assert_eq!(patch("{\"weight\":3}"), 200);
    assert_eq!(names(&server, 8), "aabbbbbb");
    for (body, expected) in [
        ("{\"drain\":true}", "aaa"),
        ("{\"drain\":false,\"down\":true}", "aaa"),
        ("{\"down\":false,\"weight\":1}", "aabb"),
    ] {
        assert_eq!(patch(body), 200, "{body}");
        assert_eq!(names(&server, expected.len()), expected, "{body}");
    }
    let view = get(&server, "/api/stream/upstreams/u").text();
    for expected in ["\"zone\":\"u\"", "\"connections\":", "\"first_byte_time\":", "\"state\":\"up\""] {
        assert!(view.contains(expected), "{expected}: {view}");
    }
    assert!(!view.contains("responses") && !view.contains("header_time"), "{view}");

    // The group of http with this name is another one.
    assert!(get(&server, "/api/http/upstreams/u").text().contains("\"server\":\"127.0.0.1:9\""));
    assert_eq!(send(&server, &format!("DELETE {SERVERS}/0"), "").status, 200);
    assert_eq!(names(&server, 2), "bb");
    let refused = send(&server, &format!("POST {SERVERS}"), "{\"server\":\"127.0.0.1\"}");
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("no port in"), "{}", refused.text());
    assert_eq!(get(&server, "/api/stream/upstreams/none").status, 404);
}

#[test]
fn without_stream_the_api_has_no_groups_of_it() {
    let server = crate::support::server()
        .start("http { server { listen 127.0.0.1:{port}; location /api/ { api write=on; } } }")
        .unwrap();
    assert_eq!(get(&server, "/api/stream/upstreams").text(), "{}");
    assert_eq!(get(&server, "/api/stream/server_zones").text(), "{}");
    assert_eq!(get(&server, SERVERS).status, 404);
}
