//! The simulated twin: a file system in memory that fails on purpose, reproducibly.
//!
//! [`Disk::simulated`](crate::Disk::simulated) puts the same door over it, so that whatever is written against a [`Disk`](crate::Disk)
//! can be tested against short reads, `EIO`, `ENOSPC`, `EMFILE`, stalls, and a power failure at any operation. Faults come
//! from a seed; with a pool of one thread, or [`Aio::Off`](crate::Aio::Off), a run is the same every time.
//!
//! A power failure keeps what a journalling file system promises and no more: of the names, a prefix of all changes in
//! their order (all of them up to the last [`Disk::sync_dir`](crate::Disk::sync_dir)); of the content, what was `fsync`ed, and
//! any mixture of old and new sectors of what was not, unless that is promised, too ([`Loss`]). A write-back that fails
//! ([`Disk::write_back`](crate::Disk::write_back)) loses some of what it was for, although it was there before.

mod calls;
mod tree;

use crate::device::Device;
use crate::op::Op;
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tree::Tree;

/// The longest a test waits for an operation to stall.
const STALL_DEADLINE: Duration = Duration::from_secs(20);

/// Frequency of faults, in operations out of 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Reads and writes that move fewer bytes than asked.
    pub short: u16,
    /// Operations that fail with `EIO`.
    pub io: u16,
    /// Operations that need space and fail with `ENOSPC`.
    pub no_space: u16,
    /// Opens that fail with `EMFILE`.
    pub no_descriptor: u16,
    /// Operations that fail with `ENOMEM`.
    pub no_memory: u16,
    /// Answers that would be in memory, but are not.
    pub cold: u16,
}

impl Faults {
    /// A disk that does not fail.
    pub const NONE: Faults = Faults { short: 0, io: 0, no_space: 0, no_descriptor: 0, no_memory: 0, cold: 0 };
    /// A bad day: every operation has a chance of some percent to go wrong in each way that applies.
    pub const MANY: Faults =
        Faults { short: 200, io: 20, no_space: 20, no_descriptor: 20, no_memory: 10, cold: 300 };
}

/// Data that is lost when everything ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing that was done: the process was killed, and the system goes on.
    Nothing,
    /// Unsynced data, on a file system that lets a file grow only when its bytes are there (ext4 with `data=ordered`, XFS,
    /// btrfs): of appended data a part of the beginning is left.
    Ordered,
    /// Unsynced data: of its sectors some are there and some are not.
    Any,
}

/// A simulated disk.
pub struct Sim {
    /// The device that jobs here count for, if they count for one.
    device: Option<&'static Device>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    rng: Rng,
    faults: Faults,
    tree: Tree,
    /// Operations so far that could have failed.
    calls: u64,
    /// The power fails when `calls` reaches this.
    fails_at: Option<u64>,
    is_down: bool,
    stalls: Vec<Op>,
    stalled: usize,
}

/// An open file of a [`Sim`].
pub(crate) struct Node {
    sim: Arc<Sim>,
    ino: u64,
    /// Boot that opened the file: the power failure closes every file.
    boot: u64,
    appends: bool,
}

impl Drop for Node {
    fn drop(&mut self) {
        lock(&self.sim.state).tree.close(self.ino, self.boot);
    }
}

