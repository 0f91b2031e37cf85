//! Peers that send nonsense, lie, or vanish in the middle of something: the session ends, everything else goes on, and nothing of the
//! session stays.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustls::ALL_VERSIONS;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Server, wait};

use super::short_sessions::open_files;
use super::{echo, start, upstream};
use crate::support::server;

/// A hello of TLS 1.2 with this server name and nothing else.
fn hello_for(name: &[u8]) -> Vec<u8> {
    let sized = |content: &[u8]| [&u16::try_from(content.len()).unwrap().to_be_bytes(), content].concat();
    let list = sized(&[&[0], &*sized(name)].concat());
    let extensions = sized(&[&[0, 0], &*sized(&list)].concat());
    let body = [&[3, 3], &[7; 32][..], &[0], &sized(&[0xc0, 0x2b]), &[1, 0], &extensions].concat();
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1], &len[1..], &body].concat();
    [&[22, 3, 1], &*sized(&message)].concat()
}

/// Bytes that a session gets which sends these and nothing else.
fn answer(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut client = Client::connect(addr).unwrap();
    let _ = client.send(bytes);
    client.read_until_close().unwrap_or_default()
}

#[test]
fn hello_split_at_every_byte_reaches_the_server_of_its_name() {
    let server = start(
        "ssl_preread on;
         server { listen 127.0.0.1:{port}; return default; }
         server { listen 127.0.0.1:{port}; server_name one.example; return $ssl_preread_server_name; }",
    );
    let bytes = hello_for(b"one.example");
    for at in 1..bytes.len() {
        let mut client = server.connect().unwrap();
        client.send_split([&bytes[..at], &bytes[at..]]).unwrap();
        assert_eq!(client.read_until_close().unwrap(), b"one.example", "{at}");
    }
}

#[test]
fn handshake_split_at_every_byte_of_its_hello_succeeds() {
    let authority = Authority::new();
    let server = server()
        .certificate("one", &authority.certify(&["localhost"]))
        .start(
            "stream { server { listen 127.0.0.1:{port} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
             return $ssl_server_name; } }",
        )
        .unwrap();
    let config = authority.client(ALL_VERSIONS);
    let mut at = 1;
    let mut len = usize::MAX;
    while at < len {
        let mut session =
            ClientConnection::new(config.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
        let mut hello = Vec::new();
        session.write_tls(&mut hello).unwrap();
        len = hello.len();
        let mut socket = TcpStream::connect(server.addr()).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        socket.write_all(&hello[..at]).unwrap();
        wait::pause(Duration::from_millis(2));
        socket.write_all(&hello[at..]).unwrap();
        let mut text = String::new();
        rustls::Stream::new(&mut session, &mut socket).read_to_string(&mut text).unwrap();
        assert_eq!(text, "localhost", "{at}");
        at += 1;
    }
}

