//! Queue of purges that the engine has not got yet. It is on disk, so that they outlive this process.
//!
//! ```text
//! each entry: size (u32), CRC-32, text; little-endian
//! ```
//! Entries are appended and synced together. When all have been published, the file is emptied. After a crash some may be published
//! twice, which purges twice. A torn last entry was never acknowledged to anybody.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::directory::{DirectoryLock, StateDirectory, failed};
use crate::record::RECORD_SIZE_MAX;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Purges that wait on disk for the engine of a fleet.
    pub(crate) const QUEUE_COUNT_MAX: usize = 200_000, count, "503: a further one is applied on this node only";
    /// Bytes of purges that wait on disk for the engine of a fleet.
    pub(crate) const QUEUE_SIZE_MAX: usize = 64 << 20, bytes, "503: a further one is applied on this node only";
}

/// Queue of one node.
#[derive(Debug)]
pub(crate) struct Queue {
    path: PathBuf,
    file: File,
    entries: VecDeque<Vec<u8>>,
    size: usize,
    /// Length of the file up to the last whole entry.
    len: u64,
}

impl Queue {
    /// Opens the queue, and drops a torn end of it. Returns the number of bytes that were dropped, too.
    pub(crate) fn open(directory: &StateDirectory, _lock: &DirectoryLock) -> Result<(Self, u64), String> {
        let path = directory.join("queue");
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = file.map_err(|error| failed("open()", &path, &error))?;
        let mut bytes = Vec::new();
        let limit = QUEUE_SIZE_MAX + 8 * QUEUE_COUNT_MAX;
        (&file)
            .take(limit as u64)
            .read_to_end(&mut bytes)
            .map_err(|error| failed("read()", &path, &error))?;
        let mut entries = VecDeque::new();
        let mut size = 0;
        let mut rest = &*bytes;
        while let Some((entry, behind)) = split_entry(rest) {
            size += entry.len();
            entries.push_back(entry.to_vec());
            rest = behind;
        }
        let len = (bytes.len() - rest.len()) as u64;
        let whole = file.metadata().map_or(0, |meta| meta.len());
        file.set_len(len)
            .and_then(|()| file.seek(SeekFrom::Start(len)))
            .map_err(|error| failed("ftruncate()", &path, &error))?;
        Ok((Self { path, file, entries, size, len }, whole - len))
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Appends entries, all or none of them, and waits until they are on disk.
    pub(crate) fn append(&mut self, added: &[Vec<u8>]) -> Result<(), String> {
        let size: usize = added.iter().map(Vec::len).sum();
        if self.entries.len() + added.len() > QUEUE_COUNT_MAX || self.size + size > QUEUE_SIZE_MAX {
            return Err("the queue is full".to_owned());
        }
        let mut bytes = Vec::with_capacity(size + 8 * added.len());
        for entry in added {
            bytes.extend_from_slice(&u32::try_from(entry.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(&crc32fast::hash(entry).to_le_bytes());
            bytes.extend_from_slice(entry);
        }
        if let Err(error) = self.file.write_all(&bytes).and_then(|()| self.file.sync_data()) {
            // Half an entry must not be in front of the next one.
            let _ = self.file.set_len(self.len).and_then(|()| self.file.seek(SeekFrom::Start(self.len)));
            return Err(failed("write()", &self.path, &error));
        }
        self.len += bytes.len() as u64;
        self.size += size;
        self.entries.extend(added.iter().cloned());
        Ok(())
    }

    /// The first entries.
    pub(crate) fn first(&self, count: usize) -> Vec<Vec<u8>> {
        self.entries.iter().take(count).cloned().collect()
    }

    /// Forgets the first entries, which are published. The file is emptied with the last one.
    pub(crate) fn remove(&mut self, count: usize) -> Result<(), String> {
        let count = count.min(self.entries.len());
        self.size -= self.entries.drain(..count).map(|entry| entry.len()).sum::<usize>();
        if !self.entries.is_empty() || self.len == 0 {
            return Ok(());
        }
        let emptied =
            self.file.set_len(0).and_then(|()| self.file.rewind()).and_then(|()| self.file.sync_data());
        emptied.map_err(|error: io::Error| failed("ftruncate()", &self.path, &error))?;
        self.len = 0;
        Ok(())
    }
}

/// The first entry of `bytes`, and what is behind it; `None` if it is not whole.
fn split_entry(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let size = usize::try_from(u32::from_le_bytes(*size)).ok().filter(|size| *size <= RECORD_SIZE_MAX)?;
    let (entry, rest) = rest.split_at_checked(size)?;
    (crc32fast::hash(entry) == u32::from_le_bytes(*sum)).then_some((entry, rest))
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    fn entries(texts: &[&str]) -> Vec<Vec<u8>> {
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    #[test]
    fn queue_survives_a_restart_without_its_torn_end() {
        let dir = TempDir::new("fleet-queue").unwrap();
        let directory = StateDirectory::new(&dir.join("fleet"));
        let lock = directory.lock().unwrap().unwrap();
        let open = || Queue::open(&directory, &lock).unwrap();
        let (mut queue, _) = open();
        queue.append(&entries(&["one", "two"])).unwrap();
        queue.append(&entries(&["three"])).unwrap();
        drop(queue);
        let whole = std::fs::read(directory.join("queue")).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(directory.join("queue"), &whole[..cut]).unwrap();
            let (mut queue, dropped) = open();
            let expected = [11, 22, 35].iter().filter(|end| **end <= cut).count();
            assert_eq!((queue.len(), dropped as usize), (expected, cut - [0, 11, 22][expected]), "{cut}");
            queue.append(&entries(&["four"])).unwrap();
            drop(queue);
            assert_eq!(open().0.first(9).last().unwrap(), b"four");
        }
        std::fs::write(directory.join("queue"), &whole).unwrap();
        let (mut queue, _) = open();
        assert_eq!(queue.first(2), entries(&["one", "two"]));
        queue.remove(2).unwrap();
        // Published entries are in the queue again after a crash, until all of it was published.
        assert_eq!(open().0.len(), 3);
        queue.remove(1).unwrap();
        assert_eq!((queue.len(), std::fs::metadata(directory.join("queue")).unwrap().len()), (0, 0));
        queue.append(&entries(&["five"])).unwrap();
        assert_eq!(open().0.first(9), entries(&["five"]));
    }

    #[test]
    fn queue_is_bounded() {
        let dir = TempDir::new("fleet-queue").unwrap();
        let directory = StateDirectory::new(&dir.join("fleet"));
        let lock = directory.lock().unwrap().unwrap();
        let (mut queue, _) = Queue::open(&directory, &lock).unwrap();
        queue.append(&vec![b"x".to_vec(); QUEUE_COUNT_MAX]).unwrap();
        assert_eq!(queue.append(&entries(&["x"])), Err("the queue is full".to_owned()));
        drop(queue);
        assert_eq!(Queue::open(&directory, &lock).unwrap().0.len(), QUEUE_COUNT_MAX);
    }
}
