//! Facts about a server and a connection that replies to a client depend on.

use super::auth_method::AuthMethods;

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
