//! Search for an entry by its key: index, open entries, file.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use tw_base::FatalCell;
use tw_cache::format::{BlockSums, FormatError, Meta};
use tw_cache::policy::{self, Reuse, Rules, Window};
use tw_cache::{
    EntryState, Index, IndexEntry, Key, LoadedEntry, Purge, RemovedEntry, SegmentAddress, Subject, Tag,
    Verdict,
};
use tw_disk::{Account, Disk, DiskError, Errno, JobClass, JobSource, OpenOptions};
use tw_log::Level;
use tw_rt::watch::Subject as Task;

use super::hedge::{HedgeWinner, HedgedKey, LookupHedge};
use crate::entry::open_entries::{BODY_MAX, DueCheck, OpenEntries, OpenEntry, PathCheck};
use crate::entry::refresh_pace::RefreshPace;
use crate::store::context::ZoneIndex;
use crate::store::place::{StoredAt, StoredPlace, is_same, on_disk};
use crate::store::{EntryRead, ReadEntry, Store, valid_until};
use crate::time::seconds;
use crate::zone::Cache;
use crate::zone::damage::CheckedEntry;
use tw_request::event_loop::Loop;
use tw_request::files::{BlockCheck, DamagedBlock, OpenFile};
use tw_request::request::Request;

/// Bytes read when a file is opened: a usual head and a small body.
const FIRST_READ: usize = BODY_MAX + (4 << 10);
/// Bytes of the longest table of checksums that a loop compares itself: that of 1 GiB.
const TABLE_NOW_MAX: usize = 64 << 10;

/// Key and text of the entry that is searched for.
#[derive(Clone, Copy)]
pub(crate) struct EntryQuery<'a> {
    pub(crate) cache: &'a Arc<Cache>,
    /// Key of the entry, which may be a variant.
    pub(crate) key: Key,
    /// Key of the text; differs from `key` for a variant.
    pub(crate) main: Key,
    /// Text of the key.
    pub(crate) text: &'a [u8],
    /// Sequence number; entries whose fetch began before it do not count.
    pub(crate) since: u64,
}

/// State of an entry in the index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundState {
    /// Sequence number; older variants of the entry do not count.
    pub(crate) since: u64,
    /// True if a newer response is being fetched.
    pub(crate) is_claimed: bool,
    /// Number of lookups that found it before this one.
    pub(crate) hits: u8,
    /// True after a soft purge: the entry is stale in any case.
    pub(crate) is_stale: bool,
}

impl FoundState {
    /// Decides how `r` may use the entry.
    pub(crate) fn usage(self, meta: &Meta, r: &Request, now: i64, rules: &Rules) -> Reuse {
        match policy::may_use(&meta.lifetime, &r.head, now, rules) {
            Reuse::Fresh { age } | Reuse::Accepted { age } if self.is_stale => {
                Reuse::Stale { age, while_revalidate: Window::Closed, if_error: Window::Closed }
            }
            reuse => reuse,
        }
    }
}

/// Result of the search of a request.
pub(crate) enum SearchOutcome {
    Entry(Rc<OpenEntry>, FoundState),
    Nothing,
    /// The upstream server answered before the disk.
    Hedged(HedgeWinner),
}

/// Finds the entry of `query`, which is a variant if the main entry has `Vary`. Waits for the disk, or for the upstream server if
/// that is faster and `hedge` permits it. The disk operations are added to `account`.
pub(crate) async fn find(
    r: &Request,
    query: &EntryQuery<'_>,
    vary: Option<&Bytes>,
    hedge: Option<&LookupHedge>,
    account: &mut Option<Account>,
) -> SearchOutcome {
    let mut found_entry = FoundEntry::default();
    let winner = {
        let event_loop = &r.client().event_loop;
        let search = EntrySearch {
            disk: &|| r.disk(),
            hot: event_loop.part(),
            event_loop: Some(event_loop),
            account: &r.costs.account,
            log: &|level, message| r.log(level, message),
        };
        match hedge {
            None => {
                search.find(query, &mut found_entry).await;
                None
            }
            Some(hedge) => {
                let hedged = HedgedKey { main: query.main, key: query.key, other: vary };
                let search = search.find(query, &mut found_entry);
                Box::pin(query.cache.hedge(r, hedge, hedged, search)).await
            }
        }
    };
    let FoundEntry { entry, removed_entries, account: part } = found_entry;
    for removed_entry in removed_entries {
        match query.cache.disk_of(r).cloned() {
            // Its successor has the same file name: the file has to be gone before that is stored.
            Some(disk) if removed_entry.key == query.key => {
                // Should it stay, the next start finds it.
                let cache = query.cache;
                let _ = cache.zone.store.remove(cache.context(&disk), removed_entry).await;
            }
            _ => query.cache.remove_evicted(r, Some(removed_entry)),
        }
    }
    match (&mut *account, part) {
        (Some(account), Some(part)) => account.add_part(&part),
        (account, part) => *account = account.take().or(part),
    }
    match (winner, entry) {
        (Some(winner), _) => SearchOutcome::Hedged(winner),
        (None, Some((entry, state))) => SearchOutcome::Entry(entry, state),
        (None, None) => SearchOutcome::Nothing,
    }
}

