//! Reads of an open file for a request.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tw_disk::{Disk, DiskError, File, Now};

use super::block_check::BlockCheck;
use super::open_file::OpenFile;
use crate::body::AlreadyLogged;
use crate::request::Request;

impl OpenFile {
    /// Reads up to `want` bytes at `offset`; nothing at the end of the file. May wait for the disk.
    pub async fn read(&self, offset: u64, want: usize, r: &mut Request) -> io::Result<Bytes> {
        if let Some(content) = self.content() {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
            return Ok(content.slice(start..content.len().min(start.saturating_add(want))));
        }
        let Some(disk) = r.disk().cloned() else { return Err(io::ErrorKind::NotFound.into()) };
        let Some(check) = &self.check else {
            let buf = disk.read(&mut r.costs.account, &self.file, offset, vec![0; want]).await;
            return buf.map(Bytes::from).map_err(read_error);
        };
        let verified = check.verified_len(offset, want as u64);
        if verified > 0 {
            let mut buf = vec![0; usize::try_from(verified).unwrap_or(want).min(want)];
            if let Now::Ready(read) = disk.read_now(&self.file, offset, &mut buf) {
                buf.truncate(read?);
                return Ok(buf.into());
            }
        }
        read_verified(r, &disk, check, &self.file, offset, want).await
    }

    /// Reads up to `want` bytes at `offset` by a job, which compares them with their checksums if there are some; nothing at the
    /// end of the file. Damage is reported and logged.
    pub async fn read_cold(&self, offset: u64, want: usize, r: &mut Request) -> io::Result<Bytes> {
        let Some(disk) = r.disk().cloned() else { return Err(io::ErrorKind::NotFound.into()) };
        let Some(check) = &self.check else {
            let buf = disk.read_cold(&mut r.costs.account, &self.file, offset, vec![0; want]).await;
            return buf.map(Bytes::from).map_err(read_error);
        };
        read_verified(r, &disk, check, &self.file, offset, want).await
    }
}

/// Reads the bytes of a file at an offset, at most so many, and compares them with their checksums. A block that differs is
/// reported and logged.
pub async fn read_verified(
    r: &mut Request,
    disk: &Disk,
    check: &Arc<BlockCheck>,
    file: &File,
    offset: u64,
    want: usize,
) -> io::Result<Bytes> {
    let read = check.read(disk, &mut r.costs.account, file, offset, want).await;
    read.map_err(read_error)?.map_err(|block| {
        check.report(r, block);
        io::Error::other(AlreadyLogged)
    })
}

fn read_error(error: DiskError) -> io::Error {
    match error.errno() {
        Some(errno) => io::Error::from(errno),
        None => io::Error::other(error),
    }
}
