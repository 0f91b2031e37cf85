//! Loading of segments at the start: their records are added to the index.

use tw_cache::segment::SegmentRow;
use tw_cache::{LoadedRecord, Progress, RecordOutcome, ScanCursor};
use tw_disk::{Account, JobClass, JobSource};
use tw_log::{Level, Text};

use super::CacheMaintenance;
use crate::http::cache::store::context::ZoneIndex;
use crate::http::cache::store::segments::SegmentTable;
use crate::http::cache::time::seconds;

/// Records that are added to the index in one turn of an event loop.
const RECORDS_PER_TURN: usize = 256;

impl CacheMaintenance {
    /// Adds the records of all segments to the index, and removes those of entries that are in it with younger responses.
    /// Returns false if something could not be read.
    pub(crate) async fn load_segments(&self, held: &ZoneIndex) -> bool {
        let store = &self.cache.zone.store;
        if !store.has_records() {
            return true;
        }
        held.index.begin_load();
        if let Err(error) = store.list_segments(&self.disk).await {
            self.log_failure(&error);
            return false;
        }
        let (mut is_complete, mut records, mut segments) = (true, 0_u64, 0_u64);
        let name = Text(&self.cache.name);
        for number in store.complete_segments() {
            let mut account = Account::new(JobClass::Scan, JobSource::of(self.cache.place.dir.to_bytes()));
            let SegmentTable { rows, damage } =
                match store.segment_table(&self.disk, &mut account, number).await {
                    Ok(found) => found,
                    Err(error) => {
                        is_complete = false;
                        self.log_failure(&error);
                        continue;
                    }
                };
            if let Some(why) = damage {
                self.cache.zone.counts.damaged.add(1);
                let found = rows.len();
                let what = format_args!(
                    "cache \"{name}\": segment {number:08} is damaged ({why}), {found} records are found in it"
                );
                (self.log)(Level::Crit, what);
            }
            segments += 1;
            for some in rows.chunks(RECORDS_PER_TURN) {
                for row in some {
                    // It was freed meanwhile: what was used of it is elsewhere.
                    if !store.has_segment(number) {
                        break;
                    }
                    records += u64::from(self.load_record(held, number, row).await);
                }
                tw_rt::yield_now().await;
            }
            let numbers = rows.iter().map(|row| held.purges.sequence().admit(row.sequence));
            held.index.set_segment_floor(number, numbers.min().unwrap_or(0));
        }
        if is_complete {
            self.remove_lost_records(held).await;
            held.index.end_load();
            self.pack(held).await;
        }
        (self.log)(Level::Notice, format_args!("cache \"{name}\": {records} records in {segments} segments"));
        is_complete
    }

    async fn load_record(&self, held: &ZoneIndex, number: u32, row: &SegmentRow) -> bool {
        let known = LoadedRecord {
            key: row.key,
            sequence: held.purges.sequence().admit(row.sequence),
            address: row.address(number),
            valid_until: row.valid_until,
        };
        let now = seconds(tw_rt::clock::unix().secs);
        match held.index.load_record(&known, now) {
            RecordOutcome::Added(pushed_out) => {
                if let Some(gone) = pushed_out {
                    self.cache.zone.counts.evicted.add(1);
                    self.remove(gone).await;
                }
                true
            }
            RecordOutcome::Known => true,
            RecordOutcome::Outdated(gone) => {
                let is_other = gone.address != Some(known.address);
                self.remove(gone).await;
                is_other
            }
        }
    }

    /// Removes entries of a snapshot whose records no segment has.
    async fn remove_lost_records(&self, held: &ZoneIndex) {
        let (mut cursor, mut unseen) = (ScanCursor::default(), Vec::new());
        loop {
            let progress = held.index.unseen(&mut cursor, &mut unseen);
            for entry in unseen.drain(..) {
                if let Some(address) = entry.address {
                    held.index.remove_missing_record(entry.key, address);
                }
            }
            if progress == Progress::Done {
                break;
            }
            tw_rt::yield_now().await;
        }
        let mut cursor = ScanCursor::default();
        while held.index.forget_unseen_records(&mut cursor) == Progress::More {
            tw_rt::yield_now().await;
        }
    }
}
