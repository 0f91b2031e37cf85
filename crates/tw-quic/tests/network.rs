//! An endpoint and a client with a simulated network between them, which loses, reorders, repeats and corrupts datagrams by a seed. Time is
//! that of the simulation.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustls::version::TLS13;
use tw_quic::{
    Connection, ConnectionError, Datagram, Endpoint, EndpointConfig, HostKeys, IncomingConnection, Origin,
    Received, RetryPolicy, StreamError, StreamId, TransmitBatch, TransportConfig, TransportSettings,
};
use tw_testkit::Random;
use tw_testkit::quic::{ClientSettings, QuicClient};
use tw_testkit::tls::Authority;

const SERVER: &str = "192.0.2.1:443";
/// Time of one way.
const DELAY: Duration = Duration::from_millis(10);
/// MTU of the routes to clients in private networks, and the largest datagram of QUIC in such a packet.
const ROUTE_MTU: u32 = 9000;
const ROUTE_SIZE: u16 = 8972;
/// `max_udp_payload_size` of a client that takes any datagram.
const ANY_SIZE: u16 = 65_527;
const SETTINGS: TransportSettings = TransportSettings {
    bidi_streams_max: 100,
    uni_streams_max: 3,
    stream_receive_window: 64 << 10,
    receive_window: 1 << 20,
    idle_timeout: Duration::from_secs(30),
    uses_segments: false,
    connection_ids_max: 2,
};

fn server_address() -> SocketAddr {
    SERVER.parse().unwrap()
}

/// Faults of a network, in percent of the datagrams.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    lost: usize,
    repeated: usize,
    /// Part that takes up to five times as long as others.
    late: usize,
    corrupted: usize,
}

/// Receiver of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum To {
    Server,
    Client,
}

type Flying = Reverse<(Instant, u64, To, SocketAddr, Vec<u8>)>;

/// Server whose connections return what they are sent, as each stream ends.
struct Echo {
    endpoint: Endpoint,
    tls: Arc<rustls::ServerConfig>,
    transport: TransportConfig,
    connections: Vec<EchoConnection>,
    /// Client hellos that nobody has accepted, if they are not accepted at once.
    waiting: Option<Vec<IncomingConnection>>,
    failed: Vec<ConnectionError>,
    elsewhere: Vec<Origin>,
}

/// Sessions are kept by the server, as early data needs it.
#[derive(Debug)]
struct NoTickets;

impl rustls::server::ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _plain: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _cipher: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

struct EchoConnection {
    connection: Connection,
    streams: Vec<(StreamId, Vec<Bytes>, bool)>,
}

impl Echo {
    fn new(authority: &Authority, retry: RetryPolicy, now: Instant) -> Self {
        let mut tls = (*Authority::server(&[&TLS13], &authority.certify(&["localhost"]))).clone();
        tls.alpn_protocols = vec![b"echo".to_vec()];
        tls.max_early_data_size = u32::MAX;
        tls.ticketer = Arc::new(NoTickets);
        let origin = Origin { process: 1, event_loop: 2 };
        let config = EndpointConfig { keys: HostKeys::derive(b"secret"), origin, retry };
        Self {
            endpoint: Endpoint::new(config, now, Duration::from_secs(1_800_000_000)),
            tls: Arc::new(tls),
            transport: TransportConfig::new(&SETTINGS),
            connections: Vec::new(),
            waiting: None,
            failed: Vec::new(),
            elsewhere: Vec::new(),
        }
    }

    fn receive(&mut self, now: Instant, peer: SocketAddr, bytes: &[u8]) {
        let local = Some(server_address().ip());
        match self.endpoint.receive(now, &Datagram { bytes, peer, local, ecn: 0 }) {
            Received::Done | Received::Refused => {}
            Received::Elsewhere(origin) => self.elsewhere.push(origin),
            Received::Connecting(incoming) => match &mut self.waiting {
                Some(waiting) => waiting.push(incoming),
                None => self.accept(now, incoming),
            },
        }
    }

    fn accept(&mut self, now: Instant, mut incoming: IncomingConnection) {
        assert_eq!(incoming.hello()[0], 1);
        incoming.allow_large_datagrams(|_| Some(ROUTE_MTU));
        let begun = incoming.begin(self.tls.clone(), || None, &self.transport).run();
        let begun = match begun {
            Ok(begun) => begun,
            Err(failure) => return incoming.reject(now, failure.alert),
        };
        match incoming.accept(now, begun) {
            Ok(connection) => self.connections.push(EchoConnection { connection, streams: Vec::new() }),
            Err(error) => self.failed.push(error),
        }
    }

    /// Lets all tasks go on.
    fn run(&mut self) {
        self.connections.iter_mut().for_each(EchoConnection::run);
    }
}

