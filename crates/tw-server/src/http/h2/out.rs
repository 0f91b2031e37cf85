//! Frames on their way to the socket: what is small is copied into one buffer, what is large stays where it is.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes};

use crate::event_loop::Loop;

/// What is smaller is copied: a part of a write costs more than so many bytes do.
const SHARED_MIN: usize = 1 << 10;
/// Parts of one write.
const PARTS_MAX: usize = 64;
/// Parts for which room is kept while there are none.
const PARTS_KEPT: usize = 8;

/// What was gathered for one connection. Empty it holds next to no memory.
#[derive(Default)]
pub(super) struct Out {
    /// Small parts, one behind the other.
    copied: Vec<u8>,
    /// How much of them has left.
    sent: usize,
    /// What goes out, in its order.
    parts: VecDeque<Part>,
    len: usize,
}

enum Part {
    /// So many bytes of `copied`, behind those of the parts before.
    Copied(usize),
    Shared(Bytes),
}

impl Out {
    /// Bytes that were gathered and have not left.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends slices, of which some may be of `shown`, and says how many bytes these are.
    pub(super) fn push(&mut self, given: &[IoSlice<'_>], shown: &Bytes, home: &Loop) -> usize {
        if self.len == 0 {
            self.copied = home.app.take_output();
        }
        let before = self.len;
        for slice in given {
            self.len += slice.len();
            if slice.len() >= SHARED_MIN && is_within(slice, shown) {
                self.parts.push_back(Part::Shared(shown.slice_ref(slice)));
                continue;
            }
            self.copied.extend_from_slice(slice);
            match self.parts.back_mut() {
                Some(Part::Copied(len)) => *len += slice.len(),
                _ => self.parts.push_back(Part::Copied(slice.len())),
            }
        }
        self.len - before
    }

    /// Has `write` take the beginning of it, and says how much that took.
    pub(super) fn write(&self, write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        let mut at = self.sent;
        let count = slices.iter_mut().zip(&self.parts).map(|(slice, part)| {
            *slice = IoSlice::new(match part {
                Part::Copied(len) => {
                    at += len;
                    self.copied.get(at - len..at).unwrap_or_default()
                }
                Part::Shared(bytes) => bytes,
            });
        });
        let count = count.count();
        write(slices.get(..count).unwrap_or_default())
    }

    /// Forgets what has left.
    pub(super) fn consume(&mut self, mut count: usize, home: &Loop) {
        self.len -= count;
        while count > 0
            && let Some(part) = self.parts.front_mut()
        {
            let left = match part {
                Part::Copied(len) => {
                    let taken = count.min(*len);
                    *len -= taken;
                    self.sent += taken;
                    count -= taken;
                    *len
                }
                Part::Shared(bytes) => {
                    let taken = count.min(bytes.len());
                    bytes.advance(taken);
                    count -= taken;
                    bytes.len()
                }
            };
            if left == 0 {
                self.parts.pop_front();
            }
        }
        if self.len == 0 {
            home.app.give_back_output(std::mem::take(&mut self.copied));
            self.sent = 0;
            self.parts.shrink_to(PARTS_KEPT);
        } else if self.sent >= super::conn::OUT_MAX {
            // What waits is moved to the front once as much has left, not for every frame.
            self.copied.drain(..self.sent);
            self.sent = 0;
        }
    }
}

fn is_within(slice: &[u8], bytes: &Bytes) -> bool {
    let (inner, outer) = (slice.as_ptr_range(), bytes.as_ptr_range());
    outer.start <= inner.start && inner.end <= outer.end
}
