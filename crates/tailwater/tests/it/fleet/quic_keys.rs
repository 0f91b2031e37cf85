//! Keys of QUIC that all nodes of a fleet share: a token of one node proves the address to another one, and any node resets connections.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quinn_proto::ConnectionError;
use rustls::version::TLS13;
use tw_testkit::nats::FakeNats;
use tw_testkit::quic::ClientSettings;
use tw_testkit::server::Builder;
use tw_testkit::tls::{Authority, Certificate};
use tw_testkit::{Server, wait};

use crate::support::http3::{Http3Client, http3_settings};
use crate::support::metrics::{metric, try_metric};
use crate::support::server;

const BUCKET: &str = "tailwater_certificates-edge";
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
/// First bits of a Retry packet of version 1 (RFC 9000, section 17.2.5).
const RETRY: u8 = 0xf0;

fn conf(engine: &FakeNats, name: &str, fleet: &str, quic: &str) -> String {
    format!(
        "user root root; fleet edge {{ node {name}; engine {}; publish_timeout 1s; {fleet} }} \
         http {{ ssl_certificate a.crt; ssl_certificate_key a.key; {quic} \
           server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }} }} \
           server {{ listen 127.0.0.1:{{port1}} quic reuseport; location / {{ return 200 {name}; }} }} }}",
        engine.url()
    )
}

fn node_of(
    builder: Builder,
    engine: &FakeNats,
    name: &str,
    certificate: &Certificate,
    rotation: &str,
) -> Server {
    let fleet = format!("encryption_key fleet.key; secret_rotation {rotation};");
    let builder = builder.certificate("a", certificate).file("conf/fleet.key", KEY);
    builder.start(&conf(engine, name, &fleet, "quic_host_key fleet=edge; quic_retry on;")).unwrap()
}

