//! `proxy_request_dynamic`, `proxy_bind_dynamic` and their kin: values that differ between the upstream servers of one
//! request.

use std::net::SocketAddr;

use tw_testkit::origin::origin;

use crate::support::{page, server, start};

/// An origin that answers with an error.
fn failing_origin() -> SocketAddr {
    origin(|mut conn| {
        while conn.head().is_some() {
            conn.send("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
        }
    })
}

/// An origin that echoes `X-To`, the body and the source address.
fn echo_origin() -> SocketAddr {
    origin(|mut conn| {
        while let Some(head) = conn.head() {
            let from = conn.reader.get_ref().peer_addr().unwrap().ip();
            let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            let mut body = vec![0; len.map_or(0, |len| len.parse().unwrap())];
            std::io::Read::read_exact(&mut conn.reader, &mut body).unwrap();
            let to = head.lines().find_map(|line| line.strip_prefix("X-To: ")).unwrap_or("nobody");
            conn.answer("", format!("{to} {} {from}", String::from_utf8_lossy(&body)));
        }
    })
}

#[test]
fn request_is_built_once_or_for_each_server() {
    let first = failing_origin();
    let second = echo_origin();
    let server = start(
        server(),
        &format!(
            "upstream both {{ server {first}; server {second} backup; }} proxy_next_upstream http_500;
             map $upstream_last_addr $from {{ volatile; {second} 127.0.0.9; default 127.0.0.8; }}
             proxy_set_header X-To $upstream_last_addr; proxy_bind $from; proxy_set_body <$upstream_last_addr>;
             server {{ listen 127.0.0.1:{{port}};
                 location /once {{ proxy_pass http://both; }}
                 location /each {{ proxy_request_dynamic on; proxy_bind_dynamic on; proxy_pass http://both; }}
                 location /line {{ proxy_request_dynamic on; proxy_set_header X-To \"a\\nb\"; proxy_pass http://both; }} }}"
        ),
    );
    for _ in 0..2 {
        assert_eq!(page(&server, "/once"), (200, "nobody <> 127.0.0.8".to_owned()));
        assert_eq!(page(&server, "/each"), (200, format!("{second} <{second}> 127.0.0.9")));
    }
    // A request that cannot be built is an error for the client, whichever server it would be sent to.
    assert_eq!(page(&server, "/line").0, 400);
}

#[test]
fn application_parameters_are_built_once_or_for_each_server() {
    let first = origin(|mut conn| drop(conn.fastcgi()));
    let second = origin(|mut conn| {
        let request = conn.fastcgi().unwrap();
        conn.answer_fastcgi(format!("Status: 200\r\n\r\n{}", request.param("TO").unwrap_or("nobody")));
    });
    let server = start(
        server(),
        &format!(
            "upstream both {{ server {first}; server {second} backup; }}
             server {{ listen 127.0.0.1:{{port}}; fastcgi_param TO $upstream_last_addr;
                 location /once {{ fastcgi_pass both; }}
                 location /each {{ fastcgi_request_dynamic on; fastcgi_pass both; }} }}"
        ),
    );
    assert_eq!(page(&server, "/once"), (200, String::new()));
    assert_eq!(page(&server, "/each"), (200, second.to_string()));
}
