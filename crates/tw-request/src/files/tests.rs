//! Files over a simulated disk.

use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;

use tw_disk::sim::{Faults, Sim};
use tw_disk::{Aio, Disk, Pool};

use super::open_file::Content;
use super::open_file_cache::{CachedPath, CheckSharing, FileTable, FileUser};
use super::table::{OpenResult, PathCheck, PathLinks};
use super::*;
use crate::config::location::OpenFileCache;

struct Bench {
    sim: Arc<Sim>,
    disk: Disk,
    files: FileTable,
}

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

impl Bench {
    fn new(hot_max: usize, files_max: usize) -> Self {
        let sim = Sim::new(1);
        let pool = Pool::new("test", 1, 10).unwrap();
        Self {
            disk: Disk::simulated(pool, Aio::Threads, sim.clone()),
            sim,
            files: FileTable::new(hot_max, (files_max, LONG)),
        }
    }

    fn put(&self, path: &str, size: usize) -> CString {
        let path = CString::new(path).unwrap();
        self.sim.put(&path, &vec![b'x'; size]).unwrap();
        path
    }

    fn open(&mut self, path: &CStr, cache: Option<&OpenFileCache>) -> FileLookup {
        let read = self.files.tick();
        let user = FileUser {
            disk: &self.disk,
            options: &OpenOptions::READ,
            cache,
            read,
            turn: CheckSharing::Waited,
        };
        self.files.open_now(path, &user)
    }

    fn sweep(&mut self) -> Duration {
        self.files.sweep(&self.disk)
    }

    /// Opens until the second look, which is when contents are read.
    fn warm(&mut self, path: &CStr) -> Rc<OpenFile> {
        let _ = self.open(path, None);
        let Now::Ready(Ok(file)) = self.open(path, None) else { panic!("{path:?}") };
        file
    }

    fn way(&mut self, path: &CStr) -> PathLinks {
        let table = &mut self.files.tables[0];
        let at = table.find(path).unwrap();
        table.at(at).way
    }

    /// Checks everything that must always hold.
    fn check(&self) {
        let mut hot = 0;
        for table in &self.files.tables {
            for entry in table.check() {
                if let OpenResult::File(file) = &entry.result {
                    assert_eq!(file.content().is_some(), self.files.hot.has(file), "{:?}", entry.path);
                    hot += usize::from(file.content().is_some());
                }
            }
        }
        assert_eq!(self.files.hot.check(), hot);
    }
}

fn cache(max: usize, inactive: Duration) -> OpenFileCache {
    OpenFileCache { max, inactive, valid: Duration::from_secs(3600), min_uses: 1, errors: true }
}

/// A small generator of numbers below `below` (Knuth's multiplier).
fn random(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % below
}

#[test]
fn counters_match_the_contents() {
    for mut seed in 0..20 {
        let mut bench = Bench::new(5000, 10);
        let paths: Vec<_> = (0..20).map(|n| bench.put(&format!("/d/{n}"), n * 200)).collect();
        let caches = [None, Some(cache(3, Duration::from_secs(60))), Some(cache(5, Duration::ZERO))];
        let mut files = Vec::new();
        for _ in 0..400 {
            let path = &paths[random(&mut seed, paths.len())];
            match random(&mut seed, 20) {
                0 => drop(bench.sweep()),
                1 => bench.sim.put(path, &vec![b'y'; random(&mut seed, 4000)]).unwrap(),
                2 => drop(bench.files.made_room(Errno::MFILE)),
                3 => files.clear(),
                4 => bench.sim.set_faults(Faults { cold: 100, no_descriptor: 50, short: 50, ..Faults::NONE }),
                5 => bench.sim.set_faults(Faults::NONE),
                _ => {
                    let cache = caches[random(&mut seed, caches.len())].as_ref();
                    files.push(bench.open(path, cache));
                }
            }
            bench.check();
        }
    }
}

#[test]
fn pressure_on_contents_closes_nothing() {
    let mut bench = Bench::new(1000, 10);
    let paths: Vec<_> = (0..5).map(|n| bench.put(&format!("/{n}"), 400)).collect();
    let files: Vec<_> = paths.iter().map(|path| bench.warm(path)).collect();
    assert_eq!((bench.files.len(), bench.files.hot_bytes()), (5, 800));
    assert!(files[4].content().is_some(), "the last one is in");
    // The evicted content does not come back at once, either.
    assert!(bench.warm(&paths[0]).content().is_none());
    let big = bench.put("/big", 1001);
    assert!(bench.warm(&big).content().is_none());
    assert_eq!(bench.files.hot_bytes(), 800);
    bench.check();
}

