//! Scripted HTTP/1 client: sends exactly the given bytes and reads the response, with deadlines.
//!
//! It is deliberately simple: it never retries, follows no redirect, adds no field, and reports a response that does
//! not follow RFC 9112 as an error instead of interpreting it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use rustls::{ClientConfig, ClientConnection};

use crate::tls::Stream;
use crate::wait::{self, RemainingTime};

/// No response head of a test is longer; a server that never ends its head fails the test instead of memory.
const HEAD_SIZE_MAX: usize = 1024 * 1024;

/// One connection to a server.
///
/// Each call has [`wait::TIMEOUT`], or what [`Client::timeout`] set, from its beginning to its end.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    unread: Vec<u8>,
    timeout: Duration,
}

/// Response as received: head in the order and case of the wire, body without its framing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The head as received, from the status line to the empty line, bytes outside UTF-8 replaced.
    pub head: String,
    /// Status code.
    pub status: u16,
    /// Fields in their order, names in their case.
    pub fields: Vec<(String, String)>,
    /// Content without chunk framing.
    pub body: Vec<u8>,
    /// Fields after the last chunk.
    pub trailers: Vec<(String, String)>,
}

/// Framing of a response body (RFC 9112, section 6.3).
enum Framing {
    None,
    Length(usize),
    Chunked,
    Close,
}

