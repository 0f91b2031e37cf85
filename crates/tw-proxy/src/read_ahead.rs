//! Reading ahead of a client that is slower than the upstream server: the bytes wait in a [`ResponseBuffer`].

use std::rc::Rc;
use std::task::Context;

use bytes::Bytes;
use tw_base::memory::{self, MemoryLevel};
use tw_connect::reading::READ_SIZE;
use tw_disk::DiskError;
use tw_log::Level;

use super::response_buffer::{Capacity, ResponseBuffer, SpillTarget};
use tw_request::memory_share::{Hold, MemoryShare};
use tw_request::request::Request;

/// Bytes of one read that fills a buffer, however little room is left in it.
const READ_MIN: usize = 4 << 10;

/// Size of the buffer of a response.
pub(super) struct ReadAheadTerms {
    /// Bytes in memory.
    pub(super) memory_max: usize,
    /// Place of further bytes; `None` where there is none.
    pub(super) spill: Option<SpillTarget>,
}

/// State of reading ahead of the client.
pub(super) struct ReadAhead {
    backlog: ResponseBuffer,
    terms: ReadAheadTerms,
    /// Memory of the bytes that wait, since the client was late.
    memory: Hold,
    /// Bytes of the last piece, which the client may not have taken.
    last_piece: usize,
    /// Warnings for the request, which is not at hand while the body is read ahead.
    warnings: Vec<String>,
    has_spilled: bool,
    /// Nothing was read for want of room since the last read: the server is not late.
    has_rested: bool,
}

/// Permission to read ahead.
pub(super) struct ReadPermit {
    /// Bytes of one read.
    pub(super) max: usize,
    /// Set for the first read after a rest, which the server's time does not include.
    pub(super) is_after_rest: bool,
}

impl ReadAhead {
    /// An empty buffer.
    pub(super) fn new(terms: ReadAheadTerms, memory_share: Option<&Rc<MemoryShare>>) -> Self {
        Self {
            backlog: ResponseBuffer::default(),
            terms,
            memory: Hold::new(memory_share, 0),
            last_piece: 0,
            warnings: Vec::new(),
            has_spilled: false,
            has_rested: false,
        }
    }

    /// Returns true if no bytes wait.
    pub(super) fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Adds bytes that were read.
    pub(super) fn push(&mut self, piece: Bytes) {
        self.backlog.push(piece);
    }

    /// The next bytes, at most `want`; `None` if nothing waits. Waits for the disk only. Writes the warnings to the error log.
    ///
    /// # Errors
    /// Error of the disk; the content of the file is lost.
    pub(super) async fn pop(&mut self, want: usize, r: &Request) -> Result<Option<Bytes>, DiskError> {
        for warning in self.warnings.drain(..) {
            r.log(Level::Warn, format_args!("{warning}"));
        }
        self.backlog.pop(want).await
    }

    /// Notes that a piece of this size is on its way to the client.
    pub(super) fn taken(&mut self, len: usize) {
        self.backlog.taken(len);
        self.last_piece = len;
        // The backlog has shrunk, so the client may have caught up.
        self.memory.set(self.backlog.len());
    }

    /// Makes room, and permits the next read; `None` if it has to wait for room, of which the task is notified.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Option<ReadPermit> {
        self.memory.set(self.last_piece + self.backlog.len());
        // While memory is tight nothing is read ahead into memory, and the backlog goes to the temporary file.
        let is_plenty = memory::level() == MemoryLevel::Plenty;
        let memory_max = if is_plenty { self.terms.memory_max } else { 0 };
        let has_room = match &self.terms.spill {
            Some(spill) => match self.backlog.poll_room(memory_max, spill, cx) {
                Ok(capacity) => capacity == Capacity::Room,
                Err(error) => {
                    // Without a file the client gets the response as fast as it can take it, which is what happens
                    // from now on.
                    self.warnings
                        .push(format!("{error} while buffering upstream response, which goes on unbuffered"));
                    self.terms.spill = None;
                    false
                }
            },
            None => self.backlog.len() < memory_max,
        };
        if !self.has_spilled && self.backlog.has_file() {
            self.has_spilled = true;
            self.warnings.push("an upstream response is buffered to a temporary file".to_owned());
        }
        if !has_room {
            self.has_rested = true;
            return None;
        }
        let max = memory_max.saturating_sub(self.backlog.len()).clamp(READ_MIN, READ_SIZE);
        Some(ReadPermit { max, is_after_rest: std::mem::take(&mut self.has_rested) })
    }
}
