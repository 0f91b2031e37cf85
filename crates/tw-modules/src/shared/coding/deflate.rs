//! gzip (RFC 1952) by zlib-rs.

use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Status};

use super::encoder::{CodecError, Encoder};
use super::encoder_memory::Memory;

/// Bytes of room for output that an encoder is given at a time.
const ROOM: usize = 16 << 10;
/// Size of a state besides what depends on its settings: zlib-rs has a hash table of 128 KiB whatever the level.
const STATE_SIZE: usize = 144 << 10;

/// See [`Spec::memory`](super::Spec::memory).
pub(super) fn memory(window_bits: u8, mem_level: u8) -> Memory {
    let size = size(window_bits, mem_level) as u64;
    Memory { kept: size, peak: size }
}

fn size(window_bits: u8, mem_level: u8) -> usize {
    STATE_SIZE + (1 << (window_bits + 2)) + (1 << (mem_level + 9))
}

/// An encoder of zlib-rs.
pub(super) struct GzipEncoder {
    state: Deflate,
    window_bits: u8,
    mem_level: u8,
}

impl GzipEncoder {
    /// See [`Spec::Gzip`](super::Spec::Gzip).
    pub(super) fn new(level: u8, window_bits: u8, mem_level: u8) -> Self {
        // Level 1 of zlib-rs is faster than that of zlib and makes a fifth more output; its level 2 is smaller and still
        // faster than level 1 of zlib (4.2 and 5.0 ns a byte, to 21 and 22 % of a source text).
        let mut config = DeflateConfig::new(i32::from(level.max(2)));
        // RFC 1952 instead of RFC 1950.
        config.window_bits = i32::from(window_bits) + 16;
        config.mem_level = i32::from(mem_level);
        Self { state: Deflate::new_with_config(config), window_bits, mem_level }
    }

    fn run(&mut self, mut input: &[u8], out: &mut Vec<u8>, flush: DeflateFlush) -> Result<(), CodecError> {
        loop {
            let start = out.len();
            out.resize(start + ROOM, 0);
            let taken = self.state.total_in();
            let made = self.state.total_out();
            let room = out.get_mut(start..).unwrap_or_default();
            let status = self.state.compress(input, room, flush);
            let taken = self.state.total_in() - taken;
            let made = self.state.total_out() - made;
            out.truncate(start + made as usize);
            input = input.get(taken as usize..).unwrap_or_default();
            match status {
                Ok(Status::StreamEnd) => return Ok(()),
                // A full room may not have been enough.
                Ok(Status::Ok | Status::BufError) if made as usize == ROOM => {}
                Ok(_) if input.is_empty() && flush != DeflateFlush::Finish => return Ok(()),
                Ok(status) if taken == 0 && made == 0 => {
                    return Err(CodecError(format!("deflate() makes no progress: {status:?}")));
                }
                Ok(_) => {}
                Err(error) => {
                    let flush = flush as i32;
                    let code = error as i32;
                    return Err(CodecError(format!("deflate() failed: {flush}, {code}")));
                }
            }
        }
    }
}

impl Encoder for GzipEncoder {
    fn reset(&mut self, _: Option<u64>) -> Result<(), CodecError> {
        self.state.reset();
        Ok(())
    }

    fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        if input.is_empty() {
            return Ok(());
        }
        self.run(input, out, DeflateFlush::NoFlush)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.run(&[], out, DeflateFlush::SyncFlush)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.run(&[], out, DeflateFlush::Finish)
    }

    fn size(&self) -> usize {
        size(self.window_bits, self.mem_level)
    }
}
