//! Invariants for any datagrams and frames of a client of QUIC: no panic of the engine, no answer of more than three times the bytes that
//! an unproved address has sent, and an endpoint that serves the next client.
//!
//! The first byte of an input selects: 0 datagrams as they are, each behind its length; 1 frames of an Initial packet; 2 frames of packets
//! of a connection whose handshake is complete, each packet behind its length.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustls::version::TLS13;
use tw_quic::{
    Connection, Datagram, Endpoint, EndpointConfig, HostKeys, Origin, Received, RetryPolicy, TransmitBatch,
    TransportConfig, TransportSettings,
};
use tw_testkit::quic_raw::{Level, RawClient, parameters};
use tw_testkit::tls::Authority;

const SETTINGS: TransportSettings = TransportSettings {
    bidi_streams_max: 100,
    uni_streams_max: 3,
    stream_receive_window: 4096,
    receive_window: 8192,
    idle_timeout: Duration::from_secs(30),
    uses_segments: true,
    connection_ids_max: 2,
};
/// Own ID of the client.
pub(crate) const SOURCE: &[u8] = b"client";

/// Configurations of both sides.
pub(crate) fn configs() -> &'static (Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>) {
    static CONFIGS: OnceLock<(Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>)> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let authority = Authority::new();
        let mut server = (*Authority::server(&[&TLS13], &authority.certify(&["localhost"]))).clone();
        server.alpn_protocols = vec![b"test".to_vec()];
        let mut client = (*authority.client(&[&TLS13])).clone();
        client.alpn_protocols = vec![b"test".to_vec()];
        (Arc::new(server), Arc::new(client))
    })
}

pub(crate) struct Server {
    pub(crate) endpoint: Endpoint,
    now: Instant,
    transport: TransportConfig,
    pub(crate) connections: Vec<Connection>,
    pub(crate) received: usize,
    pub(crate) sent: usize,
    /// True once the client has proved its address.
    is_proved: bool,
}

impl Server {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let origin = Origin { process: 1, event_loop: 0 };
        let config =
            EndpointConfig { keys: HostKeys::derive(b"secret"), origin, retry: RetryPolicy::UnderLoad };
        Self {
            endpoint: Endpoint::new(config, now, Duration::from_secs(1_800_000_000)),
            now,
            transport: TransportConfig::new(&SETTINGS),
            connections: Vec::new(),
            received: 0,
            sent: 0,
            is_proved: false,
        }
    }

    /// Takes a datagram, lets all tasks go on, and returns the answers.
    pub(crate) fn exchange(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let all = self.exchange_from(SocketAddr::from(([192, 0, 2, 7], 4433)), bytes);
        all.into_iter().map(|(_, datagram)| datagram).collect()
    }

    /// Takes a datagram of this address, lets all tasks go on, and returns the answers with their receivers.
    pub(crate) fn exchange_from(&mut self, peer: SocketAddr, bytes: &[u8]) -> Vec<(SocketAddr, Vec<u8>)> {
        self.received += bytes.len();
        if let Received::Connecting(incoming) =
            self.endpoint.receive(self.now, &Datagram { bytes, peer, local: None, ecn: 0 })
        {
            match incoming.begin(configs().0.clone(), || None, &self.transport).run() {
                Ok(begun) => self.connections.extend(incoming.accept(self.now, begun).ok()),
                Err(failure) => incoming.reject(self.now, failure.alert),
            }
        }
        self.run();
        self.answers()
    }

    fn answers(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let (mut batch, mut all) = (TransmitBatch::default(), Vec::new());
        loop {
            self.endpoint.fill(self.now, &mut batch);
            if batch.is_empty() {
                break;
            }
            for message in batch.messages() {
                let size = message.segment.map_or(message.bytes.len(), usize::from).max(1);
                let datagrams = message.bytes.chunks(size);
                all.extend(datagrams.map(|datagram| (message.peer, datagram.to_vec())));
            }
            batch.remove(usize::MAX);
        }
        self.sent += all.iter().map(|(_, datagram)| datagram.len()).sum::<usize>();
        self.is_proved |= self.connections.iter().any(|connection| !connection.is_handshaking());
        if !self.is_proved {
            assert!(self.sent <= self.received * 3, "{} for {}", self.sent, self.received);
        }
        all
    }

    /// Reads and answers all streams.
    fn run(&mut self) {
        let cx = &mut Context::from_waker(Waker::noop());
        for connection in &self.connections {
            let _ = connection.poll_open_uni(cx);
            while let Poll::Ready(Ok(stream)) = connection.poll_accept_uni(cx) {
                let _ = connection.poll_read(stream, cx, 100);
                connection.stop_sending(stream, 1);
            }
            while let Poll::Ready(Ok(stream)) = connection.poll_accept_bidi(cx) {
                while let Poll::Ready(Ok(Some(_))) = connection.poll_read(stream, cx, 100) {}
                let _ = connection.poll_write(stream, cx, &mut [Bytes::from_static(b"answer")]);
                match stream.index() % 3 {
                    0 => drop(connection.finish(stream)),
                    1 => connection.reset(stream, 2),
                    _ => connection.stop_sending(stream, 3),
                }
                let _ = connection.poll_stopped(stream, cx);
                let _ = connection.poll_finished(stream, cx);
            }
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.endpoint.on_timeout(self.now);
        self.run();
        self.answers();
    }
}

pub(crate) fn client() -> RawClient {
    RawClient::new(configs().1.clone(), "localhost", &parameters(SOURCE), SOURCE)
}

/// Exchanges datagrams until neither side has any.
pub(crate) fn shake_hands(server: &mut Server, client: &mut RawClient) {
    for _ in 0..10 {
        for datagram in client.datagrams() {
            server.exchange(&datagram).iter().for_each(|answer| client.receive(answer));
        }
    }
}

/// Parts of an input, each behind two bytes with its length.
fn parts(mut data: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some((len, rest)) = data.split_first_chunk::<2>() {
        let (part, behind) = rest.split_at(usize::from(u16::from_be_bytes(*len)).min(rest.len()));
        parts.push(part);
        data = behind;
    }
    parts
}

pub(crate) fn check(data: &[u8]) {
    let mut server = Server::new();
    let Some((mode, data)) = data.split_first() else { return };
    match mode {
        0 => parts(data).into_iter().for_each(|datagram| drop(server.exchange(datagram))),
        1 => {
            let mut client = client();
            let datagram = client.datagram(Level::Initial, &data[..data.len().min(1100)]);
            datagram.into_iter().for_each(|datagram| drop(server.exchange(&datagram)));
        }
        _ => {
            let mut client = client();
            shake_hands(&mut server, &mut client);
            assert!(client.is_connected(), "{:?}", client.closed);
            for frames in parts(data) {
                let datagram = client.datagram(Level::Application, &frames[..frames.len().min(1100)]);
                for answer in datagram.into_iter().flat_map(|datagram| server.exchange(&datagram)) {
                    client.receive(&answer);
                }
            }
        }
    }
    for _ in 0..3 {
        server.pass(Duration::from_millis(700));
    }
    server.pass(Duration::from_secs(100));
    assert_eq!(server.endpoint.statistics().panics, 0);
    server.connections.clear();
    server.pass(Duration::from_secs(100));
    assert_eq!((server.endpoint.connections(), server.endpoint.handshakes()), (0, 0));
}
