//! Directories of caches as the commands name and read them, and the status of a command.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tw_cache::Purges;

use super::device::Device;
use crate::output::console::Console;

/// Everything is as it should be.
pub(super) const GOOD: u8 = 0;
/// Something is damaged.
pub(super) const DAMAGED: u8 = 1;
/// The work could not be done, or not all of it.
pub(super) const FAILED: u8 = 2;

/// Name of the file with the purges of a cache, and of those with its index: of files, and of records in segments.
pub(super) const PURGES: &str = "purges";
pub(super) const SNAPSHOT: &str = "snapshot";
pub(super) const RECORDS: &str = "pages";

/// Directories with these names.
pub(super) fn directories(names: &[Vec<u8>]) -> impl Iterator<Item = PathBuf> {
    names.iter().map(|name| PathBuf::from(OsStr::from_bytes(name)))
}

/// Reports a device with the segments of a cache that cannot be read. Returns true then.
pub(super) fn lacks_device(dir: &Path, console: &Console) -> bool {
    let Some(Err(why)) = Device::of(dir) else { return false };
    console.plain(format_args!("{}: its segments are on {why}", dir.display()));
    true
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Purges that a directory has; `None` if it has none.
///
/// # Errors
/// The text of what is wrong with them.
pub(super) fn purges(dir: &Path) -> Result<Option<Purges>, String> {
    match std::fs::read(dir.join(PURGES)) {
        Ok(bytes) => {
            let now_ms = u64::try_from(now()).unwrap_or(0).saturating_mul(1000);
            Purges::decode(&bytes, now_ms).map(Some).map_err(|why| why.to_string())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
