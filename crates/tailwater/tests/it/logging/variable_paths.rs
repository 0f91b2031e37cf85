//! Access logs with variables in their paths: files, traversal attempts, and failing disks.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;

use rustix::process::Signal;
use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::{Server, wait};

use crate::support::files::names_in;
use crate::support::{get, page, server, start_server_as_we_are};

/// Names in `dir` but for those that every server writes.
fn names(dir: &Path) -> Vec<String> {
    let mut names = names_in(dir);
    names.retain(|name| !matches!(name.as_str(), "error.log" | "access.log" | "stderr.log" | "server.pid"));
    names
}

/// Requests targets that are logged into files they name.
fn request_all(server: &Server, targets: &[&str]) {
    for target in targets {
        assert_eq!(get(server, target).status, 200, "{target}");
    }
}

#[test]
fn line_goes_to_the_file_named_by_the_request() {
    for cache in ["off", "max=2 min_uses=1", "max=1 min_uses=2 inactive=1s valid=1s"] {
        let server = start_server_as_we_are(
            server().file("logs/sub/x", ""),
            &format!(
                "open_log_file_cache {cache}; access_log logs/${{arg_f}}.log combined if=$arg_f;
                 access_log logs/sub/$host-$arg_f escaped; location / {{ return 200 x; }}"
            )
            .replace("escaped", "combined if=$arg_s"),
        );
        request_all(&server, &["/1?f=a", "/2?f=b", "/3?f=a&s=1", "/4", "/5?f=a"]);
        for (name, paths) in [
            ("logs/a.log", &["/1", "/3", "/5"][..]),
            ("logs/b.log", &["/2"]),
            ("logs/sub/localhost-a", &["/3"]),
        ] {
            let lines = server.log(name, paths.len()).unwrap();
            let requested: Vec<_> = lines.iter().map(|line| line.split(['?', ' ']).nth(6).unwrap()).collect();
            assert_eq!(requested, paths, "{cache} {name}");
        }
        // After a rotation the next line makes a new file.
        fs::rename(server.prefix().join("logs/a.log"), server.prefix().join("logs/a.log.1")).unwrap();
        server.signal(Signal::USR1).unwrap();
        server.wait_error_log("reopening logs").unwrap();
        let made = || {
            get(&server, "/6?f=a");
            server.prefix().join("logs/a.log").exists()
        };
        assert!(wait::until(wait::TIMEOUT, made));
    }
}

#[test]
fn path_variables_cannot_leave_the_directory() {
    let server = start_server_as_we_are(
        server().file("logs/own/x", ""),
        "access_log logs/own/$arg_f.log combined; access_log logs/own/.$arg_g combined if=$arg_g; location / { return 200 x; }",
    );
    let evil = [
        "/?f=../../html/evil",
        "/?f=a/../../../html/evil",
        "/?f=..%2fevil",
        "/?f=/../../evil",
        "/?f=ok&g=./../evil",
        "/?f=ok&g=.",
    ];
    request_all(&server, &evil);
    request_all(&server, &["/?f=last"]);
    server.log("logs/own/last.log", 1).unwrap();
    // An escaped slash is a part of a name.
    assert_eq!(names(&server.prefix().join("logs/own")), ["..%2fevil.log", "last.log", "ok.log", "x"]);
    assert_eq!(names(&server.prefix().join("html")), [""; 0]);
    let prefix = server.prefix().display();
    let line = server.wait_error_log("is refused").unwrap();
    let expected = format!(
        "[error] PID: *1 access_log \"{prefix}/logs/own/../../html/evil.log\" is refused: its variables lead out of its \
         directory, client: 127.0.0.1, server: , request: \"GET /?f=../../html/evil HTTP/1.1\", host: \"localhost\""
    );
    let (before, after) = expected.split_once("PID").unwrap();
    assert!(line.contains(before) && line.contains(after), "{line}");
    let refusals = || server.error_log().matches("is refused").count();
    assert!(wait::until(wait::TIMEOUT, || refusals() == 5), "{}", server.error_log());
}

#[test]
fn log_requires_an_existing_root() {
    let server = start_server_as_we_are(
        server(),
        "access_log logs/$arg_f combined; location / { return 200 x; } location /none/ { root nowhere; return 200 x; }
         location /file/ { root logs/error.log; return 200 x; }",
    );
    request_all(&server, &["/none/?f=a"]);
    let none = server.prefix().join("nowhere");
    let text = format!("testing \"{}\" existence failed (2: No such file or directory)", none.display());
    assert!(server.wait_error_log(&text).unwrap().contains("[error]"));
    // Reports come once a second at most.
    let is_logged = || {
        request_all(&server, &["/file/?f=a"]);
        server.error_log().contains("logs/error.log\" existence failed (20: Not a directory)")
    };
    assert!(wait::until(wait::TIMEOUT, is_logged));
    request_all(&server, &["/?f=b"]);
    server.log("logs/b", 1).unwrap();
    assert_eq!(names(&server.prefix().join("logs")), ["b"]);
}

