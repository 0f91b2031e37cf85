//! Everything of a machine that an agent uses: clocks, pauses, random numbers and the disk. A simulation of many nodes in one process
//! has hosts of its own, so that the same seed gives the same run.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::directory::{DirectoryLock, SavedPosition, StateDirectory};
use crate::queue::Queue;

/// Digits of random words: no node or purge has the word of another one.
const WORD_BYTES: usize = 16;

/// Pause that ends at its time.
pub(crate) type Pause = Pin<Box<dyn Future<Output = ()>>>;

/// Machine of a node.
pub(crate) trait Host: 'static {
    /// Time since some moment, which never goes back.
    fn now(&self) -> Duration;

    /// Milliseconds since 1970, as the clock of this machine has them: nodes disagree.
    fn unix_ms(&self) -> u64;

    /// Time in milliseconds, of the clock by which loops use shares of rates.
    fn millis(&self) -> u64;

    /// Pause of this length.
    fn sleep(&self, length: Duration) -> Pause;

    /// Fills `bytes` with random ones.
    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// Reads the position; nothing is known if none was saved. One that cannot be understood is an error.
    fn saved_position(&self) -> Result<SavedPosition, String>;

    /// Reads the secrets as they were saved, sealed; `None` if none were.
    fn saved_secrets(&self) -> Result<Option<Vec<u8>>, String>;

    /// Takes the right to write the position and the queue; `None` if another process has it.
    fn lock(&self) -> Result<Option<Box<dyn NodeDisk>>, String>;
}

/// The right to write the state of a node, until it is dropped.
pub(crate) trait NodeDisk {
    /// Bytes at the end of the queue that were torn by a crash and dropped.
    fn torn_size(&self) -> u64;

    /// Saves the position: the old one or the new one is there after a crash.
    fn save_position(&self, saved: &SavedPosition) -> Result<(), String>;

    /// Saves sealed secrets: the old ones or the new ones are there after a crash.
    fn save_secrets(&self, sealed: &[u8]) -> Result<(), String>;

    /// Number of entries of the queue.
    fn queued_count(&self) -> usize;

    /// Appends entries to the queue, all or none of them, and waits until they are on disk.
    fn append_to_queue(&mut self, added: &[Vec<u8>]) -> Result<(), String>;

    /// The first entries of the queue.
    fn first_of_queue(&self, count: usize) -> Vec<Vec<u8>>;

    /// Removes the first entries of the queue.
    fn remove_from_queue(&mut self, count: usize) -> Result<(), String>;
}

impl dyn Host {
    /// Result of a future, or `None` if it takes longer than `length`.
    pub(crate) async fn timeout<F: Future>(&self, length: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut pause = self.sleep(length);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => pause.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Random number from 0 to 1. Without random numbers all are equal.
    pub(crate) fn jitter(&self) -> f64 {
        let mut bytes = [0; 4];
        match self.fill_random(&mut bytes) {
            Ok(()) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
            Err(_) => 0.0,
        }
    }

    /// Word of 32 digits that nobody else has.
    pub(crate) fn random_word(&self) -> io::Result<String> {
        let mut bytes = [0; WORD_BYTES];
        self.fill_random(&mut bytes)?;
        Ok(hex(&bytes))
    }
}

/// Digits of bytes.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Word of 32 random digits, outside of a simulation.
pub(crate) fn random_word() -> io::Result<String> {
    let mut bytes = [0; WORD_BYTES];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(hex(&bytes))
}

/// This machine, with a state directory.
pub(crate) struct Machine {
    directory: StateDirectory,
    began: Instant,
}

/// Files of a state directory.
struct Files {
    directory: StateDirectory,
    lock: DirectoryLock,
    queue: Queue,
    torn_size: u64,
}

impl Machine {
    /// This machine, with the state in `directory`.
    pub(crate) fn new(directory: StateDirectory) -> Self {
        Self { directory, began: Instant::now() }
    }
}

impl Host for Machine {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn unix_ms(&self) -> u64 {
        let now = tw_rt::clock::unix();
        u64::try_from(now.secs).unwrap_or(0) * 1000 + u64::from(now.msec)
    }

    fn millis(&self) -> u64 {
        tw_rt::clock::millis()
    }

    fn sleep(&self, length: Duration) -> Pause {
        Box::pin(tw_rt::time::sleep(length))
    }

    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom(bytes, GetRandomFlags::empty())?;
        Ok(())
    }

    fn saved_position(&self) -> Result<SavedPosition, String> {
        self.directory.position()
    }

    fn saved_secrets(&self) -> Result<Option<Vec<u8>>, String> {
        self.directory.secrets()
    }

    fn lock(&self) -> Result<Option<Box<dyn NodeDisk>>, String> {
        let Some(lock) = self.directory.lock()? else { return Ok(None) };
        let (queue, torn_size) = Queue::open(&self.directory, &lock)?;
        Ok(Some(Box::new(Files { directory: self.directory.clone(), lock, queue, torn_size })))
    }
}

impl NodeDisk for Files {
    fn torn_size(&self) -> u64 {
        self.torn_size
    }

    fn save_position(&self, saved: &SavedPosition) -> Result<(), String> {
        self.directory.save_position(saved, &self.lock)
    }

    fn save_secrets(&self, sealed: &[u8]) -> Result<(), String> {
        self.directory.save_secrets(sealed, &self.lock)
    }

    fn queued_count(&self) -> usize {
        self.queue.len()
    }

    fn append_to_queue(&mut self, added: &[Vec<u8>]) -> Result<(), String> {
        self.queue.append(added)
    }

    fn first_of_queue(&self, count: usize) -> Vec<Vec<u8>> {
        self.queue.first(count)
    }

    fn remove_from_queue(&mut self, count: usize) -> Result<(), String> {
        self.queue.remove(count)
    }
}
