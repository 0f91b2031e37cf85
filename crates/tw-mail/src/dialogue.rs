//! Dialogue with a client up to its login, without I/O: bytes in, replies and a login out.
//!
//! ```text
//! greeting ─► command ─► reply ─► … ─► login ─► (auth server) ─► upstream server
//!               │                        ▲
//!               └─► challenge ─► response┘
//! ```
//! Each protocol is a [`Dialogue`] of its own: [`imap`], and [`pop3`] and [`smtp`], whose commands are lines ([`line_dialogue`]). The
//! mechanisms of SASL are shared ([`sasl`]).

mod auth_method;
mod facts;
pub mod imap;
mod input;
pub mod line;
pub mod line_dialogue;
mod login;
pub mod pop3;
pub mod sasl;
pub mod smtp;
mod step;
#[cfg(test)]
mod testing;

pub use self::auth_method::{AuthMethod, AuthMethods};
pub use self::facts::{Capabilities, DialogueFacts, MailProtocol, ProtocolTexts, StartTls};
pub use self::input::Input;
pub use self::login::{Envelope, Login};
pub use self::step::{Next, Step};

use self::imap::ImapDialogue;
use self::pop3::Pop3Dialogue;
use self::smtp::SmtpDialogue;

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
