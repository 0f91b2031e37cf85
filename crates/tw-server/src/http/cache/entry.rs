//! From a key to an entry that is open.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use tw_cache::format::Damage;
use tw_cache::format::Meta;
use tw_cache::policy::{self, Rules, Use, Window};
use tw_cache::{Holds, Key, Known, Loaded, Purge, Subject, Tag, Verdict};
use tw_disk::{Account, Class, Disk, DiskError, Errno, Open, Source};
use tw_log::{Level, Text};

use super::head::{self, NoEntry};
use super::hot::{BODY_MAX, Entry};
use super::writer::{on_disk, valid_until};
use super::zone::{Cache, Held};
use crate::http::files::{self, OpenFile};
use crate::http::request::Request;

/// Bytes read with the open: a usual head and a small body.
const FIRST_READ: usize = BODY_MAX + (4 << 10);

/// What is looked for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) cache: &'a Arc<Cache>,
    /// Its key.
    pub(super) key: Key,
    /// The key of the text; the same unless it is a variant.
    pub(super) main: Key,
    /// The text.
    pub(super) text: &'a [u8],
    /// What began to be fetched before this does not count.
    pub(super) since: u64,
}

/// How an entry stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stood {
    /// Variants of it that are older do not count.
    pub(super) since: u64,
    /// Somebody is fetching it anew.
    pub(super) is_claimed: bool,
    /// It was purged softly: it is stale, whatever it says.
    is_stale: bool,
}

impl Stood {
    /// What the entry may be used for.
    pub(super) fn of(self, meta: &Meta, r: &Request, now: i64, rules: &Rules) -> Use {
        match policy::may_use(&meta.lifetime, &r.head, now, rules) {
            Use::Fresh { age } | Use::Accepted { age } if self.is_stale => {
                Use::Stale { age, while_revalidate: Window::Closed, if_error: Window::Closed }
            }
            found => found,
        }
    }
}

/// The entry that is wanted, if there is one. Waits for the disk.
pub(super) async fn find(r: &mut Request, wanted: &Wanted<'_>) -> Option<(Rc<Entry>, Stood)> {
    let Wanted { cache, key, .. } = *wanted;
    let zone = &cache.zone;
    let Held { index, purges } = zone.held()?;
    let now = super::seconds(tw_rt::clock::unix().secs);
    let found = index.look(key, now).filter(|found| found.holds == Holds::File);
    let entry = match found {
        Some(found) => {
            let hot = r.client().home.app.cached.borrow_mut().get(zone.id, key, found.sequence);
            match hot {
                Some(entry) => entry,
                None => {
                    let entry = open(r, wanted, Some(found.sequence)).await?;
                    keep(r, cache, key, entry)
                }
            }
        }
        // Until everything on the disk is known, the disk is asked.
        None if !zone.is_loaded.load(Relaxed) => {
            let entry = open(r, wanted, None).await?;
            let known = Known {
                key,
                sequence: entry.sequence,
                since: entry.sequence,
                size: on_disk(u64::from(entry.meta.header_size) + entry.len),
                valid_until: valid_until(&entry.meta),
            };
            if let Loaded::Added(pushed_out) = index.load(&known, now) {
                cache.push_out(r, pushed_out);
            }
            keep(r, cache, key, entry)
        }
        None => return None,
    };
    let (checked, since) = found.map_or((0, entry.sequence), |found| (found.checked, found.since));
    let is_claimed = found.is_some_and(|found| found.claims > 0);
    let verdict = if checked.max(entry.written) < wanted.since {
        Verdict::Purged(Purge::Hard)
    } else {
        let subject = Subject { key: wanted.main, text: wanted.text, tags: &entry.tags };
        purges.verdict(checked.max(entry.written), &subject)
    };
    match verdict {
        Verdict::Kept(upto) => {
            if upto > checked {
                index.confirm(key, entry.sequence, upto);
            }
            Some((entry, Stood { since, is_claimed, is_stale: false }))
        }
        Verdict::Purged(Purge::Soft) => Some((entry, Stood { since, is_claimed, is_stale: true })),
        Verdict::Purged(Purge::Hard) => {
            let gone = index.remove_if_sequence(key, entry.sequence);
            zone.counts.purged.add(u64::from(gone.is_some()));
            cache.push_out(r, gone);
            None
        }
    }
}

