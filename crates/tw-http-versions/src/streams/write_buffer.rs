//! Buffers for what goes into frames as it is: lent out with the bytes in them, and back when the socket has taken these.

use std::cell::RefCell;

use bytes::Bytes;
use tw_base::memory;

/// Buffers for pieces of files that a thread keeps for its next ones. The one that came back last goes first: the processor has it
/// in its caches.
const SPARE_MAX: usize = 32;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = {
        tw_rt::on_memory_release(|| {
            if memory::is_low() {
                SPARE.take();
            }
        });
        RefCell::default()
    };
}

/// Offset of the bytes of a buffer in a page of memory. The kernel copies them behind a frame header, which often begins a
/// page. Some processors copy very slowly to an address that is a few bytes further in its page than the source (an EPYC with
/// AVX-512: 2 instead of 45 GB/s, for 1 to 31 bytes); so the two differ by half a page.
const BEGIN_AT: usize = PAGE_SIZE / 2;
const PAGE_SIZE: usize = 4 << 10;

/// Size from which a buffer is kept for the next piece. A small piece has one of its own size: it may wait for its client, and a large
/// buffer with it.
const SPARE_MIN: usize = 64 << 10;

/// Buffer that is returned when no reference to its bytes is left.
struct LentBuffer {
    buffer: Vec<u8>,
    /// Range of the bytes that are filled.
    start: usize,
    len: usize,
}

impl LentBuffer {
    /// A buffer with room for `size` bytes.
    fn new(size: usize) -> Self {
        if size < SPARE_MIN {
            return Self { buffer: vec![0; size], start: 0, len: size };
        }
        let mut buffer = SPARE.with(|spare| spare.borrow_mut().pop()).unwrap_or_default();
        if buffer.len() < size + PAGE_SIZE {
            buffer = vec![0; size + PAGE_SIZE];
        }
        let start = (BEGIN_AT + PAGE_SIZE - buffer.as_ptr().addr() % PAGE_SIZE) % PAGE_SIZE;
        Self { buffer, start, len: size }
    }

    fn room(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        self.buffer.get(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        if buffer.len() < SPARE_MIN {
            return;
        }
        // A thread that ends keeps none.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX && !memory::is_low() {
                spare.push(buffer);
            }
        });
    }
}

/// Has `fill` write at most `size` bytes, and gives as many of them as it says.
pub(crate) fn filled<T>(size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, T>) -> Result<Bytes, T> {
    let mut lent_buffer = LentBuffer::new(size);
    lent_buffer.len = fill(lent_buffer.room())?.min(size);
    Ok(Bytes::from_owner(lent_buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare() -> usize {
        SPARE.with(|spare| spare.borrow().len())
    }

    #[test]
    fn large_buffer_is_reused_after_its_last_slice_is_dropped() {
        const SIZE: usize = SPARE_MIN;
        let fill = |byte: u8| {
            move |room: &mut [u8]| {
                room.fill(byte);
                Ok::<_, ()>(room.len() - 1)
            }
        };
        let mut first = filled(SIZE, fill(b'a')).unwrap();
        let rest = first.split_off(SIZE - 5);
        drop(first);
        assert_eq!((spare(), &*rest), (0, &b"aaaa"[..]));
        drop(rest);
        assert_eq!(spare(), 1);
        assert_eq!(filled(SIZE, fill(b'b')).unwrap()[..2], b"bb"[..]);
        assert_eq!(filled(2 * SIZE, fill(b'c')).unwrap().len(), 2 * SIZE - 1);
        assert_eq!(spare(), 1, "one was enough");
        assert_eq!(filled(SIZE, |_| Err("no")).unwrap_err(), "no");
        assert_eq!(spare(), 1);
        let many: Vec<_> = (0..SPARE_MAX + 5).map(|_| filled(SIZE, fill(b'd')).unwrap()).collect();
        drop(many);
        assert_eq!(spare(), SPARE_MAX);
    }

    #[test]
    fn small_piece_has_a_buffer_of_its_size() {
        let lent_buffer = LentBuffer::new(SPARE_MIN - 1);
        assert_eq!(lent_buffer.buffer.capacity(), SPARE_MIN - 1);
        drop(lent_buffer);
        assert_eq!(spare(), 0);
        assert_eq!(filled(3, |room| Ok::<_, ()>(room.len())).unwrap(), "\0\0\0");
    }
}
