//! Hung disks: refusals, threads of other disks, log and metrics.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use tw_testkit::disk::{Fault, Injected, Op, SlowDisk};
use tw_testkit::origin::counting;
use tw_testkit::{Client, Response, Server, Signal, TempDir, wait};

use crate::support::metrics::try_metric;
use crate::support::{get, page, server};

/// Number of requests for the hung disk: more than there are threads.
const REQUESTS: usize = 60;
/// `device_timeout` of these tests.
const TIMEOUT: &str = "device_timeout=1s";
/// Maximum number of hung threads: half of the 32 of the pool, and a few that probe the disk.
const HUNG_MAX: f64 = 20.0;

/// A server with a healthy disk at `/`, the other one at `/slow/`, and `more` in the block of the server.
fn serve(disk: &SlowDisk, healthy: &SlowDisk, more: &str) -> Server {
    for at in 0..REQUESTS {
        disk.write(format!("f{at}"), "slow content");
    }
    server()
        .with_master()
        .start(&format!(
            "thread_pool default threads=32 {TIMEOUT};
             http {{ server {{ listen 127.0.0.1:{{port}}; root {};
                 location = /metrics {{ metrics; }} location = /status {{ status_page; }}
                 location /slow/ {{ alias {}/; }} {more} }} }}",
            healthy.path().display(),
            disk.path().display()
        ))
        .unwrap()
}

/// Two disks without caches, so that every lookup is a job: one to hang, and a healthy one.
fn disks() -> Option<(SlowDisk, SlowDisk)> {
    let disks = (SlowDisk::mount_or_skip()?, SlowDisk::mount_or_skip()?);
    disks.1.write("cold", "fast");
    Some(disks)
}

/// Sends requests for the hung disk without waiting for responses.
fn send_all(server: &Server) -> Vec<Client> {
    let send = |at: usize| {
        let mut client = server.connect().unwrap();
        client.send(format!("GET /slow/f{at} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).unwrap();
        client
    };
    (0..REQUESTS).map(send).collect()
}

/// Operations that hang, by the metrics.
fn hung(server: &Server, disk: &SlowDisk) -> Option<f64> {
    try_metric(
        server,
        &format!("pool_hung_operations{{pool=\"default\",mount=\"{}\"}}", disk.path().display()),
    )
}

fn is_refused(response: &Response) -> bool {
    response.status == 503 && response.field("Retry-After").is_some()
}

/// Waits until requests for the disk are answered again.
fn recovered(server: &Server, disk: &SlowDisk) {
    assert!(wait::until(wait::TIMEOUT, || hung(server, disk).is_none()), "{}", server.error_log());
    assert!(wait::until(wait::TIMEOUT, || page(server, "/slow/f0") == (200, "slow content".to_owned())));
}

/// Number of lines in the error log about a hung disk.
fn alarms(server: &Server) -> usize {
    server.error_log().lines().filter(|line| line.contains("[alert]") && line.contains("\" hangs: ")).count()
}

#[test]
fn hung_disk_refuses_its_requests_and_blocks_no_other_disk() {
    let Some((disk, healthy)) = disks() else { return };
    let server = serve(&disk, &healthy, "");
    for (nth, op) in [Op::Open, Op::Lookup, Op::Getattr].into_iter().enumerate() {
        let stall = disk.on(op).inject(Fault::Stall);
        let clients = send_all(&server);
        assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0), "{op:?}");
        // The other disk works both before the hang is detected and long after.
        let check = || assert_eq!(page(&server, "/cold"), (200, "fast".to_owned()), "{op:?}");
        (0..20).for_each(|_| check());
        for mut client in clients {
            let response = client.read_response().unwrap();
            assert!(is_refused(&response), "{op:?}: {}", response.status);
        }
        (0..20).for_each(|_| check());
        assert!(hung(&server, &disk).is_some_and(|n| (1.0..=HUNG_MAX).contains(&n)), "{op:?}");
        let since = format!(
            "pool_hung_since_timestamp_seconds{{pool=\"default\",mount=\"{}\"}}",
            disk.path().display()
        );
        assert!(try_metric(&server, &since).is_some_and(|since: f64| since > 1e9), "{op:?}");
        assert!(
            try_metric(&server, "pool_refusals_total{pool=\"default\"}").is_some_and(|n: f64| n >= 60.0),
            "{op:?}"
        );
        assert!(get(&server, "/status?format=json").text().contains("\"pool_hung_operations\""), "{op:?}");
        // The hang is reported once, whatever other requests come for the disk.
        assert!(wait::until(wait::TIMEOUT, || is_refused(&get(&server, "/slow/f1"))), "{op:?}");
        assert_eq!(alarms(&server), nth + 1, "{op:?} {}", server.error_log());
        stall.lift();
        recovered(&server, &disk);
        let answers = format!("\"{}\" answers again", disk.path().display());
        assert!(
            wait::until(wait::TIMEOUT, || server.error_log().matches(&answers).count() == nth + 1),
            "{op:?} {}",
            server.error_log()
        );
    }
}

