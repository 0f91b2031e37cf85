//! The door over the real file system, in every mode. Tests that keep a device busy are in `busy.rs`, because that changes
//! what others may do inline.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and shows what its pool says"
)]

use rustix::fs::{Advice, AtFlags, CWD, StatVfsMountFlags, Timespec, Timestamps, fadvise};
use std::ffi::{CStr, CString, OsStr};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tw_disk::{
    Access, Account, Aio, CreateOptions, Disk, DiskError, Durable, Errno, Existing, File, FileKind, JobClass,
    JobSource, Links, Now, Op, OpenOptions, Pool, Reads, SentEnd, TempOptions, WriteBack,
};
use tw_testkit::wait::{TIMEOUT, until};
use tw_testkit::{Lacks, leave_out};

/// Threads of the pool of a [`Bench`].
const THREADS: u32 = 4;

const DEADLINE: Duration = Duration::from_secs(20);

/// A directory of its own, and a door to work in it.
struct Bench {
    disk: Disk,
    dir: PathBuf,
    account: Account,
}

impl Bench {
    fn new(aio: Aio) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("real-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let pool = Pool::new("bench", THREADS, 100).unwrap();
        pool.on_notice(|notice| eprintln!("{notice}"));
        let disk = Disk::new(pool, aio);
        Self { disk, dir, account: Account::new(JobClass::Hit, JobSource::new(1)) }
    }

    fn path(&self, name: &str) -> CString {
        CString::new(self.dir.join(name).as_os_str().as_bytes()).unwrap()
    }

    async fn put(&mut self, name: &str, content: &[u8]) -> File {
        let path = self.path(name);
        let options = CreateOptions { existing: Existing::Truncate, mode: 0o644, ..CreateOptions::NEW };
        let file = self.disk.create(&mut self.account, &path, &options).await.unwrap();
        self.disk.write(&mut self.account, &file, 0, content.to_vec()).await.unwrap();
        self.disk.fsync(&mut self.account, &file, Durable::All).await.unwrap();
        file
    }

    async fn open(&mut self, name: &str, options: &OpenOptions) -> Result<File, DiskError> {
        let path = self.path(name);
        self.disk.open(&mut self.account, &path, options).await
    }

    /// Reads everything, in steps of `step` bytes.
    async fn read_all(&mut self, file: &File, step: usize) -> Vec<u8> {
        let mut content = Vec::new();
        loop {
            let at = content.len() as u64;
            let read = self.disk.read(&mut self.account, file, at, vec![0; step]).await.unwrap();
            if read.is_empty() {
                return content;
            }
            content.extend(read);
        }
    }

