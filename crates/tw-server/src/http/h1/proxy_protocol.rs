//! The PROXY protocol header in front of the first request (`listen … proxy_protocol`).

use std::io;
use std::time::Duration;

use tw_base::Limit;
use tw_log::Level;
use tw_net::proxy_protocol::{MAX_HEADER, parse};

use super::{Conn, Unready};

/// Bytes asked of the socket at once.
const READ_SIZE: usize = 512;

pub(crate) const LIMITS: &[Limit] = &[Limit::bytes(
    "MAX_HEADER",
    MAX_HEADER as u64,
    "Bytes of a PROXY protocol header",
    "the connection is closed",
)];

/// Whether a connection may be served.
pub(crate) enum Greeting {
    /// It began with a header; these bytes of the first request came with it.
    Accepted(Vec<u8>),
    /// It did not, in time; it has been logged.
    Refused,
}

/// Reads the header, which must arrive within `timeout`.
pub(crate) async fn read(conn: &Conn, timeout: Duration) -> Greeting {
    let until = tw_rt::clock::now() + timeout;
    let mut sent = Vec::new();
    loop {
        sent.reserve(READ_SIZE);
        match conn.transport.try_read(&mut sent) {
            Ok(0) => return Greeting::Refused,
            Ok(_) => match parse(&sent) {
                Ok(Some((header, len))) => {
                    // Set once: a connection has one header.
                    let _ = conn.client.proxy.set(Box::new(header));
                    return Greeting::Accepted(sent.split_off(len));
                }
                Ok(None) if sent.len() < MAX_HEADER => {}
                Ok(None) => {
                    conn.client.log(Level::Error, format_args!("too long PROXY protocol header"));
                    return Greeting::Refused;
                }
                Err(error) => {
                    conn.client.log(Level::Error, format_args!("{error} while reading PROXY protocol"));
                    return Greeting::Refused;
                }
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(tw_rt::clock::now());
                if sent.is_empty() {
                    // Who has said nothing holds no buffer.
                    sent = Vec::new();
                }
                match conn.readable_or_called(left).await {
                    Ok(()) => {}
                    Err(Unready::Timeout) => {
                        conn.client.log(
                            Level::Info,
                            format_args!(
                                "client timed out (110: Connection timed out) while reading PROXY protocol"
                            ),
                        );
                        return Greeting::Refused;
                    }
                    Err(Unready::Called | Unready::Failed) => return Greeting::Refused,
                }
            }
            Err(_) => return Greeting::Refused,
        }
    }
}
