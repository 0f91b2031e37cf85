//! Access rules, limits by address and user, variables and logs of sessions.

use std::io::{BufRead, Write};

use super::{AuthServer, LineClient, MailServer, start};

const GREETING: &str = "+OK POP3 ready";

#[test]
fn denied_clients_get_no_greeting() {
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    let server = start(&format!(
        "auth_http http://{}/; deny 127.0.0.0/8; server {{ listen 127.0.0.1:{{port}}; protocol pop3; }}",
        auth.addr
    ));
    let mut client = LineClient(tw_testkit::Client::connect(server.addr()).unwrap());
    client.is_closed();
    server.wait_error_log("access forbidden by rule").unwrap();
}

#[test]
fn sessions_of_one_user_are_limited() {
    let backend = MailServer::pop3();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&format!(
        "auth_http http://{}/; limit_conn_zone $mail_user zone=users:64k; limit_conn users 1;
         server {{ listen 127.0.0.1:{{port}}; protocol pop3; }}",
        auth.addr
    ));
    let login = |user: &str, expected: &str| {
        let mut client = LineClient::connect(&server, GREETING);
        client.asks(&format!("USER {user}"), "+OK");
        client.asks("PASS secret", expected);
        client
    };
    let first = login("a", "+OK PASS");
    login("a", "-ERR internal server error").is_closed();
    let other = login("b", "+OK PASS");
    server.wait_error_log("limiting connections by zone \"users\"").unwrap();
    drop((first, other));
    server.wait_error_log("proxied session done").unwrap();
}

#[test]
fn rate_of_logins_is_limited() {
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    let server = start(&format!(
        "auth_http http://{}/; limit_req_zone $binary_remote_addr zone=logins:64k rate=1r/m;
         limit_req zone=logins burst=1 nodelay; server {{ listen 127.0.0.1:{{port}}; protocol pop3; }}",
        auth.addr
    ));
    let mut client = LineClient::connect(&server, GREETING);
    for expected in
        ["-ERR Invalid login or password", "-ERR Invalid login or password", "-ERR internal server error"]
    {
        client.asks("USER user", "+OK");
        client.asks("PASS bad", expected);
    }
    client.is_closed();
    assert_eq!(auth.requests().len(), 2, "the auth server is not asked beyond the rate");
    server.wait_error_log("limiting logins, excess: 1.9").unwrap();
}

#[test]
fn refused_logins_of_an_address_wait_longer() {
    let auth = AuthServer::start(|_| vec!["Auth-Status: no".to_owned(), "Auth-Wait: 0".to_owned()]);
    let server = start(&format!(
        "auth_http http://{}/; failed_login_delay 100ms max=400ms;
         server {{ listen 127.0.0.1:{{port}}; protocol pop3; }}",
        auth.addr
    ));
    let mut pauses = Vec::new();
    for _ in 0..3 {
        let mut client = LineClient::connect(&server, GREETING);
        client.asks("USER user", "+OK");
        let begun = std::time::Instant::now();
        client.asks("PASS bad", "-ERR no");
        pauses.push(begun.elapsed().as_millis());
        client.is_closed();
    }
    // Timers may be late, never early.
    assert!(pauses[0] >= 95 && pauses[1] >= 195 && pauses[2] >= 395, "{pauses:?}");
}

#[test]
fn command_without_end_is_cut_off() {
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    for (protocol, begin, answer) in [
        ("pop3", "USER ", "-ERR invalid command"),
        ("imap", "a1 LOGIN ", "a1 BAD invalid command"),
        ("imap", "a1 LOGIN {10000000+}\r\n", "a1 BAD invalid command"),
        ("smtp", "EHLO ", "500 5.5.1 Invalid command"),
    ] {
        let server = start(&format!(
            "auth_http http://{}/; server {{ listen 127.0.0.1:{{port}}; protocol {protocol}; }}",
            auth.addr
        ));
        let stream = std::net::TcpStream::connect(server.addr()).unwrap();
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let writer = std::thread::spawn(move || {
            let mut stream = &stream;
            let _ = stream.write_all(begin.as_bytes());
            let (piece, mut count) = ([b'x'; 16 << 10], 0);
            while count < 10 << 20 && stream.write_all(&piece).is_ok() {
                count += piece.len();
            }
        });
        line.clear();
        // The reset of a connection on which bytes were not read may overtake the answer.
        let read = reader.read_line(&mut line);
        assert!(read.is_err() || line.is_empty() || line.trim_end() == answer, "{protocol}: {line}");
        writer.join().unwrap();
        server.wait_error_log("client sent too long command: more than ").unwrap();
    }
    assert!(auth.requests().is_empty());
}

#[test]
fn access_log_has_facts_of_the_session() {
    let backend = MailServer::pop3();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&format!(
        "auth_http http://{}/;
         log_format j escape=json '{{\"user\":\"$mail_user\",\"protocol\":\"$protocol\",\"status\":$status,'
             '\"method\":\"$mail_auth_method\",\"attempts\":$mail_login_attempts,\"to\":\"$upstream_addr\"}}';
         access_log logs/access.log j;
         server {{ listen 127.0.0.1:{{port}}; protocol pop3; }}",
        auth.addr
    ));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("USER quo\"te", "+OK");
    client.asks("PASS secret", "+OK PASS");
    drop(client);
    let lines = server.access_log(1).unwrap();
    let expected = format!(
        "{{\"user\":\"quo\\\"te\",\"protocol\":\"pop3\",\"status\":200,\"method\":\"plain\",\"attempts\":1,\"to\":\"{}\"}}",
        backend.addr
    );
    assert_eq!(lines, [expected]);
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("QUIT", "+OK");
    let lines = server.access_log(2).unwrap();
    assert!(lines[1].contains("\"status\":400"), "{lines:?}");
}
