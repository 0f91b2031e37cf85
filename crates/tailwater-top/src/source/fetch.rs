//! One GET request over TCP, TLS or a Unix socket, and its response (RFC 9112). HTTP/1.0, so that the server neither keeps the connection
//! nor uses chunks.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_tls::UpstreamError;
use tw_tls::rustls::pki_types::ServerName;
use tw_tls::rustls::{self, ClientConfig, ClientConnection, StreamOwned};

use super::target::{Server, Target};
use super::trust::Trust;

/// Most bytes of a response: some ten thousand upstream servers.
const RESPONSE_MAX: u64 = 64 << 20;

/// Reason why there is no document.
#[derive(Debug)]
pub enum FetchError {
    /// The server cannot be reached, or does not answer in time.
    Io(io::Error),
    /// No TLS connection to a server that is trusted.
    Tls(rustls::Error),
    /// Another status than 200.
    Status(u16),
    /// No HTTP response, or one that is cut off.
    Malformed,
    /// The response is too large.
    TooLarge,
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                f.write_str("the server does not answer in time")
            }
            Self::Io(error) => write!(f, "{error}"),
            Self::Tls(error) => match UpstreamError::of(error) {
                Some(why) => write!(f, "the server's {why} (--ca FILE, --insecure)"),
                None => write!(f, "TLS: {error}"),
            },
            Self::Status(401) => f.write_str(
                "the server answers with status 401: it requires a password (-H) or a token (--control-token)",
            ),
            Self::Status(status) => write!(f, "the server answers with status {status}"),
            Self::Malformed => f.write_str("the response is not HTTP, or cut off"),
            Self::TooLarge => write!(f, "the response has more than {} MiB", RESPONSE_MAX >> 20),
        }
    }
}

impl From<io::Error> for FetchError {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(tls) => Self::Tls(tls.clone()),
            None => Self::Io(error),
        }
    }
}

/// Requests of one document.
pub struct Fetcher {
    connector: Connector,
    /// Head of each request.
    head: String,
}

/// Way to the server.
enum Connector {
    Tcp(String, u16),
    Tls { host: String, port: u16, name: ServerName<'static>, settings: Arc<ClientConfig> },
    Unix(String),
}

impl Fetcher {
    /// Prepares requests for the document of `target`. `fields` are lines of their heads.
    ///
    /// # Errors
    /// With `https`: the host is no name that a certificate can have, or no certificates of authorities are found.
    pub fn new(target: &Target, fields: &[String], trust: &Trust) -> Result<Self, String> {
        let connector = match target.server.clone() {
            Server::Tcp(host, port) => Connector::Tcp(host, port),
            Server::Tls(host, port) => {
                let name =
                    ServerName::try_from(host.clone()).map_err(|error| format!("\"{host}\": {error}"))?;
                Connector::Tls { host, port, name, settings: trust.settings()? }
            }
            Server::Unix(path) => Connector::Unix(path),
        };
        Ok(Self { connector, head: head(target, fields) })
    }

