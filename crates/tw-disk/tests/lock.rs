//! Files that are locked in memory, on the real file system.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rustix::fs::{Advice, fadvise};
use std::ffi::CString;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tw_disk::{
    Account, Aio, Disk, File, FileCheck, JobSource, LOCK_FILE_MIN, LockedFile, Locks, Now, OpenOptions, Pool,
    Refusal,
};
use tw_testkit::wait::{TIMEOUT, some, until};
use tw_testkit::{Lacks, TempDir, leave_out};

/// A page, as every machine has at least.
const PAGE: u64 = 4096;
const MIN: usize = LOCK_FILE_MIN as usize;

struct Bench {
    disk: Disk,
    locks: Arc<Locks>,
    dir: TempDir,
}

impl Bench {
    /// `None` where so much cannot be locked; says so.
    fn new(max: u64) -> Option<Self> {
        if !tw_sys::memory::may_lock(8 << 20) {
            leave_out(Lacks::Machine, "files cannot be locked in memory");
            return None;
        }
        let disk = Disk::new(Pool::new("bench", 4, 100).unwrap(), Aio::Threads);
        let locks = Arc::new(Locks::default());
        locks.set_max(max);
        let bench = Self { disk, locks, dir: TempDir::new("lock").unwrap() };
        bench.put("known", 1);
        let known_file = bench.open("known");
        // A job that reads finds out what the device supports, and updates access times.
        let mut account = Account::hit(JobSource::NONE);
        block_on(bench.disk.read_cold(&mut account, &known_file, 0, vec![0; 1])).unwrap();
        let suits = |file: &tw_disk::DeviceStats| {
            file.dev == Some(known_file.meta().dev) && file.reads != tw_disk::Reads::Job
        };
        if !tw_disk::devices().iter().any(suits) {
            leave_out(Lacks::Machine, "the file system cannot read without waiting");
            return None;
        }
        Some(bench)
    }

    fn put(&self, name: &str, size: usize) -> PathBuf {
        self.dir.write(name, content(size)).unwrap()
    }

    fn open(&self, name: &str) -> File {
        let path = CString::new(self.dir.join(name).as_os_str().as_bytes()).unwrap();
        let mut account = Account::hit(JobSource::NONE);
        block_on(self.disk.open(&mut account, &path, &OpenOptions::READ)).unwrap()
    }

    /// Once it was changed long enough ago.
    fn lock(&self, file: &File) -> LockedFile {
        let locked = || {
            let locked = self.disk.lock_soon(file, &self.locks)?;
            until(TIMEOUT, || locked.is_locked() || locked.is_over())
                .then_some(locked)
                .filter(LockedFile::is_locked)
        };
        some(TIMEOUT, locked).unwrap()
    }

    /// Bytes of a file that the kernel sends.
    fn sent(&self, file: &File, locked: &LockedFile) -> Option<Vec<u8>> {
        let sending = self.disk.sending(file, locked)?;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let size = file.meta().size;
        let mut received = Vec::new();
        while (received.len() as u64) < size {
            let at = received.len() as u64;
            let n = self.disk.send_now(&sending, at, (size - at) as usize, ours.as_fd()).unwrap();
            let mut piece = vec![0; n];
            theirs.read_exact(&mut piece).unwrap();
            received.extend(piece);
        }
        assert_eq!(self.disk.send_now(&sending, size, 10, ours.as_fd()), Ok(0), "the end of the file");
        Some(received)
    }

    fn look(&self, file: &File) -> FileCheck {
        let Now::Ready(Ok(look)) = self.disk.check_now(file) else { panic!("a local file system") };
        look
    }
}

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn file_stays_locked_while_a_handle_exists() {
    let Some(bench) = Bench::new(8 << 20) else { return };
    bench.put("a", 300_001);
    let file = bench.open("a");
    assert!(bench.locks.find(&file).is_none());
    let locked = bench.lock(&file);
    assert_eq!((bench.locks.bytes(), bench.locks.files()), (300_001_u64.next_multiple_of(PAGE), 1));
    assert_ne!(bench.look(&file), FileCheck::Changed);
    assert_eq!(bench.sent(&file, &locked), Some(content(300_001)));
    assert_eq!(bench.locks.sent(), 300_001);
    // Another descriptor of the same file finds the same lock.
    let again = bench.open("a");
    let locked_file = bench.locks.find(&again).unwrap();
    drop((file, locked));
    assert!(locked_file.is_locked() && bench.disk.lock_soon(&again, &bench.locks).unwrap().is_locked());
    assert_eq!(bench.sent(&again, &locked_file), Some(content(300_001)));
    drop(locked_file);
    assert!(until(TIMEOUT, || (bench.locks.bytes(), bench.locks.files()) == (0, 0)));
    assert!(bench.locks.find(&again).is_none());
}