impl EchoConnection {
    fn run(&mut self) {
        let cx = &mut Context::from_waker(Waker::noop());
        while let Poll::Ready(Ok(stream)) = self.connection.poll_accept_bidi(cx) {
            self.streams.push((stream, Vec::new(), false));
        }
        for (stream, chunks, has_ended) in &mut self.streams {
            while !*has_ended {
                match self.connection.poll_read(*stream, cx, 4096) {
                    Poll::Ready(Ok(Some(bytes))) => chunks.push(bytes),
                    Poll::Ready(Ok(None)) => *has_ended = true,
                    Poll::Ready(Err(_)) | Poll::Pending => break,
                }
            }
            while let Poll::Ready(Ok(1..)) = self.connection.poll_write(*stream, cx, chunks) {
                chunks.retain(|chunk| !chunk.is_empty());
            }
            if *has_ended && chunks.is_empty() {
                let _ = self.connection.finish(*stream);
            }
        }
    }
}

struct Net {
    now: Instant,
    random: Random,
    faults: Faults,
    flying: BinaryHeap<Flying>,
    sent: u64,
    server: Echo,
    client: QuicClient,
    client_address: SocketAddr,
    /// Largest datagram that the path carries to the client.
    path_size: usize,
    /// Bytes that the server has received from, and sent to the client's address.
    received: usize,
    answered: usize,
    /// Answers that go to other addresses than the client's.
    stray: Vec<(SocketAddr, Vec<u8>)>,
}

impl Net {
    fn new(seed: u64, faults: Faults, retry: RetryPolicy) -> Self {
        let authority = Authority::new();
        Self::with(&authority, (seed, faults), retry, |settings| settings)
    }

    fn with(
        authority: &Authority,
        (seed, faults): (u64, Faults),
        retry: RetryPolicy,
        change: impl FnOnce(ClientSettings) -> ClientSettings,
    ) -> Self {
        let now = Instant::now();
        let server = Echo::new(authority, retry, now);
        let mut tls = (*authority.client(&[&TLS13])).clone();
        tls.alpn_protocols = vec![b"echo".to_vec()];
        let settings = change(ClientSettings::new(Arc::new(tls), "localhost"));
        let client = QuicClient::connect(&settings, server_address(), now);
        Self {
            now,
            random: Random::new(seed),
            faults,
            flying: BinaryHeap::new(),
            sent: 0,
            server,
            client,
            client_address: "198.51.100.7:50000".parse().unwrap(),
            path_size: usize::MAX,
            received: 0,
            answered: 0,
            stray: Vec::new(),
        }
    }

    fn send(&mut self, to: To, peer: SocketAddr, mut bytes: Vec<u8>) {
        let faults = self.faults;
        if self.random.happens(faults.lost) || (to == To::Client && bytes.len() > self.path_size) {
            return;
        }
        if self.random.happens(faults.corrupted) && !bytes.is_empty() {
            let at = self.random.below(bytes.len());
            bytes[at] ^= 1 << self.random.below(8);
        }
        for _ in 0..if self.random.happens(faults.repeated) { 2 } else { 1 } {
            let late = if self.random.happens(faults.late) { self.random.below(5) as u32 } else { 0 };
            let at = self.now + DELAY + DELAY * late;
            self.flying.push(Reverse((at, self.sent, to, peer, bytes.clone())));
            self.sent += 1;
        }
    }

    /// Lets both sides send what they have.
    fn flush(&mut self) {
        self.server.run();
        let mut batch = TransmitBatch::default();
        loop {
            self.server.endpoint.fill(self.now, &mut batch);
            if batch.is_empty() {
                break;
            }
            for message in batch.messages() {
                let size = message.segment.map_or(message.bytes.len(), usize::from).max(1);
                for datagram in message.bytes.chunks(size) {
                    if message.peer == self.client_address {
                        self.answered += datagram.len();
                        self.send(To::Client, server_address(), datagram.to_vec());
                    } else {
                        self.stray.push((message.peer, datagram.to_vec()));
                    }
                }
            }
            batch.remove(usize::MAX);
        }
        for datagram in self.client.datagrams(self.now) {
            self.send(To::Server, self.client_address, datagram);
        }
    }

    /// Goes on to the next event. False if there is none.
    fn step(&mut self) -> bool {
        self.flush();
        let arrival = self.flying.peek().map(|Reverse((at, ..))| *at);
        let timers = [arrival, self.server.endpoint.next_timeout(), self.client.next_timeout()];
        let Some(at) = timers.into_iter().flatten().min() else { return false };
        self.now = self.now.max(at);
        while let Some(Reverse((at, ..))) = self.flying.peek()
            && *at <= self.now
        {
            let Some(Reverse((_, _, to, peer, bytes))) = self.flying.pop() else { break };
            match to {
                To::Server => {
                    self.received += bytes.len();
                    self.server.receive(self.now, peer, &bytes);
                }
                To::Client => self.client.receive(&bytes, peer, self.now),
            }
        }
        self.server.endpoint.on_timeout(self.now);
        self.client.on_timeout(self.now);
        true
    }

