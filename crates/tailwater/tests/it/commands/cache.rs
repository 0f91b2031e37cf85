//! `tailwater cache stat|check|export`: directories of caches with both stores, beside a running server and without one.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tw_testkit::origin::origin;
use tw_testkit::{Lacks, Response, Server, Signal, TempDir, leave_out, wait};

use crate::support::cache::{cache_status, wait_stored};
use crate::support::files::files_below;
use crate::support::{get, request, server, start};

const STORES: [&str; 2] = ["snapshot=1s", "store=log segment=4m snapshot=1s"];
/// Paths, and sizes of their bodies. `/large` has a file of its own in both stores.
const PAGES: [(&str, usize); 4] = [("/a", 500), ("/a/b", 70_000), ("/large", 5 << 20), ("/dir/x?y=1", 0)];

fn body(path: &str) -> Vec<u8> {
    let size = PAGES.iter().find(|page| page.0 == path).map_or(9, |page| page.1);
    let begin = format!("{path}|").into_bytes();
    begin.into_iter().chain((0_usize..).map(|at| (at * 31 + at / 251) as u8)).take(size).collect()
}

fn paths_origin() -> SocketAddr {
    origin(|mut conn| {
        while let Some(head) = conn.head() {
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            conn.answer("Content-Type: text/plain\r\nX-Tags: news\r\n", body(&path));
        }
    })
}

fn cached(dir: &Path, parameters: &str) -> Server {
    start(
        server().with_master(),
        &format!(
            "proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m inactive=1h {parameters};
             map $request_method $purge {{ PURGE 1; SOFT soft; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{}; proxy_cache one; proxy_cache_valid 1h;
                     proxy_cache_key host$request_uri; proxy_cache_purge $purge;
                     proxy_cache_tag $upstream_http_x_tags; add_header X-Cache $upstream_cache_status; }}
                 location = /metrics {{ metrics; }} }}",
            dir.display(),
            paths_origin()
        ),
    )
}

/// Stores all pages.
fn fill(server: &Server) {
    for (path, _) in PAGES {
        assert!(get(server, path).body == body(path), "{path}");
    }
    wait_stored(server, PAGES.len());
}

fn cache(words: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    command.arg("cache").args(words).arg(dir.join("cache")).output().unwrap()
}

/// Standard output of a command that ends with this status.
fn run(words: &[&str], dir: &Path, status: i32) -> String {
    let output = cache(words, dir);
    let said = String::from_utf8_lossy(&output.stderr);
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(status), "{words:?}: {out} {said}");
    out
}

/// Names and contents of all files but the snapshots, which a server writes anew.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let is_snapshot = |name: &str| name.starts_with("snapshot") || name.starts_with("pages");
    let is_stored = |path: &PathBuf| !is_snapshot(path.file_name().unwrap().to_str().unwrap());
    let mut files: Vec<_> = files_below(dir).into_iter().filter(is_stored).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn kill(mut server: Server) {
    server.signal(Signal::KILL).unwrap();
    let _ = server.wait_exit(wait::TIMEOUT);
}

/// Flips a bit at an offset behind the first place of `pattern` in a file. Returns the path.
fn flip(dir: &Path, pattern: &[u8], behind: usize) -> PathBuf {
    let of = |content: &[u8]| content.windows(pattern.len()).position(|window| window == pattern);
    let (path, mut content, at) = contents(&dir.join("cache"))
        .into_iter()
        .find_map(|(path, content)| of(&content).map(|at| (path, content, at)))
        .expect("the pattern is stored");
    content[at + behind] ^= 4;
    fs::write(&path, content).unwrap();
    path
}

