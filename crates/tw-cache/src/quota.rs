//! Quotas: the bytes that responses of one owner may take of a cache. An owner is a value of a variable, such as a name of a host.
//!
//! The table is beside the index, and only for caches with quotas. It has the responses of each owner in the order in which they
//! were stored. Of an owner above its quota, [`next_excess`](QuotaTable::next_excess) names the oldest one. A walk over
//! [`next_counted`](QuotaTable::next_counted) finds responses that have left the index unnoticed.
//!
//! ```text
//! block of 4 KiB:  magic u32 · CRC-32 of all behind it · number of rows u32 · 0 u32 · rows
//! row of 36 bytes: owner u64 · key 16 bytes · order u64 · units of 512 bytes u32
//! ```

use std::collections::{HashMap, VecDeque};

use crate::Key;
use crate::snapshot::BLOCK_SIZE;

/// Places in one step of [`QuotaTable::next_counted`].
const CHECKED_PER_STEP: usize = 256;
/// Places in one step of [`QuotaTable::encode`], most of which may be free.
const ENCODED_PER_STEP: usize = 4096;
/// Bytes in which sizes are counted.
const UNIT: u64 = 512;
/// Parts of the map of keys: one for each value of a byte.
const KEY_PARTS: usize = 256;
/// No response.
const NONE: u32 = u32::MAX;

const MAGIC: u32 = u32::from_le_bytes(*b"twq1");
const ROWS_AT: usize = 16;
const ROW_SIZE: usize = 36;
const ROWS_PER_BLOCK: usize = (BLOCK_SIZE - ROWS_AT) / ROW_SIZE;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Values of the variable of `cache_quota` with a quota of their own in one cache, about 100 bytes each.
    const OWNERS_MAX: usize = 65_536, count, "all further values share one quota";
}

/// Number of an owner: a hash of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuotaOwner(u64);

impl QuotaOwner {
    /// All owners beyond [the limit](self) together.
    const OTHERS: Self = Self(0);

    /// Owner with this value.
    #[must_use]
    pub fn of(value: &[u8]) -> Self {
        let Key(hash) = Key::of(value);
        let half = hash.first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
        Self(half.max(1))
    }
}

/// Numbers of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaCounts {
    /// Owners that have responses.
    pub owners: u64,
    /// Responses that are counted.
    pub responses: u64,
    /// Owners whose responses take more than their quota.
    pub above: u64,
    /// True if further owners share a quota.
    pub is_full: bool,
}

/// Responses by owner.
#[derive(Debug)]
pub struct QuotaTable {
    owners: HashMap<QuotaOwner, u32>,
    accounts: Vec<Account>,
    /// Accounts without responses.
    free_accounts: Vec<u32>,
    /// Responses by key, in parts: none takes long to grow.
    keys: Box<[HashMap<Key, u32>]>,
    count: u64,
    items: Vec<Item>,
    free_items: Vec<u32>,
    /// Accounts that may be above their quota.
    above: VecDeque<u32>,
    /// Number of the next response.
    order: u64,
}

impl Default for QuotaTable {
    fn default() -> Self {
        Self {
            owners: HashMap::new(),
            accounts: Vec::new(),
            free_accounts: Vec::new(),
            keys: (0..KEY_PARTS).map(|_| HashMap::new()).collect(),
            count: 0,
            items: Vec::new(),
            free_items: Vec::new(),
            above: VecDeque::new(),
            order: 0,
        }
    }
}

/// Responses of one owner.
#[derive(Debug)]
struct Account {
    owner: QuotaOwner,
    /// Quota in units; `u64::MAX` if it is not known.
    max: u64,
    used: u64,
    count: u64,
    oldest: u32,
    newest: u32,
    is_queued: bool,
}

#[derive(Debug, Clone, Copy)]
struct Item {
    key: Key,
    order: u64,
    units: u32,
    account: u32,
    older: u32,
    newer: u32,
}

/// Response that was counted when a walk over a table came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedResponse {
    /// Key.
    pub key: Key,
    order: u64,
}

/// Step of [`QuotaTable::encode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaBlock {
    /// Block of a file.
    Block(Vec<u8>),
    /// None in this step.
    More,
    /// None any more.
    Done,
}

/// Position of a walk over a table.
#[derive(Debug, Default, Clone, Copy)]
pub struct QuotaCursor(usize);

impl QuotaTable {
    /// Counts a response that was stored, of so many bytes, for an owner with a quota of `max` bytes.
    pub fn add(&mut self, key: Key, size: u64, owner: QuotaOwner, max: u64) {
        self.forget(key);
        let order = self.order;
        let account = self.account(owner);
        if let Some(account) = self.accounts.get_mut(account as usize) {
            account.max = max / UNIT;
        }
        self.insert(key, units(size), order, account);
        self.queue(account);
    }

    /// Sets the quota of an owner, and returns true if a response is counted.
    pub fn confirm(&mut self, key: Key, owner: QuotaOwner, max: u64) -> bool {
        if let Some(number) = self.owners.get(&owner).copied()
            && let Some(account) = self.accounts.get_mut(number as usize)
            && account.max != max / UNIT
        {
            account.max = max / UNIT;
            self.queue(number);
        }
        self.has(key)
    }

