//! A cache on the simulated disk: fills, updates, purges, evictions and restarts, with crashes, torn and short writes and every
//! error, over the code that a server runs.
//!
//! Each response has its page, version and checksum in it. Entries that are found are byte for byte those stored under their keys,
//! and none was purged by a purge that was confirmed. After each restart there is no entry without a file and no file without an
//! entry, and the index has the sizes of the disk.

mod after_purge;
mod crashes;
mod damage;
mod day;
mod device;
mod process;
mod races;
mod warm;

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use tw_base::FatalCell;
use tw_cache::format::{self, Meta, Tags, WrittenBy as MadeBy};
use tw_cache::policy::{Duties, Lifetime};
use tw_cache::segment::{self, RecordPrefix, RecordState, ScanWindow, SegmentHeader, Superblock};
use tw_cache::{EntryState, EvictionPolicy, Key, Purge, RemovedEntry};
use tw_disk::sim::{Faults, Loss, Sim};
use tw_disk::{Account, Aio, Disk, JobClass, JobSource, Pool};
use tw_http::Fields;
use tw_testkit::Random;

use super::cache_path::hedging::Hedging;
use super::cache_path::{CacheDevice, CachePath, CacheStore, NginxFiles, StepLimits};
use super::entry::open_entries::{OpenEntries, OpenEntry};
use super::lookup::search::{EntryQuery, EntrySearch, FoundEntry, FoundState};
use super::store::context::ZoneIndex;
use super::store::place::{ValidatedFile, on_disk};
use super::store::{
    BodyPieces, CommitOutcome, EntryWriter, HeadWrite, NewEntry, NewHead, Store, StoreWriter,
};
use super::upkeep::CacheMaintenance;
use super::zone::{Cache, CacheUser, CacheZone};
use crashes::seeds;
use process::{Process, silent};

thread_local! {
    /// Store of the caches of a test.
    static STORE: Cell<CacheStore> = const { Cell::new(CacheStore::Files) };
    /// True if segments are read and written past the page cache.
    static DIRECT: Cell<bool> = const { Cell::new(false) };
    /// True if segments are on a device.
    static DEVICE: Cell<bool> = const { Cell::new(false) };
}

/// Segments with room for some pages of all sizes but the largest, which has a file of its own.
const LOG: CacheStore = CacheStore::Log(128 << 10);
/// Layout of a device with such segments.
const SLOTS: Superblock = Superblock { uuid: *b"0123456789abcdef", slot_size: 128 << 10, slots: 8 };
const PAGES: usize = 12;
/// Bytes that a cache may hold before room is made: about the half of all pages.
const HOLDS: u64 = 200_000;
/// File in the directory of the cache that is not the cache's.
const STRANGE: &CStr = c"/cache/note";

fn text(page: usize) -> String {
    format!("/p/{page:02}")
}

fn key(page: usize) -> Key {
    Key::of(text(page).as_bytes())
}

fn body(page: usize, version: u64) -> Bytes {
    // From one sector to more than is kept in memory.
    let size = [40, 700, 5000, 20_000, 70_000][page % 5];
    let mut body = format!("{page} {version}\n").into_bytes();
    body.extend(Random::new(version << 8 | page as u64).bytes(size + page));
    body.into()
}

pub(super) fn meta(page: usize, version: u64, sequence: u64) -> Meta {
    let mut fields = Fields::new();
    fields.append_copy("ETag", version.to_string().as_bytes());
    fields.append_copy("Validated", version.to_string().as_bytes());
    let tag = format!("tag{}", page % 3);
    let mut meta = Meta {
        key: key(page),
        variant: None,
        key_text: text(page).into_bytes().into(),
        lifetime: Lifetime {
            responded: 1_700_000_000,
            valid_until: 4_000_000_000,
            stale_while_revalidate_s: 0,
            stale_if_error_s: 0,
            initial_age_s: 0,
            duties: Duties::NONE,
        },
        date: None,
        last_modified: None,
        etag: Bytes::new(),
        status: 200,
        status_line: Bytes::new(),
        fields,
        vary: Bytes::new(),
        tags: Tags::of([tag.as_bytes()]).unwrap(),
        sequence,
        header_size: 0,
        body_len: None,
        body_sum: Some(0),
        writer: MadeBy::Tailwater,
    };
    meta.header_size = format::place(&meta).unwrap();
    meta
}

fn number(meta: &Meta, field: &str) -> u64 {
    std::str::from_utf8(meta.fields.get(field.as_bytes()).unwrap()).unwrap().parse().unwrap()
}

