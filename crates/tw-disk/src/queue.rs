//! Which job is next: a pure data structure, without threads, clocks or locks.
//!
//! A queue has a number of slots (threads, or places in a ring). A job waits, is *started* when it gets a slot, is *taken*
//! by whoever runs it, and gives the slot back when done.
//!
//! ```text
//! push ─► waiting ─► started ─► taken ─► done
//!            └───────────┴─ cancel
//! ```
//!
//! Order: by class, then round robin between the sources of a class, then first come, first served. Two kinds of caps
//! keep slots free for those who come later: a source may hold half of the slots while another source waits, and never
//! all of them; classes below `Hit` may never hold all of them either. So that no class starves, one start in
//! [`BOTTOM_UP_EVERY`] looks at the classes in reverse.
//!
//! Every operation takes constant time, except [`Queue::resize`], which visits every source.

use crate::account::{Class, Source};
use std::collections::HashMap;

/// One start in this many prefers the lowest class: about 2 % of the starts, and a bound on how long it can starve.
const BOTTOM_UP_EVERY: u32 = 64;

const NIL: u32 = u32::MAX;
const CLASSES: usize = Class::ALL.len();

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
enum Place {
    Free,
    Waiting,
    Started,
    Taken,
}

struct Slot<J> {
    job: Option<J>,
    turn: u32,
    place: Place,
    class: Class,
    key: u32,
    prev: u32,
    next: u32,
}

/// How a source stands against its caps.
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
    source: Source,
    running: u32,
    level: Level,
    waiting: [List; CLASSES],
    /// Neighbours in the ring of each class.
    links: [(u32, u32); CLASSES],
}

/// The caps that follow from the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Caps {
    slots: u32,
    /// Running jobs of one source while another waits.
    share: u32,
    /// Running jobs of one source at any time.
    limit: u32,
    class: [u32; CLASSES],
}

