//! One HTTP/1.1 request over TCP, TLS or a Unix socket, and its response, which may go on for minutes (RFC 9112). The calling thread
//! waits; event loops have their own client. Used by the programs beside the server.

use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_tls::rustls::pki_types::ServerName;
use tw_tls::rustls::{ClientConfig, ClientConnection, StreamOwned};

/// Most bytes of a response head.
const HEAD_MAX: u64 = 64 << 10;
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Server of requests.
#[derive(Clone)]
pub enum ServerAddress {
    /// Host and port, without encryption.
    Tcp(String, u16),
    /// Host and port over TLS.
    Tls(String, u16, ServerName<'static>, Arc<ClientConfig>),
    /// Unix socket.
    Unix(PathBuf),
}

/// Request.
#[derive(Debug, Default)]
pub struct Request<'a> {
    /// Method.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// Value of `Host`, if it is not the address of the server.
    pub host: Option<&'a str>,
    /// Lines of the head beside `Host`, `Connection` and those of the content, without their ends.
    pub fields: Vec<String>,
    /// Type and bytes of the content.
    pub content: Option<(&'a str, Vec<u8>)>,
}

/// Response whose content has not been read yet.
#[derive(Debug)]
pub struct Response {
    /// Status.
    pub status: u16,
    /// Content.
    pub body: Body,
}

/// Content of a response.
pub struct Body {
    stream: BufReader<Box<dyn Read + Send>>,
    framing: Framing,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("framing", &self.framing).finish_non_exhaustive()
    }
}

/// End of a content.
#[derive(Debug, PartialEq)]
enum Framing {
    /// Bytes that are left.
    Length(u64),
    /// Bytes that are left of a chunk; 0 before the next one.
    Chunks(u64),
    /// The end of the connection.
    Close,
    /// Nothing is left.
    Over,
}

/// Sends a request. All of the exchange has to be over within `within`.
///
/// # Errors
/// The server cannot be reached, or its response head is no HTTP.
pub fn send(endpoint: &ServerAddress, request: &Request<'_>, within: Duration) -> io::Result<Response> {
    let deadline = Instant::now() + within;
    let host = match endpoint {
        ServerAddress::Tcp(host, port) | ServerAddress::Tls(host, port, ..) if host.contains(':') => {
            format!("[{host}]:{port}")
        }
        ServerAddress::Tcp(host, port) | ServerAddress::Tls(host, port, ..) => format!("{host}:{port}"),
        ServerAddress::Unix(_) => "localhost".to_owned(),
    };
    let head = head(request, request.host.unwrap_or(&host));
    let stream: Box<dyn Read + Send> = match endpoint {
        ServerAddress::Tcp(host, port) => {
            Box::new(ask(Timed { socket: connect(host, *port, deadline)?, deadline }, &head)?)
        }
        ServerAddress::Tls(host, port, name, settings) => {
            let session = ClientConnection::new(settings.clone(), name.clone()).map_err(io::Error::other)?;
            let socket = Timed { socket: connect(host, *port, deadline)?, deadline };
            Box::new(ask(StreamOwned::new(session, socket), &head)?)
        }
        ServerAddress::Unix(path) => {
            Box::new(ask(Timed { socket: UnixStream::connect(path)?, deadline }, &head)?)
        }
    };
    read_head(BufReader::with_capacity(32 << 10, stream))
}

/// Reads a response from a stream.
///
/// # Errors
/// The response head is no HTTP.
pub fn read_response(stream: impl Read + Send + 'static) -> io::Result<Response> {
    read_head(BufReader::new(Box::new(stream)))
}

fn ask<S: Read + Write>(mut stream: S, request: &[u8]) -> io::Result<S> {
    stream.write_all(request)?;
    stream.flush()?;
    Ok(stream)
}

fn head(request: &Request<'_>, host: &str) -> Vec<u8> {
    let mut head =
        format!("{} {} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n", request.method, request.target);
    for field in &request.fields {
        head += field;
        head += "\r\n";
    }
    let mut bytes = head.into_bytes();
    match &request.content {
        Some((kind, content)) => {
            bytes
                .extend(format!("Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n", content.len()).bytes());
            bytes.extend(content);
        }
        None => bytes.extend(b"\r\n"),
    }
    bytes
}

fn read_head(mut stream: BufReader<Box<dyn Read + Send>>) -> io::Result<Response> {
    let malformed = || io::Error::new(ErrorKind::InvalidData, "the response is no HTTP");
    let mut head = (&mut stream).take(HEAD_MAX);
    let mut next = || -> io::Result<String> {
        let mut line = Vec::new();
        head.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err(malformed());
        }
        Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
    };
    let status_line = next()?;
    let status = status_line.strip_prefix("HTTP/1.").and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(malformed)?;
    let mut framing = Framing::Close;
    loop {
        let line = next()?;
        let Some((name, value)) = line.split_once(':') else {
            if line.is_empty() {
                break;
            }
            return Err(malformed());
        };
        if name.eq_ignore_ascii_case("transfer-encoding") && value.trim().eq_ignore_ascii_case("chunked") {
            framing = Framing::Chunks(0);
        } else if name.eq_ignore_ascii_case("content-length") && framing != Framing::Chunks(0) {
            framing = Framing::Length(value.trim().parse().map_err(|_| malformed())?);
        }
    }
    if status == 204 || status == 304 {
        framing = Framing::Over;
    }
    Ok(Response { status, body: Body { stream, framing } })
}

