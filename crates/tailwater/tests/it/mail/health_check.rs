//! `health_check` of the groups of auth servers: unhealthy ones are asked about no logins.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::ALL_VERSIONS;
use tw_testkit::ports::Port;
use tw_testkit::tls::Authority;
use tw_testkit::{Server, wait};

use super::{AuthServer, Fields, LineClient, MailServer, accepted, drain, read_request, start};
use crate::support::{refusal_of, server};

const SERVER: &str = "server { listen 127.0.0.1:{port}; protocol pop3; }";

/// Auth server whose health a test decides.
#[derive(Clone)]
struct CheckedServer {
    addr: SocketAddr,
    /// Status of the answer to a check.
    status: Arc<AtomicU16>,
    /// Requests of checks.
    checks: Arc<Mutex<Vec<Fields>>>,
    /// Requests for logins.
    logins: Arc<Mutex<Vec<Fields>>>,
}

impl CheckedServer {
    /// Starts one that sends users to `to`.
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = Self {
            addr: listener.local_addr().unwrap(),
            status: Arc::new(AtomicU16::new(200)),
            checks: Arc::default(),
            logins: Arc::default(),
        };
        let served = own.clone();
        thread::spawn(move || listener.incoming().flatten().for_each(|stream| served.answer(stream, to)));
        own
    }

    fn answer(&self, mut stream: TcpStream, to: SocketAddr) {
        let Some(fields) = read_request(&mut BufReader::new(&stream)) else { return };
        let is_login = fields.contains_key("auth-user");
        let answer = match is_login {
            true => format!("HTTP/1.0 200 OK\r\n{}\r\n\r\n", accepted(to).join("\r\n")),
            false => format!("HTTP/1.0 {} Answer\r\nX_odd: is no matter\r\n\r\n", self.status.load(Relaxed)),
        };
        if is_login { &self.logins } else { &self.checks }.lock().unwrap().push(fields);
        // The server may have closed.
        let _ = stream.write_all(answer.as_bytes());
    }

    fn login_count(&self) -> usize {
        self.logins.lock().unwrap().len()
    }
}

/// Logs in, and returns the answer to the password.
fn login(server: &Server) -> String {
    let mut client = LineClient::connect(server, "+OK POP3 ready");
    client.asks("USER user", "+OK");
    client.sends("PASS secret");
    client.line()
}

#[test]
fn unhealthy_auth_server_gets_no_logins_until_it_is_back() {
    let backend = MailServer::pop3();
    let (checked, other) = (CheckedServer::start(backend.addr), CheckedServer::start(backend.addr));
    checked.status.store(503, Relaxed);
    let server = start(&format!(
        "upstream auth {{ server {}; server {}; }} auth_http http://auth/login; auth_http_header X-Key secret;
         health_check uri=/health?deep=1 interval=20ms; {SERVER}",
        checked.addr, other.addr
    ));
    let line = server.wait_error_log("peer is unhealthy").unwrap();
    let expected = format!(
        "peer is unhealthy: status 503, health check \"\" of peer {} in upstream \"auth\"",
        checked.addr
    );
    assert!(line.contains("[error]") && line.ends_with(&expected), "{line}");
    for _ in 0..4 {
        assert_eq!(login(&server), "+OK PASS");
    }
    assert_eq!((checked.login_count(), other.login_count()), (0, 4), "the healthy server is asked alone");
    let request = checked.checks.lock().unwrap()[0].clone();
    let field = |name: &str| request.get(name).map(String::as_str);
    assert_eq!((field("uri"), field("version")), (Some("/health?deep=1"), Some("HTTP/1.0")));
    assert_eq!((field("host"), field("x-key"), field("auth-user")), (Some("auth"), Some("secret"), None));
    checked.status.store(399, Relaxed);
    server.wait_error_log("peer is healthy").unwrap();
    let is_asked = || {
        assert_eq!(login(&server), "+OK PASS");
        checked.login_count() > 0
    };
    assert!(wait::until(wait::TIMEOUT, is_asked), "a server that is healthy again gets logins");
}

#[test]
fn connection_suffices_for_a_check_without_a_request() {
    let backend = MailServer::pop3();
    let auth = AuthServer::accepting(backend.addr);
    let port = Port::reserve().unwrap();
    let away = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let server = start(&format!(
        "upstream auth {{ server {}; server {away}; }} auth_http http://auth/;
         health_check type=tcp mandatory interval=20ms; {SERVER}",
        auth.addr
    ));
    let line = server.wait_error_log("peer is unhealthy").unwrap();
    let cause = "connect() failed (111: Connection refused) while connecting to upstream, health check";
    assert!(line.contains(cause) && line.contains(&away.to_string()), "{line}");
    // With `mandatory` there are no logins before the first check.
    let is_healthy = wait::until(wait::TIMEOUT, || login(&server) == "+OK PASS");
    assert!(is_healthy, "{}", server.error_log());
    assert!((0..4).all(|_| login(&server) == "+OK PASS"));
}

