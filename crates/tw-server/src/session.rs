//! What decisions about a client ask, whatever protocol it speaks: the client's address, text with variables, a log.
//!
//! `map`, `geo`, limits and access rules decide by this trait alone, so that a stream session can stand where a
//! [`Request`] does.

use std::fmt;

use tw_log::Level;
use tw_net::Addr;

use crate::http::request::Request;
use crate::regex::{BacktrackLimit, Match, Regex};
use crate::vars::Template;

/// A client being served.
pub trait Session {
    /// Text with the variables of this kind of session.
    type Template;

    /// The client's address, as trusted proxies tell it.
    fn client_addr(&self) -> &Addr;

    /// Appends the text to `out`. Never waits.
    fn eval(&self, template: &Self::Template, out: &mut Vec<u8>);

    /// Matches `subject`; a match sets `$1` to `$9` and the variables of named groups. A pattern that runs into its limit
    /// of backtracking is logged, and ends the session with an error.
    fn matches(&self, regex: &Regex, subject: &[u8]) -> Result<Match, BacktrackLimit>;

    /// Writes a line into the error log, with who asked for what.
    fn log(&self, level: Level, message: fmt::Arguments<'_>);
}

impl Session for Request {
    type Template = Template;

    fn client_addr(&self) -> &Addr {
        Request::client_addr(self)
    }

    fn eval(&self, template: &Template, out: &mut Vec<u8>) {
        template.eval(self, out);
    }

    fn matches(&self, regex: &Regex, subject: &[u8]) -> Result<Match, BacktrackLimit> {
        Request::matches(self, regex, subject)
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        Request::log(self, level, message);
    }
}
