//! Rings and lists of the queue: keys of a device, devices with work, and jobs, each linked by numbers.

use super::{Level, List, NIL, Queue};

impl<J> Queue<J> {
    pub(super) fn ring_join(&mut self, key: u32, c: usize) {
        let level = self.keys[key as usize].level;
        let device = self.keys[key as usize].device;
        if level == Level::Blocked {
            return;
        }
        let l = level as usize;
        let d = device as usize;
        let tail = self.devices[d].rings[l][c].tail;
        self.keys[key as usize].links[c] = (tail, NIL);
        match tail {
            NIL => self.devices[d].rings[l][c].head = key,
            tail => self.keys[tail as usize].links[c].1 = key,
        }
        self.devices[d].rings[l][c].tail = key;
        if tail == NIL && self.devices[d].is_open {
            self.device_join(device, l, c);
        }
    }

    pub(super) fn ring_leave(&mut self, key: u32, c: usize) {
        let level = self.keys[key as usize].level;
        let device = self.keys[key as usize].device;
        if level == Level::Blocked {
            return;
        }
        let l = level as usize;
        let d = device as usize;
        let (prev, next) = self.keys[key as usize].links[c];
        match prev {
            NIL => self.devices[d].rings[l][c].head = next,
            prev => self.keys[prev as usize].links[c].1 = next,
        }
        match next {
            NIL => self.devices[d].rings[l][c].tail = prev,
            next => self.keys[next as usize].links[c].0 = prev,
        }
        if self.devices[d].rings[l][c].is_empty() && self.devices[d].is_open {
            self.device_leave(device, l, c);
        }
    }

    pub(super) fn is_in_ring(&self, device: u32, l: usize, c: usize) -> bool {
        let device = &self.devices[device as usize];
        device.is_open && !device.rings[l][c].is_empty()
    }

    pub(super) fn device_join(&mut self, device: u32, l: usize, c: usize) {
        let tail = self.rings[l][c].tail;
        self.devices[device as usize].links[l][c] = (tail, NIL);
        match tail {
            NIL => self.rings[l][c].head = device,
            tail => self.devices[tail as usize].links[l][c].1 = device,
        }
        self.rings[l][c].tail = device;
    }

    pub(super) fn device_leave(&mut self, device: u32, l: usize, c: usize) {
        let (prev, next) = self.devices[device as usize].links[l][c];
        match prev {
            NIL => self.rings[l][c].head = next,
            prev => self.devices[prev as usize].links[l][c].1 = next,
        }
        match next {
            NIL => self.rings[l][c].tail = prev,
            next => self.devices[next as usize].links[l][c].0 = prev,
        }
    }

    pub(super) fn slot_push(&mut self, list: &mut List, index: u32) {
        self.slots[index as usize].prev = list.tail;
        self.slots[index as usize].next = NIL;
        match list.tail {
            NIL => list.head = index,
            tail => self.slots[tail as usize].next = index,
        }
        list.tail = index;
    }

    pub(super) fn slot_unlink(&mut self, list: &mut List, index: u32) {
        let prev = self.slots[index as usize].prev;
        let next = self.slots[index as usize].next;
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
