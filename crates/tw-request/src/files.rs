//! Files as one loop knows them: open descriptors, validators and the contents of small files that are asked for often.
//!
//! Without `open_file_cache` every use of a path is checked against the file system with one look that cannot wait
//! ([`Disk::probe_now`](tw_disk::Disk::probe_now)): a file that was changed, replaced or removed is never answered from
//! here. With `open_file_cache`, an entry is believed for `open_file_cache_valid`.
//!
//! A look is shared by every request that had been read when it began, within one turn of the loop. When a second request
//! of a turn asks for the same file, it lets the other ready connections read theirs first; then one look answers for all
//! of them.

mod block_check;
mod content_cache;
mod file_lock;
mod locked_files;
mod open_file;
mod open_file_cache;
mod read_file;
mod table;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, CString};
use std::rc::Rc;

use tw_disk::{DiskError, Errno, FileMeta, Links, Now, Op, OpenOptions};

use self::open_file_cache::{CachedPath, CheckSharing, FileUser, is_exhausted};
use super::request::Request;
use crate::config::location::Symlinks;
use crate::vars::Template;

pub use self::block_check::{BlockCheck, DamageReport, DamagedBlock};
pub use self::content_cache::HOT_FILE_MAX;
pub use self::locked_files::sending;
pub use self::open_file::OpenFile;
pub use self::open_file_cache::{FileLookup, FileTable};
pub use self::read_file::read_verified;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Files one loop keeps open without open_file_cache; a quarter of its share of descriptors if that is less.
    pub const FILES_MAX: usize = 1024, count, "the one not asked for longest is closed";
    /// Files one loop keeps open.
    parameter "open_file_cache", "max=", "off", "the one not asked for longest is closed";
    /// Time a file stays open that nobody asks for, without open_file_cache.
    directive "open_files_inactive", "it is closed, within two seconds";
    /// Bytes of a file whose contents are kept in memory.
    constant bytes HOT_FILE_MAX, "larger ones are read from the page cache";
    /// Bytes of files that are locked in memory to be sent by the kernel, in the whole process.
    directive "hot_lock_size", "one that was not sent for two seconds is unlocked, or the file is copied to its clients";
    /// Bytes of contents that one loop keeps in memory.
    directive "hot_files_size", "the one not asked for longest is forgotten";
    use block_check::LIMITS;
}

/// Rule of `disable_symlinks` for a path.
pub fn links(r: &Request, path: &CStr) -> Links {
    let trusted = |from: &Option<Template>| match from {
        Some(from) => trusted_part(&from.value(r), path.to_bytes()),
        None => Trusted::Leading(0),
    };
    match &r.plan().core.files.symlinks {
        Symlinks::Follow => Links::Follow,
        Symlinks::Refuse(from) => match trusted(from) {
            Trusted::All => Links::Follow,
            Trusted::Leading(from) => Links::Refuse { from },
        },
        Symlinks::SameOwner(from) => match trusted(from) {
            Trusted::All => Links::Follow,
            Trusted::Leading(from) => Links::SameOwner { from },
        },
    }
}

/// Way in which the location of `r` opens `path`.
fn open_options(r: &Request, path: &CStr) -> OpenOptions {
    let files = &r.plan().core.files;
    OpenOptions {
        links: links(r, path),
        direct_from: files.directio.unwrap_or(u64::MAX),
        direct_align: files.directio_alignment as u32,
        read_ahead: files.read_ahead as u32,
        ..OpenOptions::READ
    }
}

/// In how much of a path links are followed whatever `disable_symlinks` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trusted {
    /// In so many leading bytes, which are whole names.
    Leading(u32),
    /// In all of it.
    All,
}

/// Part of a path that `from=` exempts: none, unless the path begins with these names.
fn trusted_part(from: &[u8], path: &[u8]) -> Trusted {
    match path.strip_prefix(from) {
        Some(_) if from.is_empty() => Trusted::Leading(0),
        Some([]) => Trusted::All,
        Some(rest) if rest.starts_with(b"/") || from.ends_with(b"/") => {
            // Paths are never that long; a longer one would be checked.
            Trusted::Leading(u32::try_from(from.len()).unwrap_or(0))
        }
        _ => Trusted::Leading(0),
    }
}

/// Opens `path` for `r` if that needs no waiting.
pub fn open_now(r: &Request, path: &CStr) -> FileLookup {
    open_in_turn(r, path, &open_options(r, path), CheckSharing::First)
}

