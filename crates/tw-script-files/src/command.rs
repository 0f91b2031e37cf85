//! One command of a script.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{
    Access, AtFlags, CWD, Dir, FileType, OFlags, accessat, fstat, mkdirat, readlinkat, renameat, statat,
    symlinkat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite, read, retry_on_intr, write};
use tw_script::{ByteBuf, FileCommand, FileEntry, FileError, FileKind, FileValue};

use crate::access::FileAccess;
use crate::descriptors::Descriptors;
use crate::error::Failure;
use crate::flags::{changes, flags};
use crate::status::{kind, status};
use crate::tree;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Bytes that one function of `fs` reads.
    const READ_MAX: usize = 16 << 20, bytes, "the function fails with EFBIG";
    /// Names of a directory that `fs.readdir()` reads.
    const ENTRIES_MAX: usize = 10_000, count, "the function fails with EOVERFLOW";
}

/// Bytes of one read of a whole file.
const PART_SIZE: usize = 64 << 10;

/// Runs a command. Waits for the disk.
///
/// # Errors
/// The system or the configuration refuses it; fields of the exception.
pub fn run(access: &FileAccess, files: &Descriptors, command: FileCommand) -> Result<FileValue, FileError> {
    let (syscall, path) = subject(&command);
    let path = path.to_vec();
    execute(access, files, command).map_err(|failure| failure.at(syscall, &path))
}

/// System call of a command as exceptions name it, and its path.
fn subject(command: &FileCommand) -> (&'static str, &[u8]) {
    match command {
        FileCommand::Access { path, .. } => ("access", path),
        FileCommand::Read { path, .. } | FileCommand::Write { path, .. } | FileCommand::Open { path, .. } => {
            ("open", path)
        }
        FileCommand::Status { path, follows_links: true } => ("stat", path),
        FileCommand::Status { path, .. } => ("lstat", path),
        FileCommand::CreateDirectory { path, .. } => ("mkdir", path),
        FileCommand::RemoveDirectory { path, .. } => ("rmdir", path),
        FileCommand::ReadDirectory { path } => ("opendir", path),
        FileCommand::RealPath { path } => ("realpath", path),
        FileCommand::ReadLink { path } => ("readlink", path),
        FileCommand::Rename { from, .. } => ("rename", from),
        FileCommand::Symlink { path, .. } => ("symlink", path),
        FileCommand::Remove { path } => ("unlink", path),
        FileCommand::Close { .. } => ("close", b""),
        FileCommand::StatusOf { .. } => ("fstat", b""),
        FileCommand::ReadAt { .. } => ("read", b""),
        FileCommand::WriteAt { .. } => ("write", b""),
    }
}

fn execute(access: &FileAccess, files: &Descriptors, command: FileCommand) -> Result<FileValue, Failure> {
    let done = |()| FileValue::None;
    match command {
        FileCommand::Access { path, mode } => check_access(access, &path, mode).map(done),
        FileCommand::Read { path, flag } => {
            let file = open(access, &path, &flag, 0o666)?;
            read_whole(&file).map(|bytes| FileValue::Bytes(ByteBuf::from(bytes)))
        }
        FileCommand::Write { path, data, mode, flag } => {
            let file = open(access, &path, &flag, mode)?;
            write_whole(&file, &data).map(done)
        }
        FileCommand::Status { path, follows_links } => {
            let file = access.place(&path, false)?.point_at(follows_links)?;
            Ok(FileValue::Status(Box::new(status(&file)?)))
        }
        FileCommand::CreateDirectory { path, mode, is_recursive } => {
            let place = access.place(&path, true)?;
            match is_recursive {
                true => tree::create(&place, mode).map(done),
                false => {
                    let parent = place.parent()?;
                    Ok(done(mkdirat(&parent.directory, &*parent.name, tree::directory_mode(mode))?))
                }
            }
        }
        FileCommand::RemoveDirectory { path, is_recursive } => {
            let parent = access.place(&path, true)?.parent()?;
            match is_recursive {
                true => tree::remove(&parent).map(done),
                false => Ok(done(unlinkat(&parent.directory, &*parent.name, AtFlags::REMOVEDIR)?)),
            }
        }
        FileCommand::ReadDirectory { path } => read_directory(access, &path).map(FileValue::Entries),
        FileCommand::RealPath { path } => {
            let file = access.place(&path, false)?.point_at(true)?;
            real_path(&file).map(|path| FileValue::Bytes(ByteBuf::from(path)))
        }
        FileCommand::ReadLink { path } => {
            let parent = access.place(&path, false)?.parent()?;
            let target = readlinkat(&parent.directory, &*parent.name, Vec::new())?;
            Ok(FileValue::Bytes(ByteBuf::from(target.into_bytes())))
        }
        FileCommand::Rename { from, to } => {
            let from = access.place(&from, true)?.parent()?;
            let to = access.place(&to, true)?.parent()?;
            Ok(done(renameat(&from.directory, &*from.name, &to.directory, &*to.name)?))
        }
        FileCommand::Symlink { target, path } => create_symlink(access, &target, &path).map(done),
        FileCommand::Remove { path } => {
            let parent = access.place(&path, true)?.parent()?;
            Ok(done(unlinkat(&parent.directory, &*parent.name, AtFlags::empty())?))
        }
        FileCommand::Open { path, flag, mode } => {
            if !files.has_room() {
                return Err(Errno::MFILE.into());
            }
            let file = open(access, &path, &flag, mode)?;
            Ok(FileValue::Number(files.keep(file)?.into()))
        }
        FileCommand::Close { descriptor } => Ok(done(files.close(descriptor)?)),
        FileCommand::StatusOf { descriptor } => {
            let file = files.get(descriptor)?;
            Ok(FileValue::Status(Box::new(status(&*file)?)))
        }
        FileCommand::ReadAt { descriptor, size, position } => {
            let file = files.get(descriptor)?;
            let bytes = read_at(&file, size, position)?;
            Ok(FileValue::Bytes(ByteBuf::from(bytes)))
        }
        FileCommand::WriteAt { descriptor, data, position } => {
            let file = files.get(descriptor)?;
            let written = retry_on_intr(|| match position {
                Some(position) => pwrite(&*file, &data, position),
                None => write(&*file, &data),
            })?;
            Ok(FileValue::Number(written as u64))
        }
    }
}

