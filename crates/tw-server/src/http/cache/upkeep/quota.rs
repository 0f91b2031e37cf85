//! `cache_quota`: the bytes that the responses with one value of a variable may take of a cache.
//!
//! A response is counted when it was stored, in the table of its zone (`tw_cache::QuotaTable`), which only caches with quotas have.
//! The manager evicts the oldest ones of a value that is above its quota. The table is written with the snapshot of the index; what
//! was stored after that is counted when it is requested again.

use std::ffi::CString;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

use tw_base::{Counter, FatalMutex};
use tw_cache::{
    EntryState, Index, Key, QuotaBlock, QuotaCursor, QuotaOwner, QuotaRow, QuotaTable, RemovedEntry,
};
use tw_cache::{SNAPSHOT_BLOCK_SIZE, SnapshotPart};
use tw_conf::{ConfError, Node, Word, units};
use tw_disk::{Account, DiskError, Errno, JobClass, JobSource, OpenOptions};
use tw_log::{Level, Text};

use super::{CacheMaintenance, StepPacer};
use crate::http::cache::entry::open_entries::OpenEntry;
use crate::http::cache::store::files::on_disk;
use crate::http::cache::zone::{Cache, ZoneIndex};
use crate::http::request::Request;
use crate::vars::Template;

/// Name of the file in the directory of a cache.
pub(crate) const NAME: &str = "quotas";
/// Bytes that are read or written at once.
const PIECE: usize = 16 * SNAPSHOT_BLOCK_SIZE;
/// Parts of a cache that quotas are divided into for its members.
pub(crate) const WHOLE: u32 = 1 << 16;
/// Responses that are evicted in one turn of an event loop.
const EVICTED_PER_TURN: u32 = 64;
/// Interval of the comparisons with the index: they find responses that have left it because their files were gone.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// `cache_quota` as written.
#[derive(Debug, Clone)]
pub struct RawQuota {
    value: Word,
    max: u64,
}

impl RawQuota {
    /// Reads the directive; `None` for `off`.
    ///
    /// # Errors
    /// An invalid size.
    pub fn read(node: &Node) -> Result<Option<Self>, ConfError> {
        let value = node.arg(0)?.clone();
        let size = match &*node.args {
            [_] if &*value.bytes == b"off" => return Ok(None),
            [_, size] => size,
            _ => return Err(node.fail("a size is missing".to_owned())),
        };
        let max = units::offset(&size.bytes).filter(|max| *max > 0);
        let max = max.ok_or_else(|| node.fail(format!("invalid size \"{size}\"")).at(size.span))?;
        Ok(Some(Self { value, max }))
    }

    /// Quota of a location; `template` compiles the value.
    ///
    /// # Errors
    /// Fails as the value does.
    pub(crate) fn resolve(
        &self,
        template: impl FnOnce(&Word) -> Result<Template, ConfError>,
    ) -> Result<Quota, ConfError> {
        Ok(Quota { value: template(&self.value)?, max: self.max })
    }
}

/// `cache_quota` of a location.
pub(crate) struct Quota {
    value: Template,
    max: u64,
}

impl Quota {
    /// Owner of the response to `r`; `None` if the value is empty.
    pub(crate) fn claim(&self, r: &Request) -> Option<QuotaClaim> {
        let value = self.value.value(r);
        (!value.is_empty()).then(|| QuotaClaim { owner: QuotaOwner::of(&value), max: self.max })
    }
}

/// Owner of one response, with its quota in the whole cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuotaClaim {
    owner: QuotaOwner,
    max: u64,
}

/// Quota in which an open entry is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConfirmedQuota {
    owner: QuotaOwner,
    share: u64,
}

/// Quotas of one zone.
#[derive(Default)]
pub(crate) struct Quotas {
    table: FatalMutex<QuotaTable>,
    /// True if a configuration of this process has quotas for the cache.
    is_on: AtomicBool,
    /// True if the file was read.
    is_restored: AtomicBool,
    /// True if the log says that values share a quota.
    is_full_reported: AtomicBool,
    /// Numbers of the table, for metrics, which take no lock of requests.
    owners: AtomicU64,
    above: AtomicU64,
    /// Responses that were evicted.
    pub(crate) evicted: Counter,
}

