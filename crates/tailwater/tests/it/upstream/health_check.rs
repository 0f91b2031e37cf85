//! `health_check` and `match`: unhealthy servers get no requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tw_testkit::dns::DnsServer;
use tw_testkit::{Server, Signal, wait};

use crate::support::metrics::metric;
use crate::support::reload::reload;
use crate::support::{get, page, refusal, refusal_of, server, start};
use tw_testkit::origin::{Conn, origin};

/// An answer that passes.
const HEALTHY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// An answer that fails.
const UNHEALTHY: &str = "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n";

/// An origin that answers `/health` with what a test says, and everything else with its name.
#[derive(Clone)]
struct TestPeer {
    addr: SocketAddr,
    said: Arc<CheckState>,
}

struct CheckState {
    /// Response to checks; no response at all if that is empty.
    answer: Mutex<Vec<u8>>,
    /// Heads of the checks so far.
    checks: Mutex<Vec<String>>,
    /// Checks that are not answered yet, or whose connection is open.
    open: AtomicUsize,
    requests: AtomicUsize,
}

fn test_peer(name: &'static str, answer: &str) -> TestPeer {
    let said = Arc::new(CheckState {
        answer: Mutex::new(answer.into()),
        checks: Mutex::default(),
        open: AtomicUsize::new(0),
        requests: AtomicUsize::new(0),
    });
    let state = said.clone();
    let addr = origin(move |mut conn: Conn| {
        while let Some(head) = conn.head() {
            if !head.starts_with("GET /health") {
                state.requests.fetch_add(1, SeqCst);
                conn.answer("", name);
                continue;
            }
            state.open.fetch_add(1, SeqCst);
            state.checks.lock().unwrap().push(head);
            let answer = state.answer.lock().unwrap().clone();
            conn.send(answer);
            // A check sends one request on a connection, and then closes it.
            assert_eq!(conn.head(), None);
            state.open.fetch_sub(1, SeqCst);
        }
    });
    TestPeer { addr, said }
}

impl TestPeer {
    fn set_answer(&self, answer: impl AsRef<[u8]>) {
        *self.said.answer.lock().unwrap() = answer.as_ref().to_vec();
    }

    fn checks(&self) -> usize {
        self.said.checks.lock().unwrap().len()
    }

    /// Waits for so many more checks.
    fn wait_checks(&self, more: usize) {
        let before = self.checks();
        assert!(wait::until(wait::TIMEOUT, || self.checks() >= before + more));
    }
}

/// Configuration of a group of these servers; `CHECK` in `locations` becomes a frequent `health_check`.
fn start_checking(peers: &[&TestPeer], http: &str, locations: &str) -> Server {
    start(server(), &conf(peers, http, locations))
}

fn conf(peers: &[&TestPeer], http: &str, locations: &str) -> String {
    let servers: String = peers.iter().map(|peer| format!("server {};", peer.addr)).collect();
    let locations = locations.replace("CHECK", "health_check interval=20ms uri=/health");
    format!(
        "error_log logs/error.log info; {http} upstream u {{ {servers} }}
         server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }} {locations} }}"
    )
}

