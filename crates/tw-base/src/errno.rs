//! System errors in nginx's words: `2: No such file or directory`. The texts are the C library's, kept here: a log reads
//! the same on every system, and a text is looked up without a lock or an allocation.

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
        let Self(number) = *self;
        match text(number) {
            Some(text) => write!(f, "{number}: {text}"),
            None => write!(f, "{number}: Unknown error {number}"),
        }
    }
}

impl Errno {
    /// Returns its words for use in a sentence: `permission denied`.
    pub fn words(self) -> impl fmt::Display {
        ErrnoWords(self)
    }
}

struct ErrnoWords(Errno);

impl fmt::Display for ErrnoWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Errno(number)) = *self;
        match text(number).map(|text| (text.split_at(1), text)) {
            // An abbreviation stays one.
            Some((_, text)) if text.as_bytes().get(1).is_some_and(u8::is_ascii_uppercase) => {
                f.write_str(text)
            }
            Some(((first, rest), _)) => write!(f, "{}{rest}", first.to_ascii_lowercase()),
            None => write!(f, "unknown error {number}"),
        }
    }
}

/// The text of an error number, if it is one of Linux's.
fn text(number: i32) -> Option<&'static str> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    TEXTS.get(index).copied().filter(|text| !text.is_empty())
}

/// Linux error numbers from 1; an empty text is an unused number.
const TEXTS: [&str; 133] = [
    "Operation not permitted",
    "No such file or directory",
    "No such process",
    "Interrupted system call",
    "Input/output error",
    "No such device or address",
    "Argument list too long",
    "Exec format error",
    "Bad file descriptor",
    "No child processes",
    "Resource temporarily unavailable",
    "Cannot allocate memory",
    "Permission denied",
    "Bad address",
    "Block device required",
    "Device or resource busy",
    "File exists",
    "Invalid cross-device link",
    "No such device",
    "Not a directory",
    "Is a directory",
    "Invalid argument",
    "Too many open files in system",
    "Too many open files",
    "Inappropriate ioctl for device",
    "Text file busy",
    "File too large",
    "No space left on device",
    "Illegal seek",
    "Read-only file system",
    "Too many links",
    "Broken pipe",
    "Numerical argument out of domain",
    "Numerical result out of range",
    "Resource deadlock avoided",
    "File name too long",
    "No locks available",
    "Function not implemented",
    "Directory not empty",
    "Too many levels of symbolic links",
    "",
    "No message of desired type",
    "Identifier removed",
    "Channel number out of range",
    "Level 2 not synchronized",
    "Level 3 halted",
    "Level 3 reset",
    "Link number out of range",
    "Protocol driver not attached",
    "No CSI structure available",
    "Level 2 halted",
    "Invalid exchange",
    "Invalid request descriptor",
    "Exchange full",
    "No anode",
    "Invalid request code",
    "Invalid slot",
    "",
    "Bad font file format",
    "Device not a stream",
    "No data available",
    "Timer expired",
    "Out of streams resources",
    "Machine is not on the network",
    "Package not installed",
    "Object is remote",
    "Link has been severed",
    "Advertise error",
    "Srmount error",
    "Communication error on send",
    "Protocol error",
    "Multihop attempted",
    "RFS specific error",
    "Bad message",
    "Value too large for defined data type",
    "Name not unique on network",
    "File descriptor in bad state",
    "Remote address changed",
    "Can not access a needed shared library",
    "Accessing a corrupted shared library",
    ".lib section in a.out corrupted",
    "Attempting to link in too many shared libraries",
    "Cannot exec a shared library directly",
    "Invalid or incomplete multibyte or wide character",
    "Interrupted system call should be restarted",
    "Streams pipe error",
    "Too many users",
    "Socket operation on non-socket",
    "Destination address required",
    "Message too long",
    "Protocol wrong type for socket",
    "Protocol not available",
    "Protocol not supported",
    "Socket type not supported",
    "Operation not supported",
    "Protocol family not supported",
    "Address family not supported by protocol",
    "Address already in use",
    "Cannot assign requested address",
    "Network is down",
    "Network is unreachable",
    "Network dropped connection on reset",
    "Software caused connection abort",
    "Connection reset by peer",
    "No buffer space available",
    "Transport endpoint is already connected",
    "Transport endpoint is not connected",
    "Cannot send after transport endpoint shutdown",
    "Too many references: cannot splice",
    "Connection timed out",
    "Connection refused",
    "Host is down",
    "No route to host",
    "Operation already in progress",
    "Operation now in progress",
    "Stale file handle",
    "Structure needs cleaning",
    "Not a XENIX named type file",
    "No XENIX semaphores available",
    "Is a named type file",
    "Remote I/O error",
    "Disk quota exceeded",
    "No medium found",
    "Wrong medium type",
    "Operation canceled",
    "Required key not available",
    "Key has expired",
    "Key has been revoked",
    "Key was rejected by service",
    "Owner died",
    "State not recoverable",
    "Operation not possible due to RF-kill",
    "Memory page has hardware error",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_up() {
        let cases = [
            (1, Some("Operation not permitted")),
            (2, Some("No such file or directory")),
            (24, Some("Too many open files")),
            (28, Some("No space left on device")),
            (40, Some("Too many levels of symbolic links")),
            (133, Some("Memory page has hardware error")),
            (0, None),
            (-1, None),
            (41, None),
            (134, None),
        ];
        for (number, expected) in cases {
            assert_eq!(text(number), expected, "{number}");
        }
    }

    #[test]
    fn errors_have_the_text_of_nginx() {
        assert_eq!(Errno(2).to_string(), "2: No such file or directory");
        assert_eq!(Errno(28).to_string(), "28: No space left on device");
        assert_eq!(Errno(4000).to_string(), "4000: Unknown error 4000");
        assert_eq!(Errno(111).words().to_string(), "connection refused");
        assert_eq!(Errno(4000).words().to_string(), "unknown error 4000");
        assert_eq!(Errno::from(&io::Error::other("odd")).to_string(), "5: Input/output error");
    }
}
