//! Jobs of operations: on an open file, or at a path, whose links may lead to another device than its name says.

use std::ffi::{CStr, CString};

use crate::account::Account;
use crate::device::{self, Device};
use crate::disk::{Aio, Disk};
use crate::driver::Driver;
use crate::error::DiskError;
use crate::file::File;
use crate::mounts::{self, CountedDevices};
use crate::op::Op;

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
    if let (Some(counted), Some(device)) = (way.device(), device::touched())
        && !std::ptr::eq(counted.home(), device.home())
        && !counted.is_faulty()
    {
        mounts::correct(path);
    }
}

impl Disk {
    /// Does the work of an operation on what is at `path` by a job, or here with [`Aio::Off`].
    pub(super) async fn job_at<T, W>(
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
        self.job_along(account, op, path, op.follows_links(), work).await
    }

    /// Like [`Disk::job_at`], for an operation that does not follow a link which has the last name of `path`.
    pub(super) async fn job_at_name<T, W>(
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
    pub(super) async fn job_on<T, W>(
        &self,
        account: &mut Account,
        op: Op,
        file: &File,
        work: W,
    ) -> Result<T, DiskError>
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
