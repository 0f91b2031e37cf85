//! From one charset to another: a byte to a byte, a byte to UTF-8, UTF-8 to a byte.

use std::collections::HashMap;
use std::io::Write as _;

/// Longest sequence of UTF-8.
const SEQUENCE_MAX: usize = 4;
/// Largest code point.
const CODE_POINT_MAX: u32 = 0x0010_ffff;

/// Conversion of one charset to another.
pub(super) enum RecodingTable {
    /// One byte for each byte.
    Bytes(Box<[u8; 256]>),
    /// A sequence for each byte.
    ToUtf8(Box<[Sequence; 256]>),
    /// A byte for each code point that has one. The others become `&#NUMBER;`.
    FromUtf8(HashMap<u32, u8>),
}

/// One to three bytes of UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sequence {
    bytes: [u8; 3],
    len: u8,
}

impl Sequence {
    /// `None` if there are more than three bytes, or they are not one code point below 0x10000.
    fn new(text: &[u8]) -> Option<(Self, u32)> {
        let mut bytes = [0; 3];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        let code = match text {
            [ascii @ 0..0x80] => u32::from(*ascii),
            _ => match decode(text) {
                Decoded::Code(code, _) if code <= 0xffff => code,
                _ => return None,
            },
        };
        Some((Self { bytes, len: text.len() as u8 }, code))
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// A `charset_map`: both directions. Characters that it does not name become `?`, ASCII stays.
pub(super) struct CharsetMap {
    pub(super) forth: RecodingTable,
    pub(super) back: RecodingTable,
}

impl CharsetMap {
    /// From a charset of bytes to another.
    pub(super) fn of_bytes() -> Self {
        let ascii = || Box::new(std::array::from_fn(|byte| if byte < 0x80 { byte as u8 } else { b'?' }));
        Self { forth: RecodingTable::Bytes(ascii()), back: RecodingTable::Bytes(ascii()) }
    }

    /// From a charset of bytes to UTF-8.
    pub(super) fn of_utf8() -> Self {
        let plain = |byte: usize| {
            let byte = if byte < 0x80 { byte as u8 } else { b'?' };
            Sequence { bytes: [byte, 0, 0], len: 1 }
        };
        Self {
            forth: RecodingTable::ToUtf8(Box::new(std::array::from_fn(plain))),
            back: RecodingTable::FromUtf8(HashMap::new()),
        }
    }

    /// Adds a line: `from` and `to` in hexadecimal digits. The error is the word that is none.
    pub(super) fn add<'a>(&mut self, from: &'a [u8], to: &'a [u8]) -> Result<(), &'a [u8]> {
        let from = hex_byte(from).ok_or(from)?;
        match (&mut self.forth, &mut self.back) {
            (RecodingTable::Bytes(forth), RecodingTable::Bytes(back)) => {
                let to = hex_byte(to).ok_or(to)?;
                forth[usize::from(from)] = to;
                back[usize::from(to)] = from;
            }
            (RecodingTable::ToUtf8(forth), RecodingTable::FromUtf8(back)) => {
                let bytes: Option<Vec<u8>> =
                    to.chunks(2).map(|pair| hex_byte(pair).filter(|_| pair.len() == 2)).collect();
                let (sequence, code) = bytes.and_then(|bytes| Sequence::new(&bytes)).ok_or(to)?;
                forth[usize::from(from)] = sequence;
                back.insert(code, from);
            }
            _ => {}
        }
        Ok(())
    }
}

/// A number up to 255 in hexadecimal digits.
fn hex_byte(text: &[u8]) -> Option<u8> {
    let text =
        std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u8::from_str_radix(text, 16).ok()
}

/// Recodes a text that comes in pieces: a sequence of UTF-8 may be split anywhere.
#[derive(Default)]
pub(super) struct Recoder {
    /// The beginning of a sequence.
    saved: Vec<u8>,
}

impl Recoder {
    /// Appends `text` in the other charset. A sequence that the end of the body cuts off is lost, as in nginx.
    pub(super) fn push(&mut self, table: &RecodingTable, text: &[u8], out: &mut Vec<u8>) {
        match table {
            RecodingTable::Bytes(table) => out.extend(text.iter().map(|byte| table[usize::from(*byte)])),
            RecodingTable::ToUtf8(table) => {
                text.iter().for_each(|byte| out.extend_from_slice(table[usize::from(*byte)].as_bytes()));
            }
            RecodingTable::FromUtf8(codes) => self.decoded(codes, text, out),
        }
    }

    fn decoded(&mut self, codes: &HashMap<u32, u8>, text: &[u8], out: &mut Vec<u8>) {
        let mut rest = text;
        while !self.saved.is_empty() {
            let Some((byte, tail)) = rest.split_first() else { return };
            rest = tail;
            self.saved.push(*byte);
            if let Some(used) = one(codes, &self.saved, out) {
                // A sequence that is broken may not use its last byte.
                let saved = std::mem::take(&mut self.saved);
                let unused = saved.get(used..).unwrap_or_default();
                self.decoded(codes, unused, out);
            }
        }
        while !rest.is_empty() {
            let plain = rest.iter().take_while(|byte| byte.is_ascii()).count();
            out.extend_from_slice(&rest[..plain]);
            rest = &rest[plain..];
            if rest.is_empty() {
                return;
            }
            match one(codes, rest, out) {
                Some(used) => rest = &rest[used..],
                None => {
                    self.saved.extend_from_slice(rest);
                    return;
                }
            }
        }
    }
}

/// Appends the character at the beginning of `text`, and returns its length in bytes; `None` if it is incomplete.
fn one(codes: &HashMap<u32, u8>, text: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    match decode(text) {
        Decoded::Code(code, len) => {
            match codes.get(&code) {
                // As in nginx, characters are never mapped to NUL.
                Some(byte) if *byte != 0 => out.push(*byte),
                _ => write!(out, "&#{code};").expect("writing to memory does not fail"),
            }
            Some(len)
        }
        Decoded::Broken(len) => {
            out.push(b'?');
            Some(len)
        }
        Decoded::Incomplete => None,
    }
}

/// First character of a text.
enum Decoded {
    /// A code point, and the bytes it takes.
    Code(u32, usize),
    /// No sequence of UTF-8: so many bytes of none.
    Broken(usize),
    /// More bytes are needed.
    Incomplete,
}

/// As nginx has it: a byte that cannot follow is taken along, overlong sequences are refused, surrogates are not.
fn decode(text: &[u8]) -> Decoded {
    let Some(&first) = text.first() else { return Decoded::Incomplete };
    let (mut code, smallest, more) = match first {
        0xf0..0xf8 => (u32::from(first & 0x07), 0x1_0000, 3),
        0xe0..0xf0 => (u32::from(first & 0x0f), 0x800, 2),
        0xc2..0xe0 => (u32::from(first & 0x1f), 0x80, 1),
        _ => return Decoded::Broken(1),
    };
    debug_assert!(more < SEQUENCE_MAX, "the length is that of a sequence");
    let Some(tail) = text.get(1..=more) else { return Decoded::Incomplete };
    for (at, byte) in tail.iter().enumerate() {
        if *byte < 0x80 {
            return Decoded::Broken(at + 2);
        }
        code = code << 6 | u32::from(byte & 0x3f);
    }
    if (smallest..=CODE_POINT_MAX).contains(&code) {
        Decoded::Code(code, 1 + more)
    } else {
        Decoded::Broken(1 + more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recoded(table: &RecodingTable, text: &[u8], size: usize) -> Vec<u8> {
        let mut recoder = Recoder::default();
        let mut out = Vec::new();
        text.chunks(size).for_each(|piece| recoder.push(table, piece, &mut out));
        out
    }

    #[test]
    fn texts_however_they_are_split() {
        let mut utf8 = CharsetMap::of_utf8();
        for (from, to) in [("C0", "D18E"), ("c1", "d0b0"), ("95", "E280A2"), ("24", "E282AC"), ("81", "61")] {
            assert_eq!(utf8.add(from.as_bytes(), to.as_bytes()), Ok(()), "{from} {to}");
        }
        let mut bytes = CharsetMap::of_bytes();
        assert_eq!(bytes.add(b"80", b"F0"), Ok(()));
        let table: &[(&RecodingTable, &[u8], &[u8])] = &[
            (&utf8.forth, b"a\xc0\xc1 \x95$\xff", "aюа •€?".as_bytes()),
            (&utf8.back, "aюа •€".as_bytes(), b"a\xc0\xc1 \x95$"),
            (&utf8.back, "ы ∞ 😀".as_bytes(), b"&#1099; &#8734; &#128512;"),
            (&utf8.back, b"\x80\xffx\xc0\xaf", b"??x??"),
            (&utf8.back, b"\xe0\x80\x80y\xed\xa0\x80", b"?y&#55296;"),
            (&utf8.back, b"\xd1z\xe2\x82z-\xf4\x90\x80\x80", b"??-?"),
            (&utf8.back, b"x\xe2\x82", b"x"),
            (&bytes.forth, b"a\x80\x81", b"a\xf0?"),
            (&bytes.back, b"a\xf0\x80", b"a\x80?"),
        ];
        for (table, text, expected) in table {
            for size in 1..=text.len() {
                let value = recoded(table, text, size);
                assert_eq!(value, *expected, "{text:x?} by {size}: {}", String::from_utf8_lossy(&value));
            }
        }
    }

    #[test]
    fn lines_that_are_refused() {
        let mut utf8 = CharsetMap::of_utf8();
        let mut bytes = CharsetMap::of_bytes();
        for (from, to, wrong) in [
            ("100", "D18E", "100"),
            ("xy", "D18E", "xy"),
            ("", "D18E", ""),
            ("+1", "D18E", "+1"),
            ("C0", "F09F9880", "F09F9880"),
            ("C0", "D1", "D1"),
            ("C0", "D18", "D18"),
            ("C0", "zz", "zz"),
            ("C0", "", ""),
        ] {
            assert_eq!(utf8.add(from.as_bytes(), to.as_bytes()), Err(wrong.as_bytes()), "{from} {to}");
        }
        assert_eq!(bytes.add(b"C0", b"1FF"), Err(&b"1FF"[..]));
    }
}
