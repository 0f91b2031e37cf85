//! PROXY protocol header at the beginning of a connection (`listen … proxy_protocol`).

use std::io;

use tw_log::Level;
use tw_net::proxy_protocol::{MAX_HEADER, parse};
use tw_rt::Socket;

use crate::host::Host;
use crate::pending_connection::PendingConnection;
use crate::wait::WaitError;

/// Bytes requested of the socket at once.
const READ_SIZE: usize = 512;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a PROXY protocol header.
    constant bytes MAX_HEADER, "the connection is closed";
}

/// Result of reading the header. The reason of a refusal is logged.
pub enum ProxyHeader {
    /// A valid one; these bytes follow it.
    Accepted(Vec<u8>),
    /// An invalid one, or a part of one.
    Invalid,
    /// None in time, or the connection failed.
    Absent,
}

/// Reads the header. It begins with `sent`, which was read before.
pub(crate) async fn read<H: Host>(
    pending: &PendingConnection<'_, H>,
    socket: &Socket,
    mut sent: Vec<u8>,
) -> ProxyHeader {
    let host = pending.host;
    let mut is_new = !sent.is_empty();
    loop {
        if is_new {
            match parse(&sent) {
                Ok(Some((header, len))) => {
                    host.set_proxy_header(header);
                    return ProxyHeader::Accepted(sent.split_off(len));
                }
                Ok(None) if sent.len() < MAX_HEADER => {}
                Ok(None) => {
                    host.log(Level::Error, format_args!("too long PROXY protocol header"));
                    return ProxyHeader::Invalid;
                }
                Err(error) => {
                    host.log(Level::Error, format_args!("{error} while reading PROXY protocol"));
                    return ProxyHeader::Invalid;
                }
            }
        }
        is_new = false;
        sent.reserve(READ_SIZE);
        match socket.try_read(&mut sent) {
            Ok(0) => return ProxyHeader::Invalid,
            Ok(_) => is_new = true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if sent.is_empty() {
                    // A client that has sent nothing holds no buffer.
                    sent = Vec::new();
                }
                match pending.wait(|cx| socket.poll_readable(cx)).await {
                    Ok(()) => {}
                    Err(WaitError::Timeout) => {
                        host.log(
                            Level::Info,
                            format_args!(
                                "client timed out (110: Connection timed out) while reading PROXY protocol"
                            ),
                        );
                        return unfinished(&sent);
                    }
                    Err(WaitError::Evicted | WaitError::Failed) => return unfinished(&sent),
                }
            }
            Err(_) => return unfinished(&sent),
        }
    }
}

/// Result if no more bytes come behind these.
fn unfinished(sent: &[u8]) -> ProxyHeader {
    if sent.is_empty() { ProxyHeader::Absent } else { ProxyHeader::Invalid }
}
