//! Variable-length integers (RFC 9000, section 16).

use bytes::{Buf, BufMut};

/// Reads an integer of variable length (RFC 9000, section 16).
pub(crate) fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let first = *bytes.first()?;
    let len = 1usize << (first >> 6);
    if bytes.len() < len {
        return None;
    }
    let mut value = u64::from(first & 0x3f);
    bytes.advance(1);
    for _ in 1..len {
        value = value << 8 | u64::from(bytes.get_u8());
    }
    Some(value)
}

pub(crate) fn write_varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x3f => out.put_u8(value as u8),
        0x40..=0x3fff => out.put_u16(0x4000 | value as u16),
        0x4000..=0x3fff_ffff => out.put_u32(0x8000_0000 | value as u32),
        _ => out.put_u64(0xc000_0000_0000_0000 | value),
    }
}
