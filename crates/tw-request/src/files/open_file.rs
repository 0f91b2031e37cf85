//! An open file with what is known of it: metadata, entity tag, contents, lock, checksums. It knows no request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tw_disk::{File, FileKind, FileMeta, LockedFile, OpenOptions};
use tw_http::HeadMemo;
use tw_http::condition::Etag;

use super::block_check::BlockCheck;

/// An open file or directory.
pub struct OpenFile {
    pub(super) file: File,
    etag: Bytes,
    pub(super) content: RefCell<Content>,
    pub(super) lock: RefCell<Lock>,
    /// The turn in which it was last seen to be what it was when it was opened.
    pub(super) looked: Cell<Option<Instant>>,
    pub(super) options: OpenOptions,
    /// Checksums of its content, if those are compared.
    pub(super) check: Option<Arc<BlockCheck>>,
}

/// The contents of an open file.
pub(super) enum Content {
    /// Not read yet.
    Unread,
    /// Not in memory, and not to be read into it before this time.
    Absent(Instant),
    /// In memory.
    InMemory(CachedContent),
}

/// Contents in memory.
pub(super) struct CachedContent {
    pub(super) bytes: Bytes,
    pub(super) head: Rc<HeadMemo>,
    /// Index in the list of files whose contents are in memory.
    pub(super) at: usize,
    /// Used since the hand last passed.
    pub(super) recent: bool,
}

/// Lock state of an open file.
pub(super) enum Lock {
    /// Number of uses so far, too few to lock the file.
    Uses(u8),
    /// Not lockable, or evicted; not tried before this time.
    Absent(Instant),
    /// Locked, or being locked.
    Held(LockedFile),
    /// Changed since it was opened.
    Changed,
}

impl OpenFile {
    pub(super) fn new(file: File, options: OpenOptions) -> Self {
        let meta = file.meta();
        let etag = match meta.kind {
            FileKind::File => Bytes::copy_from_slice(Etag::of_file(meta.mtime_sec, meta.size).as_bytes()),
            _ => Bytes::new(),
        };
        Self {
            file,
            etag,
            content: RefCell::new(Content::Unread),
            lock: RefCell::new(Lock::Uses(0)),
            looked: Cell::new(None),
            options,
            check: None,
        }
    }

    /// One whose entity tag is not its own.
    pub fn without_tag(file: File, options: OpenOptions) -> Self {
        Self { etag: Bytes::new(), ..Self::new(file, options) }
    }

    /// One whose blocks are compared with their checksums before their bytes go out.
    pub fn with_check(self, check: Option<Arc<BlockCheck>>) -> Self {
        Self { check, ..self }
    }

    /// Checksums of its content, if those are compared.
    pub fn check(&self) -> Option<&Arc<BlockCheck>> {
        self.check.as_ref()
    }

    /// Number of bytes from `offset` on, at most `len`, that may go out as they are read: all if there are no checksums.
    pub fn verified_len(&self, offset: u64, len: u64) -> u64 {
        self.check.as_ref().map_or(len, |check| check.verified_len(offset, len))
    }

    /// One of which a response is a small part: the file is never sent by the kernel.
    pub fn part_of(file: File) -> Self {
        Self { lock: RefCell::new(Lock::Changed), ..Self::without_tag(file, OpenOptions::READ) }
    }

    /// Metadata of the file.
    pub fn meta(&self) -> &FileMeta {
        self.file.meta()
    }

    /// The descriptor.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Entity tag.
    pub fn etag(&self) -> &Bytes {
        &self.etag
    }

    /// The whole contents, if they are kept in memory, where a reference keeps them.
    pub fn content(&self) -> Option<Bytes> {
        match &*self.content.borrow() {
            Content::InMemory(kept) => Some(kept.bytes.clone()),
            Content::Unread | Content::Absent(_) => None,
        }
    }

    /// Storage for the text of the response head that belongs to these contents, as long as they are kept.
    pub fn head(&self) -> Option<Rc<HeadMemo>> {
        match &*self.content.borrow() {
            Content::InMemory(kept) => Some(kept.head.clone()),
            Content::Unread | Content::Absent(_) => None,
        }
    }
}
