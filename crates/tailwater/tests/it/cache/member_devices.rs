//! Members of a cache whose segments are on devices (`member=DIR:device=DEVICE`), here files in their place: shares, kills, devices
//! that are missing, foreign, read-only, exchanged, replaced or failing, and purges meanwhile.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::origin::counting;
use tw_testkit::{Errno, Lacks, Server, Signal, TempDir, leave_out, wait};

use super::members::{PAGES, count, hits};
use crate::support::cache::wait_stored;
use crate::support::metrics::metric;
use crate::support::reload::reload_until;
use crate::support::{get, server};

/// Directories and devices of a cache, below one directory.
struct Place {
    dir: TempDir,
    origin: std::net::SocketAddr,
}

impl Place {
    fn new() -> Self {
        let (origin, _) = counting(|conn, head, nth| {
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            conn.answer("", format!("{path} {nth} {}", "x".repeat(3000)));
        });
        Self { dir: TempDir::new("member-devices").unwrap(), origin }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes devices and formats them.
    fn format(&self, names: &[&str]) {
        for name in names {
            format(&self.path(name));
        }
    }

    /// A configuration with these members; `@` stands for the directory.
    fn conf(&self, members: &str) -> String {
        let members = members.replace('@', &format!("{}/", self.dir.path().display()));
        let version = members.bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let origin = self.origin;
        format!(
            "http {{ proxy_cache_path {members} levels=1:2 keys_zone=one:1m inactive=1h store=log;
             map $request_method $purge {{ PURGE 1; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{origin}; proxy_cache one; proxy_cache_valid 1h;
                     proxy_cache_key $uri; proxy_cache_purge $purge;
                     add_header X-Cache $upstream_cache_status; }}
                 location /api/ {{ api write=on; }}
                 location = /version {{ return 200 {version}; }}
                 location = /metrics {{ metrics; }} }} }}"
        )
    }

    /// Starts a server. The worker process of one that was killed holds the devices until it has ended.
    fn start(&self, members: &str) -> Server {
        let conf = self.conf(members);
        wait::some(wait::TIMEOUT, || server().with_master().start(&conf).ok()).unwrap()
    }

    fn change(&self, server: &mut Server, members: &str) {
        let conf = self.conf(members);
        let version = conf.split("return 200 ").nth(1).unwrap().split(';').next().unwrap().to_owned();
        reload_until(server, &conf, "/version", &version);
    }

    fn state(&self, server: &Server, name: &str) -> String {
        state(server, &self.path(name))
    }

    fn wait_state(&self, server: &Server, name: &str, expected: &[&str]) {
        let is = || {
            hits(server);
            expected.contains(&self.state(server, name).as_str())
        };
        assert!(wait::until(2 * wait::TIMEOUT, is), "{} {}", self.state(server, name), server.error_log());
    }

    fn entries(&self, server: &Server, name: &str) -> usize {
        let path = self.path(name);
        metric(server, &format!("cache_member_entries{{cache=\"one\",member=\"{}\"}}", path.display()))
            as usize
    }
}

