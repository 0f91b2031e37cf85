//! Snapshot of the records of a cache with `store=log`, as it was found on the disk.

use tw_cache::{RecordSnapshot, SnapshotError};
use tw_disk::{DiskError, File};

/// Open snapshot.
pub(crate) struct OpenRecordSnapshot {
    pub(crate) snapshot: RecordSnapshot,
    pub(crate) file: File,
}

/// Snapshot that was found in the directory of a cache.
pub(crate) enum FoundRecordSnapshot {
    Open(OpenRecordSnapshot),
    Missing,
    Invalid(SnapshotError),
    Unreadable(DiskError),
}
