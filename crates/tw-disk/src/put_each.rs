//! Several new files by one job: the hand-over to a thread, and the way back, cost as much as a small file.

use std::ffi::CString;

use crate::account::Account;
use crate::device::Device;
use crate::disk::{Aio, Disk};
use crate::driver::Driver;
use crate::error::DiskError;
use crate::mounts::CountedDevices;
use crate::op::Op;
use crate::ops::note_way;

/// File that is put at its path, whatever is there.
pub struct NewFile<B> {
    /// Path of the file.
    pub path: CString,
    /// Returns the content, in parts. A job calls it.
    pub make: MakeParts<B>,
}

/// Function that returns the parts of a file.
pub type MakeParts<B> = Box<dyn FnOnce() -> Vec<B> + Send>;

/// Result of a file, or the file if its path leads to another device than that of the job.
type Put<B> = Result<Result<(), DiskError>, NewFile<B>>;

impl Disk {
    /// Puts files like [`Disk::put_made`], by one job. Returns the results in the order of the files: one that fails does not stop
    /// the others.
    pub async fn put_each<B>(
        &self,
        account: &mut Account,
        below: u32,
        files: Vec<NewFile<B>>,
    ) -> Vec<Result<(), DiskError>>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let count = files.len();
        let Some(first) = files.first() else { return Vec::new() };
        if self.aio == Aio::Off {
            let put = |NewFile { path, make }: NewFile<B>| {
                self.count_inline(Op::Create);
                self.driver.put(&path, below, &make())
            };
            return files.into_iter().map(put).collect();
        }
        let driver = self.driver.clone();
        let device = self.driver.device_at(&first.path);
        let work = move || Ok(files.into_iter().map(|file| put(&driver, device, below, file)).collect());
        let put: Vec<Put<B>> = match self.pool.job(account, Op::Create, device, work).await {
            Ok(put) => put,
            Err(error) => return vec![Err(error); count],
        };
        let mut results = Vec::with_capacity(count);
        for put in put {
            results.push(match put {
                Ok(result) => result,
                Err(NewFile { path, make }) => self.put_made(account, &path, below, make).await,
            });
        }
        results
    }
}

/// Puts one file, in a job that counts for `device`.
fn put<B: AsRef<[u8]>>(
    driver: &Driver,
    device: Option<&'static Device>,
    below: u32,
    file: NewFile<B>,
) -> Put<B> {
    let way = CountedDevices::new(device);
    let own = driver.device_at(&file.path);
    let is_own = match (own, device) {
        (Some(own), Some(device)) => std::ptr::eq(own, device),
        (own, device) => own.is_none() && device.is_none(),
    };
    if !is_own || driver.leads_elsewhere(&file.path, false, &way).is_some() {
        return Err(file);
    }
    let result = driver.put(&file.path, below, &(file.make)());
    note_way(&way, &file.path);
    Ok(result)
}
