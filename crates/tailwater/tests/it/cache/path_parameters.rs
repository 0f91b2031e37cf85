//! Parameters of `proxy_cache_path` that nginx does not have: `thread_pool`, `policy`.

use tw_testkit::origin::origin;
use tw_testkit::{Client, Server, Signal, wait};

use crate::support::cache::wait_stored;
use crate::support::metrics::{metric, metrics_text, try_metric};
use crate::support::server;

/// A server whose cache has the threads `own`, in front of one that answers with a few bytes.
fn cached(parameters: &str, location: &str) -> Server {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            conn.answer("", head.split(' ').nth(1).unwrap_or_default());
        }
    });
    let conf = format!(
        "thread_pool own threads=2; thread_pool other threads=1;
         http {{
             proxy_cache_path cache levels=1:2 keys_zone=one:1m inactive=1h {parameters};
             map $request_method $purge {{ ~^PURGE 1; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h;
                     proxy_cache_key $uri; proxy_cache_purge $purge; {location} }}
                 location = /metrics {{ metrics; }} }} }}"
    );
    server().start(&conf).unwrap()
}

/// Number of operations that a pool has done.
fn jobs(server: &Server, pool: &str, operation: &str) -> u64 {
    // An operation that the pool has never done has no sample.
    let series = format!("disk_jobs_total{{pool=\"{pool}\",operation=\"{operation}\"}}");
    try_metric(server, &series).unwrap_or(0)
}

fn purge(server: &Server, path: &str) -> u16 {
    let mut client = server.connect().unwrap();
    client.send(format!("PURGE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).unwrap();
    client.read_response().unwrap().status
}

#[test]
fn thread_pool_parameter_gives_the_cache_its_threads() {
    let server = cached("thread_pool=own", "");
    server.wait_error_log(" files, ").unwrap();
    assert_eq!(Client::get(server.addr(), "/a").unwrap().text(), "/a");
    wait_stored(&server, 1);
    assert_eq!(purge(&server, "/a"), 204);
    // The loader, a fill, a purge.
    for operation in ["list", "create", "unlink"] {
        // The thread counts a job only after it has woken the waiting request, so the counter may lag.
        let is_counted = || jobs(&server, "own", operation) > 0;
        assert!(wait::until(wait::TIMEOUT, is_counted), "{operation}: {}", metrics_text(&server));
        assert_eq!(jobs(&server, "default", operation), 0, "{operation}");
    }
}

#[test]
fn aio_threads_of_a_location_overrides_thread_pool() {
    let server = cached("thread_pool=own", "aio threads=other;");
    server.wait_error_log(" files, ").unwrap();
    Client::get(server.addr(), "/a").unwrap();
    wait_stored(&server, 1);
    let are_counted = || jobs(&server, "other", "create") > 0 && jobs(&server, "own", "list") > 0;
    assert!(wait::until(wait::TIMEOUT, are_counted), "{}", metrics_text(&server));
    assert_eq!(jobs(&server, "own", "create"), 0);
}

#[test]
fn eviction_runs_in_the_thread_pool_of_the_cache() {
    // A file takes 4096 bytes of its disk.
    let server = cached("thread_pool=own max_size=16k", "aio threads=other;");
    server.wait_error_log(" files, ").unwrap();
    let evicted = || metric(&server, "cache_removed_total{cache=\"one\",reason=\"evicted\"}");
    for nth in 0..8 {
        Client::get(server.addr(), &format!("/{nth}")).unwrap();
    }
    assert!(wait::until(wait::TIMEOUT, || evicted() >= 4), "{}", metrics_text(&server));
    let removed = |pool| jobs(&server, pool, "unlink");
    assert!(wait::until(wait::TIMEOUT, || removed("own") >= evicted()), "{}", metrics_text(&server));
    assert_eq!((removed("other"), removed("default")), (0, 0));
}

#[test]
fn undeclared_thread_pool_is_refused() {
    for (parameters, expected) in [
        ("thread_pool=none", "unknown thread pool \"none\""),
        ("thread_pool=", "invalid thread_pool value"),
        ("policy=fifo", "invalid policy value \"fifo\", it must be \"lru\" or \"s3fifo\""),
    ] {
        let conf = format!("http {{ proxy_cache_path cache keys_zone=one:1m {parameters}; }}");
        let output = server().arg("-t").run(&conf).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{said}");
    }
}

/// Requests some pages often and many others once, and returns how many of the first are still cached.
fn kept(server: &Server) -> u64 {
    let hits = || metric(server, "cache_responses_total{cache=\"one\",status=\"HIT\"}");
    for _ in 0..4 {
        for page in 0..10 {
            Client::get(server.addr(), &format!("/wanted/{page}")).unwrap();
        }
        let filling = || metric(server, "cache_filling{cache=\"one\"}") == 0;
        assert!(wait::until(wait::TIMEOUT, filling));
    }
    for page in 0..300 {
        Client::get(server.addr(), &format!("/once/{page}")).unwrap();
    }
    let evicted = || metric(server, "cache_bytes{cache=\"one\"}") <= 100 * 4096;
    assert!(wait::until(wait::TIMEOUT, evicted), "{}", metrics_text(server));
    let before = hits();
    for page in 0..10 {
        Client::get(server.addr(), &format!("/wanted/{page}")).unwrap();
    }
    hits() - before
}

#[test]
fn s3fifo_keeps_entries_requested_again() {
    let server = cached("max_size=400k policy=s3fifo", "");
    assert_eq!(kept(&server), 10);
    // The policy may change while it runs, and nothing is lost by that.
    server.signal(Signal::HUP).unwrap();
    assert_eq!(Client::get(server.addr(), "/wanted/1").unwrap().text(), "/wanted/1");
}
