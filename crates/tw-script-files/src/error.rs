//! Failures as scripts see them.

use std::fmt::Write as _;

use rustix::io::Errno;
use tw_script::{ByteBuf, FileError};

/// Failure of a command, before its path and system call are known.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    /// Reason beside the text of the error, for an access that the configuration does not allow; may be empty.
    pub(crate) reason: &'static str,
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self { errno, reason: "" }
    }
}

impl Failure {
    /// Access that the configuration does not allow.
    pub(crate) fn denied(reason: &'static str) -> Self {
        Self { errno: Errno::ACCESS, reason }
    }

    /// The exception of a script.
    pub(crate) fn at(self, syscall: &str, path: &[u8]) -> FileError {
        let number = self.errno.raw_os_error();
        let mut message = tw_base::Errno::from(self.errno).to_string();
        // The number in front is for logs.
        if let Some((_, text)) = message.split_once(": ") {
            message = text.to_owned();
        }
        if !self.reason.is_empty() {
            let path = String::from_utf8_lossy(path);
            // Text that is appended to a string cannot fail.
            let _ = write!(message, ": \"{path}\", {}", self.reason);
        }
        FileError {
            errno: number,
            code: code(self.errno).to_owned(),
            message,
            syscall: syscall.to_owned(),
            path: ByteBuf::from(path),
        }
    }
}

/// Name of an error; `UNKNOWN` for those that files do not have.
fn code(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => "EACCES",
        Errno::AGAIN => "EAGAIN",
        Errno::BADF => "EBADF",
        Errno::BUSY => "EBUSY",
        Errno::DQUOT => "EDQUOT",
        Errno::EXIST => "EEXIST",
        Errno::FBIG => "EFBIG",
        Errno::INTR => "EINTR",
        Errno::INVAL => "EINVAL",
        Errno::IO => "EIO",
        Errno::ISDIR => "EISDIR",
        Errno::LOOP => "ELOOP",
        Errno::MFILE => "EMFILE",
        Errno::MLINK => "EMLINK",
        Errno::NAMETOOLONG => "ENAMETOOLONG",
        Errno::NFILE => "ENFILE",
        Errno::NODEV => "ENODEV",
        Errno::NOENT => "ENOENT",
        Errno::NOMEM => "ENOMEM",
        Errno::NOSPC => "ENOSPC",
        Errno::NOSYS => "ENOSYS",
        Errno::NOTDIR => "ENOTDIR",
        Errno::NOTEMPTY => "ENOTEMPTY",
        Errno::NXIO => "ENXIO",
        Errno::OPNOTSUPP => "ENOTSUP",
        Errno::OVERFLOW => "EOVERFLOW",
        Errno::PERM => "EPERM",
        Errno::PIPE => "EPIPE",
        Errno::ROFS => "EROFS",
        Errno::SPIPE => "ESPIPE",
        Errno::STALE => "ESTALE",
        Errno::TXTBSY => "ETXTBSY",
        Errno::XDEV => "EXDEV",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_have_the_texts_of_the_system() {
        let error = Failure::from(Errno::NOENT).at("open", b"/a");
        assert_eq!((error.errno, &*error.code), (2, "ENOENT"));
        assert_eq!((&*error.message, &*error.syscall), ("No such file or directory", "open"));
        let error = Failure::denied("why").at("stat", b"/a");
        assert_eq!((&*error.code, &*error.message), ("EACCES", "Permission denied: \"/a\", why"));
    }
}
