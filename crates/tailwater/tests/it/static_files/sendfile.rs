//! `sendfile on`: hot files are locked in memory and sent by the kernel, and no disk blocks a loop.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use tw_testkit::disk::{Fault, Op};
use tw_testkit::server::Builder;
use tw_testkit::{Lacks, Server, leave_out, wait};

use crate::support::content::pattern;
use crate::support::metrics::metric_sum;
use crate::support::reload::reload;
use crate::support::slow_ext4::SlowExt4;
use crate::support::{get, page, request, server};

/// The largest file here. Some of them fit into 8 MiB.
const LARGE: usize = 2 << 20;

/// A server with a master and `directives` in its `server` block. Its socket buffers are small.
fn start(builder: Builder, main: &str, directives: &str) -> Server {
    let conf = format!(
        "{main} http {{ server {{ listen 127.0.0.1:{{port}} sndbuf=64k; root html; location = /metrics {{ metrics; }} {directives} }} }}"
    );
    builder.with_master().start(&conf).unwrap()
}

/// Bytes sent by `sendfile`.
fn sent(server: &Server) -> u64 {
    metric_sum(server, "sendfile_bytes_total")
}

/// Requests a file until it is locked and sent by the kernel: its times have to be some seconds old.
fn make_hot(server: &Server, target: &str, content: &[u8]) -> bool {
    wait::until(wait::TIMEOUT, || {
        let before = sent(server);
        assert!(get(server, target).body == content, "{target}");
        sent(server) == before + content.len() as u64
    })
}

/// True if this machine lets the server lock files; leaves the test out if not.
fn may_lock(server: &Server) -> bool {
    let may = metric_sum(server, "locked_files_limit_bytes") > 0;
    if !may {
        leave_out(Lacks::Run, "no memory may be locked: files that the kernel sends");
    }
    may
}

