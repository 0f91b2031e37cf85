//! Machines of the nodes of a simulation: a clock, a source of random numbers and a disk each.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tw_testkit::Random;

use super::virtual_time::VirtualTime;
use crate::directory::SavedPosition;
use crate::host::{Host, NodeDisk, Pause};

/// Files of a machine: they outlive its processes.
#[derive(Default)]
pub(super) struct Disk {
    pub(super) position: SavedPosition,
    queue: Vec<Vec<u8>>,
    fails: bool,
}

impl Disk {
    /// Sets whether writing fails.
    pub(super) fn set_failing(&mut self, fails: bool) {
        self.fails = fails;
    }
}

/// Machine of one node.
pub(super) struct Machine {
    pub(super) time: Rc<VirtualTime>,
    pub(super) random: RefCell<Random>,
    /// Difference of its clock from that of the world, in milliseconds.
    pub(super) clock_ms: i64,
    pub(super) disk: Rc<RefCell<Disk>>,
}

struct DiskAccess(Rc<RefCell<Disk>>);

/// Milliseconds since 1970 at the beginning of a simulation.
pub(super) const BEGINNING_MS: u64 = 1_800_000_000_000;

impl Host for Machine {
    fn now(&self) -> Duration {
        self.time.now()
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.time.now().as_millis()).unwrap()
    }

    fn unix_ms(&self) -> u64 {
        let passed = u64::try_from(self.time.now().as_millis()).unwrap();
        (BEGINNING_MS + passed).saturating_add_signed(self.clock_ms)
    }

    fn sleep(&self, length: Duration) -> Pause {
        self.time.sleep(length)
    }

    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.random.borrow_mut().bytes(bytes.len()));
        Ok(())
    }

    fn saved_position(&self) -> Result<SavedPosition, String> {
        Ok(self.disk.borrow().position.clone())
    }

    fn saved_secrets(&self) -> Result<Option<Vec<u8>>, String> {
        Ok(None)
    }

    fn lock(&self) -> Result<Option<Box<dyn NodeDisk>>, String> {
        Ok(Some(Box::new(DiskAccess(self.disk.clone()))))
    }
}

const DISK_FAILS: &str = "write() failed (5: Input/output error)";

impl NodeDisk for DiskAccess {
    fn torn_size(&self) -> u64 {
        0
    }

    fn save_position(&self, saved: &SavedPosition) -> Result<(), String> {
        let mut disk = self.0.borrow_mut();
        if disk.fails {
            return Err(DISK_FAILS.to_owned());
        }
        disk.position = saved.clone();
        Ok(())
    }

    fn save_secrets(&self, _: &[u8]) -> Result<(), String> {
        Err("no simulated node has secrets".to_owned())
    }

    fn queued_count(&self) -> usize {
        self.0.borrow().queue.len()
    }

    fn append_to_queue(&mut self, added: &[Vec<u8>]) -> Result<(), String> {
        let mut disk = self.0.borrow_mut();
        if disk.fails {
            return Err(DISK_FAILS.to_owned());
        }
        disk.queue.extend_from_slice(added);
        Ok(())
    }

    fn first_of_queue(&self, count: usize) -> Vec<Vec<u8>> {
        self.0.borrow().queue.iter().take(count).cloned().collect()
    }

    fn remove_from_queue(&mut self, count: usize) -> Result<(), String> {
        drop(self.0.borrow_mut().queue.drain(..count));
        Ok(())
    }
}
