//! Sessions that last: reloads, both directions, the end of one side.

use tw_testkit::{Client, Signal};

use super::{AuthServer, LineClient, MailServer, start};
use crate::support::server;

const GREETING: &str = "* OK IMAP4 ready";

#[test]
fn reload_keeps_open_sessions() {
    let backend = MailServer::imap();
    let auth = AuthServer::accepting(backend.addr);
    let conf =
        format!("auth_http http://{}/; server {{ listen 127.0.0.1:{{port}}; protocol imap; }}", auth.addr);
    let mut server = start(&conf);
    let mut before: Vec<_> = (0..20)
        .map(|_| {
            let mut client = LineClient::connect(&server, GREETING);
            client.asks("a1 LOGIN user secret", "a1 OK logged in");
            client
        })
        .collect();
    let mut waiting = LineClient::connect(&server, GREETING);
    for reload in 1..=3 {
        server.write_conf(&format!("mail {{ {conf} imap_capabilities NUMBER{reload}; }}")).unwrap();
        server.signal(Signal::HUP).unwrap();
        let is_new = || {
            let mut client = LineClient(Client::connect(server.addr()).unwrap());
            client.line();
            client.sends("a1 CAPABILITY");
            client.line().contains(&format!("NUMBER{reload} "))
        };
        assert!(tw_testkit::wait::until(tw_testkit::wait::TIMEOUT, is_new), "{}", server.error_log());
        for client in &mut before {
            client.asks("a2 NOOP", "a2 OK noop");
        }
    }
    waiting.asks("a1 LOGIN user secret", "a1 OK logged in");
}

#[test]
fn twenty_reloads_lose_no_session() {
    let backend = MailServer::imap();
    let auth = AuthServer::accepting(backend.addr);
    let count: usize =
        std::env::var("TAILWATER_MAIL_SESSIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let conf = format!(
        "worker_rlimit_nofile 8192; events {{ worker_connections 4096; }}
         mail {{ auth_http http://{}/; server {{ listen 127.0.0.1:{{port}}; protocol imap; }}",
        auth.addr
    );
    let mut server = server().start(&format!("{conf} }}")).unwrap();
    let mut sessions: Vec<_> = (0..count)
        .map(|_| {
            let mut client = LineClient::connect(&server, GREETING);
            client.asks("a1 LOGIN user secret", "a1 OK logged in");
            client
        })
        .collect();
    for reload in 1..=20 {
        server.write_conf(&format!("{conf} imap_capabilities NUMBER{reload}; }}")).unwrap();
        server.signal(Signal::HUP).unwrap();
        let is_new = || {
            let mut client = LineClient(Client::connect(server.addr()).unwrap());
            client.line();
            client.sends("a1 CAPABILITY");
            client.line().contains(&format!("NUMBER{reload} "))
        };
        assert!(tw_testkit::wait::until(tw_testkit::wait::TIMEOUT, is_new), "{}", server.error_log());
    }
    for client in &mut sessions {
        client.asks("a2 NOOP", "a2 OK noop");
    }
}

#[test]
fn end_of_the_mail_server_is_that_of_the_session() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            use std::io::{BufRead, BufReader, Write};
            let mut writer = stream.try_clone().unwrap();
            writer.write_all(b"+OK\r\n").unwrap();
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                writer.write_all(b"+OK\r\n").unwrap();
                if line.starts_with("PASS") {
                    break;
                }
            }
        }
    });
    let auth = AuthServer::accepting(to);
    let server = start(&format!(
        "auth_http http://{}/; server {{ listen 127.0.0.1:{{port}}; protocol pop3; }}",
        auth.addr
    ));
    let mut client = LineClient::connect(&server, "+OK POP3 ready");
    client.asks("USER user", "+OK");
    client.asks("PASS secret", "+OK");
    client.is_closed();
    server.wait_error_log("proxied session done").unwrap();
}

#[test]
fn mail_server_that_never_greets_is_bounded() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || super::drain(stream));
        }
    });
    let auth = AuthServer::accepting(to);
    let server = start(&format!(
        "auth_http http://{}/; timeout 500ms; server {{ listen 127.0.0.1:{{port}}; protocol pop3; }}",
        auth.addr
    ));
    let mut client = LineClient::connect(&server, "+OK POP3 ready");
    client.sends("USER user\r\nPASS secret");
    client.gets("+OK");
    client.gets("-ERR internal server error");
    client.is_closed();
    let expected = "upstream timed out (110: Connection timed out) while reading response from upstream";
    server.wait_error_log(expected).unwrap();
}
