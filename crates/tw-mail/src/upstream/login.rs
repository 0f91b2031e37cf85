//! Login at a mail server, without I/O: its responses in, commands out.
//!
//! | protocol | dialogue |
//! |---|---|
//! | POP3 | greeting, `USER`, `PASS` |
//! | IMAP | greeting, `LOGIN "user" "password"`; or `LOGIN {n}`, user `{n}`, password |
//! | SMTP | greeting, `EHLO` of this server, `XCLIENT`, `EHLO` of the client, then `AUTH PLAIN`, or `MAIL` and `RCPT` |
//!
//! A token is passed on by the mechanism that the client has used, unless the auth server sends a password.

use tw_http::base64;

use crate::auth_http::request::xtext;
use crate::dialogue::{AuthMethod, Login, MailProtocol, sasl};
use crate::secret::Secret;

/// Settings and facts of a login.
pub struct LoginTarget<'a> {
    /// Protocol.
    pub protocol: MailProtocol,
    /// The login.
    pub login: &'a Login,
    /// `server_name`
    pub server_name: &'a [u8],
    /// Address of the client as text.
    pub client: &'a str,
    /// True if that is an IPv6 address.
    pub is_ipv6: bool,
    /// Name of the client's host, or a word in brackets.
    pub host: &'a [u8],
    /// `xclient`
    pub xclient: bool,
    /// `proxy_smtp_auth`
    pub smtp_auth: bool,
    /// True if the password is the token that the client has sent.
    pub has_token: bool,
}

/// Step of a login: the response that is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    Greeting,
    /// POP3 and IMAP: the user name is accepted.
    User,
    /// IMAP: the size of the user name is accepted.
    UserSize,
    /// The login is accepted.
    Accepted,
    /// IMAP: the mechanism is accepted.
    Mechanism,
    /// SMTP: greeting of this server.
    Hello,
    /// SMTP: `XCLIENT`
    XClient,
    /// SMTP: greeting of the client.
    ClientHello,
    /// SMTP: `MAIL FROM`
    From,
    /// SMTP: `RCPT TO`, whatever the response is.
    To,
}

/// Login that goes on.
pub struct UpstreamLogin {
    awaited: Awaited,
}

/// Result of a response.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// The response is incomplete.
    Incomplete,
    /// A command for the server, and what is being done for the log.
    Send(Secret, &'static str),
    /// The login is complete; these bytes are for the client.
    Done(Vec<u8>),
    /// The server refuses.
    Refused,
    /// The login lacks a password.
    NoPassword,
}

/// Bytes of the shortest response.
const RESPONSE_MIN: usize = 4;
/// Bytes of a text that is sent between quotation marks.
const QUOTED_MAX: usize = 256;
/// Reply to a client of SMTP whose login is complete.
const SMTP_AUTH_OK: &[u8] = b"235 2.0.0 OK\r\n";

impl Default for UpstreamLogin {
    fn default() -> Self {
        Self { awaited: Awaited::Greeting }
    }
}

impl UpstreamLogin {
    /// Returns true if the server has all of the login, and its next response decides about the password.
    pub fn awaits_verdict(&self) -> bool {
        self.awaited == Awaited::Accepted
    }

    /// Evaluates a response, which may have more than one line.
    pub fn advance(&mut self, response: &[u8], target: &LoginTarget<'_>) -> Progress {
        if response.len() < RESPONSE_MIN || !response.ends_with(b"\r\n") {
            return Progress::Incomplete;
        }
        let accepted = match target.protocol {
            MailProtocol::Pop3 => Some(response.starts_with(b"+OK")),
            MailProtocol::Imap => self.is_accepted_by_imap(response, &target.login.tag),
            MailProtocol::Smtp => self.is_accepted_by_smtp(response),
        };
        match accepted {
            None => return Progress::Incomplete,
            Some(false) => return Progress::Refused,
            Some(true) => {}
        }
        match target.protocol {
            MailProtocol::Pop3 => self.next_of_pop3(response, target),
            MailProtocol::Imap => self.next_of_imap(response, target),
            MailProtocol::Smtp => self.next_of_smtp(response, target),
        }
    }

