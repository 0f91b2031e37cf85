//! Contents of files and bodies.

/// Bytes that do not compress.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    std::iter::repeat_with(next).flat_map(u64::to_le_bytes).take(len).collect()
}

/// Bytes in which every place looks different.
pub(crate) fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
