//! The operations on the real file system, one system call or a few each. All of them may wait, except those whose
//! name ends in `_now`.

use crate::meta::{Entry, FileKind, FileMeta, Listing, ListingPart, Space};
use crate::open_options::{Access, Existing, Links, OpenOptions, WriteBack};
use crate::{device, links, mounts, sandbox_denial};
use rustix::fs::{
    Advice, AtFlags, CWD, FileType, Mode, OFlags, RawDir, RenameFlags, ResolveFlags, SeekFrom, Stat,
    StatxFlags, Timespec, Timestamps, fstat, openat, openat2, statat, statx,
};
use rustix::io::{Errno, ReadWriteFlags, preadv2, retry_on_intr};
use std::ffi::{CStr, CString, OsStr};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of directory entries asked for at once, as the C library does.
const DIRECTORY_BUFFER_SIZE: usize = 32 * 1024;

/// Set when the kernel turns out not to know `RESOLVE_CACHED` (before Linux 5.12): every open is then a job.
static LACKS_CACHED: AtomicBool = AtomicBool::new(false);

impl From<&Stat> for FileMeta {
    #[allow(clippy::unnecessary_cast, reason = "the count of links is as wide as the architecture likes")]
    fn from(st: &Stat) -> Self {
        FileMeta {
            dev: st.st_dev,
            ino: st.st_ino,
            size: u64::try_from(st.st_size).unwrap_or(0),
            mtime_sec: st.st_mtime,
            mtime_nsec: st.st_mtime_nsec as u32,
            ctime_sec: st.st_ctime,
            ctime_nsec: st.st_ctime_nsec as u32,
            mode: st.st_mode & 0o7777,
            kind: kind_of(FileType::from_raw_mode(st.st_mode)),
            nlink: st.st_nlink as u32,
            uid: st.st_uid,
            gid: st.st_gid,
            blocks: st.st_blocks as u64,
        }
    }
}

impl From<&rustix::fs::Statx> for FileMeta {
    fn from(st: &rustix::fs::Statx) -> Self {
        FileMeta {
            dev: rustix::fs::makedev(st.stx_dev_major, st.stx_dev_minor),
            ino: st.stx_ino,
            size: st.stx_size,
            mtime_sec: st.stx_mtime.tv_sec,
            mtime_nsec: st.stx_mtime.tv_nsec,
            ctime_sec: st.stx_ctime.tv_sec,
            ctime_nsec: st.stx_ctime.tv_nsec,
            mode: u32::from(st.stx_mode) & 0o7777,
            kind: kind_of(FileType::from_raw_mode(st.stx_mode.into())),
            nlink: st.stx_nlink,
            uid: st.stx_uid,
            gid: st.stx_gid,
            blocks: st.stx_blocks,
        }
    }
}

