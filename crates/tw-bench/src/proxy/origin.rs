//! `xtask bench origin --port N [--large SIZE]`: upstream server of all proxies, as fast as a bare loop.
//!
//! It responds from memory, keeps every connection, counts requests, reads request bodies with a length, and turns a
//! connection into an echo after an upgrade. Any input that it does not understand ends the connection: the proxy's
//! error status is then not counted as a response. It ends with its parent.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::Outcome;
use crate::data::noise;
use crate::options::Options;
use crate::turns::{Turns, number_of, put};

/// A response of the origin: all paths below `path` have it, and its body has `size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OriginFile {
    pub(crate) path: &'static str,
    pub(crate) size: usize,
}

/// Responses of several sizes.
pub(crate) const FILES: [OriginFile; 3] = [
    OriginFile { path: "/1k", size: 1 << 10 },
    OriginFile { path: "/32k", size: 32 << 10 },
    OriginFile { path: "/1m", size: 1 << 20 },
];
/// One more of the kind.
pub(crate) const FILE_128K: OriginFile = OriginFile { path: "/128k", size: 128 << 10 };
/// Path that takes a body and answers with a short one.
pub(super) const UPLOAD: &str = "/upload";
/// Path that upgrades.
pub(super) const TUNNEL: &str = "/tunnel";
/// Path of the response with the size of `--large`.
pub(crate) const LARGE: &str = "/large";
/// Path whose response is the number of requests for other paths.
pub(crate) const REQUEST_COUNT: &str = "/asked";

/// To the key of the example in RFC 6455, section 1.3.
const SWITCHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// Bytes taken at once.
const RECV_SIZE: usize = 256 * 1024;
/// Size limit of a head that arrives in pieces. Proxies write less than one kilobyte.
const HEAD_SIZE_MAX: usize = 16 * 1024;

struct Connection {
    socket: OwnedFd,
    /// The beginning of a head.
    head: Vec<u8>,
    /// Remaining bytes of the request body.
    body_left: u64,
    /// Number of the response, and how much of it is still to be sent.
    response: usize,
    rest: usize,
    echoes: bool,
}

/// Complete head.
#[derive(Debug, PartialEq, Eq)]
struct Request<'a> {
    /// Size of the head.
    size: usize,
    path: &'a str,
    content_length: u64,
    upgrades: bool,
}

/// Serves until the starter ends.
pub(crate) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["port", "large"], &[])?;
    let turns = Turns::listen(options.number("port", 0)?)?;
    let large = usize::try_from(options.size("large", 0)?)?;
    let upload = OriginFile { path: UPLOAD, size: 2 };
    let large = OriginFile { path: LARGE, size: large };
    let files = FILES.into_iter().chain([FILE_128K, upload, large]);
    let responses: Vec<(&str, Vec<u8>)> = files.map(|file| (file.path, response(file.size))).collect();
    Ok(serve(&turns, &responses)?)
}

/// A response as an application server would send it.
fn response(size: usize) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nServer: origin\r\nDate: Sun, 22 Nov 2026 12:00:00 GMT\r\n\
        Content-Type: application/octet-stream\r\nContent-Length: {size}\r\nConnection: keep-alive\r\n\r\n"
    );
    [head.into_bytes(), noise(1, size)].concat()
}

fn serve(turns: &Turns, responses: &[(&str, Vec<u8>)]) -> Result<(), Errno> {
    let mut request_count = 0;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Turns::events();
    let mut scratch = vec![0; RECV_SIZE];
    while turns.wait(&mut events)? {
        for event in &events {
            let number = event.data.u64() as usize;
            if turns.is_listener(number) {
                while let Some(socket) = turns.accept()? {
                    turns.add(&socket)?;
                    put(&mut connections, number_of(&socket), Connection::new(socket));
                }
            } else if let Some(slot) = connections.get_mut(number)
                && let Some(connection) = slot
                && connection.turn(turns, responses, &mut request_count, &mut scratch).is_err()
            {
                *slot = None;
            }
        }
    }
    Ok(())
}

