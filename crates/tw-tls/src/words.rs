//! OpenSSL's configuration strings, and the subset that rustls can offer.
//!
//! Names of known algorithms that are never offered here (CBC, DHE, TLS 1.0) are no error as long as something
//! remains: they are listed in a note for the configuration test. If nothing remains, that is an error.

use std::fmt;

mod cipher;
mod command;
mod group;
mod p521;
mod protocol;
mod signature;
mod suite;

pub use cipher::{ciphers, ciphersuites, default_ciphers, default_ciphersuites};
pub use command::{Command, Flag, Switch, conf_command};
pub use group::{Group, default_groups, groups, has_post_quantum};
pub use protocol::{Protocol, Protocols, protocols};
pub use signature::signature_algorithms;
pub(crate) use suite::name as suite_name;

/// Selection made by a configuration string, in order of preference.
#[derive(Debug, Clone)]
pub struct Selection<T> {
    /// Selected algorithms that can be offered.
    pub chosen: Vec<T>,
    /// Names of selected algorithms that are never offered.
    pub never: Vec<String>,
}

impl<T> Selection<T> {
    /// Sentence for the configuration test, if a selected algorithm is never offered.
    pub fn note(&self) -> Option<String> {
        (!self.never.is_empty()).then(|| format!("never offered: {}", self.never.join(", ")))
    }
}

/// Error of a configuration string. `Display` gives the reason, to be appended to nginx's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WordError {
    /// Unknown word.
    Unknown(String),
    /// All selected algorithms are known, but none can be offered here.
    NeverOffered(Vec<String>),
    /// Empty selection.
    NoMatch,
    /// Malformed list.
    Malformed(String),
    /// Not a command that is known; these are.
    UnknownCommand(&'static str),
}

impl fmt::Display for WordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(word) => write!(f, "\"{word}\" is not known"),
            Self::NeverOffered(words) => {
                write!(f, "nothing remains, since these are never offered: {}", words.join(", "))
            }
            Self::NoMatch => f.write_str("no cipher match"),
            Self::Malformed(word) => write!(f, "invalid command \"{word}\""),
            Self::UnknownCommand(name) => write!(f, "unknown command; known are {name}"),
        }
    }
}

impl std::error::Error for WordError {}
