//! Requests of the cases: always the same bytes, one after the other on one connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustls::ClientConfig;
use tw_testkit::http2::{END_HEADERS, END_STREAM, Frames, frame, kind};
use tw_testkit::{Client, wait};

use crate::Outcome;
use crate::http3::client::{Happened, Request};
use crate::http3::clients::Clients;
use crate::http3::frames;

/// Flag of SETTINGS that acknowledges them (RFC 9113, section 6.5).
const ACK: u8 = 1;
/// The largest window of flow control, less the initial one (RFC 9113, section 6.9): enough for two million responses
/// of 1 KiB.
const WINDOW_MORE: u32 = 0x7fff_ffff - 65_535;

/// Requests of one case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) protocol: Protocol,
    pub(super) path: &'static str,
    /// Size of each response body.
    pub(super) size: usize,
    /// True to append the number of the request to the path, so that no two requests are for the same resource.
    pub(super) is_numbered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    /// HTTP/2 without TLS, with prior knowledge.
    Http2,
    Http3,
}

/// Connection that a script runs on.
pub(super) struct Session {
    script: Script,
    connection: Connection,
    /// Number of requests so far.
    count: u32,
}

enum Connection {
    Http1(Client),
    Http2(Frames),
    Http3(Box<Clients>, usize),
}

impl Script {
    /// Connects; `tls` is for servers of HTTP/3.
    pub(super) fn start(self, addr: SocketAddr, tls: &Arc<ClientConfig>) -> Outcome<Session> {
        let connection = match self.protocol {
            Protocol::Http1 => Connection::Http1(Client::connect(addr)?),
            Protocol::Http2 => {
                let mut frames = Frames::connect(addr)?;
                frames.send(frame(kind::WINDOW_UPDATE, 0, 0, &WINDOW_MORE.to_be_bytes()))?;
                Connection::Http2(frames)
            }
            Protocol::Http3 => {
                let mut clients = Clients::new(addr, tls)?;
                let key = clients.connect_all(1)?.into_iter().next().ok_or("no connection")?;
                Connection::Http3(Box::new(clients), key)
            }
        };
        Ok(Session { script: self, connection, count: 0 })
    }

    fn path_of(self, number: u32) -> String {
        if self.is_numbered { format!("{}/{number:08}", self.path) } else { self.path.to_owned() }
    }
}

impl Session {
    /// Sends one request and reads its response.
    pub(super) fn request(&mut self) -> Outcome {
        let path = self.script.path_of(self.count);
        let (status, size) = match &mut self.connection {
            Connection::Http1(client) => {
                client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
                let response = client.read_response()?;
                (response.status, response.body.len())
            }
            Connection::Http2(frames) => request_http2(frames, self.count * 2 + 1, &path)?,
            Connection::Http3(clients, key) => request_http3(clients, *key, &path)?,
        };
        self.count += 1;
        if (status, size) != (200, self.script.size) {
            return Err(format!("{path}: status {status}, {size} bytes").into());
        }
        Ok(())
    }
}

/// Sends a request on this stream; returns status and size of the response.
fn request_http2(frames: &mut Frames, stream: u32, path: &str) -> Outcome<(u16, usize)> {
    /// `:status: 200` of the static table (RFC 7541, appendix A).
    const STATUS_200: u8 = 0x88;
    frames.send(frame(kind::HEADERS, END_STREAM | END_HEADERS, stream, &fields(path)?))?;
    let mut status = 0;
    let mut size = 0;
    loop {
        let next = frames.next_frame()?.ok_or("the server has closed the connection")?;
        match next.kind {
            kind::SETTINGS if next.flags & ACK == 0 => frames.send(frame(kind::SETTINGS, ACK, 0, b""))?,
            kind::HEADERS if next.payload.contains(&STATUS_200) => status = 200,
            kind::DATA => size += next.payload.len(),
            kind::RST_STREAM | kind::GOAWAY => return Err(format!("{next:?}").into()),
            _ => {}
        }
        if next.stream == stream
            && matches!(next.kind, kind::HEADERS | kind::DATA)
            && next.flags & END_STREAM != 0
        {
            return Ok((status, size));
        }
    }
}

/// Sends a request; returns status and size of the response.
fn request_http3(clients: &mut Clients, key: usize, path: &str) -> Outcome<(u16, usize)> {
    let before = clients.bytes;
    let deadline = Instant::now() + wait::TIMEOUT;
    clients.send(key, &Request { number: 0, bytes: frames::get(path) });
    while Instant::now() < deadline {
        for (_, event) in clients.turn(deadline)? {
            match event {
                Happened::Answered(answer) if answer.is_ok => {
                    return Ok((200, usize::try_from(clients.bytes - before)?));
                }
                Happened::Connected => {}
                Happened::Answered(_) | Happened::Failed => return Err("not a response".into()),
            }
        }
    }
    Err("no response".into())
}

/// Fields of a request (RFC 7541): static names, and values that are not added to the dynamic table.
fn fields(path: &str) -> Outcome<Vec<u8>> {
    const METHOD_GET: u8 = 0x82;
    const SCHEME_HTTP: u8 = 0x86;
    const AUTHORITY: u8 = 0x01;
    const PATH: u8 = 0x04;
    /// Longer values have a length of several bytes.
    const LEN_MAX: usize = 126;
    let mut fields = vec![METHOD_GET, SCHEME_HTTP];
    for (name, value) in [(AUTHORITY, "localhost"), (PATH, path)] {
        let len = u8::try_from(value.len())
            .ok()
            .filter(|_| value.len() <= LEN_MAX)
            .ok_or("the path is too long")?;
        fields.extend([name, len]);
        fields.extend(value.as_bytes());
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_paths_have_the_same_length() {
        let script = |is_numbered| Script { protocol: Protocol::Http1, path: "/1k", size: 1024, is_numbered };
        assert_eq!(script(true).path_of(7), "/1k/00000007");
        assert_eq!(script(true).path_of(1_234_567), "/1k/01234567");
        assert_eq!(script(false).path_of(7), "/1k");
    }

    #[test]
    fn fields_are_literals_with_static_names() {
        assert_eq!(fields("/1k").unwrap(), b"\x82\x86\x01\x09localhost\x04\x03/1k");
        assert!(fields(&"x".repeat(127)).is_err());
    }
}