#[test]
fn caches_are_shown_checked_and_listed_whether_their_server_runs_or_not() {
    for store in STORES {
        let dir = TempDir::new("cache-command").unwrap();
        let server = cached(dir.path(), store);
        fill(&server);
        let snapshot = dir.path().join("cache/snapshot");
        assert!(wait::until(wait::TIMEOUT, || snapshot.exists()));
        let before = contents(dir.path());
        let look = |when: &str| {
            let shown: Value = serde_json::from_str(&run(&["stat", "--json"], dir.path(), 0)).unwrap();
            let is_log = store.contains("log");
            assert_eq!(shown["store"], if is_log { "log" } else { "files" }, "{when}");
            assert_eq!(shown["responses"], 4, "{when} {store}: {shown}");
            assert_eq!(shown["files"]["count"], if is_log { 1 } else { 4 }, "{when}: {shown}");
            assert_eq!(shown["segments"]["count"], u64::from(is_log), "{when}: {shown}");
            let largest = shown["largest"]["bytes"].as_u64().unwrap();
            assert!(largest > 5 << 20 && largest < 6 << 20, "{when}: {shown}");
            assert_eq!(shown["largest"]["key"], "host/large", "{when}: {shown}");
            let records = shown["record_snapshot"]["entries"].as_u64();
            assert!(records.is_none_or(|records| is_log && records <= 3), "{when}: {shown}");
            assert_eq!(
                (&shown["device"], &shown["other_files"]),
                (&Value::Null, &0.into()),
                "{when}: {shown}"
            );
            let text = run(&["stat"], dir.path(), 0);
            assert!(text.contains("responses    4") && text.contains("key host/large"), "{text}");
            assert!(run(&["stat", "--quick"], dir.path(), 0).contains("responses    4"));
            let said = run(&["check", "--jobs", "3"], dir.path(), 0);
            assert!(said.contains(": 4 responses in ") && said.contains(", 0 damaged"), "{when}: {said}");
            let mut lines: Vec<_> = run(&["export", "--list"], dir.path(), 0)
                .lines()
                .map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>())
                .map(|parts| (parts[4].clone(), parts[0].clone(), parts[1].clone()))
                .collect();
            lines.sort();
            let mut expected =
                PAGES.map(|(path, size)| (format!("host{path}"), "200".to_owned(), size.to_string()));
            expected.sort();
            assert_eq!(lines, expected, "{when}");
            let json = run(&["export", "--list", "--json", "--key-prefix", "host/a/"], dir.path(), 0);
            let line: Value = serde_json::from_str(&json).unwrap();
            assert_eq!((&line["key"], &line["tags"][0]), (&"host/a/b".into(), &"news".into()), "{json}");
        };
        look("running");
        kill(server);
        look("killed");
        assert!(contents(dir.path()) == before, "{store}: a command has changed the cache");
    }
}

#[test]
fn archive_has_heads_and_bodies_and_nothing_that_was_purged() {
    for store in STORES {
        let dir = TempDir::new("cache-export").unwrap();
        let server = cached(dir.path(), store);
        fill(&server);
        assert_eq!(get(&server, "/soft").status, 200);
        assert_eq!(get(&server, "/gone").status, 200);
        wait_stored(&server, PAGES.len() + 2);
        assert_eq!(request(&server, "SOFT /soft", &[]).status, 204);
        assert_eq!(request(&server, "PURGE /gone", &[]).status, 204);
        let list = run(&["export", "--list"], dir.path(), 0);
        assert!(!list.contains("/gone") && list.contains("\tpurged\thost/soft\n"), "{list}");
        let archive = dir.path().join("out.tar");
        run(&["export", "--to", archive.to_str().unwrap()], dir.path(), 0);
        let Ok(unpacked) = Command::new("tar").arg("-xf").arg(&archive).current_dir(dir.path()).output()
        else {
            return leave_out(Lacks::Machine, format_args!("no tar to unpack with"));
        };
        assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
        for (path, _) in PAGES {
            let file = dir.path().join(format!("host{path}.body"));
            assert!(fs::read(&file).unwrap() == body(path), "{}", file.display());
            let head = fs::read_to_string(file.with_extension("head")).unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
            assert!(head.contains("Content-Type: text/plain\r\n"), "{head}");
        }
        assert_eq!(files_below(&dir.path().join("host")).len(), 2 * (PAGES.len() + 1));
        // A reader that has enough is no failure.
        let command = format!(
            "{} cache export --to - {}/cache | head -c 100 | wc -c",
            env!("CARGO_BIN_EXE_tailwater"),
            dir.path().display()
        );
        let piped = Command::new("sh").args(["-c", &command]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&piped.stdout).trim(), "100");
        assert!(piped.stderr.is_empty(), "{}", String::from_utf8_lossy(&piped.stderr));
    }
}

