//! PROXY protocol header at the beginning of a connection (`listen … proxy_protocol`).

use std::io;

use tw_base::Limit;
use tw_log::Level;
use tw_net::proxy_protocol::{MAX_HEADER, parse};
use tw_rt::Socket;

use crate::connection::PendingConnection;
use crate::host::Host;
use crate::wait::WaitError;

/// Bytes requested of the socket at once.
const READ_SIZE: usize = 512;

pub(crate) const LIMITS: &[Limit] = &[Limit::bytes(
    "MAX_HEADER",
    MAX_HEADER as u64,
    "Bytes of a PROXY protocol header",
    "the connection is closed",
)];

/// Result of reading the header.
pub(crate) enum Header {
    /// A valid one; these bytes follow it.
    Accepted(Vec<u8>),
    /// None in time, or an invalid one; the reason is logged.
    Refused,
}

/// Reads the header.
pub(crate) async fn read<H: Host>(pending: &PendingConnection<'_, H>, socket: &Socket) -> Header {
    let host = pending.host;
    let mut sent = Vec::new();
    loop {
        sent.reserve(READ_SIZE);
        match socket.try_read(&mut sent) {
            Ok(0) => return Header::Refused,
            Ok(_) => match parse(&sent) {
                Ok(Some((header, len))) => {
                    host.set_proxy_header(header);
                    return Header::Accepted(sent.split_off(len));
                }
                Ok(None) if sent.len() < MAX_HEADER => {}
                Ok(None) => {
                    host.log(Level::Error, format_args!("too long PROXY protocol header"));
                    return Header::Refused;
                }
                Err(error) => {
                    host.log(Level::Error, format_args!("{error} while reading PROXY protocol"));
                    return Header::Refused;
                }
            },
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
                        return Header::Refused;
                    }
                    Err(WaitError::Evicted | WaitError::Failed) => return Header::Refused,
                }
            }
            Err(_) => return Header::Refused,
        }
    }
}
