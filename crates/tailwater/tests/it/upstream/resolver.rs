//! `resolver`: names of upstream servers.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tw_testkit::dns::DnsServer;
use tw_testkit::{Lacks, leave_out, wait};

use crate::support::metrics::try_metric;
use crate::support::{get, refusal_of, server, start};

/// A name server that knows one name, `app.test`, at 127.0.0.1 for a second, and does not answer for `silent.test`.
fn name_server() -> SocketAddr {
    name_server_while(Arc::new(AtomicBool::new(true)))
}

/// [`name_server`] that knows the name while `knows` is set.
fn name_server_while(knows: Arc<AtomicBool>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((size, from)) = socket.recv_from(&mut query) {
            let query = &query[..size];
            let name_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
            let question = &query[..name_end + 4];
            if question[12..].starts_with(b"\x06silent") {
                continue;
            }
            let is_it = question[12..name_end].eq_ignore_ascii_case(b"\x03app\x04test\x00");
            let is_known = is_it && knows.load(Relaxed);
            let is_a = question[name_end..] == [0, 1, 0, 1];
            let mut answer = question.to_vec();
            // An answer; the question comes back, and nothing besides.
            (answer[2], answer[3]) = (0x84, if is_known { 0 } else { 3 });
            answer[4..12].copy_from_slice(&[0, 1, 0, u8::from(is_known && is_a), 0, 0, 0, 0]);
            if is_known && is_a {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
            }
            socket.send_to(&answer, from).unwrap();
        }
    });
    addr
}

/// An origin that answers with its name.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            thread::spawn(move || {
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|size| size > 0) {
                    if line == "\r\n" {
                        reader
                            .get_mut()
                            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nme")
                            .unwrap();
                    }
                    line.clear();
                }
            });
        }
    });
    addr
}

