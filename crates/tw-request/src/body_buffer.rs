//! Buffer of body bytes: in memory up to a bound, then in a temporary file, through the disk door.
//!
//! While one part is written, the next one is received: the buffer is polled for its write beside its source. Writes have class
//! `Fill`, behind reads of pages. The file is removed with the buffer, however that ends.

use std::cell::{Cell, OnceCell};
use std::ffi::CStr;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tw_core::event_loop::LoopCore;
use tw_disk::{Account, Disk, DiskError, Errno, File, JobClass, Now, Op, TempFile, TempOptions};

use super::file_reads::Pieces;
use super::local_future::LocalFuture;
use crate::config::location::TempPath;

/// Bytes copied at once from one file to another.
const COPY_SIZE: usize = 64 << 10;

/// Bytes in memory, and behind them in a file.
#[derive(Default)]
pub struct BodyBuffer {
    /// Bytes that are neither in the file nor being written: all, or the last ones.
    memory: Pieces,
    /// Bytes of `memory` joined in one piece, on first use.
    joined: OnceCell<Bytes>,
    file: Option<Rc<Spilled>>,
    writing: Option<Box<Writing>>,
}

/// File with the bytes that did not fit into memory.
struct Spilled {
    temp: TempFile,
    size: Cell<u64>,
    disk: Disk,
}

/// A write under way: the file, if it is the first one, and what it cost.
struct Writing {
    future: LocalFuture<'static, (Result<Option<Spilled>, DiskError>, Account)>,
    size: u64,
    /// Bytes being written. They are kept so that the loop frees them, not the thread that has written them: of pages that other
    /// threads empty, the allocator finds few again, and takes four times the memory.
    _parts: Vec<Bytes>,
}

/// Naming of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// No name: nothing else can open the file.
    Nameless,
    /// A name, which the owner of the buffer may give away.
    Named,
}

/// Destination of the bytes that do not fit into memory.
#[derive(Clone)]
pub struct SpillTarget {
    /// The disk of the directory.
    pub disk: Disk,
    /// The directory.
    pub dir: Arc<TempPath>,
    /// Naming of the file.
    pub naming: Naming,
    /// Loop that can close a descriptor if there is none left for the file.
    pub event_loop: Option<Rc<LoopCore>>,
}

impl BodyBuffer {
    /// Bytes in it.
    pub fn len(&self) -> u64 {
        let written_len = self.file.as_ref().map_or(0, |file| file.size.get());
        self.memory.len() as u64 + self.writing.as_ref().map_or(0, |writing| writing.size) + written_len
    }

    /// Returns true if it holds nothing, neither bytes nor a file.
    pub(super) fn is_unused(&self) -> bool {
        self.memory.is_empty() && self.joined.get().is_none() && self.file.is_none() && self.writing.is_none()
    }

    /// Returns true if nothing was added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it, if it is in memory. Copies it once if it came in several pieces.
    pub fn memory(&self) -> Option<&[u8]> {
        if self.is_spilt() {
            return None;
        }
        Some(self.memory.as_one().unwrap_or_else(|| self.joined.get_or_init(|| self.memory.to_one().into())))
    }

    /// Bytes of it that are in memory, without those on their way to the file.
    pub fn in_memory(&self) -> usize {
        self.memory.len()
    }

    /// Returns true if a part is in a file, or being written.
    pub fn is_spilt(&self) -> bool {
        self.file.is_some() || self.writing.is_some()
    }

    /// Returns true if there is a file.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// File and its name, once everything is in a named file.
    pub fn named_file(&self) -> Option<(&File, &CStr)> {
        let temp = &self.file.as_ref()?.temp;
        Some((temp.file(), temp.path()?))
    }

    /// Keeps the file: it has another name now, or another owner.
    pub fn keep_file(&self) {
        if let Some(file) = &self.file {
            file.temp.keep();
        }
    }

    /// Removes the file in the end all the same.
    pub fn claim_file(&self) {
        if let Some(file) = &self.file {
            file.temp.claim();
        }
    }

    /// Puts bytes at its end, in memory. Copies them if they are few.
    pub fn push(&mut self, bytes: Bytes) {
        self.joined.take();
        self.memory.push(bytes);
    }

