//! Operations that read a file.

use std::ffi::CStr;

use crate::account::Account;
use crate::disk::{Aio, Disk, SocketFd};
use crate::driver::Sent;
use crate::error::DiskError;
use crate::file::{File, Now};
use crate::meta::FileMeta;
use crate::op::Op;
use crate::open_options::OpenOptions;
use crate::ring::{ReadJob, ReadRefusal, UringQueue};

impl Disk {
    /// Metadata of an open file as it is now.
    pub async fn stat_file(&self, account: &mut Account, file: &File) -> Result<FileMeta, DiskError> {
        if let Now::Ready(meta) = self.stat_now(file) {
            return meta.map_err(|errno| Op::Fstat.failed(errno));
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
}
