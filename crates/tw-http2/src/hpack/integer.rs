//! Integers with a prefix (RFC 7541, section 5.1).
//!
//! A small one lives in the low bits of an octet whose high bits say what it is for. A larger one fills these bits with
//! ones; the rest follows in groups of seven bits, the lowest first.

use super::Error;

/// The largest integer that is taken: 2^31 - 1, above every window and table of HTTP/2.
pub(super) const INTEGER_MAX: u64 = (1 << 31) - 1;

/// Octets that may follow the prefix: as many as `INTEGER_MAX` needs; more could only be zeros.
pub(super) const INTEGER_OCTETS_MAX: usize = 5;

/// Reads the integer that begins in the low `prefix` bits (1 to 8) of `first` and goes on in `rest`, which is moved behind it.
pub(super) fn decode(first: u8, prefix: u32, rest: &mut &[u8]) -> Result<usize, Error> {
    let full = mask(prefix);
    let low = first & full;
    if low < full {
        return Ok(usize::from(low));
    }

    let mut value = u64::from(full);
    for group in 0..INTEGER_OCTETS_MAX {
        let (octet, after) = rest.split_first().ok_or(Error::Short)?;
        *rest = after;
        value += u64::from(octet & 0x7f) << (7 * group);

        if octet & 0x80 == 0 {
            return match usize::try_from(value) {
                Ok(integer) if value <= INTEGER_MAX => Ok(integer),
                _ => Err(Error::Integer),
            };
        }
    }
    Err(Error::Integer)
}

/// Writes `value` with a prefix of `prefix` bits (1 to 8); `kind` has the bits above the prefix.
#[inline]
pub(super) fn encode(out: &mut Vec<u8>, kind: u8, prefix: u32, value: usize) {
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