#[test]
fn damaged_responses_are_listed_and_removed_on_demand() {
    for store in STORES {
        for is_running in [true, false] {
            let dir = TempDir::new("cache-check").unwrap();
            let server = cached(dir.path(), store);
            fill(&server);
            // The last record of a segment without a table may be incomplete: it is another one.
            assert_eq!(get(&server, "/z").status, 200);
            wait_stored(&server, PAGES.len() + 1);
            let mut server = Some(server).filter(|_| {
                is_running || {
                    // Dropping the server ends its worker process as well.
                    true
                }
            });
            if !is_running {
                kill(server.take().unwrap());
            }
            // The second block of one body, and a byte of another head.
            let path = flip(dir.path(), b"/a/b|", 66_000);
            flip(dir.path(), b"host/dir/x", 2);
            let said = run(&["check"], dir.path(), 1);
            let line =
                said.lines().find(|line| line.contains("body-checksum")).unwrap_or_else(|| panic!("{said}"));
            assert!(line.starts_with(&format!("{} at offset ", path.display())), "{line}");
            assert!(line.ends_with(": body-checksum, key host/a/b"), "{line}");
            assert!(said.contains(": checksum, key ") && said.contains(", 2 damaged"), "{said}");
            let before = contents(dir.path());
            run(&["check"], dir.path(), 1);
            assert!(contents(dir.path()) == before);
            let exported = cache(&["export", "--to", "/dev/null"], dir.path());
            assert_eq!(exported.status.code(), Some(1));
            assert!(String::from_utf8_lossy(&exported.stderr).contains("2 damaged responses are left out"));
            let said = run(&["check", "--remove"], dir.path(), 1);
            assert!(said.contains("2 damaged, 2 removed"), "{said}");
            let said = run(&["check"], dir.path(), 0);
            assert!(said.contains(": 3 responses in "), "{said}");
            let server = server.unwrap_or_else(|| cached(dir.path(), store));
            let status = |path| -> Response {
                let response = get(&server, path);
                assert!(response.body == body(path), "{store} {path}");
                response
            };
            assert_eq!(cache_status(&status("/large")), "HIT", "{}", server.error_log());
            if !is_running {
                assert_eq!(cache_status(&status("/a/b")), "MISS");
                assert_eq!(cache_status(&status("/dir/x?y=1")), "MISS");
            }
        }
    }
}

#[test]
fn damage_of_segments_snapshot_and_purges_is_found() {
    let dir = TempDir::new("cache-check-parts").unwrap();
    let server = cached(dir.path(), STORES[1]);
    fill(&server);
    assert_eq!(request(&server, "SOFT /a", &[]).status, 204);
    let snapshot = dir.path().join("cache/snapshot");
    assert!(wait::until(wait::TIMEOUT, || fs::metadata(&snapshot).is_ok_and(|meta| meta.len() > 4096)));
    let records = || -> Value {
        let shown: Value = serde_json::from_str(&run(&["stat", "--json"], dir.path(), 0)).unwrap();
        shown["record_snapshot"].clone()
    };
    assert!(wait::until(wait::TIMEOUT, || records()["entries"] == 3), "{}", records());
    kill(server);
    assert!(records()["age_seconds"].as_u64().is_some_and(|age| age < 600), "{}", records());
    let shown = run(&["stat"], dir.path(), 0);
    assert!(shown.contains("1 without a table"), "{shown}");
    assert!(shown.contains("of records: ") && shown.contains(" old, 3 entries"), "{shown}");
    for (name, at, expected, responses) in [
        ("segments/00000000", 20, "at offset 0: checksum", 1),
        ("snapshot", 5000, "at offset 0: snapshot-block", 4),
        ("snapshot", 20, "at offset 0: snapshot", 4),
        ("pages", 4096 + 3000, "at offset 4096: snapshot-block", 4),
        ("pages", 20, "at offset 0: snapshot", 4),
        ("purges", 9, "at offset 0: purges", 4),
        // The prefix of the first record: the others behind it are found.
        ("segments/00000000", 4096 + 20, "at offset 4096: record", 3),
    ] {
        let path = dir.path().join("cache").join(name);
        let whole = fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, damaged).unwrap();
        let said = run(&["check"], dir.path(), 1);
        assert!(said.contains(&format!("{} {expected}", path.display())), "{name}: {said}");
        assert!(said.contains(&format!(": {responses} responses in ")), "{name}: {said}");
        fs::write(&path, whole).unwrap();
    }
    // A crash leaves a segment whose end is missing.
    let path = dir.path().join("cache/segments/00000000");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 4096 + 100]).unwrap();
    let said = run(&["check"], dir.path(), 0);
    assert!(said.contains("incomplete record, no damage"), "{said}");
    fs::write(&path, whole).unwrap();
    // Two segments with exchanged names.
    fs::rename(&path, path.with_file_name("00000001")).unwrap();
    let said = run(&["check"], dir.path(), 1);
    assert!(said.contains("segments/00000001 at offset 0: place"), "{said}");
}

