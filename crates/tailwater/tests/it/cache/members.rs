//! A cache over several directories (`member=`): shares of the keys, reloads that add, drain and remove members, disks that
//! hang, fail, are full, missing or exchanged, and purges meanwhile.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::origin::counting;
use tw_testkit::{Errno, Server, TempDir, wait};

use crate::support::cache::{cache_status, records_in_snapshot, wait_stored};
use crate::support::files::files_below;
use crate::support::metrics::{metric, metrics_text};
use crate::support::reload::{reload, reload_until};
use crate::support::{get, server};

pub(super) const PAGES: usize = 48;
const STORES: [&str; 2] = ["store=files", "store=log"];

/// An origin that answers with the path, and the number of its requests.
fn paths_origin() -> (SocketAddr, Arc<AtomicUsize>) {
    counting(|conn, head, nth| {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        conn.answer("", format!("{path} {nth}"));
    })
}

/// A configuration with a cache whose parameters are `members`, with directories below `dir`.
fn conf(addr: SocketAddr, dir: &Path, members: &str) -> String {
    let members = members.replace('/', &format!("{}/", dir.display()));
    let version = members.bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    format!(
        "http {{ proxy_cache_path {members} levels=1:2 keys_zone=one:1m inactive=1h;
         map $request_method $purge {{ PURGE 1; }}
         server {{ listen 127.0.0.1:{{port}};
             location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h;
                 proxy_cache_key $uri; proxy_cache_purge $purge;
                 add_header X-Cache $upstream_cache_status; add_header X-Why $cache_why; }}
             location /api/ {{ api write=on; }}
             location = /version {{ return 200 {version}; }}
             location = /metrics {{ metrics; }} }} }}"
    )
}

/// Reloads, and waits until every loop has the new configuration.
fn change(server: &mut Server, conf: &str) {
    let version = conf.split("return 200 ").nth(1).unwrap().split(';').next().unwrap();
    reload_until(server, conf, "/version", version);
}

fn start(conf: &str) -> Server {
    server().with_master().start(conf).unwrap()
}

/// Requests all pages. Returns which were hits.
pub(super) fn hits(server: &Server) -> Vec<bool> {
    let hit = |page: usize| {
        let response = get(server, &format!("/{page}"));
        assert_eq!(response.status, 200, "{page}");
        assert!(response.text().starts_with(&format!("/{page} ")), "{page}: {}", response.text());
        cache_status(&response) == "HIT"
    };
    (0..PAGES).map(hit).collect()
}

pub(super) fn count(hits: &[bool]) -> usize {
    hits.iter().filter(|hit| **hit).count()
}

/// Number of responses that a member has in its index.
fn responses(server: &Server, dir: &Path) -> usize {
    metric(server, &format!("cache_member_entries{{cache=\"one\",member=\"{}\"}}", dir.display())) as usize
}

/// Number of responses that have a file in a directory.
fn files(dir: &Path) -> usize {
    let is_key = |name: &str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    files_below(dir).iter().filter(|path| is_key(path.file_name().unwrap().to_str().unwrap())).count()
}

/// Waits until the directories of all members have been read.
fn wait_loaded(server: &Server, count: usize) {
    let is = || server.error_log().matches(" files, ").count() >= count;
    assert!(wait::until(wait::TIMEOUT, is), "{}", server.error_log());
}

/// Waits until the index has so many responses. A reload with other directories may begin another process, with another sandbox.
fn wait_known(server: &Server, count: usize) {
    let is = || metric(server, "cache_entries{cache=\"one\"}") >= count as u64;
    assert!(wait::until(wait::TIMEOUT, is), "{}", server.error_log());
}

