//! Bytes that change in the files of a cache: a response that was stored is served as it came, or not at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tw_testkit::http2::Http2;
use tw_testkit::origin::counting;
use tw_testkit::{Client, Response, Server, TempDir, wait};

use crate::support::cache::{cache_status, wait_stored};
use crate::support::metrics::metric;
use crate::support::{get, server, start};

const BLOCK: usize = 64 << 10;
const SMALL: usize = 1000;
/// Five blocks and a short one.
const LARGE: usize = 5 * BLOCK + 100;

/// Name of the file of `/large`.
const LARGE_NAME: &str = "6cedcd1018b99cbc1c6f11c000dcc2af";

/// Body of a path; no two blocks are the same.
fn body(path: &str) -> Vec<u8> {
    let len = if path.contains("small") { SMALL } else { LARGE };
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn cached(parameters: &str, location: &str) -> (Server, Arc<AtomicUsize>) {
    cached_in("cache", parameters, location)
}

fn cached_in(dir: &str, parameters: &str, location: &str) -> (Server, Arc<AtomicUsize>) {
    let (addr, request_count) = counting(|conn, head, _| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        conn.answer("", body(path));
    });
    let server = start(
        server().with_master(),
        &format!(
            "proxy_cache_path {dir} keys_zone=one:1m {parameters}; proxy_cache_key $uri;
             server {{ listen 127.0.0.1:{{port}}; http2 on;
                 location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h;
                     add_header X-Cache $upstream_cache_status; {location} }}
                 location = /metrics {{ metrics; }} }}"
        ),
    );
    (server, request_count)
}

/// Stores the response for a path, the only one.
fn store(server: &Server, path: &str) {
    assert_eq!(get(server, path).body, body(path), "{path}");
    wait_stored(server, 1);
}

/// File of the only entry.
fn file(server: &Server) -> PathBuf {
    file_in(&server.prefix().join("cache"))
}

fn file_in(dir: &Path) -> PathBuf {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<_> = entries.filter(|entry| entry.file_name().len() == 32).collect();
    assert_eq!(names.len(), 1);
    names.remove(0).path()
}

