//! The auth server: bad ones, names, Unix sockets, TLS, groups with kept connections.

use std::io::Write;
use std::net::TcpListener;
use std::thread;

use rustls::ALL_VERSIONS;
use tw_testkit::tls::Authority;

use super::{AuthServer, LineClient, MailServer, accepted, drain, start};
use crate::support::server;

const GREETING: &str = "+OK POP3 ready";
const SERVER: &str = "server { listen 127.0.0.1:{port}; protocol pop3; }";

/// Logs in, and returns the answer to the password.
fn login(server: &tw_testkit::Server) -> String {
    let mut client = LineClient::connect(server, GREETING);
    client.asks("USER user", "+OK");
    client.sends("PASS secret");
    client.line()
}

#[test]
fn bad_answers_are_internal_errors_with_their_cause() {
    let internal = "-ERR internal server error";
    for (lines, cause) in [
        (vec!["Auth-Status: OK"], "did not send server or port"),
        (vec!["Auth-Server: 127.0.0.1", "Auth-Port: 0"], "sent invalid server port:\"0\""),
        (
            vec!["Auth-Server: mail.example", "Auth-Port: 1"],
            "sent invalid server address:\"mail.example\" (a name is not resolved",
        ),
        (vec!["Bad_Name: x"], "sent invalid header in response"),
    ] {
        let own: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let auth = AuthServer::start(move |_| own.clone());
        let server = start(&format!("auth_http http://{}/; {SERVER}", auth.addr));
        assert_eq!(login(&server), internal, "{lines:?}");
        server.wait_error_log(&format!("auth http server {} {cause}", auth.addr)).unwrap();
    }
}

#[test]
fn silent_and_endless_auth_servers_are_bounded() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap();
    thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(thread::spawn(|| drain(stream))))
    });
    let server = start(&format!("auth_http http://{silent}/; auth_http_timeout 300ms; {SERVER}"));
    assert_eq!(login(&server), "-ERR internal server error");
    server.wait_error_log(&format!("auth http server {silent} timed out")).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endless = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n");
            while stream.write_all(&b"X: y\r\n".repeat(1000)).is_ok() {}
        }
    });
    let server = start(&format!("auth_http http://{endless}/; {SERVER}"));
    assert_eq!(login(&server), "-ERR internal server error");
    server.wait_error_log("sent too big response").unwrap();
}

#[test]
fn dead_auth_server_is_an_internal_error() {
    let dead = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let server = start(&format!("auth_http http://{dead}/; {SERVER}"));
    assert_eq!(login(&server), "-ERR internal server error");
    let log = server.wait_error_log("connect() failed (111: Connection refused)").unwrap();
    assert!(log.contains("while in http auth state"), "{log}");
}

#[test]
fn group_keeps_connections_and_passes_over_dead_servers() {
    let backend = MailServer::pop3();
    let auth = AuthServer::accepting(backend.addr);
    let dead = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let server = start(&format!(
        "upstream auth {{ server {dead}; server {}; keepalive 4; }} auth_http http://auth/login?a=b; {SERVER}",
        auth.addr
    ));
    for _ in 0..6 {
        assert_eq!(login(&server), "+OK PASS");
    }
    let requests = auth.requests();
    assert_eq!((requests.len(), auth.connections()), (6, 1), "one connection serves all logins");
    assert_eq!((&*requests[0]["uri"], &*requests[0]["version"]), ("/login?a=b", "HTTP/1.1"));
    assert_eq!(requests[0]["host"], "auth");
}

#[test]
fn unix_socket_and_name() {
    let backend = MailServer::pop3();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&format!("auth_http localhost:{}/x; {SERVER}", auth.addr.port()));
    assert_eq!(login(&server), "+OK PASS");
    assert_eq!(auth.requests()[0]["host"], "localhost");
}

#[test]
fn fields_of_the_configuration_are_sent() {
    let backend = MailServer::pop3();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&format!(
        "auth_http http://{}/; auth_http_header X-Key 'a b'; auth_http_header X-Two 2; {SERVER}",
        auth.addr
    ));
    assert_eq!(login(&server), "+OK PASS");
    let request = &auth.requests()[0];
    assert_eq!((&*request["x-key"], &*request["x-two"]), ("a b", "2"));
}

#[test]
fn https_is_verified() {
    let backend = MailServer::pop3();
    let authority = Authority::new();
    let config = Authority::server(ALL_VERSIONS, &authority.certify(&["auth.example"]));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let to = backend.addr;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::StreamOwned::new(session, stream);
            let request = super::read_request(&mut std::io::BufReader::new(&mut stream));
            if request.is_some() {
                let lines = accepted(to).join("\r\n");
                let _ = stream.write_all(format!("HTTP/1.0 200 OK\r\n{lines}\r\n\r\n").as_bytes());
                let _ = stream.flush();
            }
        }
    });
    for (name, expected) in [("auth.example", "+OK PASS"), ("other.example", "-ERR internal server error")] {
        let server = server().file("conf/ca.pem", authority.pem()).start(&format!(
            "mail {{ auth_http https://{addr}/; auth_http_ssl_verify on; auth_http_ssl_name {name};
             auth_http_ssl_trusted_certificate ca.pem; {SERVER} }}"
        ));
        assert_eq!(login(&server.unwrap()), expected, "{name}");
    }
}
