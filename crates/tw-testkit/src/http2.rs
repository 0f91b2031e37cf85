//! HTTP/2 clients: a correct one ([`Http2`], the crate `h2`), and one that sends arbitrary frames ([`Frames`]).

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::{HeaderMap, Request};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::wait::{self, RemainingTime};

/// Connection preface of clients.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Connection of a correct client. It makes progress only during calls.
#[derive(Debug)]
pub struct Http2 {
    runtime: Runtime,
    requests: SendRequest<Bytes>,
    ended: JoinHandle<Result<(), h2::Error>>,
}

/// A response.
#[derive(Debug)]
pub struct Http2Response {
    /// Status code.
    pub status: u16,
    /// Fields, names in lower case.
    pub fields: HeaderMap,
    /// Content.
    pub body: Vec<u8>,
    /// Trailers.
    pub trailers: Option<HeaderMap>,
}

impl Http2Response {
    /// The content as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The first value of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.to_str().ok()
    }
}

impl Http2 {
    /// Connects to a port that is known to speak HTTP/2.
    ///
    /// # Errors
    /// The error of `connect`, or of the connection preface of the server.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        Self::connect_with(addr, &Builder::new())
    }

    /// Connects with these settings.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(addr: SocketAddr, settings: &Builder) -> io::Result<Self> {
        let runtime = runtime()?;
        let stream = runtime.block_on(within(tokio::net::TcpStream::connect(addr)))??;
        Self::over(runtime, stream, settings)
    }

    /// Connects by TLS, offering HTTP/2 and HTTP/1.1.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and the error of the handshake; `Unsupported` if HTTP/2 is not negotiated.
    pub fn connect_tls(addr: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> io::Result<Self> {
        let runtime = runtime()?;
        let mut config = ClientConfig::clone(config);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let stream = runtime.block_on(within(async {
            let stream = tokio::net::TcpStream::connect(addr).await?;
            tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
        }))??;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Self::over(runtime, stream, &Builder::new())
    }

    fn over(
        runtime: Runtime,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        settings: &Builder,
    ) -> io::Result<Self> {
        let begun = runtime.block_on(within(settings.handshake(stream)))?;
        let (requests, connection) = begun.map_err(io::Error::other)?;
        let ended = runtime.spawn(connection);
        Ok(Self { runtime, requests, ended })
    }

    /// Runs `script`, which sends requests with its argument, for at most [`wait::TIMEOUT`].
    ///
    /// # Panics
    /// The script takes longer.
    pub fn run<F: Future>(&mut self, script: impl FnOnce(SendRequest<Bytes>) -> F) -> F::Output {
        let running = within(script(self.requests.clone()));
        self.runtime.block_on(running).expect("it ends in time")
    }

    /// `GET` of a path at `localhost`.
    ///
    /// # Errors
    /// The error of the stream or the connection.
    pub fn get(&mut self, path: &str) -> Result<Http2Response, h2::Error> {
        self.request("GET", path, &[], b"")
    }

    /// A request with these fields, and content unless there is none.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Panics
    /// If that is no request.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        content: &[u8],
    ) -> Result<Http2Response, h2::Error> {
        let head = head(method, path, fields);
        let content = Bytes::copy_from_slice(content);
        self.run(|requests| exchange(requests, head, content))
    }

    /// Waits until the connection has ended.
    ///
    /// # Errors
    /// The error that the server sent.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn ended(&mut self) -> Result<(), h2::Error> {
        let ended = self.runtime.block_on(within(&mut self.ended)).expect("it ends in time");
        ended.expect("it does not panic")
    }
}

/// The head of a request at `localhost`.
///
/// # Panics
/// If that is none.
#[must_use]
pub fn head(method: &str, path: &str, fields: &[(&str, &str)]) -> Request<()> {
    let mut head = Request::builder().method(method).uri(format!("http://localhost{path}"));
    for (name, value) in fields {
        head = head.header(*name, *value);
    }
    head.body(()).expect("a request")
}

/// Sends a request and receives the response.
///
/// # Errors
/// The error of the stream or the connection.
pub async fn exchange(
    requests: SendRequest<Bytes>,
    head: Request<()>,
    content: Bytes,
) -> Result<Http2Response, h2::Error> {
    let mut requests = requests.ready().await?;
    let (response, mut body) = requests.send_request(head, content.is_empty())?;
    if !content.is_empty() {
        body.send_data(content, true)?;
    }
    let (parts, body) = response.await?.into_parts();
    let (body, trailers) = take(body).await?;
    Ok(Http2Response { status: parts.status.as_u16(), fields: parts.headers, body, trailers })
}

/// Takes a body to its end.
///
/// # Errors
/// As [`exchange`].
pub async fn take(mut body: h2::RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        all.extend_from_slice(&piece);
        body.flow_control().release_capacity(piece.len())?;
    }
    Ok((all, body.trailers().await?))
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

