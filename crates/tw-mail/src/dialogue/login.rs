//! Login of a client, as its dialogue fills it in.

use super::auth_method::AuthMethod;
use crate::secret::Secret;

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
