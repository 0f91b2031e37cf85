//! Open segments: reading and writing in them.

use std::sync::Arc;

use tw_cache::segment::{SegmentError, SegmentHeader};
use tw_disk::{Account, Disk, DiskError, File};

use super::lease::{LeasedBytes, SlotLease};

/// Result of opening a segment.
pub(crate) enum OpenedSegment {
    Open(Arc<OpenSegment>),
    /// Freed, or an empty file: its process was killed before it wrote the header.
    Nothing,
    Damaged(SegmentError),
}

impl OpenedSegment {
    /// The segment, if it has records.
    pub(crate) fn segment(self) -> Option<Arc<OpenSegment>> {
        match self {
            Self::Open(segment) => Some(segment),
            Self::Nothing | Self::Damaged(_) => None,
        }
    }
}

/// Open segment.
pub(crate) struct OpenSegment {
    pub(crate) header: SegmentHeader,
    pub(crate) file: File,
    /// False if the file can only be read: the file system is read-only, or the sandbox does not know the directory.
    pub(super) is_writable: bool,
    /// Offset of the segment in the file.
    pub(super) base: u64,
    pub(super) lease: SlotLease,
}

impl OpenSegment {
    /// The segment with a new header.
    pub(super) fn with_header(&self, header: SegmentHeader) -> Self {
        let Self { file, is_writable, base, lease, .. } = self;
        Self { header, file: file.clone(), is_writable: *is_writable, base: *base, lease: lease.clone() }
    }

    /// Reads up to `len` bytes at an offset in the segment.
    pub(super) async fn read(
        &self,
        disk: &Disk,
        account: &mut Account,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, DiskError> {
        read_up_to(disk, account, &self.file, self.base + offset, len).await
    }

    /// Writes at an offset in the segment.
    pub(super) async fn write<B>(
        &self,
        disk: &Disk,
        account: &mut Account,
        offset: u64,
        bytes: B,
    ) -> Result<(), DiskError>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let bytes = LeasedBytes::new(bytes, &self.lease);
        disk.write(account, &self.file, self.base + offset, bytes).await.map(|_| ())
    }
}

/// Reads `len` bytes; fewer at the end of the file.
pub(super) async fn read_up_to(
    disk: &Disk,
    account: &mut Account,
    file: &File,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, DiskError> {
    let mut bytes = disk.read(account, file, offset, vec![0; len]).await?;
    while bytes.len() < len {
        let piece = disk.read(account, file, offset + bytes.len() as u64, vec![0; len - bytes.len()]).await?;
        if piece.is_empty() {
            break;
        }
        bytes.extend(piece);
    }
    Ok(bytes)
}
