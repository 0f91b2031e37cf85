//! Waiting for a client whose connection can be spared: it is closed if its place is wanted.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_core::event_loop::EvictableConnection;
use tw_rt::Deadline;

use super::client::Client;

/// Failure of such a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitError {
    /// The time was over.
    Timeout,
    /// The connection was asked to close.
    Called,
    /// The connection failed.
    Failed,
}

/// Waits for `ready`, at most `time`, or until the connection is asked to close.
pub(crate) async fn ready_or_called(
    client: &Client,
    deadline: &RefCell<Deadline>,
    time: Duration,
    mut ready: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
) -> Result<(), WaitError> {
    let mut evictable = EvictableConnection::new(&client.home.connections, &client.slot);
    deadline.borrow_mut().set(time);
    poll_fn(|cx| {
        if let Poll::Ready(ready) = ready(cx) {
            return Poll::Ready(ready.map_err(|_| WaitError::Failed));
        }
        if evictable.poll_evicted(cx).is_ready() {
            return Poll::Ready(Err(WaitError::Called));
        }
        deadline.borrow_mut().poll_elapsed(cx).map(|()| Err(WaitError::Timeout))
    })
    .await
}
