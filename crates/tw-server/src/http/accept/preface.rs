//! Which protocol a plain connection speaks whose servers speak HTTP/2, too: its first bytes tell (prior knowledge, RFC 9113
//! section 3.3).

use std::io;

use tw_rt::Socket;

use super::{PendingConnection, Protocol};
use crate::http::h2::PREFACE;

/// Bytes asked of the socket at once: a head, mostly.
const READ_SIZE: usize = 1024;

/// Reads until it is known, behind what `early` has. `None` if the client says nothing, or not enough.
pub(super) async fn read(
    pending: &PendingConnection<'_>,
    socket: &Socket,
    early: &mut Vec<u8>,
) -> Option<Protocol> {
    loop {
        let len = early.len().min(PREFACE.len());
        if early.get(..len) != PREFACE.get(..len) {
            return Some(Protocol::Http1);
        }
        if len == PREFACE.len() {
            return Some(Protocol::Http2);
        }
        early.reserve(READ_SIZE);
        match socket.try_read(early) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if early.is_empty() {
                    // Who has said nothing holds no buffer.
                    *early = Vec::new();
                }
                pending.wait(|cx| socket.poll_readable(cx)).await.ok()?;
            }
            Err(_) => return None,
        }
    }
}
