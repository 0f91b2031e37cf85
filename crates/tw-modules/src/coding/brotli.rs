//! Brotli (RFC 7932) by the `brotli` crate.

use std::io::{self, Write};

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;

use super::codec::{CodecError, Encoder};

/// Least window, base-2 logarithm.
const WINDOW_BITS_MIN: u8 = 10;
/// Bytes of room for output that the encoder has at a time.
const ROOM: usize = 16 << 10;

/// An encoder. The crate's cannot be used twice: `reset` makes another one.
pub(super) struct Brotli {
    quality: u8,
    window_bits: u8,
    writer: Option<CompressorWriter<Vec<u8>>>,
}

impl Brotli {
    /// See [`Spec::Brotli`](super::Spec::Brotli).
    pub(super) fn new(quality: u8, window_bits: u8, length: Option<u64>) -> Self {
        let mut new = Self { quality, window_bits, writer: None };
        new.begin(length);
        new
    }

    fn begin(&mut self, length: Option<u64>) {
        let (quality, lgwin) = (i32::from(self.quality), i32::from(self.window_bits));
        let mut params = BrotliEncoderParams { quality, lgwin, ..BrotliEncoderParams::default() };
        if let Some(length) = length {
            // A window larger than the body is memory for nothing.
            let fits = |bits: &u8| length <= 1 << bits;
            let bits = (WINDOW_BITS_MIN..self.window_bits).find(fits).unwrap_or(self.window_bits);
            params.lgwin = i32::from(bits);
            params.size_hint = usize::try_from(length).unwrap_or(usize::MAX);
        }
        self.writer = Some(CompressorWriter::with_params(Vec::new(), ROOM, &params));
    }

    fn with(
        &mut self,
        out: &mut Vec<u8>,
        what: impl FnOnce(&mut CompressorWriter<Vec<u8>>) -> io::Result<()>,
    ) -> Result<(), CodecError> {
        let Some(writer) = &mut self.writer else {
            return Err(CodecError("brotli: already finished".into()));
        };
        what(writer).map_err(|e| CodecError(format!("brotli: {e}")))?;
        out.append(writer.get_mut());
        Ok(())
    }
}

impl Encoder for Brotli {
    fn reset(&mut self, length: Option<u64>) -> Result<(), CodecError> {
        self.begin(length);
        Ok(())
    }

    fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.with(out, |writer| writer.write_all(input))
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.with(out, Write::flush)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let Some(writer) = self.writer.take() else {
            return Err(CodecError("brotli: already finished".into()));
        };
        out.append(&mut writer.into_inner());
        Ok(())
    }

    fn memory(&self) -> Option<usize> {
        None
    }
}
