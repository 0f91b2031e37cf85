//! Remaining time of all measurements, which the process that runs them hands to each one.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

/// Variable for a part: its name, and the second (of the clock) at which all parts are expected to end.
pub(super) const PROGRESS: &str = "TAILWATER_BENCH_PROGRESS";

/// Remaining time of all parts, for the line of progress of one of them; empty for one alone.
pub(super) fn remaining() -> String {
    let Ok(text) = env::var(PROGRESS) else { return String::new() };
    let Some((ends, title)) = text.split_once(' ') else { return String::new() };
    let remaining_len = ends.parse::<u64>().unwrap_or(0).saturating_sub(since_epoch());
    format!("[{title}, {}:{:02} left] ", remaining_len / 60, remaining_len % 60)
}

/// Seconds of the clock.
pub(super) fn since_epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| span.as_secs())
}