#[test]
fn directory_that_cannot_be_read_is_status_2() {
    let dir = TempDir::new("cache-none").unwrap();
    for words in [&["stat"][..], &["check"], &["export", "--list"]] {
        let output = cache(words, dir.path());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("/cache: No such file or directory"));
    }
    fs::create_dir(dir.path().join("cache")).unwrap();
    assert!(run(&["check"], dir.path(), 0).contains(": 0 responses in 0 files"));
}

#[test]
fn segments_on_a_device_are_read() {
    let dir = TempDir::new("cache-device").unwrap();
    let device = dir.path().join("device.img");
    fs::File::create(&device).unwrap().set_len(64 << 20).unwrap();
    let format = |again: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        let output = command.args(["cache", "format", "--segment", "4m"]).args(again).arg(&device).output();
        assert!(output.unwrap().status.success());
    };
    format(&[]);
    let server = cached(dir.path(), &format!("store=log device={}", device.display()));
    fill(&server);
    // The command works beside the running server, and after the server was killed.
    for is_running in [true, false] {
        let shown: Value = serde_json::from_str(&run(&["stat", "--json"], dir.path(), 0)).unwrap();
        assert_eq!(
            (&shown["responses"], &shown["segments"]["records"], &shown["segments"]["count"]),
            (&4.into(), &3.into(), &1.into()),
            "{is_running} {shown}"
        );
        assert_eq!(shown["device"]["path"], device.display().to_string(), "{shown}");
        assert_eq!(shown["device"]["number"].as_str().unwrap().len(), 32, "{shown}");
        let text = run(&["stat"], dir.path(), 0);
        assert!(text.contains(", number ") && text.contains("1 of 15 slots of 4.0 MiB in use"), "{text}");
        assert!(run(&["check"], dir.path(), 0).contains(": 4 responses in 2 files"), "{is_running}");
        let list = run(&["export", "--list"], dir.path(), 0);
        assert!(PAGES.iter().all(|(path, _)| list.contains(&format!("host{path}\n"))), "{list}");
        if is_running {
            assert_eq!(request(&server, "PURGE /a", &[]).status, 204);
            let list = run(&["export", "--list"], dir.path(), 0);
            assert!(!list.contains("host/a\n"), "{list}");
            assert!(wait::until(wait::TIMEOUT, || {
                get(&server, "/a");
                run(&["export", "--list"], dir.path(), 0).contains("host/a\n")
            }));
        }
    }
    kill(server);
    // A byte of a body is damaged: found, and removed for the next start.
    let mut image = fs::read(&device).unwrap();
    let at = image.windows(5).position(|part| part == b"/a/b|").unwrap();
    image[at + 60_000] ^= 1;
    fs::write(&device, &image).unwrap();
    let shown = run(&["check"], dir.path(), 1);
    assert!(shown.contains("device.img at offset ") && shown.contains("key host/a/b"), "{shown}");
    assert!(run(&["check", "--remove"], dir.path(), 1).contains("1 damaged, 1 removed"));
    assert!(run(&["check"], dir.path(), 0).contains(": 3 responses"));
    // Another device in place of the formatted one, and then no device at all.
    format(&["--again"]);
    let refused = |words: &[&str], expected: &str| {
        let output = cache(words, dir.path());
        assert_eq!(output.status.code(), Some(2), "{words:?} {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(expected), "{output:?}");
    };
    refused(&["check"], "where the device with the number ");
    fs::remove_file(&device).unwrap();
    refused(&["export", "--list"], "which cannot be read: No such file");
    let shown = run(&["stat"], dir.path(), 0);
    assert!(shown.contains("which cannot be read") && shown.contains("responses    1"), "{shown}");
}

#[test]
fn rate_limits_what_is_read() {
    let dir = TempDir::new("cache-rate").unwrap();
    let server = cached(dir.path(), STORES[0]);
    fill(&server);
    let began = std::time::Instant::now();
    run(&["check", "--rate", "4m"], dir.path(), 0);
    // 5 MiB, of which the last block waits for those before it.
    assert!(began.elapsed().as_millis() > 1000, "{:?}", began.elapsed());
}
