//! String literals: a length with a prefix, and octets that are in the Huffman code or not (RFC 7541 section 5.2, RFC 9204
//! section 4.1.2).

use crate::{CodingError, huffman, integer};

/// Bits of the largest length. No section is as long.
const LENGTH_BITS: u32 = 31;
/// Usual size of texts that have to be decoded, for allocation.
const SCRATCH_SIZE: usize = 512;

/// Name or value of a section that is being decoded.
#[derive(Debug, Clone, Copy)]
pub enum Text<'a> {
    /// As it is in the section or in a table.
    Whole(&'a [u8]),
    /// In the scratch buffer: start and length.
    Scratch(usize, usize),
}

impl<'a> Text<'a> {
    /// Bytes of the text.
    #[must_use]
    pub fn bytes(self, scratch: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Scratch(start, len) => scratch.get(start..start + len).unwrap_or_default(),
        }
    }
}

/// Takes a text whose length begins in the low `prefix` bits of `first` and goes on in `rest`; the bit above the prefix tells
/// the Huffman code. Appends the text to the scratch buffer if it has to be decoded. `longest` becomes the largest length.
///
/// # Errors
/// The text is cut, or its code is invalid.
#[inline]
pub fn decode<'a>(
    first: u8,
    prefix: u32,
    rest: &mut &'a [u8],
    scratch: &mut Vec<u8>,
    longest: &mut usize,
) -> Result<Text<'a>, CodingError> {
    let mut after = *rest;
    let len = integer::decode::<LENGTH_BITS>(first, prefix, &mut after)? as usize;
    let (text, after) = after.split_at_checked(len).ok_or(CodingError::Short)?;
    *rest = after;
    *longest = (*longest).max(len);

    if first & 1 << prefix == 0 {
        return Ok(Text::Whole(text));
    }
    if scratch.capacity() == 0 {
        scratch.reserve(SCRATCH_SIZE);
    }
    let start = scratch.len();
    huffman::decode(text, scratch)?;
    Ok(Text::Scratch(start, scratch.len() - start))
}

/// Writes a text, each byte as `each` makes it. `kind` has the bits above the one that tells the code.
#[inline]
pub fn encode(out: &mut Vec<u8>, kind: u8, prefix: u32, bytes: &[u8], each: impl Fn(u8) -> u8 + Copy) {
    let bytes = bytes.iter().map(|byte| each(*byte));
    let coded = huffman::len(bytes.clone());
    if coded < bytes.len() {
        integer::encode(out, kind | 1 << prefix, prefix, coded);
        out.reserve(coded);
        huffman::encode(out, bytes);
    } else {
        integer::encode(out, kind, prefix, bytes.len());
        out.extend(bytes);
    }
}
