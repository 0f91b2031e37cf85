use std::future::poll_fn;
use std::io::{Read, Write};
use std::ops::DerefMut;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConnection, ConnectionCommon, ServerConfig, ServerConnection, SideData, StreamOwned};
use tw_rt::FirstBytes;
use tw_testkit::tls::Authority;

use super::*;

type Client = StreamOwned<ClientConnection, UnixStream>;
type Server = StreamOwned<ServerConnection, UnixStream>;

fn on_loop<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
    runtime.expect("a runtime can be built").block_on(test)
}

fn server_config(authority: &Authority) -> Arc<ServerConfig> {
    let made = authority.certify(&["localhost"]);
    let chain = vec![CertificateDer::from_pem_slice(made.pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(made.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap())
}

fn pair() -> (Socket, UnixStream) {
    let (ours, peer) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    peer.set_read_timeout(Some(tw_testkit::wait::TIMEOUT)).unwrap();
    (Socket::unix(ours.into(), FirstBytes::Later), peer)
}

/// Our side of a handshake, with nothing that takes long.
async fn accept(socket: Socket, config: Arc<ServerConfig>) -> Result<TlsStream, HandshakeError> {
    let mut greeting = ClientHelloReader::new(socket, Vec::new());
    let accepted = loop {
        match greeting.read()? {
            Some(ClientMessage::Hello(accepted)) => break accepted,
            Some(ClientMessage::Plain(_)) => return Err(HandshakeError::Closed),
            None => greeting.socket().readable().await.map_err(HandshakeError::Io)?,
        }
    };
    let session = begin(*accepted, config).map_err(|(error, _)| HandshakeError::Tls(error))?;
    finish(Handshake::new(greeting.into_socket(), session)).await
}

/// All steps of a handshake.
async fn finish<S, D: SideData>(mut handshake: Handshake<S>) -> Result<TlsStream, HandshakeError>
where
    S: DerefMut<Target = ConnectionCommon<D>> + Into<Connection>,
{
    loop {
        match handshake.step()? {
            Step::Done => return Ok(handshake.into_stream()),
            Step::Readable => handshake.socket().readable().await.map_err(HandshakeError::Io)?,
            Step::Writable => handshake.socket().writable().await.map_err(HandshakeError::Io)?,
            Step::Process => {
                let (socket, session, sent) = handshake.into_parts();
                let (session, processed) = process(session);
                handshake = Handshake::from_parts(socket, session, sent);
                if let Err(error) = processed {
                    handshake.refuse();
                    return Err(HandshakeError::Tls(error));
                }
            }
        }
    }
}

/// A connection to a server that `act` is of, on a thread of its own.
async fn with_server<T: Send + 'static>(
    act: impl FnOnce(Server) -> T + Send + 'static,
) -> (TlsStream, thread::JoinHandle<T>) {
    let authority = Authority::new();
    let config = server_config(&authority);
    let (socket, peer) = pair();
    let server = thread::spawn(move || {
        let mut server = StreamOwned::new(ServerConnection::new(config).unwrap(), peer);
        while server.conn.is_handshaking() {
            server.conn.complete_io(&mut server.sock).unwrap();
        }
        act(server)
    });
    let session = connect(authority.client(rustls::ALL_VERSIONS), "localhost".try_into().unwrap()).unwrap();
    let stream = finish(Handshake::new(socket, session)).await.unwrap();
    (stream, server)
}

/// A connection to a client that `act` is of, on a thread of its own.
async fn with_client<T: Send + 'static>(
    act: impl FnOnce(Client) -> T + Send + 'static,
) -> (TlsStream, thread::JoinHandle<T>) {
    let authority = Authority::new();
    let config = authority.client(rustls::ALL_VERSIONS);
    let (socket, peer) = pair();
    let client = thread::spawn(move || {
        let session = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
        let mut client = StreamOwned::new(session, peer);
        while client.conn.is_handshaking() {
            client.conn.complete_io(&mut client.sock).unwrap();
        }
        // A client is through with the handshake before its server is.
        client.read_exact(&mut [0; 1]).unwrap();
        act(client)
    });
    let stream = accept(socket, server_config(&authority)).await.unwrap();
    assert_eq!(stream.try_write(b"!").unwrap(), 1);
    (stream, client)
}

async fn write_all(stream: &TlsStream, data: &[u8]) -> usize {
    let mut done = 0;
    let mut waits = 0;
    while done < data.len() {
        match stream.try_write(&data[done..]) {
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                waits += 1;
                stream.socket().writable().await.unwrap();
            }
            Err(e) => panic!("{e}"),
        }
    }
    waits
}

