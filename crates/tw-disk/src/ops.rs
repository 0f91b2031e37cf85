//! The operations that may wait, as futures.
//!
//! Each takes the [`Account`] it runs on first. A dropped future takes its job back if no thread has begun it; a job that
//! has been begun keeps its buffers and files until it ends, on the thread that ran it.

mod change;
mod paths;

pub use change::PathCalls;
pub(crate) use paths::LIMITS;
pub use paths::LIST_MAX;

use crate::account::Account;
use crate::device::{self, Device};
use crate::disk::{Aio, Disk, SocketFd};
use crate::driver::{Driver, Sent};
use crate::error::DiskError;
use crate::file::{File, Now};
use crate::meta::FileMeta;
use crate::mounts::{self, CountedDevices};
use crate::op::Op;
use crate::open_options::{CreateOptions, Links, OpenOptions, TempOptions, WriteBack};
use crate::ring::{ReadJob, ReadRefusal, UringQueue};
use crate::temp::TempFile;
use std::ffi::{CStr, CString};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tw_base::memory;

/// Data that must have reached the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// The content, and what is needed to read it.
    Data,
    /// All metadata too.
    All,
}

/// Outcome of an operation on the target of a path.
enum PathOutcome<T, J> {
    Done(T),
    /// Nothing yet: links lead to this device, for which the job does not count.
    Elsewhere(J, &'static Device),
}

/// Does the work of an operation at a path, in a job, if that leads to the device that the job counts for. `follows` tells
/// whether the operation follows a link that has the last name.
fn go<T, W>(
    job: (Driver, CString, W),
    follows: bool,
    way: CountedDevices,
) -> Result<PathOutcome<T, (Driver, CString, W)>, DiskError>
where
    W: FnOnce(&Driver, &CStr) -> Result<T, DiskError>,
{
    if let Some(device) = job.0.leads_elsewhere(&job.1, follows, &way) {
        return Ok(PathOutcome::Elsewhere(job, device));
    }
    let (driver, path, work) = job;
    let result = work(&driver, &path);
    note_way(&way, &path);
    result.map(PathOutcome::Done)
}

/// Looks, in a job, whether its path led to another device than its name says, and remembers that.
pub(crate) fn note_way(way: &CountedDevices, path: &CStr) {
    if let (Some(counted), Some(found)) = (way.device(), device::touched())
        && !std::ptr::eq(counted.home(), found.home())
        && !counted.is_faulty()
    {
        mounts::correct(path);
    }
}

impl Disk {
    /// Opens an existing file.
    ///
    /// # Errors
    /// Errors of `openat2`; `ELOOP` at a link that [`OpenOptions::links`] refuses. As all operations: see [`DiskError`].
    pub async fn open(
        &self,
        account: &mut Account,
        path: &CStr,
        options: &OpenOptions,
    ) -> Result<File, DiskError> {
        match self.open_now(path, options) {
            Now::Ready(opened) => opened.map_err(|errno| Op::Open.failed(errno)),
            Now::Cold => self.open_cold(account, path, options).await,
        }
    }

    /// Opens like [`Disk::open`], after [`Now::Cold`].
    pub async fn open_cold(
        &self,
        account: &mut Account,
        path: &CStr,
        options: &OpenOptions,
    ) -> Result<File, DiskError> {
        let options = *options;
        self.job_at(account, Op::Open, path, move |driver, path| driver.open(path, &options)).await
    }

    /// Uses a file that was opened elsewhere, such as a block device that only the master may open. `path` is its path; without a
    /// descriptor, and on a simulated disk, that is opened.
    pub async fn adopt(
        &self,
        account: &mut Account,
        fd: Option<Arc<OwnedFd>>,
        path: &CStr,
        options: &OpenOptions,
    ) -> Result<File, DiskError> {
        let options = *options;
        self.job_at(account, Op::Open, path, move |driver, path| driver.adopt(fd, path, &options)).await
    }

    /// Size of a file or of a block device in bytes.
    pub async fn size(&self, account: &mut Account, file: &File) -> Result<u64, DiskError> {
        self.job_on(account, Op::Fstat, file, move |driver, file| driver.size(file.inner())).await
    }

    /// Locks a file until its last handle is dropped. Returns false if another process, or another open file of this one, has the
    /// lock.
    pub async fn lock(&self, account: &mut Account, file: &File) -> Result<bool, DiskError> {
        self.job_on(account, Op::Open, file, move |driver, file| driver.lock(file.inner())).await
    }

