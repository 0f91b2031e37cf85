//! Several calls of one job: a change, and the looks that it depends on. No other operation of the caller's comes between them
//! if a lock that all of its changes take keeps it away.

use crate::account::Account;
use crate::disk::{Aio, Disk};
use crate::driver::Driver;
use crate::error::DiskError;
use crate::meta::FileMeta;
use crate::op::Op;
use std::ffi::CStr;

/// Calls on paths in a job of [`Disk::change`]. All may wait.
pub struct PathCalls<'d>(&'d Driver);

impl PathCalls<'_> {
    /// Metadata of what a path leads to, through symbolic links.
    pub fn stat(&self, path: &CStr) -> Result<FileMeta, DiskError> {
        self.0.stat(path, true)
    }

    /// Renames, replacing what is there.
    pub fn rename(&self, from: &CStr, to: &CStr) -> Result<(), DiskError> {
        self.0.rename(from, to)
    }

    /// Renames to a name that nothing has, or fails with `EEXIST`.
    pub fn rename_new(&self, from: &CStr, to: &CStr) -> Result<(), DiskError> {
        self.0.rename_new(from, to)
    }

    /// Removes a name.
    pub fn unlink(&self, path: &CStr) -> Result<(), DiskError> {
        self.0.unlink(path)
    }
}

impl Disk {
    /// Does all calls of `work` by one job at `path`, which counts as `op`.
    pub async fn change<T, W>(
        &self,
        account: &mut Account,
        op: Op,
        path: &CStr,
        work: W,
    ) -> Result<T, DiskError>
    where
        W: FnOnce(&PathCalls<'_>, &CStr) -> Result<T, DiskError> + Send + 'static,
        T: Send + 'static,
    {
        self.job_at_name(account, op, path, move |driver, path| work(&PathCalls(driver), path)).await
    }

    /// Runs a closure as a job on the device of `path`: the door for a library that opens files itself. Never runs on the calling thread.
    ///
    /// # Errors
    /// The errors of [`Pool::run`](crate::Pool::run), and [`DiskError::Hung`] if the device makes no progress.
    pub async fn run_at<T, W>(&self, account: &mut Account, path: &CStr, work: W) -> Result<T, DiskError>
    where
        W: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let threads = self.with_aio(Aio::Threads);
        threads.job_at_name(account, Op::Run, path, move |_, _| Ok(work())).await
    }
}
