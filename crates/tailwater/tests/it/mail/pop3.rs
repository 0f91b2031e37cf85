//! POP3: commands before the login, the login, the relay.

use super::{AuthServer, LineClient, MailServer, accepted, start};

const GREETING: &str = "+OK POP3 ready";

fn conf(auth: &AuthServer, more: &str) -> String {
    format!(
        "auth_http http://{}/mail/auth; server_name pop.example; {more}
         server {{ listen 127.0.0.1:{{port}}; protocol pop3; }}",
        auth.addr
    )
}

#[test]
fn login_with_user_and_password_is_relayed() {
    let backend = MailServer::pop3();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&conf(&auth, ""));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("NOOP", "+OK");
    client.asks("USER test@example.com", "+OK");
    client.asks("PASS secret", "+OK PASS");
    client.asks("STAT", "+OK STAT");
    client.sends("QUIT");
    client.gets("+OK QUIT");
    assert_eq!(backend.lines(), ["USER test@example.com", "PASS secret", "STAT", "QUIT"]);
    let requests = auth.requests();
    let field = |name: &str| &*requests[0][name];
    assert_eq!(
        ["uri", "version", "host", "auth-method", "auth-user", "auth-protocol", "client-ip"].map(field),
        ["/mail/auth", "HTTP/1.0", "127.0.0.1", "plain", "test@example.com", "pop3", "127.0.0.1"]
    );
    assert_eq!(field("auth-login-attempt"), "1");
    assert!(!requests[0].contains_key("auth-salt") && !requests[0].contains_key("client-host"));
    drop(client);
    server.wait_error_log("proxied session done").unwrap();
    let log = server.error_log();
    assert!(log.contains("client logged in, client: 127.0.0.1, server: 127.0.0.1:"), "{log}");
    assert!(log.contains("login: \"test@example.com\", upstream: "), "{log}");
    assert!(!log.contains("secret"), "a password is in the log: {log}");
}

#[test]
fn capabilities_and_mechanisms_are_announced() {
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    let server = start(&conf(&auth, "pop3_auth plain external; pop3_capabilities TOP USER;"));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("CAPA", "+OK Capability list follows");
    for line in ["TOP", "USER", "SASL PLAIN LOGIN EXTERNAL", "."] {
        client.gets(line);
    }
    client.asks("AUTH", "+OK methods supported:");
    for line in ["PLAIN", "LOGIN", "EXTERNAL", "."] {
        client.gets(line);
    }
    client.asks("STLS", "-ERR invalid command");
    client.asks("APOP a b", "-ERR invalid command");
    client.asks("QUIT", "+OK");
    client.is_closed();
}

#[test]
fn refused_login_may_be_repeated_after_a_pause() {
    let backend = MailServer::pop3();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&conf(&auth, ""));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("AUTH PLAIN AHVzZXIAYmFk", "-ERR Invalid login or password");
    client.asks("AUTH PLAIN", "+ ");
    client.asks("AHVzZXIAc2VjcmV0", "+OK PASS");
    let attempts: Vec<_> =
        auth.requests().iter().map(|fields| fields["auth-login-attempt"].clone()).collect();
    assert_eq!(attempts, ["1", "2"]);
    let log = server.error_log();
    assert!(
        log.contains("client login failed: \"Invalid login or password\" while in http auth state"),
        "{log}"
    );
}

#[test]
fn refusal_without_a_pause_ends_the_session() {
    let auth = AuthServer::start(|_| vec!["Auth-Status: No such user".to_owned()]);
    let server = start(&conf(&auth, ""));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("USER a", "+OK");
    client.asks("PASS b", "-ERR No such user");
    client.is_closed();
}

#[test]
fn wait_asks_again() {
    let backend = MailServer::pop3();
    let (to, asked) = (backend.addr, std::sync::atomic::AtomicUsize::new(0));
    let auth = AuthServer::start(move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => vec!["Auth-Status: WAIT".to_owned(), "Auth-Wait: 1".to_owned()],
        1 => vec!["Auth-Status: WAIT".to_owned()],
        _ => accepted(to),
    });
    let server = start(&conf(&auth, ""));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("USER a", "+OK");
    client.asks("PASS secret", "+OK PASS");
    let attempts: Vec<_> =
        auth.requests().iter().map(|fields| fields["auth-login-attempt"].clone()).collect();
    assert_eq!(attempts, ["1", "1", "1"]);
}

#[test]
fn apop_and_cram_md5_get_the_challenge_of_the_greeting() {
    let backend = MailServer::pop3();
    let to = backend.addr;
    let auth = AuthServer::start(move |_| [accepted(to), vec!["Auth-Pass: backend".to_owned()]].concat());
    let server = start(&conf(&auth, "pop3_auth plain apop cram-md5;"));
    for is_apop in [true, false] {
        let mut client = LineClient(tw_testkit::Client::connect(server.addr()).unwrap());
        let greeting = client.line();
        let salt = greeting.strip_prefix("+OK POP3 ready ").unwrap();
        assert!(salt.starts_with('<') && salt.ends_with("@pop.example>"), "{salt}");
        if is_apop {
            client.asks("APOP user 0123456789abcdef0123456789abcdef", "+OK PASS");
        } else {
            client.sends("AUTH CRAM-MD5");
            assert!(client.line().starts_with("+ PD"), "the challenge is the salt in base64");
            // "user " and 32 zeros.
            client.asks("dXNlciAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA==", "+OK PASS");
        }
        let request = auth.requests().pop().unwrap();
        assert_eq!(request["auth-salt"], salt);
        assert_eq!(request["auth-method"], if is_apop { "apop" } else { "cram-md5" });
    }
    assert_eq!(backend.lines(), ["USER user", "PASS backend", "USER user", "PASS backend"]);
}

#[test]
fn invalid_commands_are_counted() {
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    let server = start(&conf(&auth, "max_errors 2;"));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("FOO", "-ERR invalid command");
    client.asks("BAR", "-ERR invalid command");
    client.is_closed();
    server.wait_error_log("client sent too many invalid commands while in auth state").unwrap();
}

#[test]
fn slow_client_is_dropped() {
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    let server = start(&conf(&auth, "timeout 300ms;"));
    let mut client = LineClient::connect(&server, GREETING);
    client.0.send("USER").unwrap();
    client.is_closed();
    server.wait_error_log("client timed out (110: Connection timed out) while in auth state").unwrap();
}

#[test]
fn line_without_end_ends_the_session() {
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    let server = start(&conf(&auth, ""));
    let mut client = LineClient::connect(&server, GREETING);
    let _ = client.0.send("PASS secret".repeat(1000));
    assert_eq!(client.line(), "-ERR invalid command");
    server.wait_error_log("client sent too long command").unwrap();
    let log = server.error_log();
    assert!(!log.contains("secret"), "{log}");
}