    /// Returns true for a response that allows the next step; `None` if more is to follow.
    fn is_accepted_by_imap(&self, response: &[u8], tag: &[u8]) -> Option<bool> {
        match self.awaited {
            Awaited::Greeting => Some(response.starts_with(b"* OK")),
            Awaited::UserSize | Awaited::User | Awaited::Mechanism => Some(response.starts_with(b"+")),
            _ => {
                // Untagged responses, such as CAPABILITY, may stand before the tagged one.
                let mut lines = response.split_inclusive(|byte| *byte == b'\n');
                let line = lines.find(|line| !line.starts_with(b"* "))?;
                Some(line.strip_prefix(tag).is_some_and(|rest| rest.starts_with(b"OK")))
            }
        }
    }

    /// Returns true for a response of SMTP that allows the next step; `None` if more is to follow. The last line has a blank behind its
    /// code.
    fn is_accepted_by_smtp(&self, response: &[u8]) -> Option<bool> {
        let mut lines = response.split_inclusive(|byte| *byte == b'\n');
        let last = lines.next_back()?;
        if last.get(3) == Some(&b'-') {
            return None;
        }
        let is = |codes: &[&[u8]]| codes.iter().any(|code| response.starts_with(code));
        Some(match self.awaited {
            Awaited::Greeting => is(&[b"220"]),
            Awaited::XClient => is(&[b"220", b"250"]),
            Awaited::Accepted => is(&[b"235"]),
            Awaited::To => true,
            _ => is(&[b"250"]),
        })
    }

    fn send(&mut self, awaited: Awaited, line: Secret, action: &'static str) -> Progress {
        self.awaited = awaited;
        Progress::Send(line, action)
    }

    fn next_of_pop3(&mut self, response: &[u8], target: &LoginTarget<'_>) -> Progress {
        let Login { method, user, password, .. } = target.login;
        let Some(password) = password else { return Progress::NoPassword };
        match self.awaited {
            Awaited::Greeting if target.has_token => {
                let token = sasl::token_response(*method, user, password);
                let mechanism = method.mechanism().unwrap_or_default();
                let line = line(&[b"AUTH ", mechanism.as_bytes(), b" ", token.bytes()]);
                self.send(Awaited::Accepted, line, "sending token to upstream")
            }
            Awaited::Greeting => {
                self.send(Awaited::User, line(&[b"USER ", user.bytes()]), "sending user name to upstream")
            }
            Awaited::User => {
                let line = line(&[b"PASS ", password.bytes()]);
                self.send(Awaited::Accepted, line, "sending password to upstream")
            }
            _ => Progress::Done(response.to_vec()),
        }
    }

    fn next_of_imap(&mut self, response: &[u8], target: &LoginTarget<'_>) -> Progress {
        let Login { method, user, password, tag, .. } = target.login;
        let Some(password) = password else { return Progress::NoPassword };
        let size = |secret: &Secret| format!("{{{}}}", secret.len()).into_bytes();
        match self.awaited {
            Awaited::Greeting if target.has_token => {
                let mechanism = method.mechanism().unwrap_or_default();
                let line = line(&[tag, b"AUTHENTICATE ", mechanism.as_bytes()]);
                self.send(Awaited::Mechanism, line, "sending AUTHENTICATE command to upstream")
            }
            Awaited::Mechanism => {
                let token = sasl::token_response(*method, user, password);
                self.send(Awaited::Accepted, line(&[token.bytes()]), "sending token to upstream")
            }
            // DIFF(nginx): one exchange instead of three, unless a text needs a literal.
            Awaited::Greeting if can_be_quoted(user) && can_be_quoted(password) => {
                let line = line(&[tag, b"LOGIN \"", user.bytes(), b"\" \"", password.bytes(), b"\""]);
                self.send(Awaited::Accepted, line, "sending LOGIN command to upstream")
            }
            Awaited::Greeting => {
                let line = line(&[tag, b"LOGIN ", &size(user)]);
                self.send(Awaited::UserSize, line, "sending LOGIN command to upstream")
            }
            Awaited::UserSize => {
                let line = line(&[user.bytes(), b" ", &size(password)]);
                self.send(Awaited::User, line, "sending user name to upstream")
            }
            Awaited::User => {
                self.send(Awaited::Accepted, line(&[password.bytes()]), "sending password to upstream")
            }
            _ => Progress::Done(response.to_vec()),
        }
    }

