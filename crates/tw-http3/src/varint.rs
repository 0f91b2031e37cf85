//! Variable-length integers (RFC 9000 section 16).

/// Largest value.
pub(crate) const MAX: u64 = (1 << 62) - 1;
/// Bytes of the longest encoding.
pub(crate) const SIZE_MAX: usize = 8;

/// Takes an integer from the front of `bytes`; `None` if it is cut.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (first, _) = bytes.split_first()?;
    let len = 1_usize << (first >> 6);
    let (octets, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let value = octets.iter().fold(0_u64, |value, octet| value << 8 | u64::from(*octet));
    // The two bits of the length are removed.
    Some(value & (u64::MAX >> (64 - 8 * len + 2)))
}

/// Appends an integer in its shortest encoding.
pub(crate) fn put(out: &mut Vec<u8>, value: u64) {
    let value = value.min(MAX);
    let octets = value.to_be_bytes();
    let (len, mark) = match value {
        0..0x40 => (1, 0),
        0x40..0x4000 => (2, 0x40),
        0x4000..0x4000_0000 => (4, 0x80),
        _ => (8, 0xc0),
    };
    let (_, octets) = octets.split_at(SIZE_MAX - len);
    let start = out.len();
    out.extend_from_slice(octets);
    if let Some(first) = out.get_mut(start) {
        *first |= mark;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_rfc9000_appendix_a1() {
        for (octets, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(out, octets);
            let mut rest = octets;
            assert_eq!((take(&mut rest), rest.len()), (Some(value), 0));
            for cut in 0..octets.len() {
                assert_eq!(take(&mut &octets[..cut]), None);
            }
        }
        assert_eq!(take(&mut &[0x40, 0x25][..]), Some(37), "the encoding need not be the shortest");
    }

    #[test]
    fn integers_round_trip() {
        for bit in 0..62 {
            for value in [(1 << bit) - 1, 1 << bit, (1_u64 << bit) + 1, MAX] {
                let mut out = Vec::new();
                put(&mut out, value);
                assert_eq!(take(&mut &out[..]), Some(value));
            }
        }
    }
}