/// A name chooses among the servers that are configured, and nothing more: no other port, no socket of this machine, no line in a log.
#[test]
fn server_name_that_lies_leads_nowhere() {
    let server = start(
        "log_format l '$status [$ssl_preread_server_name] [$upstream_addr]'; access_log logs/access.log l;
         map $ssl_preread_server_name $inner { ~^(?<word>[a-z]+)\\.inner\\.example$ 127.0.0.1:{port1}; default 127.0.0.1:{port2}; }
         server { listen 127.0.0.1:{port}; ssl_preread on; proxy_pass $ssl_preread_server_name:{port1}; proxy_connect_timeout 2s; }
         server { listen 127.0.0.1:{port1}; return inner; }
         server { listen 127.0.0.1:{port2}; return outer; }
         server { listen 127.0.0.1:{port3}; ssl_preread on; proxy_pass $inner; }
         server { listen 127.0.0.1:{port4}; ssl_preread on; access_log off; proxy_pass $ssl_preread_server_name; }",
    );
    // A UNIX socket of this machine whose path a client might guess.
    let path = server.prefix().join("secret");
    let socket = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let secret = thread::spawn(move || {
        let (mut stream, _) = socket.accept().unwrap();
        let _ = stream.write_all(b"secret");
    });
    let unix = format!("unix:{}", path.display());
    let port = server.addr_of(1).port();
    let names = [
        unix.clone().into_bytes(),
        format!("{unix}\0").into_bytes(),
        format!("{unix}\0:").into_bytes(),
        Vec::new(),
        format!("127.0.0.1:{port}").into_bytes(),
        b"a b\r\n\"127.0.0.1\"".to_vec(),
        b"\xff\xfe".to_vec(),
        b"..".to_vec(),
        vec![b'x'; 4000],
    ];
    for (index, name) in names.iter().enumerate() {
        assert_eq!(answer(server.addr(), &hello_for(name)), b"", "{}", name.escape_ascii());
        assert_eq!(server.access_log(index + 1).unwrap().len(), index + 1, "{}", name.escape_ascii());
        assert_eq!(answer(server.addr_of(4), &hello_for(name)), b"", "{}", name.escape_ascii());
    }
    let lines = server.access_log(names.len()).unwrap();
    assert!(lines.iter().all(|line| line.starts_with("500 [") || line.starts_with("502 [")), "{lines:?}");
    // None of these is a valid host name.
    assert!(lines.iter().all(|line| line.ends_with(" [] [-]")), "{lines:?}");
    // The regular expression is matched against the whole name.
    for (name, expected) in [
        (&b"a.inner.example"[..], &b"inner"[..]),
        (b"a.inner.example.other", b"outer"),
        (b"a.inner.example\0", b"outer"),
        (b"other.example\na.inner.example", b"outer"),
    ] {
        assert_eq!(answer(server.addr_of(3), &hello_for(name)), expected, "{}", name.escape_ascii());
    }
    // No session has connected to the socket: this connection is the first that its thread accepts.
    assert!(!secret.is_finished());
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    secret.join().unwrap();
}

/// A header of version 2 with these bytes behind its signature.
fn version_2(version_command: u8, family: u8, announced: u16, rest: &[u8]) -> Vec<u8> {
    [b"\r\n\r\n\0\r\nQUIT\n", &[version_command, family][..], &announced.to_be_bytes(), rest].concat()
}

#[test]
fn proxy_protocol_header_is_read_in_any_pieces() {
    let server = start(
        "server { listen 127.0.0.1:{port} proxy_protocol; set_real_ip_from 127.0.0.1; return '$remote_addr:$remote_port'; }",
    );
    let ipv4 = [192, 0, 2, 7, 192, 0, 2, 8, 0x12, 0x34, 0, 80];
    let local = version_2(0x20, 0, 3, b"abc");
    let cases = [
        (b"PROXY TCP4 192.0.2.7 192.0.2.8 4660 80\r\n".to_vec(), true),
        (version_2(0x21, 0x11, 12, &ipv4), true),
        // A checksum or other values behind the addresses.
        (version_2(0x21, 0x11, 16, &[&ipv4[..], &[1, 0, 1, b'x']].concat()), true),
        (b"PROXY UNKNOWN\r\n".to_vec(), false),
        (local, false),
        // Datagrams and Unix sockets, which a connection cannot come from.
        (version_2(0x21, 0x12, 12, &ipv4), false),
        (version_2(0x21, 0x31, 216, &[b'x'; 216]), false),
    ];
    for (header, is_known) in cases {
        for at in 1..=header.len() {
            let mut client = server.connect().unwrap();
            let own = client.local_addr().unwrap().to_string();
            let expected = if is_known { "192.0.2.7:4660" } else { &own };
            if at < header.len() {
                client.send_split([&header[..at], &header[at..]]).unwrap();
            } else {
                client.send(&header).unwrap();
            }
            let text = String::from_utf8(client.read_until_close().unwrap()).unwrap();
            assert_eq!(text, expected, "{} {at}", header.escape_ascii());
        }
    }
}