    /// Puts all of `pieces` at its end, in memory.
    pub fn append(&mut self, pieces: Pieces) {
        self.joined.take();
        self.memory.append(pieces);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Goes on writing: what is in memory goes to the end of the file, which is made if there is none, if it is more than
    /// `most` bytes, again and again. Ready when nothing is being written; until then the task is woken, and more may be added.
    ///
    /// # Errors
    /// Error of the disk; the bytes being written are lost then.
    pub fn poll_write(
        &mut self,
        most: usize,
        account: &mut Account,
        room: &SpillTarget,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DiskError>> {
        loop {
            if let Some(writing) = &mut self.writing {
                let (spilled, cost) = ready!(writing.future.as_mut().poll(cx));
                let size = writing.size;
                self.writing = None;
                account.add(&cost);
                match (spilled?, &self.file) {
                    (Some(file), _) => self.file = Some(Rc::new(file)),
                    (None, Some(file)) => file.size.set(file.size.get() + size),
                    (None, None) => {}
                }
            }
            if self.memory.len() <= most {
                return Poll::Ready(Ok(()));
            }
            self.begin(account, room);
        }
    }

    /// Begins to write what is in memory.
    fn begin(&mut self, account: &Account, room: &SpillTarget) {
        let size = self.memory.len() as u64;
        let parts = std::mem::take(&mut self.memory).into_parts();
        let mut account = Account::new(JobClass::Fill, account.source);
        let kept = parts.clone();
        let future: LocalFuture<'static, _> = match &self.file {
            Some(file) => {
                let disk = file.disk.clone();
                let to = file.temp.file().clone();
                let at = file.size.get();
                Box::pin(async move {
                    let result = disk.write_parts(&mut account, &to, at, parts).await;
                    (result.map(|()| None), account)
                })
            }
            None => {
                let room = room.clone();
                Box::pin(async move {
                    let made = make(&mut account, &room, parts).await;
                    let file =
                        made.map(|temp| Some(Spilled { temp, size: Cell::new(size), disk: room.disk }));
                    (file, account)
                })
            }
        };
        self.writing = Some(Box::new(Writing { future, size, _parts: kept }));
    }

    /// Moves what is in memory to the end of the file, which is made if there is none, be it for nothing.
    ///
    /// # Errors
    /// Error of the disk; the bytes in memory are lost then.
    pub async fn spill(&mut self, account: &mut Account, room: &SpillTarget) -> Result<(), DiskError> {
        if !self.is_spilt() {
            self.begin(account, room);
        }
        poll_fn(|cx| self.poll_write(0, account, room, cx)).await
    }

    /// Moves everything, even nothing, into a named file that has no other reader.
    ///
    /// # Errors
    /// Error of the disk.
    pub async fn spill_named(&mut self, account: &mut Account, room: &SpillTarget) -> Result<(), DiskError> {
        debug_assert_eq!(room.naming, Naming::Named);
        poll_fn(|cx| self.poll_write(usize::MAX, account, room, cx)).await?;
        let is_anothers = |file: &Rc<Spilled>| file.temp.path().is_none() || Rc::strong_count(file) > 1;
        let Some(other) = self.file.take_if(|file| is_anothers(file)) else {
            return self.spill(account, room).await;
        };
        let rest = std::mem::take(&mut self.memory);
        let mut at = 0;
        while at < other.size.get() {
            let data = other.disk.read(account, other.temp.file(), at, vec![0; COPY_SIZE]).await?;
            if data.is_empty() {
                break;
            }
            at += data.len() as u64;
            self.push(data.into());
            self.spill(account, room).await?;
        }
        self.memory = rest;
        self.spill(account, room).await
    }

    /// Returns true if nothing of it is being written.
    pub fn is_settled(&self) -> bool {
        self.writing.is_none()
    }

    /// Another one with all that is in it now, while nothing is being written: the file is the same. Nothing may be added to
    /// either.
    pub fn copy(&self) -> Self {
        debug_assert!(self.writing.is_none());
        Self { memory: self.memory.clone(), file: self.file.clone(), ..Self::default() }
    }

    /// All that is in it now, while nothing is being written, to be read from the beginning.
    pub fn reader(&self) -> Reader {
        debug_assert!(self.writing.is_none());
        let size = self.file.as_ref().map_or(0, |file| file.size.get());
        Reader { file: self.file.clone(), at: 0, size, memory: self.memory.clone(), last: Bytes::new() }
    }
}

/// A new file with these bytes.
async fn make(account: &mut Account, room: &SpillTarget, parts: Vec<Bytes>) -> Result<TempFile, DiskError> {
    let is_named = room.naming == Naming::Named;
    let options = TempOptions { levels: room.dir.levels, is_named, ..TempOptions::NAMED };
    let mut make =
        async || room.disk.create_temp_with(account, &room.dir.path, &options, parts.clone()).await;
    match &room.event_loop {
        Some(event_loop) => event_loop.retry_with_descriptor(make).await,
        None => make().await,
    }
}

/// Reads a spool from the beginning to the end.
pub struct Reader {
    file: Option<Rc<Spilled>>,
    /// Bytes that were read of the file, and bytes to be read of it.
    at: u64,
    size: u64,
    memory: Pieces,
    /// Bytes that were read of the file last.
    last: Bytes,
}

impl Reader {
    /// Reads these bytes.
    pub fn of(bytes: Bytes) -> Self {
        let mut memory = Pieces::default();
        memory.push(bytes);
        Self { file: None, at: 0, size: 0, memory, last: Bytes::new() }
    }

