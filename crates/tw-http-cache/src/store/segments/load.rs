//! Loading of segments at the start: their tables, or their records one by one.

use tw_cache::segment::{BLOCK_SIZE, RECORD_MAX, ScanWindow, SegmentError, SegmentRow, decode_table, scan};
use tw_disk::{Account, Disk, DiskError};

use super::open_segment::{OpenSegment, OpenedSegment};
use super::{SegmentStore, is_body_whole};
use crate::store::EntryRead;
use crate::store::place::RecordPlace;

/// Bytes that a scan reads at once.
const SCAN_READ: usize = 1 << 20;
/// Rows of a segment.
#[derive(Default)]
pub(super) struct SegmentTable {
    pub(super) rows: Vec<SegmentRow>,
    /// Damage that was found; the rows are those of records that are whole.
    pub(super) damage: Option<SegmentError>,
}

impl SegmentStore {
    /// Rows of a segment: from its table, or from a scan of its records if there is no table, or a damaged one.
    pub(super) async fn rows(
        &self,
        disk: &Disk,
        account: &mut Account,
        number: u32,
    ) -> Result<Vec<SegmentRow>, DiskError> {
        Ok(self.table(disk, account, number).await?.rows)
    }

    /// Rows of a segment, and the damage that was found.
    pub(super) async fn table(
        &self,
        disk: &Disk,
        account: &mut Account,
        number: u32,
    ) -> Result<SegmentTable, DiskError> {
        let open = match self.open(disk, account, number).await? {
            OpenedSegment::Open(open) => open,
            OpenedSegment::Nothing => return Ok(SegmentTable::default()),
            OpenedSegment::Damaged(why) => return Ok(SegmentTable { rows: Vec::new(), damage: Some(why) }),
        };
        let mut damage = None;
        if let Some(table) = open.header.table {
            let (offset, len) = (u64::from(table.block) * BLOCK_SIZE, table.len());
            // What a damaged header says is not allocated.
            let is_there = offset + len <= self.size_of(disk, account, &open).await?;
            let bytes = match is_there {
                true => open.read(disk, account, offset, usize::try_from(len).unwrap_or(0)).await?,
                false => Vec::new(),
            };
            match decode_table(&bytes, &table) {
                Ok(rows) => return Ok(SegmentTable { rows, damage: None }),
                Err(why) => damage = Some(why),
            }
        }
        let size = self.size_of(disk, account, &open).await?;
        let mut rows = scan_all(disk, account, &open, size).await?;
        // Bodies, too: a crash may have left a record whose end was not written.
        let mut whole = Vec::with_capacity(rows.len());
        for row in rows.drain(..) {
            let record = RecordPlace { key: Some(row.key), address: row.address(number) };
            let max = usize::try_from(RECORD_MAX).unwrap_or(usize::MAX);
            if let EntryRead::Entry(entry) = self.read(disk, account, &record, max).await?
                && is_body_whole(&entry.meta, &entry.first)
            {
                whole.push(row);
            }
        }
        Ok(SegmentTable { rows: whole, damage })
    }
}

async fn scan_all(
    disk: &Disk,
    account: &mut Account,
    open: &OpenSegment,
    file_size: u64,
) -> Result<Vec<SegmentRow>, DiskError> {
    let (mut rows, mut next) = (Vec::new(), Some(1));
    while let Some(block) = next {
        let offset = u64::from(block) * BLOCK_SIZE;
        if offset >= file_size {
            break;
        }
        let rest = usize::try_from(file_size - offset).unwrap_or(SCAN_READ);
        let bytes = open.read(disk, account, offset, SCAN_READ.min(rest)).await?;
        next = scan(&open.header, &ScanWindow { block, bytes: &bytes, file_size }, &mut rows);
        tw_rt::yield_now().await;
    }
    Ok(rows)
}
