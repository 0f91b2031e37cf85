//! `proxy_store`: copies of responses in files.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tw_testkit::origin::origin;
use tw_testkit::{Server, wait};

use crate::support::{get, request, server, start_as_we_are};

fn storing() -> Server {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            match head.split(' ').nth(1).unwrap() {
                "/missing" => conn.send("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"),
                "/short" => return conn.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"),
                "/close" => return conn.send("HTTP/1.1 200 OK\r\n\r\nuntil it closes"),
                "/big" => conn.answer("", vec![b'x'; 300_000]),
                _ if head.starts_with("HEAD") => conn.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
                _ => conn.answer("Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n", "whole"),
            }
        }
    });
    start_as_we_are(
        server().file("store/first", ""),
        &format!(
            "proxy_store_access user:rw group:r;
             server {{ listen 127.0.0.1:{{port}}; root store;
                 location / {{ proxy_pass http://{addr}; proxy_store on; }}
                 location /else/ {{ proxy_pass http://{addr}/; proxy_store store/deep/down/$arg_name; }}
                 location /off/ {{ proxy_pass http://{addr}/; proxy_store off; }} }}"
        ),
    )
}

/// The file, once it is there.
fn wait_for(path: &Path) -> Vec<u8> {
    assert!(wait::until(wait::TIMEOUT, || path.exists()), "{}", path.display());
    std::fs::read(path).unwrap()
}

#[test]
fn only_complete_responses_are_stored() {
    let server = storing();
    let store = server.prefix().join("store");
    assert_eq!(get(&server, "/whole").text(), "whole");
    assert_eq!(wait_for(&store.join("whole")), b"whole");
    let meta = std::fs::metadata(store.join("whole")).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o640);
    let modified = meta.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(modified.as_secs(), 784_111_777);
    assert_eq!(get(&server, "/close").text(), "until it closes");
    assert_eq!(wait_for(&store.join("close")), b"until it closes");
    assert_eq!(get(&server, "/big").body.len(), 300_000);
    assert_eq!(wait_for(&store.join("big")), vec![b'x'; 300_000]);
    assert_eq!(get(&server, "/else/a?name=b").text(), "whole");
    assert_eq!(wait_for(&store.join("deep/down/b")), b"whole");

    assert_eq!(get(&server, "/missing").status, 404);
    assert_eq!(request(&server, "HEAD /head", &[]).status, 200);
    assert_eq!(get(&server, "/off/a").status, 200);
    let mut client = server.connect().unwrap();
    client.send("GET /short HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let _ = client.read_until_close();
    server.wait_error_log("upstream prematurely closed connection while reading upstream").unwrap();
    let mut names: Vec<_> = std::fs::read_dir(&store)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["big", "close", "deep", "first", "whole"]);
    let temp = server.prefix().join("proxy_temp");
    let is_empty = || std::fs::read_dir(&temp).is_ok_and(|mut dir| dir.next().is_none());
    assert!(wait::until(wait::TIMEOUT, is_empty), "a temporary file is left");
}

#[test]
fn failed_store_does_not_affect_the_response() {
    let server = storing();
    std::fs::write(server.prefix().join("store/file"), "").unwrap();
    // A file is where a directory would have to be.
    assert_eq!(get(&server, "/file/below").text(), "whole");
    server.wait_error_log("while storing the response of the upstream server").unwrap();
    assert_eq!(get(&server, "/whole").text(), "whole");
}
