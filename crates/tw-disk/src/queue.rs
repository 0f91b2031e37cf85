//! Order of jobs: a pure data structure, without threads, clocks or locks.
//!
//! A queue has a number of slots (threads, or places in a ring). A job waits, is *started* when it gets a slot, is *taken*
//! by whoever runs it, and gives the slot back when done.
//!
//! ```text
//! push ─► waiting ─► started ─► taken ─────────► done
//!            └───────────┴─ cancel └─► hung ─────┘
//! ```
//!
//! Order: by class, then round robin between the devices, then between the sources of a device, then first come, first
//! served. Three kinds of caps keep slots free for later jobs: a source may hold half of the slots while another
//! source waits, and never all of them; classes below `Hit` may never hold all of them either; and a device never holds more
//! than its share. So that no class starves, one start in [`BOTTOM_UP_EVERY`] looks at the classes in reverse.
//!
//! A job that is taken and makes no progress *hangs*: it no longer counts for its class and its device, and its slot is free
//! again if somebody replaces the thread it has. A device on which something hangs and nothing has ended since is *hung*:
//! one job at a time is started there, to find out ([`hang`]).
//!
//! Every operation takes constant time, except [`Queue::resize`] and [`Queue::refuse_waiting`], which visit every source.

mod hang;
mod rings;

use crate::account::{JobClass, JobSource};
use std::collections::HashMap;

pub(crate) use hang::{Overdue, PROBE_TICKS, PROBES_MAX};

/// One start in this many prefers the lowest class: about 2 % of the starts, and a bound on how long it can starve.
const BOTTOM_UP_EVERY: u32 = 64;

const NIL: u32 = u32::MAX;
const CLASSES: usize = JobClass::ALL.len();

/// A job in the queue; meaningless once the job is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    index: u32,
    turn: u32,
}

/// Refused: the queue is full. Gives the job back.
#[derive(Debug)]
pub(crate) struct Full<J> {
    pub(crate) job: J,
    pub(crate) waiting: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    Waiting,
    Started,
    Taken,
    /// Taken, and making no progress.
    Hung,
}

struct Slot<J> {
    job: Option<J>,
    turn: u32,
    state: SlotState,
    class: JobClass,
    key: u32,
    prev: u32,
    next: u32,
    /// Mandatory: no task waits for it, and it is never refused.
    is_forced: bool,
    /// Hangs, and its thread has no replacement.
    holds_slot: bool,
    /// Tick at which it was taken, or seen to make progress.
    since: u64,
    /// Runner that took it.
    runner: Runner,
}

/// Thread (or ring) that takes jobs, and the steps it had made by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runner {
    /// Number of the thread.
    pub(crate) number: u32,
    /// Steps of all its jobs so far; wraps around.
    pub(crate) steps: u32,
}

/// State of a source with respect to its caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// Below its share.
    Ready = 0,
    /// At its share: starts only if no ready source waits.
    Capped = 1,
    /// At its limit: starts nothing.
    Blocked = 2,
}

/// First and last of a doubly linked list of slots or keys.
#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: List = List { head: NIL, tail: NIL };

    fn is_empty(self) -> bool {
        self.head == NIL
    }
}

struct Key {
    source: JobSource,
    device: u32,
    /// Jobs that hold a slot or hang.
    running: u32,
    level: Level,
    waiting: [List; CLASSES],
    /// Neighbours in the ring of each class.
    links: [(u32, u32); CLASSES],
}

/// One device, or whatever needs none.
#[derive(Clone)]
struct DeviceQueue {
    running: u32,
    hung: u32,
    waiting: usize,
    /// Something has ended here since the last job began to hang.
    has_moved: bool,
    /// Tick of the last end.
    last_done: u64,
    /// Tick of the last start.
    last_start: u64,
    /// Sources with waiting jobs, per level (ready, capped) and class.
    rings: [[List; CLASSES]; 2],
    /// Neighbours in the rings of the queue.
    links: [[(u32, u32); CLASSES]; 2],
    /// True if the device is in the rings of the queue, wherever it has sources waiting.
    is_open: bool,
}

impl DeviceQueue {
    const NEW: DeviceQueue = DeviceQueue {
        running: 0,
        hung: 0,
        waiting: 0,
        has_moved: true,
        last_done: 0,
        last_start: 0,
        rings: [[List::EMPTY; CLASSES]; 2],
        links: [[(NIL, NIL); CLASSES]; 2],
        is_open: true,
    };
}

