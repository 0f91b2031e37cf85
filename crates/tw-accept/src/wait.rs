//! Waits for a client whose connection the loop may close to make room.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_core::event_loop::EvictableConnection;
use tw_rt::Deadline;

/// Reason why a wait ended without the client being ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitError {
    /// The time was over.
    Timeout,
    /// The loop needs the place of the connection.
    Evicted,
    /// The socket failed.
    Failed,
}

/// Waits for `ready`, at most `time`, or until the loop closes the connection to make room.
///
/// # Errors
/// Errors are those of [`WaitError`].
pub async fn ready_or_evicted(
    mut evictable: EvictableConnection<'_>,
    deadline: &RefCell<Deadline>,
    time: Duration,
    mut ready: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
) -> Result<(), WaitError> {
    deadline.borrow_mut().set(time);
    poll_fn(|cx| {
        if let Poll::Ready(ready) = ready(cx) {
            return Poll::Ready(ready.map_err(|_| WaitError::Failed));
        }
        if evictable.poll_evicted(cx).is_ready() {
            return Poll::Ready(Err(WaitError::Evicted));
        }
        deadline.borrow_mut().poll_elapsed(cx).map(|()| Err(WaitError::Timeout))
    })
    .await
}
