//! Preread phase: modules look at the first bytes of a client, before the content handler gets them.

use std::cell::RefCell;
use std::io;

use bytes::Bytes;
use tw_accept::{Host, WaitError, ready_or_evicted};
use tw_core::session::Session;
use tw_log::Level;
use tw_rt::Deadline;

use crate::session::StreamSession;
use crate::status::{PhaseResult, SessionStatus};

pub use crate::plan::{PrereadHandler, PrereadStep};

/// Bytes requested of the connection at once.
const READ_SIZE: usize = 16 << 10;

/// Runs the handlers of the server one after the other. All of their waits together take `preread_timeout` at most.
pub(crate) async fn run(s: &mut StreamSession) -> PhaseResult {
    let client = s.client.clone();
    let server = client.server();
    let began = tw_rt::clock::now();
    let timeout = server.settings.preread_timeout;
    let deadline = RefCell::new(Deadline::new());
    for handler in &server.plan.preread {
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
                let left = timeout.saturating_sub(tw_rt::clock::now().saturating_duration_since(began));
                let Some(transport) = s.transport.connection().cloned() else { return Ok(()) };
                let evictable = s.client.evictable();
                let ready =
                    ready_or_evicted(evictable, &deadline, left, |cx| transport.poll_readable(cx)).await;
                if let Err(WaitError::Timeout | WaitError::Evicted | WaitError::Failed) = ready {
                    return Err(SessionStatus::OK);
                }
            }
        }
    }
    Ok(())
}

/// Reads what is there. Returns false if there is nothing now.
fn read(s: &mut StreamSession, max: usize) -> Result<bool, SessionStatus> {
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
