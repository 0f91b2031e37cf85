//! Invalid handshakes: the peer gets an alert or nothing, the log has a line, and no other connection is affected.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ALL_VERSIONS, ClientConfig, ClientConnection, HandshakeKind};
use tw_testkit::tls::{Authority, Certificate};
use tw_testkit::{Client, Lacks, Random, Server, leave_out, wait};

use crate::support::server;
use crate::support::tls::try_get_tls;

const LISTEN: &str = "listen 127.0.0.1:{port} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;";

fn start(made: &Certificate, more: &str) -> Server {
    let http = format!("server {{ {LISTEN} {more} location / {{ return 200 $ssl_client_verify; }} }}");
    server()
        .certificate("one", made)
        .start(&format!("worker_processes 1; thread_pool tls threads=1; http {{ {http} }}"))
        .unwrap()
}

fn session(config: &Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(config.clone(), ServerName::try_from("localhost").unwrap()).unwrap()
}

/// First flight of a client.
fn hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    pending_bytes(&mut session(config))
}

/// Bytes that a session has to send now.
fn pending_bytes(session: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut bytes).unwrap();
    }
    bytes
}

fn connect(addr: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    socket.set_write_timeout(Some(wait::TIMEOUT)).unwrap();
    socket
}

/// Bytes until the server closes, which it has to do within the patience of the test.
fn read_answer(mut socket: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match socket.read_to_end(&mut all) {
        Ok(_) => {}
        Err(e) => assert!(!matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "it hangs: {e}"),
    }
    all
}

/// Response to these bytes and an end of the stream.
fn answer_to(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = connect(addr);
    // A server that has had enough of it may be gone.
    let _ = socket.write_all(bytes).and_then(|()| socket.shutdown(Shutdown::Write));
    read_answer(socket)
}

/// Checks that other clients are served.
fn assert_serves(server: &Server, config: &Arc<ClientConfig>) {
    assert_eq!(try_get_tls(server, config, "localhost").unwrap().1.status, 200, "{}", server.error_log());
}

#[test]
fn hello_cut_or_changed_at_any_byte_is_harmless() {
    let authority = Authority::new();
    let server = start(&authority.certify(&["localhost"]), "");
    let config = authority.client(ALL_VERSIONS);
    let hello = hello(&config);
    for end in 0..hello.len() {
        assert_eq!(answer_to(server.addr(), &hello[..end]), b"", "{end}");
    }
    for at in 0..hello.len() {
        let mut changed = hello.clone();
        changed[at] ^= 0x55;
        // The answer is an alert, the flight of a server that accepts the hello, the error page for plain HTTP, or
        // nothing if more bytes are expected.
        let answer = answer_to(server.addr(), &changed);
        assert!(matches!(answer.first(), None | Some(21 | 22 | b'H')), "{at}: {answer:?}");
    }
    assert_serves(&server, &config);
    server
        .wait_error_log("peer closed connection in SSL handshake while SSL handshaking, client: 127.0.0.1")
        .unwrap();
}

#[test]
fn handshake_cut_at_any_byte_is_harmless() {
    let authority = Authority::new();
    let server = start(&authority.certify(&["localhost"]), "");
    for version in [&TLS12, &TLS13] {
        let config = authority.client(&[version]);
        let mut len: Option<usize> = None;
        for end in 0.. {
            if len.is_some_and(|len| end >= len) {
                break;
            }
            let mut socket = connect(server.addr());
            let mut session = session(&config);
            socket.write_all(&pending_bytes(&mut session)).unwrap();
            while !session.wants_write() {
                session.read_tls(&mut socket).unwrap();
                session.process_new_packets().unwrap();
            }
            let last = pending_bytes(&mut session);
            // A flight of the server may come in pieces, and the first of them has an answer of its own.
            len = len.max(Some(last.len()));
            socket.write_all(&last[..end.min(last.len())]).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
            read_answer(socket);
        }
        assert_serves(&server, &config);
    }
}

