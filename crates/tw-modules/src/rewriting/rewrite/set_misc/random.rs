//! Random numbers and texts, and numbers that rotate.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::rand::{GetRandomFlags, getrandom};
use tw_request::random_id::random_id;

/// Longest random text.
pub(super) const SECURE_RANDOM_MAX: usize = 64;
/// No number yet, for [`rotate`].
pub(super) const NONE: u64 = u64::MAX;

pub(super) const ALPHANUMERIC: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
pub(super) const LOWER_CASE: &[u8] = b"abcdefghijklmnopqrstuvwxyz";

/// A number between two others, both included.
pub(super) fn number(one: u64, other: u64) -> u64 {
    let from = one.min(other);
    let to = one.max(other);
    let count = u128::from(to - from) + 1;
    // With 128 random bits, the remainder favours no number by more than one in 2^64.
    from + (u128::from_be_bytes(random_id()) % count) as u64
}

/// Appends `length` of these letters, chosen with random bytes of the kernel. Never waits: the error says that there are none.
pub(super) fn push_secure(length: usize, letters: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    // Bytes above this would favour some letters.
    let even = 256 / letters.len() * letters.len();
    let mut random = [0; 2 * SECURE_RANDOM_MAX];
    let end = out.len() + length;
    while out.len() < end {
        let count = getrandom(&mut random, GetRandomFlags::NONBLOCK)
            .map_err(|error| format!("no random bytes ({error})"))?;
        let bytes = random[..count].iter().map(|byte| usize::from(*byte)).filter(|byte| *byte < even);
        out.extend(bytes.map(|byte| letters[byte % letters.len()]).take(end - out.len()));
    }
    Ok(())
}

/// The number after `value` between two others, both included; after the `last` one if there is no value. Behind the greatest
/// comes the least.
pub(super) fn rotate(last: &AtomicU64, value: Option<u64>, one: u64, other: u64) -> u64 {
    let range = one.min(other)..=one.max(other);
    let after = |number: u64| {
        let next = number.wrapping_add(1);
        if range.contains(&next) { next } else { *range.start() }
    };
    match value {
        Some(value) => {
            let next = after(value);
            last.store(next, Relaxed);
            next
        }
        None => {
            let before = last.fetch_update(Relaxed, Relaxed, |last| Some(after(last)));
            before.map_or(*range.start(), after)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_stay_in_their_range() {
        for (one, other) in [(3, 3), (5, 7), (7, 5), (0, 1), (0, u64::MAX)] {
            let numbers: Vec<_> = (0..200).map(|_| number(one, other)).collect();
            assert!(numbers.iter().all(|number| (one.min(other)..=one.max(other)).contains(number)));
            if other.abs_diff(one) < 10 {
                assert!((one.min(other)..=one.max(other)).all(|number| numbers.contains(&number)));
            }
        }
    }

    #[test]
    fn random_texts_have_their_length_and_letters() {
        for letters in [ALPHANUMERIC, LOWER_CASE] {
            for length in [1, 20, SECURE_RANDOM_MAX] {
                let mut out = b"=".to_vec();
                push_secure(length, letters, &mut out).unwrap();
                assert!(out.len() == length + 1 && out[1..].iter().all(|byte| letters.contains(byte)));
            }
        }
        let texts: [Vec<u8>; 2] = std::array::from_fn(|_| {
            let mut out = Vec::new();
            push_secure(32, LOWER_CASE, &mut out).unwrap();
            out
        });
        assert_ne!(texts[0], texts[1]);
    }

    #[test]
    fn numbers_rotate() {
        let last = AtomicU64::new(NONE);
        let server: Vec<_> = (0..5).map(|_| rotate(&last, None, 0, 3)).collect();
        assert_eq!(server, [0, 1, 2, 3, 0]);
        for (value, expected) in [(Some(1), 2), (Some(4), 5), (Some(5), 1), (Some(0), 1), (Some(99), 1)] {
            assert_eq!(rotate(&last, value, 5, 1), expected, "{value:?}");
        }
        assert_eq!(rotate(&last, None, 1, 5), 2);
        assert_eq!(rotate(&AtomicU64::new(NONE), None, 4, 9), 4);
    }
}
