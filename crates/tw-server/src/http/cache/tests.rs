//! A cache on the simulated disk: fills, updates, purges, evictions and restarts, with crashes, torn and short writes and every
//! error, over the code that a server runs.
//!
//! Each response has its page, version and checksum in it. Entries that are found are byte for byte those stored under their keys,
//! and none was purged by a purge that was confirmed. After each restart there is no entry without a file and no file without an
//! entry, and the index has the sizes of the disk.

mod after_purge;
mod damage;
mod day;
mod device;
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
use tw_cache::{Claim, EntryState, EvictionPolicy, Key, Purge};
use tw_disk::sim::{Faults, Loss, Sim};
use tw_disk::{Account, Aio, Disk, JobClass, JobSource, Pool};
use tw_http::Fields;
use tw_testkit::Random;

use super::cache_path::{CacheDevice, CachePath, CacheStore, NginxFiles, StepLimits};
use super::entry::{EntryQuery, EntrySearch, FoundEntry, FoundState};
use super::hedge::Hedging;
use super::manager::CacheMaintenance;
use super::open_entries::{OpenEntries, OpenEntry};
use super::store::{BodyTail, ValidatedFile, on_disk};
use super::temp_file::FillFile;
use super::zone::{Cache, CacheUser, CacheZone, ZoneIndex};

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

/// One life of a server.
struct Process {
    disk: Disk,
    cache: Arc<Cache>,
    manager: CacheMaintenance,
    hot: FatalCell<OpenEntries>,
    now: u32,
}

/// A response on its way.
struct Filling {
    claim: Claim,
    meta: Meta,
    body: Bytes,
    temp_file: Option<FillFile>,
    at: u64,
}