    fn next_of_smtp(&mut self, response: &[u8], target: &LoginTarget<'_>) -> Progress {
        let envelope = &target.login.envelope;
        match self.awaited {
            Awaited::Greeting => {
                let word: &[u8] = if envelope.is_esmtp || target.xclient { b"EHLO " } else { b"HELO " };
                let line = line(&[word, target.server_name]);
                self.send(Awaited::Hello, line, "sending HELO/EHLO to upstream")
            }
            Awaited::Hello if target.xclient => self.send_xclient(target),
            Awaited::XClient if !envelope.helo.is_empty() => {
                let word: &[u8] = if envelope.is_esmtp { b"EHLO " } else { b"HELO " };
                let line = line(&[word, &envelope.helo]);
                self.send(Awaited::ClientHello, line, "sending client HELO/EHLO to upstream")
            }
            Awaited::Hello | Awaited::XClient | Awaited::ClientHello => self.after_hello(target),
            Awaited::From => self.send(Awaited::To, line(&[&envelope.to]), "sending RCPT TO to upstream"),
            _ if target.login.method == AuthMethod::None => Progress::Done(response.to_vec()),
            _ => Progress::Done(SMTP_AUTH_OK.to_vec()),
        }
    }

    fn send_xclient(&mut self, target: &LoginTarget<'_>) -> Progress {
        let family: &[u8] = if target.is_ipv6 { b"IPV6:" } else { b"" };
        let login = match target.login.user.is_empty() || target.smtp_auth {
            true => Secret::default(),
            false => secret(&[b" LOGIN=", xtext(target.login.user.bytes()).bytes()]),
        };
        let parts: [&[u8]; 6] =
            [b"XCLIENT ADDR=", family, target.client.as_bytes(), login.bytes(), b" NAME=", target.host];
        self.send(Awaited::XClient, line(&parts), "sending XCLIENT to upstream")
    }

    fn after_hello(&mut self, target: &LoginTarget<'_>) -> Progress {
        let Login { method, user, password, envelope, .. } = target.login;
        if *method == AuthMethod::None {
            return self.send(Awaited::From, line(&[&envelope.from]), "sending MAIL FROM to upstream");
        }
        if !target.smtp_auth {
            return Progress::Done(SMTP_AUTH_OK.to_vec());
        }
        let Some(password) = password else { return Progress::NoPassword };
        let (mechanism, response) = match target.has_token {
            true => (method.mechanism().unwrap_or_default(), sasl::token_response(*method, user, password)),
            false => {
                let text = secret(&[b"\0", user.bytes(), b"\0", password.bytes()]);
                ("PLAIN", Secret::new(base64::encode(text.bytes())))
            }
        };
        let line = line(&[b"AUTH ", mechanism.as_bytes(), b" ", response.bytes()]);
        self.send(Awaited::Accepted, line, "sending AUTH to upstream")
    }
}

/// Returns true for a text that every server of IMAP reads between quotation marks (RFC 3501, section 4.3): printable characters of
/// ASCII that need no escape. Others are sent as literals.
fn can_be_quoted(text: &Secret) -> bool {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !b"\"\\".contains(byte);
    text.len() <= QUOTED_MAX && text.bytes().iter().all(is_plain)
}

/// The parts as one text.
fn secret(parts: &[&[u8]]) -> Secret {
    let mut text = Secret::with_capacity(parts.iter().map(|part| part.len()).sum::<usize>() + 2);
    parts.iter().for_each(|part| text.push(part));
    text
}

