//! Status of files.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp, statx};
use rustix::io::Errno;
use tw_script::{FileKind, FileStatus};

/// Status of an open file, or of what a descriptor stands for.
pub(crate) fn status(file: impl AsFd) -> Result<FileStatus, Errno> {
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let status = statx(file, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_SYNC_AS_STAT, flags)?;
    Ok(of(&status))
}

fn of(status: &Statx) -> FileStatus {
    FileStatus {
        kind: kind(FileType::from_raw_mode(status.stx_mode.into())).unwrap_or(FileKind::File),
        dev: rustix::fs::makedev(status.stx_dev_major, status.stx_dev_minor),
        ino: status.stx_ino,
        mode: status.stx_mode.into(),
        nlink: status.stx_nlink.into(),
        uid: status.stx_uid,
        gid: status.stx_gid,
        rdev: rustix::fs::makedev(status.stx_rdev_major, status.stx_rdev_minor),
        size: status.stx_size,
        blksize: status.stx_blksize.into(),
        blocks: status.stx_blocks,
        atime_ms: milliseconds(&status.stx_atime),
        mtime_ms: milliseconds(&status.stx_mtime),
        ctime_ms: milliseconds(&status.stx_ctime),
        birthtime_ms: milliseconds(&status.stx_btime),
    }
}

fn milliseconds(time: &StatxTimestamp) -> f64 {
    time.tv_sec as f64 * 1000.0 + f64::from(time.tv_nsec) / 1e6
}

/// Kind of a file; `None` if it is not known.
pub(crate) fn kind(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::Unknown => return None,
    })
}
