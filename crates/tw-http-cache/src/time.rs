//! Unix time in the numbers of the index.

/// Converts Unix time in seconds to the numbers of the index.
pub(super) fn seconds(unix: i64) -> u32 {
    u32::try_from(unix.max(0)).unwrap_or(u32::MAX)
}

/// Milliseconds since 1970.
pub(super) fn unix_ms() -> i64 {
    let now = tw_rt::clock::unix();
    now.secs * 1000 + i64::from(now.msec)
}