async fn read_to_end(stream: &TlsStream) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        all.reserve(1000);
        match stream.try_read(&mut all) {
            Ok(0) => return Ok(all),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| stream.poll_readable(cx)).await?;
            }
            Err(e) => return Err(e),
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn bytes_pass_in_both_directions_also_to_a_slow_client() {
    // More bytes than the buffers of both ends ever hold.
    const SIZE: usize = 24 << 20;
    on_loop(async {
        let (begin, is_full) = channel();
        let (stream, client) = with_client(move |mut client| {
            client.write_all(&pattern(100_000)).unwrap();
            let mut got = vec![0; SIZE];
            is_full.recv().unwrap();
            client.read_exact(&mut got).unwrap();
            client.conn.send_close_notify();
            client.flush().unwrap();
            client.conn.write_tls(&mut client.sock).unwrap();
            got
        })
        .await;
        let mut got = Vec::new();
        while got.len() < 100_000 {
            got.reserve(30_000);
            match stream.try_read(&mut got) {
                Ok(n) => assert!(n > 0),
                Err(_) => poll_fn(|cx| stream.poll_readable(cx)).await.unwrap(),
            }
        }
        assert!(got == pattern(100_000));
        let sent = pattern(SIZE);
        let mut taken = 0;
        while let Ok(n) = stream.try_write(&sent[taken..]) {
            taken += n;
        }
        assert!(taken < SIZE, "the socket took everything at once");
        begin.send(()).unwrap();
        write_all(&stream, &sent[taken..]).await;
        assert_eq!(read_to_end(&stream).await.unwrap(), b"");
        assert!(client.join().unwrap() == sent);
    });
}

#[test]
fn accepted_bytes_have_been_sent() {
    on_loop(async {
        let (stream, client) = with_client(|client| client).await;
        // The client does not read yet.
        let data = pattern(8 << 20);
        let mut done = 0;
        while let Ok(n) = stream.try_write(&data[done..]) {
            done += n;
        }
        assert!(done > 0 && done < data.len());
        let mut client = client.join().unwrap();
        drop(thread::spawn(move || {
            let mut nothing = Vec::new();
            let _ = client.read_to_end(&mut nothing);
        }));
        write_all(&stream, &data[done..]).await;
        assert!(!stream.state.borrow().session.wants_write());
        assert_eq!(stream.state.borrow().repeated_len, 0);
    });
}

#[test]
fn parts_share_records() {
    on_loop(async {
        let (stream, client) = with_client(|mut client| {
            let mut got = [0; 12];
            let n = client.read(&mut got).unwrap();
            got[..n].to_vec()
        })
        .await;
        let parts = ["head", "", "and ", "body"].map(|part| IoSlice::new(part.as_bytes()));
        assert_eq!(stream.try_write_vectored(&parts).unwrap(), 12);
        assert_eq!(client.join().unwrap(), b"headand body");
    });
}

#[test]
fn windows_of_parts() {
    let parts = ["abc", "", "defg", "h"].map(|part| IoSlice::new(part.as_bytes()));
    let seen = |start, max| {
        let (io_slices, count) = window(&parts, start, max);
        io_slices[..count].iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>()
    };
    assert_eq!(seen(0, 100), b"abcdefgh");
    assert_eq!(seen(2, 3), b"cde");
    assert_eq!(seen(4, 2), b"ef");
    assert_eq!(seen(7, 1), b"h");
    assert_eq!(seen(8, 1), b"");
    let many = [IoSlice::new(b"x"); 20];
    assert_eq!(window(&many, 3, 100).1, PARTS_MAX);
}

#[test]
fn truncated_connection_has_ended_for_a_server() {
    on_loop(async {
        let (stream, client) = with_client(|mut client| {
            client.write_all(b"request").unwrap();
            // The client closes the connection without a close_notify.
            drop(client.sock);
        })
        .await;
        assert_eq!(read_to_end(&stream).await.unwrap(), b"request");
        client.join().unwrap();
    });
}

