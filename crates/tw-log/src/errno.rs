//! System errors in nginx's words: `2: No such file or directory`.

use std::{fmt, io};

/// An error of the system as nginx writes it between its parentheses: `13: Permission denied`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<&io::Error> for Errno {
    /// Errors that did not come from the kernel become `EIO`.
    fn from(error: &io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The standard library appends " (os error N)" to strerror's text.
        let text = io::Error::from_raw_os_error(self.0).to_string();
        let text = text.split_once(" (os error ").map_or(text.as_str(), |(text, _)| text);
        write!(f, "{}: {text}", self.0)
    }
}

/// A log that could not be opened; displays as nginx words it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenError {
    /// The call that failed: `open()`, or `pthread_create()` for its writer.
    pub call: &'static str,
    /// The path as it was given.
    pub path: String,
    /// What the system said.
    pub errno: Errno,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\" failed ({})", self.call, self.path, self.errno)
    }
}

impl std::error::Error for OpenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_nginx_writes_them() {
        assert_eq!(Errno(2).to_string(), "2: No such file or directory");
        assert_eq!(Errno(28).to_string(), "28: No space left on device");
        let error = OpenError { call: "open()", path: "/no/such".into(), errno: Errno(2) };
        assert_eq!(error.to_string(), "open() \"/no/such\" failed (2: No such file or directory)");
    }
}