fn number(file: &[u8], at: usize, len: usize) -> usize {
    file[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Part of a file.
#[derive(Debug, Clone, Copy)]
enum Part {
    Head,
    /// Offset in the body.
    Body(usize),
    Table,
}

/// Flips a bit in the file of the only entry. Returns the offset of the byte.
fn flip(server: &Server, part: Part) -> usize {
    let path = file(server);
    let mut content = fs::read(&path).unwrap();
    let head = number(&content, 12, 4);
    let at = match part {
        Part::Head => 50,
        Part::Body(at) => head + at,
        Part::Table => head + number(&content, 24, 8) + 5,
    };
    content[at] ^= 0x20;
    fs::write(path, content).unwrap();
    at
}

fn damaged(server: &Server) -> u64 {
    metric(server, "cache_damaged_total")
}

/// Requests a path with these fields. Returns the head, and what came of the body until the connection was closed.
fn fetch(server: &Server, path: &str, fields: &str) -> (Response, Vec<u8>) {
    let mut client = server.connect().unwrap();
    client
        .send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n"))
        .unwrap();
    let head = client.read_head().unwrap();
    // A connection that is reset ends as well.
    let body = client.read_until_close().unwrap_or_default();
    (head, body)
}

/// Waits until the path is stored again, and requests it twice.
fn is_stored_again(server: &Server, path: &str) {
    wait_stored(server, 2);
    for _ in 0..2 {
        let again = get(server, path);
        assert_eq!((cache_status(&again), &again.body), ("HIT", &body(path)), "{path}");
    }
}

const SENDERS: [&str; 4] = ["", "sendfile on;", "aio threads;", "aio threads; sendfile on;"];

#[test]
fn damage_that_is_found_before_the_head_is_a_miss() {
    for (path, part) in [
        ("/small", Part::Head),
        ("/small", Part::Body(0)),
        ("/small", Part::Body(SMALL - 1)),
        ("/large", Part::Head),
        ("/large", Part::Body(0)),
        ("/large", Part::Body(BLOCK - 1)),
        ("/large", Part::Table),
    ] {
        let (server, request_count) = cached("", "");
        store(&server, path);
        flip(&server, part);
        let response = get(&server, path);
        assert_eq!((cache_status(&response), &response.body), ("MISS", &body(path)), "{path} {part:?}");
        assert_eq!((request_count.load(SeqCst), damaged(&server)), (2, 1), "{path} {part:?}");
        server.wait_error_log("is damaged: ").unwrap();
        let log = server.error_log();
        assert!(log.matches("[crit]").count() == 1, "{log}");
        is_stored_again(&server, path);
        assert_eq!((request_count.load(SeqCst), damaged(&server)), (2, 1), "{path} {part:?}");
    }
}

#[test]
fn damage_behind_the_first_block_aborts_the_response() {
    for location in SENDERS {
        for at in [BLOCK, 3 * BLOCK + 7, LARGE - 1] {
            let (server, request_count) = cached("", location);
            store(&server, "/large");
            let offset = flip(&server, Part::Body(at)) - at % BLOCK;
            let (head, received) = fetch(&server, "/large", "");
            assert_eq!((head.status, cache_status(&head)), (200, "HIT"), "{location} {at}");
            assert!(received.len() <= at / BLOCK * BLOCK, "{location} {at}: {}", received.len());
            assert!(body("/large").starts_with(&received), "{location} {at}");
            let shown = format!("{LARGE_NAME}\" is damaged at offset {offset}: body-checksum");
            server.wait_error_log(&shown).unwrap();
            assert_eq!(damaged(&server), 1, "{location} {at}");
            let response = get(&server, "/large");
            assert_eq!((cache_status(&response), &response.body), ("MISS", &body("/large")));
            is_stored_again(&server, "/large");
            assert_eq!((request_count.load(SeqCst), damaged(&server)), (2, 1), "{location} {at}");
        }
    }
}

#[test]
fn ranges_need_only_their_blocks() {
    for location in SENDERS {
        let (server, _) = cached("", location);
        store(&server, "/large");
        flip(&server, Part::Body(3 * BLOCK + 7));
        let whole = body("/large");
        for (first, last) in [(0, 9), (BLOCK - 1, BLOCK), (4 * BLOCK, LARGE - 1), (LARGE - 1, LARGE - 1)] {
            for _ in 0..2 {
                let (head, part) = fetch(&server, "/large", &format!("Range: bytes={first}-{last}\r\n"));
                assert_eq!((head.status, cache_status(&head)), (206, "HIT"), "{first}-{last}");
                assert!(part == whole[first..=last], "{location} {first}-{last}");
            }
        }
        // Several, of which small ones are gathered.
        let several = format!("Range: bytes=5-8,{}-{}\r\n", 4 * BLOCK - 1, 4 * BLOCK);
        assert_eq!(damaged(&server), 0);
        let (head, part) = fetch(&server, "/large", &several);
        assert_eq!(head.status, 206);
        assert!(part.len() < number_field(&head, "Content-Length"), "{location}");
        assert_eq!(damaged(&server), 1, "{location}");
        let (head, _) = fetch(&server, "/large", &several);
        assert_eq!(cache_status(&head), "MISS", "{location}");
    }
}

fn number_field(head: &Response, name: &str) -> usize {
    head.field(name).unwrap().parse().unwrap()
}

#[test]
fn http2_stream_with_damage_is_reset() {
    for at in [0, 3 * BLOCK + 7] {
        let (server, request_count) = cached("", "");
        store(&server, "/large");
        flip(&server, Part::Body(at));
        let mut client = Http2::connect(server.addr()).unwrap();
        if at > 0 {
            assert!(client.get("/large").is_err());
            assert_eq!(damaged(&server), 1);
        }
        // The same connection can be used for the next request.
        let response = client.get("/large").unwrap();
        assert_eq!(response.field("x-cache"), Some("MISS"));
        assert!(response.body == body("/large"));
        assert_eq!((request_count.load(SeqCst), damaged(&server)), (2, 1), "{at}");
        wait_stored(&server, 2);
        let response = client.get("/large").unwrap();
        assert_eq!(response.field("x-cache"), Some("HIT"));
        assert!(response.body == body("/large"));
    }
}

#[test]
fn hot_responses_are_sent_as_before() {
    for location in SENDERS {
        let (server, request_count) = cached("", location);
        store(&server, "/large");
        let mut client = server.connect().unwrap();
        for round in 0..12 {
            client.send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let response = client.read_response().unwrap();
            assert_eq!(cache_status(&response), "HIT");
            assert!(response.body == body("/large"), "{location} {round}");
        }
        let mut client = Http2::connect(server.addr()).unwrap();
        assert!(client.get("/large").unwrap().body == body("/large"), "{location}");
        let (_, slow) = fetch(&server, "/large", "Range: bytes=100-\r\n");
        assert!(slow == body("/large")[100..], "{location}");
        assert_eq!((request_count.load(SeqCst), damaged(&server)), (1, 0), "{location}");
    }
}

#[test]
fn verify_off_serves_bytes_as_they_are() {
    for (path, at) in [("/small", 5), ("/large", 3 * BLOCK)] {
        let (server, request_count) = cached("verify=off", "");
        store(&server, path);
        flip(&server, Part::Body(at));
        let response = get(&server, path);
        let mut expected = body(path);
        expected[at] ^= 0x20;
        assert_eq!(cache_status(&response), "HIT");
        assert!(response.body == expected, "{path}");
        assert_eq!((request_count.load(SeqCst), damaged(&server)), (1, 0));
    }
    let conf = "http { proxy_cache_path cache keys_zone=one:1m verify=maybe; }";
    let output = server().arg("-t").run(conf).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("invalid verify value \"maybe\", it must be \"on\" or \"off\""), "{said}");
}

/// CRC-32, bit by bit.
fn crc32(parts: &[&[u8]]) -> [u8; 4] {
    let all = parts.iter().flat_map(|part| part.iter());
    let sum = all.fold(!0_u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(sum & 1)))
    });
    (!sum).to_le_bytes()
}

