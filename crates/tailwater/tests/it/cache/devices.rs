//! `store=log device=`: segments on a block device, or on a file in its place.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tw_testkit::{Client, Lacks, Server, Signal, TempDir, leave_out, wait};

use crate::support::cache::{sized_body as body, sizes, wait_stored};
use crate::support::metrics::metric;
use crate::support::server;

const SIZES: [usize; 6] = [1, 300, 4096, 100_000, 900_000, 2 << 20];

fn format(device: &Path, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tailwater"))
        .args(["cache", "format"])
        .args(options)
        .arg(device)
        .output()
        .unwrap()
}

fn error_of(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn file(dir: &Path, size: u64) -> PathBuf {
    let path = dir.join("device.img");
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn conf(dir: &Path, device: &Path, origin: SocketAddr) -> String {
    format!(
        "http {{ proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m inactive=1h store=log device={};
         map $request_method $purge {{ ~^PURGE 1; }}
         server {{ listen 127.0.0.1:{{port}};
             location / {{ proxy_pass http://{origin}; proxy_cache one; proxy_cache_valid 1h;
                 proxy_cache_key $uri; proxy_cache_purge $purge; add_header X-Cache $upstream_cache_status; }}
             location = /metrics {{ metrics; }} }} }}",
        dir.display(),
        device.display()
    )
}

fn is_hit(server: &Server, size: usize) -> bool {
    let response = Client::get(server.addr(), &format!("/{size}")).unwrap();
    assert!(response.body == body(size), "{size}: {}", server.error_log());
    response.field("X-Cache") == Some("HIT")
}

