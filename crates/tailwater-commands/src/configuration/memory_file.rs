//! Files in memory that have no name in any directory: secrets of the built-in configurations, which directives want as files.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use crate::output::console::Fault;

/// A file that only this process and its owner can read; it is gone when it is dropped.
#[derive(Debug)]
pub struct MemoryFile(OwnedFd);

impl MemoryFile {
    /// Makes one with this content; `name` is for messages and for lists of open files.
    pub fn new(name: &str, content: &[u8]) -> Result<Self, Fault> {
        let make = || -> io::Result<OwnedFd> {
            let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?;
            File::from(fd.try_clone()?).write_all(content)?;
            Ok(fd)
        };
        make().map(Self).map_err(|error| Fault::call("memfd_create()", name, &error))
    }

    /// The name by which the process itself opens it.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}