    /// Fetches the document. Waits for `timeout` at most.
    ///
    /// # Errors
    /// There is no document.
    pub fn fetch(&self, timeout: Duration) -> Result<Vec<u8>, FetchError> {
        let deadline = Instant::now() + timeout;
        match &self.connector {
            Connector::Tcp(host, port) => {
                exchange(Timed { socket: connect(host, *port, deadline)?, deadline }, &self.head)
            }
            Connector::Tls { host, port, name, settings } => {
                let session =
                    ClientConnection::new(settings.clone(), name.clone()).map_err(FetchError::Tls)?;
                let socket = Timed { socket: connect(host, *port, deadline)?, deadline };
                exchange(StreamOwned::new(session, socket), &self.head)
            }
            Connector::Unix(path) => {
                exchange(Timed { socket: UnixStream::connect(path)?, deadline }, &self.head)
            }
        }
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
            left => self.socket.set_timeout(left),
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
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Head of a request.
fn head(Target { path, host, .. }: &Target, fields: &[String]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut head = format!(
        "GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: tailwater-top/{version}\r\nAccept: application/json, text/plain\r\n"
    );
    for field in fields {
        head.push_str(field);
        head.push_str("\r\n");
    }
    head + "\r\n"
}

fn exchange(mut stream: impl Read + Write, head: &str) -> Result<Vec<u8>, FetchError> {
    stream.write_all(head.as_bytes())?;
    let (mut response, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return content(response),
            // TLS without close_notify: complete only if the response says its length.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && has_length(&response) => {
                return content(response);
            }
            Ok(read) => response.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if response.len() as u64 > RESPONSE_MAX {
            return Err(FetchError::TooLarge);
        }
    }
}

/// Returns true if the head of a response has a `Content-Length`, which [`content`] compares.
fn has_length(response: &[u8]) -> bool {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or(0);
    let head = response[..end].to_ascii_lowercase();
    head.windows(17).any(|bytes| bytes == b"\r\ncontent-length:")
}

/// Content of a response with status 200.
fn content(mut response: Vec<u8>) -> Result<Vec<u8>, FetchError> {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or(FetchError::Malformed)?;
    let head = String::from_utf8_lossy(&response[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status_line = lines.next().filter(|line| line.starts_with("HTTP/1."));
    let status = status_line.and_then(|line| line.split(' ').nth(1)?.parse().ok());
    match status.ok_or(FetchError::Malformed)? {
        200 => {}
        status => return Err(FetchError::Status(status)),
    }
    response.drain(..end + 4);
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    match length.map(|(_, value)| value.trim().parse::<usize>()) {
        Some(Ok(length)) if length == response.len() => Ok(response),
        Some(_) => Err(FetchError::Malformed),
        None => Ok(response),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_responses() {
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Ok("{}")),
            ("HTTP/1.0 200 OK\r\n\r\n{}", Ok("{}")),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", Err("the response is not HTTP, or cut off")),
            ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}", Err("the response is not HTTP, or cut off")),
            ("HTTP/1.1 403 Forbidden\r\n\r\n", Err("the server answers with status 403")),
            ("SSH-2.0-x\r\n\r\n", Err("the response is not HTTP, or cut off")),
            ("HTTP/1.1 200", Err("the response is not HTTP, or cut off")),
            ("HTTP/1.1\r\n\r\n", Err("the response is not HTTP, or cut off")),
            ("", Err("the response is not HTTP, or cut off")),
        ] {
            let found = content(response.as_bytes().to_vec()).map_err(|error| error.to_string());
            let expected = expected.map(|content: &str| content.as_bytes().to_vec()).map_err(str::to_owned);
            assert_eq!(found, expected, "{response}");
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
        // As TLS reads a record: until it is whole.
        let mut record = vec![0; 1 << 30];
        let error = Timed { socket: Trickle, deadline }.read_exact(&mut record).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let error = exchange(Timed { socket: Trickle, deadline }, "GET / HTTP/1.0\r\n\r\n").unwrap_err();
        assert_eq!(error.to_string(), "the server does not answer in time");
    }

    #[test]
    fn end_without_a_notice_is_one_after_the_announced_length() {
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", true),
            ("HTTP/1.1 200 OK\r\nServer: a\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", false),
        ] {
            assert_eq!(has_length(response.as_bytes()), expected, "{response}");
        }
    }

    #[test]
    fn requests_have_the_given_fields() {
        let target = Target::parse("http://a:81/s").unwrap();
        let head = head(&target, &["Authorization: Basic x".to_owned()]);
        assert!(head.starts_with("GET /s?format=json HTTP/1.0\r\nHost: a:81\r\n"), "{head}");
        assert!(head.ends_with("\r\nAuthorization: Basic x\r\n\r\n"), "{head}");
    }
}
