//! IMAP: tags, literals, pipelining, split bytes.

use super::{AuthServer, LineClient, MailServer, start};

const GREETING: &str = "* OK IMAP4 ready";

fn conf(auth: &AuthServer, more: &str) -> String {
    format!(
        "auth_http http://{}/mail/auth; {more} server {{ listen 127.0.0.1:{{port}}; protocol imap; }}",
        auth.addr
    )
}

#[test]
fn login_with_a_backslash_is_sent_with_literals() {
    let backend = MailServer::imap();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&conf(&auth, ""));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("a1 LOGIN \"test\\\\user\" secret", "a1 OK logged in");
    client.asks("a2 NOOP", "a2 OK noop");
    assert_eq!(backend.lines(), ["a1 LOGIN {9}", "test\\user {6}", "secret", "a2 NOOP"]);
    assert_eq!(auth.requests()[0]["auth-user"], "test\\user");
}

#[test]
fn login_without_special_characters_is_one_command() {
    let backend = MailServer::imap();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&conf(&auth, ""));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("a1 LOGIN user@example.com secret", "a1 OK logged in");
    client.asks("a2 NOOP", "a2 OK noop");
    assert_eq!(backend.lines(), ["a1 LOGIN \"user@example.com\" \"secret\"", "a2 NOOP"]);
}

#[test]
fn literals_are_asked_for() {
    let backend = MailServer::imap();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&conf(&auth, ""));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("a1 LOGIN {4}", "+ OK");
    client.asks("user {6}", "+ OK");
    client.asks("secret", "a1 OK logged in");
    let mut client = LineClient::connect(&server, GREETING);
    client.sends("a1 LOGIN {4+}");
    client.asks("user \"secret\"", "a1 OK logged in");
}

#[test]
fn commands_before_the_login() {
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    let server = start(&conf(&auth, "imap_auth plain login; imap_capabilities IMAP4rev1;"));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("a1 CAPABILITY", "* CAPABILITY IMAP4rev1 AUTH=PLAIN AUTH=LOGIN");
    client.gets("a1 OK completed");
    client.asks("a2 SELECT INBOX", "a2 BAD invalid command");
    client.asks("a3 LOGIN user bad", "a3 NO Invalid login or password");
    client.sends("a4 FOO\r\na5 NOOP\r\na6 LOGOUT");
    for line in ["a4 BAD invalid command", "a5 OK completed", "* BYE", "a6 OK completed"] {
        client.gets(line);
    }
    client.is_closed();
}

#[test]
fn login_in_single_bytes_with_a_command_behind_it() {
    let backend = MailServer::imap();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&conf(&auth, ""));
    let mut client = LineClient::connect(&server, GREETING);
    let text = "a1 AUTHENTICATE PLAIN AHVzZXIAc2VjcmV0\r\na2 NOOP\r\n";
    client.0.send_split(text.bytes().map(|byte| [byte])).unwrap();
    client.gets("a1 OK logged in");
    client.gets("a2 OK noop");
}

#[test]
fn refusal_of_the_mail_server_is_passed_if_configured() {
    for (passes, expected) in [("off", "* BAD internal server error"), ("on", "a1 NO over quota")] {
        let backend = MailServer::start("* OK backend", |line| match line.contains('{') {
            true => "+ go".to_owned(),
            false => "a1 NO over quota".to_owned(),
        });
        let auth = AuthServer::accepting(backend.addr);
        let server = start(&conf(&auth, &format!("proxy_pass_error_message {passes};")));
        let mut client = LineClient::connect(&server, GREETING);
        client.asks("a1 LOGIN user secret", expected);
        client.is_closed();
        server.wait_error_log("upstream sent invalid response: \"a1 NO over quota\"").unwrap();
    }
}

#[test]
fn token_is_passed_on_by_its_mechanism() {
    let backend = MailServer::start("* OK backend", |line| match line.contains("AUTHENTICATE") {
        true => "+ ".to_owned(),
        false => "a1 OK in".to_owned(),
    });
    let to = backend.addr;
    let auth = AuthServer::start(move |fields| match &*fields["auth-pass"] {
        "good.token" => super::accepted(to),
        _ => vec!["Auth-Status: expired".to_owned(), "Auth-Wait: 1".to_owned()],
    });
    let server = start(&conf(&auth, "imap_auth plain xoauth2 oauthbearer;"));
    let mut client = LineClient::connect(&server, GREETING);
    // user=u ^A auth=Bearer bad ^A ^A
    client.sends("a1 AUTHENTICATE XOAUTH2 dXNlcj11AWF1dGg9QmVhcmVyIGJhZAEB");
    assert!(client.line().starts_with("+ eyJ"), "the reason is in JSON");
    client.asks("", "a1 NO expired");
    // user=u ^A auth=Bearer good.token ^A ^A
    client.asks("a1 AUTHENTICATE XOAUTH2 dXNlcj11AWF1dGg9QmVhcmVyIGdvb2QudG9rZW4BAQ==", "a1 OK in");
    assert_eq!(backend.lines(), ["a1 AUTHENTICATE XOAUTH2", "dXNlcj11AWF1dGg9QmVhcmVyIGdvb2QudG9rZW4BAQ=="]);
    let request = auth.requests().pop().unwrap();
    assert_eq!((&*request["auth-method"], &*request["auth-user"]), ("xoauth2", "u"));
    assert!(!server.error_log().contains("good.token"));
}