fn keep(r: &Request, cache: &Cache, key: Key, entry: Entry) -> Rc<Entry> {
    let entry = Rc::new(entry);
    r.client().home.app.cached.borrow_mut().put(&cache.zone, key, entry.clone());
    entry
}

/// Opens an entry, which the index has under this number, if it has it. What goes wrong is told; then there is none.
async fn open(r: &mut Request, wanted: &Wanted<'_>, sequence: Option<u64>) -> Option<Entry> {
    let Wanted { cache, key, .. } = *wanted;
    let held = cache.zone.held()?;
    let disk = r.disk().cloned()?;
    let mut found = read(r, wanted, &disk).await;
    if let Ok(Read::Nothing(NoEntry::Damaged(Damage::Checksum | Damage::StateChecksum))) = found {
        // It may just be written over, because it is still valid.
        found = read(r, wanted, &disk).await;
    }
    match found {
        Ok(Read::Entry(mut entry)) => {
            entry.written = held.purges.sequence().admit(entry.meta.sequence);
            entry.sequence = sequence.unwrap_or(entry.written);
            Some(*entry)
        }
        Ok(Read::Another | Read::Nothing(NoEntry::OfNginx)) => None,
        Ok(Read::Nothing(NoEntry::Damaged(why))) => {
            cache.zone.counts.damaged.add(1);
            let shown = cache.place.path(key);
            r.log(Level::Crit, format_args!("cache file \"{}\" is damaged: {why}", Text(shown.to_bytes())));
            held.index.remove(key);
            let mut by = Account::new(Class::Evict, Source::NONE);
            // Should it stay, it is found again.
            let _ = disk.unlink(&mut by, &shown).await;
            None
        }
        Err(error) if error.errno() == Some(Errno::NOENT) => {
            if let Some(sequence) = sequence {
                held.index.remove_if_sequence(key, sequence);
            }
            None
        }
        Err(error) => {
            cache.disk_failed(&error, "reading a response", |level, message| r.log(level, message));
            None
        }
    }
}

/// What a file is.
enum Read {
    Entry(Box<Entry>),
    /// An entry with the same key and another text.
    Another,
    /// None.
    Nothing(NoEntry),
}

/// Opens the file of an entry and reads its head, and its body if that is small.
async fn read(r: &mut Request, wanted: &Wanted<'_>, disk: &Disk) -> Result<Read, DiskError> {
    let path = wanted.cache.place.path(wanted.key);
    let home = r.client().home.clone();
    let mut by = Account::new(Class::Hit, Source::of(path.to_bytes()));
    let opened =
        files::with_room(&home, async || disk.open_and_read(&mut by, &path, &Open::READ, FIRST_READ).await)
            .await;
    r.costs.account.add(&by);
    let (file, mut first) = opened?;
    let size = file.meta().size;
    let of_nginx = wanted.cache.place.of_nginx;
    let needed = match head::needed(of_nginx, &first) {
        Ok(needed) => needed,
        Err(why) => return Ok(Read::Nothing(why)),
    };
    if needed > first.len() {
        first = disk.read(&mut r.costs.account, &file, 0, vec![0; needed]).await?;
    }
    let first = Bytes::from(first);
    let meta = match head::decode(of_nginx, &first, size) {
        Ok(meta) => meta,
        Err(why) => return Ok(Read::Nothing(why)),
    };
    // Two texts may have one key, though nobody has seen that yet.
    if *meta.key_text != *wanted.text {
        return Ok(Read::Another);
    }
    let len = size.saturating_sub(u64::from(meta.header_size));
    let body = (len <= BODY_MAX as u64 && first.len() as u64 == size)
        .then(|| first.slice(meta.header_size as usize..));
    let file = Rc::new(OpenFile::without_tag(file, Open::READ));
    let tags = meta.tags.iter().map(Tag::of).collect();
    Ok(Read::Entry(Box::new(Entry { meta, file, tags, len, body, sequence: 0, written: 0 })))
}
