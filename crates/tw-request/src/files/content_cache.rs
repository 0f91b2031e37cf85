//! Contents of small, often requested files, in memory.
//!
//! A clock over the files that have contents: when memory runs out, contents that were not used since the hand last passed
//! are dropped, and their files stay open. What a response still sends from dropped contents stays in memory until it is
//! sent, and is no longer counted here: a slow reader holds at most [`HOT_FILE_MAX`] bytes that way.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_disk::{Disk, FileKind, Now};

use super::open_file::{CachedContent, Content, OpenFile};

/// Largest file whose contents are kept in memory, bytes. Above it, copying dominates and the page cache does as well.
pub const HOT_FILE_MAX: u64 = 64 << 10;
/// A file younger than this is not kept in memory: two changes within one tick of the file system's clock would look alike.
const SETTLED: Duration = Duration::from_secs(2);
/// Time during which contents are not read again that could not be read without waiting, or were evicted.
const ABSENCE: Duration = Duration::from_secs(1);

/// The files whose contents are in memory.
pub(super) struct ContentCache {
    files: Vec<Rc<OpenFile>>,
    bytes: usize,
    max: usize,
    hand: usize,
    /// Buffer for contents that are not yet known to be complete. Empty until the first read.
    scratch: Box<[u8]>,
}

impl ContentCache {
    /// Room for `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { files: Vec::new(), bytes: 0, max, hand: 0, scratch: Box::default() }
    }

    /// Bytes of contents.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes a use of a file of the table, and reads its contents if they are small, in the page cache and have settled.
    pub(super) fn used(&mut self, disk: &Disk, file: &Rc<OpenFile>, now: Instant) {
        if file.is_locked() {
            // One copy, locked for all loops, is enough.
            return self.forget(file);
        }
        match &mut *file.content.borrow_mut() {
            Content::InMemory(kept) => {
                kept.recent = true;
                return;
            }
            Content::Absent(until) if now < *until => return,
            Content::Absent(_) | Content::Unread => {}
        }
        let Some(size) = self.worth(file) else { return };
        if self.scratch.is_empty() {
            self.scratch = vec![0; HOT_FILE_MAX as usize].into();
        }
        let read = disk.read_now(&file.file, 0, &mut self.scratch[..size]);
        if read == Now::Ready(Ok(size)) {
            let bytes = Bytes::copy_from_slice(&self.scratch[..size]);
            self.keep(file, bytes, now);
        } else {
            *file.content.borrow_mut() = Content::Absent(now + ABSENCE);
        }
    }

    /// The size of a file whose contents may be kept.
    fn worth(&self, file: &OpenFile) -> Option<usize> {
        let meta = file.meta();
        if meta.kind != FileKind::File || meta.size > HOT_FILE_MAX || file.options.direct_from <= meta.size {
            return None;
        }
        let age = tw_rt::clock::unix().secs.saturating_sub(meta.ctime_sec.max(meta.mtime_sec));
        let size = meta.size as usize;
        (age > SETTLED.as_secs() as i64 && size > 0 && size <= self.max).then_some(size)
    }

    /// Makes room first: what comes in cannot be what has to go.
    fn keep(&mut self, file: &Rc<OpenFile>, bytes: Bytes, now: Instant) {
        while self.bytes + bytes.len() > self.max && self.evict(now) {}
        self.bytes += bytes.len();
        let kept = CachedContent { bytes, head: Rc::default(), at: self.files.len(), recent: false };
        *file.content.borrow_mut() = Content::InMemory(kept);
        self.files.push(file.clone());
    }

    /// Drops the contents of one file that were not used since the hand last passed; `false` when there are none at all.
    fn evict(&mut self, now: Instant) -> bool {
        while !self.files.is_empty() {
            self.hand %= self.files.len();
            let file = self.files[self.hand].clone();
            if let Content::InMemory(kept) = &mut *file.content.borrow_mut()
                && std::mem::take(&mut kept.recent)
            {
                self.hand += 1;
                continue;
            }
            // Not read again at once, lest files that do not fit together push each other out with every request.
            self.take(&file, Content::Absent(now + ABSENCE));
            return true;
        }
        false
    }

    /// Drops the contents of a file that leaves the table.
    pub(super) fn forget(&mut self, file: &OpenFile) {
        self.take(file, Content::Unread);
    }

    fn take(&mut self, file: &OpenFile, instead: Content) {
        let Content::InMemory(kept) = file.content.replace(instead) else { return };
        self.bytes -= kept.bytes.len();
        self.files.swap_remove(kept.at);
        if let Some(moved) = self.files.get(kept.at)
            && let Content::InMemory(other) = &mut *moved.content.borrow_mut()
        {
            other.at = kept.at;
        }
    }
}

#[cfg(test)]
impl ContentCache {
    /// Returns the number of files after checking the index and the sum of bytes.
    pub(super) fn check(&self) -> usize {
        let mut sum = 0;
        for (at, file) in self.files.iter().enumerate() {
            let Content::InMemory(kept) = &*file.content.borrow() else { panic!("hot without contents") };
            assert_eq!(kept.at, at);
            sum += kept.bytes.len();
        }
        assert_eq!(sum, self.bytes);
        assert!(sum <= self.max, "{sum} of {}", self.max);
        self.files.len()
    }

    pub(super) fn has(&self, file: &Rc<OpenFile>) -> bool {
        self.files.iter().any(|hot| Rc::ptr_eq(hot, file))
    }
}