impl Body {
    /// Reads all of it.
    ///
    /// # Errors
    /// The connection breaks, or there are more than `max` bytes.
    pub fn read_all(&mut self, max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.take(max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max {
            return Err(io::Error::other(format!("the response has more than {max} bytes")));
        }
        Ok(bytes)
    }

    /// Begins the next chunk.
    fn next_chunk(&mut self) -> io::Result<()> {
        let mut line = Vec::new();
        // A size with an extension, or the end of the chunk before it.
        for _ in 0..2 {
            line.clear();
            (&mut self.stream).take(256).read_until(b'\n', &mut line)?;
            if !line.trim_ascii().is_empty() || line.is_empty() {
                break;
            }
        }
        let size = str::from_utf8(&line).ok().and_then(|line| {
            let size = line.split(';').next()?.trim();
            u64::from_str_radix(size, 16).ok()
        });
        self.framing = match size {
            Some(0) => Framing::Over,
            Some(size) => Framing::Chunks(size),
            None => return Err(ErrorKind::UnexpectedEof.into()),
        };
        Ok(())
    }
}

impl Read for Body {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.framing == Framing::Chunks(0) {
            self.next_chunk()?;
        }
        let remaining = match self.framing {
            Framing::Over | Framing::Length(0) => return Ok(0),
            Framing::Close => u64::MAX,
            Framing::Length(remaining) | Framing::Chunks(remaining) => remaining,
        };
        let room = buf.len().min(usize::try_from(remaining).unwrap_or(usize::MAX));
        let read = self.stream.read(buf.get_mut(..room).unwrap_or_default())?;
        if let Framing::Length(remaining) | Framing::Chunks(remaining) = &mut self.framing {
            if read == 0 && room > 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            *remaining -= read as u64;
        }
        Ok(read)
    }
}

/// Socket with a limit of the time of one call.
trait Socket: Read + Write {
    fn set_timeout(&self, time: Duration) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn set_timeout(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Socket for UnixStream {
    fn set_timeout(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// Socket of which all calls together end at `deadline`, also those that TLS makes for one read: a server that sends a byte now
/// and then does not hold it.
struct Timed<S> {
    socket: S,
    deadline: Instant,
}

impl<S: Socket> Timed<S> {
    fn limit(&self) -> io::Result<()> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            remaining => self.socket.set_timeout(remaining),
        }
    }
}

impl<S: Socket> Read for Timed<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.limit()?;
        self.socket.read(buf)
    }
}

impl<S: Socket> Write for Timed<S> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.limit()?;
        self.socket.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Connects to the first address of a host that answers.
fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, format!("{host} has no address"));
    for address in (host, port).to_socket_addrs()? {
        let remaining = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, remaining.min(CONNECT_TIMEOUT)) {
            Ok(stream) => {
                // The head and the content of a request are one write.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(text: &'static str) -> io::Result<(u16, Vec<u8>)> {
        let mut response = read_response(text.as_bytes())?;
        Ok((response.status, response.body.read_all(100)?))
    }

    #[test]
    fn contents_are_read_to_their_end() {
        for (text, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}x", Some((200, "{}"))),
            ("HTTP/1.1 200 OK\r\n\r\n{}", Some((200, "{}"))),
            (
                "HTTP/1.1 410 Gone\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n1\r\nx\r\n0\r\n\r\n",
                Some((410, "{}x")),
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}", None),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", None),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}", None),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", None),
            ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}", None),
            ("HTTP/1.1 200 OK\r\nbroken\r\n\r\n", None),
            ("SSH-2.0\r\n\r\n", None),
            ("HTTP/1.1 200", None),
            ("", None),
        ] {
            let entry = response(text).ok();
            let expected = expected.map(|(status, body): (u16, &str)| (status, body.as_bytes().to_vec()));
            assert_eq!(entry, expected, "{text:?}");
        }
    }

    #[test]
    fn requests_have_the_given_fields() {
        let fields = vec!["Authorization: Basic x".to_owned()];
        let mut request = Request { method: "GET", target: "/s", fields, ..Request::default() };
        let text = String::from_utf8(head(&request, "a:81")).unwrap();
        assert_eq!(
            text,
            "GET /s HTTP/1.1\r\nHost: a:81\r\nConnection: close\r\nAuthorization: Basic x\r\n\r\n"
        );
        request.content = Some(("text/plain", b"abc".to_vec()));
        let text = String::from_utf8(head(&request, "a")).unwrap();
        assert!(text.ends_with("\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nabc"), "{text}");
    }

    /// Stream that ends without a notice, as TLS without close_notify does.
    struct Cut(&'static [u8]);

    impl Read for Cut {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buf)? {
                0 => Err(ErrorKind::UnexpectedEof.into()),
                read => Ok(read),
            }
        }
    }

    #[test]
    fn end_without_a_notice_is_one_after_the_announced_length() {
        for (text, is_whole) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"[..], true),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", false),
            (b"HTTP/1.1 200 OK\r\n\r\n{}", false),
        ] {
            let mut response = read_response(Cut(text)).unwrap();
            assert_eq!(response.body.read_all(100).is_ok(), is_whole, "{text:?}");
        }
    }

    /// Each read gives a byte, as a server that trickles does.
    struct Trickle;

    impl Read for Trickle {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            buf[..1].fill(b'x');
            Ok(1)
        }
    }

    impl Write for Trickle {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            Ok(buf.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Socket for Trickle {
        fn set_timeout(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn deadline_holds_for_many_reads_within_one() {
        let deadline = Instant::now() + Duration::from_millis(50);
        // TLS reads a record in this way: until it is complete.
        let mut record = vec![0; 1 << 30];
        let error = Timed { socket: Trickle, deadline }.read_exact(&mut record).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn contents_have_a_limit() {
        let stream: Box<dyn Read + Send> = Box::new(io::repeat(b'x'));
        let mut body = Body { stream: BufReader::new(stream), framing: Framing::Close };
        assert!(body.read_all(1000).is_err());
    }
}
