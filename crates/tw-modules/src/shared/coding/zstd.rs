//! Zstandard (RFC 8878) by libzstd.

use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, SafeResult, get_error_name};

use super::encoder::{CodecError, Encoder};
use super::encoder_memory::{Memory, UNKNOWN_LENGTH_MAX};

/// Bytes of room for output that the encoder is given at a time.
const ROOM: usize = 16 << 10;
/// First level that takes as much memory as the body is long: up to 650 MiB. Levels below take 5 MiB at most.
const LARGE_LEVEL: i32 = 9;
/// Longest body, bytes, for which such a level is tuned; a longer one is compressed as if it were this long. So an encoder
/// takes 19 MiB at most, and its window stays far below the 8 MiB that RFC 9659 allows.
const TUNED_MAX: u32 = 1 << 20;

/// Kilobytes that encoders take: up to this level, for bodies of up to 128 KiB, up to 512 KiB, and longer ones. As
/// [`Encoder::size`] tells for libzstd 1.5.7, rounded up.
const MEMORY_KB: [(i32, [u64; 3]); 8] = [
    (1, [900, 1_400, 1_400]),
    (2, [1_000, 1_600, 2_100]),
    (3, [1_300, 2_200, 3_600]),
    (4, [2_000, 3_700, 4_900]),
    (6, [1_600, 4_200, 5_400]),
    (8, [1_600, 6_800, 8_000]),
    (12, [2_700, 6_800, 12_100]),
    (22, [3_500, 10_900, 19_000]),
];

/// See [`Spec::memory`](super::Spec::memory).
pub(super) fn memory(level: i32, length: Option<u64>) -> Memory {
    let [short, middle, long] =
        MEMORY_KB.iter().find(|(up_to, _)| level <= *up_to).map_or([19_000; 3], |(_, sizes)| *sizes);
    let kb = match length.unwrap_or(UNKNOWN_LENGTH_MAX) {
        length if length <= 128 << 10 => short,
        length if length <= 512 << 10 => middle,
        _ => long,
    };
    Memory { kept: kb << 10, peak: kb << 10 }
}

/// An encoder of libzstd, whose memory comes from the allocator of the program.
pub(super) struct ZstdEncoder {
    level: i32,
    state: CCtx<'static>,
}

impl ZstdEncoder {
    /// See [`Spec::Zstd`](super::Spec::Zstd).
    pub(super) fn new(level: i32, length: Option<u64>) -> Result<Self, CodecError> {
        let Some(mut state) = CCtx::try_create() else { return Err(CodecError("zstd: no memory".into())) };
        check(state.set_parameter(CParameter::CompressionLevel(level)))?;
        let mut new = Self { level, state };
        new.reset(length)?;
        Ok(new)
    }

    fn run(&mut self, input: &[u8], out: &mut Vec<u8>, end: ZSTD_EndDirective) -> Result<(), CodecError> {
        let mut input_buf = InBuffer::around(input);
        loop {
            let start = out.len();
            out.resize(start + ROOM, 0);
            let mut room = OutBuffer::around(out.get_mut(start..).unwrap_or_default());
            let result = self.state.compress_stream2(&mut room, &mut input_buf, end);
            let made = room.pos();
            out.truncate(start + made);
            let result = check(result)?;
            let is_done = match end {
                ZSTD_EndDirective::ZSTD_e_continue => input_buf.pos() == input.len() && made < ROOM,
                ZSTD_EndDirective::ZSTD_e_flush | ZSTD_EndDirective::ZSTD_e_end => result == 0,
            };
            if is_done {
                return Ok(());
            }
        }
    }
}

fn check(result: SafeResult) -> Result<usize, CodecError> {
    result.map_err(|code| CodecError(format!("zstd: {}", get_error_name(code))))
}

impl Encoder for ZstdEncoder {
    fn reset(&mut self, length: Option<u64>) -> Result<(), CodecError> {
        let hint = match length {
            None => UNKNOWN_LENGTH_MAX as u32,
            Some(length) if self.level >= LARGE_LEVEL && length > u64::from(TUNED_MAX) => TUNED_MAX,
            Some(_) => 0,
        };
        check(self.state.reset(ResetDirective::SessionOnly))?;
        check(self.state.set_parameter(CParameter::SrcSizeHint(hint)))?;
        // A promise would count for more than the hint.
        check(self.state.set_pledged_src_size(length.filter(|_| hint == 0))).map(drop)
    }

    fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.run(input, out, ZSTD_EndDirective::ZSTD_e_continue)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.run(&[], out, ZSTD_EndDirective::ZSTD_e_flush)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.run(&[], out, ZSTD_EndDirective::ZSTD_e_end)
    }

    fn size(&self) -> usize {
        self.state.sizeof()
    }
}
