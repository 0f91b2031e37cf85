//! Buffer of a response body, between the upstream server and a slower client: first in, first out, in memory and then in a
//! temporary file. Everything in the file is older than everything in memory.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_disk::{Account, Disk, DiskError, Errno, JobClass, JobSource, Op, TempFile, TempOptions};

use super::spill_delay::SpillDelay;
use tw_request::config::location::TempPath;
use tw_request::event_loop::Loop;
use tw_request::file_reads::Pieces;
use tw_request::plan::LocalFuture;

/// Place of the part of the buffer that does not fit into memory.
#[derive(Clone)]
pub(super) struct SpillTarget {
    pub(super) disk: Disk,
    pub(super) dir: Arc<TempPath>,
    /// Bytes of the file at most; 0 is no file.
    pub(super) size_max: u64,
    /// Loop that closes idle connections if there is no descriptor left for the file.
    pub(super) event_loop: Rc<Loop>,
}

/// Bytes that wait for the client.
#[derive(Default)]
pub(super) struct ResponseBuffer {
    memory: Pieces,
    file: Option<Rc<Stored>>,
    writing: Option<Writing>,
    /// Time that a client has before something is written.
    delay: SpillDelay,
}

/// A write under way.
struct Writing {
    future: LocalFuture<'static, Result<Rc<Stored>, DiskError>>,
    /// Bytes being written that the client has not taken: they can be read without the disk, and survive its failure.
    pieces: Pieces,
    /// Bytes of it that the client has taken.
    taken: u64,
}

struct Stored {
    temp: TempFile,
    disk: Disk,
    written_len: Cell<u64>,
    taken: Cell<u64>,
}

/// Capacity for further bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Capacity {
    /// There is room in memory.
    Room,
    /// There is none until a write is done, or the client has taken something.
    Full,
}

impl ResponseBuffer {
    /// Returns true if it holds no bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.memory.is_empty()
            && self.stored() == 0
            && self.writing.as_ref().is_none_or(|writing| writing.pieces.is_empty())
    }

    /// Bytes that wait in memory.
    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns true if some of it is, or was, in a file.
    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Bytes that wait in the file.
    fn stored(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.written_len.get() - file.taken.get())
    }

    /// Adds bytes, in memory.
    pub(super) fn push(&mut self, bytes: Bytes) {
        self.memory.push(bytes);
    }

    /// Notes that the client has taken so many bytes of the response, from here or past the buffer.
    pub(super) fn taken(&mut self, bytes: usize) {
        self.delay.taken(bytes);
    }

    /// Makes room in memory, if there are `memory_max` bytes or more, by writing them to the file, unless the client may still
    /// be about to take them. Never waits: the task is woken when a write may begin, and when it has ended.
    pub(super) fn poll_room(
        &mut self,
        memory_max: usize,
        room: &SpillTarget,
        cx: &mut Context<'_>,
    ) -> Result<Capacity, DiskError> {
        loop {
            if let Some(writing) = &mut self.writing {
                match writing.future.as_mut().poll(cx) {
                    Poll::Pending => {
                        return Ok(if self.memory.len() < memory_max {
                            Capacity::Room
                        } else {
                            Capacity::Full
                        });
                    }
                    Poll::Ready(Ok(file)) => {
                        file.taken.set(file.taken.get() + writing.taken);
                        self.file = Some(file);
                        self.writing = None;
                    }
                    Poll::Ready(Err(error)) => {
                        self.take_back();
                        return Err(error);
                    }
                }
            }
            if self.memory.len() < memory_max {
                return Ok(Capacity::Room);
            }
            if self.memory.is_empty() {
                return Ok(Capacity::Full);
            }
            if let Some(file) = self.file.as_ref().filter(|file| file.written_len == file.taken) {
                // The whole file was read, so it is reused from its beginning.
                file.written_len.set(0);
                file.taken.set(0);
            }
            let written_len = self.file.as_ref().map_or(0, |file| file.written_len.get());
            if room.size_max == 0 || written_len + self.memory.len() as u64 > room.size_max {
                return Ok(Capacity::Full);
            }
            // DIFF(nginx): it writes at once.
            if self.delay.poll_over(cx).is_pending() {
                return Ok(Capacity::Full);
            }
            let pieces = std::mem::take(&mut self.memory);
            let future = Box::pin(store(self.file.clone(), room.clone(), pieces.clone().into_parts()));
            self.writing = Some(Writing { future, pieces, taken: 0 });
        }
    }

    /// Puts what was not written back in its place.
    fn take_back(&mut self) {
        let Some(Writing { mut pieces, .. }) = self.writing.take() else { return };
        pieces.append(std::mem::take(&mut self.memory));
        self.memory = pieces;
    }

    /// The next bytes, at most `want`; `None` if nothing waits. Waits for the disk only.
    ///
    /// # Errors
    /// Error of the disk; the content of the file is lost.
    pub(super) async fn pop(&mut self, want: usize) -> Result<Option<Bytes>, DiskError> {
        if self.stored() == 0
            && let Some(writing) = &mut self.writing
        {
            let piece = writing.pieces.pop(want);
            writing.taken += piece.as_ref().map_or(0, |piece| piece.len() as u64);
            if writing.pieces.is_empty() {
                // All pieces of the write were taken from memory. A job that has begun still writes to that file, so
                // the next write uses another one.
                (self.writing, self.file) = (None, None);
            }
            if piece.is_some() {
                return Ok(piece);
            }
        }
        if let Some(file) = self.file.clone().filter(|_| self.stored() > 0) {
            let remaining = file.written_len.get() - file.taken.get();
            let want = want.min(usize::try_from(remaining).unwrap_or(usize::MAX));
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            let data =
                file.disk.read(&mut account, file.temp.file(), file.taken.get(), vec![0; want]).await?;
            if data.is_empty() {
                return Err(Op::Read.failed(Errno::IO));
            }
            file.taken.set(file.taken.get() + data.len() as u64);
            return Ok(Some(data.into()));
        }
        Ok(self.memory.pop(want))
    }
}

/// Writes `parts` to the end of the file, which is made if there is none.
async fn store(
    file: Option<Rc<Stored>>,
    room: SpillTarget,
    parts: Vec<Bytes>,
) -> Result<Rc<Stored>, DiskError> {
    let mut account = Account::new(JobClass::Fill, JobSource::NONE);
    let len = parts.iter().map(Bytes::len).sum::<usize>() as u64;
    if let Some(file) = file {
        let at = file.written_len.get();
        file.disk.write_parts(&mut account, file.temp.file(), at, parts).await?;
        file.written_len.set(at + len);
        return Ok(file);
    }
    let options = TempOptions { levels: room.dir.levels, is_named: false, ..TempOptions::NAMED };
    let make =
        async || room.disk.create_temp_with(&mut account, &room.dir.path, &options, parts.clone()).await;
    let temp = room.event_loop.retry_with_descriptor(make).await?;
    Ok(Rc::new(Stored { temp, disk: room.disk, written_len: Cell::new(len), taken: Cell::new(0) }))
}