impl Quotas {
    /// Begins to count.
    pub(crate) fn switch_on(&self) {
        self.is_on.store(true, Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Values that have responses, when the manager last looked.
    pub(crate) fn owners(&self) -> u64 {
        self.owners.load(Relaxed)
    }

    /// Number of values whose responses took more than their quota, when the manager last looked.
    pub(crate) fn above(&self) -> u64 {
        self.above.load(Relaxed)
    }

    /// Counts a response no more that has left the index, unless another one has its key.
    pub(crate) fn forget(&self, index: &Index, key: Key) {
        if self.is_on() && !has_response(index, key) {
            self.table.lock().forget(key);
        }
    }
}

impl Cache {
    /// Part of a quota that counts here: all of it, or the share of a member.
    fn share_of(&self, claim: &QuotaClaim) -> u64 {
        let share = u128::from(claim.max) * u128::from(self.place.share) / u128::from(WHOLE);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Returns true if a response of so many bytes takes more than the quota of its owner.
    pub(crate) fn is_above_quota(&self, claim: &QuotaClaim, size: u64) -> bool {
        on_disk(size) > self.share_of(claim)
    }

    /// Counts a response that was stored, or found without being counted. One that takes more than its quota is removed from the
    /// index instead, and nothing else of its owner; the caller removes its file.
    #[must_use]
    pub(crate) fn count_in_quota(&self, key: Key, claim: &QuotaClaim) -> Option<RemovedEntry> {
        let index = self.index()?;
        // Before the table is locked: the locks of both are never held together.
        let found = index.peek(key).filter(|found| found.holds == EntryState::File)?;
        if self.is_above_quota(claim, found.size) {
            let gone = index.remove_if_sequence(key, found.sequence);
            self.zone.quotas.evicted.add(u64::from(gone.is_some()));
            return gone;
        }
        self.zone.quotas.table.lock().add(key, found.size, claim.owner, self.share_of(claim));
        None
    }

    /// Counts a response that was found, if it is not counted: it may have been stored before a crash. Returns it if it takes more
    /// than its quota, as [`count_in_quota`](Self::count_in_quota) does.
    #[must_use]
    pub(crate) fn confirm_quota(
        &self,
        key: Key,
        entry: &OpenEntry,
        claim: &QuotaClaim,
    ) -> Option<RemovedEntry> {
        let confirmed = ConfirmedQuota { owner: claim.owner, share: self.share_of(claim) };
        if entry.quota.get() == Some(confirmed) {
            return None;
        }
        let is_counted = self.zone.quotas.table.lock().confirm(key, claim.owner, self.share_of(claim));
        if !is_counted && !self.zone.quotas.is_restored.load(Acquire) {
            return None;
        }
        // Once for all hits of a loop: the lock of the table is that of all loops.
        entry.quota.set(Some(confirmed));
        if is_counted { None } else { self.count_in_quota(key, claim) }
    }

    /// Counts a response no more that has left the index, unless another one has its key.
    pub(crate) fn forget_in_quota(&self, key: Key) {
        if let Some(index) = self.index() {
            self.zone.quotas.forget(index, key);
        }
    }

    fn quotas_path(&self) -> CString {
        let dir = self.place.dir.to_bytes();
        CString::new([dir, b"/", NAME.as_bytes()].concat()).unwrap_or_default()
    }
}

fn has_response(index: &Index, key: Key) -> bool {
    index.peek(key).is_some_and(|found| found.holds == EntryState::File)
}

impl CacheMaintenance {
    /// Evicts the oldest responses of values that are above their quotas. Until the index is complete, nobody knows what there is.
    pub(crate) async fn enforce_quotas(&self, held: &ZoneIndex) {
        let quotas = &self.cache.zone.quotas;
        if !quotas.is_on() || !self.cache.zone.is_loaded.load(Acquire) {
            return;
        }
        let mut pace = StepPacer::new(self.cache.place.manager);
        let mut steps = 0;
        loop {
            let Some(key) = quotas.table.lock().next_excess() else { break };
            let found = held.index.peek(key).filter(|found| found.holds == EntryState::File);
            if let Some(gone) = found.and_then(|found| held.index.remove_if_sequence(key, found.sequence)) {
                quotas.evicted.add(1);
                self.remove(gone).await;
                pace.count().await;
            }
            steps += 1;
            if steps % EVICTED_PER_TURN == 0 {
                tw_rt::yield_now().await;
            }
        }
        let counts = quotas.table.lock().counts();
        quotas.owners.store(counts.owners, Relaxed);
        quotas.above.store(counts.above, Relaxed);
        if counts.is_full && !quotas.is_full_reported.swap(true, Relaxed) {
            let name = Text(&self.cache.name);
            let what = "too many values have a quota, further ones share one";
            (self.log)(Level::Warn, format_args!("cache \"{name}\": {what}"));
        }
    }

    /// Reads the file with the owners of responses, once.
    pub(crate) async fn restore_quotas(&self) {
        let quotas = &self.cache.zone.quotas;
        if !quotas.is_on() || quotas.is_restored.load(Acquire) {
            return;
        }
        match self.read_quotas().await {
            Ok(restored) => {
                if let Some(restored) = restored {
                    quotas.table.lock().adopt(restored);
                }
                quotas.is_restored.store(true, Release);
            }
            // It is tried again.
            Err(error) => self.log_failure(&error),
        }
    }

    async fn read_quotas(&self) -> Result<Option<QuotaTable>, DiskError> {
        let path = self.cache.quotas_path();
        let mut account = Account::new(JobClass::Scan, JobSource::of(path.to_bytes()));
        let file = match self.disk.open(&mut account, &path, &OpenOptions::READ).await {
            Ok(file) => file,
            Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (mut rows, mut damaged, mut offset) = (Vec::new(), 0_u64, 0);
        loop {
            let piece = self.read(&mut account, &file, offset, PIECE).await?;
            for block in piece.chunks(SNAPSHOT_BLOCK_SIZE) {
                match QuotaRow::decode(block) {
                    Some(some) => rows.extend(some),
                    None => damaged += 1,
                }
            }
            if piece.len() < PIECE {
                break;
            }
            offset += PIECE as u64;
            tw_rt::yield_now().await;
        }
        if damaged > 0 {
            let name = Text(&self.cache.name);
            let what =
                format_args!("cache \"{name}\": {damaged} blocks of the file of its quotas are damaged");
            (self.log)(Level::Warn, what);
        }
        // Sorting takes long.
        let made = self.disk.pool().run(&mut account, move || QuotaTable::restore(rows)).await;
        made.map(Some)
    }

    /// Counts responses no more that are not in the index, at times. Until that is complete, nobody knows what there is.
    pub(crate) async fn check_quotas(&self, held: &ZoneIndex, checked_at: &mut Option<Instant>) {
        let quotas = &self.cache.zone.quotas;
        let is_complete = self.cache.zone.is_loaded.load(Acquire) && quotas.is_restored.load(Acquire);
        let now = tw_rt::clock::now();
        let is_due = checked_at.is_none_or(|at| now.saturating_duration_since(at) >= CHECK_INTERVAL);
        if !quotas.is_on() || !is_complete || !is_due {
            return;
        }
        *checked_at = Some(now);
        let mut cursor = QuotaCursor::default();
        loop {
            let Some(mut counted) = quotas.table.lock().next_counted(&mut cursor) else { break };
            counted.retain(|counted| !has_response(&held.index, counted.key));
            if !counted.is_empty() {
                let mut table = quotas.table.lock();
                counted.into_iter().for_each(|gone| table.forget_counted(gone));
            }
            tw_rt::yield_now().await;
        }
    }

    /// Writes the owners of responses.
    pub(crate) async fn write_quotas(&self) -> Result<(), DiskError> {
        let quotas = &self.cache.zone.quotas;
        if !quotas.is_on() || !quotas.is_restored.load(Acquire) {
            return Ok(());
        }
        let (mut cursor, mut offset) = (QuotaCursor::default(), 0);
        let step = || {
            let mut bytes = Vec::new();
            while bytes.len() < PIECE {
                let block = quotas.table.lock().encode(&mut cursor);
                match block {
                    QuotaBlock::Block(block) => bytes.extend(block),
                    QuotaBlock::More if bytes.is_empty() => return SnapshotPart::More,
                    QuotaBlock::Done if bytes.is_empty() => return SnapshotPart::Done,
                    QuotaBlock::More | QuotaBlock::Done => break,
                }
            }
            let at = offset;
            offset += bytes.len() as u64;
            SnapshotPart::Write { offset: at, bytes }
        };
        self.write_parts(&self.cache.quotas_path(), step).await
    }
}
