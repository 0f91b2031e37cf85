//! Clock of groups.

/// Clock of groups, in milliseconds.
pub fn now_ms() -> u64 {
    tw_rt::clock::millis()
}
