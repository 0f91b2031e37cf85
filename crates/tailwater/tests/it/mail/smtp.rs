//! SMTP: mechanisms, mail without a login, XCLIENT, the delay of the greeting.

use super::{AuthServer, LineClient, MailServer, accepted, start};

const GREETING: &str = "220 smtp.example ESMTP ready";

fn conf(auth: &AuthServer, more: &str) -> String {
    format!(
        "auth_http http://{}/mail/auth; server_name smtp.example; {more}
         server {{ listen 127.0.0.1:{{port}}; protocol smtp; }}",
        auth.addr
    )
}

#[test]
fn login_is_announced_with_xclient() {
    let backend = MailServer::smtp();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&conf(&auth, "smtp_capabilities PIPELINING 8BITMIME;"));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("EHLO client.example", "250-smtp.example");
    for line in ["250-PIPELINING", "250-8BITMIME", "250 AUTH PLAIN LOGIN"] {
        client.gets(line);
    }
    client.asks("MAIL FROM:<a@b>", "530 5.7.1 Authentication required");
    client.asks("AUTH PLAIN AHVzZXIAYmFk", "535 5.7.0 Invalid login or password");
    client.asks("AUTH PLAIN AHVzZXIAc2VjcmV0", "235 2.0.0 OK");
    client.asks("MAIL FROM:<a@b>", "250 MAIL");
    assert_eq!(
        backend.lines(),
        [
            "EHLO smtp.example",
            "XCLIENT ADDR=127.0.0.1 LOGIN=user NAME=[UNAVAILABLE]",
            "EHLO client.example",
            "MAIL FROM:<a@b>"
        ]
    );
    let request = auth.requests().pop().unwrap();
    assert_eq!((&*request["client-host"], &*request["auth-protocol"]), ("[UNAVAILABLE]", "smtp"));
}

#[test]
fn login_at_the_mail_server() {
    let backend = MailServer::smtp();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&conf(&auth, "proxy_smtp_auth on; xclient off;"));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("HELO client.example", "250 smtp.example");
    client.asks("AUTH LOGIN", "334 VXNlcm5hbWU6");
    client.asks("dXNlcg==", "334 UGFzc3dvcmQ6");
    client.asks("c2VjcmV0", "235 2.0.0 OK");
    assert_eq!(backend.lines(), ["HELO smtp.example", "AUTH PLAIN AHVzZXIAc2VjcmV0"]);
}

#[test]
fn mail_without_a_login() {
    let backend = MailServer::smtp();
    let to = backend.addr;
    let auth = AuthServer::start(move |fields| match fields["auth-smtp-to"].contains("good") {
        true => accepted(to),
        false => ["Auth-Status: No such user", "Auth-Error-Code: 550 5.1.1", "Auth-Wait: 1"]
            .map(str::to_owned)
            .to_vec(),
    });
    let server = start(&conf(&auth, "smtp_auth none; xclient off;"));
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("EHLO client.example", "250 smtp.example");
    client.asks("RCPT TO:<good@b>", "503 5.5.1 Bad sequence of commands");
    client.asks("MAIL FROM:<a@b> SIZE=1", "250 2.0.0 OK");
    client.asks("RCPT TO:<bad@b>", "550 5.1.1 No such user");
    client.sends("RCPT TO:<good@b>\r\nRSET");
    client.gets("250 RCPT");
    client.gets("250 RSET");
    let expected = ["EHLO smtp.example", "MAIL FROM:<a@b> SIZE=1", "RCPT TO:<good@b>", "RSET"];
    assert_eq!(backend.lines(), expected);
    let request = &auth.requests()[0];
    assert_eq!(request["auth-method"], "none");
    assert_eq!(request["auth-smtp-helo"], "client.example");
    assert_eq!(request["auth-smtp-from"], "MAIL FROM:<a@b> SIZE=1");
}

#[test]
fn long_pipelines_need_no_large_buffer() {
    let backend = MailServer::smtp();
    let auth = AuthServer::start({
        let to = backend.addr;
        move |_| accepted(to)
    });
    let server = start(&conf(&auth, "smtp_auth none; smtp_client_buffer 128;"));
    let mut client = LineClient::connect(&server, GREETING);
    let commands: String = (0..20).map(|number| format!("RCPT TO:<{number}@example.com>\r\n")).collect();
    client.0.send(format!("MAIL FROM:<a@b>\r\n{commands}")).unwrap();
    client.gets("250 2.0.0 OK");
    for _ in 0..20 {
        client.gets("250 RCPT");
    }
}

#[test]
fn client_that_speaks_before_the_greeting_is_rejected() {
    let auth = AuthServer::accepting(([127, 0, 0, 1], 1).into());
    let server = start(&conf(&auth, "smtp_greeting_delay 500ms;"));
    let mut client = LineClient(tw_testkit::Client::connect(server.addr()).unwrap());
    client.asks("HELO client.example", "503 5.5.0 Improper use of SMTP command pipelining");
    client.is_closed();
    server.wait_error_log("client was rejected before greeting: \"HELO client.example__\"").unwrap();
    let mut client = LineClient::connect(&server, GREETING);
    client.asks("NOOP", "250 2.0.0 OK");
}
