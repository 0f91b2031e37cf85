//! Pass phrases of private keys, as `ssl_password_file` has them: one a line, tried in turn.

use std::fmt;

use zeroize::Zeroizing;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Pass phrases of a password file.
    const PASSWORDS_MAX: usize = 100, count, "the configuration is refused";
    /// Bytes of a pass phrase.
    const PASSWORD_SIZE_MAX: usize = 4096, bytes, "the configuration is refused";
}

/// Pass phrases; wiped on drop, never printed.
#[derive(Clone, Default)]
pub struct Passwords(Vec<Zeroizing<Vec<u8>>>);

/// Why a password file cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PasswordError {
    /// The line of this number, from 1, is longer than any pass phrase.
    TooLongLine(usize),
    /// More lines than this.
    TooMany(usize),
}

impl fmt::Display for PasswordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLongLine(line) => write!(f, "too long line {line}"),
            Self::TooMany(max) => write!(f, "more than {max} pass phrases"),
        }
    }
}

impl std::error::Error for PasswordError {}

impl Passwords {
    /// The lines of a text; empty ones do not count.
    ///
    /// # Errors
    /// A line that is too long, or too many.
    pub fn read(text: &[u8]) -> Result<Self, PasswordError> {
        let mut zeroizings = Vec::new();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.len() > PASSWORD_SIZE_MAX {
                return Err(PasswordError::TooLongLine(number + 1));
            }
            if line.is_empty() {
                continue;
            }
            if zeroizings.len() == PASSWORDS_MAX {
                return Err(PasswordError::TooMany(PASSWORDS_MAX));
            }
            zeroizings.push(Zeroizing::new(line.to_vec()));
        }
        Ok(Self(zeroizings))
    }

    /// The pass phrases, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|word| word.as_slice())
    }
}

impl fmt::Debug for Passwords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pass phrases", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let words = Passwords::read(b"one\r\n\n two \nthree").unwrap();
        assert_eq!(words.iter().collect::<Vec<_>>(), [&b"one"[..], b" two ", b"three"]);
        assert_eq!(format!("{words:?}"), "3 pass phrases");
        assert_eq!(Passwords::read(b"").unwrap().iter().count(), 0);
    }

    #[test]
    fn limits() {
        let long = format!("a\n{}", "x".repeat(PASSWORD_SIZE_MAX + 1));
        assert_eq!(Passwords::read(long.as_bytes()).unwrap_err(), PasswordError::TooLongLine(2));
        assert_eq!(Passwords::read("a\n".repeat(101).as_bytes()).unwrap_err(), PasswordError::TooMany(100));
    }
}
