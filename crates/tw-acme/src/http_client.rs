//! Requests to an authority: HTTP/1.1 over TLS, one connection for each. An authority that stalls, or says too much, ends the
//! request and nothing else.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tw_base::Errno;
use tw_dns::NameService;
use tw_http::origin::{BodyDecoder, OriginHead, OriginLimits, Piece};
use tw_http::{Method, Progress, date};
use tw_net::tls::{self, HandshakeError, TlsStream};
use tw_net::{Addr, ConnectOptions};
use tw_rt::Socket;
use tw_rt::time::timeout;
use tw_tls::UpstreamError;

use crate::error::{Error, in_one_line};
use crate::url::Url;

/// Bytes asked of the connection at once.
const READ_SIZE: usize = 16 << 10;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of the head of an answer of an authority that issues certificates.
    const HEAD_SIZE_MAX: usize = 32 << 10, bytes, "the order fails, and is tried again later";
    /// Bytes of an answer of an authority that issues certificates.
    ///
    /// Bytes of its body: a chain of certificates has some ten thousand.
    const BODY_SIZE_MAX: usize = 1 << 20, bytes, "the order fails, and is tried again later";
    /// Time in which an authority that issues certificates has to answer.
    ///
    /// For all of it: name, connection, handshake, request and response.
    const ANSWER_TIME_MAX: Duration = Duration::from_secs(30), time, "the order fails, and is tried again later";
    /// Time in which an address of an authority that issues certificates has to take a connection.
    const CONNECT_TIME_MAX: Duration = Duration::from_secs(8), time, "the next address is tried";
}

/// Response of an authority.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) nonce: Option<String>,
    pub(crate) retry_after: Option<Duration>,
    /// Other chains of a certificate (RFC 8555, section 7.4.2).
    pub(crate) alternates: Vec<String>,
    pub(crate) body: Vec<u8>,
}

/// Transport of requests to authorities and of their responses.
pub(crate) struct HttpClient {
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) resolver: NameService,
    pub(crate) resolver_timeout: Duration,
}

impl HttpClient {
    /// Asks for `url`; `body` is a signed request.
    pub(crate) async fn send(&self, method: Method, url: &Url, body: Option<&[u8]>) -> Result<Reply, Error> {
        match timeout(ANSWER_TIME_MAX, self.exchange(method, url, body)).await {
            Ok(answered) => answered,
            Err(_) => Err(Error::Slow(url.host().into(), ANSWER_TIME_MAX)),
        }
    }

    async fn exchange(&self, method: Method, url: &Url, body: Option<&[u8]>) -> Result<Reply, Error> {
        let failed = |why: String| Error::Network(url.host().into(), why);
        let stream = self.connect(url).await?;
        let word = match method {
            Method::Head => "HEAD",
            Method::Post => "POST",
            _ => "GET",
        };
        let mut request = format!(
            "{word} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: tailwater/{}\r\nAccept-Language: en\r\nConnection: close\r\n",
            url.target(),
            url.authority(),
            env!("CARGO_PKG_VERSION"),
        );
        if let Some(body) = body {
            request += &format!("Content-Type: application/jose+json\r\nContent-Length: {}\r\n", body.len());
        }
        request += "\r\n";
        let whole = [request.as_bytes(), body.unwrap_or_default()].concat();
        write(&stream, &whole).await.map_err(|error| failed(sentence("send()", &error)))?;
        read(&stream, method, url).await
    }

    async fn connect(&self, url: &Url) -> Result<TlsStream, Error> {
        let failed = |why: String| Error::Network(url.host().into(), why);
        if let Some(system) = self.resolver.system() {
            // This thread may wait.
            system.refresh();
        }
        let addresses = self.resolver.addresses(url.host().as_bytes(), self.resolver_timeout).await;
        let addresses =
            addresses.map_err(|error| failed(format!("its name could not be resolved ({error})")))?;
        let mut last = None;
        for address in addresses.iter() {
            let to = SocketAddr::new(address, url.port());
            match timeout(CONNECT_TIME_MAX, open(to)).await {
                Ok(Ok(socket)) => return secure(socket, self.tls.clone(), url.host()).await.map_err(failed),
                Ok(Err(error)) => last = Some(format!("{} to {to}", sentence("connect()", &error))),
                Err(_) => {
                    last =
                        Some(format!("connect() to {to} takes longer than {} s", CONNECT_TIME_MAX.as_secs()))
                }
            }
        }
        Err(failed(last.unwrap_or_else(|| "it has no address".into())))
    }
}

fn sentence(call: &str, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => format!("{call} failed ({})", Errno::from(error)),
        None => format!("{call} failed ({error})"),
    }
}

async fn open(to: SocketAddr) -> io::Result<Socket> {
    let socket = tw_net::connect(&Addr::Inet(to), &ConnectOptions::default())?;
    socket.writable().await?;
    socket.take_error()?;
    Ok(socket)
}

/// Shakes hands with a server of this name.
async fn secure(socket: Socket, config: Arc<ClientConfig>, host: &str) -> Result<TlsStream, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| "its name is none of a host".to_owned())?;
    let said = |failure: HandshakeError| match failure {
        HandshakeError::Closed => "it has closed the connection in the handshake".to_owned(),
        HandshakeError::Io(error) => sentence("SSL_do_handshake()", &error),
        HandshakeError::Tls(error) => match UpstreamError::of(&error) {
            Some(why) => format!("its {why}"),
            None => format!("SSL_do_handshake() failed (SSL: {error})"),
        },
    };
    tls::connect_here(socket, config, name).await.map_err(said)
}

