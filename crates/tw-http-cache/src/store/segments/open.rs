//! Opening of segments, whose files stay open.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tw_cache::segment::{BLOCK_SIZE, SegmentHeader};
use tw_disk::{Access, Account, Disk, DiskError, Errno, Op, OpenOptions};

use super::lease::SlotLease;
use super::open_segment::{OpenSegment, OpenedSegment, read_up_to};
use super::segment_list::Segment;
use super::{OPEN_SEGMENTS_MAX, SegmentStore};

impl SegmentStore {
    /// Returns a segment with its file; opens it if need be.
    pub(crate) async fn open(
        &self,
        disk: &Disk,
        account: &mut Account,
        number: u32,
    ) -> Result<OpenedSegment, DiskError> {
        {
            let mut segments = self.list.lock();
            segments.uses += 1;
            let now = segments.uses;
            match segments.segments.get_mut(&number) {
                None => return Ok(OpenedSegment::Nothing),
                Some(Segment { open: Some((open, used)), .. }) => {
                    *used = now;
                    return Ok(OpenedSegment::Open(open.clone()));
                }
                Some(_) => {}
            }
        }
        if self.device.is_some() {
            return self.open_in_slot(disk, account, number).await;
        }
        let path = self.path(number);
        let mut is_writable = true;
        let options = match self.is_direct.load(Relaxed) {
            true => OpenOptions::DIRECT,
            false => OpenOptions::READ_WRITE,
        };
        let mut opened = disk.open(account, &path, &options).await;
        if opened.as_ref().is_err_and(|error| error.errno().is_some_and(is_read_only)) {
            is_writable = false;
            opened = disk.open(account, &path, &OpenOptions { access: Access::Read, ..options }).await;
        }
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(OpenedSegment::Nothing),
            Err(error) => return Err(error),
        };
        let first = read_up_to(disk, account, &file, 0, BLOCK_SIZE as usize).await?;
        if first.is_empty() {
            return Ok(OpenedSegment::Nothing);
        }
        let header = match SegmentHeader::decode(&first, number) {
            Ok(header) => header,
            Err(why) => return Ok(OpenedSegment::Damaged(why)),
        };
        let lease = SlotLease::default();
        let open = Arc::new(OpenSegment { header, file, is_writable, base: 0, lease });
        self.keep_open(number, &open);
        Ok(OpenedSegment::Open(open))
    }

    /// Returns a segment that can be written. `None` if there is none, or its header is damaged.
    ///
    /// # Errors
    /// As those of [`open`](Self::open), and `EROFS` of a read-only file system.
    pub(super) async fn open_to_write(
        &self,
        disk: &Disk,
        account: &mut Account,
        number: u32,
    ) -> Result<Option<Arc<OpenSegment>>, DiskError> {
        let Some(mut open) = self.open(disk, account, number).await?.segment() else { return Ok(None) };
        if !open.is_writable {
            // The file system may be writable again.
            self.close(number);
            let Some(again) = self.open(disk, account, number).await?.segment() else { return Ok(None) };
            open = again;
        }
        if open.is_writable { Ok(Some(open)) } else { Err(Op::Write.failed(Errno::ROFS)) }
    }

    fn close(&self, number: u32) {
        if let Some(segment) = self.list.lock().segments.get_mut(&number) {
            segment.open = None;
        }
    }

    pub(super) fn keep_open(&self, number: u32, open: &Arc<OpenSegment>) {
        let mut segments = self.list.lock();
        segments.uses += 1;
        let now = segments.uses;
        if let Some(segment) = segments.segments.get_mut(&number) {
            segment.open = Some((open.clone(), now));
        }
        let opened = segments.segments.values().filter(|segment| segment.open.is_some()).count();
        if opened > OPEN_SEGMENTS_MAX {
            let is_idle = |segment: &&mut Segment| !segment.is_active && segment.open.is_some();
            let used = |segment: &&mut Segment| segment.open.as_ref().map(|(_, used)| *used);
            if let Some(oldest) = segments.segments.values_mut().filter(is_idle).min_by_key(used) {
                oldest.open = None;
            }
        }
    }
}

/// Returns true for errors of a file that may still be read.
fn is_read_only(errno: Errno) -> bool {
    matches!(errno, Errno::ROFS | Errno::ACCESS | Errno::PERM)
}