impl Connection {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, head: Vec::new(), body_left: 0, response: 0, rest: 0, echoes: false }
    }

    /// Continues the connection; an error ends it.
    fn turn(
        &mut self,
        turns: &Turns,
        responses: &[(&str, Vec<u8>)],
        request_count: &mut u64,
        scratch: &mut [u8],
    ) -> Result<(), Errno> {
        let waited = self.rest > 0;
        if !waited {
            let count = match recv(&self.socket, &mut *scratch, RecvFlags::empty()) {
                Ok((0, _)) => return Err(Errno::PIPE),
                Ok((count, _)) => count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(e) => return Err(e),
            };
            self.take(scratch.get(..count).unwrap_or_default(), responses, request_count)?;
        }
        while self.rest > 0 {
            let (_, bytes) = responses.get(self.response).ok_or(Errno::INVAL)?;
            match send(&self.socket, &bytes[bytes.len() - self.rest..], SendFlags::NOSIGNAL) {
                Ok(count) => self.rest -= count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        let waits = self.rest > 0;
        if waits != waited {
            turns.change(&self.socket, if waits { EventFlags::OUT } else { EventFlags::IN })?;
        }
        Ok(())
    }

    /// Takes bytes of a request, or of a tunnel.
    fn take(
        &mut self,
        bytes: &[u8],
        responses: &[(&str, Vec<u8>)],
        request_count: &mut u64,
    ) -> Result<(), Errno> {
        if self.echoes {
            return self.send_all(bytes);
        }
        let mut body_count = bytes.len() as u64;
        if self.body_left == 0 {
            let began = !self.head.is_empty();
            if began {
                self.head.extend_from_slice(bytes);
            }
            let head = if began { &self.head[..] } else { bytes };
            let Some(request) = parse(head)? else {
                if !began {
                    self.head.extend_from_slice(bytes);
                }
                return if self.head.len() > HEAD_SIZE_MAX { Err(Errno::MSGSIZE) } else { Ok(()) };
            };
            body_count = (head.len() - request.size) as u64;
            self.body_left = request.content_length;
            let upgrades = request.upgrades && request.path == TUNNEL;
            let is_count = request.path == REQUEST_COUNT;
            let response = responses.iter().position(|(path, _)| is_below(request.path, path));
            self.head.clear();
            if is_count {
                let count = request_count.to_string();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", count.len());
                return self.send_all((head + &count).as_bytes());
            }
            *request_count += 1;
            if upgrades {
                self.echoes = true;
                return self.send_all(SWITCHING);
            }
            self.response = response.ok_or(Errno::NOENT)?;
        }
        self.body_left = self.body_left.checked_sub(body_count).ok_or(Errno::MSGSIZE)?;
        if self.body_left == 0 {
            self.rest = responses.get(self.response).map_or(0, |(_, bytes)| bytes.len());
        }
        Ok(())
    }

    /// Sends a few bytes, which the socket has room for.
    fn send_all(&self, bytes: &[u8]) -> Result<(), Errno> {
        let count = send(&self.socket, bytes, SendFlags::NOSIGNAL)?;
        if count == bytes.len() { Ok(()) } else { Err(Errno::NOBUFS) }
    }
}

/// Returns `true` if a path is this one or below it.
fn is_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Parses a head; `None` if it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<Request<'_>>, Errno> {
    const END: &[u8] = b"\r\n\r\n";
    let Some(end) = bytes.windows(END.len()).position(|window| window == END) else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| Errno::ILSEQ)?;
    let mut lines = head.split("\r\n");
    let path = lines.next().and_then(|line| line.split(' ').nth(1)).ok_or(Errno::INVAL)?;
    let mut request = Request { size: end + END.len(), path, content_length: 0, upgrades: false };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            request.content_length = value.trim().parse().map_err(|_| Errno::INVAL)?;
        } else if name.eq_ignore_ascii_case("upgrade") {
            request.upgrades = true;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            // All bodies here have a known size, and every proxy may hand that on.
            return Err(Errno::NOTSUP);
        }
    }
    Ok(Some(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_parses_only_the_needed_head_fields() {
        let bytes = b"POST /upload HTTP/1.1\r\nHost: o\r\ncontent-length: 12\r\n\r\nbody";
        let expected =
            Request { size: bytes.len() - 4, path: "/upload", content_length: 12, upgrades: false };
        assert_eq!(parse(bytes), Ok(Some(expected)));
        assert_eq!(parse(&bytes[..40]), Ok(None));

        let upgrade = b"GET /tunnel HTTP/1.1\r\nUpgrade: websocket\r\n\r\n";
        assert!(parse(upgrade).unwrap().unwrap().upgrades);
        for bad in [
            &b"\r\n\r\n"[..],
            b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
            b"G / H\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(parse(bad).is_err());
        }
    }

    #[test]
    fn paths_below_one_have_its_response() {
        for (path, expected) in
            [("/1k", true), ("/1k/7", true), ("/1kb", false), ("/1", false), ("/a/1k", false)]
        {
            assert_eq!(is_below(path, "/1k"), expected, "{path}");
        }
    }

    #[test]
    fn response_size_is_in_its_path() {
        let bytes = response(100);
        assert!(bytes.starts_with(b"HTTP/1.1 200 OK\r\n"));
        assert!(bytes.windows(19).any(|window| window == b"Content-Length: 100"));
        assert_eq!(bytes.len() - parse(&bytes).unwrap().unwrap().size, 100);
    }
}