fn open_in_turn(r: &Request, path: &CStr, options: &OpenOptions, turn: CheckSharing) -> FileLookup {
    let file = tw_rt::watch::operation("opening a file", || look_up(r, path, options, turn));
    match file {
        // The lookup that may wait closes cached files to free descriptors, and tries again.
        Now::Ready(Err(errno)) if is_exhausted(errno) => Now::Cold,
        file => file,
    }
}

fn look_up(r: &Request, path: &CStr, options: &OpenOptions, turn: CheckSharing) -> FileLookup {
    let Some(disk) = r.disk() else { return Now::Ready(Err(Errno::INVAL)) };
    let mut files = r.client().event_loop.files.borrow_mut();
    if options.links != Links::Follow {
        // The target of a link may change without the file changing, so such paths are resolved each time.
        let mut opened = disk.open_now(path, options);
        if let Now::Ready(Err(errno)) = opened
            && files.made_room(errno)
        {
            opened = disk.open_now(path, options);
        }
        return match opened {
            Now::Ready(opened) => Now::Ready(opened.map(|file| Rc::new(OpenFile::new(file, *options)))),
            Now::Cold => Now::Cold,
        };
    }
    let cache = r.plan().core.files.open_file_cache.as_ref();
    files.open_now(path, &FileUser { disk, options, cache, read: r.context.read_at, turn })
}

/// Opens `path` for `r`, waiting for the disk if need be.
pub async fn open(r: &mut Request, path: &CStr) -> Result<Rc<OpenFile>, DiskError> {
    tw_rt::requeue().await;
    let options = open_options(r, path);
    if let Now::Ready(open_file) = open_in_turn(r, path, &options, CheckSharing::Waited) {
        return open_file.map_err(|errno| Op::Open.failed(errno));
    }
    let Some(disk) = r.disk().cloned() else {
        return Err(Op::Open.failed(Errno::INVAL));
    };
    let cache = r.plan().core.files.open_file_cache;
    r.costs.account.source = tw_disk::JobSource::of(path.to_bytes());
    let event_loop = r.client().event_loop.clone();
    // Noted before the job: a request that is read while the job runs must not get what the job found before.
    let look = event_loop.files.borrow_mut().look();
    match event_loop
        .retry_with_descriptor(async || disk.open_cold(&mut r.costs.account, path, &options).await)
        .await
    {
        Ok(file) if options.links != Links::Follow => Ok(Rc::new(OpenFile::new(file, options))),
        Ok(file) => Ok(event_loop.files.borrow_mut().opened(path, file, &options, cache.as_ref(), look)),
        Err(error) => {
            if let Some(errno) = error.errno()
                && options.links == Links::Follow
            {
                event_loop.files.borrow_mut().failed(path, errno, cache.as_ref(), look);
            }
            Err(error)
        }
    }
}

/// Metadata of a path, if known without waiting.
pub fn stat_now(r: &Request, path: &CStr) -> Now<FileMeta> {
    let Some(disk) = r.disk() else { return Now::Ready(Err(Errno::INVAL)) };
    let options = open_options(r, path);
    if options.links != Links::Follow {
        return match open_in_turn(r, path, &options, CheckSharing::First) {
            Now::Ready(open_file) => Now::Ready(open_file.map(|file| *file.meta())),
            Now::Cold => Now::Cold,
        };
    }
    let cache = r.plan().core.files.open_file_cache.as_ref();
    let user =
        FileUser { disk, options: &options, cache, read: r.context.read_at, turn: CheckSharing::Waited };
    let mut files = r.client().event_loop.files.borrow_mut();
    if let CachedPath::Valid(open_file) = files.valid_entry(path, &user) {
        return Now::Ready(open_file.map(|file| *file.meta()));
    }
    match disk.probe_now(path) {
        Now::Ready(Err(errno)) if files.made_room(errno) => disk.probe_now(path),
        Now::Ready(Err(errno)) if is_exhausted(errno) => Now::Cold,
        meta => meta,
    }
}

/// Metadata of a path. Waits for the disk if needed.
pub async fn stat(r: &mut Request, path: CString) -> Result<FileMeta, DiskError> {
    if open_options(r, &path).links != Links::Follow {
        return open(r, &path).await.map(|file| *file.meta());
    }
    let Some(disk) = r.disk().cloned() else {
        return Err(Op::Stat.failed(Errno::INVAL));
    };
    r.costs.account.source = tw_disk::JobSource::of(path.to_bytes());
    let event_loop = r.client().event_loop.clone();
    event_loop.retry_with_descriptor(async || disk.stat(&mut r.costs.account, &path).await).await
}
