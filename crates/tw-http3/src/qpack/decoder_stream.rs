//! The peer's decoder stream (RFC 9204 section 4.4): it acknowledges what this end has inserted into the dynamic table, which is
//! nothing.

use tw_fields::{CodingError, integer};

use super::{Error, INTEGER_BITS};

/// Largest size of an instruction, in bytes.
const SIZE_MAX: usize = 1 + INTEGER_BITS.div_ceil(7) as usize;

/// Reader of instructions, which may be split at any position.
#[derive(Debug, Default)]
pub(crate) struct DecoderStream {
    cut: Vec<u8>,
}

impl DecoderStream {
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for byte in bytes {
            self.cut.push(*byte);
            let Some((&first, mut rest)) = self.cut.split_first() else { continue };
            let prefix = if first & 0x80 != 0 { 7 } else { 6 };
            match integer::decode::<INTEGER_BITS>(first, prefix, &mut rest) {
                Err(CodingError::Short) if self.cut.len() <= SIZE_MAX => continue,
                Err(_) => {
                    return Err(Error::DecoderStream("sent too long instruction on qpack decoder stream"));
                }
                Ok(_) => self.cut.clear(),
            }
            match first >> 6 {
                // Stream cancellation: it may come for any stream.
                1 => {}
                0 => return Err(Error::DecoderStream("sent invalid insert count increment")),
                _ => return Err(Error::DecoderStream("acknowledged header block that refers to no table")),
            }
        }
        Ok(())
    }
}