fn kind_of(file_type: FileType) -> FileKind {
    match file_type {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

/// Flags of every open: no descriptor survives `exec`, no pipe or device makes us wait, no terminal becomes ours.
const BASE: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

pub(crate) fn flags_of(options: &OpenOptions) -> OFlags {
    match options.access {
        Access::Read => BASE | OFlags::RDONLY,
        Access::ReadWrite => BASE | OFlags::RDWR,
        Access::Append => BASE | OFlags::WRONLY | OFlags::APPEND,
        Access::Path => OFlags::CLOEXEC | OFlags::PATH,
    }
}

/// Opens a path whose walk and open end in memory; `None` where it would have to wait.
pub(crate) fn open_now(path: &CStr, options: &OpenOptions) -> Option<Result<(OwnedFd, FileMeta), Errno>> {
    // Opening for writing waits while the file system is frozen.
    let is_reading = matches!(options.access, Access::Read | Access::Path);
    if !is_reading || LACKS_CACHED.load(Relaxed) || mounts::may_wait(path.to_bytes()) {
        return None;
    }
    let flags = flags_of(options);
    let opened = match options.links {
        Links::Follow => openat2_now(path, flags),
        Links::Refuse { from } | Links::SameOwner { from } => links::open_now(path, from, flags),
    };
    match opened {
        Err(Errno::AGAIN | Errno::INTR) => None,
        // A link: whether its owner matches is looked up by a job.
        Err(Errno::LOOP) if matches!(options.links, Links::SameOwner { .. }) => None,
        // The source of the denial is determined by a job, which may read metadata that is not in memory.
        Err(Errno::ACCESS) if sandbox_denial::reading_is_restricted() => None,
        Err(Errno::INVAL | Errno::NOSYS) => {
            LACKS_CACHED.store(true, Relaxed);
            None
        }
        Err(errno) => Some(Err(errno)),
        Ok(fd) => Some(fstat(&fd).map(|st| (fd, FileMeta::from(&st)))),
    }
}

fn openat2_now(path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED)
}

pub(crate) fn open(path: &CStr, options: &OpenOptions) -> Result<(OwnedFd, FileMeta), Errno> {
    let flags = flags_of(options);
    let fd = retry_on_intr(|| match options.links {
        Links::Follow => openat(CWD, path, flags, Mode::empty()),
        Links::Refuse { from } => links::open_refusing(path, from, flags),
        Links::SameOwner { from } => links::open_same_owner(path, from, flags),
    })?;
    let meta = fstat_now(&fd)?;
    Ok((fd, meta))
}

pub(crate) fn create(
    path: &CStr,
    access: Access,
    existing: Existing,
    mode: u32,
) -> Result<(OwnedFd, FileMeta), Errno> {
    let mut flags = BASE | OFlags::CREATE;
    flags |= if access == Access::Append { OFlags::WRONLY | OFlags::APPEND } else { OFlags::RDWR };
    flags |= match existing {
        Existing::Fail => OFlags::EXCL,
        Existing::Keep => OFlags::empty(),
        Existing::Truncate => OFlags::TRUNC,
    };
    let fd = retry_on_intr(|| openat(CWD, path, flags, Mode::from_raw_mode(mode)))?;
    let meta = fstat_now(&fd)?;
    Ok((fd, meta))
}

/// A file without a name in directory `dir`; `EOPNOTSUPP` or `EISDIR` where the file system has none.
pub(crate) fn create_nameless(dir: &CStr, mode: u32) -> Result<(OwnedFd, FileMeta), Errno> {
    let flags = BASE | OFlags::TMPFILE | OFlags::RDWR;
    let fd = retry_on_intr(|| openat(CWD, dir, flags, Mode::from_raw_mode(mode)))?;
    let meta = fstat_now(&fd)?;
    Ok((fd, meta))
}

/// Waits only on file systems that ask another process or machine.
pub(crate) fn fstat_now(fd: &OwnedFd) -> Result<FileMeta, Errno> {
    fstat(fd).map(|st| FileMeta::from(&st))
}

/// Metadata of an open file. The device of a block device is itself, and not the one with its name.
pub(crate) fn fstat_of_device(fd: &OwnedFd) -> Result<FileMeta, Errno> {
    let file_stat = fstat(fd)?;
    let meta = FileMeta::from(&file_stat);
    let is_block = FileType::from_raw_mode(file_stat.st_mode) == FileType::BlockDevice;
    Ok(if is_block { FileMeta { dev: file_stat.st_rdev, ..meta } } else { meta })
}

/// Metadata of a path whose names are all in memory.
pub(crate) fn stat_pinned(path: &CStr) -> Result<FileMeta, Errno> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    statx(CWD, path, flags, StatxFlags::BASIC_STATS).map(|st| FileMeta::from(&st))
}

pub(crate) fn stat(path: &CStr, follow: bool) -> Result<FileMeta, Errno> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    statat(CWD, path, flags).map(|st| FileMeta::from(&st))
}

/// Reads what is in memory; `EAGAIN` if the first byte is not.
pub(crate) fn read_now(fd: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    preadv2(fd, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT)
}