#[test]
fn contents_not_in_memory_are_retried_later() {
    let mut bench = Bench::new(1000, 10);
    let path = bench.put("/a", 100);
    let _ = bench.open(&path, None);
    bench.sim.set_faults(Faults { short: 1000, ..Faults::NONE });
    let file = bench.warm(&path);
    assert!(matches!(*file.content.borrow(), Content::Absent(_)));
    bench.check();
}

#[test]
fn a_cache_evicts_its_own_only() {
    let mut bench = Bench::new(0, 10);
    let small = cache(2, Duration::from_secs(60));
    let paths: Vec<_> = (0..8).map(|n| bench.put(&format!("/{n}"), 1)).collect();
    for path in &paths {
        let _ = bench.open(path, None);
        let _ = bench.open(path, Some(&small));
    }
    assert_eq!(bench.files.tables.iter().map(|t| t.len()).collect::<Vec<_>>(), [8, 2]);
    let _ = bench.open(&paths[0], Some(&cache(0, Duration::ZERO)));
    assert_eq!(bench.files.len(), 10);
    bench.check();
}

#[test]
fn the_sweep_goes_round_and_gives_memory_back() {
    let mut bench = Bench::new(1000, 10);
    let short = cache(5000, Duration::ZERO);
    let kept = bench.put("/kept", 10);
    bench.warm(&kept);
    for n in 0..3000 {
        let path = CString::new(format!("/missing/{n}")).unwrap();
        let _ = bench.open(&path, Some(&short));
    }
    assert_eq!(bench.files.len(), 3001);
    let steps = (Duration::from_secs(2).as_nanos() / bench.sweep().as_nanos()) as usize;
    assert!((12..=13).contains(&steps), "{steps}");
    assert!(bench.files.len() > 2700, "one sweep is short");
    for _ in 0..100 {
        bench.sweep();
    }
    assert_eq!((bench.files.len(), bench.files.hot_bytes()), (1, 10));
    assert_eq!(bench.files.tables.len(), 1, "nothing is left of a cache that nobody uses");
}

#[test]
fn a_table_shrinks_after_a_peak() {
    let mut bench = Bench::new(0, 5000);
    let paths: Vec<_> = (0..3000).map(|n| bench.put(&format!("/d/{n}"), 1)).collect();
    for path in &paths {
        let _ = bench.open(path, None);
    }
    let full = bench.files.tables[0].capacity();
    for _ in 0..90 {
        bench.files.made_room(Errno::MFILE);
    }
    for _ in 0..100 {
        bench.sweep();
    }
    let remaining = bench.files.len();
    assert!(remaining < 200 && full >= 3000);
    assert!(bench.files.tables[0].capacity() <= 400, "{}", bench.files.tables[0].capacity());
    bench.check();
}

#[test]
fn removed_files_are_closed() {
    let mut bench = Bench::new(1000, 10);
    let kept = bench.put("/kept", 10);
    let gone = bench.put("/gone", 10);
    let cached = cache(10, LONG);
    for path in [&kept, &gone] {
        bench.warm(path);
    }
    let _ = bench.open(&gone, Some(&cached));
    bench.sim.remove(&gone).unwrap();
    for _ in 0..4 {
        bench.sweep();
    }
    assert_eq!(bench.files.tables.iter().map(|t| t.len()).collect::<Vec<_>>(), [1, 1], "a cache believes");
    assert_eq!(bench.files.hot_bytes(), 10);
    assert!(bench.files.tables[0].find(&kept).is_some());
    bench.check();
}

#[test]
fn cached_files_are_closed_in_steps() {
    let mut bench = Bench::new(1000, 1000);
    let errors = cache(10, LONG);
    let _ = bench.open(c"/missing", Some(&errors));
    let paths: Vec<_> = (0..600).map(|n| bench.put(&format!("/{n}"), 1)).collect();
    let files: Vec<_> = paths.iter().map(|path| Rc::downgrade(&bench.warm(path))).collect();
    let open = || files.iter().filter(|file| file.strong_count() > 0).count();
    let open_file = files[0].upgrade();
    let mut forgotten = bench.files.forget(500, Duration::ZERO);
    assert_eq!((bench.files.len(), bench.files.hot_bytes(), open()), (0, 0, 600));
    assert!(forgotten.close_some() && (300..400).contains(&open()), "{}", open());
    while forgotten.close_some() {}
    assert_eq!(open(), 1, "the one of a response");
    drop(open_file);
    assert_eq!(open(), 0);
    // The new settings hold.
    let _ = bench.open(&paths[0], None);
    bench.sweep();
    bench.sweep();
    assert!(bench.files.is_empty());
    bench.check();
}

