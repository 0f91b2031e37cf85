//! QUIC on real loops with real sockets: what arrives on a stream goes back.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustls::version::TLS13;
use tw_core::config_thread::ConfigThread;
use tw_core::event_loop::{
    self, AcceptedConnection, Application, Counts, DatagramListener, LoopCommand, LoopCore, PassedDatagram,
    ReceivedDatagram,
};
use tw_net::listen::{ListenReport, Purpose, SocketKind, open_all};
use tw_quic::{Connection, IncomingConnection};
use tw_rt::{LoopOptions, LoopThread};
use tw_testkit::quic::{ClientSettings, UdpClient};
use tw_testkit::tls::{Authority, Certificate};

use crate::http::HttpLoop;
use crate::http::accept;
use crate::http::handshake::AcceptingClient;
use tw_http_testkit::{generation, try_generation};
use tw_http_versions::h3::directives::Http3;
use tw_request::client::Client;
use tw_request::generation::{Generation, GenerationRef, ListenGroup};

/// Server that returns what it reads.
struct Echo(Rc<HttpLoop>);

impl Application for Echo {
    type Generation = GenerationRef;

    fn new(core: Rc<LoopCore>, generation: GenerationRef) -> Rc<Self> {
        Rc::new(Self(HttpLoop::new(core, generation)))
    }

    fn set_generation(&self, generation: GenerationRef) {
        self.0.set_generation(generation);
    }

    async fn serve(self: Rc<Self>, _: AcceptedConnection) {}

    fn receive(self: &Rc<Self>, listener: &Rc<DatagramListener>, datagram: &ReceivedDatagram<'_>) {
        let event_loop = self.0.event_loop();
        let generation = event_loop.generation();
        let settings = || {
            Http3::of(generation.server(generation.groups[0].default_server))
                .map(|http3| http3.address.clone())
        };
        let Some(incoming) = accept::quic(event_loop).receive(listener, datagram, generation.id, settings)
        else {
            return;
        };
        let peer = incoming.peer().into();
        let listen = datagram.listen.clone();
        let serve =
            |id| echo(Client::new(id, peer, listen, SocketKind::Datagram, event_loop.clone()), incoming);
        assert!(event_loop.core().spawn_connection(serve).is_ok());
    }

    fn receive_passed(self: &Rc<Self>, datagram: PassedDatagram) {
        self.0.receive_passed(datagram);
    }

    fn has_connections_over(&self, listener: &DatagramListener) -> bool {
        self.0.has_connections_over(listener)
    }

    async fn run_background_tasks(self: Rc<Self>) {
        std::future::pending().await
    }

