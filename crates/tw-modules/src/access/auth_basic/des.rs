//! Traditional crypt(3): DES of a block of zeros, 25 times, with the password as key and a salt that swaps bits.
//!
//! Source: FIPS 46-3 for the tables, crypt(3) for their use. Weak: 56 bits, eight characters. Old password files
//! contain it.

/// The 64 digits of crypt(3).
pub(super) const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Rounds of encryption of the block.
const TIMES: usize = 25;

/// Bits are counted from 1, the first is the highest; as the standard writes them.
const INITIAL: [u8; 64] = {
    // Columns of even bits, then of odd ones, from the last row to the first.
    let mut table = [0; 64];
    let mut at = 0;
    while at < 64 {
        let row = at / 8;
        let column = at % 8;
        let first = if row < 4 { 2 * row + 2 } else { 2 * (row - 4) + 1 };
        table[at] = (first + 8 * (7 - column)) as u8;
        at += 1;
    }
    table
};

const EXPANSION: [u8; 48] = {
    // Groups of six: four bits with their neighbours.
    let mut table = [0; 48];
    let mut at = 0;
    while at < 48 {
        let group = at / 6;
        let place = at % 6;
        table[at] = ((4 * group + place + 31) % 32 + 1) as u8;
        at += 1;
    }
    table
};

const PERMUTATION: [u8; 32] = [
    16, 7, 20, 21, 29, 12, 28, 17, 1, 15, 23, 26, 5, 18, 31, 10, //
    2, 8, 24, 14, 32, 27, 3, 9, 19, 13, 30, 6, 22, 11, 4, 25,
];

const KEY_CHOICE: [u8; 56] = [
    57, 49, 41, 33, 25, 17, 9, 1, 58, 50, 42, 34, 26, 18, 10, 2, 59, 51, 43, 35, 27, 19, 11, 3, 60, 52, 44,
    36, //
    63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6, 61, 53, 45, 37, 29, 21, 13, 5, 28, 20, 12,
    4,
];

const ROUND_KEY_CHOICE: [u8; 48] = [
    14, 17, 11, 24, 1, 5, 3, 28, 15, 6, 21, 10, 23, 19, 12, 4, 26, 8, 16, 7, 27, 20, 13, 2, //
    41, 52, 31, 37, 47, 55, 30, 40, 51, 45, 33, 48, 44, 49, 39, 56, 34, 53, 46, 42, 50, 36, 29, 32,
];

const SHIFTS: [u32; 16] = [1, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 1];

const SUBSTITUTION: [[u8; 64]; 8] = [
    [
        14, 4, 13, 1, 2, 15, 11, 8, 3, 10, 6, 12, 5, 9, 0, 7, 0, 15, 7, 4, 14, 2, 13, 1, 10, 6, 12, 11, 9, 5,
        3, 8, 4, 1, 14, 8, 13, 6, 2, 11, 15, 12, 9, 7, 3, 10, 5, 0, 15, 12, 8, 2, 4, 9, 1, 7, 5, 11, 3, 14,
        10, 0, 6, 13,
    ],
    [
        15, 1, 8, 14, 6, 11, 3, 4, 9, 7, 2, 13, 12, 0, 5, 10, 3, 13, 4, 7, 15, 2, 8, 14, 12, 0, 1, 10, 6, 9,
        11, 5, 0, 14, 7, 11, 10, 4, 13, 1, 5, 8, 12, 6, 9, 3, 2, 15, 13, 8, 10, 1, 3, 15, 4, 2, 11, 6, 7, 12,
        0, 5, 14, 9,
    ],
    [
        10, 0, 9, 14, 6, 3, 15, 5, 1, 13, 12, 7, 11, 4, 2, 8, 13, 7, 0, 9, 3, 4, 6, 10, 2, 8, 5, 14, 12, 11,
        15, 1, 13, 6, 4, 9, 8, 15, 3, 0, 11, 1, 2, 12, 5, 10, 14, 7, 1, 10, 13, 0, 6, 9, 8, 7, 4, 15, 14, 3,
        11, 5, 2, 12,
    ],
    [
        7, 13, 14, 3, 0, 6, 9, 10, 1, 2, 8, 5, 11, 12, 4, 15, 13, 8, 11, 5, 6, 15, 0, 3, 4, 7, 2, 12, 1, 10,
        14, 9, 10, 6, 9, 0, 12, 11, 7, 13, 15, 1, 3, 14, 5, 2, 8, 4, 3, 15, 0, 6, 10, 1, 13, 8, 9, 4, 5, 11,
        12, 7, 2, 14,
    ],
    [
        2, 12, 4, 1, 7, 10, 11, 6, 8, 5, 3, 15, 13, 0, 14, 9, 14, 11, 2, 12, 4, 7, 13, 1, 5, 0, 15, 10, 3, 9,
        8, 6, 4, 2, 1, 11, 10, 13, 7, 8, 15, 9, 12, 5, 6, 3, 0, 14, 11, 8, 12, 7, 1, 14, 2, 13, 6, 15, 0, 9,
        10, 4, 5, 3,
    ],
    [
        12, 1, 10, 15, 9, 2, 6, 8, 0, 13, 3, 4, 14, 7, 5, 11, 10, 15, 4, 2, 7, 12, 9, 5, 6, 1, 13, 14, 0, 11,
        3, 8, 9, 14, 15, 5, 2, 8, 12, 3, 7, 0, 4, 10, 1, 13, 11, 6, 4, 3, 2, 12, 9, 5, 15, 10, 11, 14, 1, 7,
        6, 0, 8, 13,
    ],
    [
        4, 11, 2, 14, 15, 0, 8, 13, 3, 12, 9, 7, 5, 10, 6, 1, 13, 0, 11, 7, 4, 9, 1, 10, 14, 3, 5, 12, 2, 15,
        8, 6, 1, 4, 11, 13, 12, 3, 7, 14, 10, 15, 6, 8, 0, 5, 9, 2, 6, 11, 13, 8, 1, 4, 10, 7, 9, 5, 0, 15,
        14, 2, 3, 12,
    ],
    [
        13, 2, 8, 4, 6, 15, 11, 1, 10, 9, 3, 14, 5, 0, 12, 7, 1, 15, 13, 8, 10, 3, 7, 4, 12, 5, 6, 11, 0, 14,
        9, 2, 7, 11, 4, 1, 9, 12, 14, 2, 0, 6, 10, 13, 15, 3, 5, 8, 2, 1, 14, 7, 4, 10, 8, 13, 15, 12, 9, 0,
        3, 5, 6, 11,
    ],
];