#[test]
fn a_path_is_cheap_to_check_only_without_links() {
    let mut bench = Bench::new(0, 10);
    let plain = bench.put("/real/a", 1);
    bench.sim.put_link(c"/link", c"real", 0).unwrap();
    for (path, way) in [(&*plain, PathLinks::Plain), (c"/link/a", PathLinks::Linked)] {
        let _ = bench.open(path, None);
        assert_eq!(bench.way(path), PathLinks::Unknown);
        bench.warm(path);
        assert_eq!(bench.way(path), way, "{path:?}");
    }
    bench.sweep();
    bench.sweep();
    assert_eq!(bench.way(&plain), PathLinks::Unknown, "it may have changed");
}

#[test]
fn too_many_open_files_close_some() {
    let mut bench = Bench::new(0, 100);
    for n in 0..50 {
        let path = bench.put(&format!("/{n}"), 1);
        let _ = bench.open(&path, None);
    }
    let path = bench.put("/one/more", 1);
    let errors = cache(100, Duration::from_secs(60));
    let look = bench.files.look();
    bench.files.failed(&path, Errno::MFILE, Some(&errors), look);
    assert!(matches!(bench.open(&path, Some(&errors)), Now::Ready(Ok(_))), "that is not remembered");
    assert!(!bench.files.made_room(Errno::NOENT));
    let before = bench.files.len();
    assert!(bench.files.made_room(Errno::NFILE));
    assert!(bench.files.len() < before);
    while bench.files.made_room(Errno::MFILE) {}
    assert!(bench.files.is_empty());
}

/// Looks are shared within a turn, so this runs on a loop, where time stands still.
#[test]
fn file_check_is_shared_by_requests_read_before_it() {
    let is_valid = |bench: &mut Bench, path: &CStr, read: u64| {
        let user = FileUser {
            disk: &bench.disk,
            options: &OpenOptions::READ,
            cache: None,
            read,
            turn: CheckSharing::First,
        };
        match bench.files.valid_entry(path, &user) {
            CachedPath::Valid(open_file) => open_file.is_ok(),
            CachedPath::Shared | CachedPath::Unknown | CachedPath::Cold => false,
        }
    };
    let seen_values = in_a_turn(move || {
        let mut bench = Bench::new(0, 10);
        let path = bench.put("/a", 1);
        let Now::Ready(Ok(file)) = bench.disk.open_now(&path, &OpenOptions::READ) else { return [false; 3] };
        let before = bench.files.tick();
        let look = bench.files.look();
        let during = bench.files.tick();
        bench.files.opened(&path, file.clone(), &OpenOptions::READ, None, look);
        let fresh = [is_valid(&mut bench, &path, before), is_valid(&mut bench, &path, during)];
        // The same look in another turn.
        let old = PathCheck { at: look.at - Duration::from_millis(1), ..look };
        bench.files.opened(&path, file, &OpenOptions::READ, None, old);
        bench.sim.put(&path, b"changed").unwrap();
        [fresh[0], fresh[1], is_valid(&mut bench, &path, before)]
    });
    assert_eq!(seen_values, [true, false, false]);
}

#[test]
fn the_trusted_part_is_made_of_names() {
    let cases = [
        ("", "/a/b", Trusted::Leading(0)),
        ("/a", "/a/b", Trusted::Leading(2)),
        ("/a/", "/a/b", Trusted::Leading(3)),
        ("/", "/a/b", Trusted::Leading(1)),
        ("/a/b", "/a/b", Trusted::All),
        ("/a", "/ab/c", Trusted::Leading(0)),
        ("/x", "/a/b", Trusted::Leading(0)),
        ("/a/b/c", "/a/b", Trusted::Leading(0)),
        ("a", "/a/b", Trusted::Leading(0)),
    ];
    for (from, path, expected) in cases {
        assert_eq!(trusted_part(from.as_bytes(), path.as_bytes()), expected, "{from} {path}");
    }
}

/// Runs `look` in one turn of a loop.
fn in_a_turn<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    let looped = tw_rt::LoopThread::<()>::start(tw_rt::LoopOptions::new(0), move |_| async move {
        let _ = sender.send(look());
    });
    looped.unwrap().join().unwrap();
    receiver.recv().unwrap()
}