fn open(access: &FileAccess, path: &[u8], word: &str, mode: u32) -> Result<OwnedFd, Failure> {
    let flags = flags(word).ok_or(Errno::INVAL)?;
    access.place(path, changes(flags))?.open(flags, mode)
}

fn check_access(access: &FileAccess, path: &[u8], mode: u32) -> Result<(), Failure> {
    let wanted = Access::from_bits(mode).ok_or(Errno::INVAL)?;
    let file = access.place(path, wanted.contains(Access::WRITE_OK))?.point_at(true)?;
    Ok(accessat(CWD, name_of(&file), wanted, AtFlags::empty())?)
}

/// Content of a file, within its limit.
fn read_whole(file: &OwnedFd) -> Result<Vec<u8>, Failure> {
    let size = usize::try_from(fstat(file)?.st_size).unwrap_or(0);
    if size > READ_MAX {
        return Err(Errno::FBIG.into());
    }
    // One byte more shows the end without another part.
    let mut bytes = vec![0; size + 1];
    let mut length = 0;
    loop {
        let room = bytes.get_mut(length..).unwrap_or_default();
        let count = retry_on_intr(|| read(file, &mut *room))?;
        length += count;
        if count == 0 {
            bytes.truncate(length);
            return Ok(bytes);
        }
        if length > READ_MAX {
            return Err(Errno::FBIG.into());
        }
        if length == bytes.len() {
            bytes.resize(length + PART_SIZE, 0);
        }
    }
}

fn write_whole(file: &OwnedFd, data: &[u8]) -> Result<(), Failure> {
    let mut rest = data;
    while !rest.is_empty() {
        let written = retry_on_intr(|| write(file, rest))?;
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

fn read_at(file: &OwnedFd, size: u32, position: Option<u64>) -> Result<Vec<u8>, Failure> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if size > READ_MAX {
        return Err(Errno::FBIG.into());
    }
    let mut bytes = vec![0; size];
    let count = retry_on_intr(|| match position {
        Some(position) => pread(file, &mut *bytes, position),
        None => read(file, &mut *bytes),
    })?;
    bytes.truncate(count);
    Ok(bytes)
}

fn read_directory(access: &FileAccess, path: &[u8]) -> Result<Vec<FileEntry>, Failure> {
    let directory = access.place(path, false)?.open(OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
    let mut entries = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if entries.len() == ENTRIES_MAX {
            return Err(Errno::OVERFLOW.into());
        }
        let kind = match kind(entry.file_type()) {
            Some(kind) => kind,
            // Some file systems keep no types in their directories.
            None => kind_of_name(&directory, entry.file_name()),
        };
        entries.push(FileEntry { name: ByteBuf::from(name), kind });
    }
    Ok(entries)
}

fn kind_of_name(directory: impl AsFd, name: &std::ffi::CStr) -> FileKind {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .ok()
        .and_then(|status| kind(FileType::from_raw_mode(status.st_mode)))
        .unwrap_or(FileKind::File)
}

/// Path of an open file, as the kernel knows it.
fn real_path(file: &OwnedFd) -> Result<Vec<u8>, Failure> {
    Ok(readlinkat(CWD, name_of(file), Vec::new())?.into_bytes())
}

/// Name of an open file for calls that take no descriptor.
fn name_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Creates a symbolic link. Within directories its target is a path below its own directory: other programs follow links, too.
fn create_symlink(access: &FileAccess, target: &[u8], path: &[u8]) -> Result<(), Failure> {
    let place = access.place(path, true)?;
    let climbs = target.starts_with(b"/") || target.split(|byte| *byte == b'/').any(|name| name == b"..");
    if place.is_confined() && climbs {
        return Err(Failure::denied("the target of a symbolic link must be a relative path without \"..\""));
    }
    let parent = place.parent()?;
    Ok(symlinkat(target, &parent.directory, &*parent.name)?)
}