    /// Bytes still to be read.
    pub fn remaining(&self) -> u64 {
        self.memory.len() as u64 + (self.size - self.at)
    }

    /// The next bytes, at most `want`, or their end; `None` if they would have to be waited for.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn at_hand(&mut self, want: usize) -> Option<Result<Option<Bytes>, DiskError>> {
        let Some(file) = self.rest_in_file() else { return Some(Ok(self.memory.pop(want))) };
        let mut buffer = self.buffer(want);
        match file.disk.read_now(file.temp.file(), self.at, &mut buffer) {
            Now::Cold => {
                self.last = buffer.into();
                None
            }
            Now::Ready(Ok(read)) => {
                buffer.truncate(read);
                Some(self.took(buffer))
            }
            Now::Ready(Err(errno)) => Some(Err(Op::Read.failed(errno))),
        }
    }

    /// The next bytes, at most `want`; `None` at the end. Waits only for the disk, and only where the bytes are not in
    /// memory.
    ///
    /// # Errors
    /// Error of the disk; `EIO` if the file has lost its end.
    pub async fn next(&mut self, want: usize, account: &mut Account) -> Result<Option<Bytes>, DiskError> {
        let Some(file) = self.rest_in_file() else { return Ok(self.memory.pop(want)) };
        let buffer = self.buffer(want);
        let data = file.disk.read(account, file.temp.file(), self.at, buffer).await?;
        self.took(data)
    }

    /// The file, if not all of it was read.
    fn rest_in_file(&self) -> Option<Rc<Spilled>> {
        self.file.clone().filter(|_| self.at < self.size)
    }

    /// Memory for the next bytes: that of the last piece, if no reference to it is left, so that memory is cleared only once.
    fn buffer(&mut self, want: usize) -> Vec<u8> {
        let want = want.min(usize::try_from(self.size - self.at).unwrap_or(usize::MAX));
        let last = std::mem::take(&mut self.last);
        let mut buffer = if last.is_unique() { Vec::from(last) } else { Vec::new() };
        buffer.resize(want, 0);
        buffer
    }