/// Access to open entries and the disk for a search.
pub(crate) struct EntrySearch<'a> {
    /// Disk, if it turns out to be needed.
    pub(crate) disk: &'a dyn Fn() -> Option<&'a Disk>,
    /// Open entries of the loop.
    pub(crate) hot: &'a FatalCell<OpenEntries>,
    /// Loop that closes another file if no descriptor is left.
    pub(crate) event_loop: Option<&'a Rc<Loop>>,
    /// Account of which the search is a part.
    pub(crate) account: &'a Account,
    pub(crate) log: &'a dyn Fn(Level, fmt::Arguments<'_>),
}

/// Result of a search.
#[derive(Default)]
pub(crate) struct FoundEntry {
    pub(crate) entry: Option<(Rc<OpenEntry>, FoundState)>,
    /// Entries that have left the index; the caller removes their files.
    pub(crate) removed_entries: Vec<RemovedEntry>,
    /// Disk operations of the search, if there were any.
    account: Option<Account>,
}

impl EntrySearch<'_> {
    /// Searches for an entry.
    pub(crate) async fn find(&self, query: &EntryQuery<'_>, out: &mut FoundEntry) {
        let EntryQuery { cache, key, .. } = *query;
        let zone = &cache.zone;
        let Some(zone_index) = zone.loaded() else { return };
        let ZoneIndex { index, purges, .. } = zone_index;
        let now = seconds(tw_rt::clock::unix().secs);
        let look_up = || index.lookup(key, now).filter(|index_entry| index_entry.holds == EntryState::File);
        let mut index_entry = look_up();
        if index_entry.is_none() && zone.is_restoring() && Box::pin(cache.restore_key(key, self.disk)).await {
            index_entry = look_up();
        }
        let entry = match index_entry {
            Some(index_entry) => {
                let hot = self.hot.borrow_mut().get(zone.id, key, &index_entry);
                match hot {
                    Some(entry)
                        if cache.may_serve(&entry) && self.is_in_place(query, &entry, &index_entry).await =>
                    {
                        entry
                    }
                    // Rare, and large: hits in memory do without its room.
                    _ => match Box::pin(self.open(query, Some(&index_entry), out)).await {
                        Some(entry) => self.add_open(cache, index, key, entry),
                        None => return,
                    },
                }
            }
            // Until the index is loaded, the disk is searched.
            None if !zone.is_loaded.load(Relaxed) => {
                let removals = zone.store.removals();
                let Some(disk) = (self.disk)() else { return };
                let Some(entry) = Box::pin(self.open(query, None, out)).await else { return };
                let loaded_entry = LoadedEntry {
                    key,
                    sequence: entry.sequence,
                    since: entry.sequence,
                    size: on_disk(entry.meta.stored_len().unwrap_or(0)),
                    valid_until: valid_until(&entry.meta),
                };
                let file = entry.file.file();
                match zone.store.admit_file(cache.context(disk), &loaded_entry, file, removals).await {
                    Ok(pushed_out) => out.removed_entries.extend(pushed_out),
                    Err(error) => cache.report_disk_failure(&error, "reading a response", self.log),
                }
                self.add_open(cache, index, key, entry)
            }
            None => return,
        };
        let (checked, since) =
            index_entry.map_or((0, 0), |index_entry| (index_entry.checked, index_entry.since));
        // Of a file that was found on the disk, it is not known which purges came before it.
        let since = if since == 0 { entry.file_sequence } else { since };
        // The fills of a key whose file was found on the disk may be known, although the file itself is not.
        let is_claimed =
            index_entry.or_else(|| index.peek(key)).is_some_and(|index_entry| index_entry.claims > 0);
        let hits = index_entry.map_or(0, |index_entry| index_entry.hits);
        let checked = checked.max(entry.confirmed.get());
        // Of the response itself, whatever was checked: a purge of the key that it is a variant of is not remembered.
        let sequence = match entry.address {
            Some(_) => entry.file_sequence,
            None => index_entry.map_or(0, |index_entry| index_entry.sequence).max(entry.file_sequence),
        };
        let verdict = if sequence < query.since || zone_index.is_below_floor(entry.file_sequence) {
            Verdict::Purged(Purge::Hard)
        } else {
            let subject = Subject { key: query.main, text: query.text, tags: &entry.tags };
            purges.verdict(checked.max(entry.file_sequence), &subject)
        };
        match verdict {
            Verdict::Kept(upto) => {
                if upto > checked {
                    // While an entry is validated, its head may be younger than the one that the index knows. Other loops may have that
                    // one in memory, and it may be purged.
                    if index_entry.is_none_or(|index_entry| entry.file_sequence <= index_entry.checked) {
                        index.confirm(key, entry.sequence, upto);
                    }
                    entry.confirmed.set(upto);
                }
                out.entry = Some((entry, FoundState { since, is_claimed, hits, is_stale: false }));
            }
            Verdict::Purged(Purge::Soft) => {
                out.entry = Some((entry, FoundState { since, is_claimed, hits, is_stale: true }));
            }
            Verdict::Purged(Purge::Hard) => {
                let removed_entry = index.remove_if_sequence(key, entry.sequence);
                zone.counts.purged.add(u64::from(removed_entry.is_some()));
                out.removed_entries.extend(removed_entry);
            }
        }
    }

    // DIFF(nginx): the path is checked once a second, not for each hit.
    /// Returns true if the file of an open entry was at its path a moment ago, as far as the disk answers in time.
    async fn is_in_place(
        &self,
        query: &EntryQuery<'_>,
        entry: &Rc<OpenEntry>,
        index_entry: &IndexEntry,
    ) -> bool {
        if !query.cache.zone.store.is_open_to_others(entry.address) {
            return true;
        }
        let now = tw_rt::clock::now();
        let due = entry.path_check.due(now);
        if due == DueCheck::Nothing {
            return true;
        }
        let Some(event_loop) = self.event_loop else { return true };
        if let DueCheck::Begin | DueCheck::BeginAndWait(_) = due {
            let Some(disk) = (self.disk)() else { return true };
            entry.path_check.begin(now);
            check_path(event_loop, query, entry.clone(), disk.clone());
        }
        if let DueCheck::BeginAndWait(until) | DueCheck::Wait(until) = due {
            entry.path_check.wait(until).await;
        }
        let open_entry = self.hot.borrow_mut().get(query.cache.zone.id, query.key, index_entry);
        open_entry.is_some_and(|open_entry| Rc::ptr_eq(&open_entry, entry))
    }

    fn add_open(&self, cache: &Cache, index: &Arc<Index>, key: Key, entry: OpenEntry) -> Rc<OpenEntry> {
        let entry = Rc::new(entry);
        self.hot.borrow_mut().put(cache.zone.id, index, key, entry.clone());
        entry
    }

    /// Opens an entry. `entry` is what the index has of it, if it is there. Errors are logged and return `None`.
    async fn open(
        &self,
        query: &EntryQuery<'_>,
        entry: Option<&IndexEntry>,
        out: &mut FoundEntry,
    ) -> Option<OpenEntry> {
        let EntryQuery { cache, key, .. } = *query;
        let (zone_index, disk) = (cache.zone.loaded()?, (self.disk)()?);
        let sequence = entry.map(|entry| entry.sequence);
        let address = entry.and_then(|entry| entry.address);
        let place = StoredAt::of(&cache.place, key, address);
        let account = out.account.insert(self.account.part(JobClass::Hit, place.source()));
        let read = async |account: &mut Account| {
            let result = self.read(disk, query, account, &place).await;
            match &result {
                // Its head may just be rewritten after a validation.
                Ok((EntryRead::Damaged(FormatError::Checksum | FormatError::StateChecksum), _))
                    if place.is_file() =>
                {
                    self.read(disk, query, account, &place).await
                }
                _ => result,
            }
        };
        match cache.read_guarded(key, account, self.log, read).await? {
            // Two texts may have the same key, a hash.
            Ok((EntryRead::Entry(read), _)) if *read.meta.key_text != *query.text => None,
            Ok((EntryRead::Entry(read), check)) => Some(open_entry(zone_index, entry, *read, check)),
            Ok((read @ (EntryRead::Missing | EntryRead::Another(_)), _)) => {
                match (read, address, sequence) {
                    (EntryRead::Another(other), Some(address), _)
                        if zone_index.index.share_record_entry(key, other) =>
                    {
                        zone_index.index.set_apart(key, address, seconds(tw_rt::clock::unix().secs));
                    }
                    (_, Some(address), _) => zone_index.index.remove_missing_record(key, address),
                    (_, None, Some(sequence)) => zone_index.index.remove_missing(key, sequence),
                    (_, None, None) => {}
                }
                None
            }
            Ok((EntryRead::OfNginx, _)) => None,
            Ok((EntryRead::Damaged(why), _)) => {
                cache.zone.counts.damaged.add(1);
                let shown = StoredPlace { place: &cache.place, key, address };
                (self.log)(Level::Crit, format_args!("{shown} is damaged: {why}"));
                if let Some(address) = address {
                    out.removed_entries.extend(zone_index.index.remove_if_address(key, address));
                    return None;
                }
                let removed_entry =
                    sequence.and_then(|sequence| zone_index.index.remove_if_sequence(key, sequence));
                // Otherwise another task has removed the entry or stored another one.
                if sequence.is_none() || removed_entry.is_some() {
                    let mut account = Account::new(JobClass::Evict, JobSource::NONE);
                    // Should it stay, it is found again.
                    let _ = cache
                        .zone
                        .store
                        .remove_file(cache.context(disk), &mut account, key, removed_entry)
                        .await;
                }
                None
            }
            Err(error) => {
                cache.report_disk_failure(&error, "reading a response", self.log);
                None
            }
        }
    }

    /// Reads the head of an entry, and a small body, and begins to check the body.
    async fn read(
        &self,
        disk: &Disk,
        query: &EntryQuery<'_>,
        account: &mut Account,
        place: &StoredAt,
    ) -> Result<(EntryRead, Option<BodyCheck>), DiskError> {
        let (cache, cx) = (query.cache, query.cache.context(disk));
        let mut find = async || cache.zone.store.find(cx, account, place, FIRST_READ).await;
        let entry_read = match self.event_loop.filter(|_| place.is_file()) {
            Some(event_loop) => event_loop.retry_with_descriptor(find).await?,
            None => find().await?,
        };
        let EntryRead::Entry(entry) = &entry_read else { return Ok((entry_read, None)) };
        // Always for a record: a power cut may leave one whose body was not written.
        let is_checked = cache.place.verify || !place.is_file();
        if !is_checked || *entry.meta.key_text != *query.text {
            return Ok((entry_read, None));
        }
        Ok(match self.begin_check(disk, query, account, place.address(), entry).await? {
            Ok(check) => (entry_read, check),
            Err(why) => (EntryRead::Damaged(why), None),
        })
    }

    /// Reads the checksums of a file and compares its first block with them, which is all of a small body: if it is damaged,
    /// nothing was sent yet. `None` for an entry without checksums.
    async fn begin_check(
        &self,
        disk: &Disk,
        query: &EntryQuery<'_>,
        account: &mut Account,
        address: Option<SegmentAddress>,
        entry: &ReadEntry,
    ) -> Result<Result<Option<BodyCheck>, FormatError>, DiskError> {
        let ReadEntry { file, offset, meta, first, .. } = entry;
        let offset = *offset;
        let (Some(body_len), Some(sum)) = (meta.body_len, meta.body_sum) else { return Ok(Ok(None)) };
        let decode = move |table: Vec<u8>| BlockSums::decode(body_len, sum, &table);
        let sums = match meta.table_at() {
            None => decode(Vec::new()),
            Some(at) => {
                let len = usize::try_from(at.end - at.start).unwrap_or(usize::MAX);
                if len <= TABLE_NOW_MAX {
                    decode(disk.read(account, file, offset + at.start, vec![0; len]).await?)
                } else {
                    disk.read_and(account, file, offset + at.start, len, decode).await?
                }
            }
        };
        let sums = match sums {
            Ok(sums) => sums,
            Err(why) => return Ok(Err(why)),
        };
        let (cache, key, sequence) = (query.cache.clone(), query.key, AtomicU64::new(0));
        let checked = Arc::new(CheckedEntry { cache, key, address, sequence });
        let start = offset + u64::from(meta.header_size);
        let check = BlockCheck::new(start..start + body_len, sums, checked.clone());
        // The place of a record on a device may be used again while the entry is open.
        let is_always = query.cache.zone.store.is_place_reused(address);
        let check = Arc::new(if is_always { check.always() } else { check });
        let compared = match check.compare_first(offset, first) {
            Some(compared) => compared,
            None => check.read(disk, account, file, start, 1).await?.map(drop),
        };
        Ok(match compared {
            Ok(()) => Ok(Some((check, checked))),
            Err(DamagedBlock(_)) => Err(FormatError::Body),
        })
    }
}

