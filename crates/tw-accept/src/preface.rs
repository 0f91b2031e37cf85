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
        if let Some(preface) = compare(early, expected) {
            return Some(preface);
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

/// Compares the first bytes of a connection with a preface; `None` as long as they may be a part of it.
fn compare(early: &[u8], expected: &[u8]) -> Option<Preface> {
    let len = early.len().min(expected.len());
    if early.get(..len) != expected.get(..len) {
        return Some(Preface::Absent);
    }
    (len == expected.len()).then_some(Preface::Found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_decide_as_early_as_they_can() {
        let expected = b"PRI * HTTP/2.0";
        for (early, preface) in [
            (&b""[..], None),
            (b"PR", None),
            (b"PRI * HTTP/2.0", Some(Preface::Found)),
            (b"PRI * HTTP/2.0\r\n\r\nSM", Some(Preface::Found)),
            (b"G", Some(Preface::Absent)),
            (b"PRI * HTTP/1", Some(Preface::Absent)),
            (b"PROPFIND / HTTP/1.1", Some(Preface::Absent)),
        ] {
            assert_eq!(compare(early, expected), preface, "{}", early.escape_ascii());
        }
        assert_eq!(compare(b"", b""), Some(Preface::Found));
    }
}