/// Takes the lock of a test, whatever happened to its last owner: the test has failed then.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
    /// An empty disk of one terabyte that does not fail; `seed` decides everything that is random.
    pub fn new(seed: u64) -> Arc<Self> {
        Self::on_device(seed, None)
    }

    /// Creates a file system whose operations count for the device with this number in pools. Otherwise they count for
    /// none.
    pub fn on_device(seed: u64, dev: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            device: dev.map(Device::of),
            state: Mutex::new(State {
                rng: Rng(seed),
                faults: Faults::NONE,
                tree: Tree::new(1 << 40),
                calls: 0,
                fails_at: None,
                is_down: false,
                stalls: Vec::new(),
                stalled: 0,
            }),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn device(&self) -> Option<&'static Device> {
        self.device
    }

    /// Sets how often something goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    /// Sets the size of the disk in bytes.
    pub fn set_capacity(&self, bytes: u64) {
        lock(&self.state).tree.capacity = bytes;
    }

    /// Puts a file with this content at `path`, with its directories, safely on the disk.
    ///
    /// # Errors
    /// `ENOTDIR` or `EISDIR` if something else is in the way.
    pub fn put(&self, path: &CStr, content: &[u8]) -> Result<(), Errno> {
        lock(&self.state).tree.put(path.to_bytes(), content)
    }

    /// Puts a symbolic link at `path`, owned by user `uid`.
    ///
    /// # Errors
    /// `EEXIST` if there is something; `ENOENT` without the directory.
    pub fn put_link(&self, path: &CStr, target: &CStr, uid: u32) -> Result<(), Errno> {
        lock(&self.state).tree.put_link(path.to_bytes(), target.to_bytes(), uid)
    }

    /// Removes the file at `path`, without counting as an operation.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn remove(&self, path: &CStr) -> Result<(), Errno> {
        lock(&self.state).tree.remove(path.to_bytes())
    }

    /// The content of a file as any reader would see it now, without counting as an operation.
    pub fn content(&self, path: &CStr) -> Option<Vec<u8>> {
        lock(&self.state).tree.content(path.to_bytes())
    }

    /// The paths of all files, sorted.
    pub fn paths(&self) -> Vec<CString> {
        lock(&self.state).tree.paths()
    }

    /// Drops everything from memory: the next look at any file is cold.
    pub fn evict(&self) {
        lock(&self.state).tree.chill();
    }

    /// Number of operations so far that could have failed.
    pub fn calls(&self) -> u64 {
        lock(&self.state).calls
    }

    /// Cuts the power after `calls` more operations: the one after that and all others fail with `EIO` until
    /// [`Sim::reboot`].
    pub fn fail_power_after(&self, calls: u64) {
        let mut state = lock(&self.state);
        state.fails_at = Some(state.calls + calls);
    }

    /// Returns true if the power is off.
    pub fn is_down(&self) -> bool {
        lock(&self.state).is_down
    }

    /// Cuts the power if it is on, loses what was not safe, and starts again. Files opened before are closed.
    pub fn reboot(&self) {
        self.restart(Loss::Any);
    }

    /// Restarts after a power failure with this loss.
    pub fn restart(&self, loss: Loss) {
        let mut state = lock(&self.state);
        let State { rng, tree, .. } = &mut *state;
        match loss {
            Loss::Nothing => tree.close_all(),
            Loss::Ordered | Loss::Any => tree.crash(rng, loss),
        }
        state.is_down = false;
        state.fails_at = None;
    }

    /// Holds every operation of this kind until the [`Stall`] is dropped; until then nothing it needs is in memory.
    pub fn stall(self: &Arc<Self>, op: Op) -> Stall {
        lock(&self.state).stalls.push(op);
        Stall { sim: self.clone(), op }
    }

    /// Begins an operation: waits while it is stalled, then lets it fail if it is to fail.
    fn enter(&self, op: Op) -> Result<MutexGuard<'_, State>, Errno> {
        let mut state = lock(&self.state);
        if state.stalls.contains(&op) {
            state.stalled += 1;
            self.changed.notify_all();
            while state.stalls.contains(&op) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.stalled -= 1;
        }
        state.calls += 1;
        state.is_down |= state.fails_at.is_some_and(|at| state.calls > at);
        if state.is_down {
            return Err(Errno::IO);
        }
        state.tree.tick();
        let faults = state.faults;
        let opens = matches!(op, Op::Open | Op::Create | Op::List);
        let grows = matches!(
            op,
            Op::Create | Op::Write | Op::Mkdir | Op::Rename | Op::Link | Op::Fsync | Op::WriteBack
        );
        let chances = [
            (faults.io, Errno::IO),
            (faults.no_memory, Errno::NOMEM),
            (if opens { faults.no_descriptor } else { 0 }, Errno::MFILE),
            (if grows { faults.no_space } else { 0 }, Errno::NOSPC),
        ];
        for (chance, errno) in chances {
            if state.rng.happens(chance) {
                return Err(errno);
            }
        }
        Ok(state)
    }

    /// Begins an answer from memory: `None` if it is to be cold.
    fn enter_now(&self, op: Op) -> Option<MutexGuard<'_, State>> {
        let mut state = lock(&self.state);
        let cold = state.faults.cold;
        (!state.is_down && !state.stalls.contains(&op) && !state.rng.happens(cold)).then_some(state)
    }
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("calls", &self.calls()).finish_non_exhaustive()
    }
}

/// Holds operations of one kind; see [`Sim::stall`].
#[must_use]
pub struct Stall {
    sim: Arc<Sim>,
    op: Op,
}

impl Stall {
    /// Waits until `count` operations (of any kind) are held. Blocks; gives up after 20 seconds.
    ///
    /// # Errors
    /// Number of calls that are held instead.
    pub fn wait_for(&self, count: usize) -> Result<(), usize> {
        let state = lock(&self.sim.state);
        let (state, _) = self
            .sim
            .changed
            .wait_timeout_while(state, STALL_DEADLINE, |state| state.stalled < count)
            .unwrap_or_else(PoisonError::into_inner);
        if state.stalled < count { Err(state.stalled) } else { Ok(()) }
    }

    /// Number of calls that are held now.
    pub fn held_calls(&self) -> usize {
        lock(&self.sim.state).stalled
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        let mut state = lock(&self.sim.state);
        if let Some(at) = state.stalls.iter().position(|op| *op == self.op) {
            state.stalls.swap_remove(at);
        }
        drop(state);
        self.sim.changed.notify_all();
    }
}

/// SplitMix64: small, and good enough to choose faults.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end` (at least 1).
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True `chance` times out of 1000.
    fn happens(&mut self, chance: u16) -> bool {
        chance > 0 && self.below(1000) < chance.into()
    }
}
