//! Dialogue with a client up to its login, without I/O: bytes in, replies and a login out.
//!
//! ```text
//! greeting ─► command ─► reply ─► … ─► login ─► (auth server) ─► upstream server
//!               │                        ▲
//!               └─► challenge ─► response┘
//! ```
//! Each protocol is a [`Dialogue`] of its own: [`pop3`](crate::pop3), [`imap`](crate::imap), [`smtp`](crate::smtp). The mechanisms of
//! SASL are shared ([`sasl`](crate::sasl)).

use std::borrow::Cow;

use crate::imap::ImapDialogue;
use crate::input::Input;
use crate::pop3::Pop3Dialogue;
use crate::sasl::AuthMethod;
use crate::secret::Secret;
use crate::smtp::SmtpDialogue;

/// Protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailProtocol {
    /// POP3 (RFC 1939).
    Pop3,
    /// IMAP (RFC 9051).
    Imap,
    /// SMTP (RFC 5321).
    Smtp,
}

impl MailProtocol {
    /// Protocols by their names in the configuration.
    pub const ALL: [(&'static str, Self); 3] =
        [("imap", Self::Imap), ("pop3", Self::Pop3), ("smtp", Self::Smtp)];

    /// Name of the protocol, as the configuration and the auth server have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pop3 => "pop3",
            Self::Imap => "imap",
            Self::Smtp => "smtp",
        }
    }

    /// Protocol of servers on this port, unless the configuration says otherwise.
    pub const fn of_port(port: u16) -> Option<Self> {
        match port {
            110 | 995 => Some(Self::Pop3),
            143 | 993 => Some(Self::Imap),
            25 | 465 | 587 => Some(Self::Smtp),
            _ => None,
        }
    }

    /// Reply to a client whose login failed for a reason of this server.
    pub const fn internal_error(self) -> &'static [u8] {
        match self {
            Self::Pop3 => b"-ERR internal server error\r\n",
            Self::Imap => b"* BAD internal server error\r\n",
            Self::Smtp => b"451 4.3.2 Internal server error\r\n",
        }
    }

    /// Reply to a client whose certificate is not trusted.
    pub const fn certificate_error(self) -> &'static [u8] {
        match self {
            Self::Pop3 => b"-ERR SSL certificate error\r\n",
            Self::Imap => b"* BYE SSL certificate error\r\n",
            Self::Smtp => b"421 4.7.1 SSL certificate error\r\n",
        }
    }

    /// Reply to a client that has sent no certificate.
    pub const fn no_certificate(self) -> &'static [u8] {
        match self {
            Self::Pop3 => b"-ERR No required SSL certificate\r\n",
            Self::Imap => b"* BYE No required SSL certificate\r\n",
            Self::Smtp => b"421 4.7.1 No required SSL certificate\r\n",
        }
    }
}

/// `starttls`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartTls {
    /// Not offered.
    #[default]
    Off,
    /// Offered.
    On,
    /// Required before a login.
    Only,
}

/// Replies that the configuration makes, for a connection without TLS and with `starttls off`, `on` and `only`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Without STARTTLS.
    pub plain: Box<[u8]>,
    /// With STARTTLS.
    pub starttls: Box<[u8]>,
    /// With STARTTLS only.
    pub starttls_only: Box<[u8]>,
}

/// Facts about the server and the connection that replies depend on.
pub struct DialogueFacts<'a> {
    /// Capabilities as the protocol announces them.
    pub capabilities: &'a Capabilities,
    /// Greeting of POP3 and SMTP; SMTP's answer to `HELO`.
    pub texts: &'a ProtocolTexts,
    /// Methods that are enabled.
    pub methods: AuthMethods,
    /// `starttls`
    pub starttls: StartTls,
    /// True if the connection is over TLS.
    pub is_tls: bool,
    /// `max_errors`
    pub errors_max: usize,
}

impl DialogueFacts<'_> {
    /// Returns true if a login needs TLS first.
    pub fn requires_tls(&self) -> bool {
        !self.is_tls && self.starttls == StartTls::Only
    }

    /// Returns true if the client may begin TLS.
    pub fn offers_tls(&self) -> bool {
        !self.is_tls && self.starttls != StartTls::Off
    }

    /// Capabilities for the connection as it is.
    pub fn capability(&self) -> &[u8] {
        match (self.is_tls, self.starttls) {
            (true, _) | (false, StartTls::Off) => &self.capabilities.plain,
            (false, StartTls::On) => &self.capabilities.starttls,
            (false, StartTls::Only) => &self.capabilities.starttls_only,
        }
    }
}

/// Texts of a protocol that name the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtocolTexts {
    /// Greeting.
    pub greeting: Box<[u8]>,
    /// Reply of POP3 to `AUTH` without arguments; of SMTP to `HELO`.
    pub short: Box<[u8]>,
}

/// A set of [`AuthMethod`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AuthMethods(u16);

impl AuthMethods {
    /// A set of these.
    pub const fn of(methods: &[AuthMethod]) -> Self {
        let mut set = 0;
        let mut methods = methods;
        while let [method, rest @ ..] = methods {
            set |= 1 << *method as u16;
            methods = rest;
        }
        Self(set)
    }