#[test]
fn silent_and_broken_answers_are_failures() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (nonsense, endless) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let addr = |listener: &TcpListener| listener.local_addr().unwrap();
    let addrs = [addr(&silent), addr(&nonsense), addr(&endless)];
    thread::spawn(move || {
        silent.incoming().flatten().for_each(|stream| drop(thread::spawn(|| drain(stream))))
    });
    thread::spawn(move || {
        for mut stream in nonsense.incoming().flatten() {
            read_request(&mut BufReader::new(&stream));
            // The check may be over.
            let _ = stream.write_all(b"220 no HTTP\r\n");
        }
    });
    thread::spawn(move || {
        for mut stream in endless.incoming().flatten() {
            read_request(&mut BufReader::new(&stream));
            while stream.write_all(&[b'x'; 4096]).is_ok() {}
        }
    });
    let [silent, nonsense, endless] = addrs;
    let server = start(&format!(
        "upstream auth {{ server {silent}; server {nonsense}; server {endless}; }} auth_http http://auth/;
         health_check_timeout 100ms; health_check interval=20ms; {SERVER}"
    ));
    for (addr, cause) in [
        (
            silent,
            "upstream timed out (110: Connection timed out) while reading response header from upstream",
        ),
        (nonsense, "invalid status line"),
        (endless, "too long status line"),
    ] {
        let line = server.wait_error_log(&format!("health check \"\" of peer {addr} ")).unwrap();
        assert!(line.contains(&format!("peer is unhealthy: {cause}, ")), "{line}");
    }
    assert_eq!(login(&server), "-ERR internal server error");
}

#[test]
fn checks_use_tls_and_are_made_once_for_servers_that_inherit_them() {
    let authority = Authority::new();
    let config = Authority::server(ALL_VERSIONS, &authority.certify(&["auth.example"]));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let checks = Arc::new(AtomicU16::new(0));
    let counted = checks.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::StreamOwned::new(session, stream);
            if read_request(&mut BufReader::new(&mut stream)).is_some() {
                counted.fetch_add(1, Relaxed);
                let _ = stream.write_all(b"HTTP/1.0 204 No Content\r\n\r\n");
                let _ = stream.flush();
            }
        }
    });
    let conf = |name: &str| {
        format!(
            "error_log logs/debug.log debug; mail {{ upstream auth {{ server {addr}; }} auth_http https://auth/;
             auth_http_ssl_verify on; auth_http_ssl_name {name}; auth_http_ssl_trusted_certificate ca.pem;
             health_check interval=1h;
             server {{ listen 127.0.0.1:{{port}}; protocol pop3; }}
             server {{ listen 127.0.0.1:{{port1}}; protocol imap; }} }}"
        )
    };
    let start = |name: &str| server().file("conf/ca.pem", authority.pem()).start(&conf(name)).unwrap();
    let verified = start("auth.example");
    let passed = || {
        let log = std::fs::read_to_string(verified.prefix().join("logs/debug.log")).unwrap_or_default();
        log.contains("health check passed")
    };
    assert!(wait::until(wait::TIMEOUT, passed), "{}", verified.error_log());
    assert_eq!(checks.load(Relaxed), 1, "two servers inherit one check");
    let refused = start("other.example");
    let path = refused.prefix().join("logs/debug.log");
    let failed = || std::fs::read_to_string(&path).unwrap_or_default().contains("peer is unhealthy: ");
    assert!(wait::until(wait::TIMEOUT, failed));
    assert_eq!(checks.load(Relaxed), 1, "a server without a valid certificate gets no request");
}

#[test]
fn mistakes_are_reported() {
    for (mail, expected) in [
        (
            "auth_http http://127.0.0.1:1/; health_check;",
            "\"health_check\" needs a group: \"127.0.0.1:1\" is no \"upstream\"",
        ),
        (
            "auth_http http://u/; health_check match=m;",
            "\"match\" of \"health_check\" is not supported in \"mail\"",
        ),
        ("auth_http http://u/; health_check type=udp;", "invalid parameter \"type=udp\""),
        (
            "auth_http http://u/; health_check type=tcp uri=/;",
            "\"type=tcp\" of \"health_check\" has no \"uri\"",
        ),
        ("auth_http http://u/; health_check uri=health;", "invalid parameter \"uri=health\""),
        (
            "auth_http http://u/; health_check persistent;",
            "\"persistent\" of \"health_check\" needs \"mandatory\"",
        ),
        ("auth_http http://u/; health_check; health_check;", "\"health_check\" directive is duplicate"),
        ("auth_http http://u/; health_check_timeout x;", "\"health_check_timeout\" directive invalid value"),
    ] {
        let conf = format!("mail {{ upstream u {{ server 127.0.0.1:1; }} {mail} {SERVER} }}");
        let refusal = refusal_of(&conf);
        assert!(refusal.contains(expected), "{mail}: {refusal}");
    }
}
