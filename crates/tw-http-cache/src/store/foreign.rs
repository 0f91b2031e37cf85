//! Parts of a directory that an earlier configuration with another store has left: purges since then do not concern them.

use tw_disk::{Account, DiskError, Errno, JobClass, JobSource, LIST_MAX};

use super::EntryStore;
use super::context::StoreContext;
use super::segments::{directory, note_path};

impl EntryStore {
    /// Removes what this store does not use: the note of a device, segments in files, and the snapshot of records. Errors go to
    /// `failed`, and what they concern stays. Returns the number of segments; `None` if there was no directory of them.
    pub(crate) async fn remove_foreign(
        &self,
        cx: StoreContext<'_>,
        failed: &dyn Fn(&DiskError),
    ) -> Option<u64> {
        let mut account = Account::new(JobClass::Scan, JobSource::NONE);
        let is_on_device = self.segments.as_ref().map(|segments| segments.is_on_device());
        if is_on_device != Some(true) {
            report(cx.disk.unlink(&mut account, &note_path(cx.place)).await, failed);
        }
        if is_on_device.is_none() {
            report(cx.disk.unlink(&mut account, &cx.place.record_snapshot_path()).await, failed);
        }
        if is_on_device == Some(false) {
            return None;
        }
        let dir = directory(cx.place);
        let listing = match cx.disk.list(&mut account, &dir, LIST_MAX).await {
            Ok(listing) => listing,
            Err(error) => {
                report(Err(error), failed);
                return None;
            }
        };
        let mut removed = 0;
        for entry in listing.entries {
            if tw_cache::segment::number_of(entry.name.to_bytes()).is_none() {
                continue;
            }
            let path = [dir.to_bytes(), b"/", entry.name.to_bytes()].concat();
            let Ok(path) = std::ffi::CString::new(path) else { continue };
            match cx.disk.unlink(&mut account, &path).await {
                Err(error) if error.errno() != Some(Errno::NOENT) => failed(&error),
                _ => removed += 1,
            }
        }
        // Not empty if it has something else.
        let _ = cx.disk.rmdir(&mut account, &dir).await;
        Some(removed)
    }
}

/// Reports an error, unless it says that there is nothing.
fn report(result: Result<(), DiskError>, failed: &dyn Fn(&DiskError)) {
    if let Err(error) = result
        && !error.is_absent()
    {
        failed(&error);
    }
}
