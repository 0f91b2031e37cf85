//! Entries of one dictionary, within its size.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use tw_script::{ByteBuf, DictionaryValue, OperationError};

use super::DictionarySettings;

/// Bytes that an entry takes beside its key and value.
const ENTRY_COST: usize = 96;
tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Entries that one insertion into a full dictionary evicts, so that it takes no longer than a part of a turn.
    const EVICTED_MAX: usize = 1024, count, "the insertion fails with SharedMemoryError";
}

/// Entries of one dictionary.
#[derive(Default)]
pub(super) struct Table {
    pub(super) entries: BTreeMap<Box<[u8]>, Entry>,
    /// Entries by the time at which they expire.
    by_expiry: BTreeSet<(u64, Box<[u8]>)>,
    /// Bytes of all entries.
    pub(super) used: usize,
}

/// A value with its time.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) value: Stored,
    /// Milliseconds since 1970; `None` if it does not expire.
    pub(super) expires_ms: Option<u64>,
}

/// A value.
#[derive(Clone)]
pub(super) enum Stored {
    String(Box<[u8]>),
    Number(f64),
}

impl Stored {
    fn size(&self) -> usize {
        match self {
            Self::String(text) => text.len(),
            Self::Number(_) => 0,
        }
    }

    /// The value for a script.
    pub(super) fn to_value(&self) -> DictionaryValue {
        match self {
            Self::String(text) => DictionaryValue::String(ByteBuf::from(text.to_vec())),
            Self::Number(number) => DictionaryValue::Number(*number),
        }
    }
}

impl Table {
    /// Removes entries whose time is over.
    pub(super) fn expire(&mut self, now_ms: u64) {
        while let Some((at, key)) = self.by_expiry.first()
            && *at <= now_ms
        {
            let key = key.clone();
            self.remove(&key);
        }
    }

    /// Value of a key.
    pub(super) fn get(&self, key: &[u8]) -> DictionaryValue {
        self.entries.get(key).map_or(DictionaryValue::None, |entry| entry.value.to_value())
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let (key, entry) = self.entries.remove_entry(key)?;
        self.used -= ENTRY_COST + key.len() + entry.value.size();
        if let Some(at) = entry.expires_ms {
            self.by_expiry.remove(&(at, key));
        }
        Some(entry)
    }

    /// Copies of the entries behind the key `after`, at most `count`.
    pub(super) fn part(&self, after: Option<&[u8]>, count: usize) -> Vec<(Box<[u8]>, Entry)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.entries.range::<[u8], _>((start, Bound::Unbounded));
        entries.take(count).map(|(key, entry)| (key.clone(), entry.clone())).collect()
    }

    /// Stores an entry in the place of that with the same key.
    pub(super) fn insert(
        &mut self,
        key: &[u8],
        entry: Entry,
        settings: &DictionarySettings,
    ) -> Result<(), OperationError> {
        let size = ENTRY_COST + key.len() + entry.value.size();
        let old = self.entries.get(key).map_or(0, |old| ENTRY_COST + key.len() + old.value.size());
        if settings.evicts {
            for _ in 0..EVICTED_MAX {
                if self.used - old + size <= settings.size {
                    break;
                }
                // The entries that would expire next.
                let Some(next) =
                    self.by_expiry.iter().map(|(_, next)| next).find(|next| ***next != *key).cloned()
                else {
                    break;
                };
                self.remove(&next);
            }
        }
        if self.used - old + size > settings.size {
            return Err(OperationError::SharedMemory(String::new()));
        }
        self.remove(key);
        let key: Box<[u8]> = key.into();
        if let Some(at) = entry.expires_ms {
            self.by_expiry.insert((at, key.clone()));
        }
        self.used += size;
        self.entries.insert(key, entry);
        Ok(())
    }
}
