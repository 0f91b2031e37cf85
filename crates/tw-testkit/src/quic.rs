//! QUIC client with an engine of others: [`QuicClient`] without I/O, for simulated networks, and [`UdpClient`] over a socket. Under both
//! is [`ClientEngine`], also for loads, which have no use for what a [`QuicClient`] keeps.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, ReadError, StreamEvent, StreamId, TransportConfig, VarInt,
};

use crate::wait::TIMEOUT;

/// Endpoint of the engine with its only connection, without I/O.
pub struct ClientEngine {
    endpoint: Endpoint,
    handle: ConnectionHandle,
    /// The engine's connection.
    pub connection: Connection,
    /// Datagrams of the endpoint itself.
    responses: VecDeque<Vec<u8>>,
}

impl ClientEngine {
    /// Begins a handshake with the server `name`.
    ///
    /// # Panics
    /// The settings cannot be used.
    #[must_use]
    pub fn connect(
        own: EndpointConfig,
        config: ClientConfig,
        name: &str,
        server: SocketAddr,
        now: Instant,
    ) -> Self {
        let mut endpoint = Endpoint::new(Arc::new(own), None, true, None);
        let (handle, connection) =
            endpoint.connect(now, config, server, name).expect("a connection is begun");
        Self { endpoint, handle, connection, responses: VecDeque::new() }
    }

    /// Takes a datagram of the server.
    pub fn receive(&mut self, bytes: BytesMut, server: SocketAddr, now: Instant) {
        let mut out = Vec::new();
        match self.endpoint.handle(now, server, None, None, bytes, &mut out) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.connection.handle_event(event),
            Some(DatagramEvent::Response(_)) => self.responses.push_back(out),
            Some(DatagramEvent::NewConnection(_)) | None => {}
        }
    }

    /// Next event of the connection. All have to be taken after each call that may cause some.
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(answer);
            }
        }
        self.connection.poll()
    }
}

/// One connection of a client, without I/O.
pub struct QuicClient {
    /// Engine.
    pub engine: ClientEngine,
    /// True once the handshake is complete.
    pub is_connected: bool,
    /// Reason of the end, once there is one.
    pub lost: Option<ConnectionError>,
    /// Streams that the server has opened in its direction.
    pub opened: Vec<u64>,
    /// Received bytes of streams, in order.
    pub received: BTreeMap<u64, Vec<u8>>,
    /// Streams that have ended: `None` at their end, or the code of a reset.
    pub ended: BTreeMap<u64, Option<u64>>,
    /// Codes of STOP_SENDING.
    pub stopped: BTreeMap<u64, u64>,
    /// Size of the largest datagram that has come.
    pub largest_datagram: usize,
}

/// Settings of a client.
#[derive(Clone)]
pub struct ClientSettings {
    /// TLS: authorities, protocols, early data.
    pub tls: Arc<rustls::ClientConfig>,
    /// Name of the server.
    pub name: String,
    /// Streams that the server may open.
    pub uni_streams: u32,
    /// Bytes of one stream that the server may send before they are read; `None` for those of the engine.
    pub stream_window: Option<u32>,
    /// Size of the largest datagram that the server may send: `max_udp_payload_size`.
    pub datagram_size_max: u16,
    /// Version of QUIC.
    pub version: u32,
    /// Seed of all random numbers.
    pub seed: u8,
}

impl ClientSettings {
    /// Usual settings.
    #[must_use]
    pub fn new(tls: Arc<rustls::ClientConfig>, name: &str) -> Self {
        Self {
            tls,
            name: name.to_owned(),
            uni_streams: 8,
            stream_window: None,
            datagram_size_max: 1472,
            version: 1,
            seed: 1,
        }
    }
}