    /// Counts a response no more.
    pub fn forget(&mut self, key: Key) {
        let Some(number) = self.part(key).and_then(|part| part.remove(&key)) else { return };
        self.count -= 1;
        let Some(item) = self.items.get(number as usize).copied() else { return };
        match self.items.get_mut(item.older as usize) {
            Some(older) => older.newer = item.newer,
            None => self.change(item.account, |account| account.oldest = item.newer),
        }
        match self.items.get_mut(item.newer as usize) {
            Some(newer) => newer.older = item.older,
            None => self.change(item.account, |account| account.newest = item.older),
        }
        self.change(item.account, |account| {
            account.used = account.used.saturating_sub(item.units.into());
            account.count = account.count.saturating_sub(1);
        });
        if let Some(item) = self.items.get_mut(number as usize) {
            item.account = NONE;
        }
        self.free_items.push(number);
        if let Some(account) = self.accounts.get(item.account as usize)
            && account.count == 0
            && !account.is_queued
        {
            self.owners.remove(&account.owner);
            self.free_accounts.push(item.account);
        }
    }

    /// Key of the oldest response of an owner above its quota; `None` without any. It is not counted any more.
    pub fn next_excess(&mut self) -> Option<Key> {
        loop {
            let number = *self.above.front()?;
            let account = self.accounts.get(number as usize)?;
            let oldest = self.items.get(account.oldest as usize).map(|item| item.key);
            match oldest.filter(|_| account.used > account.max) {
                Some(key) => {
                    self.forget(key);
                    return Some(key);
                }
                None => {
                    self.above.pop_front();
                    self.change(number, |account| account.is_queued = false);
                    if let Some(account) = self.accounts.get(number as usize)
                        && account.count == 0
                    {
                        self.owners.remove(&account.owner);
                        self.free_accounts.push(number);
                    }
                }
            }
        }
    }

    /// Next responses of a walk, at most 256; `None` at the end.
    #[must_use]
    pub fn next_counted(&self, cursor: &mut QuotaCursor) -> Option<Vec<CountedResponse>> {
        let some = self.items.get(cursor.0..).filter(|some| !some.is_empty())?;
        let some = some.iter().take(CHECKED_PER_STEP);
        cursor.0 += some.len();
        let counted = some.filter(|item| item.account != NONE);
        Some(counted.map(|item| CountedResponse { key: item.key, order: item.order }).collect())
    }

    /// Counts a response no more, unless it was stored again since the walk.
    pub fn forget_counted(&mut self, counted: CountedResponse) {
        let CountedResponse { key: key @ Key([first, ..]), order } = counted;
        let number = self.keys.get(usize::from(first)).and_then(|part| part.get(&key));
        let item = number.and_then(|number| self.items.get(*number as usize));
        if item.is_some_and(|item| item.order == order) {
            self.forget(key);
        }
    }

    /// Next block of a file. Looks at 4096 places at most.
    pub fn encode(&self, cursor: &mut QuotaCursor) -> QuotaBlock {
        let mut rows = Vec::with_capacity(BLOCK_SIZE);
        let mut count = 0_u32;
        let end = cursor.0 + ENCODED_PER_STEP;
        while let Some(item) = self.items.get(cursor.0)
            && (count as usize) < ROWS_PER_BLOCK
            && cursor.0 < end
        {
            cursor.0 += 1;
            let Some(account) = self.accounts.get(item.account as usize) else { continue };
            rows.extend_from_slice(&account.owner.0.to_le_bytes());
            rows.extend_from_slice(&item.key.0);
            rows.extend_from_slice(&item.order.to_le_bytes());
            rows.extend_from_slice(&item.units.to_le_bytes());
            count += 1;
        }
        if count == 0 {
            return if cursor.0 < self.items.len() { QuotaBlock::More } else { QuotaBlock::Done };
        }
        let mut block = MAGIC.to_le_bytes().to_vec();
        let mut checked = count.to_le_bytes().to_vec();
        checked.extend_from_slice(&[0; 4]);
        checked.extend(rows);
        checked.resize(BLOCK_SIZE - 8, 0);
        block.extend_from_slice(&crc32fast::hash(&checked).to_le_bytes());
        block.extend(checked);
        QuotaBlock::Block(block)
    }

    /// Table with the responses of a file. Takes long if there are many.
    #[must_use]
    pub fn restore(mut rows: Vec<QuotaRow>) -> Self {
        let mut table = Self::default();
        rows.sort_unstable_by_key(|row| row.order);
        for row in rows {
            let account = table.account(row.owner);
            if !table.has(row.key) {
                table.insert(row.key, row.units, table.order, account);
            }
        }
        table
    }

    /// Puts a restored table in the place of this one, whose responses are younger ones.
    pub fn adopt(&mut self, restored: Self) {
        for (row, max) in std::mem::replace(self, restored).into_rows() {
            self.add(row.key, u64::from(row.units) * UNIT, row.owner, max);
        }
    }

