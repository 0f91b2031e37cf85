//! Output of a connection: small parts are copied into one buffer, large ones stay where they are.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes};

/// Smallest size that is not copied: one more part of a write costs more than a copy of so many bytes.
const SHARED_MIN: usize = 1 << 10;
/// Parts of one write.
const PARTS_MAX: usize = 64;
/// Parts for which room is kept while there are none.
const PARTS_KEPT: usize = 8;
/// Copied bytes that have left, from which on those behind them are moved to the front: not for every frame.
const LEFT_MAX: usize = 64 << 10;
/// Buffers that a thread keeps for connections that have something to write.
const SPARE_MAX: usize = 64;
/// A buffer that has become larger is not kept.
const SPARE_SIZE_MAX: usize = 64 << 10;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Gathered output of one connection. An empty one holds next to no memory.
#[derive(Default)]
pub(crate) struct Out {
    /// Small parts, one behind the other.
    copied: Vec<u8>,
    /// Number of written bytes among them.
    sent: usize,
    /// Parts of the output in their order.
    parts: VecDeque<Part>,
    len: usize,
}

enum Part {
    /// Number of bytes in `copied`, behind those of the parts before.
    Copied(usize),
    Shared(Bytes),
}

impl Out {
    /// Number of bytes that are to be written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.parts.shrink_to_fit();
    }

    /// Appends a copy.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        if self.copied.capacity() == 0 {
            self.copied = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        }
        self.copied.extend_from_slice(bytes);
        self.len += bytes.len();
        match self.parts.back_mut() {
            Some(Part::Copied(len)) => *len += bytes.len(),
            _ => self.parts.push_back(Part::Copied(bytes.len())),
        }
    }

    /// Appends bytes, shared if they are many.
    pub(crate) fn share(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED_MIN {
            return self.copy(&bytes);
        }
        self.len += bytes.len();
        self.parts.push_back(Part::Shared(bytes));
    }

    /// Calls `write` with the next output, removes the number of bytes that it returns, and returns it.
    pub(crate) fn write(
        &mut self,
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        let mut at = self.sent;
        let filled = slices.iter_mut().zip(&self.parts).map(|(slice, part)| {
            *slice = IoSlice::new(match part {
                Part::Copied(len) => {
                    at += len;
                    self.copied.get(at - len..at).unwrap_or_default()
                }
                Part::Shared(bytes) => bytes,
            });
        });
        let count = filled.count();
        let taken = write(slices.get(..count).unwrap_or_default())?;
        self.consume(taken.min(self.len));
        Ok(taken)
    }

    fn consume(&mut self, mut count: usize) {
        self.len -= count;
        while count > 0
            && let Some(part) = self.parts.front_mut()
        {
            let remaining = match part {
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
            if remaining == 0 {
                self.parts.pop_front();
            }
        }
        if self.len == 0 {
            self.sent = 0;
            self.parts.shrink_to(PARTS_KEPT);
            give_back(std::mem::take(&mut self.copied));
        } else if self.sent >= LEFT_MAX {
            self.copied.drain(..self.sent);
            self.sent = 0;
        }
    }
}

fn give_back(mut buffer: Vec<u8>) {
    if buffer.capacity() > SPARE_SIZE_MAX || buffer.capacity() == 0 {
        return;
    }
    buffer.clear();
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < SPARE_MAX {
            spare.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes all of it, at most so many bytes at a time.
    fn drain(out: &mut Out, size: usize) -> Vec<u8> {
        let mut text = Vec::new();
        while out.len() > 0 {
            let taken = out.write(|slices| {
                let before = text.len();
                for slice in slices {
                    let room = size - (text.len() - before);
                    text.extend_from_slice(&slice[..slice.len().min(room)]);
                }
                Ok(text.len() - before)
            });
            assert!(taken.unwrap() > 0);
        }
        text
    }

    #[test]
    fn output_keeps_its_order() {
        for size in [1, 7, 1000, 5000, usize::MAX / 2] {
            let mut out = Out::default();
            let mut expected = Vec::new();
            for round in 0..200_usize {
                let bytes = vec![round as u8; round * 37 % 3000];
                expected.extend_from_slice(&bytes);
                match round % 3 {
                    0 => out.copy(&bytes),
                    _ => out.share(Bytes::from(bytes)),
                }
            }
            assert_eq!(out.len(), expected.len());
            assert!(drain(&mut out, size) == expected, "by {size}");
            assert_eq!((out.copied.capacity(), out.parts.len()), (0, 0));
        }
    }

    #[test]
    fn blocked_socket_keeps_the_output() {
        let mut out = Out::default();
        out.copy(b"abc");
        let refused = out.write(|_| Err(io::ErrorKind::WouldBlock.into()));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(drain(&mut out, 2), b"abc");
    }

    #[test]
    fn large_parts_are_not_copied() {
        let mut out = Out::default();
        let large = Bytes::from(vec![1; SHARED_MIN]);
        out.copy(b"head");
        out.share(large.clone());
        out.write(|slices| {
            assert_eq!((slices.len(), slices[1].as_ptr()), (2, large.as_ptr()));
            Ok(4 + SHARED_MIN)
        })
        .unwrap();
        assert_eq!(out.len(), 0);
    }
}
