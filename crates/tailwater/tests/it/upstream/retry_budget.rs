//! `proxy_next_upstream_budget`: retries are a bounded part of the requests to a group.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tw_testkit::origin::origin;
use tw_testkit::{Client, Server, wait};

use crate::support::metrics::metric;
use crate::support::{get, refusal, server, start};

/// An origin that is overloaded.
fn overloaded() -> SocketAddr {
    origin(|mut conn| {
        while conn.head().is_some() {
            conn.send("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy");
        }
    })
}

/// An origin that reports each request and answers it when the test lets it.
fn held_origin() -> (SocketAddr, Receiver<()>, Sender<()>) {
    let (arrived, came) = channel();
    let (answer, may) = channel();
    let arrived = Arc::new(Mutex::new(arrived));
    let may = Arc::new(Mutex::new(may));
    let addr = origin(move |mut conn| {
        while conn.head().is_some() {
            arrived.lock().unwrap().send(()).unwrap();
            if may.lock().unwrap().recv().is_err() {
                return;
            }
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    (addr, came, answer)
}

fn send(server: &Server, target: &str) -> Client {
    let mut client = server.connect().unwrap();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).unwrap();
    client
}

#[test]
fn retry_beyond_the_budget_passes_the_response_of_the_failed_server() {
    let first = overloaded();
    let (second, came, answer) = held_origin();
    let server = start(
        server(),
        &format!(
            "log_format up '$request_uri $status $upstream_status'; access_log logs/access.log up;
             upstream u {{ zone u 64k; server {first} max_fails=0; server {second} backup; }}
             proxy_next_upstream error http_503;
             server {{ listen 127.0.0.1:{{port}};
                 location /one {{ proxy_pass http://u; proxy_next_upstream_budget 0% min=1; }}
                 location /none {{ proxy_pass http://u; proxy_next_upstream_budget 0% min=0; }}
                 location /unbounded {{ proxy_pass http://u; }}
                 location /metrics {{ metrics; access_log off; }} }}"
        ),
    );
    let series = |name: &str| metric(&server, &format!("{name}{{protocol=\"http\",upstream=\"u\"}}"));
    let mut retried = send(&server, "/one/retried");
    came.recv_timeout(wait::TIMEOUT).unwrap();
    assert_eq!(series("upstream_retries_active"), 1);
    // The only retry is under way.
    assert_eq!(get(&server, "/one/refused").text(), "busy");
    assert_eq!(get(&server, "/none").text(), "busy");
    assert_eq!(series("upstream_retries_refused_total"), 2);
    let mut unbounded = send(&server, "/unbounded");
    came.recv_timeout(wait::TIMEOUT).unwrap();
    answer.send(()).unwrap();
    answer.send(()).unwrap();
    for client in [&mut retried, &mut unbounded] {
        assert_eq!(client.read_response().unwrap().text(), "ok");
    }
    // The retry is over, and the next one may begin.
    assert!(wait::until(wait::TIMEOUT, || series("upstream_retries_active") == 0));
    let mut again = send(&server, "/one/again");
    came.recv_timeout(wait::TIMEOUT).unwrap();
    answer.send(()).unwrap();
    assert_eq!(again.read_response().unwrap().text(), "ok");
    let mut lines = server.access_log(5).unwrap();
    lines.sort();
    assert_eq!(
        lines,
        [
            "/none 503 503",
            "/one/again 200 503, 200",
            "/one/refused 503 503",
            "/one/retried 200 503, 200",
            "/unbounded 200 503, 200",
        ]
    );
}

#[test]
fn invalid_budgets_are_refused() {
    for (budget, message) in [
        ("20", "invalid budget \"20\""),
        ("101%", "invalid budget \"101%\""),
        ("%", "invalid budget \"%\""),
        ("20% min=-1", "invalid parameter \"min=-1\""),
        ("off min=1", "invalid parameter \"min=1\""),
    ] {
        let conf = format!(
            "listen 127.0.0.1:{{port}};
             location / {{ proxy_pass http://127.0.0.1:1; proxy_next_upstream_budget {budget}; }}"
        );
        let text = refusal(&conf);
        assert!(text.contains(message), "{budget}: {text}");
    }
}