/// Expected versions of all pages, whatever the disk does.
#[derive(Default)]
struct Truth {
    versions: Cell<u64>,
    /// For each page the first version that no hard purge concerns, and none at all.
    hard: [Cell<u64>; PAGES],
    soft: [Cell<u64>; PAGES],
}

impl Truth {
    fn next(&self) -> u64 {
        self.versions.set(self.versions.get() + 1);
        self.versions.get()
    }
}

fn new_sim(seed: u64) -> Arc<Sim> {
    let sim = Sim::new(seed);
    sim.put(STRANGE, b"").unwrap();
    if DEVICE.get() {
        let mut device = SLOTS.encode();
        device.resize(SLOTS.offset(SLOTS.slots) as usize, 0);
        sim.put(c"/device", &device).unwrap();
    }
    sim
}

/// Numbers and contents of the segments on a device.
fn segments_of_device(sim: &Sim) -> Vec<(u32, Vec<u8>)> {
    let device = sim.content(c"/device").unwrap();
    let slots = (0..SLOTS.slots).filter_map(|slot| {
        let at = SLOTS.offset(slot) as usize;
        let content = &device[at..at + SLOTS.slot_size as usize];
        let number = SegmentHeader::decode_any(content).ok()?.number;
        (SLOTS.slot(number) == slot).then(|| (number, content.to_vec()))
    });
    slots.collect()
}