    /// Goes on until `done`, for two minutes of the simulation at most.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = self.now + Duration::from_secs(120);
        while !done(self) {
            assert!(
                self.step() && self.now < deadline,
                "{what}: {:?} {:?}",
                self.client.lost,
                self.server.failed
            );
        }
    }

    fn connected(&mut self) -> &Connection {
        self.until("handshake", |net| net.client.is_connected);
        self.until("confirmation", |net| {
            net.server.connections.first().is_some_and(|one| !one.connection.is_handshaking())
        });
        &self.server.connections[0].connection
    }

    /// Sends bytes on a new stream, and checks that they come back.
    fn echo(&mut self, bytes: &[u8]) {
        let stream = self.client.open_bidi().unwrap();
        let mut rest = bytes;
        self.until("echo", |net| {
            let written_len = net.client.write(stream, rest);
            rest = &rest[written_len..];
            if rest.is_empty() {
                net.client.finish(stream);
            }
            net.client.ended.contains_key(&stream)
        });
        assert_eq!(self.client.ended[&stream], None);
        assert!(self.client.received[&stream] == bytes, "the echo differs");
    }
}

#[test]
fn stream_is_served() {
    let mut net = Net::new(1, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    let facts = connection.take_tls_facts().unwrap();
    assert_eq!(facts.server_name.as_deref(), Some("localhost"));
    assert_eq!(facts.protocol.as_deref(), Some(&b"echo"[..]));
    assert!(facts.suite.is_some() && !facts.is_resumed && facts.client_chain.is_empty());
    assert_eq!((connection.peer(), connection.local()), (net.client_address, Some(server_address().ip())));
    net.echo(b"hello");
    net.echo(&vec![7; 300_000]);
    let statistics = connection.statistics();
    assert!(statistics.rtt >= DELAY * 2 && statistics.received_bytes > 300_000, "{statistics:?}");
    assert_eq!((net.server.endpoint.handshakes(), net.server.endpoint.connections()), (0, 1));
}

#[test]
fn faults_of_the_network_change_nothing() {
    for seed in 0..30 {
        let faults = Faults { lost: 5, repeated: 5, late: 20, corrupted: 3 };
        let mut net = Net::new(seed, faults, RetryPolicy::UnderLoad);
        net.connected();
        let bytes = Random::new(seed).bytes(50_000);
        net.echo(&bytes);
        net.echo(b"x");
        assert_eq!(net.server.endpoint.statistics().panics, 0);
    }
}

#[test]
fn client_without_proved_address_gets_three_times_its_bytes_at_most() {
    for seed in 0..20 {
        let faults = Faults { lost: 20, ..Faults::default() };
        let mut net = Net::new(seed, faults, RetryPolicy::UnderLoad);
        let authority = Authority::new();
        // A chain that is much larger than three datagrams.
        let names: Vec<String> =
            (0..400).map(|at| format!("name-{at}.of.a.long.certificate.example")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.push("localhost");
        let mut tls = (*Authority::server(&[&TLS13], &authority.certify(&names))).clone();
        tls.alpn_protocols = vec![b"echo".to_vec()];
        net.server.tls = Arc::new(tls);
        let hello = net.client.datagrams(net.now);
        let (client, other) = (net.client_address, "203.0.113.1:1000".parse().unwrap());
        hello.iter().for_each(|datagram| net.send(To::Server, client, datagram.clone()));
        for _ in 0..200 {
            // Bytes from another address pay for nothing.
            if !net.server.connections.is_empty() {
                hello.iter().for_each(|datagram| net.server.receive(net.now, other, datagram));
            }
            if !net.step() || net.server.connections.iter().any(|one| !one.connection.is_handshaking()) {
                break;
            }
            // The client refuses the certificate, which is not its authority's, in a packet that proves its address.
            if net.client.lost.is_some() {
                break;
            }
            assert!(net.answered <= 3 * net.received, "{seed}: {} for {}", net.answered, net.received);
        }
        assert!(net.answered > 0);
    }
}

#[test]
fn retry_proves_the_address() {
    let mut net = Net::new(3, Faults::default(), RetryPolicy::Always);
    net.step();
    net.flush();
    assert_eq!((net.server.connections.len(), net.server.endpoint.statistics().retries), (0, 1));
    net.connected();
    net.echo(b"after the retry");
    assert_eq!(net.server.endpoint.statistics().retries, 1);
}

#[test]
fn retry_is_demanded_while_many_handshakes_are_under_way() {
    let authority = Authority::new();
    let mut net = Net::new(4, Faults::default(), RetryPolicy::UnderLoad);
    net.server.waiting = Some(Vec::new());
    let mut tls = (*authority.client(&[&TLS13])).clone();
    tls.alpn_protocols = vec![b"echo".to_vec()];
    let tls = Arc::new(tls);
    for at in 0..300u32 {
        let mut settings = ClientSettings::new(tls.clone(), "localhost");
        settings.seed = (at % 250) as u8;
        let mut client = QuicClient::connect(&settings, server_address(), net.now);
        let peer = SocketAddr::from(([203, 0, 113, 1], 1000 + at as u16));
        for datagram in client.datagrams(net.now) {
            net.server.receive(net.now, peer, &datagram);
        }
    }
    let statistics = net.server.endpoint.statistics();
    assert!(statistics.retries >= 40, "{statistics:?}");
    assert!(net.server.endpoint.handshakes() <= 256);
    // Handshakes that were dropped are not counted any more.
    net.server.waiting = Some(Vec::new());
    assert_eq!(net.server.endpoint.handshakes(), 0);
}

#[test]
fn rejected_handshake_tells_the_alert() {
    let mut net = Net::new(5, Faults::default(), RetryPolicy::UnderLoad);
    net.server.waiting = Some(Vec::new());
    net.until("hello", |net| net.server.waiting.as_ref().is_some_and(|all| !all.is_empty()));
    let incoming = net.server.waiting.take().unwrap().remove(0);
    incoming.reject(net.now, 112);
    net.until("alert", |net| net.client.lost.is_some());
    let text = format!("{:?}", net.client.lost);
    assert!(text.contains("crypto(70)"), "{text}");
    assert_eq!(net.server.endpoint.connections(), 0);
}

#[test]
fn unknown_version_is_negotiated() {
    let authority = Authority::new();
    let net = Net::new(6, Faults::default(), RetryPolicy::UnderLoad);
    let mut datagram = vec![0xc0, 0xfa, 0xce, 0xb0, 0x0c, 8];
    datagram.extend([1; 8]);
    datagram.push(4);
    datagram.extend([2; 4]);
    datagram.resize(1200, 0);
    let mut net = net;
    let peer = "203.0.113.1:1000".parse().unwrap();
    net.server.receive(net.now, peer, &datagram);
    net.flush();
    let (to, answer) = &net.stray[0];
    assert_eq!(*to, peer);
    assert!(answer[0] & 0x80 != 0 && answer[1..5] == [0; 4], "version negotiation");
    assert!(answer.chunks(4).count() > 4 && answer.ends_with(&[0, 0, 0, 1]));
    // A short one gets no answer, which would be larger.
    net.server.receive(net.now, peer, &datagram[..600]);
    net.flush();
    assert_eq!(net.stray.len(), 1);
    drop(authority);
}

#[test]
fn connection_that_was_lost_is_reset() {
    let authority = Authority::new();
    let mut net = Net::with(&authority, (7, Faults::default()), RetryPolicy::UnderLoad, |settings| settings);
    net.connected();
    // The server process has died; the next one has the same key.
    net.server = Echo::new(&authority, RetryPolicy::UnderLoad, net.now);
    let stream = net.client.open_bidi().unwrap();
    net.client.write(stream, &[0; 100]);
    net.until("reset", |net| net.client.lost.is_some());
    assert!(matches!(net.client.lost, Some(quinn_proto::ConnectionError::Reset)), "{:?}", net.client.lost);
    assert_eq!(net.server.endpoint.statistics().resets, 1);
}

#[test]
fn datagram_of_another_loop_is_passed_on() {
    let mut net = Net::new(8, Faults::default(), RetryPolicy::UnderLoad);
    net.connected();
    let authority = Authority::new();
    let origin = Origin { process: 1, event_loop: 9 };
    let mut other = Echo::new(&authority, RetryPolicy::UnderLoad, net.now);
    let config = EndpointConfig { keys: HostKeys::derive(b"secret"), origin, retry: RetryPolicy::UnderLoad };
    other.endpoint = Endpoint::new(config, net.now, Duration::ZERO);
    let stream = net.client.open_bidi().unwrap();
    net.client.write(stream, &[0; 100]);
    for datagram in net.client.datagrams(net.now) {
        other.receive(net.now, net.client_address, &datagram);
    }
    assert_eq!(other.elsewhere, [Origin { process: 1, event_loop: 2 }]);
    // Once that loop has ended, the client gets a reset.
    net.client.write(stream, &[0; 100]);
    for bytes in net.client.datagrams(net.now) {
        let datagram = Datagram { bytes: &bytes, peer: net.client_address, local: None, ecn: 0 };
        other.endpoint.reset(net.now, &datagram);
    }
    let mut batch = TransmitBatch::default();
    other.endpoint.fill(net.now, &mut batch);
    net.client.receive(&batch.messages()[0].bytes, server_address(), net.now);
    assert!(matches!(net.client.lost, Some(quinn_proto::ConnectionError::Reset)), "{:?}", net.client.lost);
}

#[test]
fn client_moves_to_another_address() {
    let mut net = Net::new(9, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    net.echo(b"before");
    let old = net.client_address;
    net.client_address = "198.51.100.7:50001".parse().unwrap();
    net.client.engine.connection.ping();
    net.flush();
    // The address does not change before the new path is validated.
    assert_eq!(connection.peer(), old);
    net.echo(&vec![1; 20_000]);
    net.until("validation", |net| connection.peer() == net.client_address);
    assert!(connection.close_reason().is_none());
}

#[test]
fn forged_address_is_not_believed() {
    let mut net = Net::new(10, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    net.echo(b"before");
    let (real, forged) = (net.client_address, "192.0.2.66:1".parse().unwrap());
    net.client.engine.connection.ping();
    for datagram in net.client.datagrams(net.now) {
        net.server.receive(net.now, forged, &datagram);
    }
    for _ in 0..20 {
        net.step();
        assert_eq!(connection.peer(), real);
    }
    assert!(!net.stray.is_empty(), "the new path is probed");
}

/// A connection whose server has much to send, and whose client has received a part of it.
fn download(seed: u64) -> (Net, Connection, impl FnMut(&mut Net, usize)) {
    let mut net = Net::new(seed, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    let cx = &mut Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(stream)) = connection.poll_open_uni(cx) else { panic!("a stream is allowed") };
    let (writer, mut rest) = (connection.clone(), [Bytes::from(vec![7; 300_000])]);
    let mut receive = move |net: &mut Net, len: usize| {
        net.until("download", |net| {
            let cx = &mut Context::from_waker(Waker::noop());
            while let Poll::Ready(Ok(1..)) = writer.poll_write(stream, cx, &mut rest) {}
            net.client.received.get(&stream.value()).is_some_and(|bytes| bytes.len() >= len)
        });
    };
    receive(&mut net, 50_000);
    (net, connection, receive)
}

/// The only datagram of a client that has something to say.
fn ping(net: &mut Net) -> Vec<u8> {
    net.client.engine.connection.ping();
    let [datagram] = &net.client.datagrams(net.now)[..] else { panic!("one datagram") };
    assert!(datagram.len() < 60, "{}", datagram.len());
    datagram.clone()
}

#[test]
fn moved_client_gets_three_times_its_bytes_until_it_has_answered() {
    // One client moves to another port, one to another network, about whose path nothing is known.
    for (seed, moved) in [(31, "198.51.100.7:50001"), (32, "203.0.113.9:50000")] {
        let (mut net, connection, mut receive) = download(seed);
        // All datagrams in flight are lost with the old path.
        net.flying.clear();
        let datagram = ping(&mut net);
        net.client_address = moved.parse().unwrap();
        net.server.receive(net.now, net.client_address, &datagram);
        (net.received, net.answered) = (datagram.len(), 0);
        net.flush();
        assert!(net.answered > 0, "the client is asked for its proof");
        while connection.peer() != net.client_address {
            assert!(net.answered <= 3 * net.received, "{} for {}", net.answered, net.received);
            assert!(net.step() && net.client.lost.is_none());
        }
        receive(&mut net, 300_000);
    }
}

/// A client in a private network, which takes datagrams of this size.
fn private(seed: u64, datagram_size_max: u16) -> Net {
    let change = |settings| ClientSettings { datagram_size_max, ..settings };
    let mut net = Net::with(&Authority::new(), (seed, Faults::default()), RetryPolicy::UnderLoad, change);
    net.client_address = "10.1.2.3:50000".parse().unwrap();
    net
}

#[test]
fn datagrams_are_as_large_as_route_and_path_and_client_take() {
    // The search ends when it knows the size to 20 bytes.
    for (seed, client, path, sizes) in [
        (35, ANY_SIZE, usize::MAX, ROUTE_SIZE..=ROUTE_SIZE),
        (36, ANY_SIZE, 3000, 2980..=3000),
        (37, ANY_SIZE, 1200, 1200..=1200),
        (38, 4000, usize::MAX, 4000..=4000),
        (39, 1300, usize::MAX, 1300..=1300),
        (40, 1200, usize::MAX, 1200..=1200),
    ] {
        let mut net = private(seed, client);
        net.path_size = path;
        let connection = net.connected().clone();
        for _ in 0..10 {
            net.echo(&vec![1; 200_000]);
        }
        let mtu = connection.statistics().mtu;
        assert!(sizes.contains(&mtu), "{mtu} for {client} and {path}");
        assert_eq!(net.client.largest_datagram, usize::from(mtu), "{client} and {path}");
    }
    // On the Internet, the MTU of the route does not count.
    let mut net = Net::with(&Authority::new(), (41, Faults::default()), RetryPolicy::UnderLoad, |settings| {
        ClientSettings { datagram_size_max: ANY_SIZE, ..settings }
    });
    let connection = net.connected().clone();
    net.echo(&vec![1; 200_000]);
    assert_eq!((connection.statistics().mtu, net.client.largest_datagram), (1452, 1452));
}

#[test]
fn path_that_carries_large_datagrams_no_more_gets_small_ones() {
    let mut net = private(42, ANY_SIZE);
    let connection = net.connected().clone();
    net.echo(&vec![1; 500_000]);
    assert_eq!(connection.statistics().mtu, ROUTE_SIZE);
    net.path_size = 1400;
    net.echo(&vec![2; 500_000]);
    assert_eq!(connection.statistics().mtu, 1200);
    // The path is searched again after a minute.
    for _ in 0..14 {
        net.now += Duration::from_secs(5);
        net.echo(b"later");
    }
    for _ in 0..10 {
        net.echo(&vec![3; 200_000]);
    }
    let mtu = connection.statistics().mtu;
    assert!((1380..=1400).contains(&mtu), "{mtu}");
}

#[test]
fn moved_client_gets_small_datagrams_until_its_new_path_is_searched() {
    // One client moves to another port, one to another network.
    for (seed, moved) in [(43, "10.1.2.3:50001"), (44, "10.9.8.7:50000")] {
        let mut net = private(seed, ANY_SIZE);
        let connection = net.connected().clone();
        net.echo(&vec![1; 500_000]);
        assert_eq!(connection.statistics().mtu, ROUTE_SIZE);
        let datagram = ping(&mut net);
        (net.client_address, net.path_size) = (moved.parse().unwrap(), 2000);
        net.server.receive(net.now, net.client_address, &datagram);
        net.flush();
        assert_eq!(connection.statistics().mtu, 1200, "{moved}");
        for _ in 0..10 {
            net.echo(&vec![2; 200_000]);
        }
        let mtu = connection.statistics().mtu;
        assert!((1980..=2000).contains(&mtu), "{mtu}");
    }
}

#[test]
fn hundred_addresses_get_three_times_their_bytes_each() {
    let (mut net, connection, mut receive) = download(33);
    for host in 0..100 {
        let datagram = ping(&mut net);
        let (real, forged) = (net.client_address, SocketAddr::from(([203, 0, 113, host], 443)));
        net.server.receive(net.now, forged, &datagram);
        for _ in 0..1 + host % 3 {
            net.flush();
            net.now += Duration::from_millis(1);
            net.server.endpoint.on_timeout(net.now);
        }
        let sent: usize =
            net.stray.iter().filter(|(to, _)| *to == forged).map(|(_, datagram)| datagram.len()).sum();
        assert!(sent > 0 && sent <= 3 * datagram.len(), "{sent} for {}", datagram.len());
        assert_eq!(connection.peer(), real);
    }
    // The client itself goes on.
    receive(&mut net, 300_000);
    assert!(net.stray.iter().map(|(_, datagram)| datagram.len()).sum::<usize>() < 100 * 3 * 60);
}

#[test]
fn forged_addresses_get_nothing_later() {
    let (mut net, _connection, _) = download(34);
    let datagram = ping(&mut net);
    let forged: SocketAddr = "192.0.2.66:1".parse().unwrap();
    net.server.receive(net.now, forged, &datagram);
    // The client is gone: nothing else arrives until the server gives up.
    net.faults.lost = 100;
    net.until("end", |net| net.server.endpoint.connections() == 0);
    let sent: usize =
        net.stray.iter().filter(|(to, _)| *to == forged).map(|(_, datagram)| datagram.len()).sum();
    assert!(sent > 0 && sent <= 3 * datagram.len(), "{sent} for {}", datagram.len());
}

#[test]
fn keys_are_updated_by_either_side() {
    let mut net = Net::new(11, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    for round in 0..4 {
        net.echo(&[round; 5000]);
        match round % 2 {
            0 => connection.update_keys(),
            _ => net.client.engine.connection.force_key_update(),
        }
        net.echo(&[round; 5000]);
        // A further update needs an acknowledgement of this one, and three times the probe timeout.
        let later = net.now + Duration::from_secs(5);
        net.until("pause", |net| {
            net.client.engine.connection.ping();
            net.now >= later
        });
    }
}

#[test]
fn resets_and_stops_carry_their_codes() {
    let mut net = Net::new(12, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    let cx = &mut Context::from_waker(Waker::noop());
    net.server.connections.clear();
    let stream = net.client.open_bidi().unwrap();
    net.client.write(stream, b"request");
    let mut accepted = None;
    net.until("stream", |_| {
        if let Poll::Ready(Ok(id)) = connection.poll_accept_bidi(cx) {
            accepted = Some(id);
        }
        accepted.is_some()
    });
    let id = accepted.unwrap();
    assert_eq!((id.value(), id.is_bidi(), id.is_client_initiated()), (stream, true, true));
    assert_eq!(connection.poll_read(id, cx, 3), Poll::Ready(Ok(Some(Bytes::from_static(b"req")))));
    assert_eq!(connection.open_bidi_streams(), 1);
    assert!(connection.poll_stopped(id, cx).is_pending());
    connection.stop_sending(id, 0x10c);
    net.until("stop", |net| net.client.stopped.get(&stream) == Some(&0x10c));
    assert_eq!(connection.poll_read(id, cx, 3), Poll::Ready(Err(StreamError::NotOpen)));
    net.client.stop(stream, 0x10d);
    net.until("stopped", |_| connection.poll_stopped(id, cx) == Poll::Ready(StreamError::Stopped(0x10d)));
    let mut chunks = [Bytes::from_static(b"x")];
    assert_eq!(connection.poll_write(id, cx, &mut chunks), Poll::Ready(Err(StreamError::Stopped(0x10d))));
    connection.reset(id, 0x10e);
    let second = net.client.open_bidi().unwrap();
    net.client.write(second, b"more");
    net.client.reset(second, 0x77);
    let mut outcome = None;
    net.until("reset", |_| {
        if let Poll::Ready(Ok(id)) = connection.poll_accept_bidi(cx) {
            accepted = Some(id);
        }
        if accepted.is_some_and(|id| id.value() == second)
            && let Poll::Ready(read) = connection.poll_read(accepted.unwrap(), cx, 100)
            && !read.as_ref().is_ok_and(Option::is_some)
        {
            outcome = Some(read);
        }
        outcome.is_some()
    });
    assert_eq!(outcome, Some(Err(StreamError::Reset(0x77))));
}

#[test]
fn reset_is_found_without_reading() {
    let mut net = Net::new(12, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    let cx = &mut Context::from_waker(Waker::noop());
    net.server.connections.clear();
    let streams = [net.client.open_bidi().unwrap(), net.client.open_bidi().unwrap()];
    let mut accepted = Vec::new();
    for stream in streams {
        net.client.write(stream, b"request");
        net.until("stream", |_| match connection.poll_accept_bidi(cx) {
            Poll::Ready(id) => {
                accepted.push(id.unwrap());
                true
            }
            Poll::Pending => false,
        });
    }
    let [reset, stopped] = accepted[..] else { panic!("two streams") };
    assert!(connection.poll_reset(reset, cx).is_pending());
    net.client.reset(streams[0], 0x77);
    net.until("reset", |_| connection.poll_reset(reset, cx) == Poll::Ready(0x77));
    assert!(connection.poll_reset(reset, cx).is_pending(), "it is told once");
    assert_eq!(connection.poll_read(reset, cx, 100), Poll::Ready(Err(StreamError::NotOpen)));
    // A reset in response to STOP_SENDING is not reported.
    connection.stop_sending(stopped, 0x10c);
    net.until("stop", |net| net.client.stopped.get(&streams[1]) == Some(&0x10c));
    net.client.reset(streams[1], 0x10c);
    net.flush();
    assert!(connection.poll_reset(stopped, cx).is_pending());
}

#[test]
fn server_opens_streams_and_waits_for_delivery() {
    let mut net = Net::new(13, Faults { lost: 10, ..Faults::default() }, RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    let cx = &mut Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(control)) = connection.poll_open_uni(cx) else { panic!("a stream is allowed") };
    assert!(!control.is_bidi() && !control.is_client_initiated());
    let mut chunks = [Bytes::new(), Bytes::from_static(b"set"), Bytes::from_static(b"tings")];
    assert_eq!(connection.poll_write(control, cx, &mut chunks), Poll::Ready(Ok(8)));
    assert_eq!(connection.poll_write(control, cx, &mut chunks), Poll::Ready(Ok(0)));
    connection.finish(control).unwrap();
    assert!(connection.poll_finished(control, cx).is_pending());
    assert_eq!(connection.finish(control), Err(StreamError::NotOpen));
    net.until("delivery", |_| connection.poll_finished(control, cx) == Poll::Ready(Ok(())));
    assert_eq!(net.client.received[&control.value()], b"settings");
    assert_eq!(connection.poll_read(control, cx, 1), Poll::Ready(Err(StreamError::NotOpen)));
}

#[test]
fn packets_of_a_close_are_sent_with_the_batch() {
    let mut net = Net::new(14, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(connection.poll_closed(cx).is_pending());
    assert!(connection.poll_close_sent(cx).is_ready(), "no close has to be sent");
    connection.close(0x100, b"done");
    assert!(connection.poll_close_sent(cx).is_pending());
    assert_eq!(connection.poll_closed(cx), Poll::Ready(ConnectionError::Closed));
    assert_eq!(connection.poll_accept_bidi(cx), Poll::Ready(Err(ConnectionError::Closed)));
    let mut batch = TransmitBatch::default();
    net.server.endpoint.fill(net.now, &mut batch);
    assert!(connection.poll_close_sent(cx).is_pending(), "its packets are in the batch");
    batch.remove(usize::MAX);
    net.server.endpoint.fill(net.now, &mut batch);
    assert!(connection.poll_close_sent(cx).is_ready());
}

#[test]
fn close_reaches_the_other_side() {
    let mut net = Net::new(14, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    connection.close(0x100, b"done");
    net.until("close", |net| net.client.lost.is_some());
    let text = format!("{:?}", net.client.lost);
    assert!(text.contains("ApplicationClosed") && text.contains("done"), "{text}");
    net.until("end", |net| net.server.endpoint.connections() == 0);

    let mut net = Net::new(15, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    net.client.close(0x101, net.now);
    net.until("close", |_| connection.close_reason().is_some());
    let expected = ConnectionError::ClosedByPeer { code: 0x101, reason: Bytes::from_static(b"bye") };
    assert_eq!(connection.close_reason(), Some(expected));
    connection.close(0x100, b"");
    assert!(connection.poll_close_sent(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn dropped_handles_close_the_connection() {
    let mut net = Net::new(16, Faults::default(), RetryPolicy::UnderLoad);
    net.connected().set_drop_code(0x100);
    net.server.connections.clear();
    net.until("close", |net| net.client.lost.is_some());
    assert!(format!("{:?}", net.client.lost).contains("ApplicationClosed"));
    net.until("end", |net| net.server.endpoint.connections() == 0);
}

#[test]
fn silent_client_times_out() {
    let mut net = Net::new(17, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    net.faults.lost = 100;
    net.until("timeout", |_| connection.close_reason().is_some());
    assert_eq!(connection.close_reason(), Some(ConnectionError::TimedOut));
    net.until("end", |net| net.server.endpoint.connections() == 0);
}

#[test]
fn watched_connection_of_a_vanished_client_is_closed_early() {
    let mut net = Net::new(25, Faults::default(), RetryPolicy::UnderLoad);
    let connection = net.connected().clone();
    connection.set_drop_code(0x100);
    let cx = &mut Context::from_waker(Waker::noop());
    let stream = net.client.open_bidi().unwrap();
    net.client.write(stream, b"request");
    let mut accepted = None;
    net.until("request", |_| {
        if let Poll::Ready(Ok(stream)) = connection.poll_accept_bidi(cx) {
            accepted = Some(stream);
        }
        accepted.is_some()
    });
    // A client that acknowledges a PING now and then keeps its connection, longer than the idle timeout.
    let begun = net.now;
    connection.close_when_silent();
    net.until("minute", |net| net.now > begun + SETTINGS.idle_timeout * 2);
    assert_eq!(connection.close_reason(), None);
    // The response never arrives.
    net.faults.lost = 100;
    let vanished = net.now;
    assert!(connection.poll_write(accepted.unwrap(), cx, &mut [Bytes::from_static(b"response")]).is_ready());
    net.until("close", |_| connection.close_reason().is_some());
    assert_eq!(connection.close_reason(), Some(ConnectionError::TimedOut));
    let silence = net.now - vanished;
    assert!(silence > Duration::from_secs(9) && silence < Duration::from_secs(21), "{silence:?}");
    net.flush();
    assert!(connection.poll_close_sent(cx).is_ready());
    net.until("end", |net| net.server.endpoint.connections() == 0);
}

#[test]
fn client_may_open_more_streams_once_it_opens_many() {
    let mut net = Net::new(18, Faults::default(), RetryPolicy::UnderLoad);
    net.connected();
    let mut opened = Vec::new();
    net.until("streams", |net| {
        while let Some(stream) = net.client.open_bidi() {
            net.client.write(stream, b"x");
            opened.push(stream);
        }
        opened.len() >= 100
    });
    assert_eq!(net.client.open_bidi(), None, "100 are the limit");
    opened.iter().for_each(|stream| net.client.finish(*stream));
    net.until("echoes", |net| net.client.ended.len() == 100);
}

/// A panic of the engine is played by a part of TLS that is ours.
#[derive(Debug)]
struct PanickingVerifier;

impl rustls::server::danger::ClientCertVerifier for PanickingVerifier {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::server::danger::ClientCertVerified, rustls::Error> {
        panic!("expected")
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        panic!("expected")
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        panic!("expected")
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[test]
fn panic_of_the_engine_ends_one_connection() {
    let authority = Authority::new();
    let mut net = Net::with(&authority, (21, Faults::default()), RetryPolicy::UnderLoad, |settings| settings);
    let first = net.connected().clone();
    // The second client has a certificate, whose verification panics.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        rustls::ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
    let mut tls = builder
        .with_client_cert_verifier(Arc::new(PanickingVerifier))
        .with_cert_resolver(net.server.tls.cert_resolver.clone());
    tls.alpn_protocols = vec![b"echo".to_vec()];
    let usual = std::mem::replace(&mut net.server.tls, Arc::new(tls));
    let mut client_tls = (*authority.client_with(&[&TLS13], &authority.certify(&["client"]))).clone();
    client_tls.alpn_protocols = vec![b"echo".to_vec()];
    let mut settings = ClientSettings::new(Arc::new(client_tls), "localhost");
    settings.seed = 2;
    let old = std::mem::replace(&mut net.client, QuicClient::connect(&settings, server_address(), net.now));
    let (old_address, other) = (net.client_address, "198.51.100.8:1".parse().unwrap());
    net.client_address = other;
    net.until("panic", |net| net.server.endpoint.statistics().panics == 1);
    let broken = &net.server.connections[1].connection;
    assert_eq!(broken.close_reason(), Some(ConnectionError::EngineFailed));
    let cx = &mut Context::from_waker(Waker::noop());
    assert_eq!(broken.poll_accept_bidi(cx), Poll::Ready(Err(ConnectionError::EngineFailed)));
    // The first connection and the next client are not affected.
    net.server.tls = usual;
    (net.client, net.client_address) = (old, old_address);
    net.echo(b"still there");
    assert!(first.close_reason().is_none());
    assert_eq!((net.server.endpoint.connections(), net.server.endpoint.handshakes()), (1, 0));
}

#[test]
fn session_is_resumed_with_early_data() {
    let authority = Authority::new();
    let mut tls = (*authority.client(&[&TLS13])).clone();
    tls.alpn_protocols = vec![b"echo".to_vec()];
    tls.enable_early_data = true;
    let tls = Arc::new(tls);
    let with_tls = |settings: ClientSettings| ClientSettings { tls: tls.clone(), ..settings };
    let mut first = Net::with(&authority, (19, Faults::default()), RetryPolicy::UnderLoad, with_tls);
    first.connected();
    first.echo(b"ticket");
    let mut second = Net::with(&authority, (20, Faults::default()), RetryPolicy::UnderLoad, with_tls);
    second.server.tls = first.server.tls.clone();
    let stream = second.client.open_bidi().expect("early data");
    second.client.write(stream, b"early");
    second.client.finish(stream);
    second.until("acceptance", |net| !net.server.connections.is_empty());
    let connection = second.server.connections[0].connection.clone();
    assert!(connection.is_handshaking() && connection.has_early_data());
    second.until("echo", |net| net.client.ended.contains_key(&stream));
    assert_eq!(second.client.received[&stream], b"early");
    second.until("handshake", |_| !connection.is_handshaking());
    assert!(connection.take_tls_facts().unwrap().is_resumed);
}
