//! Whole trees: a directory with its parents, and a directory with its content.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, mkdirat, openat, statat, unlinkat};
use rustix::io::Errno;

use crate::error::Failure;
use crate::place::{NameInDirectory, Place};
use crate::status::status;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Depth of a tree that a script creates or removes at once.
    const DEPTH_MAX: usize = 64, count, "the function fails with ELOOP";
    /// Files that one `fs.rmdir()` with `recursive` removes.
    const REMOVED_MAX: usize = 10_000, count, "the function fails with EOVERFLOW; the others stay";
}

/// Rights of a new directory.
pub(crate) fn directory_mode(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

/// Creates a directory, and those above it that are missing.
pub(crate) fn create(place: &Place, mode: u32) -> Result<(), Failure> {
    let count = place.name_count();
    if count > DEPTH_MAX {
        return Err(Errno::LOOP.into());
    }
    for depth in 1..=count {
        let part = place.first_names(depth)?;
        let parent = match part.parent() {
            Ok(parent) => parent,
            // A path may go through `.` and `..`.
            Err(failure) if failure.errno == Errno::BUSY => continue,
            Err(failure) => return Err(failure),
        };
        match mkdirat(&parent.directory, &*parent.name, directory_mode(mode)) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let found = status(part.point_at(true)?)?;
                if found.kind != tw_script::FileKind::Directory {
                    let errno = if depth == count { Errno::EXIST } else { Errno::NOTDIR };
                    return Err(errno.into());
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Removes a directory with its content. Links are removed, not followed.
pub(crate) fn remove(name: &NameInDirectory) -> Result<(), Failure> {
    let mut left = REMOVED_MAX;
    remove_below(&name.directory, &name.name, &mut left, DEPTH_MAX)
}

fn remove_below(parent: &OwnedFd, name: &CStr, left: &mut usize, depth: usize) -> Result<(), Failure> {
    let depth = depth.checked_sub(1).ok_or(Errno::LOOP)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(parent, name, flags, Mode::empty())?;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        *left = left.checked_sub(1).ok_or(Errno::OVERFLOW)?;
        let file_type = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            known => known,
        };
        match file_type {
            FileType::Directory => remove_below(&directory, name, left, depth)?,
            _ => unlinkat(&directory, name, AtFlags::empty())?,
        }
    }
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}