/// Reads from a file system that is memory. Such a file system refuses `RWF_NOWAIT`; `RWF_HIPRI` means nothing to it, and
/// tells the loop guard that this read cannot wait.
pub(crate) fn read_memory(fd: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    preadv2(fd, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::HIPRI)
}

pub(crate) fn read(fd: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::io::pread(fd, &mut *buf, offset))
}

pub(crate) fn write(fd: &OwnedFd, offset: Option<u64>, data: &[u8]) -> Result<usize, Errno> {
    retry_on_intr(|| match offset {
        Some(offset) => rustix::io::pwrite(fd, data, offset),
        None => rustix::io::write(fd, data),
    })
}

pub(crate) fn write_parts(fd: &OwnedFd, offset: u64, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::io::pwritev(fd, parts, offset))
}

pub(crate) fn list(path: &CStr, max: usize, links_from: Option<u32>) -> Result<Listing, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = retry_on_intr(|| match links_from {
        None => openat(CWD, path, flags, Mode::empty()),
        Some(from) => links::open_refusing(path, from, flags),
    })?;
    let mut buffer = vec![MaybeUninit::uninit(); DIRECTORY_BUFFER_SIZE];
    let mut names = RawDir::new(&dir, &mut buffer);
    let mut listing = Listing::default();
    while let Some(entry) = names.next() {
        device::step();
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if listing.entries.len() == max {
            listing.truncated = true;
            break;
        }
        let follows = if links_from.is_none() { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        match entry_of(&dir, name, follows) {
            Ok(found_entry) => listing.entries.extend(found_entry),
            Err(errno @ Errno::ACCESS) => listing.hidden_by = Some(errno),
            Err(errno) => return Err(errno),
        }
    }
    Ok(listing)
}

/// One buffer of entries behind the place `from`, with the metadata of links themselves.
pub(crate) fn list_part(dir: &OwnedFd, from: u64) -> Result<ListingPart, Errno> {
    rustix::fs::seek(dir, SeekFrom::Start(from))?;
    let mut buffer = vec![MaybeUninit::uninit(); DIRECTORY_BUFFER_SIZE];
    let mut names = RawDir::new(dir, &mut buffer);
    let mut part = ListingPart::default();
    while let Some(entry) = names.next() {
        device::step();
        let entry = entry?;
        part.next = Some(entry.next_entry_cookie());
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            match entry_of(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found_entry) => part.entries.extend(found_entry),
                Err(errno @ Errno::ACCESS) => part.hidden_by = Some(errno),
                Err(errno) => return Err(errno),
            }
        }
        if names.is_buffer_empty() {
            break;
        }
    }
    Ok(part)
}

/// An entry with its metadata; `None` if it was removed meanwhile. A link that leads nowhere is described as itself.
fn entry_of(dir: &OwnedFd, name: &CStr, follows: AtFlags) -> Result<Option<Entry>, Errno> {
    let meta = match statat(dir, name, follows) {
        Err(Errno::NOENT | Errno::LOOP) => statat(dir, name, AtFlags::SYMLINK_NOFOLLOW),
        other => other,
    };
    match meta {
        Ok(st) => Ok(Some(Entry { name: name.to_owned(), meta: FileMeta::from(&st) })),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

pub(crate) fn mkdir(path: &CStr, mode: u32) -> Result<(), Errno> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(mode))
}

pub(crate) fn rename(from: &CStr, to: &CStr) -> Result<(), Errno> {
    rustix::fs::rename(from, to)
}

/// Renames to a name that nothing has: in one step, where the file system can.
pub(crate) fn rename_new(from: &CStr, to: &CStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => match statat(CWD, to, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => rename(from, to),
            Err(errno) => Err(errno),
        },
        renamed => renamed,
    }
}

pub(crate) fn link(from: &CStr, to: &CStr) -> Result<(), Errno> {
    rustix::fs::link(from, to)
}

pub(crate) fn unlink(path: &CStr) -> Result<(), Errno> {
    rustix::fs::unlink(path)
}