fn silent(_: tw_log::Level, _: std::fmt::Arguments<'_>) {}

/// Place of a cache; the time, in seconds since 1970, chooses how it evicts.
fn cache_path(now: u32) -> CachePath {
    // Every other second by another one.
    let policy = if now.is_multiple_of(2) { EvictionPolicy::Lru } else { EvictionPolicy::S3Fifo };
    let steps = StepLimits { files: u64::MAX, sleep: Duration::ZERO, threshold: Duration::MAX };
    let store = STORE.get();
    CachePath {
        dir: c"/cache".to_owned(),
        levels: [1, 0, 0],
        keys_size: 1 << 20,
        inactive: Duration::from_secs(u32::MAX.into()),
        max_size: if DEVICE.get() { 4 * HOLDS } else { HOLDS },
        min_free: 0,
        manager: steps,
        loader: steps,
        of_nginx: NginxFiles::Left,
        policy,
        pool: None,
        snapshot: None,
        hedging: Hedging::OFF,
        store,
        direct: DIRECT.get(),
        device: DEVICE.get().then(|| CacheDevice::of_path(c"/device".to_owned())),
        slow: None,
        verify: true,
        members: Box::default(),
        fleet: None,
        share: super::quota::WHOLE,
    }
}

impl Process {
    async fn start(disk: Disk, now_ms: u64) -> Self {
        let now = (now_ms / 1000) as u32;
        let place = cache_path(now);
        let zone = Arc::new(CacheZone::new(&place));
        let write_back_size = 8 << 10;
        let name = Box::from(&b"one"[..]);
        let cache = Arc::new(Cache { name, place, zone, write_back_size, members: None, fleet: None });
        cache.load_index_since(now_ms, CacheUser::Manager, &disk, silent).await.unwrap();
        // No task reads a snapshot beside the requests, which read what they need of that of records.
        if cache.zone.record_snapshot.get().is_none() {
            cache.zone.set_restored();
        }
        let manager = CacheMaintenance { cache: cache.clone(), disk: disk.clone(), log: Box::new(silent) };
        Self { disk, cache, manager, hot: FatalCell::new(OpenEntries::new(6, 1 << 20)), now }
    }

    fn held(&self) -> &ZoneIndex {
        self.cache.zone.loaded().unwrap()
    }

    async fn restore(&self) {
        self.manager.restore(self.held()).await;
        self.cache.zone.set_restored();
    }

    async fn load(&self) {
        let unfinished = RefCell::new(Vec::new());
        self.restore().await;
        self.manager.load(self.held(), &unfinished).await;
        self.manager.remove_unseen(self.held()).await;
        self.manager.remove_unfinished(self.held(), &unfinished).await;
        assert!(self.cache.zone.is_loaded.load(Relaxed));
    }

    async fn find(&self, page: usize) -> Option<(Rc<OpenEntry>, FoundState)> {
        let found = self.search(page).await;
        for gone in found.gone {
            let _ = self.cache.remove(&self.disk, gone).await;
        }
        found.entry
    }

    /// Searches for a page. Returns the entry, and the entries to be deleted.
    async fn search(&self, page: usize) -> FoundEntry {
        let (key, text) = (key(page), text(page));
        let wanted = EntryQuery { cache: &self.cache, key, main: key, text: text.as_bytes(), since: 0 };
        let account = &Account::new(JobClass::Hit, JobSource::NONE);
        let search =
            EntrySearch { disk: &|| Some(&self.disk), hot: &self.hot, home: None, account, log: &silent };
        let mut found = FoundEntry::default();
        search.find(&wanted, &mut found).await;
        found
    }

    /// Searches for a page and checks its content. Returns its version; `None` if it is not there, or cannot be read.
    async fn get(&self, truth: &Truth, page: usize) -> Option<u64> {
        let (hard, soft) = (truth.hard[page].get(), truth.soft[page].get());
        let (entry, stood) = self.find(page).await?;
        let [version, validated] = ["ETag", "Validated"].map(|name| number(&entry.meta, name));
        let expected = body(page, version);
        let content = match &entry.body {
            Some(body) => body.to_vec(),
            None => self.read(&entry).await?,
        };
        assert!(content == expected, "page {page} of version {version} is not what was stored");
        assert!(version >= hard, "page {page} of version {version} was purged: {hard}");
        assert!(validated >= soft || stood.is_stale, "page {page} of version {version} is stale: {soft}");
        Some(version)
    }

    async fn read(&self, entry: &OpenEntry) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        let mut by = Account::new(JobClass::Hit, JobSource::NONE);
        while (content.len() as u64) < entry.len {
            let (at, room) = (content.len() as u64, entry.len as usize - content.len());
            let at = entry.body_offset() + at;
            let piece = match entry.file.check() {
                Some(check) => {
                    let read = check.read(&self.disk, &mut by, entry.file.file(), at, room).await.ok()?;
                    read.ok()?.to_vec()
                }
                None => self.disk.read(&mut by, entry.file.file(), at, vec![0; room]).await.ok()?,
            };
            if piece.is_empty() {
                break;
            }
            content.extend(piece);
        }
        Some(content)
    }

    fn begin(&self, truth: &Truth, page: usize) -> Filling {
        let claim = self.held().index.claim(key(page), self.now);
        let version = truth.next();
        let meta = meta(page, version, claim.sequence());
        Filling { claim, meta, body: body(page, version), temp_file: None, at: 0 }
    }

    /// Writes some more of it; `None` if that fails.
    async fn write(&self, mut filling: Filling, len: usize) -> Option<Filling> {
        let end = (filling.at as usize + len).min(filling.body.len());
        let pieces = vec![filling.body.slice(filling.at as usize..end)];
        // Every other page is one that is asked for once.
        let needless = if filling.body.len().is_multiple_of(2) { filling.at } else { 0 };
        let tail = BodyTail {
            temp_file: filling.temp_file.take(),
            at: filling.at,
            pieces,
            len: end as u64,
            needless,
        };
        filling.temp_file =
            Some(self.cache.write(&self.disk, &filling.meta, &filling.claim, tail).await.ok()?);
        filling.at = end as u64;
        Some(filling)
    }

    async fn store(&self, filling: Filling) {
        let Filling { claim, meta, body, temp_file, at } = filling;
        let pieces = vec![body.slice(at as usize..)];
        let tail = BodyTail { temp_file, at, pieces, len: body.len() as u64, needless: at };
        if let Ok(Some(gone)) = self.cache.store(&self.disk, meta, claim, tail).await {
            let _ = self.cache.remove(&self.disk, gone).await;
        }
    }

    /// Updates an entry as a 304 does: with other fields, which sometimes have no room.
    async fn refresh(&self, truth: &Truth, page: usize, room: usize) {
        let Some((entry, _)) = self.find(page).await else { return };
        let claim = self.held().index.claim(key(page), self.now);
        let mut meta = entry.meta.clone();
        meta.fields.set("Validated", Bytes::from(truth.next().to_string()));
        meta.fields.set("X-Room", Bytes::from("x".repeat(room)));
        let was = ValidatedFile::of(&entry);
        if let Ok(Some(gone)) = self.cache.refresh(&self.disk, meta, was, claim, &silent).await {
            let _ = self.cache.remove(&self.disk, gone).await;
        }
    }

    async fn purge(&self, truth: &Truth, random: &mut Random) {
        let page = random.below(PAGES);
        let purge = if random.happens(60) { Purge::Hard } else { Purge::Soft };
        let next = truth.versions.get() + 1;
        let (held, disk) = (self.held(), &self.disk);
        let kind = random.below(4);
        let purged = match kind {
            0 => {
                let tags = [format!("tag{}", page % 3).into_bytes()];
                self.cache.purge_tags(held, disk, &tags, purge).await.is_ok()
            }
            1 => self.cache.purge_prefix(held, disk, b"/p/1", purge).await.is_ok(),
            _ => self.cache.purge_key(held, disk, key(page), purge).await.is_ok(),
        };
        let is_meant = |other: usize| match kind {
            0 => other % 3 == page % 3,
            1 => other >= 10,
            _ => other == page,
        };
        for other in (0..PAGES).filter(|other| purged && is_meant(*other)) {
            let since = if purge == Purge::Hard { &truth.hard } else { &truth.soft };
            since[other].set(since[other].get().max(next));
        }
    }

    /// Something happens; `fillings` are what is on its way.
    async fn step(&self, truth: &Truth, random: &mut Random, fillings: &RefCell<Vec<Filling>>) {
        let page = random.below(PAGES);
        let take = |random: &mut Random| {
            let mut fillings = fillings.borrow_mut();
            let nth = random.below(fillings.len());
            (!fillings.is_empty()).then(|| fillings.swap_remove(nth))
        };
        match random.below(100) {
            0..20 => {
                self.get(truth, page).await;
            }
            20..45 => {
                let filling = self.begin(truth, page);
                fillings.borrow_mut().push(filling);
            }
            45..55 => {
                if let Some(filling) = take(random) {
                    let len = random.below(30_000);
                    let written = self.write(filling, len).await;
                    fillings.borrow_mut().extend(written);
                }
            }
            55..75 => {
                if let Some(filling) = take(random) {
                    self.store(filling).await;
                }
            }
            75..78 => drop(take(random)),
            78..88 => {
                let room = random.below(300);
                self.refresh(truth, page, room).await;
            }
            88..93 => self.purge(truth, random).await,
            93..95 => {
                let _ = self.manager.write_snapshot(self.held()).await;
            }
            95..98 => {
                self.manager.tend_segments(self.held()).await;
                self.manager.make_room(self.held(), &mut None).await;
            }
            _ if self.cache.zone.is_loaded.load(Relaxed) => {
                self.manager.sweep(self.held()).await;
            }
            _ => {}
        }
    }

    /// Compares the records of a segment with their entries. Returns the number of entries and their bytes.
    fn compare_segment(&self, number: u32, content: &[u8]) -> Result<[u64; 2], String> {
        let Ok(header) = SegmentHeader::decode(content, number) else { return Ok([0, 0]) };
        let after = |block: u32| content.get(block as usize * 4096..).unwrap_or_default();
        let in_table = header.table.and_then(|table| segment::decode_table(after(table.block), &table).ok());
        let rows = in_table.unwrap_or_else(|| {
            let (mut rows, file_size) = (Vec::new(), content.len() as u64);
            let window = ScanWindow { block: 1, bytes: after(1), file_size };
            segment::scan(&header, &window, &mut rows);
            rows
        });
        let mut sums = [0, 0];
        for row in rows {
            let address = row.address(number);
            let is_known = self.held().index.peek(row.key).and_then(|found| found.address) == Some(address);
            let record = RecordPrefix::decode(after(row.block), &header, row.block);
            let is_stored = record.is_ok_and(|(prefix, state)| {
                let entry = after(row.block).get(64..64 + prefix.len as usize).unwrap_or_default();
                let meta = format::decode(&Bytes::copy_from_slice(entry), prefix.len);
                let is_whole = meta.is_ok_and(|meta| super::segments::is_body_whole(&meta, entry));
                state == RecordState::Stored && is_whole
            });
            if is_stored && !is_known {
                return Err(format!("{address:?} has no entry"));
            }
            if is_known {
                sums = [sums[0] + 1, sums[1] + address.size()];
            }
        }
        Ok(sums)
    }

    /// Compares entries and files, which should be the same.
    fn compare(&self, sim: &Sim) -> Result<(), String> {
        let index = &self.held().index;
        let (mut files, mut bytes, mut segments) = (0, 0, 0);
        for path in sim.paths() {
            let name = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap();
            if [&b"purges"[..], b"snapshot", b"pages"].contains(&name)
                || [STRANGE, c"/cache/device"].contains(&&*path)
            {
                continue;
            }
            if *path == *c"/device" {
                for (number, content) in segments_of_device(sim) {
                    let [of_segment, size] = self.compare_segment(number, &content)?;
                    (files, bytes, segments) =
                        (files + of_segment, bytes + size, segments + content.len() as u64);
                }
                continue;
            }
            if let Some(number) = segment::number_of(name) {
                let content = sim.content(&path).unwrap_or_default();
                let [of_segment, size] = self.compare_segment(number, &content)?;
                (files, bytes, segments) =
                    (files + of_segment, bytes + size, segments + on_disk(content.len() as u64));
                continue;
            }
            let key = Key::from_hex(name).ok_or_else(|| format!("{path:?} stays"))?;
            let found = index.peek(key).filter(|found| found.holds == EntryState::File);
            let found = found.filter(|found| found.address.is_none());
            let found = found.ok_or_else(|| format!("{path:?} has no entry"))?;
            let size = on_disk(sim.content(&path).map_or(0, |content| content.len() as u64));
            if found.size != size {
                return Err(format!("{path:?} has {size} bytes, and not {}", found.size));
            }
            (files, bytes) = (files + 1, bytes + size);
        }
        let known = self.cache.zone.segments.as_ref().map_or(0, |store| store.bytes_on_disk());
        if known != segments {
            return Err(format!("segments have {segments} bytes, and not {known}"));
        }
        let counts = index.counts();
        match (counts.files, counts.bytes) == (files, bytes) {
            true => Ok(()),
            false => Err(format!("{counts:?}, and there are {files} files with {bytes} bytes")),
        }
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
    let mut found = 0;
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
        drop((fillings, process));
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
                found += u64::from(before.is_some());
            }
            now += 2000;
        }
    }
    found
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
    let found: u64 = (0..seeds()).map(|seed| block_on(live(seed, &pool))).sum();
    assert!(found > seeds(), "little was there to be lost: {found}");
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
            process.cache.purge_prefix(process.held(), &process.disk, b"/p/01", Purge::Hard).await.unwrap();
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
            process.manager.sweep(process.held()).await;
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

