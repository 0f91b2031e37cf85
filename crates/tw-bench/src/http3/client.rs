//! One connection of the load: requests that are encoded beforehand, and responses that are counted and not kept.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{ClientConfig, Dir, EndpointConfig, Event, StreamEvent, StreamId};
use tw_testkit::quic::ClientEngine;

use super::frames::{ResponseReader, SETTINGS};
use crate::Outcome;

/// Receive buffer of a socket, so that a burst of a large response does not overflow it.
const RECEIVE_BUFFER_SIZE: usize = 4 << 20;

/// A request to send, and its number in the answer.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) number: usize,
    /// HEADERS frame.
    pub(crate) bytes: Bytes,
}

/// A response that is complete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    /// Number of its request.
    pub(crate) number: usize,
    /// From the request to the first byte.
    pub(crate) first: Duration,
    /// From the request to the last byte.
    pub(crate) took: Duration,
    /// True if the status is 200.
    pub(crate) is_ok: bool,
}

/// Event of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Happened {
    /// The handshake is complete.
    Connected,
    Answered(Answer),
    /// The connection has ended, or a stream was reset.
    Failed,
}

/// Request under way.
struct Exchange {
    stream: StreamId,
    number: usize,
    since: Instant,
    first: Option<Duration>,
    reader: ResponseReader,
}

/// A connection and its socket.
pub(crate) struct Client {
    pub(crate) engine: ClientEngine,
    pub(crate) socket: UdpSocket,
    exchanges: Vec<Exchange>,
    /// Requests for which the server allows no stream yet.
    waiting: VecDeque<Request>,
    /// True if the engine may have packets to send.
    pub(crate) is_changed: bool,
    /// Time of the timer that is set.
    pub(crate) timer: Option<Instant>,
}

impl Client {
    /// Begins a handshake with the server `localhost` at this address.
    pub(crate) fn connect(server: SocketAddr, config: ClientConfig, own: EndpointConfig) -> Outcome<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        socket.connect(server)?;
        // Both are worth little without privileges: the load is only slower.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_SIZE);
        let _ = tw_sys::sockopt::set_udp_gro(&socket, true);
        let engine = ClientEngine::connect(own, config, "localhost", server, Instant::now());
        Ok(Self {
            engine,
            socket,
            exchanges: Vec::new(),
            waiting: VecDeque::new(),
            is_changed: true,
            timer: None,
        })
    }

    /// Begins a request, now or as soon as the server allows one more stream.
    pub(crate) fn send(&mut self, request: Request) {
        self.waiting.push_back(request);
        self.send_waiting();
    }

    fn send_waiting(&mut self) {
        while let Some(request) = self.waiting.front() {
            let Some(stream) = self.engine.connection.streams().open(Dir::Bi) else { return };
            let mut output = self.engine.connection.send_stream(stream);
            // A request is shorter than any window of a stream that was just opened.
            let _ = output.write_chunks(&mut [request.bytes.clone()]);
            let _ = output.finish();
            self.exchanges.push(Exchange {
                stream,
                number: request.number,
                since: Instant::now(),
                first: None,
                reader: ResponseReader::default(),
            });
            self.waiting.pop_front();
            self.is_changed = true;
        }
    }

    /// Takes what has happened; returns the bytes of content that were received.
    pub(crate) fn process(&mut self, now: Instant, mut tell: impl FnMut(Happened)) -> u64 {
        self.is_changed = true;
        let mut bytes = 0;
        while let Some(event) = self.engine.next_event() {
            match event {
                Event::Connected => {
                    self.send_settings();
                    self.send_waiting();
                    tell(Happened::Connected);
                }
                Event::ConnectionLost { .. } => tell(Happened::Failed),
                Event::Stream(StreamEvent::Readable { id }) => bytes += self.read(id, now, &mut tell),
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = self.engine.connection.streams().accept(dir) {
                        bytes += self.read(id, now, &mut tell);
                    }
                }
                Event::Stream(StreamEvent::Available { dir: Dir::Bi }) => self.send_waiting(),
                _ => {}
            }
        }
        bytes
    }

    fn send_settings(&mut self) {
        if let Some(control) = self.engine.connection.streams().open(Dir::Uni) {
            let _ = self.engine.connection.send_stream(control).write(SETTINGS);
        }
    }

    /// Reads what a stream has; bytes of the server's own streams are dropped.
    fn read(&mut self, id: StreamId, now: Instant, tell: &mut impl FnMut(Happened)) -> u64 {
        let mut stream = self.engine.connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return 0 };
        let at = self.exchanges.iter().position(|exchange| exchange.stream == id);
        let mut exchange = at.and_then(|at| self.exchanges.get_mut(at));
        let before = exchange.as_ref().map_or(0, |exchange| exchange.reader.content);
        let end = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    if let Some(exchange) = &mut exchange {
                        exchange.first.get_or_insert_with(|| now.saturating_duration_since(exchange.since));
                        exchange.reader.read(&chunk.bytes);
                    }
                }
                Ok(None) => break Some(true),
                Err(quinn_proto::ReadError::Reset(_)) => break Some(false),
                Err(quinn_proto::ReadError::Blocked) => break None,
            }
        };
        let _ = chunks.finalize();
        let received = exchange.map_or(0, |exchange| exchange.reader.content - before);
        if let (Some(is_whole), Some(at)) = (end, at) {
            let Exchange { number, since, first, reader, .. } = self.exchanges.swap_remove(at);
            let took = now.saturating_duration_since(since);
            tell(Happened::Answered(Answer {
                number,
                first: first.unwrap_or(took),
                took,
                is_ok: is_whole && reader.is_ok(),
            }));
        }
        received
    }

    /// Closes the connection; the packet that tells so is to be sent still.
    pub(crate) fn close(&mut self) {
        /// H3_NO_ERROR (RFC 9114, section 8.1).
        const NO_ERROR: u32 = 0x100;
        self.engine.connection.close(Instant::now(), NO_ERROR.into(), Bytes::new());
    }
}
