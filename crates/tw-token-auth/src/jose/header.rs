//! Header of a token, and the reasons why a token is invalid.

use std::fmt;

use serde_json::{Map, Value};
use tw_http::base64;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of a token (JWT).
    ///
    /// Bytes of a token. Those with many groups of users have 10 KB.
    pub(super) const TOKEN_SIZE_MAX: usize = 32 << 10, bytes, "the token is invalid: 401";
}

/// Members of an object.
pub(super) type Members = Map<String, Value>;

/// Reason why a token is invalid; `Display` has the text of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenError {
    TooLarge,
    /// The part that is not what it has to be.
    Malformed(&'static str),
    /// `alg` is `none`.
    Unsecured,
    /// The parameter of the header whose value is not supported.
    Unsupported(&'static str),
    /// No key has the right identifier and type. The reason why a key of the set is not used, if there is one.
    NoKey(Option<String>),
    WrongSignature,
    Undecryptable,
    /// The claim that is no time.
    InvalidTime(&'static str),
    Expired,
    NotYetValid,
    /// The claim or the parameter of the header of this name is in a list of revoked ones.
    Revoked(&'static str),
    /// The header does not name the key, and keys may be revoked.
    NoKeyName,
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(f, "it has more than {TOKEN_SIZE_MAX} bytes"),
            Self::Malformed(part) => write!(f, "its {part} is malformed"),
            Self::Unsecured => f.write_str("it is not signed (\"alg\" is \"none\")"),
            Self::Unsupported(name) => write!(f, "\"{name}\" in its header is not supported"),
            Self::NoKey(None) => f.write_str("no key has its type and identifier"),
            Self::NoKey(Some(why)) => write!(f, "no key has its type and identifier; {why}"),
            Self::WrongSignature => f.write_str("its signature is wrong"),
            Self::Undecryptable => f.write_str("it cannot be decrypted"),
            Self::InvalidTime(name) => write!(f, "\"{name}\" is no time"),
            Self::Expired => f.write_str("it has expired"),
            Self::NotYetValid => f.write_str("it is not valid yet"),
            Self::Revoked(name) => write!(f, "its \"{name}\" is revoked"),
            Self::NoKeyName => f.write_str("it has no \"kid\", and keys may be revoked"),
        }
    }
}

/// Header of a token.
#[derive(Debug, Default)]
pub(crate) struct Header(Members);

impl Header {
    /// Decodes a header. Extensions that must be understood (`crit`) are not.
    pub(super) fn parse(text: &[u8]) -> Result<Self, TokenError> {
        let header = Self(object(&decoded(text)?, "header")?);
        if header.has("crit") { Err(TokenError::Unsupported("crit")) } else { Ok(header) }
    }

    /// The header with these members.
    pub(super) fn of_members(members: Members) -> Self {
        Self(members)
    }

    /// Members of the object.
    pub(super) fn members(&self) -> &Members {
        &self.0
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }
}

/// Bytes of a part.
pub(super) fn decoded(text: &[u8]) -> Result<Vec<u8>, TokenError> {
    base64::decode_url(text).map_err(|_| TokenError::Malformed("base64url"))
}

/// Members of an object in JSON. Of several members of one name the last counts.
pub(super) fn object(text: &[u8], part: &'static str) -> Result<Members, TokenError> {
    serde_json::from_slice(text).map_err(|_| TokenError::Malformed(part))
}
