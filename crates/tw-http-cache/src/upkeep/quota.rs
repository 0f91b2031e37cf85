//! `cache_quota`: the bytes that the responses with one value of a variable may take of a cache.
//!
//! A response is counted when it was stored, in the table of its zone (`tw_cache::QuotaTable`), which only caches with quotas have.
//! The manager evicts the oldest ones of a value that is above its quota. The table is written with the snapshot of the index; what
//! was stored after that is counted when it is requested again.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use tw_cache::{
    EntryState, QuotaBlock, QuotaCursor, QuotaRow, QuotaTable, SNAPSHOT_BLOCK_SIZE, SnapshotPart,
};
use tw_disk::{Account, DiskError, Errno, JobClass, JobSource, OpenOptions};
use tw_log::{Level, Text};

use super::{CacheMaintenance, StepPacer};
use crate::guard::quota::has_response;
use crate::store::context::ZoneIndex;

/// Bytes that are read or written at once.
const PIECE: usize = 16 * SNAPSHOT_BLOCK_SIZE;
/// Responses that are evicted in one turn of an event loop.
const EVICTED_PER_TURN: u32 = 64;
/// Interval of the comparisons with the index: they find responses that have left it because their files were gone.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

impl CacheMaintenance {
    /// Evicts the oldest responses of values that are above their quotas. Until the index is complete, nobody knows what there is.
    pub(crate) async fn enforce_quotas(&self, zone_index: &ZoneIndex) {
        let quotas = &self.cache.zone.quotas;
        if !quotas.is_on() || !self.cache.zone.is_loaded.load(Acquire) {
            return;
        }
        let mut pace = StepPacer::new(self.cache.place.manager);
        let mut steps = 0;
        loop {
            let Some(key) = quotas.table.lock().next_excess() else { break };
            let entry = zone_index.index.peek(key).filter(|entry| entry.holds == EntryState::File);
            if let Some(removed_entry) =
                entry.and_then(|entry| zone_index.index.remove_if_sequence(key, entry.sequence))
            {
                quotas.evicted.add(1);
                self.remove(removed_entry).await;
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
    pub(crate) async fn check_quotas(&self, zone_index: &ZoneIndex, checked_at: &mut Option<Instant>) {
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
            counted.retain(|counted| !has_response(&zone_index.index, counted.key));
            if !counted.is_empty() {
                let mut table = quotas.table.lock();
                counted.into_iter().for_each(|counted_response| table.forget_counted(counted_response));
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
