//! The auth server: bad ones, names, Unix sockets, TLS, groups with kept connections.

use std::fs::{self, Permissions};
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
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
fn unix_socket_is_asked_with_its_path() {
    let backend = MailServer::pop3();
    let dir = tw_testkit::temp::TempDir::new("mail-auth").unwrap();
    let path = dir.path().join("auth.sock");
    let auth = AuthServer::on_unix_socket(&path, backend.addr);
    // The worker is another user.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    for (uri, expected) in [(":/auth?x=y", "/auth?x=y"), ("", "/")] {
        let server = start(&format!("auth_http http://unix:{}{uri}; {SERVER}", path.display()));
        assert_eq!(login(&server), "+OK PASS");
        let requests = auth.requests();
        let request = requests.last().unwrap();
        assert_eq!((&*request["uri"], &*request["host"]), (expected, "localhost"));
    }
}

#[test]
fn unix_sockets_of_a_group_are_checked_and_kept() {
    let backend = MailServer::pop3();
    let dir = tw_testkit::temp::TempDir::new("mail-auth-group").unwrap();
    let (path, missing) = (dir.path().join("auth.sock"), dir.path().join("missing.sock"));
    let auth = AuthServer::on_unix_socket(&path, backend.addr);
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let server = start(&format!(
        "upstream auth {{ server unix:{}; server unix:{}; keepalive 4; }} auth_http http://auth/login;
         health_check uri=/health interval=1h; {SERVER}",
        path.display(),
        missing.display()
    ));
    let line = server.wait_error_log("peer is unhealthy").unwrap();
    assert!(line.contains("connect() failed (2: No such file or directory)"), "{line}");
    let is_checked = || auth.requests().iter().any(|request| request["uri"] == "/health");
    assert!(tw_testkit::wait::until(tw_testkit::wait::TIMEOUT, is_checked));
    for _ in 0..4 {
        assert_eq!(login(&server), "+OK PASS");
    }
    let logins = auth.requests().iter().filter(|request| request["uri"] == "/login").count();
    assert_eq!((logins, auth.connections()), (4, 2), "one connection of the check, and one for all logins");
}

#[test]
fn nonsense_and_a_gigabyte_of_auth_servers_end_the_session() {
    let internal = "-ERR internal server error";
    let answers: [(&'static [u8], &str); 3] = [
        (b"\0\xff\x16\x03 not http at all\r\n\r\n", "sent invalid header in response"),
        (b"HTTP/1.0 200 OK\r\nAuth-Status: OK", "prematurely closed connection"),
        (b"", "prematurely closed connection"),
    ];
    for (answer, cause) in answers {
        let addr = answering(move |mut stream| drop(stream.write_all(answer)));
        let server = start(&format!("auth_http http://{addr}/; {SERVER}"));
        assert_eq!(login(&server), internal, "{answer:?}");
        let log = server.wait_error_log(cause).unwrap();
        assert!(log.contains(&addr.to_string()), "{log}");
    }
    // A line without end, and a body without end: neither is read to its end.
    for (head, expected) in [
        (&b"HTTP/1.0 200 OK\r\nX: "[..], internal),
        (b"HTTP/1.1 200 OK\r\nAuth-Status: no\r\nContent-Length: 1073741824\r\n\r\n", "-ERR no"),
    ] {
        let (sender, sent) = std::sync::mpsc::channel();
        let addr = answering(move |mut stream| {
            let _ = stream.write_all(head);
            let (piece, mut count) = ([b'x'; 64 << 10], 0);
            while count < 1 << 30 && stream.write_all(&piece).is_ok() {
                count += piece.len();
            }
            sender.send(count).unwrap();
        });
        let server = start(&format!("auth_http http://{addr}/; {SERVER}"));
        assert_eq!(login(&server), expected);
        let count = sent.recv_timeout(tw_testkit::wait::TIMEOUT).unwrap();
        assert!(count < 64 << 20, "the server has taken {count} bytes");
    }
}

/// Starts an auth server that reads each request and leaves the connection to `answer`.
fn answering(answer: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            super::read_request(&mut BufReader::new(&stream));
            answer(stream);
        }
    });
    addr
}

#[test]
fn failing_servers_of_a_group_are_left_alone_and_asked_again() {
    let backend = MailServer::pop3();
    let (good, flaky) = (AuthServer::accepting(backend.addr), Arc::new(AtomicBool::new(false)));
    let (recovered, hits) = (flaky.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = hits.clone();
    let to = backend.addr;
    let addr = answering(move |mut stream| {
        counted.fetch_add(1, Relaxed);
        if recovered.load(Relaxed) {
            let lines = accepted(to).join("\r\n");
            let _ = stream.write_all(format!("HTTP/1.0 200 OK\r\n{lines}\r\n\r\n").as_bytes());
        }
    });
    let server = start(&format!(
        "upstream auth {{ server {addr} max_fails=1 fail_timeout=1s; server {}; keepalive 4; }}
         auth_http http://auth/; {SERVER}",
        good.addr
    ));
    for _ in 0..4 {
        assert_eq!(login(&server), "+OK PASS", "the next server answers in place of the one that fails");
    }
    assert_eq!(hits.load(Relaxed), 1, "a server that failed is left alone");
    assert_eq!((good.requests().len(), good.connections()), (4, 1), "one connection serves all logins");
    flaky.store(true, Relaxed);
    let is_back = || {
        assert_eq!(login(&server), "+OK PASS");
        hits.load(Relaxed) > 1
    };
    assert!(tw_testkit::wait::until(tw_testkit::wait::TIMEOUT, is_back), "it is asked again");
}

#[test]
fn name_is_resolved() {
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
            let request = super::read_request(&mut BufReader::new(&mut stream));
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