#[test]
fn sendfile_sends_the_content_of_the_file() {
    let sizes = [16_383, 16_384, 65_537, 300_001, LARGE];
    for directives in [
        "sendfile on;",
        "sendfile on; tcp_nopush on; sendfile_max_chunk 64k;",
        "sendfile on; tcp_nodelay off; open_file_cache max=10;",
    ] {
        let files =
            sizes.iter().fold(server(), |files, size| files.file(format!("html/{size}"), pattern(*size)));
        let server = start(files, "worker_processes 2;", directives);
        if !may_lock(&server) {
            return;
        }
        for size in sizes.into_iter().filter(|size| *size >= 16_384) {
            assert!(make_hot(&server, &format!("/{size}"), &pattern(size)), "{directives} {size}");
        }
        assert_eq!(metric_sum(&server, "locked_files"), sizes.len() as u64 - 1);

        // The files are requested on one connection, one after another.
        let mut client = server.connect().unwrap();
        for size in sizes.iter().chain(&sizes) {
            client.send(format!("GET /{size} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
            assert!(client.read_response().unwrap().body == pattern(*size), "{directives} {size}");
        }
        let big = pattern(LARGE);
        // A loop that has sent it now and then copies it until it has done so a few times.
        let are_sent = |count: usize, request: &dyn Fn()| {
            wait::until(wait::TIMEOUT, || {
                let before = sent(&server);
                request();
                sent(&server) == before + count as u64
            })
        };
        for (range, from, to) in [
            ("0-1048575", 0, 1 << 20),
            ("1000000-2000000", 1_000_000, 2_000_001),
            ("-1", big.len() - 1, big.len()),
        ] {
            let request = || {
                let response = request(&server, "GET /2097152", &[&format!("Range: bytes={range}")]);
                assert!(response.status == 206 && response.body == big[from..to], "{directives} {range}");
            };
            assert!(are_sent(to - from, &request), "{directives} {range}");
        }
        let several = || {
            let several = request(&server, "GET /2097152", &["Range: bytes=0-99,1000000-1999999,2097151-"]);
            let is_found = |part: &[u8]| several.body.windows(part.len()).any(|window| window == part);
            let has_all = is_found(&big[1_999_000..2_000_000]) && is_found(&big[..100]);
            assert!(several.status == 206 && has_all, "{directives}");
        };
        assert!(are_sent(1_000_000, &several), "small parts are gathered");
        let before = sent(&server);
        let head = request(&server, "HEAD /300001", &[]);
        assert_eq!((head.status, head.field("Content-Length")), (200, Some("300001")));
        assert_eq!(sent(&server), before);
    }
}

#[test]
fn slow_client_gets_the_whole_file() {
    let content = pattern(LARGE);
    let files = server().file("html/a", &content).file("html/b", &content[..40_000]);
    let server = start(files, "", "sendfile on; location = /b { limit_rate 100k; }");
    if !may_lock(&server) {
        return;
    }
    assert!(make_hot(&server, "/a", &content) && make_hot(&server, "/b", &content[..40_000]));
    let mut clients: Vec<_> = (0..4).map(|_| server.connect().unwrap()).collect();
    for client in &mut clients {
        client.send("GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        client.read_head().unwrap();
    }
    // Piece by piece and in turns, so that the socket is full again and again.
    for piece in content.chunks(100_000) {
        for client in &mut clients {
            assert!(client.read_bytes(piece.len()).unwrap() == piece);
        }
    }
}

#[test]
fn sendfile_off_is_not_used() {
    let files = || server().file("html/a", pattern(100_000));
    for (main, directives) in [
        ("", ""),
        ("hot_lock_size off;", "sendfile on;"),
        ("hot_lock_size 0;", "sendfile on; tcp_nopush on;"),
    ] {
        let server = start(files(), main, directives);
        for _ in 0..20 {
            assert!(get(&server, "/a").body == pattern(100_000));
        }
        let numbers = ["sendfile_bytes_total", "locked_files_limit_bytes", "locked_files_refusals_total"];
        assert_eq!(numbers.map(|name| metric_sum(&server, name)), [0; 3], "{main} {directives}");
    }
}

#[test]
fn missing_lock_permission_is_logged_once_and_files_are_copied() {
    let limit = ["prlimit", "--memlock=65536:65536"];
    let no_privilege = ["setpriv", "--bounding-set=-sys_resource,-ipc_lock"];
    let words = if rustix::process::geteuid().is_root() {
        [&limit[..], &no_privilege].concat()
    } else {
        limit.to_vec()
    };
    if !words.iter().filter(|word| !word.starts_with('-')).all(|program| is_there(program)) {
        return leave_out(Lacks::Machine, format_args!("{words:?} is not installed"));
    }
    let files = server().file("html/a", pattern(100_000)).by(&words);
    let server = start(files, "worker_processes 2;", "sendfile on;");
    let line = server.wait_error_log("\"hot_lock_size\": files are copied to clients").unwrap();
    assert!(line.contains("[notice]") && line.contains("RLIMIT_MEMLOCK is 64 KB"), "{line}");
    for _ in 0..20 {
        assert!(get(&server, "/a").body == pattern(100_000));
    }
    assert_eq!((sent(&server), metric_sum(&server, "locked_files_limit_bytes")), (0, 0));
    assert_eq!(server.error_log().matches("\"hot_lock_size\"").count(), 1);
}

fn is_there(program: &str) -> bool {
    ["/bin", "/usr/bin", "/usr/sbin"].iter().any(|dir| Path::new(dir).join(program).exists())
}

#[test]
fn hot_lock_size_is_kept() {
    const MAX: u64 = 1 << 20;
    let size = 200_000;
    let files = (0..10).fold(server(), |files, n| files.file(format!("html/{n}"), pattern(size)));
    let files = files.file("html/large", pattern(1_100_000));
    let server = start(files, "hot_lock_size 1m;", "sendfile on;");
    if !may_lock(&server) {
        return;
    }
    assert_eq!(metric_sum(&server, "locked_files_limit_bytes"), MAX);
    // More files are requested than the limit holds. A file that was not sent for two seconds makes room.
    let mut most = 0;
    let evicted = wait::until(wait::TIMEOUT, || {
        for n in 0..10 {
            assert!(get(&server, &format!("/{n}")).body == pattern(size));
        }
        assert!(
            get(&server, "/large").body == pattern(1_100_000),
            "one that is larger than all of it is not locked"
        );
        most = most.max(metric_sum(&server, "locked_files_bytes"));
        metric_sum(&server, "locked_files") == 5 && metric_sum(&server, "locked_files_refusals_total") > 0
    });
    assert!(evicted && most <= MAX, "{most}");
    assert!(are_all_hot_in_turn(&server, size), "one that was left out has its time");
    assert!(
        metric_sum(&server, "locked_files_bytes") <= MAX
            && metric_sum(&server, "locked_files_evictions_total") > 0
    );
}

/// Requests one file more than fits, one after the other, until the kernel has sent each.
fn are_all_hot_in_turn(server: &Server, size: usize) -> bool {
    (0..6).all(|n| make_hot(server, &format!("/{n}"), &pattern(size)))
}

#[test]
fn changed_file_is_sent_with_its_new_content() {
    let content = pattern(400_000);
    let names = ["replaced", "grown", "punched", "written", "removed"];
    let files = names.iter().fold(server(), |files, name| files.file(format!("html/{name}"), &content));
    let server = start(files, "", "sendfile on;");
    if !may_lock(&server) {
        return;
    }
    for name in names {
        assert!(make_hot(&server, &format!("/{name}"), &content), "{name}");
    }
    assert_eq!(metric_sum(&server, "locked_files"), 5);
    let html = server.prefix().join("html");
    let writable = |name: &str| File::options().write(true).open(html.join(name)).unwrap();

    fs::write(html.join("new"), pattern(300_000)).unwrap();
    fs::rename(html.join("new"), html.join("replaced")).unwrap();
    assert!(get(&server, "/replaced").body == pattern(300_000));

    File::options().append(true).open(html.join("grown")).unwrap().write_all(b"more").unwrap();
    assert_eq!(get(&server, "/grown").body.len(), 400_004);

    let mut expected = content.clone();
    writable("written").write_at(b"written", 200_000).unwrap();
    expected[200_000..200_007].copy_from_slice(b"written");
    assert!(get(&server, "/written").body == expected);

    let mut expected = content.clone();
    let punched = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if fallocate(writable("punched"), punched, 100_000, 100_000).is_ok() {
        expected[100_000..200_000].fill(0);
    }
    assert!(get(&server, "/punched").body == expected);

    fs::remove_file(html.join("removed")).unwrap();
    assert_eq!(get(&server, "/removed").status, 404);
    // No file is locked any more, and files that still exist are locked again when they have settled.
    let is_given_up = || metric_sum(&server, "locked_files") == 0;
    assert!(wait::until(wait::TIMEOUT, is_given_up), "also the file that has no name");
    assert!(make_hot(&server, "/replaced", &pattern(300_000)));
}

#[test]
fn shrinking_file_ends_the_connection() {
    let content = pattern(LARGE);
    let server = start(
        server().file("html/cut", &content),
        "",
        "sendfile on; sendfile_max_chunk 64k; open_file_cache max=10;",
    );
    if !may_lock(&server) {
        return;
    }
    assert!(make_hot(&server, "/cut", &content));
    let mut client = server.connect().unwrap();
    client.send("GET /cut HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().field("Content-Length"), Some("2097152"));
    // The rest exceeds the socket buffers, which refer to pages of the file itself, so truncation cuts them too.
    File::options().write(true).open(server.prefix().join("html/cut")).unwrap().set_len(64 << 10).unwrap();
    let rest = client.read_until_close().unwrap();
    assert!(rest.len() < content.len() && rest.starts_with(&content[..1000]));
    let line = server.wait_error_log("file was truncated while sending response to client").unwrap();
    assert!(line.contains("[alert]"), "{line}");
    // The file is not requested again, and its locked pages are released all the same.
    let locked = || ["locked_files", "locked_files_bytes"].map(|name| metric_sum(&server, name));
    assert!(wait::until(wait::TIMEOUT, || locked() == [0; 2]), "{:?}", locked());
}

#[test]
fn changed_unused_file_is_unlocked() {
    let content = pattern(400_000);
    // The change is noticed even if the file cache revalidates a file only once a minute.
    let server = start(
        server().file("html/cut", &content).file("html/linked", &content).file("html/same", &content),
        "open_files_inactive 1h;",
        "sendfile on; location = /linked { open_file_cache max=10; }",
    );
    if !may_lock(&server) {
        return;
    }
    let html = server.prefix().join("html");
    for name in ["cut", "linked", "same"] {
        assert!(make_hot(&server, &format!("/{name}"), &content), "{name}");
    }
    assert_eq!(metric_sum(&server, "locked_files"), 3);
    File::options().write(true).open(html.join("cut")).unwrap().set_len(1000).unwrap();
    fs::remove_file(html.join("linked")).unwrap();
    assert!(wait::until(wait::TIMEOUT, || metric_sum(&server, "locked_files") == 1));
    assert_eq!(metric_sum(&server, "locked_files_bytes"), 400_000_u64.next_multiple_of(4096));
    // The open file is still believed to be valid.
    assert!(get(&server, "/linked").body == content && get(&server, "/cut").body == content[..1000]);
}

#[test]
fn reload_turns_sendfile_on_and_off() {
    let content = pattern(100_000);
    let conf = |directives: &str| {
        format!(
            "http {{ server {{ listen 127.0.0.1:{{port}}; root html; location = /metrics {{ metrics; }} {directives} }} }}"
        )
    };
    let mut server = server()
        .with_master()
        .file("html/a", &content)
        .start(&conf("location = /off { return 204; }"))
        .unwrap();
    for (directives, target) in
        [("sendfile on; location = /on { return 204; }", "/on"), ("location = /off { return 204; }", "/off")]
    {
        reload(&mut server, &conf(directives));
        assert!(wait::until(wait::TIMEOUT, || get(&server, target).status == 204));
        if target == "/off" {
            assert!(wait::until(wait::TIMEOUT, || metric_sum(&server, "locked_files_bytes") == 0));
            let before = sent(&server);
            assert!(get(&server, "/a").body == content);
            assert_eq!(sent(&server), before);
        } else if !may_lock(&server) {
            return;
        } else {
            assert!(make_hot(&server, "/a", &content));
        }
    }
}

#[test]
fn locked_file_needs_no_disk() {
    for cache in ["", "open_file_cache max=10;"] {
        // Data that was read once from this disk is not read again.
        let Some(slow) = SlowExt4::mount_or_skip() else { return };
        let hot = pattern(1 << 20);
        let cold = pattern(1 << 20);
        for (name, content) in [("hot", &hot), ("cold", &cold)] {
            fs::write(slow.mount.join(name), content).unwrap();
        }
        rustix::fs::syncfs(File::open(slow.mount.join("hot")).unwrap()).unwrap();
        let directives = format!(
            "sendfile on; location /slow/ {{ {cache} alias {}/; }} location = /ready {{ return 204; }}",
            slow.mount.path().display()
        );
        let server = start(server(), "", &directives);
        if !may_lock(&server) {
            return;
        }
        assert!(make_hot(&server, "/slow/hot", &hot), "{cache}");

        // Both files would be evicted from memory if possible, and reads from the disk stall.
        let stall = [Op::Read, Op::Write].map(|op| slow.disk.on(op).inject(Fault::Stall));
        for name in ["hot", "cold"] {
            fadvise(File::open(slow.mount.join(name)).unwrap(), 0, None, Advice::DontNeed).unwrap();
        }
        let mut waiting = server.connect().unwrap();
        waiting.send("GET /slow/cold HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        assert!(
            wait::until(wait::TIMEOUT, || stall[0].waiting() > 0),
            "{cache}: the cold file comes from the disk"
        );
        let before = sent(&server);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| assert!(get(&server, "/slow/hot").body == hot)));
            }
        });
        assert_eq!(sent(&server) - before, 100 << 20, "{cache}");
        assert_eq!(page(&server, "/ready").0, 204);
        assert!(stall[0].waiting() > 0, "{cache}: a loop that had waited for the disk would wait still");
        stall.into_iter().for_each(|stall| stall.lift());
        assert!(waiting.read_response().unwrap().body == cold);
    }
}
