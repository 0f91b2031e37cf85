//! Preface of a protocol that clients may choose on a plain connection by its first bytes (prior knowledge, RFC 9113 section 3.3).

use std::io;

use tw_rt::Socket;

use crate::host::Host;
use crate::pending_connection::PendingConnection;

/// Bytes requested of the socket at once: a request head, mostly.
const READ_SIZE: usize = 1024;

/// Result of the look for a preface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preface {
    /// The connection begins with it.
    Found,
    /// The connection begins otherwise, or none was expected.
    Absent,
}

/// Reads until the result is known, behind the bytes in `early`. `None` if the client closes or sends too little.
pub(crate) async fn read<H: Host>(
    pending: &PendingConnection<'_, H>,
    socket: &Socket,
    expected: &[u8],
    early: &mut Vec<u8>,
) -> Option<Preface> {
    loop {
        let len = early.len().min(expected.len());
        if early.get(..len) != expected.get(..len) {
            return Some(Preface::Absent);
        }
        if len == expected.len() {
            return Some(Preface::Found);
        }
        early.reserve(READ_SIZE);
        match socket.try_read(early) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if early.is_empty() {
                    // A client that has sent nothing holds no buffer.
                    *early = Vec::new();
                }
                pending.wait(|cx| socket.poll_readable(cx)).await.ok()?;
            }
            Err(_) => return None,
        }
    }
}
