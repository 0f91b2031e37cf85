//! Targets of sinks.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tw_base::Errno;

/// Target of a sink. Sinks with equal targets are one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// Standard error.
    Stderr,
    /// A file, opened for appending.
    File(PathBuf),
    /// A syslog server; every push is one datagram.
    Syslog(SyslogServer),
    /// A cyclic buffer in memory (see [`Memory`]).
    Memory(Memory),
    /// Files whose names the lines bring along ([`crate::Sink::push_to`]).
    Files(NamedFiles),
}

/// Address of a syslog server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SyslogServer {
    /// UDP.
    Inet(SocketAddr),
    /// A datagram socket in the file system.
    Unix(PathBuf),
}

/// A cyclic buffer of whole lines: a file in memory (`memfd`), which an operator reads through `/proc/PID/fd`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Name of the file in `/proc/PID/fd`.
    pub name: String,
    /// Bytes, more than a line.
    pub size: usize,
}

/// Files whose names the lines bring along.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedFiles {
    /// Name of the log in messages and metrics: its path as written.
    pub name: String,
    /// `open_log_file_cache`; `None` opens a file for every batch of lines.
    pub cache: Option<CacheConfig>,
    /// Privileges and rules for opening a file.
    pub opener: Opener,
}

/// `open_log_file_cache`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheConfig {
    /// `max`: names that are kept.
    pub max: usize,
    /// `inactive`: a file not used for so long is closed.
    pub inactive: Duration,
    /// `min_uses`: a file stays open after so many lines within `inactive`.
    pub min_uses: u64,
    /// `valid`: after so long it is checked that the name still leads to the open file.
    pub valid: Duration,
}

/// Symbolic links permitted in the path of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Links {
    /// Symbolic links are followed.
    Follow,
    /// A link after the first so many bytes of the path is refused.
    Refuse(u32),
    /// A link after the first so many bytes of the path is refused unless its owner owns its target.
    SameOwner(u32),
}

/// Opens a file for appending and creates it (0644). May wait: called by writer threads only.
#[derive(Clone, Copy)]
pub struct Opener(pub fn(&CStr, Links) -> Result<OwnedFd, OpenFailure>);

/// Why a file was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFailure {
    /// Error of the system.
    pub errno: Errno,
    /// Addition to the message: nothing, or `, denied by …`.
    pub addition: String,
}

impl From<std::io::Error> for OpenFailure {
    fn from(error: std::io::Error) -> Self {
        Self { errno: Errno::from(&error), addition: String::new() }
    }
}

impl From<rustix::io::Errno> for OpenFailure {
    fn from(errno: rustix::io::Errno) -> Self {
        Self { errno: errno.into(), addition: String::new() }
    }
}

impl PartialEq for Opener {
    /// There is one in a process.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Opener {}

impl std::hash::Hash for Opener {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener")
    }
}

impl Target {
    /// The path as configured, or what else it is called in messages.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Stderr => Cow::Borrowed("stderr"),
            Self::File(path) => path.to_string_lossy(),
            Self::Syslog(server) => format!("syslog:server={server}").into(),
            Self::Memory(memory) => Cow::Borrowed(&memory.name),
            Self::Files(files) => Cow::Borrowed(&files.name),
        }
    }

    /// The file, if it is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Stderr | Self::Syslog(_) | Self::Memory(_) | Self::Files(_) => None,
        }
    }

    /// Returns `true` if the writer has to know where each push begins and ends.
    pub(crate) fn is_framed(&self) -> bool {
        matches!(self, Self::Syslog(_) | Self::Memory(_) | Self::Files(_))
    }
}

impl fmt::Display for SyslogServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