/// The salt of a hash: its first two digits.
pub(super) fn salt(hash: &[u8]) -> Option<[u8; 2]> {
    let salt = [*hash.first()?, *hash.get(1)?];
    salt.iter().all(|byte| DIGITS.contains(byte)).then_some(salt)
}

/// The hash of a password, of which the first eight bytes count; 13 digits. About 0.3 ms.
pub(super) fn crypt(salt: [u8; 2], password: &[u8]) -> Vec<u8> {
    let mut key = 0;
    for at in 0..8 {
        key = key << 8 | u64::from(password.get(at).copied().unwrap_or(0)) << 1 & 0xfe;
    }
    let keys = round_keys(key);
    let swaps = swaps(salt);
    let mut block = 0;
    for _ in 0..TIMES {
        block = encrypt(block, &keys, swaps);
    }
    let mut out = salt.to_vec();
    // 64 bits and two of padding are eleven digits, the highest first.
    let bits = u128::from(block) << 2;
    out.extend((0..11).rev().map(|digit| DIGITS[(bits >> (6 * digit) & 63) as usize]));
    out
}

/// Mask of the 24 pairs of bits of an expanded half that change places: bit `n` of the salt swaps the bits `n` and `n +
/// 24`, both counted from the highest of 48.
fn swaps(salt: [u8; 2]) -> u64 {
    let digit = |byte| DIGITS.iter().position(|digit| *digit == byte).unwrap_or(0) as u64;
    let bits = digit(salt[1]) << 6 | digit(salt[0]);
    (0..12).filter(|n| bits >> n & 1 == 1).map(|n| 1 << (23 - n)).sum()
}

/// Picks bits of a word of `width` bits; the first of the table becomes the highest.
fn pick(word: u64, width: u32, table: &[u8]) -> u64 {
    table.iter().fold(0, |picked, bit| picked << 1 | word >> (width - u32::from(*bit)) & 1)
}

fn round_keys(key: u64) -> [u64; 16] {
    const HALF: u64 = (1 << 28) - 1;
    let chosen = pick(key, 64, &KEY_CHOICE);
    let mut remaining = chosen >> 28;
    let mut right = chosen & HALF;
    SHIFTS.map(|shift| {
        let turn = |half: u64| (half << shift | half >> (28 - shift)) & HALF;
        (remaining, right) = (turn(remaining), turn(right));
        pick(remaining << 28 | right, 56, &ROUND_KEY_CHOICE)
    })
}

fn encrypt(block: u64, keys: &[u64; 16], swaps: u64) -> u64 {
    let block = pick(block, 64, &INITIAL);
    let mut remaining = block >> 32;
    let mut right = block & 0xffff_ffff;
    for key in keys {
        (remaining, right) = (right, remaining ^ mix(right, *key, swaps));
    }
    let ended = right << 32 | remaining;
    // The final permutation undoes the initial one.
    INITIAL
        .iter()
        .enumerate()
        .fold(0, |all, (at, to)| all | (ended >> (63 - at) & 1) << (64 - u32::from(*to)))
}

/// The function of one round.
fn mix(half: u64, key: u64, swaps: u64) -> u64 {
    let expanded = pick(half, 32, &EXPANSION);
    let differ = (expanded >> 24 ^ expanded) & swaps;
    let bits = expanded ^ differ ^ differ << 24 ^ key;
    let substituted = SUBSTITUTION.iter().enumerate().fold(0, |all, (at, table)| {
        let six = bits >> (42 - 6 * at) & 63;
        // The outer bits are the row, the inner four the column.
        let place = (six >> 4 & 2 | six & 1) << 4 | six >> 1 & 15;
        all << 4 | u64::from(table[place as usize])
    });
    pick(substituted, 32, &PERMUTATION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_des() {
        // The example of FIPS 81 and a well-known vector, without a salt.
        for (key, block, expected) in [
            (0x0123_4567_89ab_cdef, 0x4e6f_7720_6973_2074, 0x3fa4_0e8a_984d_4815),
            (0x1334_5779_9bbc_dff1, 0x0123_4567_89ab_cdef, 0x85e8_1354_0f0a_b405),
        ] {
            assert_eq!(encrypt(block, &round_keys(key), 0), expected, "{key:x}");
        }
    }

    #[test]
    fn tables_of_the_standard() {
        assert_eq!(INITIAL[..9], [58, 50, 42, 34, 26, 18, 10, 2, 60]);
        assert_eq!(INITIAL[32..40], [57, 49, 41, 33, 25, 17, 9, 1]);
        assert_eq!(EXPANSION[..8], [32, 1, 2, 3, 4, 5, 4, 5]);
        assert_eq!(EXPANSION[42..], [28, 29, 30, 31, 32, 1]);
    }
}
