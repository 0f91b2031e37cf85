//! How files of a cache come, change and go: the steps on its disk, whoever wants them.
//!
//! The order of the steps is what makes that a crash at any of them loses an entry at most: a file has its place before the
//! index has an entry, an entry goes before its file does, and a purge is said to be done when no crash can undo it.

use std::ffi::{CStr, CString};
use std::pin::pin;
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;
use tokio::sync::Notify;
use tw_cache::format::{self, Meta, Unfit, Writer as MadeBy};
use tw_cache::{Claim, Commit, Gone, Holds, Index, Key, Known, Loaded, NotCommitted, Purge};
use tw_disk::{Account, Disk, DiskError, Errno, File, FileMeta, JobClass, JobSource, OpenOptions};

use super::temp_file::FillFile;
use super::writer::WRITE_SIZE;
use super::zone::{Cache, Held};

/// Files take whole blocks of their disk.
const BLOCK: u64 = 4096;

/// A body that has come to its end, or the part of it that the file has not got.
pub(super) struct Tail {
    /// The file so far, if there is one.
    pub(super) temp_file: Option<FillFile>,
    /// What is not in it, and where in the body that begins.
    pub(super) at: u64,
    pub(super) pieces: Vec<Bytes>,
    /// Bytes of the whole body.
    pub(super) len: u64,
    /// Bytes of the body from the beginning that nobody needs in memory once the disk has them.
    pub(super) needless: u64,
}

/// The file of an entry that is still valid.
pub(super) struct Was<'a> {
    pub(super) file: &'a File,
    /// Under which number the index has it.
    pub(super) sequence: u64,
    /// Bytes of the body.
    pub(super) len: u64,
}

/// A file that is being put in its place: when that is done, however, those that wait for their turn are told.
struct PlacingFile<'a>(&'a Notify);

impl Drop for PlacingFile<'_> {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

impl Cache {
    /// Writes more of a body that comes; makes the file, with its head, if there is none.
    pub(super) async fn write(
        &self,
        disk: &Disk,
        meta: &Meta,
        claim: &Claim,
        tail: Tail,
    ) -> Result<FillFile, DiskError> {
        let path = self.place.path(claim.key());
        let mut by = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        let mut temp_file = match tail.temp_file {
            Some(temp_file) => temp_file,
            None => {
                let temp = disk.create_beside(&mut by, &path, self.place.dir_len()).await?;
                disk.write(&mut by, temp.file(), 0, encode(meta)).await?;
                FillFile::new(temp, self.write_back_size)
            }
        };
        let head = u64::from(meta.header_size);
        disk.write_parts(&mut by, temp_file.temp.file(), head + tail.at, tail.pieces).await?;
        temp_file.advance(disk, &mut by, head + tail.len, needless(head, tail.needless)).await?;
        Ok(temp_file)
    }

    /// Gives a response that is complete its place. What made room for it in the index is to be removed.
    pub(super) async fn store(
        &self,
        disk: &Disk,
        mut meta: Meta,
        claim: Claim,
        tail: Tail,
    ) -> Result<Option<Gone>, DiskError> {
        let Tail { mut temp_file, at, mut pieces, len, needless: needless_len } = tail;
        let path = self.place.path(claim.key());
        let mut by = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        let head_len = u64::from(meta.header_size);
        meta.body_len = Some(len);
        if let Some(temp_file) = &mut temp_file {
            let file = temp_file.temp.file();
            disk.write_parts(&mut by, file, head_len + at, std::mem::take(&mut pieces)).await?;
            // Now it is known how long it is.
            let patch = format::patch(meta.key, claim.sequence(), len);
            disk.write(&mut by, file, patch.at, patch.bytes).await?;
            temp_file.finish(disk, &mut by, head_len + len, needless(head_len, needless_len)).await?;
        }
        // It was purged, or a younger one is there.
        let placing = PlacingFile(&self.zone.placed);
        let Some(commit) = self.commit_in_turn(claim).await else { return Ok(None) };
        match temp_file {
            Some(FillFile { temp, .. }) => {
                disk.name(&mut by, temp, &path).await?;
            }
            None => {
                pieces.insert(0, encode(&meta));
                disk.put(&mut by, &path, self.place.dir_len(), pieces).await?;
            }
        }
        let stored = self.enter(disk, commit, &path, &meta, len).await?;
        drop(placing);
        self.zone.counts.stored.add(u64::from(stored.is_some()));
        Ok(stored.flatten())
    }