#[test]
fn garbage_and_endless_handshakes_are_ended() {
    let authority = Authority::new();
    let server = start(&authority.certify(&["localhost"]), "client_header_timeout 500ms;");
    let config = authority.client(ALL_VERSIONS);
    let mut random = Random::new(7);
    for nth in 0..200 {
        let mut bytes = random.bytes(nth);
        if nth % 2 == 0 && nth > 5 {
            bytes[..3].copy_from_slice(&[22, 3, 1]);
        }
        answer_to(server.addr(), &bytes);
    }
    // A hello of 16 MB in records of the maximum size, and one in records of a few bytes each.
    for (record, first) in [(0x4000_usize, [1, 0xff, 0xff, 0xff]), (4, [1, 0, 0xff, 0xff])] {
        let mut socket = connect(server.addr());
        let size = u16::try_from(record).unwrap().to_be_bytes();
        let mut bytes = vec![22, 3, 1, size[0], size[1]];
        bytes.extend(first);
        bytes.resize(5 + record, 0);
        // Sockets have room for some of it before the server has looked at any.
        let is_refused = wait::until(wait::TIMEOUT, || socket.write_all(&bytes).is_err());
        assert!(is_refused, "it takes whatever comes");
    }
    server.wait_error_log("SSL_do_handshake() failed (SSL: ").unwrap();
    // A client that sends a byte now and then has no more time than others.
    let hello = hello(&config);
    let mut socket = connect(server.addr());
    let drip = hello.iter().try_for_each(|byte| {
        wait::pause(std::time::Duration::from_millis(20));
        socket.write_all(&[*byte])
    });
    assert!(drip.is_err() || read_answer(socket).is_empty());
    server.wait_error_log("client timed out (110: Connection timed out) while SSL handshaking").unwrap();
    // The client stops after its hello. On a busy machine, the short timeout may expire before the server has read it.
    let is_answered = || {
        let mut socket = connect(server.addr());
        socket.write_all(&hello).unwrap();
        read_answer(socket).first() == Some(&22)
    };
    assert!(wait::until(wait::TIMEOUT, is_answered));
    assert!(wait::until(wait::TIMEOUT, || try_get_tls(&server, &config, "localhost")
        .is_ok_and(|(_, response)| response.status == 200)));
}

#[test]
fn odd_server_names_are_harmless() {
    let authority = Authority::new();
    let server = start(&authority.certify(&["localhost"]), "");
    let config = authority.client(ALL_VERSIONS);
    let hello = hello(&config);
    let at = hello.windows(9).position(|window| window == b"localhost").unwrap();
    for name in [
        b"LOCALHOST",
        b"loc\0lhost",
        b"../../etc",
        b"a..b..c..",
        b"127.0.0.1",
        b"*.local.x",
        b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7",
        b"localhos.",
        b".ocalhost",
        b"-ocalhost",
        b"under_sco",
        b"         ",
        b"$hostname",
        b"\r\n\r\n\r\n\r\n\r",
    ] {
        let mut odd = hello.clone();
        odd[at..at + 9].copy_from_slice(name);
        let answer = answer_to(server.addr(), &odd);
        assert!(matches!(answer.first(), Some(21 | 22)), "{name:?}: {answer:?}");
    }
    assert_serves(&server, &config);
}

#[test]
fn bad_client_certificates_are_refused() {
    let authority = Authority::new();
    let own = authority.certify(&["localhost"]);
    let http = format!(
        "server {{ {LISTEN} ssl_client_certificate ca.crt; ssl_verify_client optional; error_page 495 =200 /bad;
           location / {{ return 200 $ssl_client_verify; }} location = /bad {{ return 200 $ssl_client_verify; }} }}"
    );
    let builder = server().certificate("one", &own);
    let server = builder
        .file("conf/ca.crt", authority.pem())
        .start(&format!("worker_processes 1; http {{ {http} }}"))
        .unwrap();
    let request = |made: &Certificate| {
        let config = authority.client_with(ALL_VERSIONS, made);
        let mut client = Client::connect_tls(server.addr(), &config, "localhost").unwrap();
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        client.read_response().unwrap().text()
    };
    let names = &["client.example"];
    let good = authority.certify(names);
    assert_eq!(request(&good), "SUCCESS");
    assert_eq!(request(&authority.certify_expired(names)), "FAILED:certificate has expired");
    assert_eq!(request(&authority.certify_early(names)), "FAILED:certificate is not yet valid");
    // Fifty more, which all have the name of the issuer, or none of them.
    let others: String = (0..50).map(|_| authority.certify(names).pem).collect();
    assert_eq!(request(&Certificate { pem: good.pem.clone() + &others, ..good.clone() }), "SUCCESS");
    let strangers: String = (0..50).map(|_| Authority::new().pem()).collect();
    let stranger = Authority::new().certify(names);
    let failed = "FAILED:unable to verify the first certificate";
    assert_eq!(request(&Certificate { pem: stranger.pem.clone() + &strangers, ..stranger }), failed);
    assert_eq!(request(&good), "SUCCESS");
}

