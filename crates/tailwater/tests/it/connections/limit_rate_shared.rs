//! `limit_rate_shared`: one rate for all connections of a key.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use tw_testkit::{Server, wait};

use crate::support::http2::connect;
use crate::support::http3::start_http3_with;
use crate::support::metrics::metric;
use crate::support::reload::reload;
use crate::support::{count_in_error_log, get, refusal_of, server};

const SIZE: usize = 100 << 10;
/// Bytes per second; a file takes two seconds.
const RATE: usize = 50 << 10;

/// Time that so many bytes take at least. The first piece leaves at once, and timers are exact to some milliseconds.
fn time_of(bytes: usize) -> Duration {
    Duration::from_millis((bytes * 1000 / RATE * 9 / 10) as u64)
}

fn conf(location: &str) -> String {
    format!(
        "worker_processes 2;
         http {{ limit_rate_zone $arg_k zone=one:1m rate=50k; limit_rate_zone $arg_k zone=own:1m rate=$arg_rate;
             limit_rate_zone $arg_k zone=burst:1m rate=1k burst=1m; limit_rate_zone $arg_other zone=other:1m rate=50k;
             server {{ listen 127.0.0.1:{{port}}; http2 on; root html; {location}
                 location /metrics {{ metrics; }} }} }}"
    )
}

fn start(location: &str) -> Server {
    server().file("html/a", vec![b'a'; SIZE]).file("html/small", "small").start(&conf(location)).unwrap()
}

/// Downloads targets at the same time, each on a connection of its own; returns them in the order of their ends.
fn download(server: &Server, targets: &[&str]) -> Vec<(String, Duration)> {
    let (done, ends) = channel();
    let begun = Instant::now();
    thread::scope(|scope| {
        for target in targets {
            let done = done.clone();
            scope.spawn(move || {
                assert_eq!(get(server, target).status, 200, "{target}");
                done.send(((*target).to_owned(), begun.elapsed())).unwrap();
            });
        }
    });
    drop(done);
    ends.iter().collect()
}

#[test]
fn connections_of_a_key_share_its_rate() {
    let server = start("limit_rate_shared zone=one; location /free { limit_rate_shared off; alias html/a; }");
    let ends = download(&server, &["/a?k=1", "/a?k=1", "/a?k=1", "/a?k=2", "/a?k=", "/free?k=1"]);
    let last = &ends[5];
    assert_eq!(last.0, "/a?k=1", "{ends:?}");
    assert!(last.1 >= time_of(3 * SIZE), "{ends:?}");
    let at = |target: &str| ends.iter().find(|(other, _)| other == target).unwrap().1;
    // Another key has a rate of its own, and a request without a key has no limit.
    assert!(at("/a?k=2") >= time_of(SIZE) && at("/a?k=2") < last.1, "{ends:?}");
    assert!(at("/a?k=") < at("/a?k=2") && at("/free?k=1") < at("/a?k=2"), "{ends:?}");
    assert_eq!(metric(&server, "limit_rate_entries{zone=\"one\"}"), 2);
}

#[test]
fn small_response_is_not_behind_a_large_one() {
    let server = start("limit_rate_shared zone=one;");
    let mut large = server.connect().unwrap();
    large.send("GET /a?k=1 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    large.read_head().unwrap();
    // The turns of two connections: a small response ends while most of the large one is still to come.
    assert_eq!(get(&server, "/small?k=1").text(), "small");
    large.send("GET /small?k=1 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let begun = Instant::now();
    assert_eq!(large.read_bytes(SIZE).unwrap().len(), SIZE);
    assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(large.read_response().unwrap().text(), "small");
}

#[test]
fn protocols_share_the_rate() {
    let http = "limit_rate_zone $binary_remote_addr zone=one:1m rate=50k;";
    let http3 = start_http3_with(
        server().file("html/a", vec![b'a'; SIZE]),
        http,
        "listen 127.0.0.1:{port1}; http2 on; limit_rate_shared zone=one;",
    );
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(http3.client().get("/a").body.len(), SIZE));
        scope.spawn(|| {
            let mut client = tw_testkit::http2::Http2::connect(http3.server.addr_of(1)).unwrap();
            assert_eq!(client.get("/a").unwrap().body.len(), SIZE);
        });
        scope.spawn(|| {
            let response = tw_testkit::Client::get(http3.server.addr_of(1), "/a").unwrap();
            assert_eq!(response.body.len(), SIZE);
        });
    });
    assert!(begun.elapsed() >= time_of(3 * SIZE), "{:?}", begun.elapsed());
}

