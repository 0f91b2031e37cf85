//! HTTP/2 upstream servers: a correct one with a script ([`http2_origin`], the crate `h2`), and one that sends
//! arbitrary frames ([`frames_origin`]).

use std::future::{Future, poll_fn};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::http2::Frames;

/// Request with the means to respond.
#[derive(Debug)]
pub struct OriginRequest {
    /// Index of the connection, counted from 0.
    pub conn: usize,
    /// Number of earlier requests on the connection.
    pub nth: usize,
    /// The head.
    pub head: Request<()>,
    /// Body, to be read as it arrives.
    pub body: RecvStream,
    /// The way back.
    pub respond: SendResponse<Bytes>,
    /// Sender of commands to the connection.
    pub commands: UnboundedSender<ConnectionCommand>,
}

/// Command to a connection of the server.
#[derive(Debug, Clone, Copy)]
pub enum ConnectionCommand {
    /// Graceful shutdown: GOAWAY, as RFC 9113 section 6.8 has it.
    Leave,
    /// Connection error with this reason: GOAWAY with the last request seen.
    Break(Reason),
    /// Abrupt close.
    Abort,
}

impl OriginRequest {
    /// Begins the response with these fields.
    ///
    /// # Panics
    /// A field is invalid, or the client is gone.
    pub fn begin(&mut self, status: u16, fields: &[(&str, &str)]) -> SendStream<Bytes> {
        self.respond.send_response(head(status, fields), false).expect("the client is there")
    }

    /// Answers with a head alone.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    pub fn empty(&mut self, status: u16, fields: &[(&str, &str)]) {
        self.respond.send_response(head(status, fields), true).expect("the client is there");
    }

    /// Answers with this text.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    pub fn answer(&mut self, fields: &[(&str, &str)], text: impl Into<Bytes>) {
        let mut body = self.begin(200, fields);
        body.send_data(text.into(), true).expect("the client is there");
    }
}

fn head(status: u16, fields: &[(&str, &str)]) -> Response<()> {
    let mut head = Response::builder().status(status);
    for (name, value) in fields {
        head = head.header(*name, *value);
    }
    head.body(()).expect("a response")
}

/// Trailers of a body.
///
/// # Panics
/// A name or a value is invalid.
#[must_use]
pub fn trailers(fields: &[(&'static str, &str)]) -> HeaderMap {
    fields
        .iter()
        .map(|(name, value)| ((*name).parse().expect("a name"), value.parse().expect("a value")))
        .collect()
}

/// Starts a server with these settings, whose requests `answer` is given.
///
/// # Panics
/// If there is no port.
pub fn http2_origin<F>(
    settings: Builder,
    answer: impl Fn(OriginRequest) -> F + Send + Sync + 'static,
) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    start(settings, None, answer)
}

/// Starts such a server over TLS.
///
/// # Panics
/// As [`http2_origin`].
pub fn secured_http2_origin<F>(
    config: Arc<ServerConfig>,
    answer: impl Fn(OriginRequest) -> F + Send + Sync + 'static,
) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    start(Builder::new(), Some(config), answer)
}

fn start<F>(
    settings: Builder,
    secured: Option<Arc<ServerConfig>>,
    answer: impl Fn(OriginRequest) -> F + Send + Sync + 'static,
) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("it is bound");
    listener.set_nonblocking(true).expect("it is a socket");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it is a socket");
            let answer = Arc::new(answer);
            let mut conn = 0;
            while let Ok((stream, _)) = listener.accept().await {
                let settings = settings.clone();
                let answer = answer.clone();
                let secured = secured.clone();
                tokio::spawn(async move {
                    match secured {
                        None => serve(settings, stream, conn, answer).await,
                        Some(config) => {
                            if let Ok(stream) = tokio_rustls::TlsAcceptor::from(config).accept(stream).await {
                                serve(settings, stream, conn, answer).await;
                            }
                        }
                    }
                });
                conn += 1;
            }
        });
    });
    addr
}

async fn serve<F>(
    settings: Builder,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    conn: usize,
    answer: Arc<impl Fn(OriginRequest) -> F + Send + Sync + 'static>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let Ok(mut connection) = settings.handshake::<_, Bytes>(stream).await else { return };
    let (commands, mut ordered) = unbounded_channel();
    let mut nth = 0;
    poll_fn(|cx| {
        loop {
            while let Poll::Ready(Some(order)) = ordered.poll_recv(cx) {
                match order {
                    ConnectionCommand::Leave => connection.graceful_shutdown(),
                    ConnectionCommand::Break(reason) => connection.abrupt_shutdown(reason),
                    ConnectionCommand::Abort => return Poll::Ready(()),
                }
            }
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    let (head, body) = request.into_parts();
                    let head = Request::from_parts(head, ());
                    let request =
                        OriginRequest { conn, nth, head, body, respond, commands: commands.clone() };
                    nth += 1;
                    tokio::spawn(answer(request));
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

/// Starts a server that sends the HTTP/2 preface and then runs `script`, which gets the number of the connection.
///
/// # Panics
/// If there is no port.
pub fn frames_origin(script: impl Fn(Frames, usize) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        let script = Arc::new(script);
        for (nth, stream) in listener.incoming().enumerate() {
            let script = script.clone();
            std::thread::spawn(move || {
                if let Ok(frames) = stream.and_then(Frames::accepted) {
                    script(frames, nth);
                }
            });
        }
    });
    addr
}