    fn took(&mut self, data: Vec<u8>) -> Result<Option<Bytes>, DiskError> {
        if data.is_empty() {
            return Err(Op::Read.failed(Errno::IO));
        }
        self.at += data.len() as u64;
        self.last = data.into();
        Ok(Some(self.last.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use tw_disk::sim::Sim;
    use tw_disk::{Aio, JobSource, Pool};

    use super::*;

    /// Contents read back of a buffer with `pieces`, spilled after each that `spills`.
    fn through(pieces: &[&str], spills: impl Fn(usize) -> bool, naming: Naming, want: usize) -> String {
        let sim = Sim::new(1);
        sim.put(c"/tmp/keep", b"").expect("the simulated disk is empty");
        let pool = Pool::new("spool", 1, 10).expect("a thread can be started");
        let disk = Disk::simulated(pool, Aio::Off, Arc::clone(&sim));
        let dir = TempPath { path: c"/tmp".into(), levels: [0; 3] };
        let room = SpillTarget { disk, dir: Arc::new(dir), naming, event_loop: None };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            let mut buffer = BodyBuffer::default();
            for (at, piece) in pieces.iter().enumerate() {
                buffer.push(Bytes::copy_from_slice(piece.as_bytes()));
                if spills(at) {
                    buffer.spill(&mut account, &room).await.expect("the disk is well");
                }
            }
            assert_eq!(buffer.len(), pieces.concat().len() as u64);
            let mut all = Vec::new();
            for _ in 0..2 {
                all.clear();
                let mut reader = buffer.reader();
                while let Some(next) = reader.next(want, &mut account).await.expect("the disk is well") {
                    assert!(!next.is_empty() && next.len() <= want);
                    all.extend_from_slice(&next);
                }
                assert_eq!(reader.remaining(), 0);
            }
            String::from_utf8(all).expect("what was put in was text")
        })
    }

    #[test]
    fn contents_can_be_read_repeatedly() {
        let pieces = ["one", "", "two", "three"];
        for naming in [Naming::Nameless, Naming::Named] {
            for want in [1, 4, 100] {
                for spilled in 0..16_usize {
                    assert_eq!(through(&pieces, |at| spilled >> at & 1 == 1, naming, want), "onetwothree");
                }
            }
        }
        assert_eq!(through(&[], |_| false, Naming::Nameless, 10), "");
    }

    /// A simulated disk, and room on it.
    fn room() -> (Arc<Sim>, SpillTarget) {
        let sim = Sim::new(1);
        sim.put(c"/tmp/keep", b"").expect("the simulated disk is empty");
        let pool = Pool::new("spool", 1, 10).expect("a thread can be started");
        let disk = Disk::simulated(pool, Aio::Threads, Arc::clone(&sim));
        let dir = Arc::new(TempPath { path: c"/tmp".into(), levels: [0; 3] });
        (sim, SpillTarget { disk, dir, naming: Naming::Nameless, event_loop: None })
    }

    #[test]
    fn bytes_received_during_a_write_wait_behind_it() {
        let (sim, room) = room();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            let mut cx = Context::from_waker(Waker::noop());
            let mut buffer = BodyBuffer::default();
            buffer.push(Bytes::from_static(b"few"));
            assert!(buffer.poll_write(3, &mut account, &room, &mut cx).is_ready() && !buffer.is_spilt());
            let stall = sim.stall(Op::Write);
            buffer.push(Bytes::from_static(b" more"));
            assert!(buffer.poll_write(3, &mut account, &room, &mut cx).is_pending());
            assert_eq!((buffer.in_memory(), buffer.len(), buffer.memory()), (0, 8, None));
            for piece in [" and", " more", " of it"] {
                buffer.push(Bytes::copy_from_slice(piece.as_bytes()));
                assert!(buffer.poll_write(3, &mut account, &room, &mut cx).is_pending());
            }
            assert_eq!((buffer.in_memory(), buffer.len(), buffer.has_file()), (15, 23, false));
            drop(stall);
            poll_fn(|cx| buffer.poll_write(3, &mut account, &room, cx)).await.expect("the disk is well");
            assert_eq!((buffer.in_memory(), buffer.len()), (0, 23));
            // One job wrote all pieces pushed during the first write, and the first job created the file.
            assert_eq!(account.jobs(), 2);
            buffer.push(Bytes::from_static(b"!"));
            let mut reader = buffer.reader();
            let mut all = Vec::new();
            while let Some(piece) = reader.next(7, &mut account).await.expect("the disk is well") {
                all.extend_from_slice(&piece);
            }
            assert_eq!(all, b"few more and more of it!");
        });
    }

    #[test]
    fn bytes_not_in_memory_need_a_wait() {
        let (sim, room) = room();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            let mut buffer = BodyBuffer::default();
            buffer.push(Bytes::from_static(b"written"));
            buffer.spill(&mut account, &room).await.expect("the disk is well");
            buffer.push(Bytes::from_static(b"kept"));
            let mut reader = buffer.reader();
            let at_hand = |reader: &mut Reader| {
                reader.at_hand(5).map(|piece| piece.expect("the disk is well").map(|piece| piece.to_vec()))
            };
            assert_eq!(at_hand(&mut reader), Some(Some(b"writt".to_vec())));
            sim.evict();
            assert_eq!(at_hand(&mut reader), None);
            let before = account.jobs();
            let piece = reader.next(5, &mut account).await.expect("the disk is well");
            assert_eq!((piece.as_deref(), account.jobs()), (Some(&b"en"[..]), before + 1));
            assert_eq!(at_hand(&mut reader), Some(Some(b"kept".to_vec())));
            assert_eq!(at_hand(&mut reader), Some(None));
        });
    }

    #[test]
    fn a_copy_has_the_same_bytes_and_a_named_file_of_its_own() {
        let sim = Sim::new(1);
        sim.put(c"/tmp/keep", b"").expect("the simulated disk is empty");
        let pool = Pool::new("spool", 1, 10).expect("a thread can be started");
        let disk = Disk::simulated(pool, Aio::Off, Arc::clone(&sim));
        let dir = TempPath { path: c"/tmp".into(), levels: [0; 3] };
        let room = SpillTarget { disk, dir: Arc::new(dir), naming: Naming::Named, event_loop: None };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            let mut buffer = BodyBuffer::default();
            buffer.push(Bytes::from_static(b"one"));
            buffer.spill(&mut account, &room).await.expect("the disk is well");
            buffer.push(Bytes::from_static(b"two"));
            let mut copy = buffer.copy();
            copy.spill_named(&mut account, &room).await.expect("the disk is well");
            buffer.spill_named(&mut account, &room).await.expect("the disk is well");
            for buffer in [&buffer, &copy] {
                let mut reader = buffer.reader();
                let all = reader.next(100, &mut account).await.expect("the disk is well");
                assert_eq!(all.as_deref(), Some(&b"onetwo"[..]));
            }
            let names = [&buffer, &copy].map(|buffer| buffer.named_file().map(|(_, name)| name.to_owned()));
            assert!(names[0].is_some() && names[1].is_some() && names[0] != names[1], "{names:?}");
        });
    }

    #[test]
    fn reads_of_pages_run_before_writes() {
        let sim = Sim::new(1);
        sim.put(c"/tmp/keep", b"").expect("the simulated disk is empty");
        let pool = Pool::new("spool", 1, 10).expect("a thread can be started");
        let disk = Disk::simulated(pool.clone(), Aio::Threads, sim);
        let dir = TempPath { path: c"/tmp".into(), levels: [0; 3] };
        let room = SpillTarget { disk, dir: Arc::new(dir), naming: Naming::Nameless, event_loop: None };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut account = Account::new(JobClass::Hit, JobSource::new(1));
            let mut buffer = BodyBuffer::default();
            buffer.push(Bytes::from_static(b"first"));
            buffer.spill(&mut account, &room).await.expect("the disk is well");
            // The one thread is held until a write and a read wait, the write first.
            let (release, held) = std::sync::mpsc::channel::<()>();
            let hold = move || held.recv();
            let of = |source| Account::new(JobClass::Hit, JobSource::new(source));
            let mut by_hold = of(3);
            let mut by_hit = of(2);
            let mut holding = pin!(pool.run(&mut by_hold, hold));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(holding.as_mut().poll(&mut cx).is_pending());
            buffer.push(Bytes::from_static(b"second"));
            let mut writing = pin!(buffer.spill(&mut account, &room));
            let (begin, begun) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let read = move || (begin.send(()), ended.recv());
            let mut reading = pin!(pool.run(&mut by_hit, read));
            assert!(writing.as_mut().poll(&mut cx).is_pending());
            assert!(reading.as_mut().poll(&mut cx).is_pending());
            drop(release);
            begun.recv().expect("the read has its turn");
            assert!(writing.as_mut().poll(&mut cx).is_pending(), "the write came first");
            drop(end);
            writing.await.expect("the disk is well");
            let _ = reading.await;
        });
    }
}