async fn write(stream: &TlsStream, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match stream.try_write(rest) {
            Ok(taken) => rest = rest.get(taken..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| stream.socket().poll_writable(cx)).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads the next bytes; `false` at the end.
async fn more(stream: &TlsStream, into: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        into.reserve(READ_SIZE);
        match stream.try_read(into) {
            Ok(len) => return Ok(len > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| stream.poll_readable(cx)).await?;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn read(stream: &TlsStream, method: Method, url: &Url) -> Result<Reply, Error> {
    let failed = |why: String| Error::Network(url.host().into(), why);
    let cut = || failed("it has closed the connection before the end of its answer".into());
    let mut head = OriginHead::new();
    let limits = OriginLimits::of_size(HEAD_SIZE_MAX);
    let mut came = Vec::new();
    loop {
        match head.parse(&limits) {
            Ok(Progress::Complete) if head.is_interim() => head.next_response(),
            Ok(Progress::Complete) => break,
            Ok(Progress::NeedMore) => {
                came.clear();
                if !more(stream, &mut came).await.map_err(|error| failed(sentence("recv()", &error)))? {
                    return Err(cut());
                }
                head.push(&came);
            }
            Err(error) => return Err(failed(in_one_line(&head.error_text(error).to_string()))),
        }
    }
    let mut reply = Reply::of(&head);
    let mut decoder = BodyDecoder::new(head.framing(method), None);
    came = head.rest().to_vec();
    loop {
        let mut rest = &came[..];
        while !decoder.is_done() {
            let (used, piece) =
                decoder.decode(rest).map_err(|error| failed(decoder_text(&decoder, error)))?;
            let (taken, remaining_bytes) = rest.split_at_checked(used).unwrap_or((rest, &[]));
            rest = remaining_bytes;
            match piece {
                Piece::Data(range) => reply.body.extend_from_slice(taken.get(range).unwrap_or_default()),
                Piece::NeedMore | Piece::End => break,
            }
            if reply.body.len() > BODY_SIZE_MAX {
                return Err(Error::TooLarge(url.host().into(), BODY_SIZE_MAX));
            }
        }
        if decoder.is_done() {
            return Ok(reply);
        }
        came = rest.to_vec();
        if !more(stream, &mut came).await.map_err(|error| failed(sentence("recv()", &error)))? {
            return decoder.close().map(|()| reply).map_err(|_| cut());
        }
    }
}

fn decoder_text(decoder: &BodyDecoder, error: tw_http::origin::BodyError) -> String {
    decoder.error_text(error).to_string()
}

impl Reply {
    fn of(head: &OriginHead) -> Self {
        let text =
            |name: &str| head.field(name).and_then(|value| str::from_utf8(value).ok()).map(str::to_owned);
        let links = head.field_all(b"link").filter_map(|value| str::from_utf8(value).ok());
        Self {
            status: head.status(),
            location: text("Location"),
            nonce: text("Replay-Nonce").filter(|nonce| is_base64url(nonce)),
            retry_after: head.field("Retry-After").and_then(retry_after),
            alternates: links.flat_map(|links| links.split(',')).filter_map(alternate).collect(),
            body: Vec::new(),
        }
    }
}

/// RFC 8555, sections 6.5.1 and 8.1: what nonces and tokens are made of.
pub(crate) fn is_base64url(text: &str) -> bool {
    /// Any is far shorter.
    const MAX: usize = 512;
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !text.is_empty() && text.len() <= MAX && text.bytes().all(is_digit)
}

/// RFC 9110, section 10.2.3: seconds, or a date.
fn retry_after(value: &[u8]) -> Option<Duration> {
    let text = str::from_utf8(value).ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = Duration::from_secs(u64::try_from(date::parse(text.as_bytes())?).ok()?);
    Some(at.saturating_sub(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

/// The target of `<…>;rel="alternate"` (RFC 8288).
fn alternate(link: &str) -> Option<String> {
    let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let is_alternate = parameters.split(';').any(|parameter| {
        let parameter = parameter.trim().to_ascii_lowercase();
        parameter.strip_prefix("rel=").is_some_and(|rel| rel.trim_matches('"') == "alternate")
    });
    is_alternate.then(|| target.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(head: &str) -> Reply {
        let mut parsed = OriginHead::new();
        parsed.push(head.as_bytes());
        assert_eq!(parsed.parse(&OriginLimits::of_size(HEAD_SIZE_MAX)), Ok(Progress::Complete));
        Reply::of(&parsed)
    }

    #[test]
    fn fields() {
        let found_reply = reply(
            "HTTP/1.1 201 Created\r\nLocation: https://ca.example/1\r\nReplay-Nonce: a_-9\r\nRetry-After: 120\r\n\
             Link: <https://ca.example/dir>;rel=\"index\"\r\nLink: <https://ca.example/2>; title=a; REL=alternate, <x>;rel=up\r\n\r\n",
        );
        assert_eq!(
            (found_reply.status, found_reply.location.as_deref(), found_reply.nonce.as_deref()),
            (201, Some("https://ca.example/1"), Some("a_-9"))
        );
        assert_eq!(
            (found_reply.retry_after, found_reply.alternates),
            (Some(Duration::from_secs(120)), vec!["https://ca.example/2".to_owned()])
        );
        let found_reply = reply(
            "HTTP/1.1 200 OK\r\nReplay-Nonce: a b\r\nRetry-After: Thu, 01 Jan 1970 00:00:10 GMT\r\n\r\n",
        );
        assert_eq!((found_reply.nonce, found_reply.retry_after), (None, Some(Duration::ZERO)));
        assert_eq!(reply("HTTP/1.1 200 OK\r\nRetry-After: soon\r\n\r\n").retry_after, None);
    }
}
