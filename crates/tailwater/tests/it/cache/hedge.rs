//! Lookups that the disk keeps waiting also ask the upstream server (`hedge=`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tw_testkit::disk::{Fault, Injected, Op, SlowDisk};
use tw_testkit::origin::counting;
use tw_testkit::{Client, Response, Server, wait};

use crate::support::cache::{cache_status, wait_stored};
use crate::support::metrics::{metric, metrics_text};
use crate::support::reload::reload;
use crate::support::{get, server};

/// A server with a cache on a disk, each of whose reads has to ask the disk again after [`Hedged::stall`].
struct Hedged {
    disk: SlowDisk,
    server: Server,
    request_count: Arc<AtomicUsize>,
    conf: String,
}

impl Hedged {
    /// Starts with responses stored for `paths`. `parameters` are those of the cache.
    fn start(parameters: &str, paths: &[&str], origin: (SocketAddr, Arc<AtomicUsize>)) -> Option<Self> {
        let disk = SlowDisk::mount_or_skip()?;
        let (addr, request_count) = origin;
        let conf = format!(
            "worker_processes 1;
             http {{ proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m {parameters};
                 server {{ listen 127.0.0.1:{{port}};
                     location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid any 1h;
                         proxy_cache_key $uri; proxy_cache_convert_head on;
                         add_header X-Cache $upstream_cache_status always; add_header X-Why $cache_why always; }}
                     location = /metrics {{ metrics; }} }} }}",
            disk.path().display()
        );
        let server = server().start(&conf).unwrap();
        server.wait_error_log(" files, ").unwrap();
        for path in paths {
            assert_eq!(cache_status(&get(&server, path)), "MISS");
        }
        wait_stored(&server, paths.len());
        Some(Self { disk, server, request_count, conf })
    }

    /// Stops all opening of files, from the next lookup on.
    fn stall(&mut self) -> Injected {
        // A reload closes open files.
        reload(&mut self.server, &self.conf);
        self.disk.on(Op::Open).inject(Fault::Stall)
    }

    fn requests(&self) -> usize {
        self.request_count.load(SeqCst)
    }

    fn count(&self, winner: &str) -> u64 {
        metric(&self.server, &format!("cache_hedged_lookups_total{{cache=\"one\",winner=\"{winner}\"}}"))
    }

    fn wait_for_fills(&self) {
        let is_over = || metric(&self.server, "cache_filling") == 0;
        assert!(wait::until(wait::TIMEOUT, is_over), "{}", self.server.error_log());
    }
}

fn numbering() -> (SocketAddr, Arc<AtomicUsize>) {
    counting(|conn, head, nth| {
        let vary = if head.contains("/vary") { "Vary: Accept\r\n" } else { "" };
        conn.answer(&format!("{vary}ETag: \"{nth}\"\r\n"), format!("answer {nth}"));
    })
}

fn why(response: &Response) -> &str {
    response.field("X-Why").unwrap_or_default()
}