fn purge(server: &Server, path: &str) -> u16 {
    let mut client = server.connect().unwrap();
    client.send(format!("PURGE {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
    client.read_response().unwrap().status
}

/// State of a member in the API.
fn state(server: &Server, dir: &Path) -> String {
    let text = get(server, "/api/http/caches/one").text();
    let at = text
        .find(&format!("\"path\":\"{}\",\"state\":\"", dir.display()))
        .unwrap_or_else(|| panic!("{text}"));
    let rest = &text[at..];
    rest.split("\"state\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

#[test]
fn reloads_move_no_response() {
    STORES.iter().for_each(|store| reload_with(store));
}

fn reload_with(store: &str) {
    let (addr, requests) = paths_origin();
    let dir = TempDir::new("members").unwrap();
    let conf = |members: &str| conf(addr, dir.path(), &format!("{members} {store}"));
    let start = || server().with_master().start(&conf("/a member=/b member=/c")).unwrap();
    let mut server = start();
    wait_loaded(&server, 3);
    assert_eq!(count(&hits(&server)), 0);
    wait_stored(&server, PAGES);
    let shares = ["a", "b", "c"].map(|name| responses(&server, &dir.join(name)));
    assert_eq!(files(dir.path()), if store == "store=log" { 0 } else { PAGES });
    assert_eq!(shares.iter().sum::<usize>(), PAGES);
    assert!(shares.iter().all(|share| *share > 4), "{shares:?}");
    assert_eq!(count(&hits(&server)), PAGES);
    server.stop().unwrap();
    let mut server = start();
    wait_loaded(&server, 3);
    assert_eq!(count(&hits(&server)), PAGES, "{}", server.error_log());
    let on = |server: &Server, name: &str| responses(server, &dir.join(name));
    // When a member is added, responses that now belong to it are still found on the old one.
    change(&mut server, &conf("/a member=/b member=/c member=/d"));
    wait_known(&server, PAGES);
    assert_eq!(count(&hits(&server)), PAGES, "{}", server.error_log());
    assert_eq!(on(&server, "d"), 0);
    // Drained: read, and not written.
    change(&mut server, &conf("/a member=/b:drain member=/c member=/d"));
    assert_eq!(count(&hits(&server)), PAGES, "{}", server.error_log());
    for page in 0..PAGES {
        get(&server, &format!("/new/{page}"));
    }
    wait_stored(&server, PAGES);
    assert_eq!(on(&server, "b"), shares[1]);
    assert!(on(&server, "d") > 4);
    assert_eq!(state(&server, &dir.join("b")), "draining");
    // A purge applies to all members.
    assert_eq!((purge(&server, "/0"), purge(&server, "/0")), (204, 404));
    let before = requests.load(SeqCst);
    assert_eq!(count(&hits(&server)), PAGES - 1);
    wait_stored(&server, PAGES + 1);
    assert_eq!(requests.load(SeqCst), before + 1);
    // Removed: its share is fetched again, and nothing else.
    let remaining = on(&server, "b");
    change(&mut server, &conf("/a member=/c member=/d"));
    assert_eq!(count(&hits(&server)), PAGES - remaining, "{}", server.error_log());
    wait_stored(&server, PAGES + 1 + remaining);
    // A response with a new owner is removed from the old one as soon as it is fetched.
    assert_eq!(["a", "c", "d"].map(|name| on(&server, name)).iter().sum::<usize>(), 2 * PAGES);
}

#[test]
fn cache_with_one_directory_becomes_one_with_several() {
    STORES.iter().for_each(|store| become_several(store));
}

fn become_several(store: &str) {
    let (addr, _) = paths_origin();
    let dir = TempDir::new("members").unwrap();
    let conf = |members: &str| conf(addr, dir.path(), &format!("{members} {store}"));
    let mut server = server().with_master().start(&conf("/a")).unwrap();
    wait_loaded(&server, 1);
    hits(&server);
    wait_stored(&server, PAGES);
    assert_eq!(purge(&server, "/1"), 204);
    change(&mut server, &conf("/a member=/b:2g max_size=3g"));
    wait_known(&server, PAGES - 1);
    assert_eq!(count(&hits(&server)), PAGES - 1, "{}", server.error_log());
    change(&mut server, &conf("/a"));
    assert!(wait::until(wait::TIMEOUT, || metric(&server, "cache_filling") == 0));
    let found_value = count(&hits(&server));
    assert!(found_value >= PAGES - 1, "{found_value} {}", server.error_log());
    // Responses are also found after a restart with the original member only.
    server.stop().unwrap();
    let server = start(&conf("/a"));
    // Records of a log are found by their key once its segments have been read.
    wait_loaded(&server, 1);
    assert!(count(&hits(&server)) >= PAGES - 1);
}

#[test]
fn exchanged_directories_serve_their_own_responses() {
    STORES.iter().for_each(|store| exchange_directories(store));
}

fn exchange_directories(store: &str) {
    let (addr, _) = paths_origin();
    let temp = TempDir::new("members").unwrap();
    let dir = |name: &str| temp.join(name);
    let start = || start(&conf(addr, temp.path(), &format!("/a member=/b {store}")));
    let mut server = start();
    wait_loaded(&server, 2);
    hits(&server);
    wait_stored(&server, PAGES);
    let bodies =
        |server: &Server| (0..PAGES).map(|page| get(server, &format!("/{page}")).text()).collect::<Vec<_>>();
    let before = bodies(&server);
    server.stop().unwrap();
    fs::rename(dir("a"), dir("x")).unwrap();
    fs::rename(dir("b"), dir("a")).unwrap();
    fs::rename(dir("x"), dir("b")).unwrap();
    let server = start();
    wait_loaded(&server, 2);
    assert_eq!(bodies(&server), before);
    assert_eq!(count(&hits(&server)), PAGES, "{}", server.error_log());
}

#[test]
fn empty_mount_point_is_not_filled() {
    STORES.iter().for_each(|store| mount_nothing(store));
}

fn mount_nothing(store: &str) {
    let (addr, _) = paths_origin();
    let temp = TempDir::new("members").unwrap();
    let dir = |name: &str| temp.join(name);
    let start = || start(&conf(addr, temp.path(), &format!("/a member=/b {store}")));
    let mut server = start();
    wait_loaded(&server, 2);
    hits(&server);
    wait_stored(&server, PAGES);
    let on_b = responses(&server, &dir("b"));
    server.stop().unwrap();
    fs::rename(dir("b"), dir("mounted")).unwrap();
    fs::create_dir(dir("b")).unwrap();
    let mut server = start();
    let is_told = || server.error_log().contains("is left out: it has no file \"member\"");
    hits(&server);
    assert!(wait::until(wait::TIMEOUT, is_told), "{}", server.error_log());
    assert_eq!(count(&hits(&server)), PAGES - on_b);
    assert_eq!(fs::read_dir(dir("b")).unwrap().count(), 0);
    assert_eq!(state(&server, &dir("b")), "missing");
    assert_eq!(
        metric(&server, &format!("cache_member_up{{cache=\"one\",member=\"{}\"}}", dir("b").display())),
        0
    );
    // Mounted again.
    fs::remove_dir(dir("b")).unwrap();
    fs::rename(dir("mounted"), dir("b")).unwrap();
    server.wait_error_log("is used again").unwrap();
    // The member is readmitted by degrees: requests that try it are hits.
    assert!(wait::until(6 * wait::TIMEOUT, || count(&hits(&server)) == PAGES), "{}", server.error_log());
    // A new disk, with the file by which the operator permits its use.
    server.stop().unwrap();
    fs::remove_dir_all(dir("b")).unwrap();
    fs::create_dir(dir("b")).unwrap();
    fs::write(dir("b").join("member"), "").unwrap();
    let server = start();
    wait_loaded(&server, 2);
    assert_eq!(count(&hits(&server)), PAGES - on_b, "{}", server.error_log());
    assert_eq!(count(&hits(&server)), PAGES, "{}", server.error_log());
    assert_eq!(responses(&server, &dir("b")), on_b);
}

#[test]
fn purges_hold_for_a_member_that_was_missing() {
    STORES.iter().for_each(|store| purge_missing(store));
}

fn purge_missing(store: &str) {
    let (addr, _) = paths_origin();
    let temp = TempDir::new("members").unwrap();
    let dir = |name: &str| temp.join(name);
    let start = || start(&conf(addr, temp.path(), &format!("/a member=/b member=/c {store}")));
    let mut server = start();
    wait_loaded(&server, 3);
    hits(&server);
    wait_stored(&server, PAGES);
    server.stop().unwrap();
    for (missing, scope) in [("a", "one"), ("b", "prefix")] {
        fs::rename(dir(missing), dir("away")).unwrap();
        server = start();
        hits(&server);
        for page in 0..PAGES {
            if scope == "one" {
                purge(&server, &format!("/{page}"));
            }
        }
        if scope == "prefix" {
            // A key that ends with an asterisk is a prefix.
            assert_eq!(purge(&server, "/*"), 204);
        }
        // Back without knowing of it, in a new process.
        server.stop().unwrap();
        let _ = fs::remove_dir_all(dir(missing));
        fs::rename(dir("away"), dir(missing)).unwrap();
        server = start();
        assert_eq!(count(&hits(&server)), 0, "{missing} {}", server.error_log());
        // The other members at once, that one by degrees.
        assert!(wait::until(wait::TIMEOUT, || count(&hits(&server)) > PAGES / 2), "{}", server.error_log());
        server.stop().unwrap();
    }
}

/// Three disks, of which the second one fails.
struct Disks {
    disks: [SlowDisk; 3],
    requests: Arc<AtomicUsize>,
    server: Server,
    conf: String,
}

impl Disks {
    /// All pages are stored.
    fn new(more: &str) -> Option<Self> {
        let disks = [SlowDisk::mount_or_skip()?, SlowDisk::mount_or_skip()?, SlowDisk::mount_or_skip()?];
        let (addr, requests) = paths_origin();
        let [a, b, c] = disks.each_ref().map(|disk| disk.join("cache").display().to_string());
        let conf = format!(
            "thread_pool default threads=16 device_timeout=2s; {}",
            conf(addr, Path::new(""), &format!("{a} member={b} member={c} {more}"))
        );
        let server = start(&conf);
        wait_loaded(&server, 3);
        hits(&server);
        wait_stored(&server, PAGES);
        Some(Self { disks, requests, server, conf })
    }

    fn dir(&self) -> std::path::PathBuf {
        self.disks[1].join("cache")
    }

    fn failing_share(&self) -> usize {
        responses(&self.server, &self.dir())
    }

    fn wait_state(&self, expected: &str) {
        self.wait_states(&[expected]);
    }

    fn wait_states(&self, expected: &[&str]) {
        let is = || {
            hits(&self.server);
            expected.contains(&state(&self.server, &self.dir()).as_str())
        };
        assert!(
            wait::until(wait::TIMEOUT, is),
            "{}: {}",
            state(&self.server, &self.dir()),
            self.server.error_log()
        );
    }
}

#[test]
fn failing_member_is_left_out_and_comes_back() {
    let faults = [Fault::Error(Errno::IO), Fault::Stall, Fault::Delay(Duration::from_millis(300))];
    for (fault, store) in faults.iter().flat_map(|fault| STORES.map(|store| (*fault, store))) {
        // Without direct I/O, reads of segments would be served by the page cache.
        let direct = if store == "store=log" { "direct=on" } else { "" };
        let Some(mut cache) = Disks::new(&format!("slow=200ms {store} {direct}")) else { return };
        let share = cache.failing_share();
        let what = format!("{fault:?} {store}");
        assert!(share > 4);
        // The reload closes open files, so that each page is read from its disk.
        let conf = cache.conf.clone();
        reload(&mut cache.server, &conf);
        // Segments stay open.
        let faults = [Op::Open, Op::Read].map(|op| cache.disks[1].on(op).inject(fault));
        cache.wait_state("failing");
        assert!(metric(&cache.server, "cache_breaker_trips_total") > 0);
        // The other members keep their speed. Responses of the failing one are fetched from the origin.
        let before = cache.requests.load(SeqCst);
        let began = Instant::now();
        let during = count(&hits(&cache.server));
        assert!(began.elapsed() < Duration::from_secs(2), "{what}: {:?}", began.elapsed());
        assert!((PAGES - share..PAGES).contains(&during), "{what}: {during}");
        assert_eq!(cache.requests.load(SeqCst) - before, PAGES - during, "{what}");
        faults.into_iter().for_each(|fault| fault.lift());
        // Responses of the member are hits again, by degrees.
        cache.wait_state("probing");
        let is_back = || count(&hits(&cache.server)) > during;
        assert!(wait::until(4 * wait::TIMEOUT, is_back), "{what}: {}", cache.server.error_log());
        let log = cache.server.error_log();
        assert_eq!(log.matches("/cache\" is slow or fails, and is left out").count(), 1, "{log}");
        // No loop waited for the disk: otherwise a turn would have taken a second.
        let series = "event_loop_part_seconds_bucket{worker=\"0\",cause=\"kernel\",le=";
        let text = metrics_text(&cache.server);
        let turns = |bound: &str| -> u64 {
            let series = format!("tailwater_{series}\"{bound}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&*series)).unwrap().parse().unwrap()
        };
        assert_eq!(turns("+Inf"), turns("1"), "{log}");
    }
}

#[test]
fn member_that_cannot_be_written_is_still_read() {
    for (errno, store) in
        [Errno::NOSPC, Errno::ROFS].iter().flat_map(|errno| STORES.map(|store| (*errno, store)))
    {
        let Some(cache) = Disks::new(store) else { return };
        let _faults = [Op::Create, Op::Write].map(|op| cache.disks[1].on(op).inject(Fault::Error(errno)));
        let path = |page: usize| format!("/new/{page}");
        let is_told = || {
            (0..PAGES).for_each(|page| assert_eq!(get(&cache.server, &path(page)).status, 200));
            state(&cache.server, &cache.dir()) == "read-only"
        };
        assert!(wait::until(wait::TIMEOUT, is_told), "{errno} {}", cache.server.error_log());
        assert_eq!(count(&hits(&cache.server)), PAGES, "{errno} {}", cache.server.error_log());
        cache.server.wait_error_log("cannot store responses").unwrap();
    }
}

#[test]
fn hanging_member_keeps_neither_a_start_nor_a_purge_waiting() {
    STORES.iter().for_each(|store| hang(store));
}

fn hang(store: &str) {
    let Some(mut cache) = Disks::new(&format!("{store} snapshot=1s")) else { return };
    let share = cache.failing_share();
    if store == "store=log" {
        // Once the snapshot has all records, a start knows all of them at once.
        let entries = || cache.disks.iter().map(|disk| records_in_snapshot(&disk.join("cache"))).sum::<u64>();
        assert!(wait::until(wait::TIMEOUT, || entries() == PAGES as u64), "{}", entries());
    }
    cache.server.stop().unwrap();
    let stalls =
        [Op::Open, Op::Lookup, Op::Getattr, Op::Readdir].map(|op| cache.disks[1].on(op).inject(Fault::Stall));
    let began = Instant::now();
    cache.server = start(&cache.conf);
    let results = hits(&cache.server);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?} {}", began.elapsed(), cache.server.error_log());
    assert_eq!(count(&results), PAGES - share, "{}", cache.server.error_log());
    cache.server.wait_error_log("/cache\" is left out: ").unwrap();
    assert_eq!(state(&cache.server, &cache.dir()), "missing");
    let began = Instant::now();
    assert_eq!(purge(&cache.server, "/*"), 204);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let before = hits(&cache.server);
    assert_eq!(count(&before), 0);
    stalls.into_iter().for_each(|stall| stall.lift());
    // The reload starts another process, which can open the directory whatever the sandbox of the old one allows.
    let conf = cache.conf.clone();
    reload(&mut cache.server, &conf);
    // The next process may know that it was left out, and then admits it by degrees.
    cache.wait_states(&["probing", "up"]);
    let purged = get(&cache.server, "/api/http/caches/one").text();
    // No response from before the purge is served: each page has a later number.
    for page in 0..PAGES {
        let body = get(&cache.server, &format!("/{page}")).text();
        let nth: usize = body.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(nth >= PAGES, "{body} {purged}");
    }
}