#[test]
fn disable_symlinks_applies_to_logs() {
    // With a sandbox, no link leads out of the directory, which `sandbox` tests.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let builder = server().file("logs/real/x", "").file("elsewhere/x", "");
    let server = builder
        .start(&format!(
            "{user} sandbox off; http {{ server {{ listen 127.0.0.1:{{port}}; root html;
                access_log logs/$arg_f combined if=$arg_f; location / {{ return 200 x; }}
                location /strict/ {{ disable_symlinks on from={{prefix}}; return 200 x; }} }} }}"
        ))
        .unwrap();
    symlink("../elsewhere", server.prefix().join("logs/linked")).unwrap();
    request_all(&server, &["/?f=linked/a"]);
    server.log("elsewhere/a", 1).unwrap();
    request_all(&server, &["/strict/?f=linked/b"]);
    let line =
        server.wait_error_log("logs/linked/b\" failed (40: Too many levels of symbolic links)").unwrap();
    assert!(line.contains("[crit]") && line.contains("open() \""), "{line}");
    request_all(&server, &["/strict/?f=real/c"]);
    server.log("logs/real/c", 1).unwrap();
    assert_eq!(names(&server.prefix().join("elsewhere")), ["a", "x"]);
}

#[test]
fn failing_disk_loses_lines_only() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let slow = disk.path().display().to_string();
    let server = start_server_as_we_are(
        server(),
        &format!(
            "access_log {slow}/$arg_f combined if=$arg_f; access_log logs/access.log; location / {{ return 200 x; }}
             location /metrics {{ metrics; }}"
        ),
    );
    for (op, number, level, call, errno) in [
        (Op::Create, 13, "[crit]", "open()", "(13: Permission denied)"),
        (Op::Create, 28, "[crit]", "open()", "(28: No space left on device)"),
        (Op::Write, 28, "[alert]", "write() to", "(28: No space left on device)"),
    ] {
        let fault = disk.on(op).inject(Fault::Error(rustix::io::Errno::from_raw_os_error(number)));
        let text = format!("{call} \"{slow}/{number}\" failed {errno}");
        let is_logged = || {
            request_all(&server, &[&format!("/?f={number}")]);
            server.error_log().lines().any(|line| line.contains(level) && line.contains(&text))
        };
        assert!(wait::until(wait::TIMEOUT, is_logged), "{text} not in {}", server.error_log());
        fault.lift();
    }
    // A disk that hangs stops neither requests nor other logs.
    let stall = disk.on(Op::Write).inject(Fault::Stall);
    request_all(&server, &["/?f=hangs"]);
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    for _ in 0..50 {
        request_all(&server, &["/?f=hangs"]);
    }
    let before = server.access_log(50).unwrap().len();
    request_all(&server, &["/?f=hangs"]);
    server.access_log(before + 1).unwrap();
    stall.lift();
    let lines =
        || disk.read("hangs").is_some_and(|text| text.iter().filter(|byte| **byte == b'\n').count() == 52);
    assert!(wait::until(wait::TIMEOUT, lines));
    let metrics = page(&server, "/metrics").1;
    let dropped = metrics.lines().find(|line| line.contains("log_dropped_total{") && line.contains("$arg_f"));
    let count: u64 = dropped.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default();
    assert!(count >= 3, "{dropped:?}");
}

#[test]
fn missing_directory_is_reported_at_intervals() {
    let server =
        start_server_as_we_are(server(), "access_log logs/$arg_d/x combined; location / { return 200 x; }");
    let begun = Instant::now();
    for _ in 0..20 {
        request_all(&server, &["/?d=none"]);
    }
    server.wait_error_log("logs/none/x\" failed (2: No such file or directory)").unwrap();
    let is_logged = server.error_log().matches("logs/none/x").count() as u64;
    // The failure is logged at most once a second.
    assert!(is_logged <= 5 + begun.elapsed().as_secs(), "{}", server.error_log());
    fs::create_dir(server.prefix().join("logs/none")).unwrap();
    request_all(&server, &["/?d=none"]);
    server.log("logs/none/x", 1).unwrap();
}

#[test]
fn open_log_file_cache_of_an_inner_level_is_used() {
    let server = start_server_as_we_are(
        server(),
        "open_log_file_cache max=9; access_log logs/v-$arg_f combined; location / { return 200 x; }
         location /in { open_log_file_cache off; return 200 x; }",
    );
    request_all(&server, &["/?f=a", "/in?f=a"]);
    expect_lines(&server, "logs/v-a", 2);
    let path = server.prefix().join("logs/v-a");
    // The file that is kept open is written to although it is gone; the other is made anew.
    fs::remove_file(&path).unwrap();
    request_all(&server, &["/?f=a", "/in?f=b"]);
    expect_lines(&server, "logs/v-b", 1);
    assert!(!path.exists());
    request_all(&server, &["/in?f=a"]);
    expect_lines(&server, "logs/v-a", 1);
}

fn expect_lines(server: &Server, name: &str, count: usize) {
    assert_eq!(server.log(name, count).unwrap().len(), count, "{name}");
}