impl Client {
    /// Connects, with `TCP_NODELAY`: each send is a segment of its own.
    ///
    /// # Errors
    /// The error of `connect`, including `TimedOut`.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, wait::TIMEOUT)?;
        stream.set_nodelay(true)?;
        Ok(Self::over(Stream::Plain(stream)))
    }

    /// Connects by TLS to the server of this name.
    ///
    /// # Errors
    /// The error of `connect`, or of the handshake.
    pub fn connect_tls(addr: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> io::Result<Self> {
        Self::connect_tls_behind(addr, b"", config, name)
    }

    /// Connects with TLS after plain bytes, such as the header of the PROXY protocol.
    ///
    /// # Errors
    /// As [`connect_tls`](Self::connect_tls).
    pub fn connect_tls_behind(
        addr: SocketAddr,
        plain: &[u8],
        config: &Arc<ClientConfig>,
        name: &str,
    ) -> io::Result<Self> {
        let mut socket = TcpStream::connect_timeout(&addr, wait::TIMEOUT)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(wait::TIMEOUT))?;
        socket.write_all(plain)?;
        Ok(Self::over(Stream::secure(socket, Arc::clone(config), name)?))
    }

    fn over(stream: Stream) -> Self {
        Self { stream, unread: Vec::new(), timeout: wait::TIMEOUT }
    }

    /// TLS session; `None` on a plain connection.
    #[must_use]
    pub fn session(&self) -> Option<&ClientConnection> {
        self.stream.session()
    }

    /// One `GET` on a connection of its own, closed after the answer.
    ///
    /// # Errors
    /// As [`Client::connect`] and [`Client::read_response`].
    pub fn get(addr: SocketAddr, target: &str) -> io::Result<Response> {
        let mut client = Self::connect(addr)?;
        client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))?;
        client.read_response()
    }

    /// Sets the deadline of each later call.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The address this end is bound to; the server logs it as the client's.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.socket().local_addr()
    }

    /// Sends all the bytes.
    ///
    /// # Errors
    /// `TimedOut` if the server does not accept them; the error of `write`.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let mut time = RemainingTime::of(self.timeout);
        let mut rest = bytes.as_ref();
        while !rest.is_empty() {
            self.stream.socket().set_write_timeout(Some(time.round()))?;
            match self.stream.write(rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(e) if would_wait(&e) => {}
                Err(e) => return Err(e),
            }
            time.passes();
            if time.is_over() && !rest.is_empty() {
                return Err(timed_out("the server takes no more bytes"));
            }
        }
        Ok(())
    }

    /// Sends the parts one after the other with a gap, so that the server most likely reads them one by one.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn send_split<P: AsRef<[u8]>>(&mut self, parts: impl IntoIterator<Item = P>) -> io::Result<()> {
        /// Loopback delivers in microseconds and an idle loop wakes at once.
        const GAP: Duration = Duration::from_millis(2);
        for part in parts {
            self.send(part)?;
            wait::pause(GAP);
        }
        Ok(())
    }

    /// Closes the connection with a reset, whatever it has read.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn reset(self) -> io::Result<()> {
        sockopt::set_socket_linger(self.stream.socket(), Some(Duration::ZERO))?;
        Ok(())
    }

    /// Closes the sending side; reading continues.
    ///
    /// # Errors
    /// The error of `shutdown`.
    pub fn finish_sending(&self) -> io::Result<()> {
        self.stream.socket().shutdown(Shutdown::Write)
    }

    /// Reads the next response, interim ones (1xx) included.
    ///
    /// # Errors
    /// `InvalidData` if it is malformed, `UnexpectedEof` if it ends early, `TimedOut`.
    pub fn read_response(&mut self) -> io::Result<Response> {
        let time = &mut RemainingTime::of(self.timeout);
        let mut response = self.head(time)?;
        match framing(&response)? {
            Framing::None => {}
            Framing::Length(size) => response.body = self.take(size, time)?,
            Framing::Chunked => self.chunks(&mut response, time)?,
            Framing::Close => response.body = self.rest(time)?,
        }
        Ok(response)
    }

    /// Reads only the next head: the response to a `HEAD`, or the start of a response before its body ends.
    ///
    /// # Errors
    /// As [`Client::read_response`].
    pub fn read_head(&mut self) -> io::Result<Response> {
        self.head(&mut RemainingTime::of(self.timeout))
    }

    /// Reads exactly `count` bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` if the server closes before, `TimedOut`.
    pub fn read_bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        self.take(count, &mut RemainingTime::of(self.timeout))
    }

    /// Reads all there is until the server closes.
    ///
    /// # Errors
    /// `TimedOut` if it does not close; `ConnectionReset` if it resets.
    pub fn read_until_close(&mut self) -> io::Result<Vec<u8>> {
        self.rest(&mut RemainingTime::of(self.timeout))
    }

    /// Returns `true` if the server has sent nothing and closed nothing for all of `span`.
    ///
    /// # Errors
    /// The error of a read, unless it would block.
    pub fn silent_for(&mut self, span: Duration) -> io::Result<bool> {
        if !self.unread.is_empty() {
            return Ok(false);
        }
        match self.fill(&mut RemainingTime::of(span)) {
            Ok(_) => Ok(false),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => Ok(true),
            Err(e) => Err(e),
        }
    }

    fn head(&mut self, time: &mut RemainingTime) -> io::Result<Response> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let head: Vec<u8> = self.unread.drain(..end + 4).collect();
                return parse_head(&head);
            }
            if self.unread.len() > HEAD_SIZE_MAX {
                return Err(malformed("the head does not end", &self.unread));
            }
            self.more(time, "in the head")?;
        }
    }

    fn take(&mut self, count: usize, time: &mut RemainingTime) -> io::Result<Vec<u8>> {
        while self.unread.len() < count {
            self.more(time, "in the body")?;
        }
        Ok(self.unread.drain(..count).collect())
    }

    fn rest(&mut self, time: &mut RemainingTime) -> io::Result<Vec<u8>> {
        while self.fill(time)? > 0 {}
        Ok(std::mem::take(&mut self.unread))
    }

    fn line(&mut self, time: &mut RemainingTime) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Ok(text(line.get(..end).unwrap_or_default()));
            }
            self.more(time, "in the chunks")?;
        }
    }

    fn chunks(&mut self, response: &mut Response, time: &mut RemainingTime) -> io::Result<()> {
        loop {
            let line = self.line(time)?;
            let hex = line.split(';').next().unwrap_or_default().trim();
            let size =
                usize::from_str_radix(hex, 16).map_err(|_| malformed("bad chunk size", line.as_bytes()))?;
            if size == 0 {
                break;
            }
            response.body.extend(self.take(size, time)?);
            let end = self.take(2, time)?;
            if end != b"\r\n" {
                return Err(malformed("a chunk is longer than its size", &end));
            }
        }
        loop {
            let line = self.line(time)?;
            if line.is_empty() {
                return Ok(());
            }
            response.trailers.push(parse_field(&line)?);
        }
    }

    fn more(&mut self, time: &mut RemainingTime, at: &str) -> io::Result<()> {
        match self.fill(time)? {
            0 => {
                let got = text(&self.unread);
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("closed {at}, after {got:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Reads once into `unread`; 0 when the server has closed.
    fn fill(&mut self, time: &mut RemainingTime) -> io::Result<usize> {
        let mut chunk = [0; 16 * 1024];
        while !time.is_over() {
            self.stream.socket().set_read_timeout(Some(time.round()))?;
            let read = self.stream.read(&mut chunk);
            time.passes();
            match read {
                Ok(count) => {
                    self.unread.extend_from_slice(chunk.get(..count).unwrap_or_default());
                    return Ok(count);
                }
                Err(e) if would_wait(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Err(timed_out(&format!("no more bytes from the server, after {:?}", text(&self.unread))))
    }
}

impl Response {
    /// The value of the first field of this name, in any case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// The values of all fields of this name, in any case, in their order.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// The body as text, bytes outside UTF-8 replaced.
    #[must_use]
    pub fn text(&self) -> String {
        text(&self.body)
    }
}

fn framing(response: &Response) -> io::Result<Framing> {
    if matches!(response.status, 100..=199 | 204 | 304) {
        return Ok(Framing::None);
    }
    if let Some(coding) = response.field("Transfer-Encoding") {
        return Ok(if coding.trim_end().ends_with("chunked") { Framing::Chunked } else { Framing::Close });
    }
    match response.field("Content-Length") {
        Some(size) => match size.parse() {
            Ok(size) => Ok(Framing::Length(size)),
            Err(_) => Err(malformed("bad Content-Length", size.as_bytes())),
        },
        None => Ok(Framing::Close),
    }
}

fn parse_head(bytes: &[u8]) -> io::Result<Response> {
    let head = text(bytes);
    let mut lines = head.trim_end_matches("\r\n").split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line
        .strip_prefix("HTTP/1.1 ")
        .or_else(|| status_line.strip_prefix("HTTP/1.0 "))
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .ok_or_else(|| malformed("bad status line", bytes))?;
    let fields = lines.map(parse_field).collect::<io::Result<_>>()?;
    Ok(Response { head, status, fields, body: Vec::new(), trailers: Vec::new() })
}

fn parse_field(line: &str) -> io::Result<(String, String)> {
    match line.split_once(':') {
        Some((name, value)) if !name.is_empty() && !name.contains([' ', '\t']) => {
            Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
        }
        _ => Err(malformed("bad field line", line.as_bytes())),
    }
}

/// Returns `true` if a read or write only has to be repeated; a socket timeout arrives as `WouldBlock`.
fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

fn malformed(what: &str, bytes: &[u8]) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {:?}", text(bytes)))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server that reads one request head, sends `answer` and closes.
    fn serve(answer: &'static [u8]) -> (SocketAddr, thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                request.push(byte[0]);
            }
            stream.write_all(answer).unwrap();
            request
        });
        (addr, server)
    }

    #[test]
    fn bodies_end_where_rfc_9112_section_6_3_says() {
        let table: [(&[u8], u16, &[u8]); 6] = [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
            (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b""),
            (b"HTTP/1.0 200 OK\r\n\r\nuntil close", 200, b"until close"),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", 100, b""),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nA: b\r\n\r\n",
                200,
                b"hello",
            ),
        ];
        for (answer, status, body) in table {
            let (addr, server) = serve(answer);
            let response = Client::get(addr, "/").unwrap();
            assert_eq!((response.status, response.body.as_slice()), (status, body), "{}", text(answer));
            server.join().unwrap();
        }
    }

    #[test]
    fn malformed_responses_are_errors_that_say_why() {
        let table: [(&[u8], io::ErrorKind, &str); 5] = [
            (b"HTP/1.1 200 OK\r\n\r\n", io::ErrorKind::InvalidData, "status line"),
            (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", io::ErrorKind::InvalidData, "field line"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", io::ErrorKind::InvalidData, "Content-Length"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", io::ErrorKind::UnexpectedEof, "short"),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
                io::ErrorKind::InvalidData,
                "longer",
            ),
        ];
        for (answer, kind, why) in table {
            let (addr, server) = serve(answer);
            let error = Client::get(addr, "/").unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(why), "{error}");
            server.join().unwrap();
        }
    }

    #[test]
    fn split_sends_arrive_whole_and_fields_keep_order_and_case() {
        let (addr, server) = serve(
            b"HTTP/1.1 200 OK\r\nset-COOKIE: a\r\nX: y\r\nSet-Cookie:  b \r\nContent-Length: 0\r\n\r\n",
        );
        let mut client = Client::connect(addr).unwrap();
        client.send_split(["GET / HT", "TP/1.1\r", "\n\r\n"]).unwrap();
        let response = client.read_response().unwrap();

        assert_eq!(response.fields[0], ("set-COOKIE".to_owned(), "a".to_owned()));
        assert_eq!(response.values("Set-Cookie").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(response.field("x"), Some("y"));
        assert_eq!(server.join().unwrap(), b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(client.read_until_close().unwrap(), b"");
    }

    #[test]
    fn every_read_has_a_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client =
            Client::connect(listener.local_addr().unwrap()).unwrap().timeout(Duration::from_millis(20));
        assert_eq!(client.read_response().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(client.silent_for(Duration::from_millis(5)).unwrap());
    }
}
