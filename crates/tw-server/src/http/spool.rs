//! Bytes that wait for whoever wants them: in memory up to a bound, then in a temporary file, through the disk door.
//!
//! Every write has class `Fill`: who waits for a page is served before. The file goes with the spool, however that ends.

use std::cell::Cell;
use std::ffi::CStr;
use std::rc::Rc;

use bytes::Bytes;
use tw_disk::{Account, Class, Disk, DiskError, Errno, File, Op, Temp, TempFile};

use super::files::with_room;
use crate::core::location::TempPath;
use crate::event_loop::Loop;

/// Bytes copied at once from one file to another.
const COPY_SIZE: usize = 64 << 10;

/// Bytes in memory, and behind them in a file.
#[derive(Default)]
pub struct Spool {
    /// What is not in the file: all, or what came last.
    memory: Vec<u8>,
    file: Option<Rc<Spilled>>,
}

/// What did not fit into memory.
struct Spilled {
    temp: TempFile,
    size: Cell<u64>,
    disk: Disk,
}

/// Whether a file has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// It has none: nobody else can open it.
    Nameless,
    /// It has one, which whoever owns the spool may give away.
    Named,
}

/// Where a spool puts what does not fit into memory.
pub struct Room<'a> {
    /// The disk of the directory.
    pub disk: &'a Disk,
    /// The directory.
    pub dir: &'a TempPath,
    /// Whether the file has a name.
    pub naming: Naming,
    /// Who can close something when there is no descriptor left for the file.
    pub home: Option<&'a Loop>,
}

/// Whether a write made the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spilling {
    /// It is new.
    Begun,
    /// It was there.
    GoesOn,
}

