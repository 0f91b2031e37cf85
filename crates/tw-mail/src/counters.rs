//! Counters of the sessions of a server, which a module keeps.

use tw_core::session_meter::ServerCounters;

use crate::session_status::{LoginResult, SessionStatus};

/// Counters of a server: those of every protocol, logins, and failures by cause.
pub trait MailCounters: ServerCounters {
    /// Counts a login on the loop `index`.
    fn login(&self, index: usize, result: LoginResult);

    /// Counts a session on the loop `index` that has failed.
    fn failed(&self, index: usize, status: SessionStatus);
}
