//! The operations that may wait, as futures.
//!
//! Each takes the [`Account`] it runs on first. A dropped future takes its job back if no thread has begun it; a job that
//! has been begun keeps its buffers and files until it ends, on the thread that ran it.

mod change;
mod jobs;
mod paths;
mod read;
mod write;

pub use change::PathCalls;
pub(crate) use jobs::note_way;
pub(crate) use paths::LIMITS;
pub use paths::LIST_MAX;
pub use write::Durable;
pub(crate) use write::slices;

use crate::account::Account;
use crate::disk::Disk;
use crate::driver::Driver;
use crate::error::DiskError;
use crate::file::{File, Now};
use crate::op::Op;
use crate::open_options::{CreateOptions, Links, OpenOptions, TempOptions};
use crate::temp::TempFile;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use write::count_written;

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
}
