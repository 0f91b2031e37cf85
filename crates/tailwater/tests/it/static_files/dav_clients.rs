//! Clients of WebDAV as others write them, where they are installed: a shell (cadaver) and a mount (davfs2).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tw_testkit::{Lacks, Server, TempDir, leave_out, wait};

use crate::support::files::names_in;
use crate::support::{own_user, program, server};

fn dav() -> Server {
    let http = "dav_ext_lock_zone zone=locks:1m; server { listen 127.0.0.1:{port}; root html;
        dav_methods PUT DELETE MKCOL COPY MOVE; dav_ext_methods PROPFIND OPTIONS LOCK UNLOCK; dav_ext_lock zone=locks;
        client_max_body_size 10m; }";
    server().file("html/old & new.txt", "hello").start(&format!("{} http {{ {http} }}", own_user())).unwrap()
}

#[test]
fn cadaver_lists_locks_and_changes() {
    let server = dav();
    let dir = TempDir::new("cadaver").unwrap();
    fs::write(dir.path().join("local"), "content").unwrap();
    let url = format!("http://{}/", server.addr());
    let script = "ls\nput local remote\nlock remote\nput local remote\nunlock remote\ncopy remote copy\nmove copy moved\n\
                  mkcol c/\ndelete moved\npropnames remote\nls\nget remote back\nquit\n";
    let Some(said) = program::run("cadaver", &dir, &[url], script) else { return };
    for expected in
        ["old & new.txt", "Locking `remote': succeeded", "Unlocking `remote': succeeded", "Coll:   c"]
    {
        assert!(said.contains(expected), "{expected}\n{said}");
    }
    assert!(!said.contains("failed"), "{said}");
    assert_eq!(fs::read_to_string(dir.path().join("back")).unwrap(), "content");
    assert_eq!(names_in(server.prefix().join("html")), ["c", "old & new.txt", "remote"]);
}

/// A mounted directory, until this is dropped.
struct Mount<'a>(&'a Path);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn mounted_directory_is_written_to_and_renamed() {
    let server = dav();
    let html = server.prefix().join("html");
    let dir = TempDir::new("davfs").unwrap();
    let mountpoint = dir.path().join("m");
    let conf = dir.path().join("conf");
    fs::create_dir(&mountpoint).unwrap();
    let cache = dir.path().join("cache");
    fs::create_dir(&cache).unwrap();
    // The program that serves the mount has a user of its own.
    for (path, mode) in [(dir.path(), 0o755), (&cache, 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(&conf, format!("ask_auth 0\nuse_locks 1\ndelay_upload 0\ncache_dir {}\n", cache.display()))
        .unwrap();
    let url = format!("http://{}/", server.addr());
    let options = format!("-oconf={}", conf.display());
    let mounted = Command::new("mount.davfs").args([&options, &url]).arg(&mountpoint).output();
    let Ok(mounted) = mounted else { return leave_out(Lacks::Machine, "no mount.davfs to mount with") };
    if !mounted.status.success() {
        let why = String::from_utf8_lossy(&mounted.stderr);
        return leave_out(Lacks::Machine, format_args!("davfs2 mounts nothing here: {why}"));
    }
    let mount = Mount(&mountpoint);
    assert_eq!(fs::read_to_string(mountpoint.join("old & new.txt")).unwrap(), "hello");
    fs::write(mountpoint.join("written"), "a".repeat(100_000)).unwrap();
    fs::create_dir(mountpoint.join("dir")).unwrap();
    let has = |name: &str, size: u64| fs::metadata(html.join(name)).is_ok_and(|meta| meta.len() == size);
    assert!(wait::until(wait::TIMEOUT, || has("written", 100_000)), "{:?}", names_in(&html));
    fs::rename(mountpoint.join("written"), mountpoint.join("dir/renamed")).unwrap();
    assert!(wait::until(wait::TIMEOUT, || has("dir/renamed", 100_000)), "{:?}", names_in(&html));
    fs::remove_file(mountpoint.join("old & new.txt")).unwrap();
    assert!(mountpoint.join("dir").is_dir() && !mountpoint.join("written").exists());
    drop(mount);
    assert_eq!(names_in(html.join("dir")), ["renamed"]);
    assert!(!html.join("old & new.txt").exists());
}