/// State of a peer in the metrics.
fn state(server: &Server, peer: &TestPeer) -> String {
    let text = get(server, "/metrics").text();
    let of_peer = format!("peer=\"{}\"", peer.addr);
    let is_its = |line: &&str| line.starts_with("tailwater_upstream_peer_info{") && line.contains(&of_peer);
    let line = text.lines().find(is_its).unwrap_or_else(|| panic!("no {of_peer} in {text}"));
    line.split("state=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

fn wait_state(server: &Server, peer: &TestPeer, expected: &str) {
    let is_so = || state(server, peer) == expected;
    assert!(wait::until(wait::TIMEOUT, is_so), "{expected}: {}", server.error_log());
}

/// Names of the servers that answer four requests.
fn answering_peers(server: &Server) -> String {
    (0..4).map(|_| get(server, "/").text()).collect()
}

#[test]
fn unhealthy_server_gets_no_requests_until_it_recovers() {
    let a = test_peer("a", HEALTHY);
    let b = test_peer("b", HEALTHY);
    let server = start_checking(&[&a, &b], "", "location / { proxy_pass http://u; CHECK; }");
    a.wait_checks(2);
    assert_eq!(answering_peers(&server), "abab");
    b.set_answer(UNHEALTHY);
    wait_state(&server, &b, "unhealthy");
    assert_eq!(answering_peers(&server), "aaaa");
    let line = server.wait_error_log("peer is unhealthy").unwrap();
    let expected = format!(
        "[error] {}: peer is unhealthy: status 500, health check \"\" of peer {} in upstream \"u\"",
        line.split(' ').nth(3).unwrap().trim_end_matches(':'),
        b.addr
    );
    assert!(line.ends_with(&expected), "{line}");
    b.set_answer(HEALTHY);
    wait_state(&server, &b, "up");
    assert!(answering_peers(&server).contains('b'));
    let line = server.wait_error_log("peer is healthy").unwrap();
    assert!(line.contains("[notice]"), "{line}");
    // One line is logged for each change, whatever checks come between.
    b.wait_checks(3);
    assert_eq!(server.error_log().matches("peer is").count(), 2, "{}", server.error_log());
    let metrics = get(&server, "/metrics").text();
    let of_b = |name: &str| {
        let labels = format!("upstream_peer_{name}{{protocol=\"http\",upstream=\"u\",peer=\"{}\"", b.addr);
        let line = metrics.lines().find(|line| line.contains(&labels)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!((of_b("unhealthy_total"), of_b("last_check_passed")), (1.0, 1.0));
    assert!(of_b("check_failures_total") >= 1.0 && of_b("checks_total") > of_b("check_failures_total"));
}

#[test]
fn fails_and_passes_count_consecutive_results() {
    let a = test_peer("a", HEALTHY);
    let server = start_checking(&[&a], "", "location / { proxy_pass http://u; CHECK fails=3 passes=2; }");
    a.set_answer(UNHEALTHY);
    server.wait_error_log("peer is unhealthy").unwrap();
    a.set_answer(HEALTHY);
    wait_state(&server, &a, "up");
    let log = server.error_log();
    let changed = "peer is unhealthy";
    let before = log.split(changed).next().unwrap();
    assert_eq!(before.matches("health check failed: status 500").count(), 2, "{log}");
}

#[test]
fn check_uses_the_settings_of_its_location() {
    let a = test_peer("a", HEALTHY);
    let server = start_checking(
        &[&a],
        "",
        "proxy_set_header X-Of $proxy_host; proxy_set_header X-Server $server_name; server_name here;
         location / { proxy_pass http://u; CHECK?deep=1; }
         location /own { proxy_pass http://u/path; proxy_http_version 1.0; proxy_set_header Host app.example;
             proxy_set_header X-Uri $uri; proxy_set_header Empty $http_none; proxy_set_header Connection keep-alive;
             set $never 1; proxy_set_header X-Never $never; proxy_bind $remote_addr; CHECK/own; }",
    );
    let of = |begin: &str| {
        let find = || a.said.checks.lock().unwrap().iter().find(|head| head.starts_with(begin)).cloned();
        wait::some(wait::TIMEOUT, find).unwrap()
    };
    assert_eq!(
        of("GET /health?"),
        "GET /health?deep=1 HTTP/1.1\r\nHost: u\r\nX-Of: u\r\nX-Server: here\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(
        of("GET /health/own"),
        "GET /health/own HTTP/1.0\r\nHost: app.example\r\nX-Uri: /health/own\r\nConnection: keep-alive\r\n\r\n"
    );
    // Variables of a client are empty in checks, which is not worth a warning.
    server.wait_error_log("using uninitialized \"never\" variable").unwrap();
    let log = server.error_log();
    let said = |line: &&str| line.contains("variable") || line.contains("local address");
    assert!(log.lines().filter(said).all(|line| line.contains("[info]")), "{log}");
    // The server is well only if both checks say so.
    a.set_answer(UNHEALTHY);
    wait_state(&server, &a, "unhealthy");
}

#[test]
fn match_block_decides() {
    let html = |body: &str, fields: &str| {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{fields}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let chunked = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nWelco\r\n5\r\nme to\r\n0\r\n\r\n";
    let long = html(&format!("{}Welcome to", "x".repeat(300 << 10)), "");
    for (answer, fault) in [
        (html("Welcome to us", ""), None),
        (chunked.to_owned(), None),
        (format!("HTTP/1.1 100 Continue\r\n\r\n{}", html("Welcome to", "")), None),
        (html("Welcome", ""), Some("body does not match \"Welcome to\"")),
        (long, Some("body does not match \"Welcome to\"")),
        (html("Welcome to", "Refresh: 1\r\n"), Some("header \"Refresh: 1\"")),
        (
            html("Welcome to", "").replace("text/html", "text/plain"),
            Some("header \"Content-Type: text/plain\""),
        ),
        (html("Welcome to", "").replace("200 OK", "203 OK"), Some("status 203")),
        (html("Welcome to", "X-Off: 1\r\n"), Some("$on is empty or 0")),
    ] {
        let a = test_peer("a", &answer);
        let server = start_checking(
            &[&a],
            "map $upstream_http_x_off $on { 1 0; default $upstream_status; }
             match welcome { status 200-202 204; header Content-Type = text/html; header ! Refresh; body ~ \"Welcome to\";
                 require $on $upstream_addr; }",
            "location / { proxy_pass http://u; CHECK match=welcome mandatory; }",
        );
        let (level, said) = match fault {
            None => ("[notice]", "peer is healthy".to_owned()),
            Some(fault) => ("[error]", format!("peer is unhealthy: {fault}")),
        };
        let of = format!("{said}, health check \"welcome\" of peer {} in upstream \"u\"", a.addr);
        let line = server.wait_error_log("peer is").unwrap();
        assert!(line.contains(level) && line.ends_with(&of), "{of}: {line}");
    }
}

#[test]
fn check_detects_faults() {
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(100_000));
    let interim = format!("{}{HEALTHY}", "HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n".repeat(200));
    for (answer, fault) in [
        ("", "upstream timed out (110: Connection timed out) while reading response header from upstream"),
        (
            "garbage\r\n\r\n",
            "upstream sent no valid HTTP/1.0 header while reading response header from upstream",
        ),
        (&*endless, "upstream sent too big header while reading response header from upstream"),
        (&*interim, "while reading response header from upstream"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
            "upstream timed out (110: Connection timed out) while reading upstream",
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnone\r\n", "while reading upstream"),
    ] {
        let a = test_peer("a", answer);
        let server = start_checking(
            &[&a],
            "match any { body !~ never; }",
            "location / { proxy_pass http://u; proxy_read_timeout 100ms; CHECK match=any; }",
        );
        // Every check logs the fault; on a busy machine, the first one may time out.
        server.wait_error_log(fault).unwrap();
        wait_state(&server, &a, "unhealthy");
        assert_eq!(page(&server, "/").0, 502);
        a.set_answer(HEALTHY);
        wait_state(&server, &a, "up");
        // The connection of a check is closed, whatever its outcome.
        assert!(wait::until(wait::TIMEOUT, || a.said.open.load(SeqCst) <= 1));
    }
    let nobody = TestPeer { addr: "127.0.0.1:1".parse().unwrap(), ..test_peer("", "") };
    let refused =
        "peer is unhealthy: connect() failed (111: Connection refused) while connecting to upstream";
    for check in ["CHECK", "health_check type=tcp"] {
        let server =
            start_checking(&[&nobody], "", &format!("location / {{ proxy_pass http://u; {check}; }}"));
        server.wait_error_log(refused).unwrap();
    }
}

#[test]
fn slow_check_is_not_repeated_concurrently() {
    let a = test_peer("a", "");
    let server =
        start_checking(&[&a], "", "location / { proxy_pass http://u; proxy_read_timeout 300ms; CHECK; }");
    a.wait_checks(3);
    // One connection is open, and another one may be closed but not yet noticed.
    assert!(wait::until(wait::TIMEOUT, || a.said.open.load(SeqCst) <= 2));
    let have_come = || server.error_log().matches("health check failed").count() <= a.checks();
    assert!(wait::until(wait::TIMEOUT, have_come));
}

#[test]
fn mandatory_check_precedes_requests() {
    let a = test_peer("a", "");
    let server = start_checking(&[&a], "", "location / { proxy_pass http://u; CHECK mandatory; }");
    assert_eq!(state(&server, &a), "checking");
    assert_eq!(page(&server, "/").0, 502);
    server.wait_error_log("no live upstreams while connecting to upstream").unwrap();
    assert_eq!(a.said.requests.load(SeqCst), 0);
    drop(server);
    let server = start_checking(
        &[&test_peer("b", HEALTHY)],
        "",
        "location / { proxy_pass http://u; CHECK mandatory; }",
    );
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/") == (200, "b".to_owned())));
}

#[test]
fn reload_keeps_or_forgets_the_state() {
    let a = test_peer("a", HEALTHY);
    let b = test_peer("b", UNHEALTHY);
    let with = |check: &str| conf(&[&a, &b], "", &format!("location / {{ proxy_pass http://u; {check} }}"));
    let mut server = start(server(), &with("CHECK;"));
    wait_state(&server, &b, "unhealthy");
    // The origins do not answer checks any more: known states stay, and peers that must be checked anew get none.
    a.set_answer("");
    b.set_answer("");
    let generation =
        |server: &Server, id: u64| wait::until(wait::TIMEOUT, || metric(server, "generation") == id);
    reload(&mut server, &format!("http {{ {} }}", with("CHECK mandatory persistent;")));
    assert!(generation(&server, 2));
    wait_state(&server, &b, "checking");
    assert_eq!((state(&server, &a), answering_peers(&server)), ("up".to_owned(), "aaaa".to_owned()));
    reload(&mut server, &format!("http {{ {} }}", with("CHECK fails=9;")));
    assert!(generation(&server, 3));
    wait_state(&server, &b, "up");
    b.set_answer(UNHEALTHY);
    reload(&mut server, &format!("http {{ {} }}", with("CHECK mandatory;")));
    assert!(generation(&server, 4));
    wait_state(&server, &a, "checking");
    wait_state(&server, &b, "unhealthy");
    // Without checks all peers are up, also if a check was in progress.
    reload(&mut server, &format!("http {{ {} }}", with("")));
    assert!(generation(&server, 5));
    for peer in [&a, &b] {
        wait_state(&server, peer, "up");
        assert!(wait::until(wait::TIMEOUT, || peer.said.open.load(SeqCst) == 0), "it is given up");
    }
    assert!(answering_peers(&server).contains('b'));
    // A check whose connection was made may still be counted.
    let is_quiet = || {
        let before = [&a, &b].map(TestPeer::checks);
        wait::pause(Duration::from_millis(100));
        [&a, &b].map(TestPeer::checks) == before
    };
    assert!(wait::until(wait::TIMEOUT, is_quiet));
}

#[test]
fn graceful_shutdown_ends_checks() {
    let a = test_peer("a", HEALTHY);
    let (finish, may) = channel::<()>();
    let may = Arc::new(Mutex::new(may));
    let slow = origin(move |mut conn| {
        conn.head();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
        let _ = may.lock().unwrap().recv();
        conn.send("k");
    });
    let mut server = start_checking(
        &[&a],
        "",
        &format!(
            "location / {{ proxy_pass http://u; CHECK; }} location /slow {{ proxy_buffering off; proxy_pass http://{slow}; }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    client.read_head().unwrap();
    a.wait_checks(2);
    a.set_answer("");
    assert!(wait::until(wait::TIMEOUT, || a.said.open.load(SeqCst) == 1));
    server.signal(Signal::QUIT).unwrap();
    // A check may have begun before the signal arrived, or may still be in progress; a further one would stay open.
    let is_quiet = || {
        let before = a.checks();
        wait::pause(Duration::from_millis(100));
        (a.checks(), a.said.open.load(SeqCst)) == (before, 0)
    };
    assert!(wait::until(wait::TIMEOUT, is_quiet), "the one under way is given up");
    finish.send(()).unwrap();
    server.wait_exit(wait::TIMEOUT).unwrap();
}

#[test]
fn checks_are_made_by_one_loop() {
    let peers = [test_peer("a", HEALTHY), test_peer("b", HEALTHY), test_peer("c", HEALTHY)];
    let [a, b, c] = [0, 1, 2].map(|at: usize| peers[at].addr);
    let server = server()
        .start(&format!(
            "worker_processes 4; http {{ upstream u {{ server {a}; }} upstream v {{ server {b}; server {c}; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://u; health_check interval=100s uri=/health; }}
                 location /v {{ proxy_pass http://v; health_check interval=100s uri=/health; }} }} }}"
        ))
        .unwrap();
    for peer in &peers {
        assert!(wait::until(wait::TIMEOUT, || peer.checks() > 0));
    }
    for _ in 0..20 {
        assert_eq!(get(&server, "/").status, 200);
    }
    wait::pause(Duration::from_millis(100));
    assert_eq!(peers.each_ref().map(TestPeer::checks), [1, 1, 1]);
}

#[test]
fn port_parameter_redirects_checks() {
    // The peer that serves requests has another port than the checks.
    let serves = test_peer("a", UNHEALTHY);
    let tells = test_peer("", HEALTHY);
    let port = tells.addr.port();
    let server =
        start_checking(&[&serves], "", &format!("location / {{ proxy_pass http://u; CHECK port={port}; }}"));
    tells.wait_checks(2);
    assert_eq!((serves.checks(), get(&server, "/").text()), (0, "a".to_owned()));
    tells.set_answer(UNHEALTHY);
    wait_state(&server, &serves, "unhealthy");
    let connects = start_checking(
        &[&serves],
        "",
        "location / { proxy_pass http://u; health_check interval=20ms type=tcp mandatory; }",
    );
    wait_state(&connects, &serves, "up");
    assert_eq!(serves.checks(), 0);
}

#[test]
fn resolved_servers_are_checked() {
    let a = test_peer("a", UNHEALTHY);
    let dns = DnsServer::start(|query, out| out.send(query.address(60, [127, 0, 0, 1])));
    let http = format!(
        "resolver {}; error_log logs/error.log info; upstream u {{ server app.test:{} resolve; }}
         server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }}
             location / {{ proxy_pass http://u; health_check interval=20ms uri=/health mandatory; }} }}",
        dns.addr(),
        a.addr.port()
    );
    let server = start(server(), &http);
    // The check runs without any request.
    server.wait_error_log("peer is unhealthy: status 500").unwrap();
    assert_eq!(page(&server, "/").0, 502);
    a.set_answer(HEALTHY);
    wait_state(&server, &a, "up");
    assert_eq!(get(&server, "/").text(), "a");
}

#[test]
fn replaced_worker_goes_on_checking() {
    let a = test_peer("a", HEALTHY);
    let server = server()
        .with_master()
        .start(&format!(
            "http {{ {} }}",
            conf(&[&a], "", "location / { proxy_pass http://u; CHECK mandatory; }")
        ))
        .unwrap();
    wait_state(&server, &a, "up");
    let pid = server.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let worker = children.split_ascii_whitespace().next().unwrap().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(worker).unwrap(), Signal::KILL).unwrap();
    assert!(wait::until(wait::TIMEOUT, || crate::support::try_request(&server, "GET /", &[])
        .is_ok_and(|r| r.status == 200)));
    a.wait_checks(3);
}

#[test]
fn malformed_directives_are_refused() {
    for (said, expected) in [
        (
            "location / { health_check; }",
            "there is no server to check: this location has no \"proxy_pass\" or similar directive",
        ),
        ("location / { proxy_pass http://$host; health_check; }", "needs an address without variables"),
        ("location / { proxy_pass http://127.0.0.1:1; health_check; }", "\"127.0.0.1:1\" is no \"upstream\""),
        ("health_check;", "\"health_check\" directive is not allowed here"),
    ] {
        let refusal = refusal(said);
        assert!(refusal.contains(expected), "{said}: {refusal}");
    }
    for (words, expected) in [
        ("match=none", "unknown match \"none\""),
        ("match=", "invalid parameter \"match=\""),
        ("interval=0", "invalid parameter \"interval=0\""),
        ("interval=x", "invalid parameter \"interval=x\""),
        ("fails=0", "invalid parameter \"fails=0\""),
        ("passes=-1", "invalid parameter \"passes=-1\""),
        ("uri=health", "invalid parameter \"uri=health\""),
        ("port=65536", "invalid parameter \"port=65536\""),
        ("port=0", "invalid parameter \"port=0\""),
        ("persistent", "\"persistent\" of \"health_check\" needs \"mandatory\""),
        ("type=grpc", "\"type=grpc\" of \"health_check\" needs \"grpc_pass\" in its location"),
        ("type=grpc uri=/", "\"type=grpc\" of \"health_check\" has neither \"uri\" nor \"match\""),
        ("grpc_service=a", "\"grpc_service\" and \"grpc_status\" of \"health_check\" need \"type=grpc\""),
        ("type=grpc grpc_status=17", "invalid parameter \"grpc_status=17\""),
        ("type=udp", "invalid parameter \"type=udp\""),
        ("type=tcp uri=/", "\"type=tcp\" of \"health_check\" has neither \"uri\" nor \"match\""),
        ("keepalive_time=60s", "\"keepalive_time\" of \"health_check\" is not supported"),
        ("often", "invalid parameter \"often\""),
    ] {
        let refusal = refusal_of(&format!(
            "http {{ upstream u {{ server 127.0.0.1:1; }} server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://u; health_check {words}; }} }} }}"
        ));
        assert!(refusal.contains(expected), "{words}: {refusal}");
    }
    let twice =
        "http { match a { status 200; } match a { status 200; } server { listen 127.0.0.1:{port}; } }";
    assert!(refusal_of(twice).contains("duplicate match \"a\""));
}

/// One check of a server that responds with a file, the message, and these fields.
#[test]
fn grpc_services_are_asked_for_their_status() {
    let serving = "\0\0\0\0\u{2}\u{8}\u{1}";
    let not_serving = "\0\0\0\0\u{2}\u{8}\u{2}";
    for (message, status, parameters, failure) in [
        (serving, "0", "", None),
        (serving, "0", "grpc_service=a.B", None),
        (serving, "0", "grpc_service=other", Some("status 404")),
        (not_serving, "0", "", Some("serving status 2")),
        ("\0\0\0\0\0", "0", "", Some("serving status 0")),
        ("x", "0", "", Some("invalid message")),
        (serving, "13", "", Some("grpc-status \"13\"")),
        (serving, "''", "", Some("no \"grpc-status\"")),
        ("", "12", "", Some("grpc-status \"12\"")),
        ("", "12", "grpc_status=12", None),
        (serving, "0", "grpc_status=12", Some("grpc-status \"0\"")),
    ] {
        let server = start(
            server().file("html/grpc.health.v1.Health/Check", message),
            &format!(
                "upstream u {{ server 127.0.0.1:{{port1}}; }}
                 server {{ listen 127.0.0.1:{{port}};
                     location / {{ grpc_pass u; grpc_set_header X-From check;
                         health_check mandatory interval=20ms type=grpc {parameters}; }} }}
                 server {{ listen 127.0.0.1:{{port1}}; http2 on; root html; location / {{ return 200 called; }}
                     location = /grpc.health.v1.Health/Check {{
                         if ($http_x_from != check) {{ return 400; }}
                         if ($content_type != application/grpc) {{ return 400; }}
                         if ($http_te != trailers) {{ return 400; }}
                         if ($content_length !~ ^(5|10)$) {{ return 404; }}
                         error_page 405 =200 $uri; add_trailer grpc-status {status}; }} }}"
            ),
        );
        match failure {
            None => assert!(wait::until(wait::TIMEOUT, || page(&server, "/").0 == 200), "{parameters}"),
            Some(failure) => {
                server.wait_error_log(failure).unwrap();
                assert_eq!(page(&server, "/").0, 502, "{parameters}");
            }
        }
    }
}
