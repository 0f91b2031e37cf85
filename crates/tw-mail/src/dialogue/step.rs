//! Steps of a dialogue: the reply to a command, and the event behind it.

use std::borrow::Cow;

use super::facts::DialogueFacts;
use super::input::Input;

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
    /// The connection closes, because the client has said so.
    Close,
    /// The connection closes, because the client has sent too much that is invalid.
    Abort,
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

    /// A reply, and then the end of a connection whose client has sent too much that is invalid.
    pub(crate) fn abort(reply: impl Into<Vec<u8>>) -> Self {
        Self { next: Next::Abort, ..Self::reply(reply) }
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

/// Errors of a client.
#[derive(Debug, Default)]
pub(crate) struct ErrorCount(usize);

impl ErrorCount {
    /// Counts an invalid command, which is replied to with `reply`.
    pub(crate) fn invalid(&mut self, reply: impl Into<Vec<u8>>, facts: &DialogueFacts<'_>) -> Step {
        self.0 += 1;
        if self.0 >= facts.errors_max {
            return Step::abort(reply).noted(Some("client sent too many invalid commands".into()));
        }
        Step::reply(reply)
    }
}

/// Result of a command that is longer than the input has room for.
pub(crate) fn too_long(input: &mut Input, reply: impl Into<Vec<u8>>) -> Step {
    // DIFF(nginx): the line of the log has the length only, because the command may contain a password.
    let note = format!("client sent too long command: more than {} bytes", input.bytes().len());
    input.clear();
    Step::abort(reply).noted(Some(note.into()))
}
