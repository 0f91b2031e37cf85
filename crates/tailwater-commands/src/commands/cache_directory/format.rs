//! `cache format`: prepares a block device for the segments of a cache.

use std::path::Path;

use crate::cli::CacheFormatOptions;
use crate::configuration::bytes_path::path;
use crate::output::console::{Console, Fault};
use crate::output::stdout::write_out;

use super::directory::{FAILED, GOOD};

/// Formats the device and returns the status.
pub(super) fn run(options: &CacheFormatOptions, console: &Console) -> u8 {
    let device: &Path = path(&options.device);
    match tw_modules::format_device(device, options.segment, options.is_again) {
        Ok(formatted) => {
            let tw_modules::FormattedDevice { slots, slot_size } = formatted;
            write_out(&format!("{}: {slots} segments of {} MiB\n", device.display(), slot_size / (1 << 20)));
            GOOD
        }
        Err((message, advice)) => {
            console.fault(&Fault::emerg(message).hint(advice));
            FAILED
        }
    }
}
