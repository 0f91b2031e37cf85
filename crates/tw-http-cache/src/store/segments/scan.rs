//! Scan at a start: the records of all segments are added to the index, one segment after another.
//!
//! Rows are read before they are added, and entries leave the index meanwhile; [`ScanMarks`](super::marks::ScanMarks) keeps their records from coming back.

use std::collections::VecDeque;

use tw_cache::segment::SegmentRow;
use tw_cache::{LoadedRecord, Progress, RecordOutcome, ScanCursor};
use tw_disk::{Account, DiskError, JobClass, JobSource};

use super::SegmentStore;
use super::load::SegmentTable;
use crate::store::context::{StoreContext, ZoneIndex};
use crate::store::{AdmissionOutcome, DamagedSegment, DiskEntry, ScanPart, ScanPartKind};
use crate::time::seconds;

/// Progress of a scan.
#[derive(Default)]
pub(crate) struct SegmentScan {
    /// Segments that were not read; `None` before the first.
    remaining: Option<VecDeque<u32>>,
    /// Segment whose records are being added, and the smallest sequence number in it.
    current: Option<SegmentFloor>,
    /// True if something could not be read: entries of a snapshot without records may have some.
    has_failed: bool,
    is_over: bool,
}

struct SegmentFloor {
    number: u32,
    sequence: u64,
}

impl SegmentStore {
    /// Reads the rows of the next segment.
    pub(super) async fn scan_segment(
        &self,
        cx: StoreContext<'_>,
        scan: &mut SegmentScan,
    ) -> Option<Result<ScanPart, DiskError>> {
        let zone_index = cx.zone_index.filter(|_| !scan.is_over)?;
        if let Some(SegmentFloor { number, sequence }) = scan.current.take() {
            zone_index.index.set_segment_floor(number, sequence);
        }
        if scan.remaining.is_none() {
            zone_index.index.begin_load();
            scan.remaining = Some(VecDeque::new());
            if let Err(error) = self.list(cx.disk).await {
                scan.is_over = true;
                return Some(Err(error));
            }
            scan.remaining = Some(self.complete().into());
        }
        let Some(number) = scan.remaining.as_mut().and_then(VecDeque::pop_front) else {
            self.end_scan(zone_index, scan).await;
            scan.is_over = true;
            return Some(Ok(ScanPart { kind: ScanPartKind::EndOfSegments, ..ScanPart::default() }));
        };
        self.marks.begin(number);
        let mut account = Account::new(JobClass::Scan, JobSource::of(cx.place.dir.to_bytes()));
        let SegmentTable { rows, damage } = match self.table(cx.disk, &mut account, number).await {
            Ok(table) => table,
            Err(error) => {
                scan.has_failed = true;
                return Some(Err(error));
            }
        };
        let sequences = rows.iter().map(|row| zone_index.purges.sequence().admit(row.sequence));
        scan.current = Some(SegmentFloor { number, sequence: sequences.min().unwrap_or(0) });
        let damage = damage.map(|why| DamagedSegment { number, why });
        let entries = rows.into_iter().map(|row| DiskEntry::Record(number, row)).collect();
        Some(Ok(ScanPart { entries, damage, kind: ScanPartKind::Segment, ..ScanPart::default() }))
    }

    /// Ends a scan: entries of a snapshot whose records no segment has are removed.
    async fn end_scan(&self, zone_index: &ZoneIndex, scan: &SegmentScan) {
        self.marks.end();
        if scan.has_failed {
            return;
        }
        let (mut cursor, mut unseen) = (ScanCursor::default(), Vec::new());
        loop {
            let progress = zone_index.index.unseen(&mut cursor, &mut unseen);
            for entry in unseen.drain(..) {
                if let Some(address) = entry.address {
                    zone_index.index.remove_missing_record(entry.key, address);
                }
            }
            if progress == Progress::Done {
                break;
            }
            tw_rt::yield_now().await;
        }
        let mut cursor = ScanCursor::default();
        while zone_index.index.forget_unseen_records(&mut cursor) == Progress::More {
            tw_rt::yield_now().await;
        }
        zone_index.index.end_load();
    }

    /// Adds the record of a row to the index, unless that has a younger one.
    pub(super) fn admit_record(
        &self,
        zone_index: &ZoneIndex,
        number: u32,
        row: &SegmentRow,
    ) -> AdmissionOutcome {
        // The segment was freed meanwhile: what was used of it is elsewhere.
        if !self.has(number) {
            return AdmissionOutcome::Gone;
        }
        let address = row.address(number);
        let record = LoadedRecord {
            key: row.key,
            sequence: zone_index.purges.sequence().admit(row.sequence),
            address,
            valid_until: row.valid_until,
        };
        let admission = match zone_index.index.load_record(&record, seconds(tw_rt::clock::unix().secs)) {
            RecordOutcome::Added(pushed_out) => AdmissionOutcome::Added(pushed_out),
            RecordOutcome::Known => AdmissionOutcome::Known,
            RecordOutcome::Outdated(removed_entry) => {
                let is_added = removed_entry.address != Some(address);
                AdmissionOutcome::Outdated { removed_entry, is_added }
            }
        };
        if self.marks.has(address) {
            zone_index.index.remove_missing_record(row.key, address);
        }
        admission
    }
}
