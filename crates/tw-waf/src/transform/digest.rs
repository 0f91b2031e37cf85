//! Hashes, length and parity.

use md5::{Digest, Md5};
use sha1::Sha1;

use super::transformed::{Transformed, compared};

/// `md5`
pub(super) fn md5(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    out.extend_from_slice(&Md5::digest(value));
    Transformed::Changed
}

/// `sha1`
pub(super) fn sha1(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    out.extend_from_slice(&Sha1::digest(value));
    Transformed::Changed
}

/// `length`
pub(super) fn length(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    out.extend_from_slice(value.len().to_string().as_bytes());
    Transformed::Changed
}

/// `parityEven7bit`
pub(super) fn parity_even(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    out.extend(value.iter().map(|byte| with_parity(*byte, 0)));
    compared(value, out)
}

/// `parityOdd7bit`
pub(super) fn parity_odd(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    out.extend(value.iter().map(|byte| with_parity(*byte, 1)));
    compared(value, out)
}

/// `parityZero7bit`
pub(super) fn parity_zero(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    out.extend(value.iter().map(|byte| byte & 0x7f));
    compared(value, out)
}

fn with_parity(byte: u8, odd: u32) -> u8 {
    let low = byte & 0x7f;
    if low.count_ones() % 2 == odd { low } else { low | 0x80 }
}
