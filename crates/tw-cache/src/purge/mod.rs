//! Purges: given in one step whatever they concern, seen by all loops at once, never undone by a fill that began before.
//!
//! Every fill takes a number when it begins, and every purge when it is given ([`Sequence`]); a purge concerns what has a
//! smaller number. So nothing is looked for when a purge is given: it is written down here, and who finds an entry asks
//! whether it was purged ([`Purges::verdict`]). A fill that began before a purge has the smaller number whenever it ends.
//!
//! | purge | where it is | how many |
//! |---|---|---|
//! | of one key, hard | nowhere: [`Index::purge`](crate::Index::purge) drops the entry and bars the fills that go on | |
//! | of one key, soft; or hard before its file can be deleted | [`Purges::purge_key`] | `MARKS_MAX` |
//! | of all keys that begin with a text | [`Purges::purge_prefix`] | `PREFIXES_MAX` |
//! | of all entries with a tag | [`Purges::purge_tag`] | `MARKS_MAX` |
//!
//! When there are more, old ones are joined to ones that concern more entries than were asked for, never fewer.
//!
//! **Cost of a hit.** An entry that is younger than the last purge costs one atomic load. Any other takes a lock, one binary
//! search and a look for its key and each of its tags; what was found not purged can be told to the index
//! ([`Index::confirm`](crate::Index::confirm)), and is again as good as young.
//!
//! **Restarts.** The caller writes [`Purges::encode`] into a file of the cache's directory before it says that a purge is done,
//! and reads it before it serves. If the file is damaged or cannot be read, nobody knows what was
//! purged hard, and a hard purge of the prefix `""` purges all that was kept.
//!
//! **Sweep.** A thread that may wait visits what a scan from [`Index::sweep`](crate::Index::sweep) finds with a smaller number
//! than [`Purges::latest`] had before, reads its key's text and its tags from the file, and asks for the verdict: what is
//! gone it removes and deletes; what is kept it confirms; what is stale it leaves, or writes as stale into its file and stores
//! it so. The smallest [`Seen::alive_since`](crate::Seen::alive_since) that is left, of the whole scan, and no more than that
//! `latest`, is what [`Purges::forget`] takes: no older purge concerns anything. A disk whose files have not all been found
//! yet has unknown entries: nothing is forgotten before that. Nor before the files are gone of all that have left the index
//! until the end of the scan ([`Index::remains`](crate::Index::remains)): a server that ends now would find them again.

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
use tw_base::{FatalMutex, Limit};

use crate::Key;
use cut::Cut;
use marks::{MARKS_MAX, Marks};
use prefixes::{PREFIX_SIZE_MAX, PREFIXES_MAX, Prefixes};

pub use cut::Purge;
pub use sequence::Sequence;
pub use wire::{Damaged, PURGES_SIZE_MAX};

pub(crate) const LIMITS: &[Limit] = &[
    Limit::count(
        "PREFIXES_MAX",
        PREFIXES_MAX as u64,
        "Purges of prefixes that a cache remembers",
        "the two that have most in common become one of what they have in common",
    ),
    Limit::bytes(
        "PREFIX_SIZE_MAX",
        PREFIX_SIZE_MAX as u64,
        "A prefix that is purged",
        "its beginning is purged, and so more",
    ),
    Limit::count(
        "MARKS_MAX",
        MARKS_MAX as u64,
        "Purges of tags that a cache remembers, and of single keys",
        "the older half becomes a purge of all tagged entries, or of all, that are older",
    ),
    Limit::bytes(
        "PURGES_SIZE_MAX",
        PURGES_SIZE_MAX as u64,
        "The file with the purges of a cache",
        "a larger one is damaged",
    ),
];

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

/// What a purge can concern: an entry, as its file tells it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The key of this text: of a variant not its own key, but that of the responses it is one of.
    pub key: Key,
    /// The text of the key.
    pub text: &'a [u8],
    /// What it is tagged with.
    pub tags: &'a [Tag],
}

