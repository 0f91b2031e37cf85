//! Error of opening a log.

use std::fmt;

use tw_base::Errno;

/// Failure to open a log; displays as in nginx.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenError {
    /// The call that failed: `open()`, or `pthread_create()` for its writer.
    pub call: &'static str,
    /// The path as it was given.
    pub path: String,
    /// Error of the system.
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
    fn datagrams_equal_those_of_nginx() {
        let error = OpenError { call: "open()", path: "/no/such".into(), errno: Errno(2) };
        assert_eq!(error.to_string(), "open() \"/no/such\" failed (2: No such file or directory)");
    }
}
