//! Errors of a file, in nginx's words.

use std::fmt;

/// Why no part can be cut out of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A box ends before its header does.
    BoxTooSmall(u64),
    /// A box is larger than the one around it.
    BoxTooLarge(u64),
    /// The file ends inside a header.
    Truncated,
    /// `ftyp` is longer than it may be.
    FtypTooLarge(u64),
    /// `moov` is longer than `mp4_max_buffer_size`.
    MoovTooLarge(u64),
    /// The content of this box is shorter than it announces.
    TooSmall(&'static str),
    /// The movie is compressed.
    Compressed,
    /// The part begins behind the end.
    StartExceeds,
    /// There are two of these.
    Duplicate(&'static str),
    /// Anything else.
    In(&'static str),
}

impl Fault {
    /// The log line about `file`; `directive` is the one that bounds `moov`.
    pub(crate) fn in_file(self, file: impl fmt::Display, directive: &str) -> impl fmt::Display {
        About { fault: self, file, directive }
    }
}

struct About<'a, F> {
    fault: Fault,
    file: F,
    directive: &'a str,
}

impl<F: fmt::Display> fmt::Display for About<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = &self.file;
        match self.fault {
            Fault::BoxTooSmall(size) => write!(f, "\"{file}\" mp4 atom is too small:{size}"),
            Fault::BoxTooLarge(size) => write!(f, "\"{file}\" mp4 atom too large:{size}"),
            Fault::Truncated => write!(f, "\"{file}\" mp4 file truncated"),
            Fault::FtypTooLarge(size) => write!(f, "\"{file}\" mp4 ftyp atom is too large:{size}"),
            Fault::MoovTooLarge(size) => write!(
                f,
                "\"{file}\" mp4 moov atom is too large:{size}, you may want to increase {}",
                self.directive
            ),
            Fault::TooSmall(name) => write!(f, "\"{file}\" mp4 {name} atom too small"),
            Fault::Compressed => {
                write!(f, "\"{file}\" mp4 compressed moov atom (cmov) is not supported")
            }
            Fault::StartExceeds => write!(f, "\"{file}\" mp4 start time exceeds file duration"),
            Fault::Duplicate(name) => write!(f, "duplicate mp4 {name} atom in \"{file}\""),
            Fault::In(what) => write!(f, "{what} in \"{file}\""),
        }
    }
}
