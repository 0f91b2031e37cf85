//! Integers with a prefix (RFC 7541 section 5.1, RFC 9204 section 4.1.1).
//!
//! A small one lives in the low bits of an octet whose high bits say what it is for. A larger one fills these bits with
//! ones; the rest follows in groups of seven bits, the lowest first.

use crate::CodingError;

/// Reads the integer that begins in the low `prefix` bits (1 to 8) of `first` and goes on in `rest`, which is moved behind it.
/// `BITS` is the size of the largest integer that is taken, which also limits the octets behind the prefix: more could only
/// be zeros.
///
/// # Errors
/// The integer is too large, too long, or cut.
#[inline]
pub fn decode<const BITS: u32>(first: u8, prefix: u32, rest: &mut &[u8]) -> Result<u64, CodingError> {
    const { assert!(BITS > 7 && BITS < 63, "a group more fits into 64 bits") }
    let full = mask(prefix);
    let low = first & full;
    if low < full {
        return Ok(u64::from(low));
    }

    let mut value = u64::from(full);
    for group in 0..BITS.div_ceil(7) {
        let (octet, after) = rest.split_first().ok_or(CodingError::Short)?;
        *rest = after;
        value += u64::from(octet & 0x7f) << (7 * group);

        if octet & 0x80 == 0 {
            return if value < 1 << BITS { Ok(value) } else { Err(CodingError::Integer) };
        }
    }
    Err(CodingError::Integer)
}

/// Writes `value` with a prefix of `prefix` bits (1 to 8); `kind` has the bits above the prefix.
#[inline]
pub fn encode(out: &mut Vec<u8>, kind: u8, prefix: u32, value: usize) {
    let full = mask(prefix);
    let Some(mut above) = value.checked_sub(usize::from(full)) else {
        return out.push(kind | low_octet(value));
    };

    // Two octets at once are enough for all indices of the static table and for most lengths.
    let mut octets = [kind | full, low_octet(above)];
    while above >= 0x80 {
        let [first, group] = octets;
        out.push(first);
        above >>= 7;
        octets = [group | 0x80, low_octet(above)];
    }
    out.extend_from_slice(&octets);
}

/// The low eight bits.
const fn low_octet(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

/// `prefix` ones.
const fn mask(prefix: u32) -> u8 {
    u8::MAX >> (8 - prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::hex;

    #[test]
    fn integers_of_rfc7541_appendix_c1() {
        for (prefix, value, octets) in [(5, 10, "0a"), (5, 1337, "1f9a0a"), (8, 42, "2a")] {
            let mut out = Vec::new();
            encode(&mut out, 0, prefix, value);
            assert_eq!(out, hex(octets), "{value}");
        }
    }

    #[test]
    fn integers_round_trip() {
        let around = (0..62).flat_map(|bit| [(1usize << bit) - 1, 1 << bit, (1 << bit) + 1]);
        let values: Vec<usize> = around.chain([127, 128, 254, 255, 256, (1 << 62) - 1]).collect();
        for prefix in 1..=8 {
            for &value in &values {
                let mut out = Vec::new();
                encode(&mut out, 0, prefix, value);
                let (&first, mut rest) = out.split_first().unwrap();
                assert_eq!(decode::<62>(first, prefix, &mut rest), Ok(value as u64), "{prefix} bits");
                assert!(rest.is_empty());
            }
        }
    }

    #[test]
    fn integers_have_a_limit() {
        let cases: [(&str, Result<u64, CodingError>); 9] = [
            ("ff80ffffff07", Ok((1 << 31) - 1)),
            ("ff81ffffff07", Err(CodingError::Integer)),
            ("ffffffffff0f", Err(CodingError::Integer)),
            ("ffffffffff7f", Err(CodingError::Integer)),
            ("ff8080808000", Ok(127)),
            ("ff808080808000", Err(CodingError::Integer)),
            ("ffffffffffffffffffffff", Err(CodingError::Integer)),
            ("ff", Err(CodingError::Short)),
            ("ff8080", Err(CodingError::Short)),
        ];
        for (octets, expected) in cases {
            let octets = hex(octets);
            let (&first, mut rest) = octets.split_first().unwrap();
            assert_eq!(decode::<31>(first, 7, &mut rest), expected, "{octets:x?}");
        }
        for (octets, expected) in [
            ("ff80ffffffffffffff3f", Ok((1 << 62) - 1)),
            ("ff81ffffffffffffff3f", Err(CodingError::Integer)),
            ("ffffffffffffffffff7f", Err(CodingError::Integer)),
            ("ff8080808080808080808000", Err(CodingError::Integer)),
        ] {
            let octets = hex(octets);
            let (&first, mut rest) = octets.split_first().unwrap();
            assert_eq!(decode::<62>(first, 7, &mut rest), expected, "{octets:x?}");
        }
    }
}
