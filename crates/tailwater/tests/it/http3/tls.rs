//! TLS over QUIC: its variables, client certificates, resumption and early data.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Instant;

use rustls::ClientConfig;
use rustls::version::TLS13;
use tw_testkit::quic::{ClientSettings, QuicClient};
use tw_testkit::tls::Authority;
use tw_testkit::wait;

use crate::support::http3::{Http3Client, Http3Server, http3_settings, request_head};
use crate::support::{server, start};

fn start_with_clients(content: &str) -> Http3Server {
    let authority = Authority::new();
    let files = server().certificate("one", &authority.certify(&["localhost"]));
    let conf = format!(
        "ssl_certificate one.crt; ssl_certificate_key one.key; ssl_client_certificate ca.crt;
         server {{ listen 127.0.0.1:{{port}} quic; server_name localhost; {content} }}"
    );
    Http3Server { server: start(files.file("conf/ca.crt", authority.pem()), &conf), authority }
}

/// Settings of one more client: a seed makes its connection IDs.
fn settings_of(tls: &ClientConfig, seed: u8) -> ClientSettings {
    ClientSettings { seed, ..http3_settings(tls, "localhost") }
}

#[test]
fn variables_have_the_values_of_the_handshake() {
    let server = start_with_clients(
        "ssl_verify_client optional; ssl_session_cache shared:SSL:1m;
         return 200 \"$ssl_protocol|$ssl_cipher|$ssl_curve|$ssl_sigalg|$ssl_client_sigalg|$ssl_session_reused|$ssl_alpn_protocol\
         |$ssl_server_name|$ssl_client_verify|$ssl_client_s_dn|$ssl_early_data|$ssl_sigalgs|$ssl_ciphers|$ssl_curves\";",
    );
    let own = server.authority.certify(&["client.example"]);
    let tls = server.authority.client_with(&[&TLS13], &own);
    let words = |seed| {
        let mut client = Http3Client::connect(&settings_of(&tls, seed), server.server.addr()).unwrap();
        client.get("/").text().split('|').map(str::to_owned).collect::<Vec<_>>()
    };
    let first = words(1);
    let ecdsa = "ecdsa_secp256r1_sha256";
    let suite = "TLS_AES_256_GCM_SHA384";
    assert_eq!(first[..2], ["TLSv1.3", suite]);
    assert!(!first[2].is_empty() && first[9].contains("CN="), "{first:?}");
    assert_eq!(first[3..9], [ecdsa, ecdsa, ".", "h3", "localhost", "SUCCESS"]);
    assert_eq!(first[10], "");
    assert!(
        first[11].contains(ecdsa) && first[12].contains(suite) && first[13].contains(&first[2]),
        "{first:?}"
    );
    // A session that is resumed is not signed, and has the certificate of the first one.
    let second = words(2);
    assert_eq!(second[3..9], ["", "", "r", "h3", "localhost", "SUCCESS"]);
    assert_eq!(second[9], first[9]);
    // Without a client certificate, its variables are empty.
    let plain = server.authority.client(&[&TLS13]);
    let mut client = Http3Client::connect(&settings_of(&plain, 3), server.server.addr()).unwrap();
    let text = client.get("/").text();
    assert!(text.contains(&format!("|{ecdsa}||.|h3|localhost|NONE||")), "{text}");
}

/// A server with early data, and a client that has a session of it.
fn start_early(value: &str, content: &str) -> (Http3Server, ClientConfig) {
    let server = start_with_clients(&format!("ssl_early_data {value}; {content}"));
    let mut tls = ClientConfig::clone(&server.authority.client(&[&TLS13]));
    tls.enable_early_data = true;
    let mut first = Http3Client::connect(&settings_of(&tls, 1), server.server.addr()).unwrap();
    assert_eq!(first.get("/").text(), "early=.");
    (server, tls)
}

const SAYS: &str =
    "location / { add_header X-Early \"$ssl_early_data\"; return 200 early=$ssl_early_data.; }";