#[test]
fn requests_do_not_wait_for_a_stalled_disk() {
    let paths: Vec<String> = (0..12).map(|page| format!("/{page}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let Some(mut hedged) = Hedged::start("hedge=30ms hedge_max=100%", &paths, numbering()) else { return };
    let stall = hedged.stall();
    // The disk answers nothing at all, so each of these is answered by the origin.
    for (nth, path) in paths.iter().enumerate() {
        let response = get(&hedged.server, path);
        assert_eq!((response.status, response.text()), (200, format!("answer {}", paths.len() + nth)));
        assert_eq!((cache_status(&response), why(&response)), ("MISS", "hedged"));
    }
    assert_eq!(hedged.requests(), 2 * paths.len());
    assert_eq!(hedged.count("origin"), paths.len() as u64);
    let fetches = "cache_background_fetches_total{cache=\"one\",reason=\"hedge\"}";
    assert_eq!(metric(&hedged.server, fetches), paths.len() as u64, "{}", metrics_text(&hedged.server));
    stall.lift();
    hedged.wait_for_fills();
    // The responses of the hedges are stored.
    for (nth, path) in paths.iter().enumerate() {
        let response = get(&hedged.server, path);
        assert_eq!(
            (cache_status(&response), response.text()),
            ("HIT", format!("answer {}", paths.len() + nth))
        );
    }
    assert_eq!(metric(&hedged.server, "cache_background_running{cache=\"one\"}"), 0);
}

#[test]
fn one_fetch_serves_all_requests_and_outlives_its_client() {
    let (go, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let origin = counting(move |conn, _, nth| {
        if nth > 1 {
            let _ = gate.lock().unwrap().recv();
        }
        conn.answer("", format!("answer {nth}"));
    });
    let Some(mut hedged) = Hedged::start("hedge=30ms hedge_max=100%", &["/a", "/b"], origin) else { return };
    let _stall = hedged.stall();
    let ask = |path: &str| -> Client {
        let mut client = hedged.server.connect().unwrap();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
        client
    };
    let asked = |count| {
        assert!(wait::until(wait::TIMEOUT, || hedged.requests() == count), "{}", hedged.server.error_log());
    };
    let first = ask("/a");
    asked(3);
    let others: Vec<Client> = (0..20).map(|_| ask("/a")).collect();
    drop(first);
    // Lookups are hedged in the order in which they began to wait, so those before this one have found the fetch.
    let last = ask("/b");
    asked(4);
    drop(go);
    let answers: Vec<String> =
        others.into_iter().map(|mut client| client.read_response().unwrap().text()).collect();
    assert!(answers.iter().all(|answer| answer == "answer 2"), "{answers:?}");
    assert_eq!(hedged.requests(), 4);
    drop(last);
}

#[test]
fn ranges_and_head_are_answered() {
    let paths = ["/range", "/head", "/etag"];
    let Some(mut hedged) = Hedged::start("hedge=30ms", &paths, numbering()) else { return };
    let stall = hedged.stall();
    let mut client = hedged.server.connect().unwrap();
    client.send("GET /range HTTP/1.1\r\nHost: localhost\r\nRange: bytes=7-\r\n\r\n").unwrap();
    let response = client.read_response().unwrap();
    assert_eq!((response.status, response.text().as_str(), why(&response)), (206, "3", "hedged"));
    assert_eq!(response.field("Content-Range"), Some("bytes 7-7/8"));
    client.send("HEAD /head HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let response = client.read_head().unwrap();
    assert_eq!(
        (response.status, response.field("Content-Length"), why(&response)),
        (200, Some("8"), "hedged")
    );
    client.send("GET /etag HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: \"5\"\r\n\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().status, 304);
    stall.lift();
    hedged.wait_for_fills();
    assert_eq!(get(&hedged.server, "/head").text(), "answer 4");
}

#[test]
fn variant_is_stored_beside_the_entry() {
    let Some(mut hedged) = Hedged::start("hedge=30ms", &["/vary"], numbering()) else { return };
    let stall = hedged.stall();
    let ask = |accept: &str| {
        let mut client = hedged.server.connect().unwrap();
        client.send(format!("GET /vary HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n")).unwrap();
        client.read_response().unwrap()
    };
    let response = ask("text/css");
    assert_eq!((response.text().as_str(), why(&response)), ("answer 1", "hedged"));
    stall.lift();
    hedged.wait_for_fills();
    // Neither has taken the place of the other.
    assert_eq!(ask("text/css").text(), "answer 1");
    assert_eq!(get(&hedged.server, "/vary").text(), "answer 0");
    assert_eq!(hedged.requests(), 2);
}

#[test]
fn failing_origin_leaves_it_to_the_disk() {
    let origin = counting(|conn, head, nth| match nth {
        0..3 => conn.answer("", format!("answer {nth}")),
        _ if head.contains("/error") => {
            conn.send("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy");
        }
        _ if head.contains("/private") => conn.answer("Set-Cookie: a=b\r\n", "for one client"),
        // The connection is closed.
        _ => conn.send("no response\r\n\r\n"),
    });
    let paths = ["/error", "/private", "/broken"];
    let Some(mut hedged) = Hedged::start("hedge=30ms", &paths, origin) else { return };
    for (nth, path) in paths.iter().enumerate() {
        let stall = hedged.stall();
        let mut client = hedged.server.connect().unwrap();
        let before = hedged.requests();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
        let is_over = || hedged.requests() > before && metric(&hedged.server, "cache_filling") == 0;
        assert!(wait::until(wait::TIMEOUT, is_over), "{path}");
        stall.lift();
        let response = client.read_response().unwrap();
        assert_eq!((cache_status(&response), response.text()), ("HIT", format!("answer {nth}")), "{path}");
        assert_eq!(hedged.count("disk"), nth as u64 + 1);
    }
    assert_eq!(hedged.count("origin"), 0);
}

#[test]
fn budget_bounds_requests_to_the_origin() {
    let paths: Vec<String> = (0..10).map(|page| format!("/{page}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let Some(mut hedged) = Hedged::start("hedge=30ms hedge_max=1%", &paths, numbering()) else { return };
    let stall = hedged.stall();
    // Eight are allowed however few requests there are.
    let (within, beyond) = paths.split_at(8);
    for path in within {
        assert_eq!(why(&get(&hedged.server, path)), "hedged");
    }
    let mut waiting: Vec<Client> = Vec::new();
    for path in beyond {
        let mut client = hedged.server.connect().unwrap();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
        waiting.push(client);
    }
    assert!(wait::until(wait::TIMEOUT, || hedged.count("refused") == beyond.len() as u64));
    assert_eq!(hedged.requests(), paths.len() + within.len());
    stall.lift();
    for mut client in waiting {
        assert_eq!(cache_status(&client.read_response().unwrap()), "HIT");
    }
}

#[test]
fn quick_disk_is_never_overtaken() {
    let paths = ["/a", "/b"];
    let Some(mut hedged) = Hedged::start("hedge=auto", &paths, numbering()) else { return };
    reload(&mut hedged.server, &hedged.conf);
    let delay = hedged.disk.on(Op::Open).inject(Fault::Delay(Duration::from_millis(20)));
    for path in paths {
        assert_eq!(cache_status(&get(&hedged.server, path)), "HIT");
    }
    delay.lift();
    assert_eq!(hedged.requests(), 2);
}
