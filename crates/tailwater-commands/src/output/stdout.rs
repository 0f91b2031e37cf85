//! Output of commands.

use std::io::Write as _;

/// Writes `text` to standard output. A reader that closes the pipe early is no failure.
pub fn write_out(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