/// Number of what needs no device.
pub(crate) const NO_DEVICE: u32 = 0;

/// The caps that follow from the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Caps {
    slots: u32,
    /// Running jobs of one source while another waits.
    share: u32,
    /// Running jobs of one source at any time.
    limit: u32,
    class: [u32; CLASSES],
    /// Running jobs of one device.
    device: u32,
}

impl Caps {
    fn of(slots: u32, device: Option<u32>) -> Self {
        let slots = slots.max(1);
        // An eighth stays free for sources and hits that come later: with 32 threads, 4.
        let limit = if slots == 1 { 1 } else { slots - (slots / 8).max(1) };
        Self {
            slots,
            share: slots.div_ceil(2),
            limit,
            class: [slots, limit, (slots / 2).max(1), (slots / 4).max(1)],
            device: device.unwrap_or(slots.div_ceil(2)).clamp(1, slots),
        }
    }
}

/// See the head of this file.
pub(crate) struct Queue<J> {
    caps: Caps,
    max_waiting: usize,
    slots: Vec<Slot<J>>,
    free_slots: Vec<u32>,
    keys: Vec<Key>,
    free_keys: Vec<u32>,
    by_source: HashMap<(u32, JobSource), u32>,
    devices: Vec<DeviceQueue>,
    /// Devices with waiting jobs that may start more, per level of the source (ready, capped) and class.
    rings: [[List; CLASSES]; 2],
    started: List,
    /// Jobs of devices that were taken, the first taken first.
    taken: List,
    /// Devices on which something hangs.
    hanging: Vec<u32>,
    running: [u32; CLASSES],
    /// Jobs that hang and hold their slots.
    held_slots: u32,
    /// Jobs that hang and whose threads were replaced.
    replaced: u32,
    waiting: usize,
    starts: u32,
    /// Ticks so far: the only clock here.
    now: u64,
}

impl<J> Queue<J> {
    /// A queue for `slots` (at least 1) jobs at a time, of which one device may have `device` (half of them by default), and
    /// `max_waiting` more for each device.
    pub(crate) fn new(slots: u32, max_waiting: usize, device: Option<u32>) -> Self {
        Self {
            caps: Caps::of(slots, device),
            max_waiting,
            slots: Vec::new(),
            free_slots: Vec::new(),
            keys: Vec::new(),
            free_keys: Vec::new(),
            by_source: HashMap::new(),
            devices: Vec::new(),
            rings: [[List::EMPTY; CLASSES]; 2],
            started: List::EMPTY,
            taken: List::EMPTY,
            hanging: Vec::new(),
            running: [0; CLASSES],
            held_slots: 0,
            replaced: 0,
            waiting: 0,
            starts: 0,
            now: 0,
        }
    }

    /// Jobs that wait for a slot.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Jobs that hold a slot.
    pub(crate) fn running(&self) -> u32 {
        self.running.iter().sum::<u32>() + self.held_slots
    }

    /// Slots.
    pub(crate) fn slots(&self) -> u32 {
        self.caps.slots
    }

    /// Slots that one device may have.
    pub(crate) fn device_share(&self) -> u32 {
        self.caps.device
    }

    /// The most jobs that may wait for one device.
    pub(crate) fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// Returns true if a started job waits to be taken.
    pub(crate) fn has_started(&self) -> bool {
        !self.started.is_empty()
    }