impl Spool {
    /// Bytes in it.
    pub fn len(&self) -> u64 {
        self.memory.len() as u64 + self.file.as_ref().map_or(0, |file| file.size.get())
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it, if it is in memory.
    pub fn memory(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(&self.memory)
    }

    /// Bytes of it that are in memory.
    pub fn in_memory(&self) -> usize {
        self.memory.len()
    }

    /// Its file and the name of that, once all of it is there under a name.
    pub fn named_file(&self) -> Option<(&File, &CStr)> {
        let temp = &self.file.as_ref()?.temp;
        Some((temp.file(), temp.path()?))
    }

    /// Leaves the file where it is: it has another name now, or somebody else looks after it.
    pub fn keep_file(&self) {
        if let Some(file) = &self.file {
            file.temp.keep();
        }
    }

    /// Removes the file in the end all the same.
    pub(crate) fn claim_file(&self) {
        if let Some(file) = &self.file {
            file.temp.claim();
        }
    }

    /// Puts bytes at its end, in memory.
    pub fn push(&mut self, bytes: &[u8]) {
        self.memory.extend_from_slice(bytes);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Moves what is in memory to the end of the file, which is made if there is none.
    ///
    /// # Errors
    /// Those of the disk. What was in memory is lost then.
    pub async fn spill(&mut self, by: &mut Account, room: &Room<'_>) -> Result<Spilling, DiskError> {
        let mut fill = Account::new(Class::Fill, by.source);
        let spilling = self.spill_as_fill(&mut fill, room).await;
        by.add(&fill);
        spilling
    }

    async fn spill_as_fill(&mut self, by: &mut Account, room: &Room<'_>) -> Result<Spilling, DiskError> {
        let data = std::mem::take(&mut self.memory);
        let (file, spilling) = match &mut self.file {
            Some(file) => (file, Spilling::GoesOn),
            none @ None => {
                let is_named = room.naming == Naming::Named;
                let how = Temp { levels: room.dir.levels, is_named, ..Temp::NAMED };
                let mut make = async || room.disk.create_temp(by, &room.dir.path, &how).await;
                let temp = match room.home {
                    Some(home) => with_room(home, make).await?,
                    None => make().await?,
                };
                let file = Spilled { temp, size: Cell::new(0), disk: room.disk.clone() };
                (none.insert(Rc::new(file)), Spilling::Begun)
            }
        };
        let len = data.len() as u64;
        if len > 0 {
            file.disk.write(by, file.temp.file(), file.size.get(), data).await?;
            file.size.set(file.size.get() + len);
        }
        Ok(spilling)
    }

    /// Sees to it that all of it, be it nothing, is in a file that has a name, and that nobody else reads.
    ///
    /// # Errors
    /// Those of the disk.
    pub async fn spill_named(&mut self, by: &mut Account, room: &Room<'_>) -> Result<(), DiskError> {
        debug_assert_eq!(room.naming, Naming::Named);
        let is_anothers = |file: &Rc<Spilled>| file.temp.path().is_none() || Rc::strong_count(file) > 1;
        let Some(other) = self.file.take_if(|file| is_anothers(file)) else {
            return self.spill(by, room).await.map(drop);
        };
        let rest = std::mem::take(&mut self.memory);
        let mut at = 0;
        while at < other.size.get() {
            self.memory = other.disk.read(by, other.temp.file(), at, vec![0; COPY_SIZE]).await?;
            if self.memory.is_empty() {
                break;
            }
            at += self.memory.len() as u64;
            self.spill(by, room).await?;
        }
        self.memory = rest;
        self.spill(by, room).await.map(drop)
    }

    /// Another one with all that is in it now: the file is the same, what is in memory is copied. Nothing may be added to
    /// either.
    pub(crate) fn copy(&self) -> Self {
        Self { memory: self.memory.clone(), file: self.file.clone() }
    }

    /// All that is in it now, to be read from the beginning. What is in memory is copied.
    pub fn reader(&self) -> Reader {
        let size = self.file.as_ref().map_or(0, |file| file.size.get());
        Reader { file: self.file.clone(), at: 0, size, memory: Bytes::copy_from_slice(&self.memory) }
    }
}

/// Reads a spool from the beginning to the end.
pub struct Reader {
    file: Option<Rc<Spilled>>,
    /// Bytes that were read of the file, and bytes to be read of it.
    at: u64,
    size: u64,
    memory: Bytes,
}

impl Reader {
    /// Reads these bytes.
    pub fn of(memory: Bytes) -> Self {
        Self { file: None, at: 0, size: 0, memory }
    }

    /// Bytes still to be read.
    pub fn remaining(&self) -> u64 {
        self.memory.len() as u64 + (self.size - self.at)
    }

    /// The next bytes, at most `want`; `None` at the end. Waits only for the disk, and only where the bytes are not in
    /// memory.
    ///
    /// # Errors
    /// Those of the disk; `EIO` if the file has lost its end.
    pub async fn next(&mut self, want: usize, by: &mut Account) -> Result<Option<Bytes>, DiskError> {
        let Some(file) = self.file.as_ref().filter(|_| self.at < self.size) else {
            let next = self.memory.split_to(want.min(self.memory.len()));
            return Ok((!next.is_empty()).then_some(next));
        };
        let want = want.min(usize::try_from(self.size - self.at).unwrap_or(usize::MAX));
        let data = file.disk.read(by, file.temp.file(), self.at, vec![0; want]).await?;
        if data.is_empty() {
            return Err(Op::Read.failed(Errno::IO));
        }
        self.at += data.len() as u64;
        Ok(Some(data.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use tw_disk::sim::Sim;
    use tw_disk::{Aio, Pool, Source};

    use super::*;

    /// What a spool gives back of `pieces`, spilled after each that `spills`.
    fn through(pieces: &[&str], spills: impl Fn(usize) -> bool, naming: Naming, want: usize) -> String {
        let sim = Sim::new(1);
        sim.put(c"/tmp/keep", b"").expect("the simulated disk is empty");
        let pool = Pool::new("spool", 1, 10).expect("a thread can be started");
        let disk = Disk::simulated(pool, Aio::Off, Arc::clone(&sim));
        let dir = TempPath { path: c"/tmp".into(), levels: [0; 3] };
        let room = Room { disk: &disk, dir: &dir, naming, home: None };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut by = Account::new(Class::Hit, Source::NONE);
            let mut spool = Spool::default();
            for (at, piece) in pieces.iter().enumerate() {
                spool.push(piece.as_bytes());
                if spills(at) {
                    spool.spill(&mut by, &room).await.expect("the disk is well");
                }
            }
            assert_eq!(spool.len(), pieces.concat().len() as u64);
            let mut all = Vec::new();
            for _ in 0..2 {
                all.clear();
                let mut reader = spool.reader();
                while let Some(next) = reader.next(want, &mut by).await.expect("the disk is well") {
                    assert!(!next.is_empty() && next.len() <= want);
                    all.extend_from_slice(&next);
                }
                assert_eq!(reader.remaining(), 0);
            }
            String::from_utf8(all).expect("what was put in was text")
        })
    }

    #[test]
    fn what_goes_in_comes_out_as_often_as_it_is_asked_for() {
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

    #[test]
    fn a_copy_has_the_same_bytes_and_a_named_file_of_its_own() {
        let sim = Sim::new(1);
        sim.put(c"/tmp/keep", b"").expect("the simulated disk is empty");
        let pool = Pool::new("spool", 1, 10).expect("a thread can be started");
        let disk = Disk::simulated(pool, Aio::Off, Arc::clone(&sim));
        let dir = TempPath { path: c"/tmp".into(), levels: [0; 3] };
        let room = Room { disk: &disk, dir: &dir, naming: Naming::Named, home: None };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut by = Account::new(Class::Hit, Source::NONE);
            let mut spool = Spool::default();
            spool.push(b"one");
            spool.spill(&mut by, &room).await.expect("the disk is well");
            spool.push(b"two");
            let mut copy = spool.copy();
            copy.spill_named(&mut by, &room).await.expect("the disk is well");
            spool.spill_named(&mut by, &room).await.expect("the disk is well");
            for spool in [&spool, &copy] {
                let mut reader = spool.reader();
                let all = reader.next(100, &mut by).await.expect("the disk is well");
                assert_eq!(all.as_deref(), Some(&b"onetwo"[..]));
            }
            let names = [&spool, &copy].map(|spool| spool.named_file().map(|(_, name)| name.to_owned()));
            assert!(names[0].is_some() && names[1].is_some() && names[0] != names[1], "{names:?}");
        });
    }

    #[test]
    fn who_waits_for_a_page_is_served_before_every_write() {
        let sim = Sim::new(1);
        sim.put(c"/tmp/keep", b"").expect("the simulated disk is empty");
        let pool = Pool::new("spool", 1, 10).expect("a thread can be started");
        let disk = Disk::simulated(pool.clone(), Aio::Threads, sim);
        let dir = TempPath { path: c"/tmp".into(), levels: [0; 3] };
        let room = Room { disk: &disk, dir: &dir, naming: Naming::Nameless, home: None };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut by = Account::new(Class::Hit, Source::new(1));
            let mut spool = Spool::default();
            spool.push(b"first");
            spool.spill(&mut by, &room).await.expect("the disk is well");
            // The one thread is held until a write and a read wait, the write first.
            let (release, held) = std::sync::mpsc::channel::<()>();
            let hold = move || held.recv();
            let of = |source| Account::new(Class::Hit, Source::new(source));
            let (mut by_hold, mut by_hit) = (of(3), of(2));
            let mut holding = pin!(pool.run(&mut by_hold, hold));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(holding.as_mut().poll(&mut cx).is_pending());
            spool.push(b"second");
            let mut writing = pin!(spool.spill(&mut by, &room));
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
