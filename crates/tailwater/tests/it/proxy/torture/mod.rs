//! Many concurrent requests between faulty clients and a faulty origin. Each request is derived from a seed: none
//! hangs, none gets the bytes of another, and nothing is leaked.
//!
//! `cargo xtask torture` sends more of them, with another seed every time; `TAILWATER_TORTURE` is their number and
//! `TAILWATER_TORTURE_SEED` the seed.

mod case;
mod client;
mod server;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use tw_testkit::{Random, Server, wait};

use crate::support::env_number;
use crate::support::metrics::{metric_values, metrics_text};
use case::Case;
use client::{Client, Outcome};

const COUNT: u64 = 3000;
const SEED: u64 = 1;
/// Concurrent clients.
const CLIENTS: u64 = 16;
/// Requests before anything is measured: threads have their stacks then, and loops their buffers.
const FIRST: u64 = 300;
/// Memory that threads may hold after work in addition to that before.
const MORE_MEMORY: u64 = 32 << 20;
/// Number of failures that are printed.
const REPORTED_MAX: usize = 10;

fn start(wrong: &server::Wrong) -> Server {
    let [one, other] = [(); 2].map(|()| server::start(wrong));
    crate::support::server()
        .in_one_process()
        .start(&format!(
            "worker_processes 2; error_log logs/error.log crit;
             http {{
                 upstream one {{ server {one} max_fails=0; keepalive 8; keepalive_timeout 1s; }}
                 upstream two {{ server {one} max_fails=0; server {other} max_fails=0; keepalive 4; keepalive_timeout 1s; }}
                 client_max_body_size 0; client_body_buffer_size 8k;
                 proxy_buffer_size 4k; proxy_buffers 4 4k;
                 server {{ listen 127.0.0.1:{{port}} sndbuf=8k;
                     location /buffered/ {{ proxy_pass http://one; }}
                     location /memory/ {{ proxy_pass http://two; proxy_max_temp_file_size 0; }}
                     location /direct/ {{ proxy_pass http://two; proxy_buffering off; proxy_request_buffering off; }}
                     location /hasty/ {{ proxy_pass http://one; proxy_read_timeout 300ms; }}
                     location = /metrics {{ metrics; }} }} }}"
        ))
        .unwrap()
}

/// Outcomes of all requests, and failures.
#[derive(Default)]
struct Tally {
    outcomes: BTreeMap<Outcome, u64>,
    wrong: Vec<String>,
}

/// Sends the cases with these numbers.
fn run(server: &Server, seed: u64, numbers: std::ops::Range<u64>) -> Tally {
    let next = AtomicU64::new(numbers.start);
    let tally = Mutex::new(Tally::default());
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::new(server.addr());
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= numbers.end || tally.lock().unwrap().wrong.len() >= REPORTED_MAX {
                        return;
                    }
                    let case = Case::of(Random::new(seed ^ number.rotate_left(32)).next_number());
                    let outcomes = client.request(&case);
                    let mut tally = tally.lock().unwrap();
                    match outcomes {
                        Ok(outcomes) => *tally.outcomes.entry(outcomes).or_default() += 1,
                        Err(what) => tally.wrong.push(format!("request {number}: {what}: {case:?}")),
                    }
                }
            });
        }
    });
    tally.into_inner().unwrap()
}

/// Resources of a process.
#[derive(Debug)]
struct Holds {
    descriptors: usize,
    /// Temporary files that are open, or have a name.
    files: usize,
    memory: u64,
    /// Connections of clients besides the one that asks, and requests that are under way at origins.
    connections: u64,
}

fn holds(server: &Server) -> Holds {
    let metrics = metrics_text(server);
    let sum = |family: &str| metric_values::<u64>(&metrics, family).iter().sum::<u64>();
    let open = sum("connections_open").saturating_sub(1);
    let links = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
    let links: Vec<_> = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok()).collect();
    let is_temp = |link: &&std::path::PathBuf| link.to_string_lossy().contains("_temp");
    let named = ["proxy_temp", "client_body_temp"].map(|dir| named(&server.prefix().join(dir)));
    let statm = fs::read_to_string(format!("/proc/{}/statm", server.pid())).unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    Holds {
        descriptors: links.len(),
        files: links.iter().filter(is_temp).count() + named.iter().sum::<usize>(),
        memory: pages * rustix::param::page_size() as u64,
        connections: open + sum("upstream_peer_connections"),
    }
}

/// Files at or below `dir`.
fn named(dir: &std::path::Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.map(|path| if path.is_dir() { named(&path) } else { 1 }).sum()
}

#[test]
fn faulty_peers_cause_no_hang_no_mixed_bytes_and_no_leak() {
    let count = env_number("TAILWATER_TORTURE", COUNT);
    let seed = env_number("TAILWATER_TORTURE_SEED", SEED);
    let wrong = server::Wrong::default();
    let server = start(&wrong);
    let begun = Instant::now();
    run(&server, !seed, 0..FIRST);
    let is_idle = |now: &Holds| now.files == 0 && now.connections == 0;
    assert!(wait::until(wait::TIMEOUT, || is_idle(&holds(&server))), "{:?}", holds(&server));
    let before = holds(&server);

    let tally = run(&server, seed, 0..count);
    println!("{count} requests of seed {seed} in {:?}: {:?}", begun.elapsed(), tally.outcomes);
    let all: Vec<_> = tally.wrong.into_iter().chain(wrong.lock().unwrap().drain(..)).collect();
    assert!(all.is_empty(), "TAILWATER_TORTURE={count} TAILWATER_TORTURE_SEED={seed}\n{}", all.join("\n"));
    assert!(tally.outcomes.get(&Outcome::Whole) > Some(&(count / 4)), "{:?}", tally.outcomes);

    let mut after = holds(&server);
    let is_back = wait::until(6 * wait::TIMEOUT, || {
        after = holds(&server);
        is_idle(&after)
            && after.descriptors <= before.descriptors
            && after.memory < before.memory + MORE_MEMORY
    });
    println!("before {before:?}\nafter  {after:?}");
    assert!(is_back, "seed {seed}: before {before:?}, after {after:?}");
    let log = server.error_log();
    assert!(!log.contains("[alert]") && !log.contains("[emerg]") && !log.contains("panicked"), "{log}");
}