fn purge(server: &Server, size: usize) -> u16 {
    let mut client = server.connect().unwrap();
    let request = format!("PURGE /{size} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    client.send(request).unwrap();
    client.read_response().unwrap().status
}

fn wait_loaded(server: &Server) {
    server.wait_error_log(" records in ").unwrap();
    server.wait_error_log(" files, ").unwrap();
}

/// A life with fills, a kill, hits, a purge and another kill.
fn live(dir: &Path, device: &Path) {
    let conf = conf(dir, device, sizes());
    let start = || server().with_master().start(&conf).unwrap();
    let mut first = start();
    for size in SIZES {
        assert!(wait::until(wait::TIMEOUT, || is_hit(&first, size)), "{size}: {}", first.error_log());
    }
    assert!(!dir.join("cache/segments").exists());
    first.signal(Signal::KILL).unwrap();
    let _ = first.wait_exit(wait::TIMEOUT);
    let begin = |server: &Server| wait_loaded(server);
    // The worker process of the one before holds the device until it has ended.
    let mut second = wait::some(wait::TIMEOUT, || server().with_master().start(&conf).ok()).unwrap();
    begin(&second);
    for size in SIZES {
        assert!(is_hit(&second, size), "{size}: {}", second.error_log());
    }
    let mut client = second.connect().unwrap();
    let range =
        "GET /900000 HTTP/1.1\r\nHost: localhost\r\nRange: bytes=70000-70099\r\nConnection: close\r\n\r\n";
    client.send(range).unwrap();
    let part = client.read_response().unwrap();
    assert_eq!((part.status, &part.body[..]), (206, &body(900_000)[70_000..70_100]));
    assert_eq!(purge(&second, 4096), 204);
    second.signal(Signal::KILL).unwrap();
    let _ = second.wait_exit(wait::TIMEOUT);
    let third = wait::some(wait::TIMEOUT, || server().with_master().start(&conf).ok()).unwrap();
    begin(&third);
    for size in SIZES {
        assert_eq!(is_hit(&third, size), size != 4096, "{size}: {}", third.error_log());
    }
}

#[test]
fn segments_in_a_file_in_the_place_of_a_device_survive_kills() {
    let dir = TempDir::new("device").unwrap();
    let device = file(dir.path(), 64 << 20);
    assert!(format(&device, &["--segment", "4m"]).status.success());
    live(dir.path(), &device);
}

#[test]
fn segments_on_a_loop_device_survive_kills() {
    let dir = TempDir::new("device").unwrap();
    let image = file(dir.path(), 64 << 20);
    let losetup = |args: &[&str]| Command::new("losetup").args(args).arg(&image).output();
    let device = match losetup(&["--find", "--show"]) {
        Ok(output) if output.status.success() => {
            PathBuf::from(String::from_utf8(output.stdout).unwrap().trim().to_owned())
        }
        _ => return leave_out(Lacks::Machine, "no loop device can be made"),
    };
    let formatted = format(&device, &[]);
    let result = std::panic::catch_unwind(|| {
        assert!(formatted.status.success(), "{formatted:?}");
        live(dir.path(), &device);
        // A server that runs has it alone.
        let conf = conf(dir.path(), &device, sizes());
        let _running = wait::some(wait::TIMEOUT, || server().with_master().start(&conf).ok()).unwrap();
        let refused = error_of(&format(&device, &["--again"]));
        assert!(refused.contains("uses it"), "{refused}");
    });
    let detach = || Command::new("losetup").arg("--detach").arg(&device).status().is_ok_and(|s| s.success());
    assert!(wait::until(wait::TIMEOUT, detach));
    result.unwrap();
}

#[test]
fn device_is_used_in_turn_and_stays_within_its_size() {
    let dir = TempDir::new("device").unwrap();
    let origin = sizes();
    let device = file(dir.path(), 41 << 20);
    assert!(format(&device, &["--segment", "4m"]).status.success());
    let server = server().start(&conf(dir.path(), &device, origin)).unwrap();
    wait_loaded(&server);
    let mut stored = 0;
    for nth in 0..100_usize {
        assert!(!is_hit(&server, 900_000 + nth));
        stored = metric(&server, "cache_stored_total");
        assert!(metric(&server, "cache_bytes{cache=\"one\"}") <= 40 << 20, "{}", server.error_log());
    }
    // A response for which there is no room is not stored, but everything is served.
    assert!(stored > 20, "{stored} {}", server.error_log());
    assert!(
        is_hit(&server, 900_000)
            || metric(&server, "cache_removed_total{cache=\"one\",reason=\"evicted\"}") > 0
    );
    assert_eq!(fs::metadata(&device).unwrap().len(), 41 << 20);
    assert!(!server.error_log().contains("is damaged"), "{}", server.error_log());
}

#[test]
fn device_with_something_else_is_refused() {
    let dir = TempDir::new("device").unwrap();
    let origin = sizes();
    let device = file(dir.path(), 64 << 20);
    let start = || server().start(&conf(dir.path(), &device, origin)).err().map(|error| error.to_string());
    let said = start().unwrap();
    assert!(
        said.contains("is not formatted for a cache") && said.contains("tailwater cache format"),
        "{said}"
    );
    fs::write(&device, [vec![0; 0x438], b"\x53\xef".to_vec(), vec![7; 64 << 20]].concat()).unwrap();
    let before = fs::read(&device).unwrap();
    assert!(start().unwrap().contains("has ext2, ext3 or ext4 on it"));
    for options in [&[][..], &["--again"]] {
        let refused = error_of(&format(&device, options));
        assert!(refused.contains("ext4 on it") && refused.contains("wipefs"), "{refused}");
    }
    assert!(fs::read(&device).unwrap() == before);
    // Formatted once, and again only on demand.
    fs::write(&device, vec![0; 64 << 20]).unwrap();
    assert!(format(&device, &[]).status.success());
    assert!(error_of(&format(&device, &[])).contains("has segments of a cache on it"));
    assert!(format(&device, &["--again"]).status.success());
}

#[test]
fn responses_of_a_device_that_was_used_elsewhere_are_forgotten() {
    let dir = TempDir::new("device").unwrap();
    let origin = sizes();
    let device = file(dir.path(), 64 << 20);
    assert!(format(&device, &[]).status.success());
    let with = conf(dir.path(), &device, origin);
    let without = with.replace(&format!("device={}", device.display()), "");
    let life = |conf: &str| {
        let server = server().start(conf).unwrap();
        wait_loaded(&server);
        let was_hit = is_hit(&server, 5000);
        assert!(wait::until(wait::TIMEOUT, || is_hit(&server, 5000)));
        // A hit may come from a fill that goes on.
        let is_stored = || metric(&server, "cache_stored_total") > 0;
        assert!(was_hit || wait::until(wait::TIMEOUT, is_stored), "{}", server.error_log());
        was_hit
    };
    assert_eq!(
        [&with, &with, &without, &with, &with].map(|conf| life(conf)),
        [false, true, false, false, true]
    );
}

#[test]
fn device_parameters_are_checked() {
    let dir = TempDir::new("device").unwrap();
    let device = file(dir.path(), 64 << 20);
    let device = device.display();
    for (parameters, expected) in [
        (format!("device={device}"), "\"device\" requires \"store=log\""),
        ("direct=on".to_owned(), "\"direct\" requires \"store=log\""),
        ("store=log direct=yes".to_owned(), "invalid direct value \"yes\", it must be \"on\" or \"off\""),
        ("store=log device=".to_owned(), "invalid device value \"device=\""),
        (format!("store=log segment=8m device={device}"), "\"segment\" has no effect on a device"),
        (format!("member=/b device={device}"), "\"device\" requires \"store=log\""),
        (format!("member=/b:device={device}"), "a member with a device requires \"store=log\""),
        ("store=log member=/b:device=".to_owned(), "invalid member value \"member=/b:device=\""),
        (format!("store=log member=cache:device={device} device=/x"), "member \"cache\" has two devices"),
        (
            format!("store=log segment=8m device={device} member=/b:device=/x"),
            "\"segment\" has no effect on devices",
        ),
        (
            format!("store=log segment=8m member=cache:device={device}"),
            "\"segment\" has no effect on devices",
        ),
        (format!("store=log device={device} member=/b:device={device}"), "shares files with the cache in"),
        ("store=log device=/nothing/here".to_owned(), "open() \"/nothing/here\" failed (2: No such file"),
    ] {
        let conf = format!("http {{ proxy_cache_path cache keys_zone=one:1m {parameters}; }}");
        let output = server().arg("-t").run(&conf).unwrap();
        let said = error_of(&output);
        assert!(said.contains(expected), "{parameters}: {said}");
    }
}

#[test]
fn direct_segments_are_hits_without_the_page_cache() {
    let dir = TempDir::new("device").unwrap();
    let origin = sizes();
    let conf = conf(dir.path(), Path::new("x"), origin).replace("device=x", "direct=on");
    let mut first = server().start(&conf).unwrap();
    for size in SIZES {
        assert!(wait::until(wait::TIMEOUT, || is_hit(&first, size)), "{size}: {}", first.error_log());
    }
    wait_stored(&first, SIZES.len());
    assert_eq!(purge(&first, 300), 204);
    first.stop().unwrap();
    let second = server().start(&conf).unwrap();
    wait_loaded(&second);
    for size in SIZES {
        assert_eq!(is_hit(&second, size), size != 300, "{size}: {}", second.error_log());
    }
}
