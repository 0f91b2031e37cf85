//! Reads through io_uring, with owned buffers: safe because nothing the kernel may still write to is ever reachable.
//!
//! A [`Ring`] belongs to one thread. It keeps every read (descriptor and buffer) in a place of its own from the moment it
//! is submitted until the kernel says it is done, even if the ring is dropped meanwhile. Other threads reach the thread
//! through a [`Waker`].

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// Marks completions that say that a [`Waker`] was used.
const WAKE: u64 = u64::MAX;

/// A read: `buf.len()` bytes wanted from `offset` of `file`, and whatever the owner wants to find again.
#[derive(Debug)]
pub struct Read<F, T> {
    /// Kept open until the read is done.
    pub file: F,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Buffer to fill; its length is the number of bytes to read.
    pub buf: Vec<u8>,
    /// Comes back with the read.
    pub tag: T,
}

/// Wakes the thread that waits on a [`Ring`]. Usable from any thread; one system call, which does not wait.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the current or next [`Ring::wait`] return.
    pub fn wake(&self) {
        // The only failure is a counter that is full, and then the thread has plenty of reasons to wake up.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// An io_uring that reads.
pub struct Ring<F: AsFd, T> {
    ring: IoUring,
    flying: Vec<Option<Read<F, T>>>,
    free: Vec<u32>,
    wake: Arc<OwnedFd>,
    is_armed: bool,
}

impl<F: AsFd, T> Ring<F, T> {
    /// A ring with `places` (1 to 4096) for reads in flight.
    ///
    /// # Errors
    /// The system's: `ENOSYS` or `EPERM` where io_uring is absent or forbidden, `EOPNOTSUPP` if it cannot read or poll.
    pub fn new(places: u32) -> io::Result<Self> {
        let places = places.clamp(1, 4096);
        // The ring has one entry more than reads, for the poll of the waker.
        let ring = IoUring::new(places + 1)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::PollAdd::CODE) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            ring,
            flying: (0..places).map(|_| None).collect(),
            free: (0..places).rev().collect(),
            wake: Arc::new(wake),
            is_armed: false,
        })
    }

    /// A handle with which other threads end this ring's [`Ring::wait`].
    pub fn waker(&self) -> Waker {
        Waker(self.wake.clone())
    }

    /// Returns the number of reads in flight.
    pub fn in_flight(&self) -> usize {
        self.flying.len() - self.free.len()
    }

    /// Adds a read, to be submitted by the next [`Ring::wait`].
    ///
    /// # Errors
    /// Gives the read back if every place is taken.
    pub fn push(&mut self, read: Read<F, T>) -> Result<(), Read<F, T>> {
        let Some(place) = self.free.pop() else { return Err(read) };
        let slot = &mut self.flying[place as usize];
        let read = slot.insert(read);
        let len = u32::try_from(read.buf.len()).unwrap_or(u32::MAX);
        let fd = types::Fd(read.file.as_fd().as_raw_fd());
        let entry = opcode::Read::new(fd, read.buf.as_mut_ptr(), len)
            .offset(read.offset)
            .build()
            .user_data(place.into());
        if self.submit_later(&entry).is_ok() {
            return Ok(());
        }
        self.free.push(place);
        match self.flying[place as usize].take() {
            Some(read) => Err(read),
            None => Ok(()),
        }
    }

    /// Submits what was added, waits for at least one read to be done or a [`Waker`], and hands every read that is done to
    /// `done`, with the number of bytes read.
    ///
    /// # Errors
    /// The system's, if the ring cannot be entered any more. Reads in flight stay where they are.
    pub fn wait(&mut self, mut done: impl FnMut(Read<F, T>, io::Result<usize>)) -> io::Result<()> {
        if !self.is_armed {
            let poll = opcode::PollAdd::new(types::Fd(self.wake.as_raw_fd()), libc::POLLIN as u32);
            self.is_armed = self.submit_later(&poll.build().user_data(WAKE)).is_ok();
        }
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            // EBUSY: the completion queue is full, so there is something to reap.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(error) => return Err(error),
        }
        self.reap(&mut done);
        Ok(())
    }

    /// Ends a ring whose [`Ring::wait`] fails: gives back the tags of the reads in flight. Their buffers and descriptors are
    /// leaked, because the kernel may still use them.
    pub fn give_up(mut self) -> Vec<T> {
        let flying = std::mem::take(&mut self.flying).into_iter().flatten();
        self.free.clear();
        flying
            .map(|Read { file, buf, tag, .. }| {
                std::mem::forget((file, buf));
                tag
            })
            .collect()
    }

    fn submit_later(&mut self, entry: &squeue::Entry) -> Result<(), squeue::PushError> {
        // SAFETY: a read's descriptor and buffer live in `flying` until its completion is reaped (also when the ring is
        // dropped: see `drop`), nothing else touches them, and the buffer's heap memory does not move with its `Vec`. The
        // waker's descriptor lives as long as the ring, and a poll has no memory.
        unsafe { self.ring.submission().push(entry) }
    }

    fn reap(&mut self, done: &mut impl FnMut(Read<F, T>, io::Result<usize>)) {
        loop {
            // Completions are taken one at a time: `done` may panic, and those not given to it must stay in the queue.
            let Some(entry) = self.ring.completion().next() else { return };
            if entry.user_data() == WAKE {
                self.is_armed = false;
                // Empties the counter; it is empty already if two polls were answered by one wake.
                let _ = rustix::io::read(&*self.wake, &mut [0_u8; 8]);
                continue;
            }
            let place = entry.user_data() as usize;
            let Some(read) = self.flying.get_mut(place).and_then(Option::take) else { continue };
            self.free.push(place as u32);
            let result = match entry.result() {
                n if n >= 0 => Ok(n as usize),
                errno => Err(io::Error::from_raw_os_error(-errno)),
            };
            done(read, result);
        }
    }
}

