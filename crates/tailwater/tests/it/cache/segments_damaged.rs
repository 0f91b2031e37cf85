//! `store=log` on disks that change bytes, lose ends, exchange files, are full, read-only or stall: no wrong byte, and no error that
//! the origin could have prevented.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::origin::counting;
use tw_testkit::{Errno, Random, Response, Server, Signal, TempDir, wait};

use crate::support::cache::{cache_status, records_in_snapshot, wait_stored};
use crate::support::files::files_below;
use crate::support::metrics::metric;
use crate::support::{get, server, start};

/// Sizes of the responses: several blocks of checksums, one, less than a block of the disk.
const SIZES: [usize; 3] = [300_000, 9000, 500];
/// Number of responses: more than two segments of 4 MiB.
const PAGES: usize = 96;

fn size(page: usize) -> usize {
    SIZES[page % SIZES.len()] + page
}

fn body(page: usize) -> Vec<u8> {
    let mut body = format!("page {page}|").into_bytes();
    body.extend(Random::new(page as u64 + 1).bytes(size(page)));
    body
}

fn pages_origin() -> (SocketAddr, Arc<AtomicUsize>) {
    counting(|conn, head, _| {
        let page = head.split(['/', ' ']).nth(2).and_then(|page| page.parse().ok()).unwrap_or(0);
        conn.answer("Cache-Control: max-age=3600\r\n", body(page));
    })
}

fn conf(dir: &Path, addr: SocketAddr, parameters: &str) -> String {
    format!(
        "proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m inactive=1h store=log segment=4m {parameters};
         server {{ listen 127.0.0.1:{{port}};
             location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_key $uri;
                 add_header X-Cache $upstream_cache_status; }}
             location = /metrics {{ metrics; }} }}",
        dir.display()
    )
}

