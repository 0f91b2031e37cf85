//! What is written of a session that is over, the same way in every protocol.

use std::ffi::CStr;
use std::sync::Arc;

use tw_log::{PushResult, Sink};

use crate::session::Session;

/// Writes about sessions that are over.
pub trait Recorder<S>: Send + Sync + 'static {
    /// Writes about `s`. Never waits.
    fn record(&self, s: &S);
}

/// A plan to which modules of every protocol can add.
pub trait Recorded<S> {
    /// Adds to the end of what runs when a session is over.
    fn add_recorder(&mut self, recorder: Arc<impl Recorder<S>>);
}

/// A session of which access logs have a line.
pub trait Logged: Session {
    /// The format of a log that names none: its name, and the line. Without one, every log has to name its own.
    const FORMAT: Option<(&'static str, &'static str)>;
    /// The log of a block for which nothing says where its sessions are logged.
    const FILE: Option<&'static str>;

    /// Queues a line for the file at `path`, which variables of the session named: `sink` is one of
    /// [`Target::Files`](tw_log::Target::Files). Whether the file is written depends on what the session may reach.
    fn push_to(&self, sink: &Sink, path: &CStr, line: &[u8]) -> PushResult;
}