    /// Writes the head of an entry anew: the upstream server has said that it is still valid. What made room is to be removed.
    pub(super) async fn refresh(
        &self,
        disk: &Disk,
        mut meta: Meta,
        was: Was<'_>,
        claim: Claim,
    ) -> Result<Option<Gone>, DiskError> {
        meta.sequence = claim.sequence();
        let mut head = Vec::new();
        match format::encode(&meta, &mut head) {
            Ok(()) => {}
            Err(Unfit::NoRoom) => return self.copy(disk, meta, was, claim).await,
            // No file has room for it: the next request asks once more.
            Err(_) => return Ok(None),
        }
        let key = claim.key();
        let path = self.place.path(key);
        let mut by = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        let _placing = PlacingFile(&self.zone.placed);
        let Some(commit) = self.commit_to(claim, &was) else { return Ok(None) };
        let file = disk.open(&mut by, &path, &OpenOptions::READ_WRITE).await?;
        if !is_same(file.meta(), was.file.meta()) {
            // Somebody else has put another one there.
            return Ok(None);
        }
        if let Err(error) = disk.write(&mut by, &file, 0, head).await {
            // Nobody knows what its head is now; who has the old one in memory must not go on with that until a restart.
            drop(commit);
            if let Some(gone) = self.index().and_then(|index| index.remove_if_sequence(key, was.sequence)) {
                let _ = self.remove(disk, gone).await;
            }
            return Err(error);
        }
        Ok(self.enter(disk, commit, &path, &meta, was.len).await?.flatten())
    }

    /// The permit to put a file in its place, behind another fill of the same key that is doing that: a younger response is not
    /// lost because an older one is just being stored.
    async fn commit_in_turn(&self, mut claim: Claim) -> Option<Commit> {
        loop {
            let mut placed = pin!(self.zone.placed.notified());
            placed.as_mut().enable();
            claim = match claim.try_commit() {
                Ok(commit) => return Some(commit),
                Err(NotCommitted::Refused(_)) => return None,
                Err(NotCommitted::Busy(claim)) => claim,
            };
            placed.await;
        }
    }

    /// The permit to change the file of an entry that is still the one it was: another head belongs to another body.
    fn commit_to(&self, claim: Claim, was: &Was<'_>) -> Option<Commit> {
        let key = claim.key();
        let commit = claim.commit().ok()?;
        let found = self.index()?.peek(key)?;
        (found.holds == Holds::File && found.sequence == was.sequence).then_some(commit)
    }