fn format(path: &Path) {
    File::create(path).unwrap().set_len(40 << 20).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let output = command.args(["cache", "format", "--segment", "4m"]).arg(path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// State of a member in the API.
fn state(server: &Server, dir: &Path) -> String {
    let text = get(server, "/api/http/caches/one").text();
    let begin = format!("\"path\":\"{}\",", dir.display());
    let rest = text.split(&begin).nth(1).unwrap_or_else(|| panic!("{text}"));
    rest.split("\"state\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

fn wait_hits(server: &Server, expected: usize) {
    let is = || count(&hits(server)) == expected;
    assert!(wait::until(6 * wait::TIMEOUT, is), "{} {}", count(&hits(server)), server.error_log());
}

fn wait_loaded(server: &Server, count: usize) {
    let is = || server.error_log().matches(" records in ").count() >= count;
    assert!(wait::until(wait::TIMEOUT, is), "{}", server.error_log());
}

fn kill(mut server: Server) {
    server.signal(Signal::KILL).unwrap();
    let _ = server.wait_exit(wait::TIMEOUT);
}

const BOTH: &str = "@a device=@x member=@b:device=@y";

/// A server with two members on devices, with all pages.
fn filled(place: &Place) -> Server {
    place.format(&["x", "y"]);
    let server = place.start(BOTH);
    wait_loaded(&server, 2);
    assert_eq!(count(&hits(&server)), 0);
    wait_stored(&server, PAGES);
    server
}

#[test]
fn members_on_devices_and_in_directories_share_the_keys() {
    let place = Place::new();
    place.format(&["x", "y"]);
    let members = "@a device=@x member=@b:device=@y member=@c";
    let server = place.start(members);
    wait_loaded(&server, 3);
    assert_eq!(count(&hits(&server)), 0);
    wait_stored(&server, PAGES);
    let shares = ["a", "b", "c"].map(|name| place.entries(&server, name));
    assert!(shares.iter().sum::<usize>() == PAGES && shares.iter().all(|share| *share > 4), "{shares:?}");
    assert!(!place.path("a/segments").exists() && place.path("c/segments").exists());
    let api = get(&server, "/api/http/caches/one").text();
    let device = format!("\"device\":\"{}\"", place.path("y").display());
    assert!(api.contains(&device), "{api}");
    kill(server);
    let mut server = place.start(members);
    wait_loaded(&server, 3);
    wait_hits(&server, PAGES);
    // Drained: read, and not written. Removed: only its share is fetched again.
    place.change(&mut server, &members.replace("=@y", "=@y:drain"));
    assert_eq!(place.state(&server, "b"), "draining");
    wait_hits(&server, PAGES);
    (0..PAGES).for_each(|page| _ = get(&server, &format!("/new/{page}")));
    assert_eq!(place.entries(&server, "b"), shares[1]);
    place.change(&mut server, "@a device=@x member=@c");
    assert_eq!(count(&hits(&server)), PAGES - shares[1], "{}", server.error_log());
}

#[test]
fn member_whose_device_is_missing_is_left_out_until_a_reload() {
    let place = Place::new();
    let mut server = filled(&place);
    let share = place.entries(&server, "b");
    assert!(share > 4);
    server.stop().unwrap();
    fs::rename(place.path("y"), place.path("away")).unwrap();
    let mut server = place.start(BOTH);
    wait_loaded(&server, 1);
    assert_eq!(count(&hits(&server)), PAGES - share, "{}", server.error_log());
    server.wait_error_log("/b\" is left out: its device ").unwrap();
    assert_eq!(place.state(&server, "b"), "missing");
    // A purge of that time holds for it.
    let mut client = server.connect().unwrap();
    client.send("PURGE /* HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().status, 204);
    fs::rename(place.path("away"), place.path("y")).unwrap();
    place.change(&mut server, &format!("{BOTH} min_free=1k"));
    place.wait_state(&server, "b", &["up", "probing"]);
    for page in 0..PAGES {
        let text = get(&server, &format!("/{page}")).text();
        let nth: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(nth >= PAGES, "{text}");
    }
    wait_hits(&server, PAGES);
    assert_eq!(place.state(&server, "b"), "up");
}

#[test]
fn foreign_device_of_a_member_is_neither_used_nor_written() {
    let place = Place::new();
    let mut server = filled(&place);
    let share = place.entries(&server, "b");
    server.stop().unwrap();
    let file_system = [vec![0; 0x438], b"\x53\xef".to_vec(), vec![7; 40 << 20]].concat();
    for (content, said) in [
        (file_system, "has ext2, ext3 or ext4 on it"),
        (vec![0; 40 << 20], "is not formatted for a cache"),
        (vec![0; 100], "is not formatted for a cache"),
    ] {
        fs::write(place.path("y"), &content).unwrap();
        let tested = crate::support::server().arg("-t").run(&place.conf(BOTH)).unwrap();
        let text = String::from_utf8_lossy(&tested.stderr).into_owned();
        assert!(tested.status.success() && text.contains(said), "{text}");
        let mut server = place.start(BOTH);
        server.wait_error_log("/b\" is left out: its device ").unwrap();
        wait_loaded(&server, 1);
        assert!(server.error_log().contains(said), "{}", server.error_log());
        assert!(count(&hits(&server)) >= PAGES - share, "{}", server.error_log());
        assert_eq!(place.state(&server, "b"), "missing");
        server.stop().unwrap();
        assert!(fs::read(place.path("y")).unwrap() == content);
    }
}

#[test]
fn exchanged_devices_serve_their_responses() {
    let place = Place::new();
    let mut server = filled(&place);
    for _ in 0..2 {
        server.stop().unwrap();
        for (from, to) in [("x", "z"), ("y", "x"), ("z", "y")] {
            fs::rename(place.path(from), place.path(to)).unwrap();
        }
        server = place.start(BOTH);
        wait_loaded(&server, 2);
        wait_hits(&server, PAGES);
    }
}

#[test]
fn device_of_a_member_that_answers_late_is_not_emptied() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let place = Place::new();
    place.format(&["x", "y"]);
    let members = format!("@a device=@x member={}:device=@y", disk.join("b").display());
    let mut server = place.start(&members);
    wait_loaded(&server, 2);
    assert_eq!(count(&hits(&server)), 0);
    wait_stored(&server, PAGES);
    server.stop().unwrap();
    for (from, to) in [("x", "z"), ("y", "x"), ("z", "y")] {
        fs::rename(place.path(from), place.path(to)).unwrap();
    }
    let fault = disk.on(Op::Read).inject(Fault::Stall);
    let server = place.start(&members);
    server.wait_error_log("may be that of a member that has not answered yet").unwrap();
    fault.lift();
    wait_loaded(&server, 2);
    wait_hits(&server, PAGES);
}

#[test]
fn replaced_device_is_used_after_a_reload() {
    let place = Place::new();
    let mut server = filled(&place);
    let share = place.entries(&server, "b");
    fs::remove_file(place.path("y")).unwrap();
    place.format(&["y"]);
    place.change(&mut server, &format!("{BOTH} min_free=1k"));
    // If the old configuration keeps the device open for a moment longer, the member is readmitted by degrees.
    let is_known = || ["up", "probing"].contains(&place.state(&server, "b").as_str());
    assert!(wait::until(wait::TIMEOUT, is_known), "{} {}", place.state(&server, "b"), server.error_log());
    // Responses that loops have in memory belong to the replaced device, and are not hits.
    assert_eq!(count(&hits(&server)), PAGES - share, "{}", server.error_log());
    wait_hits(&server, PAGES);
    assert_eq!(place.entries(&server, "b"), share);
}

#[test]
fn device_that_another_cache_has_used_meanwhile_is_emptied() {
    let place = Place::new();
    let mut server = filled(&place);
    let share = place.entries(&server, "b");
    server.stop().unwrap();
    for (members, expected) in [("@c device=@y", 0), (BOTH, PAGES - share)] {
        let mut server = place.start(members);
        wait_loaded(&server, members.matches("device=").count());
        assert_eq!(count(&hits(&server)), expected, "{members} {}", server.error_log());
        server.stop().unwrap();
    }
}

#[test]
fn device_of_a_directory_of_another_cache_is_emptied() {
    let place = Place::new();
    place.format(&["z", "w"]);
    let mut other = place.start("@c device=@z member=@d:device=@w");
    wait_loaded(&other, 2);
    assert_eq!(count(&hits(&other)), 0);
    wait_stored(&other, PAGES);
    other.stop().unwrap();
    let mut server = filled(&place);
    server.stop().unwrap();
    // "c" knows the device, but has not applied the purges of this cache.
    let server = place.start("@a device=@z member=@b:device=@y member=@c:device=@x");
    wait_loaded(&server, 3);
    assert_eq!(place.entries(&server, "a"), 0, "{}", server.error_log());
    assert!(place.entries(&server, "b") > 0, "{}", server.error_log());
}

#[test]
fn failing_device_of_a_member_is_left_out_and_comes_back() {
    for fault in [Fault::Error(Errno::IO), Fault::Stall] {
        let Some(disk) = SlowDisk::mount_or_skip() else { return };
        let place = Place::new();
        place.format(&["x"]);
        let device = disk.join("y");
        format(&device);
        let members = format!("@a device=@x member=@b:device={} slow=200ms", device.display());
        let conf = format!("thread_pool default threads=16 device_timeout=2s; {}", place.conf(&members));
        let server = server().with_master().start(&conf).unwrap();
        wait_loaded(&server, 2);
        hits(&server);
        wait_stored(&server, PAGES);
        assert_eq!(place.state(&server, "b"), "up");
        let faults = [Op::Read, Op::Write].map(|op| disk.on(op).inject(fault));
        // Background probes find the fault; no request is needed.
        place.wait_state(&server, "b", &["failing"]);
        if fault != Fault::Stall {
            continue;
        }
        faults.into_iter().for_each(|fault| fault.lift());
        place.wait_state(&server, "b", &["probing", "up"]);
        wait_hits(&server, PAGES);
    }
}

#[test]
fn read_only_device_of_a_member_is_read() {
    let place = Place::new();
    let mut server = filled(&place);
    server.stop().unwrap();
    let losetup = |args: &[&str]| Command::new("losetup").args(args).arg(place.path("y")).output();
    let device = match losetup(&["--read-only", "--find", "--show"]) {
        Ok(output) if output.status.success() => {
            PathBuf::from(String::from_utf8(output.stdout).unwrap().trim().to_owned())
        }
        _ => return leave_out(Lacks::Machine, "no loop device can be made"),
    };
    let result = std::panic::catch_unwind(|| {
        let server = place.start(&format!("@a device=@x member=@b:device={}", device.display()));
        wait_loaded(&server, 2);
        wait_hits(&server, PAGES);
        place.wait_state(&server, "b", &["read-only"]);
        (0..PAGES).for_each(|page| assert_eq!(get(&server, &format!("/new/{page}")).status, 200));
        wait_hits(&server, PAGES);
    });
    let detach = || Command::new("losetup").arg("--detach").arg(&device).status().is_ok_and(|s| s.success());
    assert!(wait::until(wait::TIMEOUT, detach));
    result.unwrap();
}