#[test]
fn invalid_record_breaks_the_connection_with_an_alert() {
    on_loop(async {
        let (stream, client) = with_client(|mut client| {
            client.sock.write_all(b"\x17\x03\x03\x00\x20nonsense that nobody has encrypted").unwrap();
            let mut alert = [0; 64];
            client.sock.read(&mut alert).unwrap()
        })
        .await;
        assert_eq!(read_to_end(&stream).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(client.join().unwrap() > 0);
        assert_eq!(stream.try_write(b"x").unwrap_err().kind(), io::ErrorKind::InvalidData);
    });
}

#[test]
fn close_notify_is_sent() {
    on_loop(async {
        let (stream, client) = with_client(|mut client| {
            let mut all = Vec::new();
            // Reading fails if only TCP signals the end.
            client.read_to_end(&mut all).map(|_| all)
        })
        .await;
        assert_eq!(stream.try_write(b"all").unwrap(), 3);
        drop(stream);
        assert_eq!(client.join().unwrap().unwrap(), b"all");
    });
}

#[test]
fn other_protocols_are_detected() {
    on_loop(async {
        let (socket, mut peer) = pair();
        let mut greeting = ClientHelloReader::new(socket, Vec::new());
        assert!(greeting.read().unwrap().is_none());
        peer.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        greeting.socket().readable().await.unwrap();
        match greeting.read().unwrap() {
            Some(ClientMessage::Plain(bytes)) => assert_eq!(bytes, b"GET / HTTP/1.1\r\n"),
            _ => panic!("this is no TLS"),
        }
        // Bytes that came before count.
        let (socket, _peer) = pair();
        assert!(matches!(
            ClientHelloReader::new(socket, b"P".to_vec()).read(),
            Ok(Some(ClientMessage::Plain(_)))
        ));
        let (socket, mut peer) = pair();
        peer.write_all(b"\x16\x03\x01\x00\x04\x02\x00\x00\x00").unwrap();
        let mut greeting = ClientHelloReader::new(socket, Vec::new());
        greeting.socket().readable().await.unwrap();
        assert!(matches!(greeting.read(), Err(HandshakeError::Tls(_))));
        let mut alert = [0; 7];
        peer.read_exact(&mut alert).unwrap();
        assert_eq!(alert[0], 21);
    });
}

#[test]
fn hello_may_arrive_byte_by_byte() {
    let authority = Authority::new();
    let config = authority.client(rustls::ALL_VERSIONS);
    let mut client = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    on_loop(async {
        let (socket, mut peer) = pair();
        let mut greeting = ClientHelloReader::new(socket, Vec::new());
        for (at, byte) in hello.iter().enumerate() {
            peer.write_all(&[*byte]).unwrap();
            greeting.socket().readable().await.unwrap();
            let said = greeting.read().unwrap();
            assert_eq!(said.is_some(), at + 1 == hello.len(), "byte {at}");
        }
    });
}

#[test]
fn client_distinguishes_truncation_from_end() {
    on_loop(async {
        let (stream, server) = with_server(|mut server| {
            server.write_all(b"all").unwrap();
            server.conn.send_close_notify();
            server.conn.complete_io(&mut server.sock).unwrap();
        })
        .await;
        assert_eq!(read_to_end(&stream).await.unwrap(), b"all");
        server.join().unwrap();
        let (stream, server) = with_server(|mut server| server.write_all(b"some").unwrap()).await;
        assert_eq!(read_to_end(&stream).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        server.join().unwrap();
    });
}

#[test]
fn session_tickets_are_no_input() {
    on_loop(async {
        let said = channel::<()>();
        let now = channel::<()>();
        let sender = said.0;
        let wait = now.1;
        let (stream, server) = with_server(move |mut server| {
            // Tickets have left with the handshake. New keys, at any time:
            server.conn.refresh_traffic_keys().unwrap();
            server.conn.complete_io(&mut server.sock).unwrap();
            sender.send(()).unwrap();
            wait.recv().unwrap();
            server.write_all(b"x").unwrap();
            sender.send(()).unwrap();
            wait.recv().unwrap();
        })
        .await;
        said.1.recv().unwrap();
        stream.socket().readable().await.unwrap();
        assert!(!stream.may_have_input());
        now.0.send(()).unwrap();
        said.1.recv().unwrap();
        stream.socket().readable().await.unwrap();
        assert!(stream.may_have_input());
        let mut got = Vec::with_capacity(10);
        assert_eq!(stream.try_read(&mut got).unwrap(), 1);
        assert!(!stream.may_have_input());
        now.0.send(()).unwrap();
        server.join().unwrap();
        stream.socket().readable().await.unwrap();
        assert!(stream.may_have_input());
    });
}

#[test]
fn unknown_server_gets_an_alert() {
    let ours = Authority::new();
    let other = Authority::new();
    let config = server_config(&other);
    on_loop(async {
        let (socket, peer) = pair();
        let server = thread::spawn(move || {
            let mut server = StreamOwned::new(ServerConnection::new(config).unwrap(), peer);
            server.read(&mut [0; 1]).unwrap_err().to_string()
        });
        let session = connect(ours.client(rustls::ALL_VERSIONS), "localhost".try_into().unwrap()).unwrap();
        assert!(matches!(finish(Handshake::new(socket, session)).await, Err(HandshakeError::Tls(_))));
        let error_text = server.join().unwrap();
        assert!(error_text.contains("received fatal alert"), "{error_text}");
    });
}
