//! Purges: applied in one step whatever they concern, seen by all loops at once, never undone by a fill that began
//! before.
//!
//! Every fill and every purge gets a number when it begins ([`Sequence`]); a purge concerns entries with a smaller
//! number. So a purge does not search for entries: it is recorded here, and each lookup of an entry checks it
//! ([`Purges::verdict`]). A fill that began before a purge has the smaller number, whenever it ends.
//!
//! | purge | where it is | how many |
//! |---|---|---|
//! | of one key, hard | nowhere: [`Index::purge`](crate::Index::purge) drops the entry and bars the fills that go on | |
//! | of one key, soft; or hard before its file can be deleted | [`Purges::purge_key`] | `MARKS_MAX` |
//! | of all keys that begin with a text | [`Purges::purge_prefix`] | `PREFIXES_MAX` |
//! | of all entries with a tag | [`Purges::purge_tag`] | `MARKS_MAX` |
//!
//! When there are more, old ones are merged into ones that concern more entries than requested, never fewer.
//!
//! **Cost of a hit.** An entry that is younger than the last purge costs one atomic load. Any other takes a lock, one
//! binary search and a lookup of its key and of each of its tags; an entry that was not purged can be confirmed in
//! the index ([`Index::confirm`](crate::Index::confirm)) and then counts as young again.
//!
//! **Restarts.** The caller writes [`Purges::encode`] into a file of the cache's directory before it acknowledges a
//! purge, and reads it before it serves. If the file is damaged or cannot be read, hard purges are lost; then a hard
//! purge of the prefix `""` has to purge everything.
//!
//! **Sweep.** A thread that may wait visits the entries that a scan from [`Index::sweep`](crate::Index::sweep) finds
//! with a number below the [`Purges::latest`] read before. It reads the key's text and the tags from each file and
//! asks for the verdict. Purged entries are removed and deleted, kept ones confirmed, stale ones left as they are, or
//! written and stored as stale. The smallest remaining
//! [`ScannedEntry::alive_since`](crate::ScannedEntry::alive_since) of the whole scan, and no more than that `latest`,
//! is the argument for [`Purges::forget`]: no older purge concerns anything. While files on the disk have not all
//! been found, entries are unknown and nothing is forgotten; nor before the files are deleted of all entries that
//! left the index until the end of the scan ([`Index::removal_state`](crate::Index::removal_state)), because a
//! restart would find them again.

mod cut;
mod marks;
mod prefixes;
mod sequence;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use md5::{Digest, Md5};
use tw_base::FatalMutex;

use crate::Key;
use cut::PurgeEffect;
use marks::{MARKS_MAX, Marks};
use prefixes::{PREFIX_SIZE_MAX, PREFIXES_MAX, Prefixes};

pub use cut::Purge;
pub use sequence::Sequence;
pub use wire::{PURGES_SIZE_MAX, PurgeFileError, PurgeFileFacts};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Purges of prefixes that a cache remembers.
    constant count PREFIXES_MAX, "the two that have most in common become one of what they have in common";
    /// A prefix that is purged.
    constant bytes PREFIX_SIZE_MAX, "its beginning is purged, and so more";
    /// Purges of tags that a cache remembers, and of single keys.
    constant count MARKS_MAX, "the older half becomes a purge of all tagged entries, or of all, that are older";
    /// The file with the purges of a cache.
    constant bytes PURGES_SIZE_MAX, "a larger one is damaged";
}

/// A tag that an origin gave a response, as it is kept with it: so that no text is hashed when it is found again.
///
/// Two texts with the same number are purged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// The tag with this text.
    #[must_use]
    pub fn of(text: &[u8]) -> Self {
        Self(first_half(Md5::digest(text).into()))
    }
}

/// Subject of a purge: an entry, as its file describes it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The key of this text: of a variant not its own key, but that of the responses it is one of.
    pub key: Key,
    /// The text of the key.
    pub text: &'a [u8],
    /// Tags of the entry.
    pub tags: &'a [Tag],
}

/// Verdict about an entry: purged or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No: no purge up to this number concerns it.
    Kept(u64),
    /// Purged, hard or soft.
    Purged(Purge),
}

/// The purges of a cache, for all its loops.
#[derive(Debug)]
pub struct Purges {
    sequence: Arc<Sequence>,
    /// Number of the last purge that is remembered, or up to which purges were forgotten; zero before the first one.
    latest: AtomicU64,
    lists: FatalMutex<Lists>,
}

#[derive(Clone, Debug, Default)]
struct Lists {
    prefixes: Prefixes,
    tags: Marks,
    keys: Marks,
    /// Largest number of a purge that may have been forgotten: all entries are younger.
    forgotten: u64,
    /// Largest such number over restarts: entries that were elsewhere meanwhile may be older.
    dropped: u64,
}

impl Purges {
    /// None yet, in a process that begins at `now_ms`, in milliseconds of the clock on the wall.
    #[must_use]
    pub fn new(now_ms: u64) -> Self {
        Self::with(Sequence::starting(now_ms, 0), Lists::default())
    }

    fn with(sequence: Sequence, lists: Lists) -> Self {
        let latest = AtomicU64::new(lists.newest());
        Self { sequence: Arc::new(sequence), latest, lists: FatalMutex::new(lists) }
    }

    /// Source of the sequence numbers for fills of this cache.
    pub fn sequence(&self) -> &Arc<Sequence> {
        &self.sequence
    }

    /// Purges all entries whose key begins with `prefix`, and returns the number of the purge. Cost: a pass over the
    /// list of prefixes, however many entries there are.
    pub fn purge_prefix(&self, prefix: &[u8], purge: Purge) -> u64 {
        self.purge(|lists, sequence| lists.prefixes.add(prefix, PurgeEffect::of(purge, sequence)))
    }