impl QuicClient {
    /// Begins a handshake.
    ///
    /// # Panics
    /// The settings cannot be used.
    #[must_use]
    pub fn connect(settings: &ClientSettings, server: SocketAddr, now: Instant) -> Self {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &[settings.seed; 32]);
        let mut own = EndpointConfig::new(Arc::new(key));
        own.rng_seed(Some([settings.seed; 32]));
        own.supported_versions(vec![1, settings.version]);
        own.max_udp_payload_size(settings.datagram_size_max).expect("1,200 to 65,527 bytes");
        let crypto = QuicClientConfig::try_from(settings.tls.clone()).expect("a suite for Initial packets");
        let mut config = ClientConfig::new(Arc::new(crypto));
        let mut transport = TransportConfig::default();
        transport.max_concurrent_uni_streams(settings.uni_streams.into());
        if let Some(window) = settings.stream_window {
            transport.stream_receive_window(window.into());
        }
        config.transport_config(Arc::new(transport)).version(settings.version);
        Self {
            engine: ClientEngine::connect(own, config, &settings.name, server, now),
            is_connected: false,
            lost: None,
            opened: Vec::new(),
            received: BTreeMap::new(),
            ended: BTreeMap::new(),
            stopped: BTreeMap::new(),
            largest_datagram: 0,
        }
    }

    /// Takes a datagram of the server.
    pub fn receive(&mut self, bytes: &[u8], server: SocketAddr, now: Instant) {
        self.largest_datagram = self.largest_datagram.max(bytes.len());
        self.engine.receive(BytesMut::from(bytes), server, now);
        self.process();
    }

    /// Datagrams that are to be sent.
    #[must_use]
    pub fn datagrams(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut all: Vec<_> = self.engine.responses.drain(..).collect();
        loop {
            let mut bytes = Vec::new();
            let Some(transmit) = self.engine.connection.poll_transmit(now, 16, &mut bytes) else { break };
            bytes.truncate(transmit.size);
            let size = transmit.segment_size.unwrap_or(bytes.len()).max(1);
            all.extend(bytes.chunks(size).map(<[u8]>::to_vec));
        }
        self.process();
        all
    }

    /// Time of the next timer.
    #[must_use]
    pub fn next_timeout(&mut self) -> Option<Instant> {
        self.engine.connection.poll_timeout()
    }

    /// Runs timers that are due.
    pub fn on_timeout(&mut self, now: Instant) {
        self.engine.connection.handle_timeout(now);
        self.process();
    }

    fn process(&mut self) {
        while let Some(event) = self.engine.next_event() {
            match event {
                Event::Connected => self.is_connected = true,
                Event::ConnectionLost { reason } => self.lost = Some(reason),
                Event::Stream(StreamEvent::Readable { id }) => self.read(id),
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    while let Some(id) = self.engine.connection.streams().accept(Dir::Uni) {
                        self.opened.push(id.into());
                        self.read(id);
                    }
                }
                Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                    self.stopped.insert(id.into(), error_code.into_inner());
                }
                _ => {}
            }
        }
    }

    fn read(&mut self, id: StreamId) {
        let received = self.received.entry(id.into()).or_default();
        let mut stream = self.engine.connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => received.extend_from_slice(&chunk.bytes),
                Ok(None) => {
                    self.ended.insert(id.into(), None);
                    break;
                }
                Err(ReadError::Reset(code)) => {
                    self.ended.insert(id.into(), Some(code.into_inner()));
                    break;
                }
                Err(ReadError::Blocked) => break,
            }
        }
        let _ = chunks.finalize();
    }

    /// Opens a stream in both directions.
    pub fn open_bidi(&mut self) -> Option<u64> {
        self.engine.connection.streams().open(Dir::Bi).map(u64::from)
    }

    /// Opens a stream in the client's direction.
    pub fn open_uni(&mut self) -> Option<u64> {
        self.engine.connection.streams().open(Dir::Uni).map(u64::from)
    }

    /// Writes as much as there is room for, and returns its length.
    pub fn write(&mut self, stream: u64, bytes: &[u8]) -> usize {
        self.engine.connection.send_stream(id(stream)).write(bytes).unwrap_or(0)
    }

    /// Ends the output of a stream.
    pub fn finish(&mut self, stream: u64) {
        let _ = self.engine.connection.send_stream(id(stream)).finish();
    }

    /// Cuts the output of a stream.
    pub fn reset(&mut self, stream: u64, code: u32) {
        let _ = self.engine.connection.send_stream(id(stream)).reset(code.into());
    }

    /// Reads no more of a stream.
    pub fn stop(&mut self, stream: u64, code: u32) {
        let _ = self.engine.connection.recv_stream(id(stream)).stop(code.into());
    }

    /// Closes the connection.
    pub fn close(&mut self, code: u32, now: Instant) {
        self.engine.connection.close(now, code.into(), Bytes::from_static(b"bye"));
    }
}

