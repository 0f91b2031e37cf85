//! `health_check` of applications and of memcached.

use std::io::BufRead;
use std::net::SocketAddr;
use std::sync::mpsc::channel;

use tw_testkit::origin::{Conn, origin};
use tw_testkit::wait;

use crate::support::{get, page, server, start};

/// Function that reads a request in the protocol of a gateway and answers it.
type Serve = fn(Conn, &dyn Fn(&str) -> &'static str);

fn fastcgi(mut conn: Conn, answer: &dyn Fn(&str) -> &'static str) {
    while let Some(request) = conn.fastcgi() {
        conn.answer_fastcgi(answer(request.param("URI").unwrap()));
        if !request.keeps_open {
            return;
        }
    }
}

fn uwsgi(mut conn: Conn, answer: &dyn Fn(&str) -> &'static str) {
    if let Some(request) = conn.uwsgi() {
        conn.send(answer(request.param("URI").unwrap()));
    }
}

fn scgi(mut conn: Conn, answer: &dyn Fn(&str) -> &'static str) {
    if let Some(request) = conn.scgi() {
        conn.send(answer(request.param("URI").unwrap()));
    }
}

/// An unhealthy application: it says so in response to `/health`.
fn unhealthy_application(serve: Serve) -> SocketAddr {
    origin(move |conn| {
        serve(conn, &|uri| {
            if uri == "/health?deep" { "Status: 500 No\r\n\r\n" } else { "Status: 200\r\n\r\nill" }
        });
    })
}

fn healthy_application(serve: Serve) -> SocketAddr {
    origin(move |conn| serve(conn, &|_| "Status: 200\r\n\r\nwell"))
}

#[test]
fn unhealthy_applications_get_no_requests() {
    for (language, serve) in [("fastcgi", fastcgi as Serve), ("uwsgi", uwsgi), ("scgi", scgi)] {
        let ill = unhealthy_application(serve);
        let well = healthy_application(serve);
        let server = start(
            server(),
            &format!(
                "upstream apps {{ server {ill}; server {well}; }} match ok {{ status 200; body ~ well; }}
                 server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }}
                     location / {{ {language}_pass apps; {language}_param URI $request_uri;
                         health_check interval=20ms uri=/health?deep match=ok; }} }}"
            ),
        );
        server.wait_error_log("peer is unhealthy: status 500").unwrap();
        let is_out = || get(&server, "/metrics").text().contains("state=\"unhealthy\"");
        assert!(wait::until(wait::TIMEOUT, is_out), "{language}");
        for _ in 0..8 {
            assert_eq!(page(&server, "/"), (200, "well".to_owned()), "{language}");
        }
    }
}

#[test]
fn memcached_is_healthy_if_it_responds() {
    let (sender, receiver) = channel();
    let serve = move |answer: &'static str| {
        let sender = sender.clone();
        origin(move |mut conn| {
            let mut line = String::new();
            while conn.reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                let _ = sender.send(line.clone());
                conn.send(answer);
                line.clear();
            }
        })
    };
    let well = serve("END\r\n");
    let ill = serve("ERROR\r\n");
    let server = start(
        server(),
        &format!(
            "error_log logs/error.log info; upstream values {{ server {well}; server {ill}; }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ set $memcached_key k; memcached_pass values;
                 health_check interval=20ms uri=/probe; }} }}"
        ),
    );
    server.wait_error_log(&format!("of peer {ill} in upstream \"values\"")).unwrap();
    assert_eq!(receiver.recv_timeout(wait::TIMEOUT).unwrap(), "get /probe\r\n");
    assert!(!server.error_log().contains(&format!("of peer {well} in upstream")), "{}", server.error_log());
}
