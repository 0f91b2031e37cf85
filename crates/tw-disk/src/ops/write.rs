//! Operations that write a file.

use std::ffi::CStr;
use std::io::IoSlice;

use tw_base::memory;

use crate::account::Account;
use crate::disk::Disk;
use crate::driver::Driver;
use crate::error::DiskError;
use crate::file::File;
use crate::op::Op;
use crate::open_options::WriteBack;

/// Data that must have reached the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// The content, and what is needed to read it.
    Data,
    /// All metadata too.
    All,
}

impl Disk {
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
}

/// Counts parts that are about to be written in the account of memory.
pub(super) fn count_written<B: AsRef<[u8]>>(parts: &[B]) {
    memory::count_written(parts.iter().map(|part| part.as_ref().len()).sum());
}

pub(crate) fn slices<B: AsRef<[u8]>>(parts: &[B]) -> Vec<IoSlice<'_>> {
    parts.iter().map(|part| IoSlice::new(part.as_ref())).collect()
}
