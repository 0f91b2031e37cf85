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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;
    use crate::test_host::{TestHost, block_on, socket_pair};

    const HEADER: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.8 1000 80\r\n";

    /// Result for a client of which `early` was read before, and which sends `pieces`, one after the other. Without `ends`, the client
    /// keeps its connection open.
    fn result_of(early: &[u8], pieces: &[&[u8]], ends: bool, timeout: Duration) -> (TestHost, ProxyHeader) {
        let host = TestHost::new();
        let result = block_on(async {
            let (mut client, socket) = socket_pair();
            let pending = PendingConnection::new(&host, tw_rt::clock::now(), timeout);
            let mut reading = Box::pin(read(&pending, &socket, early.to_vec()));
            for piece in pieces {
                // The server has read everything before the next piece comes.
                let state =
                    std::future::poll_fn(|cx| std::task::Poll::Ready(reading.as_mut().poll(cx))).await;
                assert!(state.is_pending(), "the result comes before {}", piece.escape_ascii());
                client.write_all(piece).unwrap();
            }
            let client = (!ends).then_some(client);
            let result = reading.await;
            drop(client);
            result
        });
        (host, result)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn header_may_arrive_in_pieces_and_with_bytes_behind_it() {
        let (begin, end) = HEADER.split_at(20);
        let request = b"GET / HTTP/1.1\r\n";
        for (early, pieces, rest) in [
            (&b""[..], &[HEADER][..], &b""[..]),
            (HEADER, &[], b""),
            (begin, &[end], b""),
            (b"", &[begin, end], b""),
            (&[HEADER, request].concat(), &[], request),
            (b"", &[begin, &[end, request].concat()], request),
        ] {
            let (host, result) = result_of(early, pieces, false, LONG);
            let ProxyHeader::Accepted(bytes) = result else { panic!("{early:?} {pieces:?} is not accepted") };
            assert_eq!(bytes, rest);
            let addresses = host.header.take().and_then(|header| header.addrs).unwrap();
            assert_eq!(addresses.src, "192.0.2.7:1000".parse().unwrap());
            assert!(host.lines.take().is_empty());
        }
    }

    #[test]
    fn malformed_header_is_invalid_and_logged() {
        let version3 = b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c123456789012";
        for (bytes, line) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "error: broken header: "),
            (version3, "error: unknown PROXY protocol version: 3 "),
        ] {
            let (host, result) = result_of(b"", &[bytes], false, LONG);
            assert!(matches!(result, ProxyHeader::Invalid), "{}", bytes.escape_ascii());
            assert!(host.header.take().is_none());
            let lines = host.lines.take();
            assert!(lines.len() == 1 && lines[0].starts_with(line), "{lines:?}");
            assert!(lines[0].ends_with("while reading PROXY protocol"), "{lines:?}");
        }
    }

    #[test]
    fn end_of_the_connection_before_the_header_is_invalid() {
        for pieces in [&[][..], &[&HEADER[..20]]] {
            let (host, result) = result_of(b"", pieces, true, LONG);
            assert!(matches!(result, ProxyHeader::Invalid), "{pieces:?}");
            assert!(host.header.take().is_none() && host.lines.take().is_empty());
        }
    }

    #[test]
    fn silent_client_is_absent_and_a_slow_one_invalid() {
        for (early, is_absent) in [(&b""[..], true), (&HEADER[..20], false)] {
            let (host, result) = result_of(early, &[], false, Duration::ZERO);
            assert_eq!(matches!(result, ProxyHeader::Absent), is_absent);
            assert_eq!(matches!(result, ProxyHeader::Invalid), !is_absent);
            let line = "info: client timed out (110: Connection timed out) while reading PROXY protocol";
            assert_eq!(host.lines.take(), [line]);
        }
    }
}