fn id(stream: u64) -> StreamId {
    StreamId::from(VarInt::from_u64(stream).expect("a stream that exists"))
}

/// A client over a socket. Time passes only in [`UdpClient::until`].
pub struct UdpClient {
    socket: UdpSocket,
    server: SocketAddr,
    /// The connection.
    pub client: QuicClient,
}

impl UdpClient {
    /// Begins a handshake with a server of this machine.
    ///
    /// # Errors
    /// No socket can be had.
    pub fn connect(settings: &ClientSettings, server: SocketAddr) -> io::Result<Self> {
        let own: SocketAddr = if server.is_ipv4() {
            ([127, 0, 0, 1], 0).into()
        } else {
            "[::1]:0".parse().expect("an address")
        };
        let socket = UdpSocket::bind(own)?;
        Ok(Self { socket, server, client: QuicClient::connect(settings, server, Instant::now()) })
    }

    /// Sends from another port from now on, as behind a gateway that has forgotten the old one.
    ///
    /// # Errors
    /// No socket can be had.
    pub fn rebind(&mut self) -> io::Result<()> {
        self.rebind_to(self.socket.local_addr()?.ip())
    }

    /// Sends from another address of this machine from now on, as in another network.
    ///
    /// # Errors
    /// No socket can be had.
    pub fn rebind_to(&mut self, ip: IpAddr) -> io::Result<()> {
        self.socket = UdpSocket::bind(SocketAddr::new(ip, 0))?;
        Ok(())
    }

    /// Own address.
    ///
    /// # Errors
    /// As `getsockname()`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends and receives until `done` has a result, or a deadline.
    ///
    /// # Errors
    /// `TimedOut` after [`TIMEOUT`]; the error of the socket.
    pub fn until<T>(&mut self, mut done: impl FnMut(&mut QuicClient) -> Option<T>) -> io::Result<T> {
        let deadline = Instant::now() + TIMEOUT;
        let mut buffer = vec![0; 65_536];
        loop {
            if let Some(result) = done(&mut self.client) {
                self.send()?;
                return Ok(result);
            }
            self.send()?;
            let now = Instant::now();
            if now >= deadline {
                let state = format!("connected {}, lost {:?}", self.client.is_connected, self.client.lost);
                return Err(io::Error::new(io::ErrorKind::TimedOut, state));
            }
            let timer = self.client.next_timeout().unwrap_or(deadline).min(deadline);
            let wait =
                timer.saturating_duration_since(now).clamp(Duration::from_millis(1), Duration::from_secs(1));
            self.socket.set_read_timeout(Some(wait))?;
            match self.socket.recv_from(&mut buffer) {
                Ok((len, from)) => self.client.receive(&buffer[..len], from, Instant::now()),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    self.client.on_timeout(Instant::now());
                }
                // The port has no listener (any more).
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self) -> io::Result<()> {
        for datagram in self.client.datagrams(Instant::now()) {
            self.socket.send_to(&datagram, self.server)?;
        }
        Ok(())
    }

    /// Completes the handshake.
    ///
    /// # Errors
    /// As [`until`](Self::until).
    pub fn connected(&mut self) -> io::Result<()> {
        self.until(|client| client.is_connected.then_some(()))
    }
}