fn door(sim: &Arc<Sim>, pool: &Pool) -> Disk {
    Disk::simulated(pool.clone(), Aio::Off, sim.clone())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// The first look of a life at what the one before has left.
async fn recover(process: &Process, truth: &Truth, sim: &Sim, random: &mut Random, when: &str) {
    // Before all is known.
    for _ in 0..random.below(4) {
        process.get(truth, random.below(PAGES)).await;
    }
    if random.happens(50) {
        process.restore().await;
        for _ in 0..random.below(4) {
            process.get(truth, random.below(PAGES)).await;
        }
    }
    if random.happens(20) {
        process.purge(truth, random).await;
    }
    process.load().await;
    process.compare(sim).unwrap_or_else(|what| panic!("{when}, learned: {what}"));
    for page in 0..PAGES {
        process.get(truth, page).await;
    }
    process.compare(sim).unwrap_or_else(|what| panic!("{when}, looked at: {what}"));
}

/// Several lives of one disk.
async fn live(seed: u64, pool: &Pool) -> u64 {
    let (sim, truth, mut random) = (new_sim(seed), Truth::default(), Random::new(seed));
    let mut now = 1_800_000_000_000;
    let mut found_value = 0;
    for life in 0..4 {
        let when = format!("seed {seed}, life {life}");
        println!("{when}");
        let process = Process::start(door(&sim, pool), now).await;
        recover(&process, &truth, &sim, &mut random, &when).await;
        if random.happens(40) {
            sim.set_faults(Faults::MANY);
        }
        let is_clean = random.happens(20);
        if !is_clean {
            sim.fail_power_after(random.below(150) as u64);
        }
        let fillings = RefCell::new(Vec::new());
        for _ in 0..60 {
            process.step(&truth, &mut random, &fillings).await;
            if sim.is_down() {
                break;
            }
        }
        sim.set_faults(Faults::NONE);
        let mut before = Vec::new();
        if is_clean {
            for page in 0..PAGES {
                before.push(process.get(&truth, page).await);
            }
        } else {
            sim.fail_power_after(0);
        }
        drop(fillings);
        drop(process);
        let loss = if is_clean { Loss::Nothing } else { random.one_of(&[Loss::Nothing, Loss::Ordered]) };
        sim.restart(loss);
        // Also in the same second.
        now += random.one_of(&[1, 1000, 60_000]);
        if is_clean {
            let process = Process::start(door(&sim, pool), now + 1000).await;
            process.load().await;
            for (page, before) in before.iter().enumerate() {
                // What a restart finds may be stale, and is not less.
                assert!(
                    before.is_none() || process.get(&truth, page).await == *before,
                    "{when}: page {page}"
                );
                found_value += u64::from(before.is_some());
            }
            now += 2000;
        }
    }
    found_value
}

#[test]
fn nothing_is_lost_or_wrong_whatever_the_disk_does() {
    lose_nothing();
}

#[test]
fn segments_lose_nothing_whatever_the_disk_does() {
    STORE.set(LOG);
    lose_nothing();
}

#[test]
fn segments_past_the_page_cache_lose_nothing_whatever_the_disk_does() {
    STORE.set(LOG);
    DIRECT.set(true);
    lose_nothing();
}

#[test]
fn segments_on_a_device_lose_nothing_whatever_the_disk_does() {
    STORE.set(LOG);
    DEVICE.set(true);
    lose_nothing();
}

fn lose_nothing() {
    let pool = Pool::new("sim", 1, 1000).unwrap();
    let found_value: u64 = (0..seeds()).map(|seed| block_on(live(seed, &pool))).sum();
    assert!(found_value > seeds(), "little was there to be lost: {found_value}");
}

#[test]
fn unreadable_purge_file_purges_the_whole_cache() {
    let pool = Pool::new("sim", 1, 1000).unwrap();
    block_on(async {
        for is_damaged in [false, true] {
            let (sim, truth) = (new_sim(1), Truth::default());
            let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
            process.load().await;
            for page in 0..3 {
                process.store(process.begin(&truth, page)).await;
            }
            process
                .cache
                .purge_prefix(process.zone_index(), &process.disk, b"/p/01", Purge::Hard)
                .await
                .unwrap();
            drop(process);
            sim.restart(Loss::Nothing);
            match is_damaged {
                true => sim.put(c"/cache/purges", b"something else").unwrap(),
                false => sim.set_faults(Faults { io: 1000, ..Faults::NONE }),
            }
            let process = Process::start(door(&sim, &pool), 1_800_000_001_000).await;
            sim.set_faults(Faults::NONE);
            for page in 0..3 {
                // Nor would a 304 find anything to make valid again.
                assert!(process.find(page).await.is_none(), "{page}");
            }
            process.load().await;
            // What is stored from now on is kept, also over the next start.
            process.store(process.begin(&truth, 0)).await;
            process.manager.sweep(process.zone_index()).await;
            process.compare(&sim).unwrap();
            drop(process);
            sim.restart(Loss::Nothing);
            let process = Process::start(door(&sim, &pool), 1_800_000_002_000).await;
            process.load().await;
            assert_eq!(process.get(&truth, 0).await, Some(truth.versions.get()));
            assert!(process.find(1).await.is_none() && process.find(2).await.is_none());
        }
    });
}

#[test]
fn start_retries_when_descriptors_run_out_while_reading_purges() {
    let pool = Pool::new("sim", 1, 1000).unwrap();
    block_on(async {
        let (sim, truth) = (new_sim(1), Truth::default());
        let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
        process.store(process.begin(&truth, 0)).await;
        drop(process);
        sim.restart(Loss::Nothing);
        sim.set_faults(Faults { no_descriptor: 1000, ..Faults::NONE });
        let tasks = tokio::task::LocalSet::new();
        let (lifting, before) = (sim.clone(), sim.calls());
        tasks.spawn_local(async move {
            // It fails once.
            while lifting.calls() == before {
                tokio::task::yield_now().await;
            }
            lifting.set_faults(Faults::NONE);
        });
        let process = tasks.run_until(Process::start(door(&sim, &pool), 1_800_000_001_000)).await;
        assert_eq!(process.get(&truth, 0).await, Some(1));
    });
}

#[test]
fn entries_are_known_from_a_snapshot_before_the_directory_is_walked() {
    know_from_snapshot();
}

#[test]
fn records_are_known_from_a_snapshot_before_tables_are_read() {
    STORE.set(LOG);
    know_from_snapshot();
}

fn know_from_snapshot() {
    let (sim, pool, truth) = (new_sim(1), Pool::new("sim", 1, 1000).unwrap(), Truth::default());
    block_on(async {
        let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
        process.load().await;
        for page in 0..4 {
            process.store(process.begin(&truth, page)).await;
        }
        process.manager.write_snapshot(process.zone_index()).await.unwrap();
        let before = process.zone_index().index.counts();
        // After the snapshot: one more, another one in the place of one, and one less.
        process.store(process.begin(&truth, 5)).await;
        process.store(process.begin(&truth, 1)).await;
        process.cache.purge_key(process.zone_index(), &process.disk, key(2), Purge::Hard).await.unwrap();
        drop(process);
        sim.restart(Loss::Nothing);
        let process = Process::start(door(&sim, &pool), 1_800_000_100_000).await;
        process.manager.restore(process.zone_index()).await;
        let after = process.zone_index().index.counts();
        assert_eq!((after.files, after.bytes), (before.files, before.bytes));
        let is_log = STORE.get() == LOG;
        // What was stored since is found by the name of its file; a record is found when tables are read.
        assert_eq!(process.get(&truth, 1).await, (!is_log).then_some(6));
        assert_eq!(process.find(2).await.map(|_| ()), None);
        assert_eq!(process.get(&truth, 5).await, (!is_log).then_some(5));
        assert_eq!(process.get(&truth, 3).await, Some(4));
        process.load().await;
        assert_eq!((process.get(&truth, 1).await, process.get(&truth, 5).await), (Some(6), Some(5)));
        process.compare(&sim).unwrap();
    });
}

#[test]
fn variant_older_than_a_purge_is_not_used_after_a_restart() {
    let (sim, pool, truth) = (new_sim(1), Pool::new("sim", 1, 1000).unwrap(), Truth::default());
    block_on(async {
        let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
        process.load().await;
        // The file of a variant has a key of its own.
        let variant = async |process: &Process| {
            let (key, text) = (key(3), text(1));
            let main = process.find(1).await.unwrap().1;
            let query = EntryQuery {
                cache: &process.cache,
                key,
                main: super::tests::key(1),
                text: text.as_bytes(),
                since: main.since,
            };
            let account = &Account::new(JobClass::Hit, JobSource::NONE);
            let (disk, hot) = (|| Some(&process.disk), &process.hot);
            let search = EntrySearch { disk: &disk, hot, event_loop: None, account, log: &silent };
            let mut found_entry = FoundEntry::default();
            search.find(&query, &mut found_entry).await;
            found_entry.entry.is_some()
        };
        let store_variant = async || {
            let claim = process.zone_index().index.claim(key(3), process.now);
            let mut meta = meta(1, truth.next(), claim.sequence());
            (meta.variant, meta.header_size) = (Some(key(3)), 0);
            meta.header_size = format::place(&meta).unwrap();
            let entry = NewEntry { meta: Box::new(meta), claim, copied: None };
            let writer = process.cache.zone.store.begin(process.cache.context(&process.disk), entry);
            writer.commit(BodyPieces { pieces: vec![body(1, 1)], needless: 0 }).await.unwrap();
        };
        process.store(process.begin(&truth, 1)).await;
        store_variant().await;
        assert!(variant(&process).await);
        process.manager.write_snapshot(process.zone_index()).await.unwrap();
        process.cache.purge_key(process.zone_index(), &process.disk, key(1), Purge::Hard).await.unwrap();
        process.store(process.begin(&truth, 1)).await;
        assert!(!variant(&process).await);
        drop(process);
        for with_snapshot in [true, false] {
            sim.restart(Loss::Nothing);
            let process = Process::start(door(&sim, &pool), 1_800_000_001_000).await;
            if with_snapshot {
                process.manager.restore(process.zone_index()).await;
                assert!(!variant(&process).await);
            }
            process.load().await;
            assert!(!variant(&process).await);
        }
    });
}

/// Deletion of a file may be slower than a sweep, and the server may end before that.
#[test]
fn purge_is_kept_until_removed_files_are_deleted() {
    let (sim, pool, truth) = (new_sim(1), Pool::new("sim", 1, 1000).unwrap(), Truth::default());
    block_on(async {
        let purged = async |page: usize| {
            let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
            process.load().await;
            process.store(process.begin(&truth, page)).await;
            let tags = [format!("tag{}", page % 3).into_bytes()];
            process.cache.purge_tags(process.zone_index(), &process.disk, &tags, Purge::Hard).await.unwrap();
            // It is found to be purged, and its file is about to be deleted.
            let found_entry = process.search(page).await;
            assert!(found_entry.entry.is_none());
            let sweep = process.manager.sweep(process.zone_index());
            assert!(tw_rt::time::timeout(Duration::from_millis(100), sweep).await.is_err());
            (process, found_entry)
        };
        let (process, found_entry) = purged(1).await;
        for removed_entry in found_entry.removed_entries {
            process
                .cache
                .zone
                .store
                .remove(process.cache.context(&process.disk), removed_entry)
                .await
                .unwrap();
        }
        process.manager.sweep(process.zone_index()).await;
        assert_eq!(process.zone_index().purges.counts(), [0, 0, 0]);
        drop(process);
        // That never comes.
        let (process, found_entry) = purged(2).await;
        drop(found_entry);
        process.manager.sweep(process.zone_index()).await;
        drop(process);
        let process = Process::start(door(&sim, &pool), 1_800_000_001_000).await;
        assert!(process.find(2).await.is_none());
        process.load().await;
        process.compare(&sim).unwrap();
    });
}