    /// Creates a file, and the directories of its path if `options` says so.
    pub async fn create(
        &self,
        account: &mut Account,
        path: &CStr,
        options: &CreateOptions,
    ) -> Result<File, DiskError> {
        let options = *options;
        self.job_at(account, Op::Create, path, move |driver, path| driver.create(path, &options)).await
    }

    /// Creates a temporary file in `dir`, which goes when it is dropped.
    pub async fn create_temp(
        &self,
        account: &mut Account,
        dir: &CStr,
        options: &TempOptions,
    ) -> Result<TempFile, DiskError> {
        let options = *options;
        self.job_at(account, Op::Create, dir, move |driver, dir| driver.create_temp(dir, &options)).await
    }

    /// [`Disk::create_temp`] and the first write to the file, as one job; nothing is left if either fails.
    pub async fn create_temp_with<B>(
        &self,
        account: &mut Account,
        dir: &CStr,
        options: &TempOptions,
        parts: Vec<B>,
    ) -> Result<TempFile, DiskError>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let options = *options;
        count_written(&parts);
        self.job_at(account, Op::Create, dir, move |driver, dir| {
            let temp = driver.create_temp(dir, &options)?;
            driver.write_parts(temp.file().inner(), 0, &mut slices(&parts))?;
            Ok(temp)
        })
        .await
    }

    /// Metadata of an open file as it is now.
    pub async fn stat_file(&self, account: &mut Account, file: &File) -> Result<FileMeta, DiskError> {
        if let Now::Ready(found) = self.stat_now(file) {
            return found.map_err(|errno| Op::Fstat.failed(errno));
        }
        self.job_on(account, Op::Fstat, file, move |driver, file| driver.fstat(file.inner())).await
    }

    /// Reads up to `buf.len()` bytes at `offset` and returns the buffer cut to what was read: empty only at the end of the
    /// file, and perhaps less than asked anywhere.
    pub async fn read(
        &self,
        account: &mut Account,
        file: &File,
        offset: u64,
        mut buf: Vec<u8>,
    ) -> Result<Vec<u8>, DiskError> {
        if let Now::Ready(read) = self.read_now(file, offset, &mut buf) {
            buf.truncate(read.map_err(|errno| Op::Read.failed(errno))?);
            return Ok(buf);
        }
        self.read_cold(account, file, offset, buf).await
    }

    /// Reads like [`Disk::read`], after [`Now::Cold`].
    pub async fn read_cold(
        &self,
        account: &mut Account,
        file: &File,
        offset: u64,
        buf: Vec<u8>,
    ) -> Result<Vec<u8>, DiskError> {
        let buf = match self.read_by_ring(account, file, offset, buf) {
            Ok(job) => {
                let done = job.await;
                account.charge(Op::Read, done.queued, done.queue_ns, done.service_ns);
                return done.result;
            }
            Err(ReadRefusal::Error(error)) => return Err(error),
            Err(ReadRefusal::Unsuited(buf)) => buf,
        };
        self.read_by_thread(account, file, offset, buf).await
    }

    fn read_by_ring(
        &self,
        account: &Account,
        file: &File,
        offset: u64,
        buf: Vec<u8>,
    ) -> Result<ReadJob, ReadRefusal> {
        let uring_queue = match self.pool.uring_queue() {
            Some(uring_queue) if self.aio == Aio::Uring && file.inner().suits_ring() => uring_queue,
            _ => return Err(ReadRefusal::Unsuited(buf)),
        };
        UringQueue::submit(uring_queue, account, file, offset, buf)
    }

    async fn read_by_thread(
        &self,
        account: &mut Account,
        file: &File,
        offset: u64,
        mut buf: Vec<u8>,
    ) -> Result<Vec<u8>, DiskError> {
        let read_job = file.inner().device.begin_read_job();
        self.job_on(account, Op::Read, file, move |driver, file| {
            let _visit = read_job;
            let n = driver.read(file.inner(), offset, &mut buf)?;
            buf.truncate(n);
            Ok(buf)
        })
        .await
    }

    /// Reads `len` bytes at `offset`, or up to the end of the file, and does `work` on them, always by a job: for work that takes
    /// longer than a loop may be kept.
    pub async fn read_and<T, W>(
        &self,
        account: &mut Account,
        file: &File,
        offset: u64,
        len: usize,
        work: W,
    ) -> Result<T, DiskError>
    where
        W: FnOnce(Vec<u8>) -> T + Send + 'static,
        T: Send + 'static,
    {
        let read_job = file.inner().device.begin_read_job();
        self.job_on(account, Op::Read, file, move |driver, file| {
            let _visit = read_job;
            let mut buf = vec![0; len];
            let n = driver.read(file.inner(), offset, &mut buf)?;
            buf.truncate(n);
            Ok(work(buf))
        })
        .await
    }

