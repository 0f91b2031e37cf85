//! Writing, updating and removing entries, in files or in records.
//!
//! Because of the order of the steps, a crash at any of them loses one entry at most: a file is at its path before the index has
//! its entry, an entry is removed before its file is, and a purge is confirmed when no crash can undo it.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;
use tokio::sync::Notify;
use tw_cache::format::{self, BodySums, EncodeError, FinishedSums, FormatError, Meta, WrittenBy as MadeBy};
use tw_cache::segment::RecordPrefix;
use tw_cache::{
    Claim, Commit, CommitRefused, EntryState, Index, Key, LoadOutcome, LoadedEntry, Location, RemovedEntry,
    SegmentAddress, StoredEntry,
};
use tw_disk::{Account, DiskError, Errno, File, JobClass, JobSource, NewFile};
use tw_log::{Level, Text};

use super::context::StoreContext;
use super::files::temp_file::{FillFile, WRITE_SIZE};
use super::files::{is_same, on_disk};
use super::segments::{AppendTarget, Appended, SegmentStore};
use super::{EntryStore, HeadWrite, NewHead, Store};
use crate::http::cache::cache_path::CachePath;
use crate::http::cache::entry::open_entries::OpenEntry;
use crate::http::cache::time::seconds;
use crate::http::local_future::boxed;

/// Part of a body that the file does not have yet.
pub(crate) struct BodyTail {
    /// File written so far, if there is one.
    pub(crate) temp_file: Option<FillFile>,
    /// Offset in the body of the bytes that are not in the file.
    pub(crate) at: u64,
    pub(crate) pieces: Vec<Bytes>,
    /// Length of the body with them.
    pub(crate) len: u64,
    /// Number of leading body bytes that can leave memory once the disk has them.
    pub(crate) needless: u64,
}

/// File of an entry that was validated.
pub(crate) struct ValidatedFile<'a> {
    pub(crate) file: &'a File,
    /// Sequence number in the index.
    pub(crate) sequence: u64,
    /// Address of the record; `None` if it has a file of its own.
    pub(crate) address: Option<SegmentAddress>,
    /// Offset of the body in the file.
    pub(crate) body_offset: u64,
    /// Length of the body.
    pub(crate) len: u64,
}

/// Facts about a stored file for the index.
struct StoredFile {
    /// Length of the whole file.
    len: u64,
    valid_until: u32,
}

impl StoredFile {
    /// Facts about the file of a complete response.
    fn of(meta: &Meta) -> Self {
        Self { len: meta.stored_len().unwrap_or(0), valid_until: valid_until(meta) }
    }

    /// Place in the index of the file.
    fn location(&self) -> Location {
        on_disk(self.len).into()
    }
}

impl<'a> ValidatedFile<'a> {
    /// File of an open entry.
    pub(crate) fn of(entry: &'a OpenEntry) -> Self {
        Self {
            file: entry.file.file(),
            sequence: entry.sequence,
            address: entry.address,
            body_offset: entry.body_offset(),
            len: entry.len,
        }
    }
}

/// Place of an entry on the disk, for the log.
pub(crate) struct StoredPlace<'a> {
    pub(crate) place: &'a CachePath,
    pub(crate) key: Key,
    /// Address of the record; `None` if it has a file of its own.
    pub(crate) address: Option<SegmentAddress>,
}

impl fmt::Display for StoredPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(SegmentAddress { segment, block, .. }) => {
                write!(f, "record {block} of cache segment {segment:08}")
            }
            None => write!(f, "cache file \"{}\"", Text(self.place.path(self.key).to_bytes())),
        }
    }
}

/// Guard of a file that is being put at its path: at its end, fills that wait for their turn are woken.
struct PlacingFile<'a>(&'a Notify);

impl Drop for PlacingFile<'_> {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