    /// Adds a method; returns false if it was there.
    pub fn add(&mut self, method: AuthMethod) -> bool {
        let is_new = !self.has(method);
        self.0 |= 1 << method as u16;
        is_new
    }

    /// Returns true if the method is in the set.
    pub const fn has(self, method: AuthMethod) -> bool {
        self.0 & (1 << method as u16) != 0
    }
}

/// Login of a client, as far as it is known.
#[derive(Debug, Default)]
pub struct Login {
    /// Method of the login.
    pub method: AuthMethod,
    /// Name of the user; empty before a login, and for `none`.
    pub user: Secret,
    /// Password, response to a challenge, or token.
    pub password: Option<Secret>,
    /// Challenge of APOP and CRAM-MD5, in angle brackets; empty without one.
    pub salt: String,
    /// Tag of the command of IMAP, with the blank behind it.
    pub tag: Vec<u8>,
    /// Commands of SMTP in front of the login.
    pub envelope: Envelope,
}

/// Commands of SMTP in front of the login.
#[derive(Debug, Default)]
pub struct Envelope {
    /// Argument of `HELO` or `EHLO`.
    pub helo: Vec<u8>,
    /// True after `EHLO`.
    pub is_esmtp: bool,
    /// `MAIL FROM` as the client has sent it.
    pub from: Vec<u8>,
    /// `RCPT TO` as the client has sent it.
    pub to: Vec<u8>,
}

/// Result of looking at the input.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes for the client; empty for none.
    pub reply: Vec<u8>,
    /// Event behind the reply.
    pub next: Next,
    /// Line for the error log, of level `info`.
    pub note: Option<Cow<'static, str>>,
}

/// Event behind a [`Step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The input has no complete command: more has to be received.
    Receive,
    /// The next command of the input.
    Command,
    /// The connection closes.
    Close,
    /// A TLS handshake.
    StartTls,
    /// The login is complete.
    Login,
}

impl Step {
    /// More has to be received.
    pub(crate) const RECEIVE: Self = Self { reply: Vec::new(), next: Next::Receive, note: None };
    /// The login is complete.
    pub(crate) const LOGIN: Self = Self { reply: Vec::new(), next: Next::Login, note: None };

    /// A reply, and then the next command.
    pub(crate) fn reply(reply: impl Into<Vec<u8>>) -> Self {
        Self { reply: reply.into(), next: Next::Command, note: None }
    }

    /// A reply, and then the end of the connection.
    pub(crate) fn close(reply: impl Into<Vec<u8>>) -> Self {
        Self { next: Next::Close, ..Self::reply(reply) }
    }

    /// A reply, and then a TLS handshake.
    pub(crate) fn start_tls(reply: impl Into<Vec<u8>>) -> Self {
        Self { next: Next::StartTls, ..Self::reply(reply) }
    }

    /// Adds a line for the log.
    pub(crate) fn noted(self, note: Option<Cow<'static, str>>) -> Self {
        Self { note, ..self }
    }
}

/// Dialogue with one client.
pub enum Dialogue {
    /// POP3.
    Pop3(Pop3Dialogue),
    /// IMAP.
    Imap(ImapDialogue),
    /// SMTP.
    Smtp(SmtpDialogue),
}

impl Dialogue {
    /// A dialogue that begins.
    pub fn new(protocol: MailProtocol) -> Self {
        match protocol {
            MailProtocol::Pop3 => Self::Pop3(Pop3Dialogue::default()),
            MailProtocol::Imap => Self::Imap(ImapDialogue::default()),
            MailProtocol::Smtp => Self::Smtp(SmtpDialogue::default()),
        }
    }

    /// Looks at the input for the next command. A login is complete in `login`.
    pub fn advance(&mut self, input: &mut Input, login: &mut Login, facts: &DialogueFacts<'_>) -> Step {
        match self {
            Self::Pop3(dialogue) => dialogue.advance(input, login, facts),
            Self::Imap(dialogue) => dialogue.advance(input, login, facts),
            Self::Smtp(dialogue) => dialogue.advance(input, login, facts),
        }
    }

    /// Begins with a command again, after a login that failed or a TLS handshake.
    pub fn restart(&mut self) {
        match self {
            Self::Pop3(dialogue) => dialogue.restart(),
            Self::Imap(dialogue) => dialogue.restart(),
            Self::Smtp(dialogue) => dialogue.restart(),
        }
    }
}

/// Errors of a client.
#[derive(Debug, Default)]
pub(crate) struct ErrorCount(usize);

impl ErrorCount {
    /// Counts an invalid command, which is replied to with `reply`.
    pub(crate) fn invalid(&mut self, reply: impl Into<Vec<u8>>, facts: &DialogueFacts<'_>) -> Step {
        self.0 += 1;
        if self.0 >= facts.errors_max {
            return Step::close(reply).noted(Some("client sent too many invalid commands".into()));
        }
        Step::reply(reply)
    }
}

/// Result of a command that is longer than the input has room for.
pub(crate) fn too_long(input: &mut Input, reply: impl Into<Vec<u8>>) -> Step {
    // DIFF(nginx): the line of the log has the length only, because the command may contain a password.
    let note = format!("client sent too long command: more than {} bytes", input.bytes().len());
    input.clear();
    Step::close(reply).noted(Some(note.into()))
}