/// Address in front of the nodes, which sends the datagrams of one client to one node at a time.
struct Relay {
    addr: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    /// Node that gets the datagrams after the next Retry packet.
    after_retry: Arc<Mutex<Option<SocketAddr>>>,
    retries: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Relay {
    fn start(node: &Server) -> Self {
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        for socket in &sockets {
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        }
        let [front, back] = sockets;
        let relay = Self {
            addr: front.local_addr().unwrap(),
            target: Arc::new(Mutex::new(node.addr_of(1))),
            after_retry: Arc::default(),
            retries: Arc::default(),
            is_over: Arc::default(),
        };
        let client = Arc::new(Mutex::new(None));
        let from = front.try_clone().unwrap();
        let to = back.try_clone().unwrap();
        let address = client.clone();
        let target = relay.target.clone();
        let is_over = relay.is_over.clone();
        thread::spawn(move || {
            forward(&from, &is_over, |bytes, peer| {
                *address.lock().unwrap() = Some(peer);
                to.send_to(bytes, *target.lock().unwrap())
            });
        });
        let target = relay.target.clone();
        let next = relay.after_retry.clone();
        let retries = relay.retries.clone();
        let is_over = relay.is_over.clone();
        thread::spawn(move || {
            forward(&back, &is_over, |bytes, _| {
                if bytes[0] & RETRY == RETRY {
                    retries.fetch_add(1, Relaxed);
                    if let Some(next) = next.lock().unwrap().take() {
                        *target.lock().unwrap() = next;
                    }
                }
                front.send_to(bytes, client.lock().unwrap().unwrap())
            });
        });
        relay
    }

    fn send_to(&self, node: &Server) {
        *self.target.lock().unwrap() = node.addr_of(1);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

/// Calls `send` with each datagram, until the test is over.
fn forward(
    from: &UdpSocket,
    is_over: &AtomicBool,
    mut send: impl FnMut(&[u8], SocketAddr) -> io::Result<usize>,
) {
    let mut buffer = vec![0; 65_536];
    while !is_over.load(Relaxed) {
        if let Ok((len, peer)) = from.recv_from(&mut buffer)
            && len > 0
        {
            // A datagram that is lost here is sent again by its sender.
            let _ = send(&buffer[..len], peer);
        }
    }
}

fn secrets_of(node: &Server) -> Option<Vec<u8>> {
    std::fs::read(node.prefix().join("fleet_edge/secrets")).ok()
}

fn stored(engine: &FakeNats) -> Option<Vec<u8>> {
    engine.values(BUCKET).get("secrets").cloned()
}

/// Waits until all nodes have the secrets of the store.
fn wait_shared(engine: &FakeNats, nodes: &[&Server]) {
    let have_all = || {
        let stored = stored(engine);
        stored.is_some() && nodes.iter().all(|node| secrets_of(node) == stored)
    };
    assert!(wait::until(wait::TIMEOUT, have_all), "{}", nodes[0].error_log());
}

/// Connects to `first`, whose Retry packet sends the client to `second`.
#[track_caller]
fn connects_by_token_of_another(settings: &ClientSettings, first: &Server, second: &Server) {
    let accepted = || metric(second, "quic_connections_accepted_total");
    let relay = Relay::start(first);
    let before = accepted();
    *relay.after_retry.lock().unwrap() = Some(second.addr_of(1));
    let mut client = Http3Client::connect(settings, relay.addr)
        .unwrap_or_else(|error| panic!("{error}: {}{}", first.error_log(), second.error_log()));
    assert_eq!(client.get("/").status, 200);
    assert_eq!((relay.retries.load(Relaxed), accepted() - before), (1, 1));
    client.close();
}

/// Moves a connection to another node. The client learns that it is lost.
#[track_caller]
fn is_reset_by(mut client: Http3Client, relay: &Relay, node: &Server) {
    relay.send_to(node);
    client.begin("GET", "/", &[], true);
    let lost = client.udp.until(|client| {
        client.engine.connection.ping();
        client.lost.clone()
    });
    assert!(matches!(lost, Ok(ConnectionError::Reset)), "{lost:?}: {}", node.error_log());
}

#[test]
fn tokens_and_resets_of_all_nodes_are_equal() {
    let engine = FakeNats::start();
    let authority = Authority::new();
    let certificate = authority.certify(&["localhost"]);
    let settings = http3_settings(&authority.client(&[&TLS13]), "localhost");
    let [one, two] = ["n1", "n2"].map(|name| node_of(server(), &engine, name, &certificate, "1h"));
    wait_shared(&engine, &[&one, &two]);
    let holders = || -> u64 {
        let held_count =
            |node| try_metric(node, "fleet_lease_held{fleet=\"edge\",lease=\"secrets\"}").unwrap_or(0);
        [&one, &two].map(held_count).iter().sum()
    };
    assert!(wait::until(wait::TIMEOUT, || holders() == 1), "{}", holders());
    connects_by_token_of_another(&settings, &one, &two);
    connects_by_token_of_another(&settings, &two, &one);
    let relay = Relay::start(&one);
    let mut client = Http3Client::connect(&settings, relay.addr).unwrap();
    assert_eq!(client.get("/").text(), "n1");
    is_reset_by(client, &relay, &two);
    assert!(metric(&two, "quic_resets_total") >= 1);
    // A node that starts while the engine is away has the secrets of before.
    engine.go_away();
    let saved = secrets_of(&two).unwrap();
    let three = node_of(server().file("fleet_edge/secrets", &saved), &engine, "n3", &certificate, "1h");
    let mut client = Http3Client::connect(&settings, relay.addr).unwrap();
    assert_eq!(client.get("/").text(), "n2");
    is_reset_by(client, &relay, &three);
    connects_by_token_of_another(&settings, &one, &three);
}

#[test]
fn connection_of_an_earlier_secret_is_reset_by_another_node() {
    let engine = FakeNats::start();
    let authority = Authority::new();
    let certificate = authority.certify(&["localhost"]);
    let settings = http3_settings(&authority.client(&[&TLS13]), "localhost");
    let [one, two] = ["n1", "n2"].map(|name| node_of(server(), &engine, name, &certificate, "3s"));
    wait_shared(&engine, &[&one, &two]);
    let relay = Relay::start(&one);
    let mut client = Http3Client::connect(&settings, relay.addr).unwrap();
    assert_eq!(client.get("/").text(), "n1");
    // The second change is made once the first new secret is in use.
    let mut last = stored(&engine);
    let mut changes = 0;
    let is_rotated = || {
        let current = stored(&engine);
        changes += u32::from(current != last);
        last = current;
        changes >= 2
    };
    assert!(wait::until(3 * wait::TIMEOUT, is_rotated), "{}", one.error_log());
    is_reset_by(client, &relay, &two);
}

#[test]
fn misuse_of_shared_host_keys_is_refused() {
    let engine = FakeNats::start();
    let authority = Authority::new();
    let certificate = authority.certify(&["localhost"]);
    for (fleet, quic, expected) in [
        (
            "",
            "quic_host_key fleet=edge;",
            "fleet \"edge\" has no \"encryption_key\", which host keys of QUIC",
        ),
        ("encryption_key fleet.key;", "quic_host_key fleet=other;", "unknown fleet \"other\""),
    ] {
        let builder = server().certificate("a", &certificate).file("conf/fleet.key", KEY);
        let said = builder.start(&conf(&engine, "n1", fleet, quic)).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
}