    /// Opens, reads and closes a file of at most `max` bytes, as one job; `EFBIG` if it is longer.
    pub async fn read_whole(
        &self,
        account: &mut Account,
        path: &CStr,
        max: usize,
    ) -> Result<Vec<u8>, DiskError> {
        self.job_at(account, Op::Read, path, move |driver, path| driver.read_whole(path, max)).await
    }

    /// Writes all of `data` at `offset` and gives it back. If it fails, some of it may have been written.
    pub async fn write<B>(
        &self,
        account: &mut Account,
        file: &File,
        offset: u64,
        data: B,
    ) -> Result<B, DiskError>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        memory::count_written(data.as_ref().len());
        self.job_on(account, Op::Write, file, move |driver, file| {
            driver.write(file.inner(), Some(offset), data.as_ref())?;
            Ok(data)
        })
        .await
    }

    /// Writes all of `parts`, one behind the other, at `offset`. If it fails, some of it may have been written.
    pub async fn write_parts<B>(
        &self,
        account: &mut Account,
        file: &File,
        offset: u64,
        parts: Vec<B>,
    ) -> Result<(), DiskError>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        count_written(&parts);
        self.job_on(account, Op::Write, file, move |driver, file| {
            driver.write_parts(file.inner(), offset, &mut slices(&parts))
        })
        .await
    }

    /// Writes like [`Disk::write_parts`] the parts that `make` returns, which the job calls. Returns its other result.
    pub async fn write_made<B, T, M>(
        &self,
        account: &mut Account,
        file: &File,
        offset: u64,
        make: M,
    ) -> Result<T, DiskError>
    where
        B: AsRef<[u8]>,
        T: Send + 'static,
        M: FnOnce() -> (Vec<B>, T) + Send + 'static,
    {
        self.job_on(account, Op::Write, file, move |driver, file| {
            let (parts, made) = make();
            driver.write_parts(file.inner(), offset, &mut slices(&parts))?;
            Ok(made)
        })
        .await
    }

    /// Makes `parts`, one behind the other, a file at `path`, as one job: readers see all of it or what was there
    /// before. Directories of the path behind its first `below` bytes are made where they are missing. Unlike
    /// [`Disk::replace`] it does not wait until the disk has it, so a crash may lose it.
    pub async fn put<B>(
        &self,
        account: &mut Account,
        path: &CStr,
        below: u32,
        parts: Vec<B>,
    ) -> Result<(), DiskError>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let work = move |driver: &Driver, path: &CStr| driver.put(path, below, &parts);
        self.job_at_name(account, Op::Create, path, work).await
    }

    /// Puts a file like [`Disk::put`] with the parts that `make` returns, which the job calls.
    pub async fn put_made<B, M>(
        &self,
        account: &mut Account,
        path: &CStr,
        below: u32,
        make: M,
    ) -> Result<(), DiskError>
    where
        B: AsRef<[u8]>,
        M: FnOnce() -> Vec<B> + Send + 'static,
    {
        let work = move |driver: &Driver, path: &CStr| driver.put(path, below, &make());
        self.job_at_name(account, Op::Create, path, work).await
    }

    /// Creates a file beside `path`, to be given that name by [`Disk::name`]; it goes when it is dropped before.
    pub async fn create_beside(
        &self,
        account: &mut Account,
        path: &CStr,
        below: u32,
    ) -> Result<TempFile, DiskError> {
        let work = move |driver: &Driver, path: &CStr| driver.create_beside(path, below);
        self.job_at_name(account, Op::Create, path, work).await
    }

    /// Gives a temporary file its name, in the place of what has it. If that fails, the file is removed.
    pub async fn name(&self, account: &mut Account, temp: TempFile, path: &CStr) -> Result<(), DiskError> {
        self.job_at(account, Op::Rename, path, move |driver, path| driver.name(temp, path)).await
    }

    /// Opens a file and reads its first bytes, at most `max`, as one job if one of the two would wait.
    pub async fn open_and_read(
        &self,
        account: &mut Account,
        path: &CStr,
        options: &OpenOptions,
        max: usize,
    ) -> Result<(File, Vec<u8>), DiskError> {
        let room =
            move |file: &File| vec![0; max.min(usize::try_from(file.meta().size).unwrap_or(usize::MAX))];
        if let Now::Ready(opened) = self.open_now(path, options) {
            let file = opened.map_err(|errno| Op::Open.failed(errno))?;
            let mut buf = room(&file);
            return match self.read_now(&file, 0, &mut buf) {
                Now::Ready(Ok(n)) if n == buf.len() => Ok((file, buf)),
                Now::Ready(Err(errno)) => Err(Op::Read.failed(errno)),
                Now::Ready(Ok(_)) | Now::Cold => {
                    let buf = self.read_cold(account, &file, 0, buf).await?;
                    Ok((file, buf))
                }
            };
        }
        let options = *options;
        self.job_at(account, Op::Open, path, move |driver, path| {
            let file = driver.open(path, &options)?;
            let mut buf = room(&file);
            let n = driver.read(file.inner(), 0, &mut buf)?;
            buf.truncate(n);
            Ok((file, buf))
        })
        .await
    }

    /// Makes `data` the whole of a file, as one job, and gives it back: it is written beside, reaches the disk, and then takes
    /// the name, so that readers see all of it or the old content. If it fails, nothing has changed.
    /// One at a time for each path.
    pub async fn replace<B>(
        &self,
        account: &mut Account,
        path: &CStr,
        mode: u32,
        data: B,
    ) -> Result<B, DiskError>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        self.job_at(account, Op::Write, path, move |driver, path| {
            driver.replace(path, mode, data.as_ref())?;
            Ok(data)
        })
        .await
    }

    /// Replaces a file like [`Disk::replace`] with the bytes that `make` returns, which the job calls.
    pub async fn replace_made<M>(
        &self,
        account: &mut Account,
        path: &CStr,
        mode: u32,
        make: M,
    ) -> Result<(), DiskError>
    where
        M: FnOnce() -> Vec<u8> + Send + 'static,
    {
        self.job_at(account, Op::Write, path, move |driver, path| driver.replace(path, mode, &make())).await
    }

    /// Replaces a file like [`Disk::replace_made`] without a result, whatever the length of the queue: at the end of a loop.
    pub fn replace_detached<M>(&self, account: &Account, path: &CStr, mode: u32, make: M)
    where
        M: FnOnce() -> Vec<u8> + Send + 'static,
    {
        let (driver, path) = (self.driver.clone(), path.to_owned());
        self.pool.run_detached(account, move || {
            // The process ends: whoever started it again finds the state before.
            let _ = driver.replace(&path, mode, &make());
        });
    }

    /// Writes all of `data` where the descriptor stands: at the end if the file was opened for appending.
    pub async fn append<B>(&self, account: &mut Account, file: &File, data: B) -> Result<B, DiskError>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        self.job_on(account, Op::Write, file, move |driver, file| {
            driver.write(file.inner(), None, data.as_ref())?;
            Ok(data)
        })
        .await
    }

    /// Waits until what was written to a file is on the disk.
    pub async fn fsync(&self, account: &mut Account, file: &File, what: Durable) -> Result<(), DiskError> {
        self.job_on(account, Op::Fsync, file, move |driver, file| {
            driver.fsync(file.inner(), what == Durable::Data)
        })
        .await
    }

    /// Has the disk take what was written to a file, part by part: begins with one part, waits for another, and drops pages
    /// from memory. What `options` wants finished is on the disk then, and not safe all the same: that is what [`Disk::fsync`] is
    /// for.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC` … if the disk has not taken something of the file. Whatever was not finished before may read as
    /// something else from now on.
    pub async fn write_back(
        &self,
        account: &mut Account,
        file: &File,
        options: WriteBack,
    ) -> Result<(), DiskError> {
        self.job_on(account, Op::WriteBack, file, move |driver, file| {
            driver.write_back(file.inner(), &options)
        })
        .await
    }

    /// Sets the access and modification time: seconds since 1970 and nanoseconds within the second.
    pub async fn set_mtime(
        &self,
        account: &mut Account,
        file: &File,
        sec: i64,
        nsec: u32,
    ) -> Result<(), DiskError> {
        self.job_on(account, Op::SetTimes, file, move |driver, file| {
            driver.set_mtime(file.inner(), sec, nsec)
        })
        .await
    }

    /// Sets the permission bits.
    pub async fn set_mode(&self, account: &mut Account, file: &File, mode: u32) -> Result<(), DiskError> {
        self.job_on(account, Op::SetMode, file, move |driver, file| driver.set_mode(file.inner(), mode)).await
    }

    /// Sets the length.
    pub async fn truncate(&self, account: &mut Account, file: &File, size: u64) -> Result<(), DiskError> {
        self.job_on(account, Op::Truncate, file, move |driver, file| driver.truncate(file.inner(), size))
            .await
    }

    /// Copies a file's content to a new file, which is returned, as one job; nothing of it is left if it fails.
    /// `links` is for the source.
    pub async fn copy(
        &self,
        account: &mut Account,
        from: &CStr,
        links: Links,
        to: &CStr,
        options: &CreateOptions,
    ) -> Result<File, DiskError> {
        let to = to.to_owned();
        let options = *options;
        self.job_at(account, Op::Copy, from, move |driver, from| driver.copy(from, links, &to, &options))
            .await
    }

    /// Sends up to `len` bytes of a file to a non-blocking socket from inside the kernel, always by a job: `sendfile` waits
    /// for pages that are not in memory, even for those that are being read.
    ///
    /// If the future is dropped, a job that has begun still writes to the socket: close the connection.
    pub async fn sendfile(
        &self,
        account: &mut Account,
        file: &File,
        offset: u64,
        len: usize,
        socket: &SocketFd,
    ) -> Result<Sent, DiskError> {
        let socket = socket.clone();
        let read_job = file.inner().device.begin_read_job();
        self.job_on(account, Op::Sendfile, file, move |driver, file| {
            let _visit = read_job;
            driver.sendfile(file.inner(), offset, len, &socket)
        })
        .await
    }

    /// Does the work of an operation on what is at `path` by a job, or here with [`Aio::Off`].
    async fn job_at<T, W>(&self, account: &mut Account, op: Op, path: &CStr, work: W) -> Result<T, DiskError>
    where
        W: FnOnce(&Driver, &CStr) -> Result<T, DiskError> + Send + 'static,
        T: Send + 'static,
    {
        self.job_along(account, op, path, op.follows_links(), work).await
    }

    /// Like [`Disk::job_at`], for an operation that does not follow a link which has the last name of `path`.
    async fn job_at_name<T, W>(
        &self,
        account: &mut Account,
        op: Op,
        path: &CStr,
        work: W,
    ) -> Result<T, DiskError>
    where
        W: FnOnce(&Driver, &CStr) -> Result<T, DiskError> + Send + 'static,
        T: Send + 'static,
    {
        self.job_along(account, op, path, false, work).await
    }

    async fn job_along<T, W>(
        &self,
        account: &mut Account,
        op: Op,
        path: &CStr,
        follows: bool,
        work: W,
    ) -> Result<T, DiskError>
    where
        W: FnOnce(&Driver, &CStr) -> Result<T, DiskError> + Send + 'static,
        T: Send + 'static,
    {
        if self.aio == Aio::Off {
            self.count_inline(op);
            return work(&self.driver, path);
        }
        let mut way = CountedDevices::new(self.driver.device_at(path));
        let mut job = (self.driver.clone(), path.to_owned(), work);
        loop {
            let now = way;
            let went = self.pool.job(account, op, way.device(), move || go(job, follows, now)).await?;
            match went {
                PathOutcome::Done(result) => return Ok(result),
                PathOutcome::Elsewhere(same, device) => {
                    job = same;
                    way.turn(device);
                }
            }
        }
    }

    /// Does the work of an operation on an open file by a job, or here with [`Aio::Off`].
    async fn job_on<T, W>(&self, account: &mut Account, op: Op, file: &File, work: W) -> Result<T, DiskError>
    where
        W: FnOnce(&Driver, &File) -> Result<T, DiskError> + Send + 'static,
        T: Send + 'static,
    {
        if self.aio == Aio::Off {
            self.count_inline(op);
            return work(&self.driver, file);
        }
        let driver = self.driver.clone();
        let file = file.clone();
        let device = driver.device_under(&file);
        self.pool.job(account, op, device, move || work(&driver, &file)).await
    }
}

/// Counts parts that are about to be written in the account of memory.
fn count_written<B: AsRef<[u8]>>(parts: &[B]) {
    memory::count_written(parts.iter().map(|part| part.as_ref().len()).sum());
}

pub(crate) fn slices<B: AsRef<[u8]>>(parts: &[B]) -> Vec<IoSlice<'_>> {
    parts.iter().map(|part| IoSlice::new(part.as_ref())).collect()
}