#[test]
fn change_of_a_file_unlocks_it() {
    let Some(bench) = Bench::new(8 << 20) else { return };
    let path = bench.put("a", 100_000);
    let file = bench.open("a");
    let locked = bench.lock(&file);
    let other = bench.locks.find(&file).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions();
    fs::set_permissions(&path, mode).unwrap();
    assert_eq!(bench.look(&file), FileCheck::Changed, "whatever it was");
    locked.give_up();
    assert!(locked.is_over() && other.is_over() && !other.is_locked());
    assert!(bench.sent(&file, &other).is_none());
    assert!(until(TIMEOUT, || bench.locks.bytes() == 0), "although there are handles");
    // The old version will not do; the new one has to settle.
    let changed = bench.open("a");
    assert!(bench.disk.lock_soon(&changed, &bench.locks).is_none());
    let locked = bench.lock(&changed);
    assert_eq!(bench.sent(&changed, &locked), Some(content(100_000)));
    let old = bench.disk.lock_soon(&file, &bench.locks).unwrap();
    assert!(until(TIMEOUT, || old.is_over()) && locked.is_over(), "there is one version at a time");
    assert_eq!(bench.locks.refusals(Refusal::Changed), 1);
}

#[test]
fn least_recently_sent_file_is_unlocked_first() {
    let Some(bench) = Bench::new(4 * LOCK_FILE_MIN) else { return };
    let files: Vec<_> = (0..6)
        .map(|n| {
            bench.put(&n.to_string(), MIN);
            bench.open(&n.to_string())
        })
        .collect();
    // A file that was not sent for two seconds may be evicted, which happens to all of them on a machine that stalls;
    // hence the retries.
    let full = some(TIMEOUT, || {
        assert!(until(TIMEOUT, || bench.locks.bytes() == 0));
        let refusals = bench.locks.refusals(Refusal::Full);
        let evictions = bench.locks.evictions();
        let locked: Vec<_> = files[..4].iter().map(|file| bench.lock(file)).collect();
        assert_eq!(bench.locks.bytes(), bench.locks.max());
        let refused = bench.disk.lock_soon(&files[4], &bench.locks)?;
        assert!(until(TIMEOUT, || refused.is_over() || refused.is_locked()));
        if refused.is_locked() {
            return None;
        }
        assert_eq!(bench.locks.refusals(Refusal::Full), refusals + 1);
        assert!(locked.iter().all(LockedFile::is_locked));
        // The first one is in use all the time.
        let mut used = Instant::now();
        let next = some(TIMEOUT, || {
            used = Instant::now();
            assert!(bench.sent(&files[0], &locked[0]).is_some());
            assert!(bench.locks.bytes() <= bench.locks.max());
            let next = bench.disk.lock_soon(&files[4], &bench.locks)?;
            until(TIMEOUT, || next.is_locked() || next.is_over())
                .then_some(next)
                .filter(LockedFile::is_locked)
        });
        assert!(next.is_some());
        assert_eq!(locked.iter().filter(|file| file.is_over()).count(), 1);
        assert_eq!(bench.locks.evictions(), evictions + 1);
        if used.elapsed() >= Duration::from_secs(1) {
            return None;
        }
        assert!(locked[0].is_locked());
        Some((locked, next))
    });
    let (locked, _next) = full.unwrap();
    // The limit is lowered, and then set to 0.
    bench.locks.set_max(2 * LOCK_FILE_MIN);
    assert!(until(TIMEOUT, || bench.locks.bytes() == 2 * LOCK_FILE_MIN));
    bench.locks.set_max(0);
    assert!(until(TIMEOUT, || bench.locks.bytes() == 0));
    assert!(locked.iter().all(LockedFile::is_over));
    assert!(bench.disk.lock_soon(&files[5], &bench.locks).is_none());
}

