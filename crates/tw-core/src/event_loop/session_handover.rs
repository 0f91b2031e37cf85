//! Sessions over datagrams that pass from one process to the next with their sockets, as loops see them: a loop that leaves offers them, and
//! the loop of the next process takes them over.
//!
//! ```text
//! session ─ offer: record, socket ─► HandoverOffers ─► next process ─► HandedSession ─► Application::take_over
//!    ▲                                                                     │
//!    └── Accepted: it ends here; Refused: it goes on ◄─────────────────────┘
//! ```
//! Only the protocol of a session knows its record.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::sync::oneshot;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Sessions over UDP that a worker process hands over to the next one.
    pub const HANDOVER_SESSIONS_MAX: usize = 16_384, count, "further ones end in their process";
    /// Time in which a worker process hands over sessions over UDP.
    ///
    /// Longest time in which it does. A new binary may still be loading its configuration; a session takes less than a
    /// millisecond.
    pub const HANDOVER_TIME_MAX: Duration = Duration::from_secs(5), time, "the others end in their process";
    /// Record of a session over UDP for the next worker process.
    ///
    /// Largest record of a session, bytes. They have less than 200.
    pub const RECORD_SIZE_MAX: usize = 1024, bytes, "the session ends in its process";
}

/// Decision of the next process about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoverVerdict {
    /// The session goes on there.
    Accepted,
    /// The session goes on here, as far as it can.
    Refused,
}

/// A session on its way out of this process.
#[derive(Debug)]
pub struct OfferedSession {
    /// Number of its loop.
    pub loop_index: usize,
    /// Description for the same protocol of the next process.
    pub record: Vec<u8>,
    /// Socket to its upstream server.
    pub socket: OwnedFd,
    /// Receiver of the decision; without one the session is refused.
    pub verdict: oneshot::Sender<HandoverVerdict>,
}

/// State of the handover of a loop that leaves.
#[derive(Debug, Clone, Default)]
pub enum HandoverPhase {
    /// No process takes sessions.
    #[default]
    Closed,
    /// The next process has not said yet that it takes sessions.
    Expected,
    /// The next process takes sessions.
    Open(HandoverOffers),
}

/// Offers of all loops to the next process.
#[derive(Debug, Clone)]
pub struct HandoverOffers(pub(super) SyncSender<OfferedSession>);

impl HandoverOffers {
    /// Offers that arrive at the other end of `sender`.
    pub fn new(sender: SyncSender<OfferedSession>) -> Self {
        Self(sender)
    }
}

/// A session that another process hands over. Dropping it refuses the session.
pub struct HandedSession {
    /// Description by the same protocol of the other process.
    pub record: Vec<u8>,
    /// Socket to its upstream server; `None` once it was taken.
    pub socket: Option<OwnedFd>,
    reply: Option<Box<dyn FnOnce(HandoverVerdict) -> HandoverVerdict + Send>>,
}

impl HandedSession {
    /// A session whose decision goes to `reply`, which does not wait, and returns a refusal if the other process has given up.
    pub fn new(
        record: Vec<u8>,
        socket: OwnedFd,
        reply: impl FnOnce(HandoverVerdict) -> HandoverVerdict + Send + 'static,
    ) -> Self {
        Self { record, socket: Some(socket), reply: Some(Box::new(reply)) }
    }

    /// Takes the session over, unless the other process has given up and serves it itself.
    #[must_use]
    pub fn accept(mut self) -> HandoverVerdict {
        self.reply.take().map_or(HandoverVerdict::Refused, |reply| reply(HandoverVerdict::Accepted))
    }
}

impl Drop for HandedSession {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply(HandoverVerdict::Refused);
        }
    }
}

impl fmt::Debug for HandedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedSession").field("socket", &self.socket).finish_non_exhaustive()
    }
}
