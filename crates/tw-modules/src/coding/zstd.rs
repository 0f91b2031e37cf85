//! Zstandard (RFC 8878) by libzstd.

use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, SafeResult, get_error_name};

use super::codec::{CodecError, Encoder};

/// Bytes of room for output that the encoder is given at a time.
const ROOM: usize = 16 << 10;
/// First level that takes as much memory as the body is long: up to 650 MiB. Levels below take 5 MiB at most.
const LARGE_LEVEL: i32 = 9;
/// Longest body, bytes, for which such a level is tuned; a longer one is compressed as if it were this long. So an encoder
/// takes 19 MiB at most, and its window stays far below the 8 MiB that RFC 9659 allows.
const TUNED_MAX: u32 = 1 << 20;

/// An encoder of libzstd, whose memory comes from the allocator of the program.
pub(super) struct Zstd {
    level: i32,
    state: CCtx<'static>,
}

impl Zstd {
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
            let left = self.state.compress_stream2(&mut room, &mut input_buf, end);
            let made = room.pos();
            out.truncate(start + made);
            let left = check(left)?;
            let is_done = match end {
                ZSTD_EndDirective::ZSTD_e_continue => input_buf.pos() == input.len() && made < ROOM,
                ZSTD_EndDirective::ZSTD_e_flush | ZSTD_EndDirective::ZSTD_e_end => left == 0,
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

impl Encoder for Zstd {
    fn reset(&mut self, length: Option<u64>) -> Result<(), CodecError> {
        let is_long = length.is_none_or(|length| length > u64::from(TUNED_MAX));
        let hint = if self.level >= LARGE_LEVEL && is_long { TUNED_MAX } else { 0 };
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

    fn memory(&mut self) -> usize {
        self.state.sizeof()
    }
}