#[test]
fn names_in_variables_are_resolved_on_request() {
    let dns = name_server();
    let port = origin().port();
    let server = start(
        // A worker process below a master has fewer rights than a single process.
        server().with_master(),
        &format!(
            "resolver {dns}; resolver_timeout 5s;
             log_format up '$upstream_addr $upstream_status $upstream_faults'; access_log logs/access.log up;
             upstream app {{ server app.test:{port} resolve; }} upstream half {{ server none.test resolve; server app.test:{port} resolve; }}
             server {{ listen 127.0.0.1:{{port}};
                 location ~ /(name) {{ set $to app.test:{port}; proxy_pass http://$to/$1; }}
                 location /group {{ proxy_pass http://app; }}
                 location /half {{ proxy_pass http://half; }}
                 location /variable {{ set $to app.test; proxy_pass http://$to:{port}; }}
                 location /none {{ set $to none.test; proxy_pass http://$to; }}
                 location /here {{ return 200 here; }} }}"
        ),
    );
    let address = format!("127.0.0.1:{port} 200 -");
    for (nth, target) in ["/name", "/group", "/half", "/variable", "/name"].into_iter().enumerate() {
        assert_eq!(get(&server, target).text(), "me", "{target}");
        assert_eq!(server.access_log(nth + 1).unwrap()[nth], address, "{target}");
    }
    // A name that does not exist fails only the requests that need it.
    assert_eq!(get(&server, "/none").status, 502);
    assert_eq!(get(&server, "/here").status, 200);
    // The attempt has the name in place of an address, and the reason.
    let reason = "none.test 502 none.test: none.test could not be resolved (3: Host not found)";
    assert_eq!(server.access_log(7).unwrap()[5], reason);
    server.wait_error_log("none.test could not be resolved (3: Host not found)").unwrap();
}

#[test]
fn names_of_groups_are_resolved_without_requests() {
    let knows = Arc::new(AtomicBool::new(true));
    let dns = name_server_while(knows.clone());
    let server = start(
        server().with_master(),
        &format!(
            "resolver {dns}; resolver_timeout 1s;
             upstream app {{ server app.test:8081 resolve; }}
             server {{ listen 127.0.0.1:{{port}}; location /api {{ api; }} }}"
        ),
    );
    let has_peer = || get(&server, "/api/http/upstreams/app").text().contains("127.0.0.1:8081");
    for is_known in [true, false, true] {
        knows.store(is_known, Relaxed);
        assert!(wait::until(wait::TIMEOUT, || has_peer() == is_known), "{is_known}");
    }
}

#[test]
fn resolver_timeout_ends_waiting_for_a_silent_name_server() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let dns = silent.local_addr().unwrap();
    let server = start(
        server(),
        &format!(
            "resolver {dns}; resolver_timeout 200ms;
             server {{ listen 127.0.0.1:{{port}}; location / {{ set $to app.test; proxy_pass http://$to; }} }}"
        ),
    );
    assert_eq!(get(&server, "/").status, 502);
    server.wait_error_log("app.test could not be resolved (110: Operation timed out)").unwrap();
    // Other clients are served meanwhile.
    assert!(wait::until(wait::TIMEOUT, || server.connect().is_ok()));
}

#[test]
fn name_added_by_the_api_is_resolved() {
    let dns = name_server();
    let port = origin().port();
    let server = start(
        server(),
        &format!(
            "resolver {dns}; resolver_timeout 5s; upstream app {{ server 127.0.0.1:1 down; }}
             server {{ listen 127.0.0.1:{{port}}; location /api/ {{ api write=on; }} location / {{ proxy_pass http://app; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    let body = format!("{{\"server\":\"app.test:{port}\"}}");
    let servers = "/api/http/upstreams/app/servers";
    let length = body.len();
    client
        .send(format!("POST {servers} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"))
        .unwrap();
    assert_eq!(client.read_response().unwrap().status, 201);
    // The first request finds a peer in the group, which is down. The name is resolved beside it.
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/").text() == "me"), "{}", server.error_log());
    let shown = get(&server, servers).text();
    let address = format!("\"server\":\"127.0.0.1:{port}\"");
    assert!(shown.contains(&address) && shown.contains("\"parent\":1,\"host\":\"app.test:"), "{shown}");
    // An address that DNS gave cannot be removed; the name can, and its addresses go with it.
    let mut delete = |id: u32| {
        client.send(format!("DELETE {servers}/{id} HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
        client.read_response().unwrap()
    };
    let id = shown.split(&address).next().unwrap().rsplit("\"id\":").next().unwrap();
    let refused = delete(id.trim_end_matches(',').parse().unwrap());
    assert!(
        refused.status == 400 && refused.text().contains("UpstreamServerImmutable"),
        "{}",
        refused.text()
    );
    assert!(!delete(1).text().contains("app.test"));
    assert_eq!(get(&server, "/").status, 502);
}

#[test]
fn unanswered_name_delays_no_other_name() {
    let dns = name_server();
    let port = origin().port();
    let server = start(
        server(),
        &format!(
            "resolver {dns}; resolver_timeout 1h;
             upstream app {{ server silent.test:{port} resolve; server app.test:{port} resolve; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://app; }} }}"
        ),
    );
    assert_eq!(get(&server, "/").text(), "me");
}

#[test]
fn consistent_hash_ring_is_built_in_a_pool() {
    let dns = name_server();
    let port = origin().port();
    for (method, has_ring) in
        [("", false), ("hash $uri consistent;", true), ("hash $uri consistent balance_factor=125;", true)]
    {
        let server = start(
            server(),
            &format!(
                "resolver {dns};
                 upstream group {{ {method} server app.test:{port} resolve; }}
                 server {{ listen 127.0.0.1:{{port}};
                     location / {{ proxy_pass http://group; }} location = /metrics {{ metrics; }} }}"
            ),
        );
        assert_eq!(get(&server, "/").text(), "me");
        let jobs =
            try_metric(&server, "disk_jobs_total{pool=\"default\",operation=\"run\"}").unwrap_or(0_u64);
        // The pool builds the ring, for a request or for the task that follows names; for both, if they need it at the
        // same time.
        assert_eq!(jobs > 0, has_ring, "{jobs}");
    }
}

#[test]
fn wrong_parameters_of_hash_are_refused() {
    for (parameters, wrong) in [
        ("ketama", "ketama"),
        ("balance_factor=125", "balance_factor=125"),
        ("consistent consistent", "consistent"),
        ("consistent balance_factor=100", "balance_factor=100"),
        ("consistent balance_factor=1.25", "balance_factor=1.25"),
        ("consistent balance_factor=", "balance_factor="),
        ("consistent balance_factor=10001", "balance_factor=10001"),
    ] {
        let upstream = format!("upstream u {{ hash $uri {parameters}; server 127.0.0.1:1; }}");
        let refused = refusal_of(&format!("http {{ {upstream} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(refused.contains(&format!("invalid parameter \"{wrong}\"")), "{parameters}: {refused}");
    }
}

/// Returns true if the system knows `localhost` at 127.0.0.1, as nearly every one does.
fn has_localhost() -> bool {
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let is_it = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        words.next() == Some("127.0.0.1") && words.any(|word| word == "localhost")
    };
    let is_known = hosts.lines().any(is_it);
    if !is_known {
        leave_out(Lacks::Machine, "/etc/hosts says nothing of localhost");
    }
    is_known
}

/// A server that accepts and never answers, until the end of the test.
fn silent_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    addr
}

#[test]
fn names_without_variables_are_resolved_by_the_system_for_every_gateway() {
    if !has_localhost() {
        return;
    }
    // The name server never answers.
    let dns = DnsServer::start(|_, _| {});
    let origin = origin().port();
    let deaf = silent_server().port();
    let server = start(
        server().with_master(),
        &format!(
            "resolver {}; resolver_timeout 1s;
             log_format up '$upstream_addr'; access_log logs/access.log up;
             upstream group {{ server localhost:{origin}; }}
             server {{ listen 127.0.0.1:{{port}};
                 location /proxy {{ proxy_pass http://localhost:{origin}; }}
                 location /group {{ proxy_pass http://group; }}
                 location /mirrored {{ mirror /mirror; empty_gif; }}
                 location /mirror {{ log_subrequest on; proxy_pass http://localhost:{origin}; }}
                 location /grpc {{ grpc_pass grpc://localhost:{deaf}; }}
                 location /fastcgi {{ fastcgi_pass localhost:{deaf}; }}
                 location /uwsgi {{ uwsgi_pass localhost:{deaf}; }}
                 location /scgi {{ scgi_pass localhost:{deaf}; }}
                 location /memcached {{ set $memcached_key k; memcached_pass localhost:{deaf}; }} }}
             server {{ listen 127.0.0.1:{{port}}; server_name tunnel; tunnel_pass localhost:{origin}; }}",
            dns.addr()
        ),
    );
    for target in ["/proxy", "/group"] {
        assert_eq!(get(&server, target).text(), "me", "{target}");
    }
    assert_eq!(get(&server, "/mirrored").status, 200);
    for target in ["/grpc", "/fastcgi", "/uwsgi", "/scgi", "/memcached"] {
        get(&server, target);
    }
    let tunnel = "CONNECT tunnel:80 HTTP/1.1\r\nHost: tunnel\r\n\r\n";
    let mut client = server.connect().unwrap();
    client.send(tunnel).unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    drop(client);
    // Either of the two addresses of localhost may be the first.
    let is_reached = |line: &String| line == "-" || line.contains("127.0.0.1:");
    let lines = server.access_log(10).unwrap();
    assert!(lines.iter().all(is_reached), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "-").count(), 1, "{lines:?}");
    let query: Vec<_> = dns.queries().into_iter().map(|query| query.name).collect();
    assert!(query.is_empty(), "{query:?}");
}

#[test]
fn variables_and_resolve_parameters_use_the_resolver() {
    let dns = DnsServer::start(|query, out| out.send(query.address(60, [127, 0, 0, 1])));
    let port = origin().port();
    let server = start(
        server(),
        &format!(
            "resolver {}; resolver_timeout 5s;
             upstream followed {{ server followed.test:{port} resolve; }}
             server {{ listen 127.0.0.1:{{port}};
                 location /followed {{ proxy_pass http://followed; }}
                 location /variable {{ proxy_pass http://$arg_host:{port}; }} }}",
            dns.addr()
        ),
    );
    for target in ["/followed", "/variable?host=localhost"] {
        assert_eq!(get(&server, target).text(), "me", "{target}");
    }
    for name in ["followed.test", "localhost"] {
        assert!(dns.queries().iter().any(|query| query.name == name), "{name}");
    }
}

#[test]
fn health_checks_resolve_names_by_the_system() {
    if !has_localhost() {
        return;
    }
    let dns = DnsServer::start(|_, _| {});
    let port = origin().port();
    let server = start(
        server(),
        &format!(
            "resolver {}; resolver_timeout 1s; error_log logs/error.log info;
             upstream app {{ server localhost:{port}; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://app; health_check interval=1s mandatory; }}
                 location /api {{ api; }} }}",
            dns.addr()
        ),
    );
    let passes = || get(&server, "/").text() == "me";
    assert!(wait::until(wait::TIMEOUT, passes), "{}", server.error_log());
    assert!(dns.queries().is_empty());
}

#[test]
fn unknown_name_in_a_variable_fails_within_resolver_timeout() {
    let server = start(
        server(),
        "resolver_timeout 300ms;
         server { listen 127.0.0.1:{port}; location / { proxy_pass http://$arg_to; } }",
    );
    // No such name exists (RFC 6761 section 6.4); a machine without a name server gets no answer at all.
    assert_eq!(get(&server, "/?to=nobody.invalid").status, 502);
    server.wait_error_log("nobody.invalid could not be resolved").unwrap();
}
