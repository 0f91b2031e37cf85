//! Jobs that hang, and what becomes of the device they hang on.
//!
//! ```text
//!            a job makes no progress, and nothing has ended since it was taken
//!   working ──────────────────────────────────────────────────────────────────► hung
//!      ▲                                                                          │
//!      └──────────────── a job ends: one of those that hang, or the probe ────────┘
//! ```
//!
//! Jobs that hang and jobs that run on one device are never more than its share and [`PROBES_MAX`]: where that many hang the
//! device is hung, whatever else ends there.

use super::{DeviceQueue, NO_DEVICE, Queue, Runner, SlotState, Ticket};

/// Jobs started on a device beyond its share while others hang there.
pub(crate) const PROBES_MAX: u32 = 4;

/// Ticks that jobs wait for the end of a probe before they are refused.
pub(crate) const PROBE_TICKS: u64 = 4;

/// A job that makes no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overdue {
    /// The job.
    pub(crate) ticket: Ticket,
    /// Number of its device.
    pub(crate) device: u32,
}

impl<J> Queue<J> {
    /// Lets one tick pass.
    pub(crate) fn tick(&mut self) {
        self.now += 1;
    }

    /// Taken jobs that made no step for `ticks`, the oldest first. `steps` tells the steps of a runner.
    pub(crate) fn overdue(&mut self, ticks: u64, steps: impl Fn(u32) -> u32) -> Vec<Overdue> {
        let now = self.now;
        let mut overdue = Vec::new();
        let mut index = self.taken.head;
        while let Some(slot) = self.slots.get_mut(index as usize) {
            let next = slot.next;
            if now.saturating_sub(slot.since) < ticks {
                break;
            }
            let steps = steps(slot.runner.number);
            if steps == slot.runner.steps {
                let ticket = Ticket { index, turn: slot.turn };
                overdue.push(Overdue { ticket, device: self.keys[slot.key as usize].device });
            } else {
                (slot.runner, slot.since) = (Runner { steps, ..slot.runner }, now);
                let mut list = self.taken;
                self.slot_unlink(&mut list, index);
                self.slot_push(&mut list, index);
                self.taken = list;
            }
            index = next;
        }
        overdue
    }

    /// Notes that a taken job hangs, and gives it back so that whoever waits for it is told. Its slot is free again if its
    /// thread `is_replaced`.
    pub(crate) fn hang(&mut self, ticket: Ticket, is_replaced: bool) -> Option<J> {
        if self.state_of(ticket) != SlotState::Taken {
            return None;
        }
        let index = ticket.index;
        self.untake(index);
        let slot = &mut self.slots[index as usize];
        (slot.state, slot.holds_slot) = (SlotState::Hung, !is_replaced);
        let job = slot.job.take();
        let class = slot.class.index();
        let since = slot.since;
        let device = self.keys[slot.key as usize].device;
        *if is_replaced { &mut self.replaced } else { &mut self.held_slots } += 1;
        self.running[class] -= 1;
        let d = &mut self.devices[device as usize];
        d.running -= 1;
        d.hung += 1;
        if d.last_done <= since {
            d.has_moved = false;
        }
        if d.hung == 1 {
            self.hanging.push(device);
        }
        self.reopen(device);
        self.start_all();
        job
    }

    /// Threads that hang and were replaced.
    pub(crate) fn replaced(&self) -> u32 {
        self.replaced
    }

    /// Jobs that hang.
    pub(crate) fn hung(&self) -> u32 {
        self.held_slots + self.replaced
    }

    /// Numbers of the threads that hang.
    pub(crate) fn hung_runners(&self) -> Vec<u32> {
        let hung = self.slots.iter().filter(|slot| slot.state == SlotState::Hung);
        hung.map(|slot| slot.runner.number).collect()
    }

    /// Jobs that wait for devices that are hung.
    pub(crate) fn waiting_in_vain(&self) -> usize {
        let devices = self.hanging.iter().map(|device| &self.devices[*device as usize]);
        devices.filter(|d| self.is_stuck(d)).map(|d| d.waiting).sum()
    }

