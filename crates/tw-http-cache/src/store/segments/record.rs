//! One record: read for a hit or a check, and marked as removed.

use bytes::Bytes;
use tw_cache::format::{self, BlockSums, BodySums, Meta};
use tw_cache::segment::{PREFIX_SIZE, REMOVED_MARK, RecordPrefix, RecordState, SegmentHeader};
use tw_cache::{Index, Key, SegmentAddress};
use tw_disk::{Account, Disk, DiskError, JobClass, JobSource};

use super::SegmentStore;
use crate::store::place::RecordPlace;
use crate::store::{EntryRead, ReadEntry};

/// Length of the part of a record that is in front of the entry.
const PREFIX: usize = PREFIX_SIZE as usize;

impl SegmentStore {
    /// Reads the record of this key, or of any: its first `max` bytes at once, and its whole head.
    pub(crate) async fn read(
        &self,
        disk: &Disk,
        account: &mut Account,
        &RecordPlace { key, address }: &RecordPlace,
        max: usize,
    ) -> Result<EntryRead, DiskError> {
        let opened = self.open(disk, account, address.segment).await?;
        let Some(open) = opened.segment() else { return Ok(EntryRead::Missing) };
        // The block that follows belongs to another record.
        let want = usize::try_from(address.size()).unwrap_or(usize::MAX).min(max);
        let first = open.read(disk, account, address.offset(), want).await?;
        let prefix = match find(&first, &open.header, address) {
            Some(prefix) if key.is_some_and(|key| key != prefix.key) => {
                return Ok(EntryRead::Another(prefix.key));
            }
            Some(prefix) => prefix,
            None => return Ok(EntryRead::Missing),
        };
        let len = prefix.len;
        let end = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(PREFIX);
        // A power cut may have taken the end of a segment.
        let is_whole = match first.len() >= end {
            true => true,
            false if first.len() < want => false,
            false => {
                let size = self.size_of(disk, account, &open).await?;
                size >= address.offset() + PREFIX_SIZE + len
            }
        };
        if !is_whole {
            return Ok(EntryRead::Missing);
        }
        let mut first = Bytes::from(first);
        first.truncate(end);
        let needed = match format::needed(first.get(PREFIX..).unwrap_or_default()) {
            Ok(needed) => needed,
            Err(why) => return Ok(EntryRead::Damaged(why)),
        };
        let offset = address.offset() + PREFIX_SIZE;
        let mut entry = first.slice(PREFIX..);
        if needed > entry.len() {
            entry = open.read(disk, account, offset, needed).await?.into();
        }
        let offset = open.base + offset;
        Ok(match format::decode(&entry, len) {
            Ok(meta) => {
                let (key, file) = (prefix.key, open.file.clone());
                EntryRead::Entry(Box::new(ReadEntry { key, meta, file, offset, len, first: entry }))
            }
            Err(why) => EntryRead::Damaged(why),
        })
    }

    /// Marks the record of this key as removed, if there is one, or that of another key of which `index` has no other entry: a
    /// start does not find it any more.
    pub(crate) async fn mark_removed(
        &self,
        disk: &Disk,
        index: Option<&Index>,
        key: Key,
        address: SegmentAddress,
    ) -> Result<(), DiskError> {
        let mut account = Account::new(JobClass::Evict, JobSource::NONE);
        let Some(open) = self.open_to_write(disk, &mut account, address.segment).await? else {
            return Ok(());
        };
        // An address of a snapshot may be one of another segment.
        let prefix = open.read(disk, &mut account, address.offset(), PREFIX).await?;
        let mut marked = key;
        if let Some(prefix) = find(&prefix, &open.header, address)
            && (prefix.key == key || index.is_some_and(|index| index.share_record_entry(prefix.key, key)))
        {
            open.write(disk, &mut account, address.offset(), REMOVED_MARK).await?;
            self.marks.note(index, prefix.key, address);
            marked = prefix.key;
        }
        // After the write: what is taken for a synchronization before it may not be part of that.
        self.note_unsynced(address, marked);
        Ok(())
    }
}

/// Returns true if `entry`, which is all of an entry with this head, has the body that was stored.
pub(crate) fn is_body_whole(meta: &Meta, entry: &[u8]) -> bool {
    let (Some(len), Some(sum)) = (meta.body_len, meta.body_sum) else { return false };
    let part = |start: u64, end: u64| entry.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?);
    let head = u64::from(meta.header_size);
    let Some(body) = part(head, head.saturating_add(len)) else { return false };
    let table = meta.table_at().map_or(Some(&[][..]), |at| part(at.start, at.end));
    let mut sums = BodySums::default();
    sums.push(body);
    sums.finish().sum == sum && table.is_some_and(|table| BlockSums::decode(len, sum, table).is_ok())
}

/// Returns the prefix of the record at this address, if there is one that was not removed.
fn find(bytes: &[u8], header: &SegmentHeader, address: SegmentAddress) -> Option<RecordPrefix> {
    let (prefix, state) = RecordPrefix::decode(bytes, header, address.block).ok()?;
    let is_it = prefix.blocks() == address.blocks && state == RecordState::Stored;
    is_it.then_some(prefix)
}