/// Checks in the background whether the file of an open entry is still at its path. If not, the entry is closed.
fn check_path(event_loop: &Rc<Loop>, query: &EntryQuery<'_>, entry: Rc<OpenEntry>, disk: Disk) {
    let (cache, key, at) = (query.cache.clone(), query.key, event_loop.clone());
    let subject = Task { kind: "cache look", id: event_loop.index as u64 };
    event_loop.connections.spawn_counted(subject, async move {
        let path = cache.place.path(key);
        let mut account = Account::new(JobClass::Hit, JobSource::of(path.to_bytes()));
        let is_lost = match disk.stat(&mut account, &path).await {
            Ok(meta) => !is_same(&meta, entry.file.file().meta()),
            // With another error the file may be there.
            Err(error) => matches!(error.errno(), Some(Errno::NOENT | Errno::NOTDIR)),
        };
        if is_lost {
            at.part::<FatalCell<OpenEntries>>().borrow_mut().forget(cache.zone.id, key, &entry);
            entry.path_check.failed();
        } else {
            entry.path_check.passed();
        }
    });
}

/// Checksums of an entry, and the receiver of damage.
type BodyCheck = (Arc<BlockCheck>, Arc<CheckedEntry>);

/// Makes an open entry of one that was read. `entry` is what the index has of it, if it is there.
fn open_entry(
    zone_index: &ZoneIndex,
    entry: Option<&IndexEntry>,
    read: ReadEntry,
    check: Option<BodyCheck>,
) -> OpenEntry {
    let ReadEntry { meta, file, offset, len, first, .. } = read;
    let address = entry.and_then(|entry| entry.address);
    let body_len = meta.body_len.unwrap_or(0);
    let is_small = body_len <= BODY_MAX as u64 && first.len() as u64 == len;
    let written_sequence = match entry {
        Some(entry) if address.is_some() => zone_index.response_sequence(entry, meta.sequence),
        _ => zone_index.purges.sequence().admit(meta.sequence),
    };
    let sequence = entry.map_or(written_sequence, |entry| entry.sequence);
    let (check, checked) = check.unzip();
    if let Some(checked) = &checked {
        checked.sequence.store(sequence, Relaxed);
    }
    let file = match address {
        Some(_) => OpenFile::part_of(file),
        None => OpenFile::without_tag(file, OpenOptions::READ),
    };
    OpenEntry {
        tags: meta.tags.iter().map(Tag::of).collect(),
        file_sequence: written_sequence,
        file: Rc::new(file.with_check(check)),
        address,
        offset,
        len: body_len,
        body: is_small.then(|| first.slice(meta.header_size as usize..)),
        meta,
        sequence,
        confirmed: Cell::new(0),
        quota: Cell::new(None),
        path_check: PathCheck::new(),
        refresh_pace: RefreshPace::default(),
    }
}
