//! The operations over either file system, the real one or the simulated twin. All may wait: they run in jobs, or inline
//! with `aio off`.

use crate::device::Device;
use crate::error::DiskError;
use crate::file::{Direct, File, Handle, Inner};
use crate::meta::{FileKind, FileMeta, Listing, ListingPart, Space};
use crate::mounts::{self, CountedDevices};
use crate::op::Op;
use crate::open_options::{Access, CreateOptions, DIRECT_ALIGN, Existing, Links, OpenOptions, WriteBack};
use crate::pool::Shared;
use crate::sandbox_denial::DenialSource;
use crate::sim::Sim;
use crate::{device, direct, faults, os, read_window};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Bytes per step of a copy.
const COPY_STEP_SIZE: usize = 64 * 1024;
/// Parts of one write: those of 256 KiB if each is a page. The kernel takes 1024.
const PARTS_MAX: usize = 64;

/// File system of a disk, and the pool that closes its files.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) kind: DriverKind,
    pub(crate) closer: Option<Arc<Shared>>,
}

/// Real or simulated file system. A closed enum: the simulation costs the real one a branch.
#[derive(Clone)]
pub(crate) enum DriverKind {
    Os,
    Sim(Arc<Sim>),
}

/// Progress of a transfer to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes the socket took.
    pub bytes: usize,
    /// Reason for the end.
    pub end: SentEnd,
}

/// Reason for the end of a transfer to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentEnd {
    /// Everything asked for was sent.
    Done,
    /// The socket takes no more for now.
    SocketFull,
    /// The file ended early.
    FileEnd,
}

fn closed(op: Op) -> DiskError {
    op.failed(Errno::BADF)
}

/// Error of `op` on `path`, with the source of a denial. May wait.
fn failed(op: Op, errno: Errno, path: &CStr) -> DiskError {
    DiskError::Os { op, errno, source: DenialSource::find(op, errno, path) }
}

/// Calls the real or the simulated form of an operation on a path.
macro_rules! by_path {
    ($self:ident, $op:expr, $name:ident($path:expr $(, $arg:expr)*)) => {
        faults::at($op, $path)
            .and_then(|()| match $self.step() {
                DriverKind::Os => os::$name($path $(, $arg)*),
                DriverKind::Sim(sim) => sim.$name($path $(, $arg)*),
            })
            .map_err(|errno| failed($op, errno, $path))
    };
}

/// Calls the real or the simulated form of an operation on an open file.
macro_rules! by_file {
    ($self:ident, $op:expr, $file:ident, $name:ident($($arg:expr),*)) => {
        match (&$self.kind, &$file.handle) {
            (_, Handle::Os(fd)) => {
                $file.device.touch(fd.as_fd());
                faults::on($op, $file.device)
                    .and_then(|()| os::$name(fd, $($arg),*))
                    .map_err(|errno| $op.failed(errno))
            }
            (DriverKind::Sim(sim), Handle::Sim(node)) => {
                sim.$name(node, $($arg),*).map_err(|errno| $op.failed(errno))
            }
            _ => Err(closed($op)),
        }
    };
}

impl Driver {
    /// Notes that a job gets on, for those of many steps.
    fn step(&self) -> &DriverKind {
        device::step();
        &self.kind
    }

