//! Read-ahead of the kernel on a device, and the size of our windows, with which it is compared.

use std::fs;

use rustix::fs::{major, minor};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes read ahead of each file while 8 or more jobs read from a device whose read-ahead is larger.
    ///
    /// Bytes that are read ahead at once. 200 clients with files of 4 MiB and 512 MiB of memory got 116 instead of 33 MB/s of a
    /// disk with 120 MB/s and a read-ahead of 8 MiB.
    pub(crate) const READ_WINDOW: u64 = 512 << 10, bytes, "the next job reads on";
}

/// Returns true if the kernel reads further ahead of files on device `dev` than a window.
pub(crate) fn exceeds_window(dev: u64) -> bool {
    let number = format!("{}:{}", major(dev), minor(dev));
    // A partition has the settings of its disk.
    ["", "/.."].iter().any(|disk| {
        let text = fs::read_to_string(format!("/sys/dev/block/{number}{disk}/bdi/read_ahead_kb"));
        text.is_ok_and(|kb| kb.trim().parse::<u64>().is_ok_and(|kb| kb.saturating_mul(1024) > READ_WINDOW))
    })
}
