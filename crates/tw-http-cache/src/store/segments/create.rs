//! Creation and removal of segments.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tw_cache::SEGMENTS_MAX;
use tw_cache::segment::{BLOCK_SIZE, SegmentHeader};
use tw_disk::{Account, CreateOptions, Disk, DiskError, Errno, JobClass, JobSource};

use super::SegmentStore;
use super::lease::{LeasedBytes, SlotLease};
use super::open_segment::OpenSegment;
use super::segment_list::Segment;

impl SegmentStore {
    /// Creates a segment, to which records are appended from now on.
    pub(super) async fn create(
        &self,
        disk: &Disk,
        account: &mut Account,
        created: u64,
    ) -> Result<Arc<OpenSegment>, DiskError> {
        self.list(disk).await?;
        if self.device.is_some() {
            return self.create_in_slot(disk, account, created).await;
        }
        let options = CreateOptions {
            parents_below: Some(self.dir_len),
            is_direct: self.is_direct.load(Relaxed),
            ..CreateOptions::NEW
        };
        loop {
            let number = {
                let mut segments = self.list.lock();
                let number = segments.next;
                segments.next = (number + 1) % SEGMENTS_MAX;
                if segments.segments.contains_key(&number) {
                    continue;
                }
                number
            };
            let file = match disk.create(account, &self.path(number), &options).await {
                Ok(file) => file,
                // Another process appends to it.
                Err(error) if error.errno() == Some(Errno::EXIST) => continue,
                Err(error) => return Err(error),
            };
            let stamp = self.random.hash_one((created, number));
            let header = SegmentHeader { number, stamp, created, table: None };
            let lease = SlotLease::default();
            self.list.lock().segments.insert(number, Segment::active(BLOCK_SIZE, &lease));
            let open = OpenSegment { header, file, is_writable: true, base: 0, lease };
            return self.begin(disk, account, open).await;
        }
    }

    /// Writes the header of a new segment.
    pub(super) async fn begin(
        &self,
        disk: &Disk,
        account: &mut Account,
        open: OpenSegment,
    ) -> Result<Arc<OpenSegment>, DiskError> {
        let (number, open) = (open.header.number, Arc::new(open));
        if let Err(error) = open.write(disk, account, 0, open.header.encode()).await {
            self.set_inactive(number);
            return Err(error);
        }
        self.keep_open(number, &open);
        Ok(open)
    }

    pub(super) fn set_inactive(&self, number: u32) {
        if let Some(segment) = self.list.lock().segments.get_mut(&number) {
            segment.is_active = false;
        }
    }

    pub(super) fn set_bytes(&self, number: u32, size: u64) {
        if self.device.is_some() {
            // A slot is taken as a whole.
            return;
        }
        if let Some(segment) = self.list.lock().segments.get_mut(&number) {
            segment.size = size;
        }
    }

    /// Removes the file of a segment, or frees its slot.
    pub(super) async fn unlink(&self, disk: &Disk, number: u32) -> Result<(), DiskError> {
        let mut account = Account::new(JobClass::Evict, JobSource::NONE);
        if let Some((place, opened)) = self.device.as_ref().and_then(|place| Some((place, place.opened()?))) {
            let lease = self.list.lock().segments.get(&number).map(|segment| segment.lease.clone());
            let Some(lease) = lease else { return Ok(()) };
            self.check_device_writable()?;
            let slot = opened.superblock.slot(number);
            // Not an array: it would be part of the future of every fill, several times.
            let nothing = LeasedBytes::new(vec![0; BLOCK_SIZE as usize], &lease);
            disk.write(&mut account, &opened.file, opened.superblock.offset(slot), nothing).await?;
            place.rest(slot, lease);
            self.list.lock().segments.remove(&number);
            return Ok(());
        }
        match disk.unlink(&mut account, &self.path(number)).await {
            Err(error) if error.errno() != Some(Errno::NOENT) => Err(error),
            _ => {
                self.list.lock().segments.remove(&number);
                Ok(())
            }
        }
    }
}
