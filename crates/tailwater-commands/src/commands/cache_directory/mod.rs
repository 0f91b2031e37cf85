//! `tailwater cache stat|check|export|format`: directories and devices of caches, read without a server or beside one.
//!
//! Nothing is locked and nothing is written, except by `check --remove` and `format`. Beside a running server, files appear, change and go at
//! any time: one that is gone is left out, and a head that cannot be read is read again before it counts as damaged, because a
//! validation may be replacing it.

mod body;
mod check;
mod device;
mod export;
mod format;
mod list;
mod names;
mod pace;
mod response_file;
mod segment_file;
mod stat;
mod stored;
mod tar;
mod text;
mod walk;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use tw_cache::Purges;

use self::device::Device;
use crate::cli::CacheCommand;
use crate::output::console::Console;

/// Everything is as it should be.
const GOOD: u8 = 0;
/// Something is damaged.
const DAMAGED: u8 = 1;
/// The work could not be done, or not all of it.
const FAILED: u8 = 2;

/// Name of the file with the purges of a cache, and of those with its index: of files, and of records in segments.
const PURGES: &str = "purges";
const SNAPSHOT: &str = "snapshot";
const RECORDS: &str = "pages";

/// Runs a command. Status 0: all good; 1: something is damaged; 2: the work could not be done.
pub fn run(command: &CacheCommand) -> ExitCode {
    let console = Console::new();
    let status = match command {
        CacheCommand::Stat(options) => stat::run(options, &console),
        CacheCommand::Check(options) => check::run(options, &console),
        CacheCommand::Export(options) => export::run(options, &console),
        CacheCommand::Format(options) => format::run(options, &console),
    };
    ExitCode::from(status)
}

/// Directories with these names.
fn directories(names: &[Vec<u8>]) -> impl Iterator<Item = PathBuf> {
    names.iter().map(|name| PathBuf::from(OsStr::from_bytes(name)))
}

/// Reports a device with the segments of a cache that cannot be read. Returns true then.
fn lacks_device(dir: &Path, console: &Console) -> bool {
    let Some(Err(why)) = Device::of(dir) else { return false };
    console.plain(format_args!("{}: its segments are on {why}", dir.display()));
    true
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Purges that a directory has; `None` if it has none.
///
/// # Errors
/// The text of what is wrong with them.
fn purges(dir: &Path) -> Result<Option<Purges>, String> {
    match std::fs::read(dir.join(PURGES)) {
        Ok(bytes) => {
            let now_ms = u64::try_from(now()).unwrap_or(0).saturating_mul(1000);
            Purges::decode(&bytes, now_ms).map(Some).map_err(|why| why.to_string())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