async fn within<F: Future>(future: F) -> io::Result<F::Output> {
    #[expect(clippy::disallowed_methods, reason = "this runtime has a timer driver")]
    let within = tokio::time::timeout(wait::TIMEOUT, future);
    within.await.map_err(|_| io::ErrorKind::TimedOut.into())
}

/// Connection on which a test sends arbitrary frames.
#[derive(Debug)]
pub struct Frames {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// Frame as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Frame type.
    pub kind: u8,
    /// Frame flags.
    pub flags: u8,
    /// Stream identifier.
    pub stream: u32,
    /// Frame payload.
    pub payload: Vec<u8>,
}

/// Types of frames (RFC 9113 section 6).
pub mod kind {
    #![expect(missing_docs, reason = "the names are those of the RFC")]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// END_STREAM of DATA and HEADERS.
pub const END_STREAM: u8 = 1;
/// END_HEADERS of HEADERS and CONTINUATION.
pub const END_HEADERS: u8 = 4;

impl Frame {
    /// The error code of RST_STREAM or GOAWAY.
    #[must_use]
    pub fn code(&self) -> Option<u32> {
        let at = match self.kind {
            kind::RST_STREAM => 0,
            kind::GOAWAY => 4,
            _ => return None,
        };
        Some(u32::from_be_bytes(self.payload.get(at..at + 4)?.try_into().ok()?))
    }
}

impl Frames {
    /// Connects, and sends the preface and empty settings.
    ///
    /// # Errors
    /// The error of `connect` or `write`.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, wait::TIMEOUT)?;
        stream.set_nodelay(true)?;
        let mut frames = Self { stream, unread: Vec::new() };
        frames.send(PREFACE)?;
        frames.send(frame(kind::SETTINGS, 0, 0, b""))?;
        Ok(frames)
    }

    /// The other side of a connection that was accepted: takes the client's preface and sends empty settings.
    ///
    /// # Errors
    /// The error of `read` or `write`; `InvalidData` without the connection preface.
    pub fn accepted(mut stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(wait::TIMEOUT))?;
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface)?;
        if preface != PREFACE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut frames = Self { stream, unread: Vec::new() };
        frames.send(frame(kind::SETTINGS, 0, 0, b""))?;
        Ok(frames)
    }

    /// Clones the connection, so that one thread can send while another one reads.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { stream: self.stream.try_clone()?, unread: Vec::new() })
    }

    /// Sends these bytes.
    ///
    /// # Errors
    /// The error of `write`.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.set_write_timeout(Some(wait::TIMEOUT))?;
        self.stream.write_all(bytes.as_ref())
    }

    /// The next frame; `None` at the end.
    ///
    /// # Errors
    /// The error of `read`; `TimedOut` after [`wait::TIMEOUT`].
    pub fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        let mut time = RemainingTime::of(wait::TIMEOUT);
        loop {
            if let Some(frame) = self.take() {
                return Ok(Some(frame));
            }
            if time.is_over() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(time.round()))?;
            let mut room = [0; 16 << 10];
            let read = self.stream.read(&mut room);
            time.passes();
            match read {
                Ok(0) => return Ok(None),
                Ok(n) => self.unread.extend_from_slice(room.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    fn take(&mut self) -> Option<Frame> {
        let head: [u8; 9] = self.unread.get(..9)?.try_into().ok()?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = self.unread.get(9..9 + len)?.to_vec();
        self.unread.drain(..9 + len);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// The next frame of this kind; others are passed over. `None` if the connection ends before it.
    ///
    /// # Errors
    /// As [`next_frame`](Self::next_frame).
    pub fn wait(&mut self, kind: u8) -> io::Result<Option<Frame>> {
        loop {
            match self.next_frame()? {
                Some(frame) if frame.kind == kind => return Ok(Some(frame)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

/// A frame.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = vec![len[1], len[2], len[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Fields in HPACK, without index and as they are; names and values of less than 16 KiB.
#[must_use]
pub fn hpack(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            match text.len() {
                len @ ..127 => block.push(len as u8),
                // RFC 7541 section 5.1.
                len => {
                    let rest = len - 127;
                    block.push(127);
                    if rest < 128 {
                        block.push(rest as u8);
                    } else {
                        block.extend_from_slice(&[(rest % 128) as u8 | 128, (rest / 128) as u8]);
                    }
                }
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// HEADERS of a `GET` that is complete, and these fields besides.
#[must_use]
pub fn get(stream: u32, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block =
        hpack(&[(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "localhost")]);
    block.extend_from_slice(&hpack(fields));
    frame(kind::HEADERS, END_STREAM | END_HEADERS, stream, &block)
}