    /// Purges all entries with this tag, and returns the number of the purge.
    pub fn purge_tag(&self, tag: Tag, purge: Purge) -> u64 {
        self.purge(|lists, sequence| lists.tags.add(tag.0, PurgeEffect::of(purge, sequence)))
    }

    /// Purges the entry with this key and its variants, and returns the number of the purge. A hard purge needs no
    /// record if the file can be deleted before the purge is acknowledged: see [`Index::purge`](crate::Index::purge).
    pub fn purge_key(&self, key: Key, purge: Purge) -> u64 {
        self.purge(|lists, sequence| lists.keys.add(first_half(key.0), PurgeEffect::of(purge, sequence)))
    }

    fn purge(&self, add: impl FnOnce(&mut Lists, u64)) -> u64 {
        let mut lists = self.lists.lock();
        // The number is taken under the lock, so that `latest` only grows.
        let sequence = self.sequence.next();
        add(&mut lists, sequence);
        self.latest.store(sequence, SeqCst);
        sequence
    }

    /// Verdict about an entry with this sequence number, or known not to be purged up to it. Costs one atomic load,
    /// and a lock only if there were purges since.
    pub fn verdict(&self, sequence: u64, subject: &Subject<'_>) -> Verdict {
        let latest = self.latest();
        if sequence >= latest {
            return Verdict::Kept(sequence);
        }
        let lists = self.lists.lock();
        match lists.of(subject).purges(sequence) {
            // The entry was found in the index before a sweep, which has removed or confirmed it since; which of the
            // two is not remembered.
            _ if sequence < lists.forgotten => Verdict::Purged(Purge::Hard),
            Some(purge) => Verdict::Purged(purge),
            // `latest` was loaded before the lock, so purges added in between are checked again by the next request.
            None => Verdict::Kept(latest),
        }
    }

    /// Number of the last purge, even a forgotten one: the caller writes the purges when it changes.
    pub fn latest(&self) -> u64 {
        self.latest.load(SeqCst)
    }

    /// Forgets purges that concern only entries older than `oldest`: no entry that is kept or may still arrive has a
    /// smaller number. Some of them stay longer. A request that found an older entry before the sweep that removed
    /// it, and asks for the verdict only now, gets "purged".
    pub fn forget(&self, oldest: u64) {
        let mut lists = self.lists.lock();
        lists.prefixes.forget(oldest);
        lists.tags.forget(oldest);
        lists.keys.forget(oldest);
        lists.forgotten = lists.forgotten.max(oldest);
        lists.dropped = lists.dropped.max(oldest);
        self.latest.store(lists.newest().max(lists.forgotten), SeqCst);
    }

    /// Numbers of remembered purges: prefixes, tags, keys.
    pub fn counts(&self) -> [usize; 3] {
        let lists = self.lists.lock();
        [lists.prefixes.len(), lists.tags.len(), lists.keys.len()]
    }

    /// Contents of the purge file, at most [`PURGES_SIZE_MAX`] bytes. Copies the lists while it holds the lock; of
    /// tags and keys only the younger half.
    pub fn encode(&self) -> Vec<u8> {
        let lists = self.lists.lock().clone();
        // Read after the copy, so that it is no smaller than any number in it.
        wire::encode(&lists, self.sequence.last())
    }

    /// Contents of the purge file of a cache with several directories, each of which has one: it also tells up to which
    /// number purges were forgotten, for directories that were missing meanwhile.
    pub fn encode_shared(&self) -> Vec<u8> {
        let lists = self.lists.lock().clone();
        wire::encode_shared(&lists, self.sequence.last())
    }

    /// Adds the purges of the file of another directory of the same cache. Numbers that are taken from now on are larger
    /// than all in it.
    ///
    /// # Errors
    /// The file is damaged, or was written by a newer version.
    pub fn absorb(&self, file: &[u8]) -> Result<PurgeFileFacts, PurgeFileError> {
        let (other, facts) = wire::decode(file)?;
        let mut lists = self.lists.lock();
        self.sequence.pass(facts.last);
        for (text, effect) in other.prefixes.iter() {
            lists.prefixes.add(text, effect);
        }
        let Lists { tags, keys, dropped, .. } = &mut *lists;
        for (marks, other) in [(tags, &other.tags), (keys, &other.keys)] {
            marks.add_floor(other.floor());
            other.iter().for_each(|(mark, effect)| marks.add(mark, effect));
        }
        *dropped = facts.dropped.max(*dropped);
        self.latest.fetch_max(lists.newest(), SeqCst);
        Ok(facts)
    }

    /// Largest number up to which purges may have been forgotten, by this process or one before.
    pub fn dropped(&self) -> u64 {
        self.lists.lock().dropped
    }

    /// Reads the purges from such a file, for a process that starts at `now_ms`, in milliseconds of the wall clock.
    ///
    /// # Errors
    /// The file is damaged, or was written by a newer version.
    pub fn decode(file: &[u8], now_ms: u64) -> Result<Self, PurgeFileError> {
        let (lists, facts) = wire::decode(file)?;
        Ok(Self::with(Sequence::starting(now_ms, facts.last), lists))
    }
}

impl Lists {
    fn newest(&self) -> u64 {
        self.prefixes.all().and(self.tags.all()).and(self.keys.all()).newest()
    }

    fn of(&self, subject: &Subject<'_>) -> PurgeEffect {
        let named = self.prefixes.of(subject.text).and(self.keys.of(first_half(subject.key.0)));
        subject.tags.iter().fold(named, |all, tag| all.and(self.tags.of(tag.0)))
    }
}

fn first_half(digest: [u8; 16]) -> u64 {
    (u128::from_be_bytes(digest) >> 64) as u64
}
