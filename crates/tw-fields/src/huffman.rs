//! The Huffman code for texts (RFC 7541 section 5.2 and appendix B, RFC 9204 section 4.1.2).
//!
//! The code is canonical: codes of one length are consecutive numbers in the order of their bytes, and longer codes
//! follow shorter ones. So the lengths are the whole of appendix B; every table here is computed from them at compile time.

use crate::CodingError;

/// Bits of the code of each byte.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, // 0x00
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, // 0x10
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, // 0x20: space ! " # $ % & ' ( ) * + , - . /
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, // 0x30: 0 to 9 : ; < = > ?
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, // 0x40: @ A to O
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, // 0x50: P to Z [ \ ] ^ _
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, // 0x60: ` a to o
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, // 0x70: p to z { | } ~
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, // 0x80
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, // 0x90
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, // 0xa0
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, // 0xb0
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, // 0xc0
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, // 0xd0
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, // 0xe0
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, // 0xf0
];

/// Bits of the longest codes: three bytes have them, and EOS, which is all ones.
const LENGTH_MAX: usize = 30;

/// Bits of the shortest codes.
const LENGTH_MIN: usize = 5;

/// Ones behind the last code of a text.
// DIFF(nginx): it takes as many as are not EOS.
const PADDING_MAX: u32 = 8;

/// Codes up to this length are decoded with one look: all of the bytes that are usual in fields. Makes a table of 2 KiB.
const SHORT: usize = 10;

/// The code of each byte, in the low bits.
const CODES: [u32; 256] = codes();

/// The bytes in the order of their codes.
const ORDER: [u8; 256] = order();

/// The codes of one length.
#[derive(Clone, Copy)]
struct Row {
    /// The first code, followed by zeros up to 32 bits.
    first: u32,
    /// The end of the last code likewise: the codes before are smaller.
    end: u64,
    /// Index in `ORDER` of the byte that has the first code.
    place: usize,
}

/// The codes of each length.
const ROWS: [Row; LENGTH_MAX + 1] = rows();

/// Byte and length of a code.
#[derive(Clone, Copy)]
struct Symbol {
    byte: u8,
    /// Bits of the code; 0 stands for "longer than `SHORT`".
    length: u8,
}

/// The code that begins these `SHORT` bits.
static SHORT_CODES: [Symbol; 1 << SHORT] = short_codes();

/// Octets of these bytes in the code, padding included.
pub fn len(bytes: impl Iterator<Item = u8>) -> usize {
    let bits: usize = bytes.map(|byte| usize::from(length(byte))).sum();
    bits.div_ceil(8)
}

/// Writes these bytes in the code.
pub fn encode(out: &mut Vec<u8>, bytes: impl Iterator<Item = u8>) {
    // Fewer than 32 bits wait in the low end, so that the longest code fits.
    let mut waiting = 0u64;
    let mut count = 0;
    for byte in bytes {
        let bits = u32::from(length(byte));
        waiting = waiting << bits | u64::from(code(byte));
        count += bits;
        if count >= 32 {
            count -= 32;
            let [_, _, _, _, octets @ ..] = (waiting >> count).to_be_bytes();
            out.extend_from_slice(&octets);
        }
    }

    // The rest and a padding of ones, at the high end of 32 bits.
    let last = (waiting << (32 - count)) as u32 | u32::MAX >> count;
    out.extend_from_slice(last.to_be_bytes().get(..count.div_ceil(8) as usize).unwrap_or_default());
}

/// Appends the bytes that `text` stands for.
///
/// The text may end with ones that are not EOS. Section 5.2 takes at most seven; a padding of a whole octet is met in the wild.
///
/// # Errors
/// The text holds EOS or ends within a code.
pub fn decode(text: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
    out.reserve(text.len() * 8 / LENGTH_MIN);

    // `count` bits wait at the high end; zeros follow.
    let mut waiting = 0u64;
    let mut count = 0;
    let mut rest = text;
    while let Some((four, after)) = rest.split_first_chunk() {
        rest = after;
        waiting |= u64::from(u32::from_be_bytes(*four)) << (32 - count);
        count += 32;
        while count >= 32 {
            let symbol = symbol(waiting)?;
            out.push(symbol.byte);
            waiting <<= symbol.length;
            count -= u32::from(symbol.length);
        }
    }

    // At most 31 + 24 bits remain; ones follow from here on.
    for octet in rest {
        waiting |= u64::from(*octet) << (56 - count);
        count += 8;
    }
    waiting |= u64::MAX >> count;
    while waiting != u64::MAX {
        let symbol = symbol(waiting)?;
        count = count.checked_sub(u32::from(symbol.length)).ok_or(CodingError::Huffman)?;
        out.push(symbol.byte);
        waiting = !(!waiting << symbol.length);
    }
    if count <= PADDING_MAX { Ok(()) } else { Err(CodingError::Huffman) }
}

