//! Walk over the directory of a cache: it finds the files of entries by their names, and what another process has left.

use std::ffi::{CStr, CString};

use tw_cache::Key;
use tw_disk::{Account, DiskError, Entry, Errno, FileKind, JobClass, JobSource, LIST_MAX};

use super::FileStore;
use crate::store::context::StoreContext;
use crate::store::{DiskEntry, DiskFile, ScanPart, UnfinishedFile};

/// Progress of a walk: directories that were not read, with their depths; `None` before the first.
#[derive(Default)]
pub(crate) struct FileScan(Option<Vec<Directory>>);

/// Directory of a cache.
struct Directory {
    path: CString,
    depth: usize,
}

impl FileStore {
    /// Reads the next directory.
    pub(super) async fn scan_directory(
        &self,
        cx: StoreContext<'_>,
        scan: &mut FileScan,
    ) -> Option<Result<ScanPart, DiskError>> {
        let root = || vec![Directory { path: cx.place.dir.clone(), depth: 0 }];
        let directories = scan.0.get_or_insert_with(root);
        let directory = directories.pop()?;
        let mut account = Account::new(JobClass::Scan, JobSource::of(cx.place.dir.to_bytes()));
        let removals = self.removals();
        let listing = match cx.disk.list(&mut account, &directory.path, LIST_MAX).await {
            Ok(listing) => listing,
            // The directory was removed meanwhile.
            Err(error) if directory.depth > 0 && error.errno() == Some(Errno::NOENT) => {
                return Some(Ok(ScanPart::default()));
            }
            Err(error) => return Some(Err(error)),
        };
        let mut part = ScanPart { is_truncated: listing.truncated, ..ScanPart::default() };
        for entry in listing.entries {
            add(cx, &directory, &entry, removals, &mut part, directories);
        }
        Some(Ok(part))
    }
}

/// Adds what is at one name of a directory to `part`, or to the directories that are read later.
fn add(
    cx: StoreContext<'_>,
    directory: &Directory,
    entry: &Entry,
    removals: u64,
    part: &mut ScanPart,
    directories: &mut Vec<Directory>,
) {
    let depth = directory.depth;
    let path = below(&directory.path, &entry.name);
    let digits = cx.place.levels.get(depth).copied().unwrap_or(0);
    if entry.meta.kind == FileKind::Directory {
        if usize::from(digits) == entry.name.to_bytes().len() && digits > 0 {
            directories.push(Directory { path, depth: depth + 1 });
        }
        return;
    }
    let changed_ms = entry.meta.mtime_sec * 1000 + i64::from(entry.meta.mtime_nsec / 1_000_000);
    let is_old = changed_ms < cx.since_ms;
    match file_kind(&entry.name) {
        _ if entry.meta.kind != FileKind::File => {}
        Some(CacheFileKind::Entry(key)) if digits == 0 && cx.place.path(key) == path => {
            part.entries.push(DiskEntry::File(DiskFile { key, size: entry.meta.size, removals }));
        }
        // Left by a process that ended while writing it.
        Some(CacheFileKind::Unfinished(key)) if digits == 0 && is_old => {
            part.unfinished.push(UnfinishedFile { path, key: Some(key) });
        }
        Some(CacheFileKind::Purges | CacheFileKind::Snapshot) if depth == 0 && is_old => {
            part.unfinished.push(UnfinishedFile { path, key: None });
        }
        _ => {}
    }
}

/// Kind of a file in the directory of a cache, by its name.
#[derive(Debug, PartialEq, Eq)]
enum CacheFileKind {
    Entry(Key),
    /// Temporary file of an entry.
    Unfinished(Key),
    /// Temporary file of the purges.
    Purges,
    /// Temporary file of the snapshot.
    Snapshot,
}

fn file_kind(name: &CStr) -> Option<CacheFileKind> {
    let name = name.to_bytes();
    if let Some(key) = Key::from_hex(name) {
        return Some(CacheFileKind::Entry(key));
    }
    let is_number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if name.strip_prefix(b"purges.").is_some_and(is_number) {
        return Some(CacheFileKind::Purges);
    }
    let snapshot =
        [&b"snapshot."[..], b"pages.", b"quotas."].iter().find_map(|begin| name.strip_prefix(*begin));
    if snapshot.is_some_and(is_number) {
        return Some(CacheFileKind::Snapshot);
    }
    let (key, number) = name.split_at_checked(32)?;
    let number = number.strip_prefix(b".").filter(|number| number.len() == 10 && is_number(number));
    number.and_then(|_| Key::from_hex(key)).map(CacheFileKind::Unfinished)
}

fn below(dir: &CStr, name: &CStr) -> CString {
    CString::new([dir.to_bytes(), b"/", name.to_bytes()].concat()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_file_names_are_recognized() {
        let key = Key::from_hex(b"b7f54b2df7773722d382f4809d65029c");
        assert_eq!(file_kind(c"b7f54b2df7773722d382f4809d65029c"), key.map(CacheFileKind::Entry));
        let unfinished = c"b7f54b2df7773722d382f4809d65029c.0000000001";
        assert_eq!(file_kind(unfinished), key.map(CacheFileKind::Unfinished));
        assert_eq!(file_kind(c"purges.123"), Some(CacheFileKind::Purges));
        assert_eq!(file_kind(c"snapshot.0000000001"), Some(CacheFileKind::Snapshot));
        assert_eq!(file_kind(c"pages.0000000001"), Some(CacheFileKind::Snapshot));
        assert_eq!(file_kind(c"quotas.0000000001"), Some(CacheFileKind::Snapshot));
        for other in [
            c"B7F54B2DF7773722D382F4809D65029C",
            c"b7f54b2df7773722d382f4809d65029",
            c"b7f54b2df7773722d382f4809d65029c.1",
            c"b7f54b2df7773722d382f4809d65029c.000000000x",
            c"index.html",
            c"purges",
            c"purges.",
            c"purges.old",
            c"snapshot",
            c"pages",
            c"snapshot.x",
            c"",
        ] {
            assert_eq!(file_kind(other), None, "{other:?}");
        }
    }
}
