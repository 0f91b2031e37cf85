//! Update of an entry that the upstream server has validated: its head is rewritten, or the entry is copied if the new head has no
//! room in the old place.

use std::fmt;

use tw_cache::format::{self, EncodeError, FormatError, Meta, WrittenBy as MadeBy};
use tw_cache::{Claim, Key, RemovedEntry};
use tw_disk::{Account, DiskError, JobClass, JobSource};
use tw_log::Level;

use super::commit::commit_over;
use super::context::StoreContext;
use super::encoding::prefix;
use super::files::temp_file::WRITE_SIZE;
use super::place::{StoredPlace, ValidatedFile};
use super::{
    BodyPieces, CommitOutcome, CopiedEntry, EntryStore, EntryWriter, HeadWrite, NewEntry, NewHead, Store,
};
use tw_request::local_future::boxed;

impl ValidatedFile<'_> {
    /// The entry as one that is copied, with the checksum of its body.
    fn copied(&self, body_sum: Option<u32>) -> CopiedEntry {
        CopiedEntry { sequence: self.sequence, address: self.address, body_sum }
    }
}

impl EntryStore {
    /// Rewrites the head of an entry that was validated. Returns the entries that were evicted for it, or its own if its body is
    /// damaged: the caller removes what they have on the disk.
    pub(crate) async fn refresh(
        &self,
        cx: StoreContext<'_>,
        mut meta: Box<Meta>,
        was: ValidatedFile<'_>,
        claim: Claim,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> Result<Vec<RemovedEntry>, DiskError> {
        meta.sequence = claim.sequence();
        let mut head = Vec::new();
        match format::encode(&meta, &mut head) {
            Ok(()) => {}
            Err(EncodeError::NoRoom) => return self.copy(cx, meta, was, claim, log).await,
            // No file has room for it: the next request validates again.
            Err(_) => return Ok(Vec::new()),
        }
        let key = claim.key();
        let path = cx.place.path(key);
        let mut account = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        let _guard = self.waiters.begin();
        let may_be_purged = may_be_purged(cx, key);
        let Some(commit) = commit_over(cx, claim, &was.copied(None)) else { return Ok(Vec::new()) };
        if was.address.is_some() {
            commit.set_varies(!meta.vary.is_empty());
        }
        // The purge is forgotten when no entry is older. A power cut must not bring back the head that is.
        let new_head = NewHead { prefix: prefix(key, &meta), head, is_durable: may_be_purged };
        match self.rewrite_head(cx, &mut account, &was, new_head).await {
            Ok(HeadWrite::Done) => {}
            Ok(HeadWrite::Missing) => {
                drop(commit);
                if let Some(index) = cx.index() {
                    index.remove_missing(key, was.sequence);
                }
                return Ok(Vec::new());
            }
            Ok(HeadWrite::Replaced) => return Ok(Vec::new()),
            Err(error) => {
                // Its head is undefined now; loops with the old one in memory must not use that until a restart.
                drop(commit);
                if let Some(removed_entry) =
                    cx.index().and_then(|index| index.remove_if_sequence(key, was.sequence))
                {
                    let _ = self.remove(cx, removed_entry).await;
                }
                return Err(error);
            }
        }
        match self.enter(cx, commit, &was, &meta).await? {
            CommitOutcome::Stored(removed_entries) => Ok(removed_entries),
            CommitOutcome::Refused | CommitOutcome::Damaged => Ok(Vec::new()),
        }
    }

    /// Copies the entry: the head has no room in the old place, or nginx has written that. The body is compared with its checksum, so
    /// that damage does not get a new one.
    async fn copy(
        &self,
        cx: StoreContext<'_>,
        mut meta: Box<Meta>,
        was: ValidatedFile<'_>,
        claim: Claim,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> Result<Vec<RemovedEntry>, DiskError> {
        let Ok(header_size) = format::place(&meta) else { return Ok(Vec::new()) };
        let key = claim.key();
        let copied = Some(was.copied(meta.body_sum));
        (meta.header_size, meta.writer) = (header_size, MadeBy::Tailwater);
        (meta.body_len, meta.body_sum) = (None, Some(0));
        let mut account = Account::new(JobClass::Fill, JobSource::of(&key.0));
        let mut writer = self.begin(cx, NewEntry { meta, claim, copied });
        let is_whole = writer.whole_max().is_some_and(|max| was.len <= max);
        // At most RECORD_MAX if it is whole.
        let read_max = if is_whole { was.len } else { WRITE_SIZE };
        let (mut last, mut at) = (BodyPieces::default(), 0);
        while at < was.len {
            // Not more than `read_max`.
            let room = vec![0; (was.len - at).min(read_max) as usize];
            let piece = cx.disk.read(&mut account, was.file, was.body_offset + at, room).await?;
            if piece.is_empty() {
                // The file was truncated.
                return Ok(Vec::new());
            }
            at += piece.len() as u64;
            let part = BodyPieces { pieces: vec![piece.into()], needless: 0 };
            match is_whole {
                true => last.pieces.extend(part.pieces),
                false => writer.write(part).await?,
            }
        }
        match boxed(|| writer.commit(last)).await? {
            CommitOutcome::Stored(removed_entries) => Ok(removed_entries),
            CommitOutcome::Refused => Ok(Vec::new()),
            CommitOutcome::Damaged => Ok(drop_damaged(cx, key, &was, log).into_iter().collect()),
        }
    }
}

/// Returns true if there were purges since the entry with this key was stored or checked.
fn may_be_purged(cx: StoreContext<'_>, key: Key) -> bool {
    cx.zone_index.is_some_and(|zone_index| {
        zone_index.index.peek(key).is_none_or(|entry| entry.checked < zone_index.purges.latest())
    })
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
    let removed_entry = cx.index().and_then(|index| index.remove_if_sequence(key, was.sequence));
    cx.counts.damaged.add(u64::from(removed_entry.is_some()));
    removed_entry
}