#[test]
fn rate_of_a_variable_burst_and_several_zones() {
    let server = start(
        "location /own { limit_rate_shared zone=own; alias html/a; }
         location /burst { limit_rate_shared zone=burst; alias html/a; }
         location /both { limit_rate_shared zone=own; limit_rate_shared zone=other; alias html/a; }
         location /if { if ($arg_slow) { limit_rate_shared zone=one; } alias html/a; }",
    );
    let time = |target: &str| download(&server, &[target])[0].1;
    // A rate of zero, an empty one or one that is not a number sets no limit. Without the burst, the file would take a
    // hundred seconds.
    for target in ["/own?k=1", "/own?k=1&rate=0", "/own?k=1&rate=fast", "/burst?k=1", "/if?k=1"] {
        assert!(time(target) < Duration::from_secs(50), "{target}");
    }
    for target in ["/own?k=1&rate=50k", "/both?k=2&rate=1g&other=x", "/if?k=1&slow=1"] {
        assert!(time(target) >= time_of(SIZE), "{target}");
    }
    // Streams of one connection of HTTP/2.
    let mut client = connect(&server);
    let begun = Instant::now();
    client.run(|requests| async move {
        let one = |path| {
            let head = tw_testkit::http2::head("GET", path, &[]);
            tokio::spawn(tw_testkit::http2::exchange(requests.clone(), head, bytes::Bytes::new()))
        };
        for stream in [one("/own?k=3&rate=50k"), one("/own?k=3&rate=50k")] {
            assert_eq!(stream.await.unwrap().unwrap().body.len(), SIZE);
        }
    });
    assert!(begun.elapsed() >= time_of(2 * SIZE), "{:?}", begun.elapsed());
}

#[test]
fn client_that_goes_away_leaves_its_time_to_others() {
    let mut server = start("limit_rate_shared zone=one;");
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let mut client = server.connect().unwrap();
            client.send("GET /a?k=1 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            client.read_head().unwrap();
            client
        })
        .collect();
    drop(clients);
    // Twenty downloads would take forty seconds.
    let begun = Instant::now();
    assert_eq!(get(&server, "/small?k=1").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // The zone outlives a reload.
    reload(&mut server, &conf("limit_rate_shared zone=one; error_page 404 /small;"));
    assert_eq!(get(&server, "/a?k=1").body.len(), SIZE);
    assert!(wait::until(wait::TIMEOUT, || metric(&server, "limit_rate_entries{zone=\"one\"}") == 1));
    assert_eq!(count_in_error_log(&server, "could not allocate node"), 0);
}

#[test]
fn wrong_zones_and_rates_are_refused() {
    let refused = |http: &str, location: &str| {
        refusal_of(&format!("http {{ {http} server {{ listen 127.0.0.1:{{port}}; {location} }} }}"))
    };
    for (http, location, expected) in [
        ("limit_rate_zone $arg_k zone=a:1m rate=0;", "", "invalid rate \"rate=0\""),
        ("limit_rate_zone $arg_k zone=a:1m rate=fast;", "", "invalid rate \"rate=fast\""),
        ("limit_rate_zone $arg_k zone=a:1m burst=x rate=1m;", "", "invalid burst \"burst=x\""),
        ("limit_rate_zone $arg_k zone=a:1m burst=1m;", "", "must have \"rate\" parameter"),
        ("limit_rate_zone $arg_k rate=1m burst=1m;", "", "must have \"zone\" parameter"),
        ("limit_rate_zone $arg_k zone=a:1k rate=1m;", "", "is too small"),
        (
            "limit_req_zone $arg_k zone=a:1m rate=1r/s; limit_rate_zone $arg_k zone=a:1m rate=1m;",
            "",
            "different use",
        ),
        ("", "limit_rate_shared zone=a;", "zero size shared memory zone \"a\""),
        ("", "limit_rate_shared a;", "invalid parameter \"a\""),
        (
            "limit_rate_zone $arg_k zone=a:1m rate=1m;",
            "limit_rate_shared off; limit_rate_shared zone=a;",
            "is duplicate",
        ),
        (
            "limit_rate_zone $arg_k zone=a:1m rate=1m;",
            "limit_rate_shared zone=a; limit_rate_shared zone=a;",
            "is duplicate",
        ),
    ] {
        let error = refused(http, location);
        assert!(error.contains(expected), "{http} {location}: {error}");
    }
}
