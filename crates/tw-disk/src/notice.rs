//! Notices of pools, for the error log.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

/// Something an operator should read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Nothing comes back from a device.
    Hangs {
        /// The pool.
        pool: Arc<str>,
        /// Mount point of the device.
        mount: Arc<str>,
        /// Operations that hang.
        operations: u32,
        /// Time for which they have made no progress.
        after: Duration,
    },
    /// All of it has come back.
    Answers {
        /// The pool.
        pool: Arc<str>,
        /// Mount point of the device.
        mount: Arc<str>,
        /// Time for which something hung.
        after: Duration,
    },
    /// io_uring cannot be used here: the threads read instead.
    RingUnavailable(Errno),
    /// The kernel has taken io_uring away: the threads read from now on.
    RingLost(Errno),
    /// The kernel does not let more files be locked in memory than are.
    LockRefused {
        /// Why.
        errno: Errno,
        /// Bytes of them that are.
        kept: u64,
        /// `RLIMIT_MEMLOCK`, bytes, if there is one.
        limit: Option<u64>,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, errno) = match self {
            Self::Hangs { pool, mount, operations, after } => {
                return write!(
                    f,
                    "\"{mount}\" hangs: {operations} operations of thread pool \"{pool}\" have made no progress for {} s, \
                     others on it are refused meanwhile",
                    after.as_secs()
                );
            }
            Self::Answers { pool, mount, after } => {
                let after = after.as_secs();
                return write!(f, "\"{mount}\" answers again after {after} s in thread pool \"{pool}\"");
            }
            Self::RingUnavailable(errno) => ("is not available", errno),
            Self::RingLost(errno) => ("stopped working", errno),
            Self::LockRefused { errno, kept, limit } => {
                let errno = tw_base::Errno::from(*errno);
                let size = kept >> 10;
                write!(f, "mlock() of a file failed ({errno}), no more than {size} KB of files are locked")?;
                return match limit {
                    Some(limit) => write!(f, ", RLIMIT_MEMLOCK is {} KB", limit >> 10),
                    None => Ok(()),
                };
            }
        };
        write!(f, "io_uring {what} ({}), threads read instead", tw_base::Errno::from(*errno))
    }
}