impl Caps {
    fn of(slots: u32) -> Self {
        let slots = slots.max(1);
        // An eighth stays free for sources and hits that come later: with 32 threads, 4.
        let limit = if slots == 1 { 1 } else { slots - (slots / 8).max(1) };
        Self {
            slots,
            share: slots.div_ceil(2),
            limit,
            class: [slots, limit, (slots / 2).max(1), (slots / 4).max(1)],
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
    by_source: HashMap<Source, u32>,
    /// Sources with waiting jobs, per level (ready, capped) and class.
    rings: [[List; CLASSES]; 2],
    started: List,
    running: [u32; CLASSES],
    waiting: usize,
    starts: u32,
}

impl<J> Queue<J> {
    /// A queue for `slots` (at least 1) jobs at a time and `max_waiting` more.
    pub(crate) fn new(slots: u32, max_waiting: usize) -> Self {
        Self {
            caps: Caps::of(slots),
            max_waiting,
            slots: Vec::new(),
            free_slots: Vec::new(),
            keys: Vec::new(),
            free_keys: Vec::new(),
            by_source: HashMap::new(),
            rings: [[List::EMPTY; CLASSES]; 2],
            started: List::EMPTY,
            running: [0; CLASSES],
            waiting: 0,
            starts: 0,
        }
    }

    /// Jobs that wait for a slot.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Jobs that hold a slot.
    pub(crate) fn running(&self) -> u32 {
        self.running.iter().sum()
    }

    /// Slots.
    pub(crate) fn slots(&self) -> u32 {
        self.caps.slots
    }

    /// The most jobs that may wait.
    pub(crate) fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// Whether a started job waits to be taken.
    pub(crate) fn has_started(&self) -> bool {
        !self.started.is_empty()
    }

    /// Adds a job; refuses it if it would have to wait and the queue is full, unless `force`.
    pub(crate) fn push(
        &mut self,
        class: Class,
        source: Source,
        job: J,
        force: bool,
    ) -> Result<Ticket, Full<J>> {
        if !force && self.waiting >= self.max_waiting && !self.would_start(class, source) {
            return Err(Full { job, waiting: self.waiting });
        }
        let key = self.key_of(source);
        let slot = Slot { job: Some(job), turn: 0, place: Place::Waiting, class, key, prev: NIL, next: NIL };
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
        self.start_all();
        Ok(Ticket { index, turn: self.slots[index as usize].turn })
    }

    /// The next started job, for someone who will run it.
    pub(crate) fn take(&mut self) -> Option<(Ticket, J)> {
        let index = self.started.head;
        if index == NIL {
            return None;
        }
        let mut list = self.started;
        self.slot_unlink(&mut list, index);
        self.started = list;
        let slot = &mut self.slots[index as usize];
        slot.place = Place::Taken;
        let ticket = Ticket { index, turn: slot.turn };
        slot.job.take().map(|job| (ticket, job))
    }

    /// Gives back the slot of a taken job.
    pub(crate) fn done(&mut self, ticket: Ticket) {
        if self.place_of(ticket) == Place::Taken {
            self.release(ticket.index);
            self.start_all();
        }
    }

    /// Takes a job out that nobody has taken yet.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Option<J> {
        match self.place_of(ticket) {
            Place::Free | Place::Taken => None,
            Place::Waiting => {
                let job = self.slots[ticket.index as usize].job.take();
                let key = self.unwait(ticket.index);
                self.free_slot(ticket.index);
                self.drop_key_if_idle(key);
                job
            }
            Place::Started => {
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

    /// Changes the limits; jobs that run or wait are kept, even beyond the new limits.
    pub(crate) fn resize(&mut self, slots: u32, max_waiting: usize) {
        self.caps = Caps::of(slots);
        self.max_waiting = max_waiting;
        let keys: Vec<u32> = self.by_source.values().copied().collect();
        for key in keys {
            self.relevel(key);
        }
        self.start_all();
    }

    fn place_of(&self, ticket: Ticket) -> Place {
        match self.slots.get(ticket.index as usize) {
            Some(slot) if slot.turn == ticket.turn => slot.place,
            _ => Place::Free,
        }
    }

    fn would_start(&self, class: Class, source: Source) -> bool {
        // Whoever may start has been started already, so a free slot means that nobody who waits may use it.
        let running = self.by_source.get(&source).map_or(0, |&key| self.keys[key as usize].running);
        self.running() < self.caps.slots
            && self.running[class.index()] < self.caps.class[class.index()]
            && self.level_of(source, running) != Level::Blocked
    }

    fn level_of(&self, source: Source, running: u32) -> Level {
        if running < self.caps.share {
            Level::Ready
        } else if running < self.caps.limit || source == Source::NONE {
            Level::Capped
        } else {
            Level::Blocked
        }
    }

    fn start_all(&mut self) {
        while self.running() < self.caps.slots && self.waiting > 0 {
            let Some(key_class) = self.pick() else { return };
            self.start(key_class);
        }
    }

    fn pick(&mut self) -> Option<(u32, usize)> {
        self.starts = (self.starts + 1) % BOTTOM_UP_EVERY;
        let bottom_up = self.starts == 0;
        for level in &self.rings {
            for i in 0..CLASSES {
                let c = if bottom_up { CLASSES - 1 - i } else { i };
                if self.running[c] < self.caps.class[c] && !level[c].is_empty() {
                    return Some((level[c].head, c));
                }
            }
        }
        None
    }

    fn start(&mut self, (key, c): (u32, usize)) {
        let index = self.keys[key as usize].waiting[c].head;
        self.unwait(index);
        self.slots[index as usize].place = Place::Started;
        let mut list = self.started;
        self.slot_push(&mut list, index);
        self.started = list;
        self.running[c] += 1;
        self.keys[key as usize].running += 1;
        let level_before = self.keys[key as usize].level;
        self.relevel(key);
        // Round robin: whoever has had a turn goes to the end.
        let k = &self.keys[key as usize];
        if k.level == level_before && !k.waiting[c].is_empty() && k.level != Level::Blocked {
            self.ring_leave(key, c);
            self.ring_join(key, c);
        }
    }

    fn release(&mut self, index: u32) {
        let (class, key) = (self.slots[index as usize].class, self.slots[index as usize].key);
        self.running[class.index()] -= 1;
        self.keys[key as usize].running -= 1;
        self.free_slot(index);
        self.relevel(key);
        self.drop_key_if_idle(key);
    }

    /// Takes a waiting job off the list of its source; the slot stays.
    fn unwait(&mut self, index: u32) -> u32 {
        let (c, key) = (self.slots[index as usize].class.index(), self.slots[index as usize].key);
        let mut list = self.keys[key as usize].waiting[c];
        self.slot_unlink(&mut list, index);
        self.keys[key as usize].waiting[c] = list;
        if list.is_empty() {
            self.ring_leave(key, c);
        }
        self.waiting -= 1;
        key
    }

    fn free_slot(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.place = Place::Free;
        slot.turn = slot.turn.wrapping_add(1);
        self.free_slots.push(index);
    }

    fn key_of(&mut self, source: Source) -> u32 {
        if let Some(&key) = self.by_source.get(&source) {
            return key;
        }
        let level = self.level_of(source, 0);
        let key =
            Key { source, running: 0, level, waiting: [List::EMPTY; CLASSES], links: [(NIL, NIL); CLASSES] };
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
        self.by_source.insert(source, index);
        index
    }

    fn drop_key_if_idle(&mut self, key: u32) {
        let k = &self.keys[key as usize];
        if k.running == 0 && k.waiting.iter().all(|list| list.is_empty()) {
            self.by_source.remove(&k.source);
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

    fn ring_join(&mut self, key: u32, c: usize) {
        let level = self.keys[key as usize].level;
        if level == Level::Blocked {
            return;
        }
        let tail = self.rings[level as usize][c].tail;
        self.keys[key as usize].links[c] = (tail, NIL);
        match tail {
            NIL => self.rings[level as usize][c].head = key,
            tail => self.keys[tail as usize].links[c].1 = key,
        }
        self.rings[level as usize][c].tail = key;
    }

    fn ring_leave(&mut self, key: u32, c: usize) {
        let level = self.keys[key as usize].level;
        if level == Level::Blocked {
            return;
        }
        let (prev, next) = self.keys[key as usize].links[c];
        match prev {
            NIL => self.rings[level as usize][c].head = next,
            prev => self.keys[prev as usize].links[c].1 = next,
        }
        match next {
            NIL => self.rings[level as usize][c].tail = prev,
            next => self.keys[next as usize].links[c].0 = prev,
        }
    }

    fn slot_push(&mut self, list: &mut List, index: u32) {
        self.slots[index as usize].prev = list.tail;
        self.slots[index as usize].next = NIL;
        match list.tail {
            NIL => list.head = index,
            tail => self.slots[tail as usize].next = index,
        }
        list.tail = index;
    }

    fn slot_unlink(&mut self, list: &mut List, index: u32) {
        let (prev, next) = (self.slots[index as usize].prev, self.slots[index as usize].next);
        match prev {
            NIL => list.head = next,
            prev => self.slots[prev as usize].next = next,
        }
        match next {
            NIL => list.tail = prev,
            next => self.slots[next as usize].prev = prev,
        }
    }
}

#[cfg(test)]
mod tests;