    /// Jobs that hang on a device.
    pub(crate) fn hung_on(&self, device: u32) -> u32 {
        self.devices.get(device as usize).map_or(0, |d| d.hung)
    }

    /// Returns true if jobs of devices are at work, so that one of them may come to hang.
    pub(crate) fn has_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Returns true if no job on a device makes progress.
    pub(crate) fn is_hung(&self, device: u32) -> bool {
        self.devices.get(device as usize).is_some_and(|d| self.is_stuck(d))
    }

    /// Returns true if a job on this device would wait for something that does not come.
    pub(crate) fn is_vain(&self, device: u32) -> bool {
        let Some(d) = self.devices.get(device as usize).filter(|d| self.is_stuck(d)) else { return false };
        // While a job was started only recently, others wait: it shows whether the device works again.
        !d.is_open && (self.is_full(d) || self.now.saturating_sub(d.last_start) >= PROBE_TICKS)
    }

    /// Takes out every job that waits in vain for a device, except those that are done whatever happens.
    pub(crate) fn refuse_waiting(&mut self, device: u32) -> Vec<J> {
        let mut refused = Vec::new();
        if !self.is_vain(device) || self.devices[device as usize].waiting == 0 {
            return refused;
        }
        let keys = self.by_source.iter().filter(|((its, _), _)| *its == device).map(|(_, key)| *key);
        for key in keys.collect::<Vec<u32>>() {
            let heads = self.keys[key as usize].waiting.map(|list| list.head);
            for mut index in heads {
                while let Some(slot) = self.slots.get_mut(index as usize) {
                    let next = slot.next;
                    if !slot.is_forced {
                        refused.extend(slot.job.take());
                        self.unwait(index);
                        self.free_slot(index);
                    }
                    index = next;
                }
            }
            self.drop_key_if_idle(key);
        }
        refused
    }

    /// Makes room for the record of a device.
    pub(super) fn meet(&mut self, device: u32) {
        let missing = (device as usize + 1).saturating_sub(self.devices.len());
        self.devices.extend(std::iter::repeat_n(DeviceQueue::NEW, missing));
    }

    /// Notes that a job of a device has ended.
    pub(super) fn moved(&mut self, index: u32) {
        let device = self.keys[self.slots[index as usize].key as usize].device;
        let d = &mut self.devices[device as usize];
        (d.has_moved, d.last_done) = (true, self.now);
        self.reopen(device);
    }

    /// Frees what a job had that has come back after all.
    pub(super) fn release_hung(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        *if slot.holds_slot { &mut self.held_slots } else { &mut self.replaced } -= 1;
        let device = self.keys[slot.key as usize].device;
        self.devices[device as usize].hung -= 1;
        if self.devices[device as usize].hung == 0 {
            self.hanging.retain(|its| *its != device);
        }
        self.reopen(device);
        self.give_back(index);
    }

    /// Takes a job off the list of those that are taken.
    pub(super) fn untake(&mut self, index: u32) {
        if self.keys[self.slots[index as usize].key as usize].device != NO_DEVICE {
            let mut list = self.taken;
            self.slot_unlink(&mut list, index);
            self.taken = list;
        }
    }

    /// Lets a device start jobs or keeps it from that, as its caps say.
    pub(super) fn reopen(&mut self, device: u32) {
        let d = &self.devices[device as usize];
        let most = if self.is_stuck(d) { 1 } else { self.caps.device };
        let is_open = device == NO_DEVICE || d.running < most && !self.is_full(d);
        if is_open == d.is_open {
            return;
        }
        self.devices[device as usize].is_open = is_open;
        for l in 0..2 {
            for c in 0..super::CLASSES {
                if self.devices[device as usize].rings[l][c].is_empty() {
                    continue;
                }
                if is_open { self.device_join(device, l, c) } else { self.device_leave(device, l, c) }
            }
        }
    }

    fn is_stuck(&self, d: &DeviceQueue) -> bool {
        d.hung > 0 && (!d.has_moved || self.is_full(d))
    }

    fn is_full(&self, d: &DeviceQueue) -> bool {
        d.hung > 0 && d.running + d.hung >= self.caps.device + PROBES_MAX
    }
}