    fn jobs(&self, op: Op) -> u64 {
        self.disk.pool().stats().ops.iter().find(|stats| stats.op == op).map_or(0, |stats| stats.jobs)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn drop_from_memory(file: &File) -> bool {
    file.fd().is_some_and(|fd| fadvise(fd, 0, None, Advice::DontNeed).is_ok())
}

fn errno<T>(result: Result<T, DiskError>) -> Option<Errno> {
    result.err().and_then(|error| error.errno())
}

#[test]
fn everyday_operations_in_every_mode() {
    for aio in [Aio::Off, Aio::Threads, Aio::Uring] {
        block_on(everyday(&mut Bench::new(aio)));
    }
}

async fn everyday(b: &mut Bench) {
    let content = bytes(10_000);
    let deep = b.path("a/b/c");
    let to = b.path("a/b/to");
    let second = b.path("a/second");
    let mut account = b.account.clone();
    let disk = b.disk.clone();
    disk.mkdir_all(&mut account, &deep, 0o755).await.unwrap();
    disk.mkdir_all(&mut account, &deep, 0o755).await.unwrap();
    assert_eq!(errno(disk.mkdir(&mut account, &deep, 0o755).await), Some(Errno::EXIST));
    let file = b.put("a/b/from", &content).await;
    let back = disk.write(&mut account, &file, 5_000, vec![1_u8; 3]).await.unwrap();
    assert_eq!(back, [1; 3]);
    let mut expected = content.clone();
    expected[5_000..5_003].fill(1);

    disk.rename(&mut account, &b.path("a/b/from"), &to).await.unwrap();
    assert!(disk.stat(&mut account, &b.path("a/b/from")).await.unwrap_err().is_absent());
    disk.link(&mut account, &to, &second).await.unwrap();
    let meta = disk.stat(&mut account, &second).await.unwrap();
    assert_eq!((meta.size, meta.nlink, meta.kind, meta.mode), (10_000, 2, FileKind::File, 0o644));
    assert_eq!(disk.read_whole(&mut account, &to, 10_000).await.unwrap(), expected);
    assert_eq!(errno(disk.read_whole(&mut account, &to, 9_999).await), Some(Errno::FBIG));

    disk.set_mtime(&mut account, &file, 1_000_000_000, 500).await.unwrap();
    disk.set_mode(&mut account, &file, 0o600).await.unwrap();
    disk.truncate(&mut account, &file, 100).await.unwrap();
    disk.set_mtime(&mut account, &file, 1_000_000_000, 500).await.unwrap();
    let meta = disk.stat_file(&mut account, &file).await.unwrap();
    assert_eq!((meta.mtime_sec, meta.mtime_nsec, meta.mode, meta.size), (1_000_000_000, 500, 0o600, 100));

    let log = b.path("a/log");
    for line in ["one\n", "two\n"] {
        let file = disk.create(&mut account, &log, &CreateOptions::LOG).await.unwrap();
        disk.append(&mut account, &file, line).await.unwrap();
    }
    assert_eq!(disk.read_whole(&mut account, &log, 100).await.unwrap(), b"one\ntwo\n");
    let copy =
        disk.copy(&mut account, &log, Links::Follow, &b.path("a/log2"), &CreateOptions::NEW).await.unwrap();
    disk.set_mtime(&mut account, &copy, 1_000_000_000, 0).await.unwrap();
    assert_eq!(disk.stat(&mut account, &b.path("a/log2")).await.unwrap().mtime_sec, 1_000_000_000);
    assert_eq!(disk.read_whole(&mut account, &b.path("a/log2"), 100).await.unwrap(), b"one\ntwo\n");
    assert_eq!(
        errno(disk.copy(&mut account, &log, Links::Follow, &b.path("a/log2"), &CreateOptions::NEW).await),
        Some(Errno::EXIST)
    );

    disk.sync_dir(&mut account, &b.path("a")).await.unwrap();
    disk.unlink(&mut account, &second).await.unwrap();
    disk.rmdir(&mut account, &deep).await.unwrap();
    assert_eq!(errno(disk.rmdir(&mut account, &b.path("a")).await), Some(Errno::NOTEMPTY));
    let space = disk.space(&mut account, &log).await.unwrap();
    assert!(space.total >= space.free && space.free >= space.available && space.block_size > 0);
    assert_eq!(account.is_inline(), b.disk.aio() == Aio::Off);
}

#[test]
fn reads_hot_data_inline_and_cold_data_by_a_job() {
    for aio in [Aio::Threads, Aio::Uring] {
        let mut b = Bench::new(aio);
        block_on(hot_and_cold(&mut b));
    }
}

async fn hot_and_cold(b: &mut Bench) {
    let content = bytes(1 << 20);
    let file = b.put("f", &content).await;
    // Writing has shown what the device supports, and left the content in memory.
    let mut buf = vec![0; 4096];
    let dev = file.meta().dev;
    let reads = tw_disk::devices().into_iter().find(|device| device.dev == Some(dev)).unwrap().reads;
    if reads != Reads::NoWait {
        return leave_out(Lacks::Machine, format_args!("this device reads by {reads:?}"));
    }
    let mut fresh = b.account.clone();
    assert_eq!(b.disk.read_now(&file, 4096, &mut buf), Now::Ready(Ok(4096)));
    assert_eq!(buf, content[4096..8192]);
    assert_eq!(b.disk.read_now(&file, 1 << 20, &mut buf), Now::Ready(Ok(0)));
    assert_eq!(b.disk.read(&mut fresh, &file, 0, vec![0; 100]).await.unwrap(), content[..100]);
    assert_eq!(fresh.jobs(), b.account.jobs());

    let is_cold = drop_from_memory(&file) && b.disk.read_now(&file, 500_000, &mut buf) == Now::Cold;
    if !is_cold {
        return leave_out(Lacks::Machine, "this file system does not drop content from memory");
    }
    let has_ring = b.disk.aio() == Aio::Uring && tw_sys::uring::Ring::<OwnedFd, ()>::new(1).is_ok();
    let mut account = b.account.clone();
    let start = Instant::now();
    loop {
        // Pages of a read in progress cannot be dropped, so the content may stay in memory until that read has ended.
        drop_from_memory(&file);
        let before = account.jobs();
        let read = b.disk.read_cold(&mut account, &file, 700_000, vec![0; 4096]).await.unwrap();
        assert!(!read.is_empty());
        assert_eq!(read, content[700_000..][..read.len()]);
        assert_eq!(account.jobs(), before + 1);
        assert!(account.wait() > Duration::ZERO);
        if !has_ring || b.disk.pool().stats().ring_reads > 0 {
            break;
        }
        assert!(start.elapsed() < DEADLINE, "nothing was read by the ring");
    }
    // The content is in memory now.
    let jobs = account.jobs();
    b.disk.read(&mut account, &file, 700_000, vec![0; 4096]).await.unwrap();
    assert_eq!(account.jobs(), jobs);
    drop_from_memory(&file);
    assert_eq!(b.read_all(&file, 100_000).await, content);
}

#[test]
fn cached_open_finds_only_cached_paths() {
    let mut b = Bench::new(Aio::Threads);
    block_on(async {
        let made = b.put("f", b"x").await;
        let path = b.path("f");
        let Now::Ready(Ok(file)) = b.disk.open_now(&path, &OpenOptions::READ) else {
            panic!("the name was just created");
        };
        assert_eq!(file.meta().ino, made.meta().ino);
        assert!(matches!(b.disk.open_now(&path, &OpenOptions::READ_WRITE), Now::Cold));
        assert!(matches!(b.disk.open_now(&path, &OpenOptions::PATH), Now::Ready(Ok(_))));
        // Whether the absence of a name is remembered is up to the file system.
        assert!(matches!(
            b.disk.open_now(&b.path("g"), &OpenOptions::READ),
            Now::Cold | Now::Ready(Err(Errno::NOENT))
        ));
        assert!(b.open("g", &OpenOptions::READ).await.unwrap_err().is_absent());
        let error = b.open("f/g", &OpenOptions::READ).await.unwrap_err();
        assert_eq!((error.errno(), error.is_absent()), (Some(Errno::NOTDIR), true));
        assert_eq!(error.to_string(), "open() failed (20: Not a directory)");
    });
}

#[test]
fn a_probe_sees_every_new_version() {
    let mut b = Bench::new(Aio::Threads);
    block_on(async {
        let file = b.put("f", b"one").await;
        let path = b.path("f");
        let probe = |b: &Bench| match b.disk.probe_now(&path) {
            Now::Ready(Ok(meta)) => meta,
            other => panic!("{other:?}"),
        };
        let first = probe(&b);
        assert!(first.is_same_version(&probe(&b)));
        b.disk.truncate(&mut b.account.clone(), &file, 1).await.unwrap();
        let second = probe(&b);
        assert!(!first.is_same_version(&second));
        // Replaced by another file: the path shows it, and so does the descriptor of the old one.
        b.put("new", b"t").await;
        b.disk.rename(&mut b.account.clone(), &b.path("new"), &path).await.unwrap();
        assert!(!probe(&b).is_same_version(&second));
        let Now::Ready(Ok(old)) = b.disk.stat_now(&file) else { panic!("a local file") };
        assert_eq!(old.nlink, 0);
        assert!(!old.is_same_version(&second));
    });
}

#[test]
fn symbolic_links_are_followed_refused_or_judged() {
    let mut b = Bench::new(Aio::Threads);
    let is_root = rustix::process::geteuid().is_root();
    block_on(async {
        b.disk.mkdir_all(&mut b.account.clone(), &b.path("real/dir"), 0o755).await.unwrap();
        b.put("real/dir/f", b"x").await;
        let root = b.dir.clone();
        for (target, name) in
            [("dir/f", "real/file_link"), ("real", "dir_link"), ("loop", "loop"), ("nowhere", "dangling")]
        {
            std::os::unix::fs::symlink(target, root.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(root.join("real/dir"), root.join("absolute")).unwrap();
        if is_root {
            std::os::unix::fs::symlink("real/dir/f", root.join("foreign")).unwrap();
            std::os::unix::fs::lchown(root.join("foreign"), Some(12345), None).unwrap();
        }
        let from = b.path("").to_bytes().len() as u32;
        let below_dir = b.path("dir_link").to_bytes().len() as u32;
        let follow = Links::Follow;
        let refuse = Links::Refuse { from };
        let owner = Links::SameOwner { from };
        let ok = None;
        let denied = Some(Errno::LOOP);
        let mut cases = vec![
            ("real/dir/f", follow, ok),
            ("real/dir/f", refuse, ok),
            ("real/dir/f", owner, ok),
            ("real/dir/f", Links::Refuse { from: 0 }, ok),
            ("real/file_link", follow, ok),
            ("real/file_link", refuse, denied),
            ("real/file_link", owner, ok),
            ("dir_link/dir/f", follow, ok),
            ("dir_link/dir/f", refuse, denied),
            ("dir_link/dir/f", Links::Refuse { from: below_dir }, ok),
            ("dir_link/file_link", Links::Refuse { from: below_dir }, denied),
            ("dir_link/file_link", owner, ok),
            ("absolute/f", refuse, denied),
            ("absolute/f", owner, ok),
            ("loop", follow, denied),
            ("loop", owner, denied),
            ("dangling", owner, Some(Errno::NOENT)),
            ("real/dir/g", owner, Some(Errno::NOENT)),
            ("real/dir/f/", owner, Some(Errno::NOTDIR)),
        ];
        if is_root {
            cases.push(("foreign", follow, ok));
            cases.push(("foreign", owner, denied));
        }
        for (name, links, expected) in cases {
            for access in [Access::Read, Access::Path] {
                let options = OpenOptions { links, access, ..OpenOptions::READ };
                // The result is the same for a cold and a hot lookup.
                for _ in 0..2 {
                    let opened = b.open(name, &options).await;
                    assert_eq!(errno(opened), expected, "{name} {links:?} {access:?}");
                }
            }
        }
        let mut account = b.account.clone();
        assert_eq!(b.disk.readlink(&mut account, &b.path("dir_link")).await.unwrap().as_c_str(), c"real");
        let canonical = std::fs::canonicalize(root.join("real/dir/f")).unwrap();
        let resolved = b.disk.realpath(&mut account, &b.path("dir_link/file_link")).await.unwrap();
        assert_eq!(resolved.as_bytes(), canonical.as_os_str().as_bytes());
        let link = b.disk.stat_link(&mut account, &b.path("dangling")).await.unwrap();
        assert_eq!(link.kind, FileKind::Symlink);
    });
}

#[test]
fn a_link_whose_access_time_is_due_is_followed_by_a_job() {
    let mut b = Bench::new(Aio::Threads);
    let options = OpenOptions::READ;
    let link = b.path("link");
    block_on(b.put("a", b"content"));
    std::os::unix::fs::symlink("a", b.dir.join("link")).unwrap();
    let flags = rustix::fs::statvfs(&b.dir).unwrap().f_flag;
    if !flags.contains(StatVfsMountFlags::RELATIME) {
        return leave_out(Lacks::Machine, "this file system is not mounted with relatime");
    }
    let mut settles = || {
        until(TIMEOUT, || {
            block_on(b.disk.open_cold(&mut b.account, &link, &options)).unwrap();
            matches!(b.disk.open_now(&link, &options), Now::Ready(Ok(_)))
        })
    };
    // The kernel itself does not go on where it would have to write (`try_to_unlazy` refuses with `RESOLVE_CACHED`).
    for _ in 0..2 {
        assert!(settles(), "following it writes its access time, once");
        let time = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
        let times = Timestamps { last_access: time(1), last_modification: time(2) };
        rustix::fs::utimensat(CWD, &link, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let disk = Disk::new(Pool::new("another", 1, 1).unwrap(), Aio::Threads);
        assert!(matches!(disk.open_now(&link, &options), Now::Cold));
    }
}

#[test]
fn a_link_on_the_way_is_refused() {
    let mut b = Bench::new(Aio::Threads);
    block_on(async {
        for dir in ["t/u", "outside/v"] {
            b.disk.mkdir_all(&mut b.account.clone(), &b.path(dir), 0o755).await.unwrap();
        }
        b.put("t/u/f", b"x").await;
        b.put("outside/f", b"x").await;
        b.put("outside/v/f", b"x").await;
        let mut account = b.account.clone();
        let from = b.dir.as_os_str().len() as u32;
        let disk = &b.disk;
        // A link takes the place of a directory after it was read.
        std::fs::rename(b.dir.join("t/u"), b.dir.join("t/old")).unwrap();
        std::os::unix::fs::symlink("../outside", b.dir.join("t/u")).unwrap();
        let refused = Some(Errno::LOOP);
        for path in ["t/u", "t/u/", "t/u/v"] {
            assert_eq!(errno(disk.list_links(&mut account, &b.path(path), 9, from).await), refused, "{path}");
        }
        assert_eq!(errno(disk.unlink_below(&mut account, &b.path("t/u/f"), from).await), refused);
        assert_eq!(errno(disk.rmdir_below(&mut account, &b.path("t/u/v"), from).await), refused);
        let links = Links::Refuse { from };
        assert_eq!(
            errno(
                disk.copy(&mut account, &b.path("t/u/f"), links, &b.path("copy"), &CreateOptions::NEW).await
            ),
            refused
        );
        assert!(b.dir.join("outside/f").exists() && !b.dir.join("copy").exists());
        // Links above are trusted, and a link itself may go.
        let trusted = b.path("t/u").to_bytes().len() as u32;
        disk.unlink_below(&mut account, &b.path("t/u/f"), trusted).await.unwrap();
        disk.unlink_below(&mut account, &b.path("t/u"), from).await.unwrap();
        disk.unlink_below(&mut account, &b.path("t/old/f"), from).await.unwrap();
        disk.rmdir_below(&mut account, &b.path("t/old"), from).await.unwrap();
        assert!(b.dir.join("outside/v/f").exists() && !b.dir.join("t/old").exists());
    });
}

#[test]
fn lists_a_directory_up_to_a_limit() {
    let mut b = Bench::new(Aio::Threads);
    block_on(async {
        b.disk.mkdir_all(&mut b.account.clone(), &b.path("d/sub"), 0o755).await.unwrap();
        b.put("d/one", &bytes(100)).await;
        b.put("d/.hidden", b"").await;
        std::os::unix::fs::symlink("one", b.dir.join("d/link")).unwrap();
        std::os::unix::fs::symlink("nowhere", b.dir.join("d/dangling")).unwrap();
        let mut account = b.account.clone();
        let mut listing = b.disk.list(&mut account, &b.path("d"), 100).await.unwrap();
        listing.entries.sort_by(|a, b| a.name.cmp(&b.name));
        let results: Vec<_> =
            listing.entries.iter().map(|e| (e.name.to_str().unwrap(), e.meta.kind, e.meta.size)).collect();
        assert_eq!(results[0], (".hidden", FileKind::File, 0));
        assert_eq!(results[1].1, FileKind::Symlink);
        assert_eq!(results[2], ("link", FileKind::File, 100));
        assert_eq!(results[3], ("one", FileKind::File, 100));
        assert_eq!((results[4].0, results[4].1, results.len()), ("sub", FileKind::Directory, 5));
        assert!(!listing.truncated);
        let mut listing = b.disk.list_links(&mut account, &b.path("d"), 100, 0).await.unwrap();
        listing.entries.sort_by(|a, b| a.name.cmp(&b.name));
        let kinds: Vec<_> = listing.entries.iter().map(|e| e.meta.kind).collect();
        assert_eq!(
            kinds,
            [FileKind::File, FileKind::Symlink, FileKind::Symlink, FileKind::File, FileKind::Directory]
        );
        let listing = b.disk.list(&mut account, &b.path("d"), 3).await.unwrap();
        assert_eq!((listing.entries.len(), listing.truncated), (3, true));
        assert_eq!(errno(b.disk.list(&mut account, &b.path("d/one"), 3).await), Some(Errno::NOTDIR));
    });
}

#[test]
fn directory_is_listed_part_by_part() {
    let mut b = Bench::new(Aio::Threads);
    block_on(async {
        let mut account = b.account.clone();
        b.disk.mkdir(&mut account, &b.path("d"), 0o755).await.unwrap();
        // The listing needs more than one buffer of the kernel.
        let mut expected: Vec<_> = (0..700).map(|n| format!("{n:0100}")).collect();
        for name in &expected {
            std::fs::write(b.dir.join("d").join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink("nowhere", b.dir.join("d/z")).unwrap();
        expected.push("z".to_owned());
        let directory = b.disk.open(&mut account, &b.path("d"), &OpenOptions::READ).await.unwrap();
        let mut names = Vec::new();
        let mut next = Some(0);
        let mut parts = 0;
        while let Some(from) = next {
            let part = b.disk.list_part(&mut account, &directory, from).await.unwrap();
            names.extend(part.entries.into_iter().map(|e| (e.name.into_string().unwrap(), e.meta.kind)));
            (next, parts) = (part.next, parts + 1);
        }
        assert!(parts > 2, "{parts}");
        names.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(names.last().map(|(_, kind)| *kind), Some(FileKind::Symlink));
        assert!(names.into_iter().map(|(name, _)| name).eq(expected));
        b.put("one", b"").await;
        let file = b.disk.open(&mut account, &b.path("one"), &OpenOptions::READ).await.unwrap();
        assert_eq!(errno(b.disk.list_part(&mut account, &file, 0).await), Some(Errno::NOTDIR));
    });
}

#[test]
fn creates_temporary_files() {
    let b = Bench::new(Aio::Threads);
    block_on(async {
        let mut account = b.account.clone();
        let dir = b.path("tmp");
        b.disk.mkdir_all(&mut account, &dir, 0o755).await.unwrap();
        let options = TempOptions { levels: [1, 2, 0], ..TempOptions::NAMED };
        let mut paths = Vec::new();
        let mut temps = Vec::new();
        for _ in 0..5 {
            let temp = b.disk.create_temp(&mut account, &dir, &options).await.unwrap();
            b.disk.write(&mut account, temp.file(), 0, b"x").await.unwrap();
            let path = temp.path().unwrap().to_owned();
            assert_eq!(b.disk.stat(&mut account, &path).await.unwrap().mode, 0o600);
            assert_eq!(path.as_bytes().len(), dir.as_bytes().len() + "/1/23/0123456789".len());
            paths.push(path);
            temps.push(temp);
        }
        paths.dedup();
        assert_eq!(paths.len(), 5);
        let temp = b.disk.create_temp(&mut account, &dir, &TempOptions::NAMELESS).await.unwrap();
        assert_eq!(temp.path(), None);
        let file = temp.file();
        b.disk.write(&mut account, file, 0, b"secret").await.unwrap();
        assert_eq!(b.disk.read(&mut account, file, 0, vec![0; 10]).await.unwrap(), b"secret");
        assert_eq!(b.disk.stat_file(&mut account, file).await.unwrap().nlink, 0);
        let create = CreateOptions { parents_below: Some(dir.as_bytes().len() as u32), ..CreateOptions::NEW };
        b.disk.create(&mut account, &b.path("tmp/x/y/z"), &create).await.unwrap();
        let missing = b.path("missing");
        let create =
            CreateOptions { parents_below: Some(missing.as_bytes().len() as u32), ..CreateOptions::NEW };
        let outside = b.disk.create(&mut account, &b.path("missing/x/y"), &create).await;
        assert_eq!(errno(outside), Some(Errno::NOENT), "the directory itself is not made");
    });
}

#[test]
fn temporary_files_go_with_their_owner_and_when_the_queue_is_full() {
    let b = Bench::new(Aio::Threads);
    let pool = Pool::new("narrow", 1, 0).unwrap();
    let disk = Disk::new(pool.clone(), Aio::Threads);
    let mut account = b.account.clone();
    let create = |account: &mut Account| {
        block_on(disk.create_temp(account, &b.path(""), &TempOptions::NAMED)).unwrap()
    };
    let exists = |path: &CStr| Path::new(OsStr::from_bytes(path.to_bytes())).exists();
    let kept = create(&mut account);
    let temp_file = create(&mut account);
    let paths = [kept.path().unwrap().to_owned(), temp_file.path().unwrap().to_owned()];
    let (held, release) = mpsc::channel::<()>();
    let mut blocker = pin!(pool.run(&mut account, move || release.recv()));
    assert!(blocker.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let mut account = b.account.clone();
    assert!(matches!(
        block_on(disk.create_temp(&mut account, &b.path(""), &TempOptions::NAMED)),
        Err(DiskError::QueueFull { .. })
    ));
    kept.keep();
    drop((kept, temp_file));
    assert!(paths.iter().all(|path| exists(path)), "the one thread is busy");
    drop(held);
    let _ = block_on(blocker);
    assert!(until(TIMEOUT, || !exists(&paths[1])));
    assert!(exists(&paths[0]));
}

#[test]
fn a_temporary_file_whose_maker_was_dropped_meanwhile_is_removed() {
    let b = Bench::new(Aio::Threads);
    let files = || std::fs::read_dir(OsStr::from_bytes(b.path("drop").to_bytes())).unwrap().count();
    let mut account = b.account.clone();
    block_on(b.disk.mkdir_all(&mut account, &b.path("drop"), 0o755)).unwrap();
    for _ in 0..200 {
        let dir = b.path("drop");
        let mut creating = Box::pin(b.disk.create_temp(&mut account, &dir, &TempOptions::NAMED));
        // Dropped before, while or after a thread makes the file.
        drop(creating.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    }
    // Once every thread waits here, none of them creates a file any more.
    let all = Arc::new(Barrier::new(THREADS as usize));
    let wait_for_all = |source| {
        let all = all.clone();
        let mut account = Account::new(JobClass::Hit, JobSource::new(source));
        let pool = b.disk.pool().clone();
        async move { pool.run(&mut account, move || all.wait()).await }
    };
    let mut waiting: Vec<_> = (0..THREADS).map(|one| Box::pin(wait_for_all(one.into()))).collect();
    block_on(std::future::poll_fn(|cx| {
        waiting.retain_mut(|one| one.as_mut().poll(cx).is_pending());
        if waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }));
    assert!(until(TIMEOUT, || files() == 0));
}

#[test]
fn reads_past_the_page_cache() {
    let mut b = Bench::new(Aio::Threads);
    let content = bytes(300_001);
    block_on(async {
        b.put("f", &content).await;
        let options = OpenOptions { direct_from: 1000, direct_align: 4096, ..OpenOptions::READ };
        let file = b.open("f", &options).await.unwrap();
        assert_eq!(b.disk.read_now(&file, 0, &mut [0; 16]), Now::Cold, "never from memory");
        for step in [300_001, 65_536, 1000, 99_999] {
            assert_eq!(b.read_all(&file, step).await, content, "{step}");
        }
        for (offset, len) in [(0, 1), (1, 4096), (4095, 2), (300_000, 10), (300_001, 10), (400_000, 10)] {
            let read = b.disk.read(&mut b.account.clone(), &file, offset as u64, vec![0; len]).await.unwrap();
            let end = content.len().min(offset + len);
            assert_eq!(read, content.get(offset..end).unwrap_or_default(), "{offset}");
        }
        let small = b.put("small", &bytes(999)).await;
        drop(small);
        let small = b.open("small", &options).await.unwrap();
        assert!(matches!(b.disk.read_now(&small, 0, &mut [0; 16]), Now::Ready(Ok(16))));
        // Reading ahead is advice: the bytes are the same.
        let ahead = b.open("f", &OpenOptions { read_ahead: 65_536, ..OpenOptions::READ }).await.unwrap();
        drop_from_memory(&ahead);
        assert_eq!(b.read_all(&ahead, 10_000).await, content);
    });
}

#[test]
fn written_back_data_survives_eviction() {
    const PART: u64 = 1 << 20;
    for aio in [Aio::Off, Aio::Threads, Aio::Uring] {
        let mut b = Bench::new(aio);
        let content = bytes(3 * PART as usize + 10);
        block_on(async {
            let path = b.path("f");
            let file = b.disk.create(&mut b.account, &path, &CreateOptions::NEW).await.unwrap();
            b.disk.write(&mut b.account, &file, 0, content.clone()).await.unwrap();
            let end = content.len() as u64;
            for (begin, finish, needless_to) in [
                (0..PART, 0..0, 0),
                (PART..2 * PART, 0..PART, PART),
                (end..end, PART..end, end),
                (0..0, 0..0, 0),
            ] {
                let options = WriteBack { begin, finish, needless_to };
                b.disk.write_back(&mut b.account, &file, options).await.unwrap();
            }
            assert_eq!(b.read_all(&file, 100_000).await, content, "{aio:?}");
            // A thread keeps its books after it has answered.
            let jobs = if aio == Aio::Off { 0 } else { 4 };
            assert!(until(TIMEOUT, || b.jobs(Op::WriteBack) == jobs), "{}", b.jobs(Op::WriteBack));
        });
    }
}

#[test]
fn sends_files_until_the_socket_is_full() {
    let mut b = Bench::new(Aio::Threads);
    let content = bytes(2 << 20);
    block_on(async {
        let file = b.put("f", &content).await;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let socket = Arc::new(OwnedFd::from(ours));
        let mut account = b.account.clone();
        let mut sent = 0;
        let mut received = Vec::new();
        let mut fulls = 0;
        while sent < content.len() {
            let step = b
                .disk
                .sendfile(&mut account, &file, sent as u64, content.len() - sent, &socket)
                .await
                .unwrap();
            sent += step.bytes;
            fulls += u32::from(step.end == SentEnd::SocketFull);
            match theirs.read_to_end(&mut received) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(fulls > 0);
        assert_eq!(received, content);
        let end = b.disk.sendfile(&mut account, &file, sent as u64, 10, &socket).await.unwrap();
        assert_eq!((end.bytes, end.end), (0, SentEnd::FileEnd));
    });
}

#[test]
fn closes_where_closing_may_wait_by_a_job() {
    let mut b = Bench::new(Aio::Threads);
    block_on(async {
        let file = b.put("f", b"x").await;
        let kept = b.open("f", &OpenOptions::READ).await.unwrap();
        let unlinked = b.open("f", &OpenOptions::READ).await.unwrap();
        let closes = |b: &Bench, count| {
            let start = Instant::now();
            while b.jobs(Op::Close) < count {
                assert!(start.elapsed() < DEADLINE);
                std::thread::yield_now();
            }
            assert_eq!(b.jobs(Op::Close), count);
        };
        drop(kept.clone());
        drop(kept);
        closes(&b, 0);
        drop(file);
        closes(&b, 1);
        b.disk.unlink(&mut b.account.clone(), &b.path("f")).await.unwrap();
        drop(unlinked);
        closes(&b, 2);
        // A file that outlives the pool is still closed.
        let last = b.put("g", b"x").await;
        b.disk.pool().clone().shutdown();
        drop(last);
    });
}

#[test]
fn listed_names_are_returned_unchanged() {
    let mut b = Bench::new(Aio::Threads);
    block_on(async {
        let name = c"\xff \n\xc3\x28";
        let path = CString::new([b.path("d/").as_bytes(), name.to_bytes()].concat()).unwrap();
        let mut account = b.account.clone();
        b.disk.mkdir(&mut account, &b.path("d"), 0o755).await.unwrap();
        b.disk.create(&mut account, &path, &CreateOptions::NEW).await.unwrap();
        let listing = b.disk.list(&mut account, &b.path("d"), 10).await.unwrap();
        assert_eq!(listing.entries[0].name.as_c_str(), name);
        b.put("plain", b"").await;
    });
}
