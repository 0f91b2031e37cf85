//! Collections that outlive requests: counters of addresses, sessions, users. All threads share them.

use std::collections::HashMap;

use tw_base::FatalMutex;

use crate::operator::number;
use crate::variable::Variable;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Collections of one kind of the firewall (`initcol`).
    const COLLECTIONS_MAX: usize = 65_536, count, "expired ones are removed, and then another one";
    /// Values of one collection of the firewall.
    const VALUES_MAX: usize = 64, count, "further values are not stored";
    /// Bytes of a key or value of such a collection.
    const TEXT_MAX: usize = 1024, bytes, "the rest is not stored";
}

/// Number of parts with locks of their own.
const SHARDS: usize = 16;

/// All collections.
pub struct Store {
    shards: [FatalMutex<Shard>; SHARDS],
    hasher: foldhash::quality::RandomState,
}

type Key = (Variable, Box<[u8]>);
type Shard = HashMap<Key, Vec<Kept>, foldhash::quality::RandomState>;

/// Value with the time at which it is forgotten, in seconds.
struct Kept {
    name: Box<[u8]>,
    value: Vec<u8>,
    expires: u64,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| FatalMutex::new(HashMap::default())),
            hasher: foldhash::quality::RandomState::default(),
        }
    }
}

fn cut(text: &[u8]) -> &[u8] {
    text.get(..TEXT_MAX).unwrap_or(text)
}

impl Store {
    fn with<T>(
        &self,
        variable: Variable,
        key: &[u8],
        change: impl FnOnce(&mut Shard, Key) -> T,
    ) -> Option<T> {
        use std::hash::BuildHasher;
        let key: Key = (variable, cut(key).into());
        let at = self.hasher.hash_one(&key) as usize % SHARDS;
        let shard = self.shards.get(at)?;
        Some(change(&mut shard.lock(), key))
    }

    /// Names and values of a collection.
    pub(crate) fn values(&self, variable: Variable, key: &[u8], now: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        let read = |shard: &mut Shard, key: Key| {
            let values = shard.get(&key).into_iter().flatten();
            let current = values.filter(|kept| kept.expires > now);
            current.map(|kept| (kept.name.to_vec(), kept.value.clone())).collect()
        };
        self.with(variable, key, read).unwrap_or_default()
    }

    /// Stores a value.
    pub(crate) fn set(
        &self,
        variable: Variable,
        key: &[u8],
        name: &[u8],
        value: &[u8],
        now: u64,
        lifetime: u64,
    ) {
        self.change(variable, key, name, now, lifetime, |kept| *kept = cut(value).to_vec());
    }

    /// Adds to a number.
    pub(crate) fn add(
        &self,
        variable: Variable,
        key: &[u8],
        name: &[u8],
        difference: i64,
        now: u64,
        lifetime: u64,
    ) {
        self.change(variable, key, name, now, lifetime, |kept| {
            *kept = number(kept).saturating_add(difference).to_string().into_bytes();
        });
    }

    fn change(
        &self,
        variable: Variable,
        key: &[u8],
        name: &[u8],
        now: u64,
        lifetime: u64,
        change: impl FnOnce(&mut Vec<u8>),
    ) {
        self.with(variable, key, |shard, key| {
            if !shard.contains_key(&key) && shard.len() >= COLLECTIONS_MAX / SHARDS {
                make_room(shard, now);
            }
            let values = shard.entry(key).or_default();
            values.retain(|kept| kept.expires > now);
            if let Some(kept) = values.iter_mut().find(|kept| kept.name.eq_ignore_ascii_case(name)) {
                change(&mut kept.value);
            } else if values.len() < VALUES_MAX {
                let mut value = Vec::new();
                change(&mut value);
                values.push(Kept { name: cut(name).into(), value, expires: now.saturating_add(lifetime) });
            }
        });
    }

    /// Sets the time after which a value is forgotten.
    pub(crate) fn expire(&self, variable: Variable, key: &[u8], name: &[u8], now: u64, seconds: u64) {
        self.with(variable, key, |shard, key| {
            let values = shard.get_mut(&key).into_iter().flatten();
            for kept in values.filter(|kept| kept.name.eq_ignore_ascii_case(name)) {
                kept.expires = now.saturating_add(seconds);
            }
        });
    }

    /// Forgets a value.
    pub(crate) fn remove(&self, variable: Variable, key: &[u8], name: &[u8]) {
        self.with(variable, key, |shard, key| {
            if let Some(values) = shard.get_mut(&key) {
                values.retain(|kept| !kept.name.eq_ignore_ascii_case(name));
            }
        });
    }
}

/// Removes expired collections, or any if there are none.
fn make_room(shard: &mut Shard, now: u64) {
    shard.retain(|_, values| values.iter().any(|kept| kept.expires > now));
    if shard.len() >= COLLECTIONS_MAX / SHARDS
        && let Some(key) = shard.keys().next().cloned()
    {
        shard.remove(&key);
    }
}
