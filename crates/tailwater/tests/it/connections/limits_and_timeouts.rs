//! Limits and timeouts of connections.

use std::io::{self, Read, Write as _};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tw_testkit::origin::origin;
use tw_testkit::{Client, Server, wait};

use crate::support::metrics::metric;
use crate::support::{connect_slowly, get, raw, refusal, server, start, start_server};

const REQUEST: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";

fn connection(client: &mut Client) -> Option<String> {
    client.send(REQUEST).unwrap();
    client.read_response().unwrap().field("Connection").map(str::to_owned)
}

#[test]
fn keepalive_requests_closes_the_connection() {
    let server = start_server(server().file("html/a", "x"), "keepalive_requests 3;");
    let mut client = server.connect().unwrap();
    let said: Vec<_> = (0..3).map(|_| connection(&mut client).unwrap()).collect();
    assert_eq!(said, ["keep-alive", "keep-alive", "close"]);
    assert_eq!(client.read_until_close().unwrap(), b"");
    // Pipelined requests are counted in the same way.
    let text = raw(&server, REQUEST.repeat(10));
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "{text}");
    assert_eq!(text.matches("Connection: close").count(), 1, "{text}");
}

#[test]
fn keepalive_timeout_closes_the_connection() {
    let server = start_server(
        server().file("html/a", "x"),
        "keepalive_timeout 1s 7s; location /off { keepalive_timeout 0; return 200; }",
    );
    let mut client = server.connect().unwrap();
    client.send(REQUEST).unwrap();
    let response = client.read_response().unwrap();
    assert_eq!(response.field("Keep-Alive"), Some("timeout=7"));
    assert_eq!(client.read_until_close().unwrap(), b"");

    let text = raw(&server, "GET /off HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(text.contains("Connection: close\r\n") && !text.contains("Keep-Alive"), "{text}");
}

#[test]
fn keepalive_depends_on_version_and_fields() {
    let server =
        start_server(server().file("html/a", "x"), "location /none { keepalive_disable none; return 200; }");
    for (request, keeps) in [
        ("GET /a HTTP/1.1\r\nHost: a\r\n\r\n", true),
        ("GET /a HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", true),
        ("GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", false),
        ("GET /a HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n", false),
        ("GET /a HTTP/1.0\r\n\r\n", false),
        ("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true),
        ("GET /missing HTTP/1.1\r\nHost: a\r\n\r\n", true),
        (
            "POST /a HTTP/1.1\r\nHost: a\r\nUser-Agent: Mozilla/4.0 (compatible; MSIE 6.0)\r\nContent-Length: 0\r\n\r\n",
            false,
        ),
        ("GET /a HTTP/1.1\r\nHost: a\r\nUser-Agent: Mozilla/4.0 (compatible; MSIE 6.0)\r\n\r\n", true),
        (
            "POST /none HTTP/1.1\r\nHost: a\r\nUser-Agent: Mozilla/4.0 (compatible; MSIE 6.0)\r\nContent-Length: 0\r\n\r\n",
            true,
        ),
        ("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", false),
    ] {
        let mut client = server.connect().unwrap();
        client.send(request).unwrap();
        let response = client.read_response().unwrap();
        assert_eq!(
            response.field("Connection"),
            Some(if keeps { "keep-alive" } else { "close" }),
            "{request}"
        );
        if keeps {
            assert_eq!(connection(&mut client).as_deref(), Some("keep-alive"), "{request}");
        } else {
            assert_eq!(client.read_until_close().unwrap(), b"", "{request}");
        }
    }
}

#[test]
fn idle_connections_are_closed_at_worker_connections() {
    let conf = "worker_processes 1; events { worker_connections 16; } \
        http { server { listen 127.0.0.1:{port}; root html; keepalive_timeout 1h; } }";
    let server = server().file("html/a", "x").start(conf).unwrap();
    // Idle connections are closed to make room for new ones, so no client is refused.
    let mut kept = Vec::new();
    for number in 0..40 {
        let mut client = server.connect().unwrap();
        assert_eq!(connection(&mut client).as_deref(), Some("keep-alive"), "{number}");
        kept.push(client);
    }
    let silent = |client: &mut Client| client.silent_for(Duration::from_millis(1)).unwrap_or(false);
    let open = kept.iter_mut().map(silent).filter(|silent| *silent).count();
    assert!((1..=16).contains(&open), "{open}");
}

#[test]
fn busy_connections_are_not_closed_for_new_ones() {
    let conf = "worker_processes 1; events { worker_connections 16; } \
        http { server { listen 127.0.0.1:{port}; root html; client_body_early_read 1; \
        location /echo { return 200 $request_body; } } }";
    let server = server().file("html/a", "x").start(conf).unwrap();
    let begin = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel";
    let mut busy = Vec::new();
    // nginx counts its listening socket and its own channels among them.
    for _ in 0..12 {
        let mut client = server.connect().unwrap();
        client.send(begin).unwrap();
        busy.push(client);
    }
    // The rest are refused without a word, or wait.
    let more: Vec<_> = (0..20)
        .map(|_| {
            let mut client = server.connect().unwrap();
            let _ = client.send(begin);
            client
        })
        .collect();
    server.wait_error_log("16 worker_connections are not enough").unwrap();
    for client in &mut busy {
        client.send("lo").unwrap();
        assert_eq!(client.read_response().unwrap().text(), "hello");
    }
    drop(more);
    drop(busy);
    assert!(wait::until(wait::TIMEOUT, || Client::get(server.addr(), "/a").is_ok_and(|r| r.status == 200)));
}

/// A server with a file that no socket buffer can hold.
fn with_big_file(directives: &str) -> Server {
    start_server(server().file("html/big", vec![b'x'; 64 << 20]).file("html/a", "x"), directives)
}

#[test]
fn send_timeout_ends_a_stalled_client() {
    for reset in ["on", "off"] {
        let server = with_big_file(&format!("send_timeout 1s; reset_timedout_connection {reset};"));
        let mut client = server.connect().unwrap();
        client.send("GET /big HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let line = server.wait_error_log("client timed out (110: Connection timed out)").unwrap();
        assert!(line.contains("[info]") && line.contains("while sending response to client"), "{line}");
        let logged = server.access_log(1).unwrap();
        assert!(logged[0].contains("\"GET /big HTTP/1.1\" 200 "), "{logged:?}");
        match client.read_until_close() {
            // Bytes in the buffers of the sockets still arrive.
            Ok(got) => assert!(reset == "off" && got.len() < 64 << 20),
            Err(error) => {
                assert!(reset == "on" && error.kind() == io::ErrorKind::ConnectionReset, "{reset}: {error}");
            }
        }
        assert_eq!(get(&server, "/a").status, 200);
    }
}

#[test]
fn connection_without_an_answer_is_reset_if_asked_for() {
    for reset in ["on", "off"] {
        let server = start_server(server(), &format!("reset_timedout_connection {reset}; return 444;"));
        let mut client = server.connect().unwrap();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let end = client.read_until_close().map_err(|error| error.kind());
        let expected = if reset == "on" { Err(io::ErrorKind::ConnectionReset) } else { Ok(Vec::new()) };
        assert_eq!(end, expected, "{reset}");
        assert!(server.access_log(1).unwrap()[0].contains("\"GET / HTTP/1.1\" 444 "));
    }
}

#[test]
fn slow_client_gets_everything() {
    let server = with_big_file("send_timeout 5s;");
    let mut client = server.connect().unwrap();
    client.send("GET /big HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let head = client.read_head().unwrap();
    assert_eq!(head.field("Content-Length"), Some("67108864"));
    let mut remaining: usize = 64 << 20;
    while remaining > 0 {
        let part = remaining.min(3 << 20);
        assert!(client.read_bytes(part).unwrap().iter().all(|byte| *byte == b'x'));
        remaining -= part;
    }
    assert_eq!(client.read_until_close().unwrap(), b"");
}

#[test]
fn limit_rate_delays_the_response() {
    let server = start_server(
        server().file("html/f", vec![b'x'; 30_000]),
        "location /slow/ { alias html/; limit_rate 20k; } location /after/ { alias html/; limit_rate 1k; limit_rate_after 30k; }
         location /var/ { alias html/; limit_rate $arg_rate; } location /ret { limit_rate 20k; return 200 short; }",
    );
    // The bytes of the first second are sent at once. The rest follows at the rate, so this takes a little under half a
    // second.
    let mut client = server.connect().unwrap();
    client.send("GET /slow/f HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.read_head().unwrap();
    let first = client.read_bytes(10_000).unwrap();
    assert_eq!(first.len(), 10_000);
    assert_eq!(client.read_bytes(20_000).unwrap().len(), 20_000);
    for target in ["/after/f", "/var/f?rate=1m", "/var/f?rate=0", "/var/f", "/var/f?rate=nonsense"] {
        assert_eq!(get(&server, target).body.len(), 30_000, "{target}");
    }
    assert_eq!(get(&server, "/ret").text(), "short");
    // A slow client does not delay the others.
    let mut slow = server.connect().unwrap();
    slow.send("GET /var/f?rate=1k HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    slow.read_head().unwrap();
    assert_eq!(get(&server, "/ret").text(), "short");
}

#[test]
fn lingering_close_reads_the_rest_of_the_request() {
    let conf = "lingering_timeout 1h; lingering_time 1h; location /off { lingering_close off; return 200 off; }
        location /on { lingering_close on; return 200 on; } location /always { lingering_close always; return 200 always; }";
    let server = start_server(server(), conf);
    let body = "x".repeat(200_000);
    // A client that still sends its body is read from until it has read the response.
    for target in ["/on", "/always"] {
        let mut client = server.connect().unwrap();
        client
            .send(format!(
                "POST {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            ))
            .unwrap();
        let response = client.read_response().unwrap();
        assert_eq!((response.status, response.field("Connection")), (200, Some("close")), "{target}");
        client.send(&body).unwrap();
        assert_eq!(client.read_until_close().unwrap(), b"", "{target}");
    }
    // The connection of a request without a body is closed at once, except with `always`.
    let text = raw(&server, "GET /off HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(text.ends_with("off"), "{text}");
    let text = raw(&server, "GET /on HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(text.ends_with("on"), "{text}");
}

#[test]
fn response_to_a_too_large_body_is_not_lost() {
    let server = start_server(server(), "client_max_body_size 1k;");
    // The whole body is sent before anything is read: without a lingering close it would reset the connection.
    for size in [100_000, 3_000_000] {
        let mut client = server.connect().unwrap();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n")).unwrap();
        client.send("x".repeat(size)).unwrap();
        assert_eq!(client.read_response().unwrap().status, 413, "{size}");
    }
}

#[test]
fn many_connections_are_served_at_once() {
    let conf = "worker_processes 2; events { worker_connections 1000; } \
        http { server { listen 127.0.0.1:{port}; root html; } }";
    let server = server().file("html/a", "x".repeat(5000)).start(conf).unwrap();
    let mut clients: Vec<_> = (0..200).map(|_| server.connect().unwrap()).collect();
    for _ in 0..3 {
        for client in &mut clients {
            client.send(REQUEST).unwrap();
        }
        for client in &mut clients {
            assert_eq!(client.read_response().unwrap().body.len(), 5000);
        }
    }
}

#[test]
fn descriptors_do_not_leak() {
    let server = start(
        server().file("html/a", "x"),
        "keepalive_timeout 0; server { listen 127.0.0.1:{port}; root html; }",
    );
    let open = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    for _ in 0..5 {
        get(&server, "/a");
    }
    let before = open();
    for _ in 0..100 {
        get(&server, "/a");
        get(&server, "/missing");
        drop(server.connect().unwrap());
        raw(&server, "nonsense\r\n\r\n");
    }
    // A connection that was closed just now may still be open on the other side.
    assert!(wait::until(wait::TIMEOUT, || open() <= before + 2), "{before} became {}", open());
}

#[test]
fn rates_of_any_size_are_kept() {
    let text = "x".repeat(100_000);
    let server =
        start_server(server().file("html/a", &text), "limit_rate $arg_rate; limit_rate_after $arg_after;");
    for (rate, after) in
        [("9223372036854775807", "9223372036854775807"), ("1", "9223372036854775807"), ("8388607t", "1")]
    {
        let response = get(&server, &format!("/a?rate={rate}&after={after}"));
        assert_eq!((response.status, response.text().len()), (200, text.len()), "{rate} {after}");
    }
}

#[test]
fn client_body_min_rate_ends_a_slow_body() {
    let server = start_server(
        server(),
        "location /metrics { metrics; } client_body_min_rate 1m grace=300ms; client_body_early_read 1;
         location / { return 200 \"$request_body\"; }
         location /off { client_body_min_rate off; return 200; }",
    );
    let mut client = server.connect().unwrap();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nso far").unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"");
    assert!(server.access_log(1).unwrap()[0].contains(" 408 "));
    let line = server.wait_error_log("client is slower than \"client_body_min_rate\"").unwrap();
    assert!(line.contains("[info]") && line.contains("while reading client request body"), "{line}");
    assert_eq!(metric(&server, "slow_clients_total{direction=\"body\"}"), 1);
    // A fast client is not bothered, however often it is asked.
    let mut client = server.connect().unwrap();
    for _ in 0..20 {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello").unwrap();
        assert_eq!(client.read_response().unwrap().text(), "hello");
    }
}

#[test]
fn body_that_waits_for_a_slow_upstream_server_is_not_slow() {
    // The upstream server reads the body late. Meanwhile the client's body timeout does not run.
    let (sender, go_on) = channel::<()>();
    let go_on = Arc::new(Mutex::new(go_on));
    let origin = origin(move |mut conn| {
        conn.head().unwrap();
        go_on.lock().unwrap().recv().unwrap();
        let mut body = vec![0; 8 << 20];
        conn.reader.read_exact(&mut body).unwrap();
        conn.answer("", body.len().to_string());
    });
    let server = start_server(
        server(),
        &format!(
            "client_max_body_size 0; client_body_min_rate 1m grace=200ms;
             location / {{ proxy_request_buffering off; proxy_http_version 1.1; proxy_pass http://{origin}; }}"
        ),
    );
    let mut client = server.connect().unwrap();
    let sending = thread::spawn(move || {
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 8 << 20)).unwrap();
        client.send(vec![b'x'; 8 << 20]).unwrap();
        client.read_response().unwrap().text()
    });
    wait::pause(Duration::from_millis(600));
    sender.send(()).unwrap();
    assert_eq!(sending.join().unwrap(), (8 << 20).to_string());
}

#[test]
fn send_min_rate_ends_a_client_that_takes_too_little() {
    let server = with_big_file("send_min_rate 100m grace=300ms; location /metrics { metrics; }");
    let mut client = server.connect().unwrap();
    client.send("GET /big HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let line = server.wait_error_log("client is slower than \"send_min_rate\"").unwrap();
    assert!(line.contains("[info]") && line.contains("while sending response to client"), "{line}");
    assert!(client.read_until_close().unwrap().len() < 64 << 20);
    assert_eq!(metric(&server, "slow_clients_total{direction=\"response\"}"), 1);
    assert_eq!(get(&server, "/a").status, 200);
}

#[test]
fn send_min_rate_counts_what_the_client_has_acknowledged() {
    // The kernel takes minutes' worth of the response at this rate.
    let server = with_big_file("send_min_rate 10k grace=300ms;");
    let mut client = connect_slowly(&server, [127, 0, 0, 1]);
    client.write_all(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    server.wait_error_log("client is slower than \"send_min_rate\"").unwrap();
}

#[test]
fn response_of_a_slow_upstream_server_is_not_slow() {
    let origin = origin(|mut conn| {
        conn.head().unwrap();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n");
        for part in ["a", "b", "c", "d", "e", "f"] {
            wait::pause(Duration::from_millis(100));
            conn.send(part);
        }
    });
    let server = start_server(
        server(),
        &format!(
            "send_min_rate 1m grace=100ms; location / {{ proxy_buffering off; proxy_pass http://{origin}; }}"
        ),
    );
    assert_eq!(get(&server, "/").text(), "abcdef");
}

#[test]
fn wrong_rates_are_refused() {
    for (wrong, message) in [
        ("client_body_min_rate;", "invalid number of arguments in \"client_body_min_rate\" directive"),
        ("client_body_min_rate x;", "invalid value \"x\""),
        ("send_min_rate 1k grace=x;", "invalid parameter \"grace=x\""),
        ("send_min_rate 1k 2k;", "invalid parameter \"2k\""),
        ("send_min_rate 1k; send_min_rate off;", "\"send_min_rate\" directive is duplicate"),
        ("if ($arg_a) { send_min_rate 1k; }", "\"send_min_rate\" directive is not allowed here"),
    ] {
        assert!(refusal(wrong).contains(message), "{wrong}: {}", refusal(wrong));
    }
}
