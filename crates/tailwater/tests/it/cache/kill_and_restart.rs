//! A server with a cache that is killed (`SIGKILL`) in the middle of its work, again and again, and started on the same directory.
//!
//! Each body tells its key, its version and its checksum. After every start: what is answered is byte for byte what the origin
//! sent, and nothing that was purged; no temporary file stays; what the cache says it has is what is on the disk; and all checksums
//! are right (`tailwater cache check`).
//!
//! `cargo xtask torture` kills more often, several servers at the same time: `TAILWATER_KILLS` is how often in all, `TAILWATER_KILLED_AT_ONCE`
//! how many servers there are, each with a directory of its own, and `TAILWATER_TORTURE_SEED` the seed of the first.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use tw_testkit::origin::{Conn, origin};
use tw_testkit::{Client, Random, Response, Server, Signal, TempDir, wait};

use crate::support::env_number;
use crate::support::metrics::metrics_text;
use crate::support::{server, start};

const ROUNDS: u64 = 4;
/// Clients at the same time.
const CLIENTS: u64 = 4;
/// Number of different responses: several times more than the cache holds.
const PAGES: usize = 48;
/// Versions of a page whose bodies are remembered: the current one, and those that a cache may still have.
const BODIES_MAX: usize = 3;

/// Store of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Files,
    Log,
}

impl Store {
    /// Bytes that the cache may hold.
    fn holds(self) -> u64 {
        match self {
            Store::Files => 8 << 20,
            Store::Log => 12 << 20,
        }
    }

    /// Bytes that there may be more: a segment.
    fn over(self) -> u64 {
        if self == Store::Log { 4 << 20 } else { 0 }
    }

    fn parameters(self) -> String {
        let holds = self.holds();
        match self {
            Store::Files => format!("max_size={holds}"),
            Store::Log => format!("max_size={holds} store=log segment=4m"),
        }
    }
}

/// Bodies of a page with their versions, the youngest last.
type Bodies = VecDeque<(u64, Arc<[u8]>)>;

/// Versions that the origin sends, and those that must not be served any more.
struct Pages {
    /// Current version of each page.
    current: Vec<AtomicU64>,
    /// Oldest version of each page that is not purged.
    oldest: Vec<AtomicU64>,
    /// Youngest bodies of each page: making one takes much longer than comparing it.
    bodies: Vec<Mutex<Bodies>>,
}

impl Pages {
    fn new() -> Arc<Self> {
        let versions = || (0..PAGES).map(|_| AtomicU64::new(1)).collect();
        let bodies = (0..PAGES).map(|_| Mutex::default()).collect();
        Arc::new(Self { current: versions(), oldest: versions(), bodies })
    }

    /// Size of a page: small, of some memory pages, or written in several pieces.
    fn size(page: usize) -> usize {
        [300, 9000, 70_000, 1_300_000][page % 4] + page
    }

    fn body(&self, page: usize, version: u64) -> Arc<[u8]> {
        let mut bodies = self.bodies[page].lock().unwrap();
        if let Some((_, body)) = bodies.iter().find(|(of, _)| *of == version) {
            return body.clone();
        }
        let mut body = format!("{page} {version}\n").into_bytes();
        body.extend(Random::new(version << 16 | page as u64).bytes(Self::size(page)));
        let body: Arc<[u8]> = body.into();
        bodies.push_back((version, body.clone()));
        if bodies.len() > BODIES_MAX {
            bodies.pop_front();
        }
        body
    }

