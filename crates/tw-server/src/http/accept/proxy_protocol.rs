//! The PROXY protocol header in front of everything else (`listen … proxy_protocol`).

use std::io;

use tw_base::Limit;
use tw_log::Level;
use tw_net::proxy_protocol::{MAX_HEADER, parse};
use tw_rt::Socket;

use super::PendingConnection;
use crate::http::client_wait::WaitError;

/// Bytes asked of the socket at once.
const READ_SIZE: usize = 512;

pub(super) const LIMITS: &[Limit] = &[Limit::bytes(
    "MAX_HEADER",
    MAX_HEADER as u64,
    "Bytes of a PROXY protocol header",
    "the connection is closed",
)];

/// Whether a connection may be served.
pub(super) enum Header {
    /// It began with a header; these bytes came behind it.
    Accepted(Vec<u8>),
    /// It did not, in time; it has been logged.
    Refused,
}

/// Reads the header.
pub(super) async fn read(pending: &PendingConnection<'_>, socket: &Socket) -> Header {
    let client = pending.client;
    let mut sent = Vec::new();
    loop {
        sent.reserve(READ_SIZE);
        match socket.try_read(&mut sent) {
            Ok(0) => return Header::Refused,
            Ok(_) => match parse(&sent) {
                Ok(Some((header, len))) => {
                    // Set once: a connection has one header.
                    let _ = client.proxy.set(Box::new(header));
                    return Header::Accepted(sent.split_off(len));
                }
                Ok(None) if sent.len() < MAX_HEADER => {}
                Ok(None) => {
                    client.log(Level::Error, format_args!("too long PROXY protocol header"));
                    return Header::Refused;
                }
                Err(error) => {
                    client.log(Level::Error, format_args!("{error} while reading PROXY protocol"));
                    return Header::Refused;
                }
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if sent.is_empty() {
                    // Who has said nothing holds no buffer.
                    sent = Vec::new();
                }
                match pending.wait(|cx| socket.poll_readable(cx)).await {
                    Ok(()) => {}
                    Err(WaitError::Timeout) => {
                        client.log(
                            Level::Info,
                            format_args!(
                                "client timed out (110: Connection timed out) while reading PROXY protocol"
                            ),
                        );
                        return Header::Refused;
                    }
                    Err(WaitError::Called | WaitError::Failed) => return Header::Refused,
                }
            }
            Err(_) => return Header::Refused,
        }
    }
}
