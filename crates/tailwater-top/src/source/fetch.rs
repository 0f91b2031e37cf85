//! Requests of a document, and the words about those that fail.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::time::Duration;

use tw_fetch::{Request, Response, ServerAddress};
use tw_tls::UpstreamError;
use tw_tls::rustls;
use tw_tls::rustls::pki_types::ServerName;

use super::target::{Server, Target};
use super::trust::Trust;

/// Most bytes of a response: some ten thousand upstream servers.
const RESPONSE_MAX: u64 = 64 << 20;

/// Field with the name of the program.
const USER_AGENT: &str = concat!("User-Agent: tailwater-top/", env!("CARGO_PKG_VERSION"));

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
            None if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) => {
                Self::Malformed
            }
            None => Self::Io(error),
        }
    }
}

/// Requests of one document.
pub struct Fetcher {
    server: ServerAddress,
    /// Lines of each head.
    fields: Vec<String>,
    path: String,
    host: String,
}

impl Fetcher {
    /// Prepares requests for the document of `target`. `fields` are lines of their heads.
    ///
    /// # Errors
    /// With `https`: the host is no name that a certificate can have, or no certificates of authorities are found.
    pub fn new(target: &Target, fields: &[String], trust: &Trust) -> Result<Self, String> {
        let server = match target.server.clone() {
            Server::Tcp(host, port) => ServerAddress::Tcp(host, port),
            Server::Tls(host, port) => {
                let name =
                    ServerName::try_from(host.clone()).map_err(|error| format!("\"{host}\": {error}"))?;
                ServerAddress::Tls(host, port, name, trust.settings()?)
            }
            Server::Unix(path) => ServerAddress::Unix(path.into()),
        };
        let own = [USER_AGENT, "Accept: application/json, text/plain"].map(str::to_owned);
        let fields = own.into_iter().chain(fields.iter().cloned()).collect();
        let Target { path, host, .. } = target.clone();
        Ok(Self { server, fields, path, host })
    }

    /// Fetches the document. Waits for `timeout` at most.
    ///
    /// # Errors
    /// There is no document.
    pub fn fetch(&self, timeout: Duration) -> Result<Vec<u8>, FetchError> {
        let request = Request {
            method: "GET",
            target: &self.path,
            host: Some(&self.host),
            fields: self.fields.clone(),
            content: None,
        };
        content(tw_fetch::send(&self.server, &request, timeout)?)
    }
}

/// Content of a response with status 200.
fn content(response: Response) -> Result<Vec<u8>, FetchError> {
    if response.status != 200 {
        return Err(FetchError::Status(response.status));
    }
    let mut content = Vec::new();
    response.body.take(RESPONSE_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > RESPONSE_MAX { Err(FetchError::TooLarge) } else { Ok(content) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_responses() {
        let malformed = Err("the response is not HTTP, or cut off");
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Ok("{}")),
            ("HTTP/1.0 200 OK\r\n\r\n{}", Ok("{}")),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", Ok("{}")),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", malformed),
            ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}", malformed),
            ("HTTP/1.1 403 Forbidden\r\n\r\n", Err("the server answers with status 403")),
            ("SSH-2.0-x\r\n\r\n", malformed),
            ("HTTP/1.1 200", malformed),
            ("HTTP/1.1\r\n\r\n", malformed),
            ("", malformed),
        ] {
            let found_response = tw_fetch::read_response(response.as_bytes()).map_err(FetchError::from);
            let result = found_response.and_then(content).map_err(|error| error.to_string());
            let expected = expected.map(|content: &str| content.as_bytes().to_vec()).map_err(str::to_owned);
            assert_eq!(result, expected, "{response}");
        }
    }

    #[test]
    fn response_without_end_is_too_large() {
        let head = &b"HTTP/1.1 200 OK\r\n\r\n"[..];
        let response = tw_fetch::read_response(head.chain(io::repeat(b'x'))).unwrap();
        assert!(matches!(content(response), Err(FetchError::TooLarge)));
    }

    #[test]
    fn silent_server_is_told() {
        let error = FetchError::from(io::Error::from(ErrorKind::TimedOut));
        assert_eq!(error.to_string(), "the server does not answer in time");
    }
}