    fn serve(&self, conn: &mut Conn) {
        while let Some(head) = conn.head() {
            let page = head.split(['/', ' ']).nth(3).and_then(|page| page.parse().ok()).unwrap_or(0);
            let version = self.current[page].load(SeqCst);
            let tag = format!("\"{version}\"");
            let fields = format!("ETag: {tag}\r\nCache-Control: max-age=1\r\nX-Tags: all,{}\r\n", page % 8);
            if head.contains(&format!("If-None-Match: {tag}")) {
                conn.send(format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n"));
            } else {
                conn.answer(&fields, self.body(page, version));
            }
        }
    }

    /// Requests one page and checks the response. Returns true if there was a response.
    fn get(&self, addr: SocketAddr, page: usize) -> bool {
        let oldest = self.oldest[page].load(SeqCst);
        let Ok(response) = Client::get(addr, &format!("/p/{page}")) else { return false };
        assert_eq!(response.status, 200, "{page}: {}", response.text());
        let line = response.body.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let version = line.strip_prefix(&format!("{page} ")).and_then(|version| version.parse().ok());
        let version = version.unwrap_or_else(|| panic!("of page {page} comes {line:?}"));
        assert!(
            response.body[..] == self.body(page, version)[..],
            "page {page} of version {version} is not whole"
        );
        assert!(version >= oldest, "page {page} of version {version} was purged: {oldest}");
        true
    }

    /// Changes these pages, and purges them by this request.
    fn purge(&self, addr: SocketAddr, pages: impl Iterator<Item = usize> + Clone, request: &str) {
        let versions: Vec<_> =
            pages.map(|page| (page, self.current[page].fetch_add(1, SeqCst) + 1)).collect();
        let Ok(mut client) = Client::connect(addr) else { return };
        let head = format!("PURGE {request}Host: localhost\r\nConnection: close\r\n\r\n");
        let answer = client.send(head).and_then(|()| client.read_response());
        let Ok(Response { status, .. }) = answer else { return };
        assert!(matches!(status, 204 | 404), "{status}: {request}");
        for (page, version) in versions {
            self.oldest[page].fetch_max(version, SeqCst);
        }
    }

    /// Clients with mixed requests, until the server is gone or `is_over`.
    fn load(self: &Arc<Self>, addr: SocketAddr, seed: u64, is_over: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
        let client = |nth| {
            let pages = self.clone();
            let is_over = is_over.clone();
            let mut random = Random::new(seed << 8 | nth);
            thread::spawn(move || {
                while !is_over.load(SeqCst) {
                    let page = random.below(PAGES).min(random.below(PAGES));
                    match random.below(100) {
                        0..=4 => pages.purge(addr, [page].into_iter(), &format!("/p/{page} HTTP/1.1\r\n")),
                        5 => pages.purge(addr, 40..PAGES, "/p/4* HTTP/1.1\r\n"),
                        6 => {
                            let tag = page % 8;
                            let of_tag = (0..PAGES).filter(move |page| page % 8 == tag);
                            pages.purge(addr, of_tag, &format!("/ HTTP/1.1\r\nX-Purge: {tag}\r\n"));
                        }
                        _ if !pages.get(addr, page) => return,
                        _ => {}
                    }
                }
            })
        };
        (0..CLIENTS).map(client).collect()
    }
}

fn cached(dir: &Path, origin: SocketAddr, store: Store) -> Server {
    start(
        server().with_master(),
        &format!(
            "proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m {} snapshot=1s;
             map $request_method $purge {{ ~^PURGE 1; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{origin}; proxy_cache one; proxy_cache_key $uri;
                     proxy_cache_revalidate on; proxy_cache_tag $upstream_http_x_tags;
                     proxy_cache_purge $purge; proxy_cache_purge_tag $http_x_purge; }}
                 location = /metrics {{ metrics; }} }}",
            dir.display(),
            store.parameters()
        ),
    )
}

fn metrics(server: &Server) -> BTreeMap<String, u64> {
    let text = metrics_text(server);
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("tailwater_cache_")?.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    values.collect()
}

/// Waits until more than so many responses were stored; fails if the number stops growing.
fn wait_stored(server: &Server, count: u64) {
    let stored = || metrics(server)["stored_total{cache=\"one\"}"];
    let mut seen_count = stored();
    while seen_count <= count {
        assert!(wait::until(wait::TIMEOUT, || stored() > seen_count), "{seen_count} {}", server.error_log());
        seen_count = stored();
    }
}

/// Files in the directory of a cache.
#[derive(Debug, Default, PartialEq, Eq)]
struct OnDisk {
    entries: u64,
    bytes: u64,
    /// Files that are neither entries nor those of purges and of the index.
    others: Vec<PathBuf>,
}

impl OnDisk {
    fn see(&mut self, dir: &Path) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            // A file that is removed meanwhile is missing at the next look.
            let (Ok(meta), path) = (entry.metadata(), entry.path()) else { continue };
            let name = entry.file_name().into_encoded_bytes();
            if meta.is_dir() {
                self.see(&path);
            } else if name.len() == 32 {
                self.entries += 1;
                self.bytes += meta.len().next_multiple_of(4096);
            } else if name.len() == 8 && name.iter().all(u8::is_ascii_digit) {
                self.bytes += meta.len().next_multiple_of(4096);
            } else if ![&b"purges"[..], b"snapshot", b"pages"].contains(&&*name) {
                self.others.push(path);
            }
        }
    }
}

/// Output of a `tailwater cache` command about the cache, and its status.
fn command(dir: &Path, words: &[&str]) -> (String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let output = command.arg("cache").args(words).arg(dir.join("cache")).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&text).into_owned(), output.status.code())
}