#[test]
fn proxy_protocol_header_that_is_cut_or_too_long_ends_the_session() {
    let server = start(
        "log_format l '$status $bytes_sent'; access_log logs/access.log l; proxy_protocol_timeout 400ms;
         server { listen 127.0.0.1:{port} proxy_protocol; return served; }",
    );
    let ipv4 = [192, 0, 2, 7, 192, 0, 2, 8, 0x12, 0x34, 0, 80];
    let whole = [b"PROXY TCP4 192.0.2.7 192.0.2.8 4660 80\r\n".to_vec(), version_2(0x21, 0x11, 12, &ipv4)];
    let mut count = 0;
    // Cut by the end of the connection.
    for header in &whole {
        for end in 1..header.len() {
            let mut client = server.connect().unwrap();
            client.send(&header[..end]).unwrap();
            client.finish_sending().unwrap();
            assert_eq!(
                client.read_until_close().unwrap_or_default(),
                b"",
                "{}",
                header[..end].escape_ascii()
            );
            count += 1;
        }
    }
    // Cut by silence, too long, and not a header at all.
    let long_line = format!("PROXY TCP4 {}", "1".repeat(200));
    for bytes in [
        &whole[0][..20],
        &whole[1][..20],
        long_line.as_bytes(),
        &version_2(0x21, 0x11, 5000, &[0; 5000]),
        &version_2(0x21, 0x11, 65_535, &[0; 65_535]),
        &version_2(0x21, 0x11, 4, &ipv4),
        &version_2(0x31, 0x11, 12, &ipv4),
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 99999\r\n",
        b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
        b"\r\n\r\n\0\r\nQUIT\r",
        &[0; 3000],
    ] {
        assert_eq!(answer(server.addr(), bytes), b"", "{:.60}", bytes.escape_ascii().to_string());
        count += 1;
    }
    assert!(server.access_log(count).unwrap().iter().all(|line| line == "400 0"));
    for text in [
        "header is too large",
        "header is too short",
        "unknown PROXY protocol version: 3",
        "broken header: \"PROXY TCP4 1",
    ] {
        server.wait_error_log(text).unwrap();
    }
    assert_eq!(answer(server.addr(), &whole[0]), b"served");
}

/// Closes a connection so that the other side gets a reset.
fn reset(socket: TcpStream) {
    set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop(socket);
}

/// Upstream servers that vanish at one step after the other, and one that works.
fn vanishing() -> [SocketAddr; 5] {
    let first_byte = |stream: &mut TcpStream| stream.read(&mut [0]).is_ok_and(|count| count == 1);
    [
        upstream(reset),
        upstream(move |mut stream| {
            first_byte(&mut stream);
            reset(stream);
        }),
        upstream(move |mut stream| {
            first_byte(&mut stream);
            let _ = stream.write_all(&[b'x'; 100_000]);
            reset(stream);
        }),
        // The upstream server sends for as long as its peer reads.
        upstream(move |mut stream| {
            first_byte(&mut stream);
            while stream.write_all(&[b'x'; 100_000]).is_ok() {}
        }),
        upstream(echo),
    ]
}

/// Starts a server with ways to each of them: plain, by TLS, with a preread, with a header of the PROXY protocol.
fn vanishing_server(authority: &Authority) -> Server {
    let addrs = vanishing().map(|addr| addr.to_string());
    let ports = (0..addrs.len())
        .map(|nth| format!("server {{ listen 127.0.0.1:{{port{nth}}}; proxy_pass {}; }}", addrs[nth]));
    let [.., bulk, works] = &addrs;
    let ports: String = ports.collect();
    server()
        .certificate("one", &authority.certify(&["localhost"]))
        .start(&format!(
            "stream {{ {ports}
             server {{ listen 127.0.0.1:{{port5}} ssl; ssl_certificate one.crt; ssl_certificate_key one.key; proxy_pass {works}; }}
             server {{ listen 127.0.0.1:{{port6}}; ssl_preread on; proxy_pass {works}; }}
             server {{ listen 127.0.0.1:{{port7}} proxy_protocol; proxy_pass {bulk}; proxy_half_close on; }}
             server {{ listen 127.0.0.1:{{port8}}; proxy_pass 10.255.255.1:9; proxy_connect_timeout 1s; }} }}"
        ))
        .unwrap()
}

/// Ends of a client.
#[derive(Clone, Copy, Debug)]
enum ClientEnd {
    Reset,
    Close,
    HalfClose,
}

