//! Severities of the error log, in nginx's words and order.

use std::fmt;

/// Severity. A smaller value is worse, so `level <= limit` means "is logged".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The server cannot start or go on.
    Emerg = 1,
    /// A fault of this program or of its installation.
    Alert,
    /// A resource is exhausted or broken: disk, memory, descriptors.
    Crit,
    /// A request or an upstream failed.
    Error,
    /// Something works, but not as it was meant to.
    Warn,
    /// Starts, stops, reloads.
    Notice,
    /// Errors of clients.
    Info,
    /// Every step.
    Debug,
}

impl Level {
    /// All levels, worst first.
    pub const ALL: [Self; 8] = [
        Self::Emerg,
        Self::Alert,
        Self::Crit,
        Self::Error,
        Self::Warn,
        Self::Notice,
        Self::Info,
        Self::Debug,
    ];

    /// Name in the configuration and in the log.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Emerg => "emerg",
            Self::Alert => "alert",
            Self::Crit => "crit",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Notice => "notice",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }

    /// Level of a word of `error_log`, or `None` if it names no level.
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.word().as_bytes() == word)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_are_ordered() {
        for level in Level::ALL {
            assert_eq!(Level::parse(level.word().as_bytes()), Some(level));
        }
        assert!(Level::ALL.is_sorted());
        assert_eq!(Level::parse(b"ERROR"), None);
        assert_eq!(Level::parse(b""), None);
    }
}