/// Number of records in segments that were not removed.
fn records(dir: &Path) -> u64 {
    let (shown, status) = command(dir, &["stat", "--json"]);
    assert_eq!(status, Some(0), "{shown}");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    shown["segments"]["records"].as_u64().unwrap()
}

/// Waits until the cache has loaded its directory and no fill is in progress, and compares both.
fn assert_settled(server: &Server, dir: &Path, store: Store, when: &str) {
    server.wait_error_log(" files, ").unwrap();
    let mut seen_value = (OnDisk::default(), BTreeMap::new());
    let is_same = wait::until(wait::TIMEOUT, || {
        let metrics = metrics(server);
        let mut on_disk = OnDisk::default();
        on_disk.see(&dir.join("cache"));
        if store == Store::Log {
            on_disk.entries += records(dir);
        }
        let of = |name: &str| metrics[&format!("{name}{{cache=\"one\"}}")];
        let is_same = (of("entries"), of("bytes"), of("filling")) == (on_disk.entries, on_disk.bytes, 0);
        let is_small = on_disk.bytes <= store.holds() + store.over() && on_disk.others.is_empty();
        assert_eq!((of("damaged_total"), of("disk_failures_total")), (0, 0), "{}", server.error_log());
        seen_value = (on_disk, metrics);
        is_same && is_small
    });
    assert!(is_same, "{when}: {seen_value:?} {}", server.error_log());
    let (said, status) = command(dir, &["check"]);
    assert_eq!(status, Some(0), "{when}: {said}");
}

#[test]
fn killed_server_restarts_with_a_consistent_cache() {
    kill_and_restart(Store::Files);
}

#[test]
fn killed_server_restarts_with_consistent_segments() {
    kill_and_restart(Store::Log);
}

/// Guard that notes the panic of its thread.
struct Failing<'a>(&'a AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, SeqCst);
        }
    }
}

/// Kills servers at the same time, so many times in all.
fn kill_and_restart(store: Store) {
    let kills = env_number("TAILWATER_KILLS", ROUNDS);
    let seed = env_number("TAILWATER_TORTURE_SEED", 1);
    let servers = env_number("TAILWATER_KILLED_AT_ONCE", 1).clamp(1, kills.max(1));
    let began = Instant::now();
    let has_failed = AtomicBool::new(false);
    thread::scope(|scope| {
        for nth in 0..servers {
            // The first ones have one more if it cannot be divided.
            let kills = (kills + servers - 1 - nth) / servers;
            let has_failed = &has_failed;
            scope.spawn(move || kill_one_and_restart(store, kills, seed + nth, has_failed));
        }
    });
    println!("{store:?}: {kills} kills, {servers} servers at the same time: {:?}", began.elapsed());
}

/// Kills one server, so many times, and starts it on the same directory; ends early if another one has failed.
fn kill_one_and_restart(store: Store, kills: u64, seed: u64, has_failed: &AtomicBool) {
    let _failing = Failing(has_failed);
    let pages = Pages::new();
    let dir = TempDir::new("cache-killed").unwrap();
    let serving = pages.clone();
    let origin = origin(move |mut conn| serving.serve(&mut conn));
    let mut random = Random::new(seed);
    for round in 0..=kills {
        if has_failed.load(SeqCst) {
            return;
        }
        let mut server = cached(dir.path(), origin, store);
        let addr = server.addr();
        let when = format!("{store:?}, round {round} of seed {seed}");
        let is_over = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        if random.happens(50) || round == kills {
            assert_settled(&server, dir.path(), store, &when);
            // All pages are requested, whether or not they were stored before the kill.
            (0..PAGES).for_each(|page| assert!(pages.get(addr, page), "{when}"));
            assert_settled(&server, dir.path(), store, &when);
        }
        if round < kills {
            // Clients send requests while the loader is still running, too.
            clients = pages.load(addr, random.next_number() >> 16, &is_over);
            if random.happens(30) {
                wait_stored(&server, 50);
                is_over.store(true, SeqCst);
                clients.drain(..).for_each(|client| client.join().unwrap());
                assert_settled(&server, dir.path(), store, &when);
                is_over.store(false, SeqCst);
                clients = pages.load(addr, random.next_number() >> 16, &is_over);
            }
            let stored = metrics(&server)["stored_total{cache=\"one\"}"] + random.below(40) as u64;
            wait_stored(&server, stored);
            // The signal goes to the process group, which includes the worker process.
            server.signal(Signal::KILL).unwrap();
            let _ = server.wait_exit(wait::TIMEOUT);
        }
        clients.into_iter().for_each(|client| client.join().unwrap());
    }
}