/// A cache with all pages, whose server was killed.
struct Killed {
    dir: TempDir,
    addr: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Killed {
    fn new(parameters: &str) -> Self {
        let dir = TempDir::new("segments-damaged").unwrap();
        let (addr, requests) = pages_origin();
        let mut server = start(server().with_master(), &conf(dir.path(), addr, parameters));
        (0..PAGES).for_each(|page| assert!(get(&server, &format!("/{page}")).body == body(page)));
        wait_stored(&server, PAGES);
        if parameters.contains("snapshot=1s") {
            let is_full = || records_in_snapshot(&dir.join("cache")) == PAGES as u64;
            assert!(wait::until(wait::TIMEOUT, is_full), "{}", server.error_log());
        }
        server.signal(Signal::KILL).unwrap();
        let _ = server.wait_exit(wait::TIMEOUT);
        Self { dir, addr, requests }
    }

    fn start(&self, parameters: &str) -> Server {
        let server = start(server().with_master(), &conf(self.dir.path(), self.addr, parameters));
        server.wait_error_log(" files, ").unwrap();
        server
    }

    /// Path of a segment.
    fn segment(&self, number: u32) -> PathBuf {
        self.dir.path().join(format!("cache/segments/{number:08}"))
    }

    /// Requests all pages. Returns how many were hits. A response that ends early is one with damage behind its first block: what
    /// came of it is right, and the next one is whole.
    fn hits(&self, server: &Server) -> usize {
        let mut hits = 0;
        for page in 0..PAGES {
            let whole = body(page);
            let mut client = server.connect().unwrap();
            client.send(format!("GET /{page} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).unwrap();
            let head = client.read_head().unwrap();
            assert_eq!(head.status, 200, "{page}");
            let received = client.read_until_close().unwrap_or_default();
            assert!(whole.starts_with(&received), "{page}: wrong bytes");
            if received.len() < whole.len() {
                assert!(
                    received.len() >= 65_536 && cache_status(&head) == "HIT",
                    "{page} {}",
                    received.len()
                );
                let again: Response = get(server, &format!("/{page}"));
                assert!(again.body == whole, "{page}");
                continue;
            }
            hits += usize::from(cache_status(&head) == "HIT");
        }
        hits
    }

    fn flip(&self, path: &Path, at: usize) {
        let mut content = fs::read(path).unwrap();
        content[at] ^= 0x10;
        fs::write(path, content).unwrap();
    }

    /// Offset of the body of a page in the first segment.
    fn body_at(&self, page: usize) -> usize {
        let content = fs::read(self.segment(0)).unwrap();
        let begin = &body(page)[..40];
        content.windows(40).position(|window| window == begin).expect("the page is in the first segment")
    }
}

#[test]
fn flipped_bits_of_records_are_never_served() {
    let at_body = |behind: usize| move |at: usize| at + behind;
    let in_prefix = |at: usize| (at / 4096) * 4096 + 20;
    let in_head = |at: usize| (at / 4096) * 4096 + 64 + 50;
    // Page, place of the bit, responses that are no hits.
    let cases: [(usize, &dyn Fn(usize) -> usize); 6] = [
        (1, &at_body(0)),
        (1, &at_body(8999)),
        (0, &at_body(100)),
        (0, &at_body(200_000)),
        (2, &in_prefix),
        (1, &in_head),
    ];
    for (nth, (page, place)) in cases.into_iter().enumerate() {
        for parameters in ["snapshot=1s", "snapshot=off"] {
            let killed = Killed::new(parameters);
            killed.flip(&killed.segment(0), place(killed.body_at(page)));
            let server = killed.start(parameters);
            let hits = killed.hits(&server);
            assert_eq!(hits, PAGES - 1, "{nth} {parameters} {}", server.error_log());
            assert_eq!(killed.requests.load(SeqCst), PAGES + 1, "{nth} {}", server.error_log());
            wait_stored(&server, 1);
            assert_eq!(killed.hits(&server), PAGES, "{nth} {parameters}");
        }
    }
}

#[test]
fn damaged_tables_and_snapshots_lose_no_response() {
    let table_of = |path: &Path| {
        let content = fs::read(path).unwrap();
        let block = u32::from_le_bytes(content[40..44].try_into().unwrap());
        assert!(block > 0, "the segment is complete");
        block as usize * 4096
    };
    for parameters in ["snapshot=1s", "snapshot=off"] {
        let killed = Killed::new(parameters);
        let first = killed.segment(0);
        killed.flip(&first, table_of(&first) + 50);
        let server = killed.start(parameters);
        server.wait_error_log("segment 00000000 is damaged (checksum)").unwrap();
        assert_eq!(killed.hits(&server), PAGES, "{}", server.error_log());
        // The whole table is missing.
        drop(server);
        let killed = Killed::new(parameters);
        let first = killed.segment(0);
        let file = fs::OpenOptions::new().write(true).open(&first).unwrap();
        file.set_len(table_of(&first) as u64).unwrap();
        let server = killed.start(parameters);
        assert_eq!(killed.hits(&server), PAGES, "{}", server.error_log());
    }
    for at in [20, 4096 + 500, 2 * 4096 + 20] {
        let killed = Killed::new("snapshot=1s");
        killed.flip(&killed.dir.path().join("cache/pages"), at);
        let server = killed.start("snapshot=1s");
        assert_eq!(killed.hits(&server), PAGES, "{at} {}", server.error_log());
    }
}

#[test]
fn torn_segments_lose_only_what_is_missing() {
    for parameters in ["snapshot=1s", "snapshot=off"] {
        for (number, cut) in
            [(0, 5000), (1, 1), (1, 4096 + 100), (2, 70_000), (2, usize::MAX), (0, usize::MAX)]
        {
            let killed = Killed::new(parameters);
            let path = killed.segment(number);
            let len = fs::metadata(&path).unwrap().len();
            // `usize::MAX` stands for the whole segment, cut in the middle of its header.
            let remaining = if cut == usize::MAX { 30 } else { len - cut as u64 };
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(remaining).unwrap();
            let server = killed.start(parameters);
            let hits = killed.hits(&server);
            if cut == usize::MAX {
                assert!(hits > 0 && hits < PAGES, "{number} {cut} {hits}");
            } else {
                assert!(hits >= PAGES - 3, "{number} {cut} {hits}: {}", server.error_log());
            }
            wait_stored(&server, PAGES - hits);
            assert_eq!(killed.hits(&server), PAGES, "{number} {cut}");
        }
    }
}

/// A process that is killed between the creation of a file and the first write into it leaves one.
#[test]
fn empty_segment_of_a_killed_server_is_not_damaged() {
    for parameters in ["snapshot=1s", "snapshot=off"] {
        let killed = Killed::new(parameters);
        fs::write(killed.segment(44), "").unwrap();
        let server = killed.start(parameters);
        assert_eq!(killed.hits(&server), PAGES, "{}", server.error_log());
        assert_eq!(metric(&server, "cache_damaged_total{cache=\"one\"}"), 0, "{}", server.error_log());
        assert!(!server.error_log().contains("[crit]"), "{}", server.error_log());
        let is_gone = || !killed.segment(44).exists();
        assert!(wait::until(2 * wait::TIMEOUT, is_gone), "{parameters}: {}", server.error_log());
    }
}

#[test]
fn exchanged_segments_are_misses_and_give_their_space_back() {
    for parameters in ["snapshot=1s max_size=24m", "snapshot=off max_size=24m"] {
        let killed = Killed::new(parameters);
        let a = killed.segment(0);
        let b = killed.segment(1);
        let away = killed.segment(77).with_extension("x");
        fs::rename(&a, &away).unwrap();
        fs::rename(&b, &a).unwrap();
        fs::rename(&away, &b).unwrap();
        let server = killed.start(parameters);
        let hits = killed.hits(&server);
        assert!(hits > 0 && hits < PAGES, "{hits}");
        wait_stored(&server, PAGES - hits);
        assert_eq!(killed.hits(&server), PAGES, "{}", server.error_log());
        // The exchanged segments cannot be used any more, so both are removed.
        let is_gone = || !a.exists() && !b.exists();
        assert!(wait::until(2 * wait::TIMEOUT, is_gone), "{parameters}: {}", server.error_log());
        assert_eq!(killed.hits(&server), PAGES, "{}", server.error_log());
    }
}

#[test]
fn full_and_read_only_disks_lose_entries_only() {
    for errno in [Errno::NOSPC, Errno::ROFS, Errno::IO, Errno::DQUOT] {
        let Some(disk) = SlowDisk::mount_or_skip() else { return };
        let (addr, _) = pages_origin();
        let server = start(server(), &conf(disk.path(), addr, ""));
        server.wait_error_log(" files, ").unwrap();
        let ask = |page: usize| {
            let response = get(&server, &format!("/{page}"));
            assert!(
                response.status == 200 && response.body == body(page),
                "{errno} {page}: {}",
                response.status
            );
            cache_status(&response).to_owned()
        };
        (0..6).for_each(|page| _ = ask(page));
        wait_stored(&server, 6);
        let faults =
            [Op::Create, Op::Write, Op::Rename, Op::Unlink].map(|op| disk.on(op).inject(Fault::Error(errno)));
        // Responses in segments are used, new ones come from the origin.
        for _ in 0..2 {
            (0..6).for_each(|page| assert_eq!(ask(page), "HIT", "{errno} {page}"));
            (6..20).for_each(|page| assert_eq!(ask(page), "MISS", "{errno} {page}"));
        }
        assert!(faults.iter().any(|fault| fault.hits() > 0), "{errno}");
        assert!(metric(&server, "cache_disk_failures_total") > 0, "{errno}");
        faults.into_iter().for_each(|fault| fault.lift());
        let are_stored = || {
            let hits = (0..20).filter(|page| ask(*page) == "HIT").count();
            hits == 20
        };
        assert!(wait::until(2 * wait::TIMEOUT, are_stored), "{errno} {}", server.error_log());
    }
}

#[test]
fn stalled_disk_delays_nothing_that_is_elsewhere() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let (addr, requests) = pages_origin();
    let conf = conf(disk.path(), addr, "slow=200ms");
    // A read that the disk never answers is given up after this time.
    let conf = format!("thread_pool default threads=16 device_timeout=2s; http {{ {conf} }}");
    let server = server().with_master().start(&conf).unwrap();
    server.wait_error_log(" files, ").unwrap();
    let ask = |page: usize| {
        let began = Instant::now();
        let response = get(&server, &format!("/{page}"));
        assert!(response.status == 200 && response.body == body(page), "{page}: {}", response.status);
        (cache_status(&response).to_owned(), began.elapsed())
    };
    (0..12).for_each(|page| _ = ask(page));
    wait_stored(&server, 12);
    let count_hangs = || server.error_log().matches(" hangs: ").count();
    for op in [Op::Write, Op::Read] {
        let hangs = count_hangs();
        let stall = disk.on(op).inject(Fault::Stall);
        // SIGUSR1 closes open files and drops responses in memory, so that there is something to read.
        server.signal(Signal::USR1).unwrap();
        // The first requests may wait for a read that never ends. A body that is larger than the read of its head
        // cannot be fetched from the origin once the head was sent.
        let mut pages = (0..24).filter(|page| op == Op::Write || size(*page) < 64 << 10);
        let are_quick = || pages.clone().all(|page| ask(page).1 < Duration::from_secs(1));
        let is_noticed = || op == Op::Write || count_hangs() > hangs;
        assert!(
            wait::until(4 * wait::TIMEOUT, || are_quick() && is_noticed()),
            "{op:?} {}",
            server.error_log()
        );
        assert!(pages.all(|page| ask(page).1 < Duration::from_secs(5)), "{op:?} {}", server.error_log());
        stall.lift();
    }
    let before = requests.load(SeqCst);
    let are_hits = || (0..24).all(|page| ask(page).0 == "HIT");
    assert!(
        wait::until(4 * wait::TIMEOUT, are_hits),
        "{} {}",
        requests.load(SeqCst) - before,
        server.error_log()
    );
    assert!(!files_below(&disk.join("cache/segments")).is_empty());
}
