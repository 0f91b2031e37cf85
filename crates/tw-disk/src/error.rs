//! Errors of disk operations, in the shape in which nginx's log reports them.

use crate::op::Op;
use crate::sandbox_denial::DenialSource;
use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

/// Why an operation gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// The system refused.
    Os {
        /// Operation that failed.
        op: Op,
        /// Why it failed.
        errno: Errno,
        /// Source of the denial.
        source: DenialSource,
    },
    /// The pool's queue is full; nothing was tried. Degrade: go to the origin, or answer 503.
    QueueFull {
        /// Name of the pool.
        pool: Arc<str>,
        /// Jobs waiting in it.
        waiting: usize,
    },
    /// The device makes no progress. What was begun may still be done some time. Degrade: go to the origin, or answer 503.
    Hung {
        /// Operation that was wanted.
        op: Op,
        /// Mount point of the device.
        mount: Arc<str>,
    },
    /// The pool stopped before the job began.
    Cancelled,
    /// The job panicked; the thread lives on.
    Panicked,
}

impl DiskError {
    /// The system's reason, if it was the system.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Os { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// The operation that the system refused.
    pub fn op(&self) -> Option<Op> {
        match self {
            Self::Os { op, .. } => Some(*op),
            _ => None,
        }
    }

    /// Returns true if the same may be possible soon: the queue is full, or the device hangs. Answered with 503 and
    /// `Retry-After`.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::QueueFull { .. } | Self::Hung { .. })
    }

    /// Returns true if the path does not lead to anything: the causes nginx answers with 404.
    pub fn is_absent(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG))
    }

    /// The line for the error log in nginx's shape: `open() "/a" failed (2: No such file or directory)`. What the sandbox
    /// denied has an addition behind it.
    pub fn on<'a>(&'a self, path: &'a CStr) -> impl fmt::Display + 'a {
        OnPath { error: self, path }
    }
}

impl Op {
    /// The failure of this operation with `errno`.
    pub fn failed(self, errno: Errno) -> DiskError {
        DiskError::Os { op: self, errno, source: DenialSource::Unknown }
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os { op, errno, .. } => {
                write!(f, "{} failed ({})", op.call(), tw_base::Errno::from(*errno))
            }
            Self::QueueFull { pool, waiting } => {
                write!(f, "thread pool \"{pool}\" queue overflow: {waiting} tasks waiting")
            }
            Self::Hung { op, mount } => write!(f, "{} failed (\"{mount}\" hangs)", op.call()),
            Self::Cancelled => f.write_str("disk job cancelled"),
            Self::Panicked => f.write_str("disk job panicked"),
        }
    }
}

impl std::error::Error for DiskError {}

struct OnPath<'a> {
    error: &'a DiskError,
    path: &'a CStr,
}

impl fmt::Display for OnPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = Shown(self.path);
        match self.error {
            DiskError::Os { op, errno, source } => {
                write!(f, "{} \"{path}\" failed ({})", op.call(), tw_base::Errno::from(*errno))?;
                match source {
                    // Remembered by a loop, which does not wait.
                    DenialSource::Unknown => DenialSource::find_now(*op, *errno, self.path),
                    source => *source,
                }
                .addition()
                .fmt(f)
            }
            DiskError::Hung { op, mount } => write!(f, "{} \"{path}\" failed (\"{mount}\" hangs)", op.call()),
            // nginx names no file here: the operator has to look at the pool.
            DiskError::QueueFull { .. } => self.error.fmt(f),
            DiskError::Cancelled | DiskError::Panicked => write!(f, "{}: \"{path}\"", self.error),
        }
    }
}

/// A path in a log line; bytes that are no UTF-8 are written as `\xE4`.
struct Shown<'a>(&'a CStr);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.to_bytes().utf8_chunks() {
            f.write_str(chunk.valid())?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02X}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let cases: [(DiskError, &str, &str); 5] = [
            (
                Op::Open.failed(Errno::NOENT),
                "open() failed (2: No such file or directory)",
                "open() \"/a\" failed (2: No such file or directory)",
            ),
            (
                DiskError::QueueFull { pool: "disk1".into(), waiting: 7 },
                "thread pool \"disk1\" queue overflow: 7 tasks waiting",
                "thread pool \"disk1\" queue overflow: 7 tasks waiting",
            ),
            (
                DiskError::Hung { op: Op::Read, mount: "/mnt".into() },
                "pread() failed (\"/mnt\" hangs)",
                "pread() \"/a\" failed (\"/mnt\" hangs)",
            ),
            (DiskError::Panicked, "disk job panicked", "disk job panicked: \"/a\""),
            (
                Op::Read.failed(Errno::from_raw_os_error(4000)),
                "pread() failed (4000: Unknown error 4000)",
                "pread() \"/a\" failed (4000: Unknown error 4000)",
            ),
        ];
        for (error, plain, on_path) in cases {
            assert_eq!(error.to_string(), plain);
            assert_eq!(error.on(c"/a").to_string(), on_path);
        }
        let shown = Op::Open.failed(Errno::NOENT).on(c"/\xc3\xa4\xe4").to_string();
        assert_eq!(shown, "open() \"/ä\\xE4\" failed (2: No such file or directory)");
    }
}
