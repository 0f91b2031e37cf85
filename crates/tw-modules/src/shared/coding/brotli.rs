//! Brotli (RFC 7932) by the `brotli` crate.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloc_stdlib::heap_alloc::WrapBox;
use brotli::enc::BrotliAlloc;
use brotli::enc::encode::{
    BrotliEncoderDestroyInstance, BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct,
};
use brotli::{Allocator, SliceWrapper, SliceWrapperMut};

use super::encoder::{CodecError, Encoder};
use super::encoder_memory::{Memory, UNKNOWN_LENGTH_MAX};

/// Least window, base-2 logarithm.
const WINDOW_BITS_MIN: u8 = 10;
/// Smallest window for qualities 5 to 9, for which the crate has no smaller tables: instead it takes one of 32 MiB.
const WINDOW_BITS_MIN_HASHED: u8 = 17;
/// Bytes of room for output that the encoder has at a time.
const ROOM: usize = 16 << 10;
/// Smallest piece of memory that is worth keeping, bytes: smaller ones the allocator has at hand.
const KEPT_MIN: usize = 32 << 10;
/// Bytes that an encoder keeps for the next body.
const KEPT_MAX: usize = 8 << 20;

/// An encoder. The crate's cannot be used twice: `reset` makes another one out of the memory of the last.
pub(super) struct BrotliEncoder {
    quality: u8,
    window_bits: u8,
    memory: Arena,
    state: BrotliEncoderStateStruct<Arena>,
}

impl BrotliEncoder {
    /// See [`Spec::Brotli`](super::Spec::Brotli).
    pub(super) fn new(quality: u8, window_bits: u8, length: Option<u64>) -> Self {
        let memory = Arena::default();
        let state = begin(quality, window_bits, length, &memory);
        Self { quality, window_bits, memory, state }
    }

    fn run(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        operation: BrotliEncoderOperation,
    ) -> Result<(), CodecError> {
        let mut remaining = input.len();
        let mut taken = 0;
        loop {
            let start = out.len();
            out.resize(start + ROOM, 0);
            let mut room = ROOM;
            let mut made = 0;
            let went_well = self.state.compress_stream(
                operation,
                &mut remaining,
                input,
                &mut taken,
                &mut room,
                out.get_mut(start..).unwrap_or_default(),
                &mut made,
                &mut None,
                &mut |_, _, _, _| (),
            );
            out.truncate(start + made);
            if !went_well {
                return Err(CodecError("brotli: the encoder gave up".into()));
            }
            if remaining == 0 && !self.state.has_more_output() {
                return Ok(());
            }
        }
    }

    /// Takes the memory of the encoder back.
    fn take_back(&mut self) {
        BrotliEncoderDestroyInstance(&mut self.state);
    }
}

/// The window that is used, base-2 logarithm. One larger than the body is memory for nothing.
fn window(quality: u8, window_bits: u8, length: Option<u64>) -> u8 {
    let least = if (5..=9).contains(&quality) { WINDOW_BITS_MIN_HASHED } else { WINDOW_BITS_MIN };
    let length = length.unwrap_or(UNKNOWN_LENGTH_MAX);
    let fits = |bits: &u8| length <= 1 << bits;
    (least..window_bits).find(fits).unwrap_or(window_bits.max(least))
}

/// See [`Spec::memory`](super::Spec::memory). As the crate allocates: the last bytes of the body, tables to search
/// them, and matches not yet written; while it writes a block, statistics and trees of codes as well.
pub(super) fn memory(quality: u8, window_bits: u8, length: Option<u64>) -> Memory {
    let length = length.unwrap_or(UNKNOWN_LENGTH_MAX);
    let bits = window(quality, window_bits, Some(length));
    let block_bits: u8 = match quality {
        0 | 1 => return Memory { kept: 2 << 20, peak: 2 << 20 },
        2 | 3 => 14,
        4..=8 => 16,
        _ if bits > 16 => bits.min(18),
        _ => 16,
    };
    let ring_bits = 1 + bits.max(block_bits);
    let ring = (1 << ring_bits) + (1 << block_bits);
    let tables: u64 = match quality {
        2 | 3 => 300 << 10,
        4 => 512 << 10,
        5 | 6 => (1 << (quality + 15)) + (64 << 10),
        7..=9 => (1 << (quality + 16)) + (64 << 10),
        _ => (1 << (bits + 3)) + (512 << 10),
    };
    // Bytes whose commands are written at a time: as much as the ring holds. A body whose length was not known may be longer.
    let held_len =
        if length == UNKNOWN_LENGTH_MAX { 1 << ring_bits } else { length.min(1 << ring_bits.min(24)) };
    // A command of 16 bytes for every eighth byte, in a list that doubles, and the output.
    let found_value = held_len * 9 / 2 + (12 << block_bits);
    // As a counting allocator saw it, rounded up: for each byte of a block a node of the path and, at the highest quality, matches.
    let block = length.min(1 << 18);
    let work = match quality {
        10 => 28 * block + 4 * held_len,
        11 => 64 * block + 4 * held_len,
        _ => (16 * held_len).min(10 << 20) + held_len,
    };
    let kept = ring + tables + found_value;
    Memory { kept, peak: kept + work + (64 << 10) }
}

