//! Limits of the programs.

use std::time::Duration;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// A pause of `echo_sleep`.
    pub(super) const SLEEP_MAX: Duration = Duration::from_secs(86_400), time, "a longer one is as long as this";
    /// Texts and subrequests of `echo` that wait to be sent, and one text more.
    pub(super) const QUEUE_MAX: usize = 64 << 10, bytes, "the program goes on when they are sent";
    /// Commands of `echo` that run without a pause.
    pub(super) const COMMANDS_MAX: u32 = 1000, count, "other tasks of the loop run";
    /// Copies of a text of `echo_duplicate` in memory, or one text if that is longer.
    pub(super) const REPEAT_SIZE: usize = 32 << 10, bytes, "the others are made when these are sent";
}