impl EntryStore {
    /// The segments, with index and disk for appending, if the cache has any.
    fn segments_to_append<'a>(
        &'a self,
        cx: StoreContext<'a>,
    ) -> Option<(&'a SegmentStore, AppendTarget<'a>)> {
        Some((self.segments.as_ref()?, cx.append_target()?))
    }

    /// Writes more of a body; creates the file with its head if there is none.
    pub(crate) async fn write(
        &self,
        cx: StoreContext<'_>,
        meta: &Meta,
        claim: &Claim,
        tail: BodyTail,
    ) -> Result<FillFile, DiskError> {
        let path = cx.place.path(claim.key());
        let mut account = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        let mut temp_file = match tail.temp_file {
            Some(temp_file) => temp_file,
            None => {
                let temp = cx.disk.create_beside(&mut account, &path, cx.place.dir_len()).await?;
                cx.disk.write(&mut account, temp.file(), 0, encode(meta)).await?;
                FillFile::new(temp, cx.window)
            }
        };
        let head = u64::from(meta.header_size);
        let (pieces, sums) = (tail.pieces, std::mem::take(&mut temp_file.sums));
        let add = move || add_sums(sums, pieces);
        let file = temp_file.temp.file();
        temp_file.sums = cx.disk.write_made(&mut account, file, head + tail.at, add).await?;
        temp_file.advance(cx.disk, &mut account, head + tail.len, needless(head, tail.needless)).await?;
        Ok(temp_file)
    }

    /// Stores a complete response. Returns the entry that was evicted for it, whose file the caller removes.
    pub(crate) async fn store(
        &self,
        cx: StoreContext<'_>,
        mut meta: Meta,
        claim: Claim,
        tail: BodyTail,
    ) -> Result<Option<RemovedEntry>, DiskError> {
        let BodyTail { mut temp_file, at, mut pieces, len, needless: needless_len } = tail;
        let path = cx.place.path(claim.key());
        let mut account = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        let head_len = u64::from(meta.header_size);
        meta.body_len = Some(len);
        let known = StoredFile::of(&meta);
        if let Some(temp_file) = &mut temp_file {
            let (pieces, sums) = (std::mem::take(&mut pieces), std::mem::take(&mut temp_file.sums));
            let file = temp_file.temp.file();
            let end = move || {
                let (mut parts, sums) = add_sums(sums, pieces);
                let FinishedSums { sum, table } = sums.finish();
                parts.push(table.into());
                (parts, sum)
            };
            let sum = cx.disk.write_made(&mut account, file, head_len + at, end).await?;
            // Length and checksum are known now.
            let patch = format::patch(meta.key, claim.sequence(), len, sum);
            cx.disk.write(&mut account, file, patch.at, patch.bytes).await?;
            temp_file.finish(cx.disk, &mut account, known.len, needless(head_len, needless_len)).await?;
        }
        // `None`: it was purged, or a younger one is stored.
        let placing = PlacingFile(&self.files.placed);
        let Some(commit) = self.commit_in_turn(claim).await else { return Ok(None) };
        if let Some((store, target)) = self.segments_to_append(cx)
            && temp_file.is_none()
            && known.len <= store.entry_max()
        {
            // A file is stored without the room for it.
            return boxed(|| self.append(cx, store, target, commit, meta, pieces)).await;
        }
        match temp_file {
            Some(FillFile { temp, .. }) => {
                cx.disk.name(&mut account, temp, &path).await?;
            }
            None => {
                let make = Box::new(move || whole_file(meta, pieces));
                let file = NewFile { path, make };
                self.files.puts.put(cx.disk, &mut account, cx.place.dir_len(), file).await?;
            }
        }
        let stored = self.enter(cx, commit, known.location(), known.valid_until).await?;
        drop(placing);
        cx.counts.stored.add(u64::from(stored.is_some()));
        Ok(stored.flatten())
    }

    /// Rewrites the head of an entry that was validated. Returns the entry that was evicted for it, or its own if its body is
    /// damaged: the caller removes the file.
    pub(crate) async fn refresh(
        &self,
        cx: StoreContext<'_>,
        mut meta: Meta,
        was: ValidatedFile<'_>,
        claim: Claim,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> Result<Option<RemovedEntry>, DiskError> {
        meta.sequence = claim.sequence();
        let mut head = Vec::new();
        match format::encode(&meta, &mut head) {
            Ok(()) => {}
            Err(EncodeError::NoRoom) => return self.copy(cx, meta, was, claim, log).await,
            // No file has room for it: the next request validates again.
            Err(_) => return Ok(None),
        }
        let key = claim.key();
        let path = cx.place.path(key);
        let mut account = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        let _placing = PlacingFile(&self.files.placed);
        let may_be_purged = may_be_purged(cx, key);
        let Some(commit) = commit_to(cx, claim, &was) else { return Ok(None) };
        if was.address.is_some() {
            commit.set_varies(!meta.vary.is_empty());
        }
        // The purge is forgotten when no entry is older. A power cut must not bring back the head that is.
        let new_head = NewHead { prefix: prefix(key, &meta), head, is_durable: may_be_purged };
        let written = match self.rewrite_head(cx, &mut account, &was, new_head).await {
            Ok(HeadWrite::Done) => Ok(()),
            Ok(HeadWrite::Missing) => {
                drop(commit);
                if let Some(index) = cx.index() {
                    index.remove_missing(key, was.sequence);
                }
                return Ok(None);
            }
            Ok(HeadWrite::Replaced) => return Ok(None),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            // Its head is undefined now; loops with the old one in memory must not use that until a restart.
            drop(commit);
            if let Some(gone) = cx.index().and_then(|index| index.remove_if_sequence(key, was.sequence)) {
                let _ = self.remove(cx, gone).await;
            }
            return Err(error);
        }
        let known = StoredFile::of(&meta);
        let location = was.address.map_or_else(|| known.location(), Location::from);
        Ok(self.enter(cx, commit, location, known.valid_until).await?.flatten())
    }

    /// Waits for the permit to put a file at its path, behind another fill of the same key: a younger response is not lost
    /// because an older one is being stored.
    async fn commit_in_turn(&self, mut claim: Claim) -> Option<Commit> {
        loop {
            let mut placed = pin!(self.files.placed.notified());
            placed.as_mut().enable();
            claim = match claim.try_commit() {
                Ok(commit) => return Some(commit),
                Err(CommitRefused::Refused(_)) => return None,
                Err(CommitRefused::Busy(claim)) => claim,
            };
            placed.await;
        }
    }

    /// Copies the entry to a new file: the head has no room in the old one, or nginx has written that. The body is compared with its
    /// checksums, so that damage does not get new ones.
    async fn copy(
        &self,
        cx: StoreContext<'_>,
        mut meta: Meta,
        was: ValidatedFile<'_>,
        claim: Claim,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> Result<Option<RemovedEntry>, DiskError> {
        let Ok(header_size) = format::place(&meta) else { return Ok(None) };
        let sum_before = meta.body_sum;
        (meta.header_size, meta.writer) = (header_size, MadeBy::Tailwater);
        (meta.body_len, meta.body_sum) = (None, Some(0));
        let path = cx.place.path(claim.key());
        let mut account = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        let whole = Meta { body_len: Some(was.len), ..meta.clone() };
        if let Some((store, target)) = self.segments_to_append(cx)
            && was.address.is_some()
            && StoredFile::of(&whole).len <= store.entry_max()
        {
            // At most RECORD_MAX.
            let room = vec![0; was.len as usize];
            let body = cx.disk.read(&mut account, was.file, was.body_offset, room).await?;
            if body.len() as u64 != was.len {
                return Ok(None);
            }
            let (body, sums) = add_sums(BodySums::default(), vec![body.into()]);
            if sum_before.is_some_and(|before| before != sums.finish().sum) {
                return Ok(drop_damaged(cx, claim.key(), &was, log));
            }
            let _placing = PlacingFile(&self.files.placed);
            let Some(commit) = commit_to(cx, claim, &was) else { return Ok(None) };
            return boxed(|| self.append(cx, store, target, commit, whole, body)).await;
        }
        let temp = cx.disk.create_beside(&mut account, &path, cx.place.dir_len()).await?;
        cx.disk.write(&mut account, temp.file(), 0, encode(&meta)).await?;
        let mut temp_file = FillFile::new(temp, cx.window);
        let mut at = 0;
        while at < was.len {
            // At most WRITE_SIZE.
            let room = vec![0; (was.len - at).min(WRITE_SIZE) as usize];
            let piece = cx.disk.read(&mut account, was.file, was.body_offset + at, room).await?;
            if piece.is_empty() {
                // The file was truncated.
                return Ok(None);
            }
            let (len, sums) = (piece.len() as u64, std::mem::take(&mut temp_file.sums));
            let add = move || add_sums(sums, vec![Bytes::from(piece)]);
            let file = temp_file.temp.file();
            temp_file.sums = cx.disk.write_made(&mut account, file, u64::from(header_size) + at, add).await?;
            at += len;
            temp_file.advance(cx.disk, &mut account, u64::from(header_size) + at, 0).await?;
        }
        let FinishedSums { sum, table } = std::mem::take(&mut temp_file.sums).finish();
        if sum_before.is_some_and(|before| before != sum) {
            return Ok(drop_damaged(cx, claim.key(), &was, log));
        }
        (meta.body_len, meta.body_sum) = (Some(at), Some(sum));
        let file = temp_file.temp.file();
        cx.disk.write(&mut account, file, u64::from(header_size) + at, table).await?;
        let patch = format::patch(meta.key, meta.sequence, at, sum);
        cx.disk.write(&mut account, file, patch.at, patch.bytes).await?;
        temp_file.finish(cx.disk, &mut account, meta.stored_len().unwrap_or(at), 0).await?;
        let _placing = PlacingFile(&self.files.placed);
        let Some(commit) = commit_to(cx, claim, &was) else { return Ok(None) };
        cx.disk.name(&mut account, temp_file.temp, &path).await?;
        let known = StoredFile::of(&meta);
        Ok(self.enter(cx, commit, known.location(), known.valid_until).await?.flatten())
    }

    /// Stores a response in a segment. Returns the entry that was evicted for it.
    async fn append(
        &self,
        cx: StoreContext<'_>,
        store: &SegmentStore,
        target: AppendTarget<'_>,
        commit: Commit,
        meta: Meta,
        body: Vec<Bytes>,
    ) -> Result<Option<RemovedEntry>, DiskError> {
        let prefix = prefix(commit.key(), &meta);
        commit.set_varies(!meta.vary.is_empty());
        // A fraction of a millisecond for the checksums: a record has at most RECORD_MAX.
        let pieces = whole_file(meta, body);
        let Appended { is_stored, gone } = store.store(target, commit, prefix, pieces).await?;
        cx.counts.stored.add(u64::from(is_stored));
        let mut pushed_out = None;
        for gone in gone {
            match gone.key == prefix.key {
                // The response that was replaced.
                true => self.remove(cx, gone).await?,
                false => pushed_out = Some(gone),
            }
        }
        Ok(pushed_out)
    }

    /// Adds the file at its path, or the record, to the index. Returns the entry that was evicted for it. The outer `None`: it
    /// was purged meanwhile, and is removed.
    async fn enter(
        &self,
        cx: StoreContext<'_>,
        commit: Commit,
        location: Location,
        valid_until: u32,
    ) -> Result<Option<Option<RemovedEntry>>, DiskError> {
        let key = commit.key();
        let now = seconds(tw_rt::clock::unix().secs);
        let stored = match location.address() {
            Some(address) => commit.refresh_at(address, valid_until, now),
            None => commit.store_at(location, valid_until, now),
        };
        match (stored, location.address()) {
            (Ok(StoredEntry { pushed_out, replaced }), address) => {
                if let Some(replaced) = replaced {
                    self.remove(cx, replaced).await?;
                }
                // Its segment may have been freed meanwhile.
                if let (Some(address), Some((store, target))) = (address, self.segments_to_append(cx))
                    && !store.has(address.segment)
                {
                    target.index.remove_missing_record(key, address);
                }
                Ok(Some(pushed_out))
            }
            (Err(_purged), Some(address)) => match &self.segments {
                Some(store) => store.mark_removed(cx.disk, None, key, address).await.map(|()| None),
                None => Ok(None),
            },
            (Err(_purged), None) => {
                let path = cx.place.path(key);
                self.files.removals.fetch_add(1, SeqCst);
                let mut account = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
                match cx.disk.unlink(&mut account, &path).await {
                    Err(error) if error.errno() != Some(Errno::NOENT) => Err(error),
                    _ => Ok(None),
                }
            }
        }
    }

    /// Removes a file that no entry refers to, as [`FileStore::remove_file`] does.
    pub(crate) async fn remove_file(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        key: Key,
        gone: Option<RemovedEntry>,
    ) -> Result<bool, DiskError> {
        self.files.remove_file(cx, account, key, gone).await
    }

    /// Adds an entry found on the disk when `removals` files had been removed; `file` is its file, if that was opened. A file
    /// that is gone since leaves no entry, even if another has its path. Returns the evicted entry, whose file the caller
    /// removes.
    pub(crate) async fn admit(
        &self,
        cx: StoreContext<'_>,
        index: &Index,
        known: &LoadedEntry,
        file: Option<&File>,
        removals: u64,
    ) -> Result<Option<RemovedEntry>, DiskError> {
        let now = seconds(tw_rt::clock::unix().secs);
        let LoadOutcome::Added(pushed_out) = index.load(known, now) else { return Ok(None) };
        if self.files.removals.load(SeqCst) != removals {
            let mut account = Account::new(JobClass::Scan, JobSource::NONE);
            let is_there = match cx.disk.stat(&mut account, &cx.place.path(known.key)).await {
                Ok(now) => file.is_none_or(|file| is_same(&now, file.meta())),
                Err(error) if error.errno() == Some(Errno::NOENT) => false,
                Err(error) => return Err(error),
            };
            if !is_there {
                index.remove_missing(known.key, known.sequence);
            }
        }
        Ok(pushed_out)
    }
}

/// Returns true if there were purges since the entry with this key was stored or checked.
fn may_be_purged(cx: StoreContext<'_>, key: Key) -> bool {
    cx.held.is_some_and(|held| held.index.peek(key).is_none_or(|found| found.checked < held.purges.latest()))
}

/// Returns the permit to change the file of an entry, if that is still the same: another head belongs to another body.
fn commit_to(cx: StoreContext<'_>, claim: Claim, was: &ValidatedFile<'_>) -> Option<Commit> {
    let key = claim.key();
    let commit = claim.commit().ok()?;
    let found = cx.index()?.peek(key)?;
    let is_same = (found.sequence, found.address) == (was.sequence, was.address);
    (found.holds == EntryState::File && is_same).then_some(commit)
}

/// Removes an entry whose body is damaged from the index, and logs that. Returns it: the caller removes its file.
fn drop_damaged(
    cx: StoreContext<'_>,
    key: Key,
    was: &ValidatedFile<'_>,
    log: &dyn Fn(Level, fmt::Arguments<'_>),
) -> Option<RemovedEntry> {
    let (place, why) = (StoredPlace { place: cx.place, key, address: was.address }, FormatError::Body);
    log(Level::Crit, format_args!("{place} is damaged: {why}"));
    let gone = cx.index().and_then(|index| index.remove_if_sequence(key, was.sequence));
    cx.counts.damaged.add(u64::from(gone.is_some()));
    gone
}

/// Prefix of a record with this head.
fn prefix(key: Key, meta: &Meta) -> RecordPrefix {
    let StoredFile { len, valid_until } = StoredFile::of(meta);
    RecordPrefix { key, len, sequence: meta.sequence, valid_until }
}

/// Encodes the head. Its size was determined before, so it fits.
fn encode(meta: &Meta) -> Bytes {
    let mut head = Vec::with_capacity(meta.header_size as usize);
    let encoded = format::encode(meta, &mut head);
    debug_assert!(encoded.is_ok(), "{encoded:?}");
    head.into()
}

/// Adds pieces to the checksums of a body, and returns both. For a job: it reads all bytes.
fn add_sums(mut sums: BodySums, pieces: Vec<Bytes>) -> (Vec<Bytes>, BodySums) {
    pieces.iter().for_each(|piece| sums.push(piece));
    (pieces, sums)
}

/// Parts of the file of a complete response, with its checksums. For a job: it reads all bytes.
fn whole_file(mut meta: Meta, body: Vec<Bytes>) -> Vec<Bytes> {
    let (mut parts, sums) = add_sums(BodySums::default(), body);
    let FinishedSums { sum, table } = sums.finish();
    meta.body_sum = Some(sum);
    parts.insert(0, encode(&meta));
    parts.push(table.into());
    parts
}

/// Length of a file's beginning that can leave memory, if `len` bytes of its body can: the head shares their pages.
fn needless(head: u64, len: u64) -> u64 {
    if len == 0 { 0 } else { head.saturating_add(len) }
}

/// End of a response's validity, as the index has it.
pub(crate) fn valid_until(meta: &Meta) -> u32 {
    seconds(meta.lifetime.valid_until)
}