fn begin(
    quality: u8,
    window_bits: u8,
    length: Option<u64>,
    memory: &Arena,
) -> BrotliEncoderStateStruct<Arena> {
    let bits = window(quality, window_bits, length);
    let mut state = BrotliEncoderStateStruct::new(memory.clone());
    state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, u32::from(quality));
    state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, u32::from(bits));
    state
}

impl Encoder for BrotliEncoder {
    fn reset(&mut self, length: Option<u64>) -> Result<(), CodecError> {
        self.take_back();
        self.state = begin(self.quality, self.window_bits, length, &self.memory);
        Ok(())
    }

    fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.run(input, out, BrotliEncoderOperation::BROTLI_OPERATION_PROCESS)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.run(&[], out, BrotliEncoderOperation::BROTLI_OPERATION_FLUSH)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.run(&[], out, BrotliEncoderOperation::BROTLI_OPERATION_FINISH)?;
        if self.state.is_finished() {
            self.take_back();
            Ok(())
        } else {
            Err(CodecError("brotli: the end was not written".into()))
        }
    }

    fn rest(&mut self) {
        let pieces = std::mem::take(&mut self.memory.kept().pieces);
        self.memory.kept().size = 0;
        drop(pieces);
    }

    fn end(&mut self) {
        self.take_back();
    }

    fn size(&self) -> usize {
        let kept = self.memory.kept();
        kept.in_use + kept.size
    }
}

/// Memory that is used by one encoder after the other: some megabytes, which would otherwise be taken from the system
/// and returned for every body.
#[derive(Clone, Default)]
struct Arena(Arc<Mutex<FreeMemory>>);

/// Pieces of memory that are not in use.
#[derive(Default)]
struct FreeMemory {
    pieces: Vec<Box<dyn Any + Send>>,
    /// Bytes of all of them.
    size: usize,
    /// Bytes that are in use, in pieces of any size.
    in_use: usize,
}

impl Arena {
    /// Never contended: an encoder is used by one thread at a time.
    fn kept(&self) -> MutexGuard<'_, FreeMemory> {
        // A poisoned lock is harmless: the arena belongs to one encoder, which ends with the body in which it panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone + Default + Send + 'static> Allocator<T> for Arena {
    type AllocatedMemory = WrapBox<T>;

    fn alloc_cell(&mut self, len: usize) -> WrapBox<T> {
        let mut kept = self.kept();
        kept.in_use += len.saturating_mul(size_of::<T>());
        if len.saturating_mul(size_of::<T>()) >= KEPT_MIN {
            let fits = |piece: &Box<dyn Any + Send>| {
                piece.downcast_ref::<WrapBox<T>>().is_some_and(|piece| piece.slice().len() == len)
            };
            if let Some(at) = kept.pieces.iter().position(fits)
                && let Ok(mut piece) = kept.pieces.swap_remove(at).downcast::<WrapBox<T>>()
            {
                kept.size -= len * size_of::<T>();
                piece.slice_mut().fill(T::default());
                return *piece;
            }
        }
        vec![T::default(); len].into()
    }

    fn free_cell(&mut self, data: WrapBox<T>) {
        let size = data.slice().len().saturating_mul(size_of::<T>());
        let mut kept = self.kept();
        kept.in_use -= size;
        if size >= KEPT_MIN && kept.size + size <= KEPT_MAX {
            kept.size += size;
            kept.pieces.push(Box::new(data));
        }
    }
}

impl BrotliAlloc for Arena {}
