//! Messages on their way to a script process.

use std::io;

use tw_rt::Socket;

/// Room that an empty buffer keeps.
const ROOM: usize = 64 << 10;

/// Bytes on their way to the process.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    /// Number of bytes at the front that were sent.
    sent: usize,
}

impl Outgoing {
    /// Bytes that are left.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// True if nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.size() == 0
    }

    /// Writes what the socket takes; true if that is all.
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        while !self.is_empty() {
            match socket.try_write(self.bytes.get(self.sent..).unwrap_or_default()) {
                Ok(size) => self.sent += size,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.bytes.shrink_to(ROOM);
        self.sent = 0;
        Ok(true)
    }
}
