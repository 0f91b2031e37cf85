//! Words about faults of disks that are made on purpose: kinds of operations, names of errors, probabilities. The directive
//! `debug_disk_fault` and the program `tailwater-slowdisk` share them.

use crate::rng::Rng;
use rustix::io::Errno;
use std::time::Duration;

/// Longest delay of an operation. One that waits goes on when the faults change.
pub const FAULT_DELAY_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Kind of disk operations that a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultOp {
    /// Opening a file.
    Open,
    /// Reading a file.
    Read,
    /// Writing a file, changing its length, times or permissions.
    Write,
    /// Creating a file, a directory or a link.
    Create,
    /// Renaming.
    Rename,
    /// Removing a file or a directory.
    Unlink,
    /// Metadata of a file, of a link or of the file system.
    Stat,
    /// Listing a directory.
    Readdir,
    /// Waiting until the disk has what was written.
    Fsync,
}

impl FaultOp {
    /// Every kind, in the order of [`FaultOp::index`].
    pub const ALL: [Self; 9] = [
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Create,
        Self::Rename,
        Self::Unlink,
        Self::Stat,
        Self::Readdir,
        Self::Fsync,
    ];

    /// Number of kinds.
    pub const COUNT: usize = Self::ALL.len();

    /// Position in [`FaultOp::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name of the kind in directives, options and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
            Self::Stat => "stat",
            Self::Readdir => "readdir",
            Self::Fsync => "fsync",
        }
    }

    /// The kind of this name.
    pub fn parse(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name().as_bytes() == name)
    }
}

/// Errors that a disk may be made to return, by name.
pub const FAULT_ERRORS: [(&str, Errno); 9] = [
    ("EIO", Errno::IO),
    ("ENOSPC", Errno::NOSPC),
    ("EROFS", Errno::ROFS),
    ("EDQUOT", Errno::DQUOT),
    ("ENOENT", Errno::NOENT),
    ("EACCES", Errno::ACCESS),
    ("EMFILE", Errno::MFILE),
    ("ESTALE", Errno::STALE),
    ("ETIMEDOUT", Errno::TIMEDOUT),
];

/// The error of this name, in either case of letters.
pub fn fault_error(name: &[u8]) -> Option<Errno> {
    FAULT_ERRORS
        .into_iter()
        .find(|(candidate, _)| candidate.as_bytes().eq_ignore_ascii_case(name))
        .map(|(_, errno)| errno)
}

/// Name of an error in [`FAULT_ERRORS`].
pub fn fault_error_name(errno: Errno) -> &'static str {
    FAULT_ERRORS.iter().find(|(_, candidate)| *candidate == errno).map_or("an error", |(name, _)| name)
}

/// Share of operations, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(u32);

impl Probability {
    /// No operation.
    pub const NEVER: Self = Self(0);
    /// Every operation.
    pub const ALWAYS: Self = Self(1_000_000);

    /// So many of a million operations, at most all.
    pub const fn of_million(parts: u32) -> Self {
        if parts < Self::ALWAYS.0 { Self(parts) } else { Self::ALWAYS }
    }

    /// True with this probability. [`Probability::NEVER`] and [`Probability::ALWAYS`] take no number.
    pub fn draw(self, rng: &mut Rng) -> bool {
        match self {
            Self::NEVER => false,
            Self::ALWAYS => true,
            Self(parts) => rng.below(Self::ALWAYS.0.into()) < parts.into(),
        }
    }
}

/// As it is written: `12.5%`.
impl std::fmt::Display for Probability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 10_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_errors_are_found_by_name() {
        for op in FaultOp::ALL {
            assert_eq!(FaultOp::parse(op.name().as_bytes()), Some(op));
            assert_eq!(FaultOp::ALL[op.index()], op);
        }
        assert_eq!(FaultOp::parse(b"Open"), None);
        for (name, errno) in FAULT_ERRORS {
            assert_eq!(fault_error(name.to_lowercase().as_bytes()), Some(errno));
            assert_eq!(fault_error_name(errno), name);
        }
        assert_eq!(fault_error(b"EOK"), None);
    }

    #[test]
    fn draws_hit_as_often_as_the_probability_says() {
        let hits = |parts| {
            let mut rng = Rng::seeded(7);
            (0..100_000).filter(|_| Probability::of_million(parts).draw(&mut rng)).count()
        };
        assert_eq!((hits(0), hits(1_000_000), hits(u32::MAX)), (0, 100_000, 100_000));
        assert!((900..1100).contains(&hits(10_000)), "{}", hits(10_000));
        assert_eq!(hits(10_000), hits(10_000));
    }

    #[test]
    fn probabilities_are_shown_in_percent() {
        for (parts, text) in [(1, "0.0001%"), (1000, "0.1%"), (125_000, "12.5%"), (1_000_000, "100%")] {
            assert_eq!(Probability::of_million(parts).to_string(), text);
        }
    }
}