/// The parts as one line.
fn line(parts: &[&[u8]]) -> Secret {
    let mut line = secret(parts);
    line.push(b"\r\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialogue::Envelope;

    fn login() -> Login {
        Login {
            user: Secret::copy(b"us er"),
            password: Some(Secret::copy(b"pass")),
            tag: b"a1 ".to_vec(),
            ..Login::default()
        }
    }

    fn target(protocol: MailProtocol, login: &Login) -> LoginTarget<'_> {
        LoginTarget {
            protocol,
            login,
            server_name: b"proxy.example",
            client: "192.0.2.1",
            is_ipv6: false,
            host: b"[UNAVAILABLE]",
            xclient: true,
            smtp_auth: false,
            has_token: false,
        }
    }

    /// Checks a dialogue: responses of the server with what follows each.
    fn check(target: &LoginTarget<'_>, dialogue: &[(&str, &str)]) {
        let mut login = UpstreamLogin::default();
        for (response, expected) in dialogue {
            let progress = match login.advance(response.as_bytes(), target) {
                Progress::Send(line, _) => String::from_utf8(line.bytes().to_vec()).unwrap(),
                Progress::Done(bytes) => format!("DONE {}", String::from_utf8(bytes).unwrap()),
                other => format!("{other:?}"),
            };
            assert_eq!(progress, *expected, "{response:?}");
        }
    }

    #[test]
    fn pop3_has_two_commands() {
        let login = login();
        let dialogue = [
            ("+O", "Incomplete"),
            ("+OK ready\r\n", "USER us er\r\n"),
            ("+OK\r\n", "PASS pass\r\n"),
            ("+OK welcome\r\n", "DONE +OK welcome\r\n"),
        ];
        check(&target(MailProtocol::Pop3, &login), &dialogue);
        check(&target(MailProtocol::Pop3, &login), &[("-ERR busy\r\n", "Refused")]);
        let target = target(MailProtocol::Pop3, &login);
        let mut refused = UpstreamLogin::default();
        for (response, awaits_verdict) in
            [("+OK ready\r\n", false), ("+OK\r\n", true), ("-ERR bad\r\n", true)]
        {
            refused.advance(response.as_bytes(), &target);
            assert_eq!(refused.awaits_verdict(), awaits_verdict, "{response:?}");
        }
    }

    #[test]
    fn imap_sends_one_command() {
        let login = login();
        let dialogue = [
            ("* OK ready\r\n", "a1 LOGIN \"us er\" \"pass\"\r\n"),
            ("* CAPABILITY IMAP4\r\n", "Incomplete"),
            ("* CAPABILITY IMAP4\r\na1 OK in\r\n", "DONE * CAPABILITY IMAP4\r\na1 OK in\r\n"),
        ];
        check(&target(MailProtocol::Imap, &login), &dialogue);
        let target = target(MailProtocol::Imap, &login);
        let mut refused = UpstreamLogin::default();
        refused.advance(b"* OK\r\n", &target);
        assert_eq!(refused.advance(b"a1 NO bad\r\n", &target), Progress::Refused);
        assert!(refused.awaits_verdict());
    }

    #[test]
    fn texts_that_need_escapes_are_not_quoted() {
        for (text, expected) in [
            (&b""[..], true),
            (b"user@example.com {4}~", true),
            (b"a\"b", false),
            (b"a\\b", false),
            (b"a\tb", false),
            (b"a\x7f", false),
            ("ä".as_bytes(), false),
            (&[b'x'; QUOTED_MAX], true),
            (&[b'x'; QUOTED_MAX + 1], false),
        ] {
            assert_eq!(can_be_quoted(&Secret::copy(text)), expected, "{text:?}");
        }
    }

    #[test]
    fn imap_sends_literals() {
        let login = Login { user: Secret::copy(b"us\"r"), ..login() };
        let dialogue = [
            ("* OK ready\r\n", "a1 LOGIN {4}\r\n"),
            ("+ OK\r\n", "us\"r {4}\r\n"),
            ("+ OK\r\n", "pass\r\n"),
            ("* CAPABILITY IMAP4\r\n", "Incomplete"),
            ("* CAPABILITY IMAP4\r\na1 OK in\r\n", "DONE * CAPABILITY IMAP4\r\na1 OK in\r\n"),
        ];
        check(&target(MailProtocol::Imap, &login), &dialogue);
        let dialogue = [("* OK\r\n", "a1 LOGIN {4}\r\n"), ("a1 NO\r\n", "Refused")];
        check(&target(MailProtocol::Imap, &login), &dialogue);
    }

    #[test]
    fn smtp_names_the_client() {
        let login = login();
        let dialogue = [
            ("220 ready\r\n", "EHLO proxy.example\r\n"),
            ("250-A\r\n", "Incomplete"),
            ("250-A\r\n250 XCLIENT\r\n", "XCLIENT ADDR=192.0.2.1 LOGIN=us+20er NAME=[UNAVAILABLE]\r\n"),
            ("220 ready\r\n", "DONE 235 2.0.0 OK\r\n"),
        ];
        check(&target(MailProtocol::Smtp, &login), &dialogue);
    }

    #[test]
    fn smtp_logs_in_with_a_password() {
        let login = Login {
            envelope: Envelope { helo: b"client.example".to_vec(), is_esmtp: true, ..Envelope::default() },
            ..login()
        };
        let target = LoginTarget { smtp_auth: true, is_ipv6: true, ..target(MailProtocol::Smtp, &login) };
        let dialogue = [
            ("220 ready\r\n", "EHLO proxy.example\r\n"),
            ("250 ok\r\n", "XCLIENT ADDR=IPV6:192.0.2.1 NAME=[UNAVAILABLE]\r\n"),
            ("220 ready\r\n", "EHLO client.example\r\n"),
            ("250 ok\r\n", "AUTH PLAIN AHVzIGVyAHBhc3M=\r\n"),
            ("235 ok\r\n", "DONE 235 2.0.0 OK\r\n"),
        ];
        check(&target, &dialogue);
    }

    #[test]
    fn smtp_without_login_passes_sender_and_recipient() {
        let envelope =
            Envelope { from: b"MAIL FROM:<a>".to_vec(), to: b"RCPT TO:<b>".to_vec(), ..Envelope::default() };
        let login = Login { method: AuthMethod::None, envelope, ..Login::default() };
        let target = LoginTarget { xclient: false, ..target(MailProtocol::Smtp, &login) };
        let dialogue = [
            ("220 ready\r\n", "HELO proxy.example\r\n"),
            ("250 ok\r\n", "MAIL FROM:<a>\r\n"),
            ("250 ok\r\n", "RCPT TO:<b>\r\n"),
            ("550 no such user\r\n", "DONE 550 no such user\r\n"),
        ];
        check(&target, &dialogue);
    }

    #[test]
    fn tokens_use_their_mechanism() {
        let login = Login { method: AuthMethod::Xoauth2, ..login() };
        let has_token = true;
        let dialogue = [
            ("* OK\r\n", "a1 AUTHENTICATE XOAUTH2\r\n"),
            ("+ \r\n", "dXNlcj11cyBlcgFhdXRoPUJlYXJlciBwYXNzAQE=\r\n"),
            ("a1 OK\r\n", "DONE a1 OK\r\n"),
        ];
        check(&LoginTarget { has_token, ..target(MailProtocol::Imap, &login) }, &dialogue);
        let dialogue = [
            ("+OK\r\n", "AUTH XOAUTH2 dXNlcj11cyBlcgFhdXRoPUJlYXJlciBwYXNzAQE=\r\n"),
            ("+OK\r\n", "DONE +OK\r\n"),
        ];
        check(&LoginTarget { has_token, ..target(MailProtocol::Pop3, &login) }, &dialogue);
    }
}