impl<F: AsFd, T> Drop for Ring<F, T> {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            if self.wait(|read, _| drop(read)).is_err() {
                // The kernel may still write to these buffers: they are given up, not freed.
                std::mem::forget(std::mem::take(&mut self.flying));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use tw_testkit::{Lacks, leave_out};

    fn ring<T>(places: u32) -> Option<Ring<File, T>> {
        let no_ring = |error: &io::Error| leave_out(Lacks::Machine, format_args!("no io_uring: {error}"));
        Ring::new(places).inspect_err(no_ring).ok()
    }

    fn file(content: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("tw-uring-{}-{}", std::process::id(), content.len()));
        let mut file =
            File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn reads_come_back_with_their_tags() {
        let Some(mut ring) = ring(4) else { return };
        let file = file(b"0123456789");
        for (tag, offset) in [(1, 0), (2, 4), (3, 8), (4, 10)] {
            let file = file.try_clone().unwrap();
            ring.push(Read { file, offset, buf: vec![0; 4], tag }).unwrap();
        }
        let fifth = Read { file: file.try_clone().unwrap(), offset: 0, buf: vec![], tag: 5 };
        assert_eq!(ring.push(fifth).unwrap_err().tag, 5);
        let mut got = Vec::new();
        while got.len() < 4 {
            ring.wait(|read, n| got.push((read.tag, read.buf[..n.unwrap()].to_vec()))).unwrap();
        }
        got.sort();
        let expected: [(i32, &[u8]); 4] = [(1, b"0123"), (2, b"4567"), (3, b"89"), (4, b"")];
        assert!(got.iter().map(|(tag, buf)| (*tag, &buf[..])).eq(expected));
        assert_eq!(ring.in_flight(), 0);
    }

    #[test]
    fn a_waker_ends_the_wait() {
        let Some(mut ring) = ring::<()>(1) else { return };
        for _ in 0..3 {
            let waker = ring.waker();
            let thread = std::thread::spawn(move || waker.wake());
            ring.wait(|_, _| panic!("nothing was read")).unwrap();
            thread.join().unwrap();
        }
    }

    #[test]
    fn failed_reads_are_returned() {
        let Some(mut ring) = ring(1) else { return };
        let file = File::open("/").unwrap();
        ring.push(Read { file, offset: 0, buf: vec![0; 4], tag: () }).unwrap();
        let mut failure = None;
        while failure.is_none() {
            ring.wait(|_, n| failure = n.err().and_then(|error| error.raw_os_error())).unwrap();
        }
        assert_eq!(failure, Some(libc::EISDIR));
    }

    #[test]
    fn giving_up_returns_the_tags() {
        let Some(mut ring) = ring(4) else { return };
        for tag in 0..3 {
            let file = file(b"x");
            ring.push(Read { file, offset: 0, buf: vec![0; 1], tag }).unwrap();
        }
        assert_eq!(ring.give_up(), [0, 1, 2]);
    }

    #[test]
    fn dropping_waits_for_reads_in_flight() {
        let Some(mut ring) = ring(8) else { return };
        let file = file(&[7; 100_000]);
        let tag = Arc::new(());
        for _ in 0..8 {
            let read =
                Read { file: file.try_clone().unwrap(), offset: 0, buf: vec![0; 100_000], tag: tag.clone() };
            ring.push(read).unwrap();
        }
        drop(ring);
        assert_eq!(Arc::strong_count(&tag), 1);
    }
}
