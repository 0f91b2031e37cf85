//! Open files: descriptors, lookups, and the path prefix that `disable_symlinks` trusts.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use tw_testkit::wait;

use crate::support::{get, page, server, start_server};

#[test]
fn disable_symlinks_from_trusts_only_its_prefix() {
    let builder = server().file("html/real/a", "x").file("html2/real/a", "y");
    let server = start_server(
        builder,
        "location /long/ { alias html/; disable_symlinks on from=/another/directory/with/a/name/longer/than/the/whole/path/that/is/looked/up; }
         location /cut/ { alias html2/; disable_symlinks on from={prefix}/html; }
         location /inside/ { alias html/; disable_symlinks on from={prefix}/html; }
         location /slash/ { alias html/; disable_symlinks on from={prefix}/html/; }
         location /beyond/ { alias html/; disable_symlinks on from={prefix}/html/link; }
         location /owner/ { alias html/; disable_symlinks if_not_owner from={prefix}/html; }
         location = /all { alias html/file; disable_symlinks on from={prefix}/html/file; }
         location = /empty { alias html/file; disable_symlinks on from=$arg_from; }",
    );
    let prefix = server.prefix();
    for html in ["html", "html2"] {
        symlink("real", prefix.join(html).join("link")).unwrap();
        symlink("real/a", prefix.join(html).join("file")).unwrap();
    }
    // A link to a directory is "not a directory" to the flags with which nginx opens it.
    let refused = [403, 404].as_slice();
    for (target, statuses) in [
        ("/long/real/a", [200].as_slice()),
        ("/long/link/a", refused),
        ("/long/file", refused),
        ("/cut/real/a", &[200]),
        ("/cut/link/a", refused),
        ("/cut/file", refused),
        ("/inside/real/a", &[200]),
        ("/inside/link/a", refused),
        ("/slash/file", refused),
        ("/beyond/link/a", &[200]),
        ("/beyond/file", refused),
        ("/owner/link/a", &[200]),
        ("/all", &[200]),
        ("/empty", refused),
    ] {
        for _ in 0..3 {
            let status = get(&server, target).status;
            assert!(statuses.contains(&status), "{target}: {status}");
        }
    }
}

#[test]
fn open_files_are_closed_when_descriptors_run_out() {
    let builder = (0..300).fold(server(), |server, n| server.file(format!("html/{n}"), n.to_string()));
    let conf = "worker_rlimit_nofile 128; http { server { listen 127.0.0.1:{port}; root html;
        open_file_cache max=10000 inactive=1h; open_file_cache_valid 1h; } }";
    let server = builder.start(conf).unwrap();
    for round in 0..2 {
        for n in 0..300 {
            assert_eq!(page(&server, &format!("/{n}")), (200, n.to_string()), "round {round}");
        }
    }
}

#[test]
fn link_targets_are_checked_again() {
    let builder =
        server().file("html/one/a", "one").file("html/two/a", "two").file("html/one/sub/a", "one/sub");
    let server = start_server(builder, "");
    let html = server.prefix().join("html");
    let point = |target: &str| {
        // A rename, so that there is no moment without the name.
        symlink(target, html.join("next")).unwrap();
        fs::rename(html.join("next"), html.join("current")).unwrap();
    };
    for target in ["one", "two", "one/sub", "one", "two"] {
        point(target);
        for _ in 0..3 {
            assert_eq!(page(&server, "/current/a"), (200, target.to_owned()));
        }
    }
    // A directory that was looked at becomes a link.
    for _ in 0..3 {
        assert_eq!(page(&server, "/one/a"), (200, "one".into()));
    }
    fs::rename(html.join("one"), html.join("old")).unwrap();
    symlink("two", html.join("one")).unwrap();
    assert_eq!(page(&server, "/one/a"), (200, "two".into()));
    fs::remove_file(html.join("one")).unwrap();
    assert_eq!(get(&server, "/one/a").status, 404);
}

#[test]
fn hot_files_size_bounds_contents_in_memory() {
    let body = |n: u8| vec![b'a' + n; 40_000];
    let builder = (0..5).fold(server(), |server, n| server.file(format!("html/{n}"), body(n)));
    let conf = "hot_files_size 100k; http { server { listen 127.0.0.1:{port}; root html; } }";
    let server = builder.start(conf).unwrap();
    let all = || (0..5).all(|n| get(&server, &format!("/{n}")).body == body(n));
    assert!(all());
    // Only files that were not changed recently are kept in memory, and there is room for two of them.
    let newest = fs::metadata(server.prefix().join("html/4")).unwrap().modified().unwrap();
    assert!(wait::until(wait::TIMEOUT, || newest.elapsed().is_ok_and(|age| age > Duration::from_secs(4))));
    for _ in 0..5 {
        assert!(all());
    }
    let path = server.prefix().join("html/0");
    fs::write(&path, "new").unwrap();
    assert_eq!(page(&server, "/0"), (200, "new".into()));
}
