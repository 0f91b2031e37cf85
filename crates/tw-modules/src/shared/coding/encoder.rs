//! Interface of encoders: bytes in, bytes out, without waiting.

use std::fmt;

/// Why an encoder gave up. It cannot be used again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CodecError(pub(crate) String);

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CodecError {}

/// A streaming encoder.
///
/// What one call appends is bounded: the input of the call and what earlier calls left inside, which is at most one block
/// (256 KiB).
pub(crate) trait Encoder: Send {
    /// Resets to the beginning of a body of this length, if that is known. Keeps the memory.
    fn reset(&mut self, length: Option<u64>) -> Result<(), CodecError>;
    /// Takes all of `input` and appends the output that is ready.
    fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError>;
    /// Appends everything that can be decoded from the input so far.
    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError>;
    /// Appends the end.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodecError>;
    /// Frees memory that it needs only while it works: the next piece may come late.
    fn rest(&mut self) {}
    /// Ends the body, if that was not done; the memory that remains is for another one.
    fn end(&mut self) {}
    /// Bytes it has, roughly.
    fn size(&self) -> usize;
}