#[test]
fn links_to_a_hung_disk_do_not_block_their_own_disk() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let root = TempDir::new("links").unwrap();
    disk.write("f", "slow content");
    for (target, name) in [(disk.path().to_owned(), "directory"), (disk.join("f"), "file")] {
        std::os::unix::fs::symlink(target, root.path().join(name)).unwrap();
    }
    // The disk hangs before the server has accessed it for the first time.
    let stall = disk.on(Op::Lookup).inject(Fault::Stall);
    let server = server()
        .start(&format!(
            "thread_pool default threads=32 {TIMEOUT};
             http {{ server {{ listen 127.0.0.1:{{port}}; root {}; location = /metrics {{ metrics; }} }} }}",
            root.path().display()
        ))
        .unwrap();
    let mut clients = Vec::new();
    for uri in ["/directory/f", "/file"] {
        for _ in 0..REQUESTS {
            let mut client = server.connect().unwrap();
            client.send(format!("GET {uri} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).unwrap();
            clients.push(client);
        }
    }
    // Names that were not requested before have no cached lookup: each one occupies a thread.
    let mut names = 0..;
    let mut check = || {
        let name = names.next().unwrap_or(0);
        assert_eq!(get(&server, &format!("/nothing{name}")).status, 404);
    };
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    (0..20).for_each(|_| check());
    for mut client in clients {
        let response = client.read_response().unwrap();
        assert!(is_refused(&response), "{}", response.status);
    }
    (0..20).for_each(|_| check());
    assert!(hung(&server, &disk).is_some_and(|n| (1.0..=HUNG_MAX).contains(&n)));
    let hung_in_all = get(&server, "/metrics").text().matches("pool_hung_operations{").count();
    assert_eq!((hung_in_all, alarms(&server)), (1, 1), "{}", server.error_log());
    stall.lift();
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/file") == (200, "slow content".to_owned())));
    assert_eq!(page(&server, "/directory/f"), (200, "slow content".to_owned()));
}

#[test]
fn hung_read_ends_its_responses_and_blocks_no_other_disk() {
    let Some((disk, healthy)) = disks() else { return };
    let server = serve(&disk, &healthy, "");
    let stall = disk.on(Op::Read).inject(Fault::Stall);
    let clients = send_all(&server);
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    assert_eq!(page(&server, "/cold"), (200, "fast".to_owned()));
    for mut client in clients {
        // The head may be on its way already; then the connection ends before the body.
        if let Ok(response) = client.read_response() {
            assert!(is_refused(&response), "{}", response.status);
        }
    }
    assert_eq!(page(&server, "/cold"), (200, "fast".to_owned()));
    assert_eq!(alarms(&server), 1, "{}", server.error_log());
    stall.lift();
    recovered(&server, &disk);
}

/// Hangs the disk of `server` on opens, until the server has noticed.
fn hang(server: &Server, disk: &SlowDisk) -> Injected {
    let stall = disk.on(Op::Open).inject(Fault::Stall);
    let clients = send_all(server);
    assert!(wait::until(wait::TIMEOUT, || hung(server, disk).is_some()));
    drop(clients);
    stall
}

#[test]
fn hung_cache_disk_sends_requests_to_the_origin() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let (addr, request_count) = counting(|conn, _, nth| conn.answer("", format!("{nth}")));
    let start = || {
        server()
            .start(&format!(
                "thread_pool default threads=32 {TIMEOUT};
                 http {{ proxy_cache_path {}/cache keys_zone=one:1m;
                     server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }}
                         location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h; }} }} }}",
                disk.path().display()
            ))
            .unwrap()
    };
    let first = start();
    for at in 0..REQUESTS {
        assert_eq!(get(&first, &format!("/{at}")).status, 200);
    }
    let settled = || try_metric(&first, "cache_filling{cache=\"one\"}") == Some(0.0);
    assert!(wait::until(wait::TIMEOUT, settled), "{}", get(&first, "/metrics").text());
    drop(first);
    for op in [Op::Open, Op::Lookup, Op::Read, Op::Getattr] {
        // Nothing of the cache is in memory: the list of purges is read anew, too, and must not be taken for lost.
        let server = start();
        if op != Op::Lookup {
            get(&server, "/0");
        }
        let stall = disk.on(op).inject(Fault::Stall);
        let before = request_count.load(SeqCst);
        let send = |at: usize| {
            let mut client = server.connect().unwrap();
            client.send(format!("GET /{at} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).unwrap();
            client
        };
        for mut client in (0..REQUESTS).map(send).collect::<Vec<_>>() {
            assert_eq!(client.read_response().unwrap().status, 200, "{op:?}");
        }
        assert!(request_count.load(SeqCst) > before, "{op:?}");
        stall.lift();
        assert!(wait::until(wait::TIMEOUT, || hung(&server, &disk).is_none()), "{op:?}");
        // Responses that were stored before are found again.
        let is_hit = || {
            (0..REQUESTS).any(|at| {
                let before = request_count.load(SeqCst);
                get(&server, &format!("/{at}")).text().parse::<usize>().is_ok_and(|nth| nth < REQUESTS)
                    && request_count.load(SeqCst) == before
            })
        };
        assert!(wait::until(wait::TIMEOUT, is_hit), "{op:?} {}", server.error_log());
    }
}

#[test]
fn reload_does_not_wait_for_a_hung_thread() {
    let Some((disk, healthy)) = disks() else { return };
    let mut server = serve(&disk, &healthy, "");
    let stall = hang(&server, &disk);
    server
        .write_conf(&format!(
            "thread_pool default threads=8 {TIMEOUT};
             http {{ server {{ listen 127.0.0.1:{{port}}; location = /new {{ return 200 new; }} }} }}"
        ))
        .unwrap();
    server.signal(Signal::HUP).unwrap();
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/new") == (200, "new".to_owned())));
    stall.lift();
}

#[test]
fn shutdown_does_not_wait_for_a_hung_thread() {
    let Some((disk, healthy)) = disks() else { return };
    for signal in [Signal::TERM, Signal::QUIT] {
        let mut server = serve(&disk, &healthy, "");
        let stall = hang(&server, &disk);
        let begun = Instant::now();
        server.signal(signal).unwrap();
        let status = server.wait_exit(wait::TIMEOUT * 3);
        assert!(status.is_ok_and(|status| status.success()), "{signal:?} {}", server.error_log());
        // The address is free, even if the kernel cannot end the process yet.
        assert!(Client::connect(server.addr()).is_err(), "{signal:?} after {:?}", begun.elapsed());
        stall.lift();
    }
}

#[test]
fn thread_pool_parameters_are_checked() {
    for (parameters, expected) in [
        ("threads=2 device_threads=3", "has fewer threads than \"device_threads\""),
        ("threads=2 device_threads=0", "invalid device_threads value"),
        ("threads=2 device_timeout=0", "invalid device_timeout value"),
        ("threads=2 device_timeout=x", "invalid device_timeout value"),
    ] {
        let output = server().arg("-t").run(&format!("thread_pool a {parameters}; http {{ }}")).unwrap();
        assert!(
            !output.status.success() && String::from_utf8_lossy(&output.stderr).contains(expected),
            "{parameters}"
        );
    }
}

#[test]
fn device_threads_bound_what_one_disk_occupies() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    disk.write("a", "content");
    let server = server()
        .start(&format!(
            "thread_pool default threads=8 device_threads=2;
             http {{ server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }} location /slow/ {{ alias {}/; }} }} }}",
            disk.path().display()
        ))
        .unwrap();
    assert_eq!(try_metric(&server, "pool_device_threads{pool=\"default\"}"), Some(2.0));
    let stall = disk.on(Op::Open).inject(Fault::Stall);
    let mut clients: Vec<_> = (0..10).map(|_| server.connect().unwrap()).collect();
    for client in &mut clients {
        client.send("GET /slow/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    }
    let level = |name: &str| try_metric(&server, &format!("pool_{name}{{pool=\"default\"}}"));
    assert!(wait::until(wait::TIMEOUT, || level("queue_length") == Some(8.0) && stall.waiting() == 2));
    assert_eq!(level("running"), Some(2.0));
    stall.lift();
    for client in &mut clients {
        assert_eq!(client.read_response().unwrap().text(), "content");
    }
}
