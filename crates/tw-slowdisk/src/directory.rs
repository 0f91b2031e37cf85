//! Content that is a directory of another file system: operations are passed on to it.
//!
//! Names are looked up from the top directory, which is open, so that the disk may be mounted over that directory itself. No
//! symbolic link is followed here: the kernel asks for its target, and looks that up.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::{
    AtFlags, CWD, Dir, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid, chmodat, chownat, fchown, fdatasync, fstat, fstatvfs, fsync, ftruncate, linkat, mkdirat,
    openat, openat2, readlinkat, renameat_with, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

use crate::fault::lock;
use crate::inodes::{Identity, Inodes};
use crate::store::{Change, DirEntry, EntryName, FreeSpace, Owner, ROOT, Store};

/// Flags of the opener that the file below gets. Offsets are always given, and direct I/O would need aligned buffers.
const KEPT_FLAGS: OFlags = OFlags::ACCMODE.union(OFlags::DSYNC).union(OFlags::SYNC).union(OFlags::EXCL);
const DIR_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory of another file system.
#[derive(Debug)]
pub struct Directory {
    root: OwnedFd,
    inodes: Mutex<Inodes>,
    /// Bytes in all files, once somebody has asked for them.
    used: OnceLock<AtomicU64>,
    /// Set if whoever creates something shall own it, which only root can see to.
    keeps_owners: bool,
}

impl Directory {
    /// Opens the directory.
    ///
    /// # Errors
    /// Errors of `open`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())?;
        let inodes = Mutex::new(Inodes::new(identity(&fstat(&root)?)));
        let keeps_owners = rustix::process::geteuid().is_root();
        Ok(Self { root, inodes, used: OnceLock::new(), keeps_owners })
    }

    fn inodes(&self) -> MutexGuard<'_, Inodes> {
        lock(&self.inodes)
    }

    /// The directory with this number, for operations on names in it.
    fn dir(&self, ino: u64) -> Result<OwnedFd, Errno> {
        let path = self.inodes().path(ino)?;
        let path = if path.is_empty() { OsStr::new(".") } else { &path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        retry_on_intr(|| openat2(&self.root, path, DIR_FLAGS, Mode::empty(), resolve))
    }

    /// The directory that an inode is in, and its name there.
    fn place(&self, ino: u64) -> Result<(OwnedFd, OsString), Errno> {
        let place = self.inodes().place(ino)?;
        match place {
            Some((parent, name)) => Ok((self.dir(parent)?, name)),
            None => Ok((self.dir(ROOT)?, ".".into())),
        }
    }

    fn stat(&self, ino: u64) -> Result<Stat, Errno> {
        let open = self.inodes().any_file(ino);
        if let Some(file) = open {
            return fstat(file);
        }
        let (dir, name) = self.place(ino)?;
        let stat = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        // The name may belong to another file now.
        if identity(&stat) == self.inodes().identity(ino)? { Ok(stat) } else { Err(Errno::STALE) }
    }

    /// Attributes of a name for the kernel, which uses the inode once more.
    fn entry(&self, dir: BorrowedFd<'_>, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let ino = self.inodes().add_lookup(identity(&stat), parent, name);
        Ok(attr(ino, &stat))
    }

    fn file(&self, handle: u64) -> Result<Arc<OwnedFd>, Errno> {
        self.inodes().file(handle)
    }

    fn give_to(&self, dir: BorrowedFd<'_>, name: &OsStr, owner: Owner) -> Result<(), Errno> {
        if !self.keeps_owners {
            return Ok(());
        }
        let uid = Uid::from_raw(owner.uid);
        let gid = Gid::from_raw(owner.gid);
        chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Adds to the bytes in all files, or takes from them, if they are counted.
    fn count(&self, from: u64, to: u64) {
        let Some(used) = self.used.get() else { return };
        // Counts of files that others change may be too small.
        let _ = used.fetch_update(Relaxed, Relaxed, |used| Some((used + to).saturating_sub(from)));
    }

    /// Size of a file that goes with this name.
    fn size_of_last_name(&self, dir: BorrowedFd<'_>, name: &OsStr) -> u64 {
        match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            // The bytes of one that is open go when it is closed.
            Ok(stat) if stat.st_nlink == 1 && !self.inodes().is_open(identity(&stat)) => size(&stat),
            _ => 0,
        }
    }
}

impl Store for Directory {
    fn name(&self, ino: u64) -> OsString {
        self.inodes().name(ino)
    }

    fn lookup(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        self.entry(self.dir(parent)?.as_fd(), parent, name)
    }