const SEEDS: u64 = 150;

/// Number of lives: a crash of a device takes longer, because all of it is one file.
fn seeds() -> u64 {
    if DEVICE.get() { SEEDS / 10 } else { SEEDS }
}

/// One life, which is cut off after so many operations.
async fn cut_off(seed: u64, calls: u64, loss: Loss, pool: &Pool) -> u64 {
    let (sim, truth, mut random) = (new_sim(seed), Truth::default(), Random::new(seed));
    let process = Process::start(door(&sim, pool), 1_800_000_000_000).await;
    process.load().await;
    sim.fail_power_after(calls);
    let before = sim.calls();
    let fillings = RefCell::new(Vec::new());
    for page in 0..4 {
        process.store(process.begin(&truth, page)).await;
    }
    for _ in 0..25 {
        process.step(&truth, &mut random, &fillings).await;
    }
    let needed = sim.calls() - before;
    drop((fillings, process));
    sim.restart(loss);
    let process = Process::start(door(&sim, pool), 1_800_000_001_000).await;
    let when = format!("seed {seed}, cut off after {calls} operations, {loss:?} is lost");
    recover(&process, &truth, &sim, &mut random, &when).await;
    needed
}

#[test]
fn a_crash_at_every_operation_is_outlived() {
    crash_everywhere();
}

