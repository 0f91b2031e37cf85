//! Example with three disks in `docs/caching.md`: three caches with thread pools of their own, a hash over the
//! addresses, `sendfile`. The configuration runs as written, with other directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use tw_testkit::origin::counting;
use tw_testkit::{Random, Server, wait};

use super::doc_examples::example;
use crate::support::files::files_below;
use crate::support::get;

/// Enough responses that each disk gets a share.
const PATHS: usize = 300;
const LARGE: usize = 3 << 20;

/// Number of cache files below a directory; temporary files have a number behind their name.
fn files(dir: &Path) -> usize {
    files_below(dir).iter().filter(|path| path.extension().is_none()).count()
}

/// Responses on each of the three disks.
fn on_disks(server: &Server) -> [usize; 3] {
    ["disk1", "disk2", "disk3"].map(|disk| files(&server.prefix().join(disk)))
}

#[test]
fn example_of_three_disks_runs_as_written() {
    let large = Random::new(3).bytes(LARGE);
    let body = large.clone();
    let (origin, request_count) =
        counting(move |conn, head, _| match head.split(' ').nth(1).unwrap_or_default() {
            "/large" => conn.answer("", &body),
            path => conn.answer("", path),
        });
    let mut server = example("Several disks", origin);
    let paths: Vec<String> = (0..PATHS).map(|nth| format!("/{nth}")).collect();
    for path in &paths {
        assert_eq!(get(&server, path).text(), *path);
    }
    assert_eq!(get(&server, "/large").body, large);
    assert!(wait::until(wait::TIMEOUT, || on_disks(&server).iter().sum::<usize>() == PATHS + 1));
    // A third each, as far as chance goes.
    let on = on_disks(&server);
    assert!(on.iter().all(|count| (PATHS / 4..PATHS / 2).contains(count)), "{on:?}");
    assert_eq!(request_count.load(SeqCst), PATHS + 1);

    // Every response is served from the member that holds it, also after a restart.
    let content = contents(server.prefix());
    for round in 0..2 {
        for path in &paths {
            assert_eq!(get(&server, path).text(), *path, "{round}");
        }
        assert_eq!(get(&server, "/large").body, large);
        assert_eq!(request_count.load(SeqCst), PATHS + 1);
        assert_eq!(contents(server.prefix()), content);
        if round == 0 {
            server.signal(tw_testkit::Signal::HUP).unwrap();
        }
    }
    assert!(!server.error_log().contains("[crit]"), "{}", server.error_log());
    server.stop().unwrap();
}

/// Sizes of all files on the three disks, by path.
fn contents(prefix: &Path) -> BTreeMap<String, u64> {
    fn below(dir: &Path, results: &mut BTreeMap<String, u64>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                below(&path, results);
            } else {
                results.insert(path.display().to_string(), entry.metadata().unwrap().len());
            }
        }
    }
    let mut results = BTreeMap::new();
    for disk in ["disk1", "disk2", "disk3"] {
        below(&prefix.join(disk), &mut results);
    }
    results
}
