//! Opened output of a writer.

use std::os::fd::OwnedFd;

use crate::files::Opened;
use crate::memory::Cyclic;
use crate::syslog::Datagrams;

/// Opened output of a writer.
#[derive(Debug)]
pub(crate) enum Output {
    /// A stream of bytes: a file, a pipe, a terminal.
    Stream(OwnedFd),
    /// Datagrams.
    Syslog(Datagrams),
    /// A cyclic buffer.
    Memory(Cyclic),
    /// Files whose names the lines bring along.
    Files(Opened),
}