#[test]
fn early_data_is_accepted_for_safe_requests() {
    for (value, unsafe_status) in [("on", 425), ("any", 200)] {
        let (server, tls) = start_early(value, SAYS);
        for (seed, method, status) in [(2, "GET", 200), (3, "HEAD", 200), (4, "DELETE", unsafe_status)] {
            let settings = settings_of(&tls, seed);
            let mut client = Http3Client::connect_early(&settings, server.server.addr()).unwrap();
            let early = client.begin_now(method, "/");
            let response = client.finish(early).unwrap();
            assert_eq!(response.status, status, "{method}");
            assert!(client.udp.client.engine.connection.accepted_0rtt());
            if status == 200 {
                assert_eq!(response.field("x-early"), Some("1"), "{method}");
            }
            // The client sends it again once its handshake is complete (RFC 8470, section 5.2).
            client.udp.connected().unwrap();
            let again = client.request(method, "/", &[], b"");
            assert_eq!((again.status, again.field("x-early")), (200, None), "{method}");
        }
    }
}

#[test]
fn early_data_is_served_once() {
    let (server, tls) = start_early("on", &format!("listen 127.0.0.1:{{port1}} quic; {SAYS}"));
    let mut client = QuicClient::connect(&settings_of(&tls, 2), server.server.addr(), Instant::now());
    let stream = client.open_bidi().unwrap();
    client.write(stream, &request_head("GET", "/copied"));
    client.finish(stream);
    let copied = client.datagrams(Instant::now());
    let lines_of = |path: &str| -> Option<usize> {
        let lines = server.server.access_log(1).ok()?;
        Some(lines.iter().filter(|line| line.contains(path)).count())
    };
    let mut sockets = Vec::new();
    // The second address does not know the connection, but has the same sessions.
    for address in [server.server.addr(), server.server.addr_of(1)] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in &copied {
            socket.send_to(datagram, address).unwrap();
        }
        // The server has answered, if only with its part of a handshake.
        socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        assert!(socket.recv(&mut [0; 2048]).unwrap() > 0);
        wait::some(wait::TIMEOUT, || lines_of("/copied").filter(|count| *count > 0)).unwrap();
        sockets.push(socket);
    }
    assert_eq!(server.client().get("/last").status, 200);
    wait::some(wait::TIMEOUT, || lines_of("/last").filter(|count| *count > 0)).unwrap();
    assert_eq!(lines_of("/copied"), Some(1));
}

#[test]
fn without_early_data_a_request_waits_for_the_handshake() {
    let server = start_with_clients(SAYS);
    let mut tls = ClientConfig::clone(&server.authority.client(&[&TLS13]));
    tls.enable_early_data = true;
    let settings = settings_of(&tls, 1);
    let mut first = Http3Client::connect(&settings, server.server.addr()).unwrap();
    assert_eq!(first.get("/").text(), "early=.");
    let tls = Arc::new(tls);
    let mut second = Http3Client::connect_early(&settings_of(&tls, 2), server.server.addr()).unwrap();
    assert_eq!(second.udp.client.open_bidi(), None, "no early data was offered");
    second.udp.connected().unwrap();
    assert_eq!(second.get("/").text(), "early=.");
}

#[test]
fn client_certificate_is_verified_before_early_data() {
    let server = start_with_clients(&format!("ssl_verify_client on; ssl_early_data on; {SAYS}"));
    let own = server.authority.certify(&["client.example"]);
    let mut tls = ClientConfig::clone(&server.authority.client_with(&[&TLS13], &own));
    tls.enable_early_data = true;
    for seed in [1, 2] {
        let settings = settings_of(&tls, seed);
        let mut client = Http3Client::connect_early(&settings, server.server.addr()).unwrap();
        assert_eq!(client.get("/").text(), "early=.");
    }
    let plain = server.authority.client(&[&TLS13]);
    let mut client = Http3Client::connect(&settings_of(&plain, 3), server.server.addr()).unwrap();
    assert_eq!(client.get("/").status, 400);
}
