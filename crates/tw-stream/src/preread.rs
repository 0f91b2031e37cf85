//! Preread phase: modules look at the first bytes of a client, before the content handler gets them.

use std::cell::RefCell;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_accept::{Host, WaitError, ready_or_evicted};
use tw_core::session::Session;
use tw_log::Level;
use tw_net::Transport;
use tw_rt::Deadline;

use crate::client::Client;
use crate::plan::{PrereadEntry, StepDecision};
use crate::session::StreamSession;
use crate::status::{PhaseResult, SessionStatus};

pub use crate::plan::{PrereadHandler, PrereadStep};

/// Bytes requested of the connection at once.
const READ_SIZE: usize = 16 << 10;

/// Time in which a client has to send what handlers need (`preread_timeout`): all waits together take that at most.
pub struct PrereadTime {
    began: Instant,
    timeout: Duration,
    deadline: RefCell<Deadline>,
}

impl PrereadTime {
    /// The time that begins now.
    pub fn start(s: &StreamSession) -> Self {
        let timeout = s.server().settings.preread_timeout;
        Self { began: tw_rt::clock::now(), timeout, deadline: RefCell::new(Deadline::new()) }
    }

    /// Waits until there are bytes of the client.
    ///
    /// # Errors
    /// End of the session: the client has left or taken too long, or its place is needed.
    pub async fn readable(&self, client: &Client, transport: &Transport) -> PhaseResult {
        let remaining =
            self.timeout.saturating_sub(tw_rt::clock::now().saturating_duration_since(self.began));
        let ready =
            ready_or_evicted(client.evictable(), &self.deadline, remaining, |cx| transport.poll_readable(cx));
        match ready.await {
            Ok(()) => Ok(()),
            Err(WaitError::Timeout | WaitError::Evicted | WaitError::Failed) => Err(SessionStatus::OK),
        }
    }
}

/// Runs the handlers of the server one after the other.
pub(crate) async fn run(s: &mut StreamSession) -> PhaseResult {
    let client = s.client.clone();
    let time = PrereadTime::start(s);
    for entry in &client.server().plan.preread {
        let handler = match entry {
            PrereadEntry::Handler(handler) => handler,
            PrereadEntry::Step(step) => match step.run(s).await {
                StepDecision::Pass => continue,
                StepDecision::PhaseDone => return Ok(()),
                StepDecision::End(status) => return Err(status),
            },
        };
        loop {
            let step = handler.preread(s);
            s.check_evaluation()?;
            match step {
                PrereadStep::Pass => break,
                PrereadStep::Done => return Ok(()),
                PrereadStep::More => {}
                PrereadStep::End(status) => return Err(status),
            }
            while !read(s, handler.size_max(s))? {
                let Some(transport) = s.transport.connection().cloned() else { return Ok(()) };
                time.readable(&client, &transport).await?;
            }
        }
    }
    Ok(())
}

/// Reads what is there into [`StreamSession::preread`], up to `max` bytes in all. Returns false if there is nothing now.
///
/// # Errors
/// End of the session: the client has left, or there are `max` bytes already.
pub fn read(s: &mut StreamSession, max: usize) -> Result<bool, SessionStatus> {
    let room = max.saturating_sub(s.preread.len());
    let transport = s.transport.connection().cloned();
    // Of a session over datagrams only the first datagram can be examined.
    let (1.., Some(transport)) = (room, transport) else {
        s.log(Level::Error, format_args!("preread buffer full while prereading client data"));
        return Err(SessionStatus::BAD_REQUEST);
    };
    // A large buffer is filled in steps.
    let room = room.min(READ_SIZE);
    let mut bytes = Vec::with_capacity(s.preread.len() + room);
    bytes.extend_from_slice(&s.preread);
    bytes.resize(s.preread.len() + room, 0);
    let len = s.preread.len();
    match transport.try_read_into(&mut bytes[len..]) {
        Ok(0) => Err(SessionStatus::OK),
        Ok(n) => {
            bytes.truncate(len + n);
            s.add_received(n);
            s.preread = Bytes::from(bytes);
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(_) => Err(SessionStatus::OK),
    }
}