    fn into_rows(self) -> Vec<(QuotaRow, u64)> {
        let row = |item: &Item| {
            let account = self.accounts.get(item.account as usize)?;
            let Item { key, order, units, .. } = *item;
            Some((QuotaRow { owner: account.owner, key, order, units }, account.max.saturating_mul(UNIT)))
        };
        let mut rows: Vec<_> = self.items.iter().filter_map(row).collect();
        rows.sort_unstable_by_key(|(row, _)| row.order);
        rows
    }

    /// Numbers of the table.
    #[must_use]
    pub fn counts(&self) -> QuotaCounts {
        let is_above = |number: &&u32| {
            self.accounts.get(**number as usize).is_some_and(|account| account.used > account.max)
        };
        QuotaCounts {
            owners: self.owners.len() as u64,
            responses: self.count,
            above: self.above.iter().filter(is_above).count() as u64,
            is_full: self.owners.contains_key(&QuotaOwner::OTHERS),
        }
    }

    /// Bytes that the responses of an owner take.
    #[must_use]
    pub fn used(&self, owner: QuotaOwner) -> u64 {
        let account = self.owners.get(&owner).and_then(|number| self.accounts.get(*number as usize));
        account.map_or(0, |account| account.used * UNIT)
    }

    fn part(&mut self, Key([first, ..]): Key) -> Option<&mut HashMap<Key, u32>> {
        self.keys.get_mut(usize::from(first))
    }

    fn has(&self, key: Key) -> bool {
        let Key([first, ..]) = key;
        self.keys.get(usize::from(first)).is_some_and(|part| part.contains_key(&key))
    }

    fn change(&mut self, account: u32, change: impl FnOnce(&mut Account)) {
        if let Some(account) = self.accounts.get_mut(account as usize) {
            change(account);
        }
    }

    /// Number of the account of an owner.
    fn account(&mut self, owner: QuotaOwner) -> u32 {
        let owner = match self.owners.get(&owner) {
            Some(number) => return *number,
            None if self.owners.len() >= OWNERS_MAX => QuotaOwner::OTHERS,
            None => owner,
        };
        if let Some(number) = self.owners.get(&owner) {
            return *number;
        }
        let oldest = NONE;
        let newest = NONE;
        let new = Account { owner, max: u64::MAX, used: 0, count: 0, oldest, newest, is_queued: false };
        let number = match self.free_accounts.pop() {
            Some(number) => {
                self.change(number, |account| *account = new);
                number
            }
            None => {
                self.accounts.push(new);
                // There are at most OWNERS_MAX + 1 accounts, so the cast is exact.
                self.accounts.len() as u32 - 1
            }
        };
        self.owners.insert(owner, number);
        number
    }

    /// Adds a response, which is the newest of its owner.
    fn insert(&mut self, key: Key, units: u32, order: u64, account: u32) {
        let older = self.accounts.get(account as usize).map_or(NONE, |account| account.newest);
        let item = Item { key, order, units, account, older, newer: NONE };
        let number = match self.free_items.pop() {
            Some(number) => {
                if let Some(free) = self.items.get_mut(number as usize) {
                    *free = item;
                }
                number
            }
            None => {
                let Ok(number) = u32::try_from(self.items.len()) else { return };
                self.items.push(item);
                number
            }
        };
        match self.items.get_mut(older as usize) {
            Some(older) => older.newer = number,
            None => self.change(account, |account| account.oldest = number),
        }
        self.change(account, |account| {
            account.newest = number;
            account.used += u64::from(units);
            account.count += 1;
        });
        if let Some(part) = self.part(key) {
            part.insert(key, number);
        }
        self.count += 1;
        self.order = order + 1;
    }

    /// Notes that an account may be above its quota.
    fn queue(&mut self, number: u32) {
        if let Some(account) = self.accounts.get_mut(number as usize)
            && account.used > account.max
            && !account.is_queued
        {
            account.is_queued = true;
            self.above.push_back(number);
        }
    }
}

/// Response in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaRow {
    owner: QuotaOwner,
    key: Key,
    order: u64,
    units: u32,
}

impl QuotaRow {
    /// Reads a block of a file. Returns `None` if it is damaged.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Vec<Self>> {
        let checked = block.strip_prefix(&MAGIC.to_le_bytes())?;
        let (sum, checked) = checked.split_first_chunk()?;
        let (count, _) = checked.split_first_chunk()?;
        let count = u32::from_le_bytes(*count) as usize;
        if crc32fast::hash(checked) != u32::from_le_bytes(*sum) || count > ROWS_PER_BLOCK {
            return None;
        }
        let rows = checked.get(ROWS_AT - 8..)?.chunks_exact(ROW_SIZE).take(count);
        rows.map(|row| {
            let (owner, row) = row.split_first_chunk()?;
            let (key, row) = row.split_first_chunk()?;
            let (order, units) = row.split_first_chunk()?;
            Some(Self {
                owner: QuotaOwner(u64::from_le_bytes(*owner)),
                key: Key(*key),
                order: u64::from_le_bytes(*order),
                units: u32::from_le_bytes(*units.first_chunk()?),
            })
        })
        .collect()
    }
}

fn units(size: u64) -> u32 {
    u32::try_from(size.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