    /// Gives the entry a new file: the head has no room in the one it has, or nginx has written that.
    async fn copy(
        &self,
        disk: &Disk,
        mut meta: Meta,
        was: Was<'_>,
        claim: Claim,
    ) -> Result<Option<Gone>, DiskError> {
        let Ok(header_size) = format::place(&meta) else { return Ok(None) };
        let before = u64::from(meta.header_size);
        (meta.header_size, meta.body_len, meta.writer) = (header_size, Some(was.len), MadeBy::Tailwater);
        let path = self.place.path(claim.key());
        let mut by = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        let temp = disk.create_beside(&mut by, &path, self.place.dir_len()).await?;
        disk.write(&mut by, temp.file(), 0, encode(&meta)).await?;
        let mut temp_file = FillFile::new(temp, self.write_back_size);
        let mut at = 0;
        while at < was.len {
            // At most WRITE_SIZE.
            let room = vec![0; (was.len - at).min(WRITE_SIZE) as usize];
            let piece = disk.read(&mut by, was.file, before + at, room).await?;
            if piece.is_empty() {
                // Somebody has cut it off.
                return Ok(None);
            }
            let len = piece.len() as u64;
            disk.write(&mut by, temp_file.temp.file(), u64::from(header_size) + at, piece).await?;
            at += len;
            temp_file.advance(disk, &mut by, u64::from(header_size) + at, 0).await?;
        }
        temp_file.finish(disk, &mut by, u64::from(header_size) + at, 0).await?;
        let _placing = PlacingFile(&self.zone.placed);
        let Some(commit) = self.commit_to(claim, &was) else { return Ok(None) };
        disk.name(&mut by, temp_file.temp, &path).await?;
        Ok(self.enter(disk, commit, &path, &meta, was.len).await?.flatten())
    }

    /// The file is in its place: now the index has it, with what made room for it. `None` if it was purged meanwhile; then it
    /// is gone.
    async fn enter(
        &self,
        disk: &Disk,
        commit: Commit,
        path: &CStr,
        meta: &Meta,
        len: u64,
    ) -> Result<Option<Option<Gone>>, DiskError> {
        let size = on_disk(u64::from(meta.header_size) + len);
        let now = super::seconds(tw_rt::clock::unix().secs);
        match commit.store(size, valid_until(meta), now) {
            Ok(pushed_out) => Ok(Some(pushed_out)),
            Err(_purged) => {
                self.zone.removals.fetch_add(1, SeqCst);
                let mut by = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
                match disk.unlink(&mut by, path).await {
                    Err(error) if error.errno() != Some(Errno::NOENT) => Err(error),
                    _ => Ok(None),
                }
            }
        }
    }

    /// Removes a file that no entry leads to, which may have been that of `gone`. Whether there was one.
    pub(super) async fn remove_file(
        &self,
        disk: &Disk,
        by: &mut Account,
        key: Key,
        mut gone: Option<Gone>,
    ) -> Result<bool, DiskError> {
        loop {
            // Before it is gone: who finds it until then looks whether it still is there.
            self.zone.removals.fetch_add(1, SeqCst);
            let was_there = match disk.unlink(by, &self.place.path(key)).await {
                Ok(()) => true,
                Err(error) if error.errno() == Some(Errno::NOENT) => false,
                // It stays, for all that is known, and so does `gone`.
                Err(error) => return Err(error),
            };
            // And behind it: who has found it meanwhile looks, too, unless what comes from that is taken out here.
            self.zone.removals.fetch_add(1, SeqCst);
            if let Some(gone) = gone {
                gone.deleted();
            }
            gone = self.index().and_then(|index| index.unlinked(key));
            if gone.is_none() {
                return Ok(was_there);
            }
        }
    }

    /// Removes what has left the index.
    pub(super) async fn remove(&self, disk: &Disk, gone: Gone) -> Result<(), DiskError> {
        let mut by = Account::new(JobClass::Evict, JobSource::NONE);
        self.remove_file(disk, &mut by, gone.key, Some(gone)).await.map(|_| ())
    }

    /// Adds what was found on the disk when `removals` files had been removed: `file`, if it was opened. One that has gone since
    /// leaves no entry, even if another has its place. What it pushed out is to be removed.
    pub(super) async fn admit(
        &self,
        disk: &Disk,
        index: &Index,
        known: &Known,
        file: Option<&File>,
        removals: u64,
    ) -> Result<Option<Gone>, DiskError> {
        let now = super::seconds(tw_rt::clock::unix().secs);
        let Loaded::Added(pushed_out) = index.load(known, now) else { return Ok(None) };
        if self.zone.removals.load(SeqCst) != removals {
            let mut by = Account::new(JobClass::Scan, JobSource::NONE);
            let is_there = match disk.stat(&mut by, &self.place.path(known.key)).await {
                Ok(now) => file.is_none_or(|file| is_same(&now, file.meta())),
                Err(error) if error.errno() == Some(Errno::NOENT) => false,
                Err(error) => return Err(error),
            };
            if !is_there {
                index.missing(known.key, known.sequence);
            }
        }
        Ok(pushed_out)
    }

