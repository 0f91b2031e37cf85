//! Token that clients of an IP address have to send (`Authorization: Bearer`).

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tailwater_commands::output::console::Fault;
use zeroize::Zeroizing;

/// Least length of a token, in bytes.
const LENGTH_MIN: usize = 16;
/// Permissions of the group and of others.
const OTHERS: u32 = 0o077;

/// A token.
pub(super) struct Token(Zeroizing<Vec<u8>>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the first line of a file that only its owner may read.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, or the token is short or has characters that a field cannot have.
    pub(super) fn read(file: &[u8]) -> Result<Self, Fault> {
        let path = Path::new(std::ffi::OsStr::from_bytes(file));
        let shown = path.display();
        let text = fs::read(path)
            .map(Zeroizing::new)
            .map_err(|error| Fault::call("open()", &path.to_string_lossy(), &error))?;
        let mode = fs::metadata(path)
            .map_err(|error| Fault::call("stat()", &path.to_string_lossy(), &error))?
            .permissions()
            .mode();
        if mode & OTHERS != 0 {
            let fault = Fault::emerg(format!("others may read the token in \"{shown}\""));
            return Err(fault.hint(format!("chmod 600 {shown}")));
        }
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
        if line.len() < LENGTH_MIN || !line.iter().all(u8::is_ascii_graphic) {
            let message = format!("the token in \"{shown}\" needs {LENGTH_MIN} or more printable characters");
            return Err(Fault::emerg(message).hint(format!("head -c 32 /dev/urandom | base64 > {shown}")));
        }
        Ok(Self(Zeroizing::new(line.to_vec())))
    }

    /// Returns true if the value of `Authorization` has this token. Takes the same time for every wrong one of the same length.
    pub(super) fn is_in(&self, authorization: Option<&[u8]>) -> bool {
        let Some((scheme, sent)) = authorization.and_then(|value| value.split_at_checked(7)) else {
            return false;
        };
        let difference =
            |one: &[u8], other: &[u8]| one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
        scheme.eq_ignore_ascii_case(b"bearer ")
            && sent.len() == self.0.len()
            && std::hint::black_box(difference(sent, &self.0)) == 0
    }
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    #[test]
    fn token_is_a_secret_line() {
        let dir = TempDir::new("token").unwrap();
        let path = dir.write("token", "0123456789abcdef\nmore").unwrap();
        let read = || Token::read(path.as_os_str().as_bytes());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read().unwrap_err().message.contains("others may read"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let token = read().unwrap();
        assert!(
            token.is_in(Some(b"Bearer 0123456789abcdef")) && token.is_in(Some(b"bearer 0123456789abcdef"))
        );
        for wrong in
            ["Bearer 0123456789abcdeF", "Bearer 0123456789abcde", "Basic 0123456789abcdef", "", "Bearer "]
        {
            assert!(!token.is_in(Some(wrong.as_bytes())), "{wrong}");
        }
        assert!(!token.is_in(None));
        for short in ["", "0123456789abcde", "0123456789 abcdef"] {
            fs::write(&path, short).unwrap();
            assert!(read().is_err(), "{short}");
        }
        assert!(Token::read(b"/no/such").is_err());
    }
}
