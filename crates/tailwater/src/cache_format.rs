//! `tailwater cache format`: prepares a block device for the segments of a cache.

use std::path::Path;
use std::process::ExitCode;

use crate::cli::CacheFormatOptions;
use crate::conf::path;
use crate::console::{Console, Fault};
use crate::write_out;

/// Formats the device.
pub(crate) fn run(options: &CacheFormatOptions) -> ExitCode {
    let device: &Path = path(&options.device);
    match tw_modules::format_device(device, options.segment, options.is_again) {
        Ok(formatted) => {
            let tw_modules::FormattedDevice { slots, slot_size } = formatted;
            write_out(&format!("{}: {slots} segments of {} MiB\n", device.display(), slot_size / (1 << 20)));
            ExitCode::SUCCESS
        }
        Err((message, advice)) => {
            Console::new().fault(&Fault::emerg(message).hint(advice));
            ExitCode::FAILURE
        }
    }
}
