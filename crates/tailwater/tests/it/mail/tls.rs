//! TLS: `listen … ssl`, STARTTLS, certificates of clients, PROXY protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ALL_VERSIONS, ClientConfig, ClientConnection, StreamOwned};
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Server};

use super::{AuthServer, LineClient, MailServer, start};
use crate::support::server;

const SSL: &str = "ssl_certificate one.crt; ssl_certificate_key one.key;";

/// Starts a server in a `mail` block with this content, and a certificate of `authority`.
fn start_with(authority: &Authority, mail: &str) -> Server {
    let made = authority.certify(&["localhost"]);
    let server = server().certificate("one", &made).file("conf/ca.pem", authority.pem());
    server.start(&format!("mail {{ {SSL} {mail} }}")).unwrap()
}

/// Connection over TLS that began with plain lines.
type Secured = StreamOwned<ClientConnection, TcpStream>;

/// Sends plain `lines` after a greeting, each with one line of answer, and begins TLS.
fn start_tls(server: &Server, lines: &[&str], config: &Arc<ClientConfig>) -> Secured {
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    plain_line(&mut stream);
    for line in lines {
        stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        plain_line(&mut stream);
    }
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream)
}

fn plain_line(stream: &mut impl Read) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => line.push(byte[0]),
            _ => break,
        }
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

#[test]
fn session_over_tls_tells_the_auth_server() {
    let backend = MailServer::imap();
    let auth = AuthServer::accepting(backend.addr);
    let authority = Authority::new();
    let conf = format!(
        "auth_http http://{}/; server {{ listen 127.0.0.1:{{port}} ssl; protocol imap; }}",
        auth.addr
    );
    let server = start_with(&authority, &conf);
    let config = authority.client(ALL_VERSIONS);
    let mut client = LineClient(Client::connect_tls(server.addr(), &config, "localhost").unwrap());
    client.gets("* OK IMAP4 ready");
    client.asks("a1 STARTTLS", "a1 BAD invalid command");
    client.asks("a1 LOGIN user secret", "a1 OK logged in");
    client.asks("a2 NOOP", "a2 OK noop");
    let request = &auth.requests()[0];
    assert_eq!((&*request["auth-ssl"], &*request["auth-ssl-protocol"]), ("on", "TLSv1.3"));
    assert!(request["auth-ssl-cipher"].starts_with("TLS_"));
    assert!(!request.contains_key("auth-ssl-verify"));
}

#[test]
fn session_begins_on_a_connection_that_stream_has_passed() {
    let backend = MailServer::imap();
    let auth = AuthServer::accepting(backend.addr);
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    // The bytes of `port` are read before, the TLS of `port1` ends before, and those of `port4` are read after a PROXY protocol header.
    let conf = format!(
        "stream {{
             {SSL}
             server {{ listen 127.0.0.1:{{port}}; ssl_preread on; pass 127.0.0.1:{{port2}}; }}
             server {{ listen 127.0.0.1:{{port1}} ssl; pass 127.0.0.1:{{port3}}; }}
             server {{ listen 127.0.0.1:{{port4}} proxy_protocol; ssl_preread on; pass 127.0.0.1:{{port2}}; }}
         }}
         mail {{
             {SSL} auth_http http://{}/; log_format one '$server_port $proxy_protocol_addr';
             access_log logs/access.log one;
             server {{ listen 127.0.0.1:{{port2}} ssl; protocol imap; }}
             server {{ listen 127.0.0.1:{{port3}}; protocol imap; starttls on; }}
         }}",
        auth.addr
    );
    let server = server().certificate("one", &made).start(&conf).unwrap();
    let config = authority.client(ALL_VERSIONS);
    for (index, attempt) in [(0, "preread"), (1, "ended")] {
        let mut client =
            LineClient(Client::connect_tls(server.addr_of(index), &config, "localhost").unwrap());
        client.gets("* OK IMAP4 ready");
        client.asks("a1 STARTTLS", "a1 BAD invalid command");
        client.asks("a2 LOGIN user secret", "a2 OK logged in");
        assert_eq!(auth.requests().last().unwrap()["auth-ssl"], "on", "{attempt}");
    }
    let mut stream = TcpStream::connect(server.addr_of(4)).unwrap();
    stream.write_all(b"PROXY TCP4 192.0.2.7 192.0.2.2 1 2\r\n").unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut secured = StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream);
    assert_eq!(plain_line(&mut secured), "* OK IMAP4 ready");
    drop(secured);
    let lines = server.access_log(3).unwrap();
    let port = server.addr_of(2).port();
    assert!(lines.contains(&format!("{port} 192.0.2.7")), "{lines:?}");
}

#[test]
fn alpn_of_the_protocol_is_accepted_only() {
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    let authority = Authority::new();
    let conf = format!(
        "auth_http http://{}/; server {{ listen 127.0.0.1:{{port}} ssl; protocol pop3; }}",
        auth.addr
    );
    let server = start_with(&authority, &conf);
    for (offered, is_served) in [("pop3", true), ("imap", false)] {
        let mut config = (*authority.client(ALL_VERSIONS)).clone();
        config.alpn_protocols = vec![offered.as_bytes().to_vec()];
        let line = match Client::connect_tls(server.addr(), &Arc::new(config), "localhost") {
            Ok(client) => LineClient(client).line(),
            Err(_) => String::new(),
        };
        assert_eq!(line == "+OK POP3 ready", is_served, "{offered}");
    }
}