#[test]
fn segments_outlive_a_crash_at_every_operation() {
    STORE.set(LOG);
    crash_everywhere();
}

#[test]
fn segments_past_the_page_cache_outlive_a_crash_at_every_operation() {
    STORE.set(LOG);
    DIRECT.set(true);
    crash_everywhere();
}

#[test]
fn segments_on_a_device_outlive_a_crash_at_every_operation() {
    STORE.set(LOG);
    DEVICE.set(true);
    crash_everywhere();
}

fn crash_everywhere() {
    let pool = Pool::new("sim", 1, 1000).unwrap();
    for seed in 0..if DEVICE.get() { 1 } else { 4 } {
        let needed = block_on(cut_off(seed, u64::MAX / 2, Loss::Nothing, &pool));
        assert!(needed > 30, "{needed}");
        for calls in 0..needed {
            for loss in [Loss::Nothing, Loss::Ordered] {
                block_on(cut_off(seed, calls, loss, &pool));
            }
        }
    }
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
        process.manager.write_snapshot(process.held()).await.unwrap();
        let before = process.held().index.counts();
        // After the snapshot: one more, another one in the place of one, and one less.
        process.store(process.begin(&truth, 5)).await;
        process.store(process.begin(&truth, 1)).await;
        process.cache.purge_key(process.held(), &process.disk, key(2), Purge::Hard).await.unwrap();
        drop(process);
        sim.restart(Loss::Nothing);
        let process = Process::start(door(&sim, &pool), 1_800_000_100_000).await;
        process.manager.restore(process.held()).await;
        let after = process.held().index.counts();
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
            let wanted = EntryQuery {
                cache: &process.cache,
                key,
                main: super::tests::key(1),
                text: text.as_bytes(),
                since: main.since,
            };
            let account = &Account::new(JobClass::Hit, JobSource::NONE);
            let (disk, hot) = (|| Some(&process.disk), &process.hot);
            let search = EntrySearch { disk: &disk, hot, home: None, account, log: &silent };
            let mut found = FoundEntry::default();
            search.find(&wanted, &mut found).await;
            found.entry.is_some()
        };
        let store_variant = async || {
            let claim = process.held().index.claim(key(3), process.now);
            let mut meta = meta(1, truth.next(), claim.sequence());
            (meta.variant, meta.header_size) = (Some(key(3)), 0);
            meta.header_size = format::place(&meta).unwrap();
            let body = body(1, 1);
            let len = body.len() as u64;
            let tail = BodyTail { temp_file: None, at: 0, pieces: vec![body], len, needless: 0 };
            process.cache.store(&process.disk, meta, claim, tail).await.unwrap();
        };
        process.store(process.begin(&truth, 1)).await;
        store_variant().await;
        assert!(variant(&process).await);
        process.manager.write_snapshot(process.held()).await.unwrap();
        process.cache.purge_key(process.held(), &process.disk, key(1), Purge::Hard).await.unwrap();
        process.store(process.begin(&truth, 1)).await;
        assert!(!variant(&process).await);
        drop(process);
        for with_snapshot in [true, false] {
            sim.restart(Loss::Nothing);
            let process = Process::start(door(&sim, &pool), 1_800_000_001_000).await;
            if with_snapshot {
                process.manager.restore(process.held()).await;
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
            process.cache.purge_tags(process.held(), &process.disk, &tags, Purge::Hard).await.unwrap();
            // It is found to be purged, and its file is about to be deleted.
            let found = process.search(page).await;
            assert!(found.entry.is_none());
            let sweep = process.manager.sweep(process.held());
            assert!(tokio::time::timeout(Duration::from_millis(100), sweep).await.is_err());
            (process, found)
        };
        let (process, found) = purged(1).await;
        for gone in found.gone {
            process.cache.remove(&process.disk, gone).await.unwrap();
        }
        process.manager.sweep(process.held()).await;
        assert_eq!(process.held().purges.counts(), [0, 0, 0]);
        drop(process);
        // That never comes.
        let (process, found) = purged(2).await;
        drop(found);
        process.manager.sweep(process.held()).await;
        drop(process);
        let process = Process::start(door(&sim, &pool), 1_800_000_001_000).await;
        assert!(process.find(2).await.is_none());
        process.load().await;
        process.compare(&sim).unwrap();
    });
}