#[test]
fn peers_that_vanish_at_any_step_leave_nothing_behind() {
    let authority = Authority::new();
    let server = vanishing_server(&authority);
    let hello = {
        let name = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(Arc::clone(&authority.client(ALL_VERSIONS)), name).unwrap();
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes).unwrap();
        bytes
    };
    let works = || {
        let mut client = Client::connect(server.addr_of(4)).unwrap();
        client.send("works").unwrap();
        assert_eq!(client.read_bytes(5).unwrap(), b"works");
    };
    works();
    let end = |mut socket: TcpStream, way: ClientEnd| match way {
        ClientEnd::Reset => reset(socket),
        ClientEnd::Close => drop(socket),
        ClientEnd::HalfClose => {
            let _ = socket.shutdown(std::net::Shutdown::Write);
            // The client reads until the server closes, or has sent enough.
            let _ = (&mut socket).take(1 << 20).read_to_end(&mut Vec::new());
        }
    };
    let half = &hello[..hello.len() / 2];
    let sent: [(usize, &[u8]); 15] = [
        (0, b""),
        (1, b"x"),
        (2, b"x"),
        (3, b"x"),
        (4, b""),
        (4, b"x"),
        (5, b""),
        (5, half),
        (5, &hello),
        (6, b""),
        (6, half),
        (6, &hello),
        (7, b"PROXY TCP4 1.2.3.4"),
        (7, b"PROXY UNKNOWN\r\nx"),
        (8, b"x"),
    ];
    let round = |way| {
        for (index, bytes) in sent {
            let mut socket = TcpStream::connect(server.addr_of(index)).unwrap();
            socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
            let _ = socket.write_all(bytes);
            end(socket, way);
        }
        // Over TLS, before and behind the first bytes; its end is the one of the socket.
        for text in [&b""[..], b"x"] {
            let name = ServerName::try_from("localhost").unwrap();
            let mut session = ClientConnection::new(authority.client(ALL_VERSIONS), name).unwrap();
            let mut socket = TcpStream::connect(server.addr_of(5)).unwrap();
            socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
            let mut stream = rustls::Stream::new(&mut session, &mut socket);
            stream.write_all(text).unwrap();
            stream.flush().unwrap();
            if !text.is_empty() {
                assert_eq!(stream.read(&mut [0; 9]).unwrap(), text.len());
            }
            end(socket, way);
        }
    };
    let ways = [ClientEnd::Reset, ClientEnd::Close, ClientEnd::HalfClose];
    ways.into_iter().for_each(round);
    // Sessions that connect to nowhere last a second.
    let is_rested = |max: usize| wait::until(wait::TIMEOUT, || open_files(&server) <= max);
    works();
    let before = wait::some(wait::TIMEOUT, || {
        let now = open_files(&server);
        wait::pause(Duration::from_millis(1200));
        (open_files(&server) == now).then_some(now)
    })
    .unwrap();
    for _ in 0..3 {
        ways.into_iter().for_each(round);
    }
    works();
    assert!(is_rested(before), "{} of {before}\n{}", open_files(&server), server.error_log());
}

#[test]
fn servers_that_are_all_down_are_tried_again_after_their_time() {
    let ports = [(); 2].map(|()| tw_testkit::ports::Port::reserve().unwrap());
    let [one, two] = ports.each_ref().map(|port| SocketAddr::from(([127, 0, 0, 1], port.number())));
    let server = start(&format!(
        "log_format l '$status [$upstream_addr]'; access_log logs/access.log l;
         upstream u {{ server {one} fail_timeout=1s; server {two} fail_timeout=1s; }}
         server {{ listen 127.0.0.1:{{port}}; proxy_pass u; }}"
    ));
    for _ in 0..3 {
        assert_eq!(super::text(server.addr()), "");
    }
    let lines = server.access_log(3).unwrap();
    assert!(
        lines[0] == format!("502 [{one}, {two}]") || lines[0] == format!("502 [{two}, {one}]"),
        "{lines:?}"
    );
    assert_eq!(lines[1..], ["502 [u]", "502 [u]"]);
    server.wait_error_log("no live upstreams while connecting to upstream, client: ").unwrap();
    let listener = std::net::TcpListener::bind(two).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"back");
        }
    });
    assert!(wait::until(wait::TIMEOUT, || super::text(server.addr()) == "back"), "{}", server.error_log());
}