pub(crate) fn rmdir(path: &CStr) -> Result<(), Errno> {
    rustix::fs::rmdir(path)
}

pub(crate) fn unlink_below(path: &CStr, from: u32) -> Result<(), Errno> {
    links::remove_below(path, from, AtFlags::empty())
}

pub(crate) fn rmdir_below(path: &CStr, from: u32) -> Result<(), Errno> {
    links::remove_below(path, from, AtFlags::REMOVEDIR)
}

pub(crate) fn fsync(fd: &OwnedFd, data_only: bool) -> Result<(), Errno> {
    retry_on_intr(|| if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) })
}

pub(crate) fn write_back(fd: &OwnedFd, options: &WriteBack) -> Result<(), Errno> {
    use tw_sys::file::{self, WriteBack as What};
    let write_back = |range, what| {
        retry_on_intr(|| {
            file::write_back(fd, range, what)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })
    };
    let done =
        write_back(&options.begin, What::Begin).and_then(|()| write_back(&options.finish, What::Finish));
    match done {
        Ok(()) => {}
        // Some kernels and file systems do not support this, and write back when they like.
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    if let Some(len) = NonZeroU64::new(options.needless_to) {
        // The range begins at 0: pages of one folio leave together, when all of them are unneeded. A file system may
        // refuse.
        let _ = rustix::fs::fadvise(fd, 0, Some(len), Advice::DontNeed);
    }
    Ok(())
}

pub(crate) fn sync_dir(path: &CStr) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = retry_on_intr(|| openat(CWD, path, flags, Mode::empty()))?;
    retry_on_intr(|| rustix::fs::fsync(&dir))
}

pub(crate) fn set_mtime(fd: &OwnedFd, sec: i64, nsec: u32) -> Result<(), Errno> {
    let time = Timespec { tv_sec: sec, tv_nsec: nsec.into() };
    rustix::fs::futimens(fd, &Timestamps { last_access: time, last_modification: time })
}

pub(crate) fn set_mode(fd: &OwnedFd, mode: u32) -> Result<(), Errno> {
    rustix::fs::fchmod(fd, Mode::from_raw_mode(mode))
}

pub(crate) fn truncate(fd: &OwnedFd, size: u64) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::ftruncate(fd, size))
}

pub(crate) fn space(path: &CStr) -> Result<Space, Errno> {
    let fs = rustix::fs::statvfs(path)?;
    let unit = if fs.f_frsize == 0 { fs.f_bsize } else { fs.f_frsize };
    Ok(Space {
        total: fs.f_blocks.saturating_mul(unit),
        free: fs.f_bfree.saturating_mul(unit),
        available: fs.f_bavail.saturating_mul(unit),
        block_size: fs.f_bsize,
    })
}

pub(crate) fn readlink(path: &CStr) -> Result<CString, Errno> {
    rustix::fs::readlink(path, Vec::new())
}

pub(crate) fn realpath(path: &CStr) -> Result<CString, Errno> {
    let resolved = std::fs::canonicalize(OsStr::from_bytes(path.to_bytes()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    CString::new(resolved.into_os_string().as_bytes()).map_err(|_| Errno::INVAL)
}

pub(crate) fn sendfile(
    socket: BorrowedFd<'_>,
    fd: BorrowedFd<'_>,
    offset: u64,
    len: usize,
) -> Result<usize, Errno> {
    let mut position = offset;
    retry_on_intr(|| rustix::fs::sendfile(socket, fd, Some(&mut position), len))
}

pub(crate) fn advise_will_need(fd: &OwnedFd, offset: u64, len: u64) {
    // Advice: a file system that does not take it reads as it does without.
    let _ = rustix::fs::fadvise(fd, offset, NonZeroU64::new(len), Advice::WillNeed);
}

/// Looks at a path that is in memory; `None` where it would have to wait.
pub(crate) fn probe_now(path: &CStr) -> Option<Result<FileMeta, Errno>> {
    open_now(path, &OpenOptions::PATH).map(|opened| opened.map(|(_, meta)| meta))
}