#[test]
fn sessions_of_another_server_are_not_resumed() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    for version in [&TLS12, &TLS13] {
        let one = start(&made, "");
        let other = start(&made, "");
        let config = authority.client(&[version]);
        assert_serves(&one, &config);
        // The client sees both servers as the same one.
        let client = Client::connect_tls(other.addr(), &config, "localhost").unwrap();
        assert_eq!(client.session().unwrap().handshake_kind(), Some(HandshakeKind::Full));
        assert_serves(&other, &config);
    }
}

#[test]
fn many_concurrent_handshakes_complete() {
    let authority = Authority::new();
    for made in [authority.certify_rsa(&["localhost"]), authority.certify(&["localhost"])] {
        let server = start(&made, "");
        let config = authority.client(ALL_VERSIONS);
        // There are more handshakes than a loop gives to the pool at a time or computes itself in a turn; all clients
        // send their hello before any of them reads.
        let mut clients: Vec<_> = (0..200)
            .map(|_| {
                let mut socket = connect(server.addr());
                let mut session = session(&config);
                socket.write_all(&pending_bytes(&mut session)).unwrap();
                (socket, session)
            })
            .collect();
        for (socket, session) in &mut clients {
            while session.is_handshaking() {
                session.complete_io(socket).unwrap();
            }
        }
        // Some clients give up while their handshakes are queued.
        let tcp_streams: Vec<_> = (0..100).map(|_| connect(server.addr())).collect();
        let hello = hello(&config);
        for mut socket in tcp_streams {
            socket.write_all(&hello).unwrap();
        }
        assert_serves(&server, &config);
    }
}

#[test]
fn handshakes_work_with_each_ssl_sign_pool() {
    let authority = Authority::new();
    let made = authority.certify_rsa(&["localhost"]);
    for signer in ["off", "signers", "tls"] {
        let http = format!("server {{ {LISTEN} ssl_sign_pool {signer}; location / {{ return 200 here; }} }}");
        let server = server()
            .certificate("one", &made)
            .start(&format!("worker_processes 2; thread_pool signers threads=2; http {{ {http} }}"))
            .unwrap();
        thread::scope(|scope| {
            for version in [&TLS12, &TLS13] {
                let server = &server;
                let authority = &authority;
                scope.spawn(move || {
                    for _ in 0..10 {
                        assert_serves(server, &authority.client(&[version]));
                    }
                });
            }
        });
    }
}

#[test]
fn renegotiation_is_refused() {
    let authority = Authority::new();
    let server = start(&authority.certify(&["localhost"]), "");
    let mut command = Command::new("openssl");
    command.args(["s_client", "-tls1_2", "-connect", &server.addr().to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut client) = command.spawn() else {
        return leave_out(Lacks::Machine, "no openssl to ask for a renegotiation");
    };
    let mut stdin = client.stdin.take().unwrap();
    let mut stdout = client.stdout.take().unwrap();
    let mut output = Vec::new();
    let mut chunk = [0; 4096];
    // The client asks for the renegotiation when the handshake is over.
    while !String::from_utf8_lossy(&output).contains("Verify return code") {
        let count = stdout.read(&mut chunk).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&output));
        output.extend_from_slice(&chunk[..count]);
    }
    stdin.write_all(b"R\n").unwrap();
    let output = client.wait_with_output().unwrap();
    assert!(!output.status.success(), "it went on: {output:?}");
    assert_serves(&server, &authority.client(ALL_VERSIONS));
}
