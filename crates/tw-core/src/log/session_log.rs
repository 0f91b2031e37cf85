//! Logging of finished sessions, the same way in every protocol.

use std::ffi::CStr;
use std::sync::Arc;

use tw_log::{Pushed, Sink};

use crate::session::Session;

/// Logs finished sessions.
pub trait SessionLogger<S>: Send + Sync + 'static {
    /// Logs `s`. Never waits.
    fn record(&self, s: &S);
}

/// Plan to which modules of every protocol can add session loggers.
pub trait LogPlan<S> {
    /// Appends a logger to those that run when a session is over.
    fn add_session_logger(&mut self, logger: Arc<impl SessionLogger<S>>);
}

/// A session of which access logs have a line.
pub trait LoggedSession: Session {
    /// The format of a log that names none: its name, and the line. Without one, every log has to name its own.
    const FORMAT: Option<(&'static str, &'static str)>;
    /// The log of a block for which nothing says where its sessions are logged.
    const FILE: Option<&'static str>;

    /// Queues a line for the file at `path`, which variables of the session named: `sink` is one of
    /// [`Target::Files`](tw_log::Target::Files). Whether the file is written depends on what the session may reach.
    fn push_to(&self, sink: &Sink, path: &CStr, line: &[u8]) -> Pushed;
}