/// Returns the symbol of the code at the high end; EOS is an error.
#[inline]
fn symbol(waiting: u64) -> Result<Symbol, CodingError> {
    match SHORT_CODES.get((waiting >> (64 - SHORT)) as usize) {
        Some(symbol) if symbol.length > 0 => Ok(*symbol),
        _ => long_symbol(waiting),
    }
}

/// Decodes a code longer than `SHORT`: the bytes that are rare in fields.
#[cold]
fn long_symbol(waiting: u64) -> Result<Symbol, CodingError> {
    let window = (waiting >> 32) as u32;
    let rows = ROWS.iter().zip(0u8..).skip(SHORT + 1);
    for (row, length) in rows {
        if u64::from(window) < row.end {
            let place = row.place + ((window - row.first) >> (32 - length)) as usize;
            return ORDER.get(place).map(|byte| Symbol { byte: *byte, length }).ok_or(CodingError::Huffman);
        }
    }
    // EOS is the only code behind those of all bytes.
    Err(CodingError::Huffman)
}

/// Bits of the code of a byte.
#[inline]
fn length(byte: u8) -> u8 {
    LENGTHS.get(usize::from(byte)).copied().unwrap_or_default()
}

/// The code of a byte, in the low bits.
#[inline]
fn code(byte: u8) -> u32 {
    CODES.get(usize::from(byte)).copied().unwrap_or_default()
}

#[allow(clippy::indexing_slicing)] // evaluated at compile time: an index out of range is a compile error
const fn order() -> [u8; 256] {
    let mut order = [0; 256];
    let mut place = 0;
    let mut length = 1;
    while length <= LENGTH_MAX {
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == length {
                order[place] = byte as u8;
                place += 1;
            }
            byte += 1;
        }
        length += 1;
    }
    order
}

#[allow(clippy::indexing_slicing)] // evaluated at compile time: an index out of range is a compile error
const fn rows() -> [Row; LENGTH_MAX + 1] {
    let mut rows = [Row { first: 0, end: 0, place: 0 }; LENGTH_MAX + 1];
    let mut end = 0u64;
    let mut place = 0;
    let mut length = 1;
    while length <= LENGTH_MAX {
        let first = end as u32;
        let begin = place;
        while place < 256 && LENGTHS[ORDER[place] as usize] as usize == length {
            end += 1 << (32 - length);
            place += 1;
        }
        rows[length] = Row { first, end, place: begin };
        length += 1;
    }
    // The one code that remains has the greatest length and is all ones: EOS.
    assert!(end == (1 << 32) - (1 << (32 - LENGTH_MAX)));
    rows
}

#[allow(clippy::indexing_slicing)] // evaluated at compile time: an index out of range is a compile error
const fn codes() -> [u32; 256] {
    let mut codes = [0; 256];
    let mut place = 0;
    while place < 256 {
        let byte = ORDER[place] as usize;
        let row = ROWS[LENGTHS[byte] as usize];
        codes[byte] = (row.first >> (32 - LENGTHS[byte])) + (place - row.place) as u32;
        place += 1;
    }
    codes
}

#[allow(clippy::indexing_slicing)] // evaluated at compile time: an index out of range is a compile error
const fn short_codes() -> [Symbol; 1 << SHORT] {
    let mut table = [Symbol { byte: 0, length: 0 }; 1 << SHORT];
    let mut byte = 0;
    while byte < 256 {
        let length = LENGTHS[byte] as usize;
        if length <= SHORT {
            let first = (CODES[byte] as usize) << (SHORT - length);
            let mut bits = first;
            while bits < first + (1 << (SHORT - length)) {
                table[bits] = Symbol { byte: byte as u8, length: length as u8 };
                bits += 1;
            }
        }
        byte += 1;
    }
    table
}