    /// Purges the entry with this key: whether there was something. Then no crash brings it back.
    pub(super) async fn purge_key(
        &self,
        held: &Held,
        disk: &Disk,
        key: Key,
        purge: Purge,
    ) -> Result<bool, DiskError> {
        if purge == Purge::Soft {
            held.purges.purge_key(key, purge);
            self.part_with_fill(key);
            return self.save_purges(held, disk).await.map(|()| true);
        }
        let purged = held.index.purge(key);
        let was_coming = self.part_with_fill(key);
        if purged.is_placing {
            // An older file may come after this, and go only after that.
            held.purges.purge_key(key, purge);
            self.save_purges(held, disk).await?;
        }
        let mut by = Account::new(JobClass::Hit, JobSource::NONE);
        let was_known = purged.gone.is_some();
        self.zone.counts.purged.add(u64::from(was_known));
        let was_there = self.remove_file(disk, &mut by, key, purged.gone).await? || was_known || was_coming;
        // A power cut could bring back what is gone, whoever removed it.
        match disk.sync_dir(&mut by, &above(&self.place.path(key))).await {
            // A directory that is not there has nothing in it, and some file systems have nothing to wait for.
            Err(error) if !matches!(error.errno(), Some(Errno::NOENT | Errno::INVAL)) => Err(error),
            _ => Ok(was_there),
        }
    }

    /// Purges all entries whose key begins like this.
    pub(super) async fn purge_prefix(
        &self,
        held: &Held,
        disk: &Disk,
        prefix: &[u8],
        purge: Purge,
    ) -> Result<(), DiskError> {
        held.purges.purge_prefix(prefix, purge);
        self.part_with_fills(|meta| meta.key_text.starts_with(prefix));
        self.save_purges(held, disk).await
    }

    /// Purges all entries with one of these tags.
    pub(super) async fn purge_tags(
        &self,
        held: &Held,
        disk: &Disk,
        tags: &[Vec<u8>],
        purge: Purge,
    ) -> Result<(), DiskError> {
        for tag in tags {
            held.purges.purge_tag(tw_cache::Tag::of(tag), purge);
        }
        self.part_with_fills(|meta| meta.tags.iter().any(|tag| tags.iter().any(|named| **named == *tag)));
        self.save_purges(held, disk).await
    }
}

/// Whether it is one file, of which one is open: no other has its number until it is closed.
pub(super) fn is_same(one: &FileMeta, other: &FileMeta) -> bool {
    (one.dev, one.ino) == (other.dev, other.ino)
}

/// The directory that a file is in.
fn above(path: &CStr) -> CString {
    let path = path.to_bytes();
    let slash = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    CString::new(&path[..slash.max(1)]).unwrap_or_default()
}

/// The head as it is written. That it fits was seen when its size was fixed.
fn encode(meta: &Meta) -> Bytes {
    let mut head = Vec::with_capacity(meta.header_size as usize);
    let encoded = format::encode(meta, &mut head);
    debug_assert!(encoded.is_ok(), "{encoded:?}");
    head.into()
}

/// Up to where a file need not stay in memory, if so many bytes of its body need not: the head is of the same pages.
fn needless(head: u64, len: u64) -> u64 {
    if len == 0 { 0 } else { head.saturating_add(len) }
}

/// Bytes that a file takes of its disk.
pub(super) fn on_disk(size: u64) -> u64 {
    size.next_multiple_of(BLOCK)
}

/// Until when a response is valid, as the index has it.
pub(super) fn valid_until(meta: &Meta) -> u32 {
    super::seconds(meta.lifetime.valid_until)
}