    fn forget(&self, ino: u64, uses: u64) {
        self.inodes().forget(ino, uses);
    }

    fn attr(&self, ino: u64) -> Result<FileAttr, Errno> {
        self.stat(ino).map(|stat| attr(ino, &stat))
    }

    fn change(&self, ino: u64, change: &Change) -> Result<FileAttr, Errno> {
        let (dir, name) = self.place(ino)?;
        if let Some(mode) = change.mode {
            chmodat(&dir, &name, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let uid = change.uid.map(Uid::from_raw);
            let gid = change.gid.map(Gid::from_raw);
            chownat(&dir, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(length) = change.size {
            let file = match change.handle {
                Some(handle) => self.file(handle)?,
                None => {
                    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    Arc::new(openat(&dir, &name, flags, Mode::empty())?)
                }
            };
            let before = size(&fstat(&file)?);
            ftruncate(&file, length)?;
            self.count(before, length);
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let times = Timestamps {
                last_access: timespec(change.accessed),
                last_modification: timespec(change.modified),
            };
            utimensat(&dir, &name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        self.attr(ino)
    }

    fn link_target(&self, ino: u64) -> Result<OsString, Errno> {
        let (dir, name) = self.place(ino)?;
        readlinkat(dir, &name, Vec::new()).map(|target| OsString::from_vec(target.into_bytes()))
    }

    fn open(&self, ino: u64, flags: i32) -> Result<u64, Errno> {
        let (dir, name) = self.place(ino)?;
        let flags = OFlags::from_bits_retain(flags as u32) & KEPT_FLAGS.difference(OFlags::EXCL);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = retry_on_intr(|| openat(&dir, &name, flags, Mode::empty()))?;
        Ok(self.inodes().opened(ino, file))
    }

    fn close(&self, ino: u64, handle: u64) {
        let closed = self.inodes().closed(ino, handle);
        if let Some((file, true)) = closed
            && let Ok(stat) = fstat(&file)
            && stat.st_nlink == 0
        {
            self.count(size(&stat), 0);
        }
    }

    fn read(&self, _: u64, handle: u64, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        let file = self.file(handle)?;
        let mut data = vec![0; size];
        let mut filled = 0;
        while filled < size {
            match retry_on_intr(|| pread(&file, &mut data[filled..], offset + filled as u64))? {
                0 => break,
                n => filled += n,
            }
        }
        data.truncate(filled);
        Ok(data)
    }

    fn write(&self, _: u64, handle: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let file = self.file(handle)?;
        let before = if self.used.get().is_some() { size(&fstat(&file)?) } else { 0 };
        let mut written_len = 0;
        while written_len < data.len() {
            written_len +=
                retry_on_intr(|| pwrite(&file, &data[written_len..], offset + written_len as u64))?;
        }
        self.count(before, before.max(offset + data.len() as u64));
        Ok(())
    }

    fn sync(&self, _: u64, handle: u64, data_only: bool) -> Result<(), Errno> {
        let file = self.file(handle)?;
        if data_only { fdatasync(file) } else { fsync(file) }
    }

    fn sync_dir(&self, ino: u64) -> Result<(), Errno> {
        fsync(readable(&self.dir(ino)?)?)
    }

    fn create(
        &self,
        EntryName { parent, name }: EntryName<'_>,
        mode: u32,
        flags: i32,
        owner: Owner,
    ) -> Result<(FileAttr, u64), Errno> {
        let dir = self.dir(parent)?;
        let flags = OFlags::from_bits_retain(flags as u32) & KEPT_FLAGS;
        let flags = flags | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let file = retry_on_intr(|| openat(&dir, name, flags, mode))?;
        if self.keeps_owners {
            fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
        }
        let stat = fstat(&file)?;
        let mut inodes = self.inodes();
        let ino = inodes.add_lookup(identity(&stat), parent, name);
        Ok((attr(ino, &stat), inodes.opened(ino, file)))
    }

    fn make_dir(
        &self,
        EntryName { parent, name }: EntryName<'_>,
        mode: u32,
        owner: Owner,
    ) -> Result<FileAttr, Errno> {
        let dir = self.dir(parent)?;
        mkdirat(&dir, name, Mode::from_raw_mode(mode & 0o7777))?;
        self.give_to(dir.as_fd(), name, owner)?;
        self.entry(dir.as_fd(), parent, name)
    }

    fn make_link(
        &self,
        EntryName { parent, name }: EntryName<'_>,
        target: &Path,
        owner: Owner,
    ) -> Result<FileAttr, Errno> {
        let dir = self.dir(parent)?;
        symlinkat(target, &dir, name)?;
        self.give_to(dir.as_fd(), name, owner)?;
        self.entry(dir.as_fd(), parent, name)
    }

    fn link(&self, ino: u64, EntryName { parent, name }: EntryName<'_>) -> Result<FileAttr, Errno> {
        let (old_dir, old_name) = self.place(ino)?;
        let dir = self.dir(parent)?;
        linkat(old_dir, &old_name, &dir, name, AtFlags::empty())?;
        self.entry(dir.as_fd(), parent, name)
    }

    fn unlink(&self, EntryName { parent, name }: EntryName<'_>) -> Result<(), Errno> {
        let dir = self.dir(parent)?;
        let freed = self.size_of_last_name(dir.as_fd(), name);
        unlinkat(&dir, name, AtFlags::empty())?;
        self.count(freed, 0);
        Ok(())
    }

    fn remove_dir(&self, EntryName { parent, name }: EntryName<'_>) -> Result<(), Errno> {
        unlinkat(self.dir(parent)?, name, AtFlags::REMOVEDIR)
    }

    fn rename(&self, from: EntryName<'_>, to: EntryName<'_>, replace: bool) -> Result<(), Errno> {
        let old = self.dir(from.parent)?;
        let new = self.dir(to.parent)?;
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let freed = self.size_of_last_name(new.as_fd(), to.name);
        renameat_with(&old, from.name, &new, to.name, flags)?;
        self.count(freed, 0);
        if let Ok(stat) = statat(&new, to.name, AtFlags::SYMLINK_NOFOLLOW) {
            self.inodes().renamed(identity(&stat), to.parent, to.name);
        }
        Ok(())
    }

    fn list(&self, ino: u64) -> Result<Vec<DirEntry>, Errno> {
        let dir = self.dir(ino)?;
        let mut list = Vec::new();
        for entry in Dir::new(readable(&dir)?)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            let kind = kind(entry.file_type());
            // The kernel looks up attributes itself; the number is only displayed.
            list.push(DirEntry { ino: entry.ino(), kind, name });
        }
        Ok(list)
    }

    fn room(&self) -> Result<FreeSpace, Errno> {
        let room = fstatvfs(&self.root)?;
        Ok(FreeSpace {
            // Blocks are counted in fragments.
            block_size: u32::try_from(room.f_frsize).unwrap_or(u32::MAX),
            blocks: [room.f_blocks, room.f_bfree, room.f_bavail],
            files: room.f_files,
            free_files: room.f_ffree,
        })
    }

    fn used(&self) -> u64 {
        self.used.get_or_init(|| AtomicU64::new(bytes_below(&self.root))).load(Relaxed)
    }
}

/// A directory, opened anew for reading it.
fn readable(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Bytes in all files below a directory that can be read.
fn bytes_below(dir: &OwnedFd) -> u64 {
    let Ok(entries) = readable(dir).and_then(Dir::new) else { return 0 };
    let mut bytes = 0;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        bytes += match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::Directory => openat(dir, name, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())
                .map_or(0, |inner| bytes_below(&inner)),
            rustix::fs::FileType::RegularFile => size(&stat),
            _ => 0,
        };
    }
    bytes
}

fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn kind(kind: rustix::fs::FileType) -> FileType {
    match kind {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::Symlink => FileType::Symlink,
        rustix::fs::FileType::Fifo => FileType::NamedPipe,
        rustix::fs::FileType::Socket => FileType::Socket,
        rustix::fs::FileType::CharacterDevice => FileType::CharDevice,
        rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

#[allow(clippy::unnecessary_cast, reason = "the count of links is as wide as the architecture likes")]
fn attr(ino: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: size(stat),
        blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
        atime: time(stat.st_atime, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec as u32),
        crtime: time(stat.st_ctime, stat.st_ctime_nsec as u32),
        kind: kind(rustix::fs::FileType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let span = Duration::from_secs(seconds.unsigned_abs());
    let whole = match seconds {
        0.. => SystemTime::UNIX_EPOCH + span,
        _ => SystemTime::UNIX_EPOCH - span,
    };
    whole + Duration::from_nanos(nanoseconds.into())
}

/// A time to set: as it is, the present, or one given.
fn timespec(time: Option<Option<SystemTime>>) -> Timespec {
    let Some(time) = time else { return Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT } };
    let Some(time) = time else { return Timespec { tv_sec: 0, tv_nsec: UTIME_NOW } };
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() }
}
