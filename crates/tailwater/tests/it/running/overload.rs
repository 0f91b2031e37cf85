//! `overload`: requests are refused while a loop has more to do than it can, and no longer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tw_testkit::wait;

use crate::support::metrics::metric;
use crate::support::{get, refusal, server};

/// Connections that always have requests for the loop.
const CONNECTIONS: usize = 64;
/// Requests that each of them has sent before it reads.
const PIPELINED: usize = 50;

/// Keeps the loop at `addr` busy until `is_over`. Panics if a location without the limit refuses a request.
fn flood(addr: SocketAddr, is_over: &AtomicBool) {
    let request = "GET /unlimited?digest=AAAAAAAAAAAAAAAAAAAAAA HTTP/1.1\r\nHost: x\r\n";
    let requests =
        format!("{}{request}Connection: close\r\n\r\n", format!("{request}\r\n").repeat(PIPELINED - 1));
    while !is_over.load(Relaxed) {
        let mut stream = TcpStream::connect(addr).unwrap();
        let mut responses = String::new();
        stream.write_all(requests.as_bytes()).unwrap();
        stream.read_to_string(&mut responses).unwrap();
        assert_eq!(responses.matches("HTTP/1.1 200 OK\r\n").count(), PIPELINED);
    }
}

#[test]
fn overloaded_loop_refuses_requests_until_the_load_is_over() {
    // A digest of 64 KiB for each request keeps the loop busy, however little of the processor the clients get.
    let text = "0123456789abcdef".repeat(64);
    let conf =
        "worker_processes 1; http { log_format status '$status $overload_status'; keepalive_requests 1000000;
             overload delay=5ms;
             server { listen 127.0.0.1:{port}; access_log logs/access.log status;
                 set $text TEXT; set $long $text$text$text$text$text$text$text$text;
                 location / { error_page 503 /busy; }
                 location /busy { internal; return 200 busy; }
                 location /teapot { overload delay=5ms status=429; }
                 location /unlimited { overload off; access_log off;
                     secure_link $arg_digest; secure_link_md5 $long$long$long$long$long$long$long$long;
                     return 200 \"unlimited$secure_link\"; }
                 location /metrics { overload off; access_log off; metrics; } } }";
    let server = server()
        .file("html/page", "served")
        .file("html/teapot", "served")
        .start(&conf.replace("TEXT", &text))
        .unwrap();
    assert_eq!(get(&server, "/page").text(), "served");
    let refused = || metric(&server, "overload_refused_total{delay=\"5\"}");
    assert_eq!(refused(), 0);
    let is_over = AtomicBool::new(false);
    let (plain, teapot) = thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| flood(server.addr(), &is_over));
        }
        let look = |target: &str, is_it: fn(u16, &str) -> bool| {
            wait::some(wait::TIMEOUT, || {
                let response = get(&server, target);
                is_it(response.status, &response.text()).then_some(response)
            })
        };
        // The page of the refusal is in a location with the limit, too, and is not refused once more.
        let plain = look("/page", |status, text| status == 503 && text == "busy");
        let teapot = look("/teapot", |status, _| status == 429);
        is_over.store(true, Relaxed);
        (plain, teapot)
    });
    let plain = plain.expect("no request was refused");
    assert_eq!(plain.field("Retry-After"), Some("1"));
    assert!(teapot.is_some(), "no request was refused with the status of its location");
    assert!(refused() >= 2);
    let is_logged = || server.access_log(3).unwrap().iter().any(|line| line == "503 REJECTED");
    assert!(wait::until(wait::TIMEOUT, is_logged));
    let percent = || metric(&server, "overload_refused_percent{delay=\"5\",worker=\"0\"}");
    assert!(
        wait::until(wait::TIMEOUT, || percent() == 0),
        "the load is over, and requests are refused still"
    );
    let before = refused();
    assert_eq!(get(&server, "/page").text(), "served");
    assert_eq!(refused(), before);
}

#[test]
fn invalid_parameters_are_refused() {
    for (parameters, message) in [
        ("on", "invalid parameter \"on\""),
        ("delay=1ms", "invalid parameter \"delay=1ms\""),
        ("delay=50ms status=200", "invalid parameter \"status=200\""),
        ("status=503", "must have \"delay\" parameter"),
        ("delay=50ms off", "invalid parameter \"off\""),
    ] {
        let text = refusal(&format!("overload {parameters};"));
        assert!(text.contains(message), "{parameters}: {text}");
    }
}