/// Whether an entry was purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No: no purge up to this number concerns it.
    Kept(u64),
    /// It was, and is to be treated so.
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
    /// Purges up to this number may have been forgotten: nothing that is kept is older.
    forgotten: u64,
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

    /// Where the fills of this cache get their numbers.
    pub fn sequence(&self) -> &Arc<Sequence> {
        &self.sequence
    }

    /// Purges all entries whose key begins with `prefix`, and tells the number of the purge. Works through the list of
    /// prefixes, whatever is kept.
    pub fn purge_prefix(&self, prefix: &[u8], purge: Purge) -> u64 {
        self.purge(|lists, sequence| lists.prefixes.add(prefix, Cut::of(purge, sequence)))
    }

    /// Purges all entries with this tag, and tells the number of the purge.
    pub fn purge_tag(&self, tag: Tag, purge: Purge) -> u64 {
        self.purge(|lists, sequence| lists.tags.add(tag.0, Cut::of(purge, sequence)))
    }

    /// Purges the entry with this key and its variants, and tells the number of the purge. For a hard one
    /// [`Index::purge`](crate::Index::purge) does it without being remembered, if its file can be deleted before the purge is
    /// said to be done.
    pub fn purge_key(&self, key: Key, purge: Purge) -> u64 {
        self.purge(|lists, sequence| lists.keys.add(first_half(key.0), Cut::of(purge, sequence)))
    }

    fn purge(&self, add: impl FnOnce(&mut Lists, u64)) -> u64 {
        let mut lists = self.lists.lock();
        // In the lock, so that `latest` only grows.
        let sequence = self.sequence.next();
        add(&mut lists, sequence);
        self.latest.store(sequence, SeqCst);
        sequence
    }

    /// Whether what began at `sequence` (or is known not to be purged up to it) has been purged since. One atomic load, and
    /// a lock only if there were purges since.
    pub fn verdict(&self, sequence: u64, subject: &Subject<'_>) -> Verdict {
        let latest = self.latest();
        if sequence >= latest {
            return Verdict::Kept(sequence);
        }
        let lists = self.lists.lock();
        match lists.of(subject).purges(sequence) {
            // Found in the index before a sweep, which has removed or confirmed it since: nobody remembers which.
            _ if sequence < lists.forgotten => Verdict::Purged(Purge::Hard),
            Some(purge) => Verdict::Purged(purge),
            // What came between the load and the lock was not there for this request, and is there for the next one.
            None => Verdict::Kept(latest),
        }
    }

    /// The number of the last purge, also if it was forgotten: it changes with each, so that the caller knows when to write
    /// them.
    pub fn latest(&self) -> u64 {
        self.latest.load(SeqCst)
    }

    /// Forgets purges that concern only what is older than `oldest`: of all that is kept or may still come, no number is
    /// smaller. Some of them stay longer. A request that found an older entry before the sweep that removed it, and asks for
    /// the verdict only now, is told that it was purged.
    pub fn forget(&self, oldest: u64) {
        let mut lists = self.lists.lock();
        lists.prefixes.forget(oldest);
        lists.tags.forget(oldest);
        lists.keys.forget(oldest);
        lists.forgotten = lists.forgotten.max(oldest);
        self.latest.store(lists.newest().max(lists.forgotten), SeqCst);
    }

    /// How many are remembered: prefixes, tags, keys.
    pub fn counts(&self) -> [usize; 3] {
        let lists = self.lists.lock();
        [lists.prefixes.len(), lists.tags.len(), lists.keys.len()]
    }

    /// What the file of the purges has in it, at most [`PURGES_SIZE_MAX`] bytes. Copies the lists
    /// while it holds the lock, of tags and keys only the younger half.
    pub fn encode(&self) -> Vec<u8> {
        let lists = self.lists.lock().clone();
        // After the copy: it is no smaller than any number in it.
        wire::encode(&lists, self.sequence.last())
    }

    /// The purges that such a file tells, for a process that begins at `now_ms`, in milliseconds of the clock on the wall.
    ///
    /// # Errors
    /// The file is not what was written, or was written by a newer version.
    pub fn decode(file: &[u8], now_ms: u64) -> Result<Self, Damaged> {
        let (lists, last) = wire::decode(file)?;
        Ok(Self::with(Sequence::starting(now_ms, last), lists))
    }
}

impl Lists {
    fn newest(&self) -> u64 {
        self.prefixes.all().and(self.tags.all()).and(self.keys.all()).newest()
    }

    fn of(&self, subject: &Subject<'_>) -> Cut {
        let named = self.prefixes.of(subject.text).and(self.keys.of(first_half(subject.key.0)));
        subject.tags.iter().fold(named, |all, tag| all.and(self.tags.of(tag.0)))
    }
}

fn first_half(digest: [u8; 16]) -> u64 {
    (u128::from_be_bytes(digest) >> 64) as u64
}