/// Makes a file of version 1 of one of version 2.
fn of_version_1(mut file: Vec<u8>) -> Vec<u8> {
    let head = number(&file, 12, 4);
    let body_len = number(&file, 24, 8);
    let used = number(&file, 16, 4);
    file.truncate(head + body_len);
    file[8..10].copy_from_slice(&[1, 0]);
    let state = crc32(&[&file[40..56], &file[72..80], &file[24..32]]);
    file[32..36].copy_from_slice(&state);
    file[36..40].fill(0);
    let sum = crc32(&[&file[..20], &file[40..used]]);
    file[20..24].copy_from_slice(&sum);
    file
}

#[test]
fn files_of_version_1_are_served_without_checks() {
    for path in ["/small", "/large"] {
        let dir = TempDir::new("version-1").unwrap();
        let dir = dir.path().join("cache").display().to_string();
        let (mut server, _) = cached_in(&dir, "", "");
        store(&server, path);
        server.stop().unwrap();
        let name = file_in(Path::new(&dir));
        let mut content = of_version_1(fs::read(&name).unwrap());
        let at = content.len() - 9;
        content[at] ^= 1;
        fs::write(&name, content).unwrap();
        let (server, request_count) = cached_in(&dir, "", "sendfile on;");
        let response = get(&server, path);
        let mut expected = body(path);
        let at = expected.len() - 9;
        expected[at] ^= 1;
        assert_eq!(cache_status(&response), "HIT", "{}", server.error_log());
        assert!(response.body == expected, "{path}");
        assert_eq!((request_count.load(SeqCst), damaged(&server)), (0, 0));
    }
}

#[test]
fn truncated_file_is_noticed() {
    let (server, _) = cached("", "");
    store(&server, "/large");
    // The file is open, and its first block was verified.
    let (_, begin) = fetch(&server, "/large", "Range: bytes=0-9\r\n");
    assert_eq!(begin, body("/large")[..10]);
    let name = file(&server);
    let content = fs::read(&name).unwrap();
    fs::OpenOptions::new().write(true).open(&name).unwrap().set_len(content.len() as u64 / 2).unwrap();
    let (_, received) = fetch(&server, "/large", "");
    assert!(received.len() < LARGE && body("/large").starts_with(&received));
    assert!(wait::until(wait::TIMEOUT, || {
        let response = Client::get(server.addr(), "/large").unwrap();
        cache_status(&response) == "MISS" && response.body == body("/large")
    }));
}
