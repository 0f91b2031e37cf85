//! File access: only where waiting for a disk is allowed; everything else goes through tw-disk.

use super::Finding;
use super::tree::Tree;

/// Paths that may use `std::fs`, and why they may wait.
const HOMES: &[(&str, &str)] = &[
    ("crates/tw-disk/", "the door itself"),
    ("crates/tw-log/", "opened by the main thread, reopened by writer threads"),
    ("crates/tw-conf/", "the configuration is read before anything runs"),
    ("crates/tw-sys/", "kernel calls, whoever makes them"),
    ("crates/tw-rt/src/available_memory.rs", "the kernel's numbers, read by the thread of configurations"),
    ("crates/tw-net/src/listen/", "listening sockets are opened before a loop has them"),
    (
        "crates/tw-dns/src/system.rs",
        "the system's name servers and hosts, read when a configuration is loaded, and by a pool or a thread that may wait",
    ),
    (
        "crates/tw-connect/src/upstream_block/state_file.rs",
        "the state of groups, read when a configuration is loaded",
    ),
    (
        "crates/tw-http-cache/src/cache_path/device_format.rs",
        "devices are checked when a configuration is loaded, and formatted by a command",
    ),
    ("crates/tw-acme/", "the thread that orders certificates may wait"),
    ("crates/tw-fleet/", "the thread that follows a fleet may wait"),
    ("crates/tw-cache/examples/", "programs that measure, which run no loop"),
    ("crates/tw-waf/examples/", "a program that tests rules, which runs no loop"),
    ("crates/tailwater/", "the command line and the main thread run no loop"),
    ("crates/tailwater-commands/", "the command line and the main thread run no loop"),
    ("crates/tailwater-scripts/src/console.rs", "a module is read when it is run by hand"),
    ("crates/tailwater-top/", "a program of its own, which runs no loop"),
    ("crates/tailwater-ingress/", "a program of its own, which runs no loop"),
    ("crates/tw-slowdisk/", "a program of its own, which runs no loop"),
    ("crates/tw-testkit/", "development only"),
    ("crates/tw-bench/", "development only"),
    ("crates/tw-differ/", "development only"),
    ("xtask/", "a tool"),
];

/// Names of types and functions that access files.
const DOORS: &[&str] = &["std::fs", "tokio::fs", "fs::File", "File::open(", "OpenOptions::new("];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !HOMES.iter().any(|(home, _)| file.path.starts_with(home))) {
        for line in file.lines().filter(|line| !line.is_test) {
            if let Some(door) = DOORS.iter().find(|door| line.code.contains(**door)) {
                findings.push(Finding::error(
                    &file.path,
                    line.number,
                    format!("{door}: files go through tw-disk"),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_homes_touch_files() {
        for (path, text, expected) in [
            ("crates/tw-server/src/a.rs", "use std::fs;", 1),
            ("crates/tw-server/src/a.rs", "let f = File::open(path);", 1),
            ("crates/tw-server/src/a.rs", "// not std::fs", 0),
            ("crates/tw-server/src/a.rs", "#[cfg(test)]\nmod tests { use std::fs; }", 0),
            ("crates/tw-server/tests/it.rs", "use std::fs;", 0),
            ("crates/tw-disk/src/a.rs", "use std::fs;", 0),
        ] {
            assert_eq!(check(&Tree::of(&[(path, text)])).len(), expected, "{path}: {text}");
        }
    }
}
