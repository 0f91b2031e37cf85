//! Operations on paths: facts about what is there, names of directories, removal and renaming.

use crate::account::Account;
use crate::disk::Disk;
use crate::error::DiskError;
use crate::file::{File, Now};
use crate::meta::{FileMeta, Listing, ListingPart, Space};
use crate::op::Op;
use std::ffi::{CStr, CString};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Names read of one directory.
    ///
    /// The most names one [`Disk::list`] returns unless the caller asks for fewer: some 20 MB of memory.
    pub const LIST_MAX: usize = 100_000, count, "the listing ends there";
}

impl Disk {
    /// Metadata of what a path leads to, through symbolic links.
    pub async fn stat(&self, account: &mut Account, path: &CStr) -> Result<FileMeta, DiskError> {
        if let Now::Ready(meta) = self.probe_now(path) {
            return meta.map_err(|errno| Op::Stat.failed(errno));
        }
        self.job_at(account, Op::Stat, path, move |driver, path| driver.stat(path, true)).await
    }

    /// Metadata of a path itself, be it a symbolic link.
    pub async fn stat_link(&self, account: &mut Account, path: &CStr) -> Result<FileMeta, DiskError> {
        self.job_at(account, Op::StatLink, path, move |driver, path| driver.stat(path, false)).await
    }

    /// Reads a directory: at most `max` names (see [`LIST_MAX`]), each with its metadata.
    pub async fn list(&self, account: &mut Account, path: &CStr, max: usize) -> Result<Listing, DiskError> {
        self.job_at(account, Op::List, path, move |driver, path| driver.list(path, max, None)).await
    }

    /// Lists like [`Disk::list`], with the metadata of symbolic links themselves: for walks of a tree. A link behind the first
    /// `from` bytes of `path` is `ELOOP`.
    pub async fn list_links(
        &self,
        account: &mut Account,
        path: &CStr,
        max: usize,
        from: u32,
    ) -> Result<Listing, DiskError> {
        self.job_at(account, Op::List, path, move |driver, path| driver.list(path, max, Some(from))).await
    }

    /// Reads a part of an open directory, some hundred names of it: the first part from 0, and from [`ListingPart::next`] on as
    /// long as there is one. One at a time for each descriptor.
    pub async fn list_part(
        &self,
        account: &mut Account,
        directory: &File,
        from: u64,
    ) -> Result<ListingPart, DiskError> {
        self.job_on(account, Op::List, directory, move |driver, file| driver.list_part(file.inner(), from))
            .await
    }

    /// Removes a file, or a link itself; a link on the way to it, behind the first `from` bytes of `path`, is `ELOOP`.
    pub async fn unlink_below(&self, account: &mut Account, path: &CStr, from: u32) -> Result<(), DiskError> {
        self.job_at(account, Op::Unlink, path, move |driver, path| driver.unlink_below(path, from)).await
    }

    /// Removes an empty directory; a link on the way to it, behind the first `from` bytes of `path`, is `ELOOP`.
    pub async fn rmdir_below(&self, account: &mut Account, path: &CStr, from: u32) -> Result<(), DiskError> {
        self.job_at(account, Op::Rmdir, path, move |driver, path| driver.rmdir_below(path, from)).await
    }

    /// Creates one directory.
    pub async fn mkdir(&self, account: &mut Account, path: &CStr, mode: u32) -> Result<(), DiskError> {
        self.job_at(account, Op::Mkdir, path, move |driver, path| driver.mkdir(path, mode)).await
    }

    /// Creates a directory and those above it that are missing; one that exists is fine.
    pub async fn mkdir_all(&self, account: &mut Account, path: &CStr, mode: u32) -> Result<(), DiskError> {
        self.job_at(account, Op::Mkdir, path, move |driver, path| driver.mkdir_all(path, mode)).await
    }

    /// Renames, replacing what is there; `EXDEV` between file systems ([`Disk::copy`], then rename).
    pub async fn rename(&self, account: &mut Account, from: &CStr, to: &CStr) -> Result<(), DiskError> {
        let to = to.to_owned();
        self.job_at(account, Op::Rename, from, move |driver, from| driver.rename(from, &to)).await
    }

    /// Gives a file a second name.
    pub async fn link(&self, account: &mut Account, from: &CStr, to: &CStr) -> Result<(), DiskError> {
        let to = to.to_owned();
        self.job_at(account, Op::Link, from, move |driver, from| driver.link(from, &to)).await
    }

    /// Removes a name.
    pub async fn unlink(&self, account: &mut Account, path: &CStr) -> Result<(), DiskError> {
        self.job_at(account, Op::Unlink, path, move |driver, path| driver.unlink(path)).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, account: &mut Account, path: &CStr) -> Result<(), DiskError> {
        self.job_at(account, Op::Rmdir, path, move |driver, path| driver.rmdir(path)).await
    }

    /// Waits until the names in a directory are on the disk.
    pub async fn sync_dir(&self, account: &mut Account, path: &CStr) -> Result<(), DiskError> {
        self.job_at(account, Op::Fsync, path, move |driver, path| driver.sync_dir(path)).await
    }

    /// Room on the file system that holds `path`.
    pub async fn space(&self, account: &mut Account, path: &CStr) -> Result<Space, DiskError> {
        self.job_at(account, Op::Space, path, move |driver, path| driver.space(path)).await
    }

    /// Reads the target of a symbolic link.
    pub async fn readlink(&self, account: &mut Account, path: &CStr) -> Result<CString, DiskError> {
        self.job_at(account, Op::Readlink, path, move |driver, path| driver.readlink(path)).await
    }

    /// The absolute path without symbolic links (`$realpath_root`).
    pub async fn realpath(&self, account: &mut Account, path: &CStr) -> Result<CString, DiskError> {
        self.job_at(account, Op::Realpath, path, move |driver, path| driver.realpath(path)).await
    }
}