    /// Adds a job on `device`; refuses it if it would have to wait and the queue of the device is full, unless `force`.
    pub(crate) fn push(
        &mut self,
        class: JobClass,
        source: JobSource,
        device: u32,
        job: J,
        force: bool,
    ) -> Result<Ticket, Full<J>> {
        self.meet(device);
        let waiting = self.devices[device as usize].waiting;
        if !force && waiting >= self.max_waiting && !self.would_start(class, source, device) {
            return Err(Full { job, waiting });
        }
        let key = self.key_of(source, device);
        let slot = Slot {
            job: Some(job),
            turn: 0,
            state: SlotState::Waiting,
            class,
            key,
            prev: NIL,
            next: NIL,
            is_forced: force,
            holds_slot: false,
            since: 0,
            runner: Runner::default(),
        };
        let index = match self.free_slots.pop() {
            Some(index) => {
                let turn = self.slots[index as usize].turn;
                self.slots[index as usize] = Slot { turn, ..slot };
                index
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        let c = class.index();
        let mut list = self.keys[key as usize].waiting[c];
        let was_empty = list.is_empty();
        self.slot_push(&mut list, index);
        self.keys[key as usize].waiting[c] = list;
        if was_empty {
            self.ring_join(key, c);
        }
        self.waiting += 1;
        self.devices[device as usize].waiting += 1;
        self.start_all();
        Ok(Ticket { index, turn: self.slots[index as usize].turn })
    }

    /// Returns the next started job, for `runner` to run.
    pub(crate) fn take(&mut self, runner: Runner) -> Option<(Ticket, J)>
    where
        J: Clone,
    {
        let index = self.started.head;
        if index == NIL {
            return None;
        }
        let mut list = self.started;
        self.slot_unlink(&mut list, index);
        self.started = list;
        let slot = &mut self.slots[index as usize];
        (slot.state, slot.since, slot.runner) = (SlotState::Taken, self.now, runner);
        let ticket = Ticket { index, turn: slot.turn };
        let device = self.keys[slot.key as usize].device;
        if device == NO_DEVICE {
            return slot.job.take().map(|job| (ticket, job));
        }
        // The job is kept as well, so that its waiter can be told if it hangs.
        let job = slot.job.clone();
        let mut list = self.taken;
        self.slot_push(&mut list, index);
        self.taken = list;
        job.map(|job| (ticket, job))
    }

    /// Gives back the slot of a taken job.
    pub(crate) fn done(&mut self, ticket: Ticket) {
        match self.state_of(ticket) {
            SlotState::Taken => {
                self.untake(ticket.index);
                self.moved(ticket.index);
                self.release(ticket.index);
            }
            SlotState::Hung => {
                self.moved(ticket.index);
                self.release_hung(ticket.index);
            }
            _ => return,
        }
        self.start_all();
    }

    /// Removes a job that has not been taken yet.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Option<J> {
        match self.state_of(ticket) {
            SlotState::Free | SlotState::Taken | SlotState::Hung => None,
            SlotState::Waiting => {
                let job = self.slots[ticket.index as usize].job.take();
                let key = self.unwait(ticket.index);
                self.free_slot(ticket.index);
                self.drop_key_if_idle(key);
                job
            }
            SlotState::Started => {
                let job = self.slots[ticket.index as usize].job.take();
                let mut list = self.started;
                self.slot_unlink(&mut list, ticket.index);
                self.started = list;
                self.release(ticket.index);
                self.start_all();
                job
            }
        }
    }

    /// Changes the limits; jobs that run or wait are kept, even beyond the new limits. Returns true if the limits were others.
    pub(crate) fn resize(&mut self, slots: u32, max_waiting: usize, device: Option<u32>) -> bool {
        let caps = Caps::of(slots, device);
        if (&caps, max_waiting) == (&self.caps, self.max_waiting) {
            return false;
        }
        self.caps = caps;
        self.max_waiting = max_waiting;
        for device in 0..self.devices.len() {
            self.reopen(device as u32);
        }
        let keys: Vec<u32> = self.by_source.values().copied().collect();
        for key in keys {
            self.relevel(key);
        }
        self.start_all();
        true
    }

    fn state_of(&self, ticket: Ticket) -> SlotState {
        match self.slots.get(ticket.index as usize) {
            Some(slot) if slot.turn == ticket.turn => slot.state,
            _ => SlotState::Free,
        }
    }

    fn would_start(&self, class: JobClass, source: JobSource, device: u32) -> bool {
        // Every job that may start has been started already, so no waiting job may use a free slot.
        let running = self.by_source.get(&(device, source)).map_or(0, |&key| self.keys[key as usize].running);
        self.devices[device as usize].is_open
            && self.running() < self.caps.slots
            && self.running[class.index()] < self.caps.class[class.index()]
            && self.level_of(source, running) != Level::Blocked
    }

    fn level_of(&self, source: JobSource, running: u32) -> Level {
        if running < self.caps.share {
            Level::Ready
        } else if running < self.caps.limit || source == JobSource::NONE {
            Level::Capped
        } else {
            Level::Blocked
        }
    }

    fn start_all(&mut self) {
        while self.running() < self.caps.slots && self.waiting > 0 {
            let Some((key, class)) = self.pick() else { return };
            self.start(key, class);
        }
    }

    fn pick(&mut self) -> Option<(u32, usize)> {
        self.starts = (self.starts + 1) % BOTTOM_UP_EVERY;
        let bottom_up = self.starts == 0;
        for (l, level) in self.rings.iter().enumerate() {
            for i in 0..CLASSES {
                let c = if bottom_up { CLASSES - 1 - i } else { i };
                if self.running[c] < self.caps.class[c] && !level[c].is_empty() {
                    let device = &self.devices[level[c].head as usize];
                    return Some((device.rings[l][c].head, c));
                }
            }
        }
        None
    }

    fn start(&mut self, key: u32, c: usize) {
        let index = self.keys[key as usize].waiting[c].head;
        self.unwait(index);
        self.slots[index as usize].state = SlotState::Started;
        let mut list = self.started;
        self.slot_push(&mut list, index);
        self.started = list;
        self.running[c] += 1;
        self.keys[key as usize].running += 1;
        let level_before = self.keys[key as usize].level;
        let device = self.keys[key as usize].device;
        self.devices[device as usize].running += 1;
        self.devices[device as usize].last_start = self.now;
        self.reopen(device);
        self.relevel(key);
        // Round robin: a source that had its turn goes to the end.
        let k = &self.keys[key as usize];
        if k.level == level_before && !k.waiting[c].is_empty() && k.level != Level::Blocked {
            self.ring_leave(key, c);
            self.ring_join(key, c);
        }
        for l in 0..2 {
            if self.is_in_ring(device, l, c) {
                self.device_leave(device, l, c);
                self.device_join(device, l, c);
            }
        }
    }

    fn release(&mut self, index: u32) {
        let class = self.slots[index as usize].class;
        let key = self.slots[index as usize].key;
        self.running[class.index()] -= 1;
        let device = self.keys[key as usize].device;
        self.devices[device as usize].running -= 1;
        self.reopen(device);
        self.give_back(index);
    }

    fn give_back(&mut self, index: u32) {
        let key = self.slots[index as usize].key;
        self.keys[key as usize].running -= 1;
        self.free_slot(index);
        self.relevel(key);
        self.drop_key_if_idle(key);
    }

    /// Takes a waiting job off the list of its source; the slot stays.
    fn unwait(&mut self, index: u32) -> u32 {
        let c = self.slots[index as usize].class.index();
        let key = self.slots[index as usize].key;
        let mut list = self.keys[key as usize].waiting[c];
        self.slot_unlink(&mut list, index);
        self.keys[key as usize].waiting[c] = list;
        if list.is_empty() {
            self.ring_leave(key, c);
        }
        self.waiting -= 1;
        let device = self.keys[key as usize].device;
        self.devices[device as usize].waiting -= 1;
        key
    }

    fn free_slot(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = SlotState::Free;
        // This is never the last reference: the taker of a job keeps another one until its slot is free.
        slot.job = None;
        slot.turn = slot.turn.wrapping_add(1);
        self.free_slots.push(index);
    }

    fn key_of(&mut self, source: JobSource, device: u32) -> u32 {
        if let Some(&key) = self.by_source.get(&(device, source)) {
            return key;
        }
        let level = self.level_of(source, 0);
        let key = Key {
            source,
            device,
            running: 0,
            level,
            waiting: [List::EMPTY; CLASSES],
            links: [(NIL, NIL); CLASSES],
        };
        let index = match self.free_keys.pop() {
            Some(index) => {
                self.keys[index as usize] = key;
                index
            }
            None => {
                self.keys.push(key);
                (self.keys.len() - 1) as u32
            }
        };
        self.by_source.insert((device, source), index);
        index
    }

    fn drop_key_if_idle(&mut self, key: u32) {
        let k = &self.keys[key as usize];
        if k.running == 0 && k.waiting.iter().all(|list| list.is_empty()) {
            self.by_source.remove(&(k.device, k.source));
            self.free_keys.push(key);
        }
    }

    fn relevel(&mut self, key: u32) {
        let k = &self.keys[key as usize];
        let level = self.level_of(k.source, k.running);
        if level == k.level {
            return;
        }
        for c in 0..CLASSES {
            if !self.keys[key as usize].waiting[c].is_empty() {
                self.ring_leave(key, c);
            }
        }
        self.keys[key as usize].level = level;
        for c in 0..CLASSES {
            if !self.keys[key as usize].waiting[c].is_empty() {
                self.ring_join(key, c);
            }
        }
    }
}

#[cfg(test)]
mod tests;