#[test]
fn zero_limit_also_stops_locks_in_progress() {
    let Some(bench) = Bench::new(8 << 20) else { return };
    bench.put("a", 2 << 20);
    let file = bench.open("a");
    drop(bench.lock(&file));
    for _ in 0..20 {
        bench.locks.set_max(8 << 20);
        let locked = some(TIMEOUT, || bench.disk.lock_soon(&file, &bench.locks)).unwrap();
        bench.locks.set_max(0);
        assert!(locked.is_over() && bench.disk.sending(&file, &locked).is_none());
        assert!(until(TIMEOUT, || bench.locks.bytes() == 0 && bench.locks.files() == 0));
        assert!(locked.is_over() && !locked.is_locked());
    }
}

#[test]
fn locking_does_not_read_cold_pages() {
    let Some(bench) = Bench::new(8 << 20) else { return };
    let path = bench.put("a", 2 << 20);
    fs::File::open(&path).unwrap().sync_all().unwrap();
    let file = bench.open("a");
    drop(bench.lock(&file));
    assert!(until(TIMEOUT, || bench.locks.bytes() == 0));
    // Pages that another process accesses just now stay in memory.
    let leaves = until(Duration::from_secs(1), || {
        fadvise(file.fd().unwrap(), 0, None, Advice::DontNeed).is_ok()
            && !matches!(bench.disk.read_now(&file, 1 << 20, &mut [0; 1]), Now::Ready(_))
    });
    if !leaves {
        return leave_out(Lacks::Machine, "a file does not leave memory when asked to");
    }
    // Pages that are being read or are locked stay in memory, hence the retries.
    let is_refused = until(TIMEOUT, || {
        assert!(until(TIMEOUT, || bench.locks.bytes() == 0));
        let _ = fadvise(file.fd().unwrap(), 0, None, Advice::DontNeed);
        let lock = bench.disk.lock_soon(&file, &bench.locks).unwrap();
        assert!(until(TIMEOUT, || lock.is_over() || lock.is_locked()));
        lock.is_over() && bench.locks.refusals(Refusal::Cold) == 1
    });
    assert!(is_refused, "{:?}", Refusal::ALL.map(|why| (why, bench.locks.refusals(why))));
    assert!(until(TIMEOUT, || bench.locks.bytes() == 0));
}

#[test]
fn too_small_and_too_large_files_are_not_locked() {
    let Some(bench) = Bench::new(8 << 20) else { return };
    let settled = bench.put("settled", MIN);
    for (name, size) in [("small", MIN - 1), ("large", (4 << 20) + 1)] {
        bench.put(name, size);
    }
    assert!(settled.exists());
    drop(bench.lock(&bench.open("settled")));
    for name in ["small", "large", "."] {
        assert!(bench.disk.lock_soon(&bench.open(name), &bench.locks).is_none(), "{name}");
    }
    let off = Disk::new(bench.disk.pool().clone(), Aio::Off);
    assert!(off.lock_soon(&bench.open("settled"), &bench.locks).is_none());
}

#[test]
fn concurrent_locks_leave_nothing_behind() {
    let Some(bench) = Bench::new(8 * LOCK_FILE_MIN) else { return };
    for n in 0..12 {
        bench.put(&n.to_string(), MIN);
    }
    drop(bench.lock(&bench.open("11")));
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let bench = &bench;
            scope.spawn(move || {
                let mut locked_files: Vec<(File, LockedFile)> = Vec::new();
                for step in 0..600_usize {
                    let file = bench.open(&((step * 7 + thread * 5) % 12).to_string());
                    if let Some(locked) = bench.disk.lock_soon(&file, &bench.locks) {
                        locked_files.push((file, locked));
                    }
                    match step % 11 {
                        0 => locked_files.truncate(locked_files.len() / 2),
                        3 => locked_files.iter().take(1).for_each(|(_, locked)| locked.give_up()),
                        5 => bench.locks.set_max((step as u64 % 9) * LOCK_FILE_MIN),
                        7 => bench.locks.set_max(8 * LOCK_FILE_MIN),
                        _ => {}
                    }
                    if let Some((file, locked)) = locked_files.last()
                        && let Some(sent) = bench.sent(file, locked)
                    {
                        assert_eq!(sent.len(), MIN);
                    }
                }
            });
        }
    });
    assert!(until(TIMEOUT, || (bench.locks.bytes(), bench.locks.files()) == (0, 0)));
    bench.locks.set_max(8 * LOCK_FILE_MIN);
    assert!(bench.lock(&bench.open("0")).is_locked());
}