    /// The device that jobs at `path` count for. Never waits.
    pub(crate) fn device_at(&self, path: &CStr) -> Option<&'static Device> {
        match &self.kind {
            DriverKind::Os => mounts::device_of(path),
            DriverKind::Sim(sim) => sim.device(),
        }
    }

    /// The device that links on the way to `path` lead to, if a job does not count for it yet.
    pub(crate) fn leads_elsewhere(
        &self,
        path: &CStr,
        follows: bool,
        way: &CountedDevices,
    ) -> Option<&'static Device> {
        match &self.kind {
            DriverKind::Os => way.leads_elsewhere(path, follows),
            DriverKind::Sim(_) => None,
        }
    }

    /// The device that jobs on an open file count for.
    pub(crate) fn device_under(&self, file: &File) -> Option<&'static Device> {
        match &self.kind {
            DriverKind::Os => Some(file.inner().device.home()),
            DriverKind::Sim(sim) => sim.device(),
        }
    }

    fn file(&self, path: &CStr, handle: Handle, meta: FileMeta, options: &OpenOptions) -> File {
        let device = faults::device_of(path).unwrap_or_else(|| Device::of(meta.dev));
        let file = File::new(handle, meta, options, device, self.closer.clone());
        let inner = file.inner();
        if let Handle::Os(fd) = &inner.handle {
            inner.device.touch(fd.as_fd());
            if inner.supports_nowait() {
                inner.access_time.read_mount_flags(fd);
            }
        }
        file
    }

    pub(crate) fn open(&self, path: &CStr, options: &OpenOptions) -> Result<File, DiskError> {
        let (handle, meta) = faults::at(Op::Open, path)
            .and_then(|()| match &self.kind {
                DriverKind::Os => os::open(path, options).map(|(fd, meta)| (Handle::Os(fd), meta)),
                DriverKind::Sim(sim) => sim.open(path, options).map(|(node, meta)| (Handle::Sim(node), meta)),
            })
            .map_err(|errno| failed(Op::Open, errno, path))?;
        Ok(self.file(path, handle, meta, options))
    }

    /// A file that was opened elsewhere. On a simulated disk, the file at `path`.
    pub(crate) fn adopt(
        &self,
        fd: Option<Arc<OwnedFd>>,
        path: &CStr,
        options: &OpenOptions,
    ) -> Result<File, DiskError> {
        match (fd, &self.kind) {
            (Some(fd), DriverKind::Os) => {
                let fd = fd.try_clone().map_err(|_| Op::Open.failed(Errno::MFILE))?;
                let meta = os::fstat_of_device(&fd).map_err(|errno| Op::Fstat.failed(errno))?;
                Ok(self.file(path, Handle::Os(fd), meta, options))
            }
            _ => self.open(path, options),
        }
    }

    /// Size of a file or of a block device in bytes.
    pub(crate) fn size(&self, file: &Inner) -> Result<u64, DiskError> {
        match &file.handle {
            Handle::Os(fd) if file.meta().kind == FileKind::Other => {
                rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(|errno| Op::Fstat.failed(errno))
            }
            _ => Ok(self.fstat(file)?.size),
        }
    }

    /// Locks a file for this process (`flock`). Returns false if another one has it.
    pub(crate) fn lock(&self, file: &Inner) -> Result<bool, DiskError> {
        let Handle::Os(fd) = &file.handle else { return Ok(true) };
        match rustix::fs::flock(fd, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(Op::Open.failed(errno)),
        }
    }

    pub(crate) fn create(&self, path: &CStr, options: &CreateOptions) -> Result<File, DiskError> {
        let first = self.create_once(path, options);
        match (first, options.parents_below) {
            (Err(Errno::NOENT), Some(below)) => {
                self.make_parents(path, below, options.parents_mode)?;
                self.create_once(path, options)
            }
            (first, _) => first,
        }
        .map_err(|errno| failed(Op::Create, errno, path))
    }

    fn create_once(&self, path: &CStr, options: &CreateOptions) -> Result<File, Errno> {
        faults::at(Op::Create, path)?;
        let (handle, meta) = match &self.kind {
            DriverKind::Os => os::create(path, options.access, options.existing, options.mode)
                .map(|(fd, meta)| (Handle::Os(fd), meta))?,
            DriverKind::Sim(sim) => sim
                .create(path, options.access, options.existing, options.mode)
                .map(|(node, meta)| (Handle::Sim(node), meta))?,
        };
        // Reads need to know about access times.
        let is_read = options.access != Access::Append && !options.is_only_written;
        let access = if is_read { Access::ReadWrite } else { Access::Append };
        let direct_from = if options.is_direct { 0 } else { u64::MAX };
        let options = OpenOptions { access, direct_from, direct_align: DIRECT_ALIGN, ..OpenOptions::READ };
        Ok(self.file(path, handle, meta, &options))
    }

    pub(crate) fn create_nameless(&self, dir: &CStr, mode: u32) -> Result<File, Errno> {
        faults::at(Op::Create, dir)?;
        let (handle, meta) = match &self.kind {
            DriverKind::Os => os::create_nameless(dir, mode).map(|(fd, meta)| (Handle::Os(fd), meta))?,
            DriverKind::Sim(sim) => {
                sim.create_nameless(dir, mode).map(|(node, meta)| (Handle::Sim(node), meta))?
            }
        };
        Ok(self.file(dir, handle, meta, &OpenOptions::READ_WRITE))
    }

    pub(crate) fn stat(&self, path: &CStr, follow: bool) -> Result<FileMeta, DiskError> {
        let op = if follow { Op::Stat } else { Op::StatLink };
        let file_meta: Result<FileMeta, DiskError> = by_path!(self, op, stat(path, follow));
        if let (Ok(meta), DriverKind::Os) = (&file_meta, &self.kind) {
            faults::device_of(path).unwrap_or_else(|| Device::of(meta.dev)).note();
        }
        file_meta
    }

    pub(crate) fn fstat(&self, file: &Inner) -> Result<FileMeta, DiskError> {
        by_file!(self, Op::Fstat, file, fstat_now())
    }

    /// With `links_from`, links themselves are told of, and none is followed behind so many bytes of `path`.
    pub(crate) fn list(
        &self,
        path: &CStr,
        max: usize,
        links_from: Option<u32>,
    ) -> Result<Listing, DiskError> {
        by_path!(self, Op::List, list(path, max, links_from))
    }

    pub(crate) fn list_part(&self, file: &Inner, from: u64) -> Result<ListingPart, DiskError> {
        by_file!(self, Op::List, file, list_part(from))
    }

    /// Fills `buf` from `offset`; short only at the end of the file.
    pub(crate) fn read(&self, file: &Inner, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        if let (Handle::Os(fd), 1.., Direct::No | Direct::Refused) =
            (&file.handle, file.read_ahead, file.direct())
        {
            os::advise_will_need(fd, offset, buf.len() as u64 + u64::from(file.read_ahead));
        }
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset + filled as u64;
            let rest = &mut buf[filled..];
            match self.read_once(file, at, rest)? {
                0 => break,
                n => filled += n,
            }
        }
        Ok(filled)
    }

    fn read_once(&self, file: &Inner, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        if let Handle::Os(fd) = &file.handle {
            // The first read of a device examines the device, and the result already applies to this file.
            file.device.touch(fd.as_fd());
        }
        match (&file.handle, file.direct()) {
            (Handle::Os(fd), Direct::Wanted | Direct::On) => faults::on(Op::Read, file.device)
                .and_then(|()| direct::read(file, fd, offset, buf))
                .map_err(|errno| Op::Read.failed(errno)),
            (Handle::Os(fd), _) if file.supports_nowait() => {
                read_window::prepare(file, fd, offset, buf.len());
                file.access_time.read_by_job(fd, || match file.read_cached(fd, offset, buf) {
                    // The answer is for the loops: the next read of the same bytes need not come here.
                    Ok(n) => Ok(n),
                    Err(_) => by_file!(self, Op::Read, file, read(offset, buf)),
                })
            }
            _ => by_file!(self, Op::Read, file, read(offset, buf)),
        }
    }

    /// Reads a whole file of at most `max` bytes; `EFBIG` if it is longer.
    pub(crate) fn read_whole(&self, path: &CStr, max: usize) -> Result<Vec<u8>, DiskError> {
        let file = self.open(path, &OpenOptions::READ)?;
        let size = usize::try_from(file.meta().size).unwrap_or(usize::MAX);
        if size > max {
            return Err(Op::Read.failed(Errno::FBIG));
        }
        // The buffer has one byte more than the reported size, so that a file that grows meanwhile, or reports no size
        // (procfs), is read on.
        let mut content = vec![0; size.saturating_add(1)];
        let mut filled = 0;
        loop {
            filled += self.read(file.inner(), filled as u64, &mut content[filled..])?;
            if filled < content.len() {
                content.truncate(filled);
                return Ok(content);
            }
            if filled > max {
                return Err(Op::Read.failed(Errno::FBIG));
            }
            content.resize(content.len() * 2, 0);
        }
    }

    /// Writes all of `data` at `offset`, or at the end.
    pub(crate) fn write(&self, file: &Inner, offset: Option<u64>, data: &[u8]) -> Result<(), DiskError> {
        if let Some(offset) = offset
            && !data.is_empty()
            && direct::is_on(file)
            && direct::write(self, file, offset, &[IoSlice::new(data)])?
        {
            return Ok(());
        }
        let mut written_len = 0;
        while written_len < data.len() {
            let at = offset.map(|offset| offset + written_len as u64);
            match by_file!(self, Op::Write, file, write(at, &data[written_len..]))? {
                0 => return Err(Op::Write.failed(Errno::IO)),
                n => written_len += n,
            }
        }
        Ok(())
    }

    /// Writes some of `data` at `offset`.
    pub(crate) fn write_once(&self, file: &Inner, offset: u64, data: &[u8]) -> Result<usize, DiskError> {
        by_file!(self, Op::Write, file, write(Some(offset), data))
    }

    /// Writes all of `parts`, one behind the other.
    pub(crate) fn write_parts(
        &self,
        file: &Inner,
        mut offset: u64,
        parts: &mut [IoSlice<'_>],
    ) -> Result<(), DiskError> {
        let mut rest = parts;
        // Drops those that are empty.
        IoSlice::advance_slices(&mut rest, 0);
        if !rest.is_empty() && direct::is_on(file) && direct::write(self, file, offset, rest)? {
            return Ok(());
        }
        while !rest.is_empty() {
            let some = rest.get(..PARTS_MAX).unwrap_or(rest);
            match by_file!(self, Op::Write, file, write_parts(offset, some))? {
                0 => return Err(Op::Write.failed(Errno::IO)),
                n => {
                    offset += n as u64;
                    IoSlice::advance_slices(&mut rest, n);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn mkdir(&self, path: &CStr, mode: u32) -> Result<(), DiskError> {
        by_path!(self, Op::Mkdir, mkdir(path, mode))
    }

    /// Creates a directory and those above it that are missing; one that exists is fine.
    pub(crate) fn mkdir_all(&self, path: &CStr, mode: u32) -> Result<(), DiskError> {
        let mut slashed = path.to_bytes().to_vec();
        slashed.push(b'/');
        self.make_levels(&slashed, 0, mode)
    }

    fn make_parents(&self, path: &CStr, below: u32, mode: u32) -> Result<(), DiskError> {
        self.make_levels(path.to_bytes(), below as usize, mode)
    }

    /// Creates every directory that ends in a slash of `path` behind its first `below` bytes. Those above the lowest one mostly
    /// exist, so it begins there.
    fn make_levels(&self, path: &[u8], below: usize, mode: u32) -> Result<(), DiskError> {
        let is_end = |&i: &usize| path[i] == b'/' && path[i - 1] != b'/';
        let ends: Vec<usize> = (below.saturating_add(1)..path.len()).filter(is_end).collect();
        let mut next = ends.len();
        while next > 0 {
            match self.make_level(&path[..ends[next - 1]], mode) {
                Err(error) if error.errno() == Some(Errno::NOENT) && next > 1 => next -= 1,
                other => {
                    other?;
                    break;
                }
            }
        }
        ends[next..].iter().try_for_each(|end| self.make_level(&path[..*end], mode))
    }

    /// Creates one directory if it does not exist.
    fn make_level(&self, path: &[u8], mode: u32) -> Result<(), DiskError> {
        // `path` is part of a C string, so there is no NUL in it.
        let level = CString::new(path).map_err(|_| Op::Mkdir.failed(Errno::INVAL))?;
        match self.mkdir(&level, mode) {
            Err(error) if error.errno() != Some(Errno::EXIST) => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) fn rename(&self, from: &CStr, to: &CStr) -> Result<(), DiskError> {
        by_path!(self, Op::Rename, rename(from, to))
    }

    pub(crate) fn rename_new(&self, from: &CStr, to: &CStr) -> Result<(), DiskError> {
        by_path!(self, Op::Rename, rename_new(from, to))
    }

    pub(crate) fn link(&self, from: &CStr, to: &CStr) -> Result<(), DiskError> {
        by_path!(self, Op::Link, link(from, to))
    }

    pub(crate) fn unlink(&self, path: &CStr) -> Result<(), DiskError> {
        by_path!(self, Op::Unlink, unlink(path))
    }

    pub(crate) fn rmdir(&self, path: &CStr) -> Result<(), DiskError> {
        by_path!(self, Op::Rmdir, rmdir(path))
    }

    pub(crate) fn unlink_below(&self, path: &CStr, from: u32) -> Result<(), DiskError> {
        by_path!(self, Op::Unlink, unlink_below(path, from))
    }

    pub(crate) fn rmdir_below(&self, path: &CStr, from: u32) -> Result<(), DiskError> {
        by_path!(self, Op::Rmdir, rmdir_below(path, from))
    }

    pub(crate) fn fsync(&self, file: &Inner, data_only: bool) -> Result<(), DiskError> {
        by_file!(self, Op::Fsync, file, fsync(data_only))
    }

    pub(crate) fn write_back(&self, file: &Inner, options: &WriteBack) -> Result<(), DiskError> {
        by_file!(self, Op::WriteBack, file, write_back(options))
    }

    pub(crate) fn sync_dir(&self, path: &CStr) -> Result<(), DiskError> {
        by_path!(self, Op::Fsync, sync_dir(path))
    }

    pub(crate) fn set_mtime(&self, file: &Inner, sec: i64, nsec: u32) -> Result<(), DiskError> {
        by_file!(self, Op::SetTimes, file, set_mtime(sec, nsec))
    }

    pub(crate) fn set_mode(&self, file: &Inner, mode: u32) -> Result<(), DiskError> {
        by_file!(self, Op::SetMode, file, set_mode(mode))
    }

    pub(crate) fn truncate(&self, file: &Inner, size: u64) -> Result<(), DiskError> {
        by_file!(self, Op::Truncate, file, truncate(size))
    }

    pub(crate) fn space(&self, path: &CStr) -> Result<Space, DiskError> {
        by_path!(self, Op::Space, space(path))
    }

    pub(crate) fn readlink(&self, path: &CStr) -> Result<CString, DiskError> {
        by_path!(self, Op::Readlink, readlink(path))
    }

    pub(crate) fn realpath(&self, path: &CStr) -> Result<CString, DiskError> {
        by_path!(self, Op::Realpath, realpath(path))
    }

    /// Copies a file to a new name; the copy is removed again if it cannot be completed.
    pub(crate) fn copy(
        &self,
        from: &CStr,
        links: Links,
        to: &CStr,
        options: &CreateOptions,
    ) -> Result<File, DiskError> {
        let source = self.open(from, &OpenOptions { links, ..OpenOptions::READ })?;
        let copy = self.create(to, options)?;
        let result = self.copy_content(source.inner(), copy.inner());
        if result.is_err() {
            // The first failure is the one to report.
            let _ = self.unlink(to);
        }
        result.map(|()| copy)
    }

    /// Writes a file beside `path` and gives it that name.
    pub(crate) fn replace(&self, path: &CStr, mode: u32, data: &[u8]) -> Result<(), DiskError> {
        // The name has the process ID, because another process may do the same. A file left behind by a crash is
        // overwritten.
        let temp_path = [path.to_bytes(), format!(".{}", std::process::id()).as_bytes()].concat();
        let temp_path = CString::new(temp_path).unwrap_or_default();
        let options = CreateOptions { mode, existing: Existing::Truncate, ..CreateOptions::NEW };
        let file = self.create(&temp_path, &options)?;
        let done = self
            .write(file.inner(), Some(0), data)
            .and_then(|()| self.fsync(file.inner(), true))
            .and_then(|()| self.rename(&temp_path, path));
        if done.is_err() {
            // The first failure is the one to report.
            let _ = self.unlink(&temp_path);
            return done;
        }
        let end = path.to_bytes().iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let above = if end == 0 { b"." } else { &path.to_bytes()[..end] };
        self.sync_dir(&CString::new(above).unwrap_or_default())
    }

    fn copy_content(&self, from: &Inner, to: &Inner) -> Result<(), DiskError> {
        let mut buffer = vec![0; COPY_STEP_SIZE];
        let mut offset = 0;
        loop {
            let n = self.read(from, offset, &mut buffer)?;
            self.write(to, Some(offset), &buffer[..n])?;
            offset += n as u64;
            if n < buffer.len() {
                return Ok(());
            }
        }
    }

    /// Moves file content to a non-blocking socket until the socket is full.
    pub(crate) fn sendfile(
        &self,
        file: &Inner,
        offset: u64,
        len: usize,
        socket: &OwnedFd,
    ) -> Result<Sent, DiskError> {
        let mut bytes = 0;
        while bytes < len {
            let at = offset + bytes as u64;
            let moved = match (&self.kind, &file.handle) {
                (_, Handle::Os(fd)) => {
                    file.device.touch(fd.as_fd());
                    read_window::prepare(file, fd, at, len - bytes);
                    faults::on(Op::Sendfile, file.device)
                        .and_then(|()| os::sendfile(socket.as_fd(), fd.as_fd(), at, len - bytes))
                }
                (DriverKind::Sim(sim), Handle::Sim(node)) => {
                    sim.sendfile(socket.as_fd(), node, at, len - bytes)
                }
                _ => Err(Errno::BADF),
            };
            match moved {
                Ok(0) => return Ok(Sent { bytes, end: SentEnd::FileEnd }),
                Ok(n) => bytes += n,
                Err(Errno::AGAIN) => return Ok(Sent { bytes, end: SentEnd::SocketFull }),
                Err(errno) => return Err(Op::Sendfile.failed(errno)),
            }
        }
        Ok(Sent { bytes, end: SentEnd::Done })
    }
}