    fn sweep(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn close_files(&self) {}
}

async fn echo(client: Rc<Client>, incoming: IncomingConnection) {
    let generation = client.event_loop.generation();
    let transport = &generation.server(generation.groups[0].default_server).quic;
    let accepted =
        tw_accept::quic::accept(&AcceptingClient(&client), incoming, transport, Duration::from_secs(10))
            .await;
    let Some(connection) = accepted else { return };
    assert_eq!(client.tls.get().unwrap().protocol.as_deref(), Some(&b"hq-interop"[..]));
    let streams = RefCell::new(Vec::new());
    while let Ok(stream) = poll_fn(|cx| connection.poll_accept_bidi(cx)).await {
        streams.borrow_mut().push(stream);
        echo_stream(&connection, stream).await;
    }
}

async fn echo_stream(connection: &Connection, stream: tw_quic::StreamId) {
    loop {
        match poll_fn(|cx| connection.poll_read(stream, cx, 16 << 10)).await {
            Ok(Some(bytes)) => {
                let mut chunks = [bytes, Bytes::new()];
                while !chunks[0].is_empty() {
                    if poll_fn(|cx| connection.poll_write(stream, cx, &mut chunks)).await.is_err() {
                        return;
                    }
                }
            }
            Ok(None) => return drop(connection.finish(stream)),
            Err(_) => return,
        }
    }
}

/// Loops that serve `server { CONF }`.
struct Running {
    loops: Vec<LoopThread<LoopCommand<GenerationRef>>>,
    address: SocketAddr,
    counts: Arc<Counts>,
    _configs: ConfigThread,
}

fn own_address() -> SocketAddr {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Running {
    fn start(loops: usize, certificate: &Certificate, conf: &str) -> Self {
        let address = own_address();
        let generation: Generation = generation(&format!(
            "server {{ listen {address} quic reuseport; http3_hq on; {conf} ssl_certificate \"data:{}\"; \
             ssl_certificate_key \"data:{}\"; }}",
            certificate.pem, certificate.key
        ));
        let configs = ConfigThread::start(|| {}).unwrap();
        let listen = &generation.config.process.listens[0];
        let wanted_values = [(listen.address.clone(), listen.options.clone())];
        let mut report = |report: ListenReport| panic!("{report:?}");
        let first = open_all(&wanted_values, Purpose::Serve, &mut report).unwrap().remove(0);
        let options = listen.options.clone();
        let generation = configs.publish(generation);
        let counts = Arc::new(Counts::default());
        let mut sockets = Vec::new();
        for _ in 1..loops {
            sockets.push(first.sibling(&options, &mut report).unwrap());
        }
        sockets.push(first);
        let start = |(index, socket)| {
            let generation = generation.clone();
            let counts = counts.clone();
            let options = LoopOptions::new(index);
            let running = LoopThread::start(options, move |commands| {
                event_loop::run::<Echo>(index, counts, generation, vec![socket], commands)
            });
            let running = running.unwrap();
            assert!(running.send(LoopCommand::Start).is_ok());
            running
        };
        let loops = sockets.into_iter().enumerate().map(start).collect();
        Self { loops, address, counts, _configs: configs }
    }

    fn client(&self, authority: &Authority) -> UdpClient {
        let mut tls = (*authority.client(&[&TLS13])).clone();
        tls.alpn_protocols = vec![b"hq-interop".to_vec()];
        UdpClient::connect(&ClientSettings::new(Arc::new(tls), "localhost"), self.address).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for running in self.loops.drain(..) {
            // A loop without its sender ends at once.
            drop(running);
        }
    }
}

fn exchange(client: &mut UdpClient, bytes: &[u8]) {
    let stream = client.client.open_bidi().unwrap();
    let mut rest = bytes;
    client
        .until(|client| {
            rest = &rest[client.write(stream, rest)..];
            if rest.is_empty() {
                client.finish(stream);
            }
            client.ended.get(&stream).copied()
        })
        .unwrap();
    assert!(client.client.received[&stream] == bytes);
}

#[test]
fn stream_of_a_quic_connection_is_served() {
    let authority = Authority::new();
    let running = Running::start(1, &authority.certify(&["localhost"]), "");
    let mut client = running.client(&authority);
    client.connected().unwrap();
    exchange(&mut client, b"hello");
    exchange(&mut client, &vec![7; 1 << 20]);
    assert_eq!(running.counts.total(|tally| &tally.open), 1);
}

#[test]
fn rsa_certificate_and_segments_are_used() {
    let authority = Authority::new();
    let running = Running::start(1, &authority.certify_rsa(&["localhost"]), "quic_gso on; quic_retry on;");
    let mut client = running.client(&authority);
    client.connected().unwrap();
    exchange(&mut client, &vec![7; 1 << 20]);
}

#[test]
fn client_that_moves_keeps_its_connection() {
    let authority = Authority::new();
    let running = Running::start(4, &authority.certify(&["localhost"]), "");
    let mut client = running.client(&authority);
    client.connected().unwrap();
    // Three times of four, the new address belongs to another loop.
    for _ in 0..12 {
        exchange(&mut client, &vec![7; 50_000]);
        client.rebind().unwrap();
    }
    exchange(&mut client, b"still there");
    assert_eq!(running.counts.total(|tally| &tally.accepted), 1);
}

#[test]
fn handshake_for_a_rejected_name_fails() {
    let authority = Authority::new();
    let running = Running::start(1, &authority.certify(&["localhost"]), "ssl_reject_handshake on;");
    let mut client = running.client(&authority);
    let lost = client.until(|client| client.lost.clone()).unwrap();
    assert!(format!("{lost:?}").contains("crypto(70)"), "{lost:?}");
}

#[test]
fn mistakes_of_quic_in_a_configuration() {
    let certificate = Authority::new().certify(&["localhost"]);
    let ssl = format!(
        "ssl_certificate \"data:{}\"; ssl_certificate_key \"data:{}\";",
        certificate.pem, certificate.key
    );
    for name in [
        "ssl",
        "http2",
        "proxy_protocol",
        "fastopen=1",
        "backlog=1",
        "deferred",
        "multipath",
        "so_keepalive=on",
    ] {
        let error = try_generation(&format!("server {{ listen 443 quic {name}; {ssl} }}")).err().unwrap();
        let shown = name.split('=').next().unwrap();
        let expected = format!("\"listen\" directive \"{shown}\" parameter is incompatible with \"quic\"");
        assert!(error.contains(&expected), "{error}");
    }
    for (conf, expected) in [
        ("listen 443 quic;", "no \"ssl_certificate\" is defined for the \"listen ... quic\" directive"),
        (
            "ssl_protocols TLSv1.2; listen 443 ssl; listen 443 quic;",
            "\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... quic\" directive",
        ),
        ("listen 443 quic; listen 443 quic;", "a duplicate listen 0.0.0.0:443"),
        ("listen unix:/socket quic;", "\"quic\" is not supported for unix domain sockets"),
        ("listen 443 quic; quic_retry maybe;", "invalid value \"maybe\" in \"quic_retry\" directive"),
        ("listen 443 quic; quic_host_key /no/such/file;", "cannot load QUIC host key \"/no/such/file\""),
        ("listen 443 quic; http3_stream_buffer_size x;", "invalid value"),
        ("listen 443 quic; http3_max_concurrent_streams -1;", "invalid"),
    ] {
        let ssl = if expected.starts_with("no ") { "" } else { &ssl };
        let error = try_generation(&format!("server {{ {ssl} {conf} }}")).err();
        assert!(error.as_ref().is_some_and(|error| error.contains(expected)), "{conf}: {error:?}");
    }
    // Both kinds of a port, and what each server may set.
    let conf = format!(
        "http3_max_concurrent_streams 7; server {{ listen 443 ssl; listen 443 quic reuseport; listen [::]:443 quic; {ssl} \
         http3 off; http3_hq on; http3_stream_buffer_size 1k; quic_gso on; quic_retry on; quic_active_connection_id_limit 3; }}"
    );
    let generation = try_generation(&conf).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(generation.groups.iter().map(ListenGroup::is_quic).collect::<Vec<_>>(), [false, true, true]);
    let http3 = Http3::of(&generation.servers[0]).unwrap();
    assert_eq!(
        (http3.is_on, http3.has_hq, http3.streams_max, http3.stream_buffer_size),
        (false, true, 7, 1024)
    );
}
