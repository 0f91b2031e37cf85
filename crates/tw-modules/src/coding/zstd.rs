//! Zstandard (RFC 8878) by libzstd.

use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, SafeResult, get_error_name};

use super::codec::{CodecError, Encoder};

/// Bytes of room for output that the encoder is given at a time.
const ROOM: usize = 16 << 10;
/// Largest window, base-2 logarithm: RFC 9659 allows 8 MiB in a content coding.
const WINDOW_BITS_MAX: u32 = 23;
/// First level whose own window may be larger.
const LARGE_WINDOWS: i32 = 20;

/// An encoder of libzstd, whose memory comes from the allocator of the program.
pub(super) struct Zstd(CCtx<'static>);

impl Zstd {
    /// See [`Spec::Zstd`](super::Spec::Zstd).
    pub(super) fn new(level: i32, length: Option<u64>) -> Result<Self, CodecError> {
        let Some(mut state) = CCtx::try_create() else { return Err(CodecError("zstd: no memory".into())) };
        check(state.set_parameter(CParameter::CompressionLevel(level)))?;
        if level >= LARGE_WINDOWS {
            check(state.set_parameter(CParameter::WindowLog(WINDOW_BITS_MAX)))?;
        }
        let mut new = Self(state);
        new.reset(length)?;
        Ok(new)
    }

    fn run(&mut self, input: &[u8], out: &mut Vec<u8>, end: ZSTD_EndDirective) -> Result<(), CodecError> {
        let mut input_buf = InBuffer::around(input);
        loop {
            let start = out.len();
            out.resize(start + ROOM, 0);
            let mut room = OutBuffer::around(out.get_mut(start..).unwrap_or_default());
            let left = self.0.compress_stream2(&mut room, &mut input_buf, end);
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
        check(self.0.reset(ResetDirective::SessionOnly))?;
        check(self.0.set_pledged_src_size(length)).map(drop)
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

    fn memory(&self) -> Option<usize> {
        Some(self.0.sizeof())
    }
}