#[test]
fn starttls_of_every_protocol() {
    let authority = Authority::new();
    let config = authority.client(ALL_VERSIONS);
    for (protocol, starttls, login, expected) in [
        ("pop3", "STLS", "AUTH PLAIN AHVzZXIAc2VjcmV0", "+OK PASS"),
        ("imap", "a0 STARTTLS", "a1 LOGIN user secret", "a1 OK logged in"),
        ("smtp", "STARTTLS", "AUTH PLAIN AHVzZXIAc2VjcmV0", "235 2.0.0 OK"),
    ] {
        let backend = match protocol {
            "pop3" => MailServer::pop3(),
            "imap" => MailServer::imap(),
            _ => MailServer::smtp(),
        };
        let auth = AuthServer::accepting(backend.addr);
        let conf = format!(
            "auth_http http://{}/; starttls only; server {{ listen 127.0.0.1:{{port}}; protocol {protocol}; }}",
            auth.addr
        );
        let server = start_with(&authority, &conf);
        let mut plain = LineClient(Client::connect(server.addr()).unwrap());
        plain.line();
        plain.sends(login);
        let refusal = plain.line();
        assert!(["-ERR", "a1 BAD", "500"].iter().any(|begin| refusal.starts_with(begin)), "{refusal}");
        let mut secured = start_tls(&server, &[starttls], &config);
        secured.write_all(format!("{login}\r\n").as_bytes()).unwrap();
        assert_eq!(plain_line(&mut secured), expected, "{protocol}");
        assert_eq!(auth.requests()[0]["auth-ssl"], "on");
        drop(secured);
        let log = server.wait_error_log("proxied session done").unwrap();
        assert!(log.contains("client: 127.0.0.1 using starttls, server: "), "{log}");
    }
}

#[test]
fn bytes_injected_before_the_handshake_are_not_commands() {
    let authority = Authority::new();
    let config = authority.client(ALL_VERSIONS);
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    let conf = format!(
        "auth_http http://{}/; starttls on; server {{ listen 127.0.0.1:{{port}}; protocol smtp; }}",
        auth.addr
    );
    let server = start_with(&authority, &conf);
    let mut secured = start_tls(&server, &["STARTTLS\r\nRSET"], &config);
    // Either the injected command is gone, or the handshake fails.
    if secured.write_all(b"NOOP\r\nQUIT\r\n").is_ok() {
        let first = plain_line(&mut secured);
        assert!(first.is_empty() || first == "250 2.0.0 OK", "{first}");
        let second = plain_line(&mut secured);
        assert!(second.is_empty() || second == "221 2.0.0 Bye", "the injected RSET was answered: {second}");
    }
}

#[test]
fn certificates_of_clients_are_verified_and_told() {
    let backend = MailServer::imap();
    let auth = AuthServer::accepting(backend.addr);
    let (authority, stranger) = (Authority::new(), Authority::new());
    let conf = format!(
        "auth_http http://{}/; auth_http_pass_client_cert on; ssl_verify_client on; ssl_client_certificate ca.pem;
         server {{ listen 127.0.0.1:{{port}} ssl; protocol imap; }}",
        auth.addr
    );
    let server = start_with(&authority, &conf);
    let connect = |config: &Arc<ClientConfig>| {
        LineClient(Client::connect_tls(server.addr(), config, "localhost").unwrap())
    };
    connect(&authority.client(ALL_VERSIONS)).gets("* BYE No required SSL certificate");
    let bad = authority.client_with(ALL_VERSIONS, &stranger.certify(&["client"]));
    connect(&bad).gets("* BYE SSL certificate error");
    let good = authority.client_with(ALL_VERSIONS, &authority.certify(&["client"]));
    let mut client = connect(&good);
    client.gets("* OK IMAP4 ready");
    client.asks("a1 LOGIN user secret", "a1 OK logged in");
    let request = &auth.requests()[0];
    assert_eq!(request["auth-ssl-verify"], "SUCCESS");
    assert!(request["auth-ssl-cert"].starts_with("-----BEGIN%20CERTIFICATE-----%0A"), "{request:?}");
    assert!(!request["auth-ssl-fingerprint"].is_empty() && !request["auth-ssl-issuer"].is_empty());
}

#[test]
fn proxy_protocol_in_and_out() {
    let backend = MailServer::start("220 backend", |line| match line.split(' ').next() {
        Some("PROXY") => String::new(),
        Some("XCLIENT") => "220 again".to_owned(),
        _ => "250 ok".to_owned(),
    });
    let auth = AuthServer::accepting(backend.addr);
    for (trusted, client_ip) in [("", "127.0.0.1"), ("set_real_ip_from 127.0.0.0/8;", "192.0.2.1")] {
        let server = start(&format!(
            "auth_http http://{}/; proxy_protocol on; server_name s; {trusted}
             server {{ listen 127.0.0.1:{{port}} proxy_protocol; protocol smtp; }}",
            auth.addr
        ));
        let mut client = LineClient(Client::connect(server.addr()).unwrap());
        client.sends("PROXY TCP4 192.0.2.1 192.0.2.2 123 5678");
        client.gets("220 s ESMTP ready");
        client.asks("AUTH PLAIN AHVzZXIAc2VjcmV0", "235 2.0.0 OK");
        let request = auth.requests().pop().unwrap();
        assert_eq!(request["client-ip"], client_ip);
        assert_eq!(request["proxy-protocol-addr"], "192.0.2.1");
        assert_eq!(request["proxy-protocol-server-port"], "5678");
        let lines = backend.lines();
        let header = lines.iter().rev().find(|line| line.starts_with("PROXY")).unwrap();
        assert!(header.starts_with(&format!("PROXY TCP4 {client_ip} 127.0.0.1 ")), "{header}");
    }
}
