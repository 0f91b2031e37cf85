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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tw_core::event_loop::Eviction;

    use super::*;
    use crate::host::Host;
    use crate::test_host::{TestHost, block_on};

    const LONG: Duration = Duration::from_secs(60);

    /// Result of a wait for a client whose socket is in this state.
    fn result_for(time: Duration, state: fn() -> Poll<io::Result<()>>) -> Result<(), WaitError> {
        let host = TestHost::new();
        block_on(async {
            let deadline = RefCell::new(Deadline::new());
            ready_or_evicted(host.evictable(), &deadline, time, |_| state()).await
        })
    }

    #[test]
    fn wait_ends_with_the_first_event() {
        assert_eq!(result_for(LONG, || Poll::Ready(Ok(()))), Ok(()));
        assert_eq!(
            result_for(Duration::ZERO, || Poll::Ready(Ok(()))),
            Ok(()),
            "readiness comes before the end"
        );
        let failed = || Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        assert_eq!(result_for(LONG, failed), Err(WaitError::Failed));
        assert_eq!(result_for(Duration::ZERO, || Poll::Pending), Err(WaitError::Timeout));
    }

    #[test]
    fn waiting_connection_is_evicted_and_another_one_is_not() {
        let host = TestHost::new();
        block_on(async {
            let deadline = RefCell::new(Deadline::new());
            let mut cx = Context::from_waker(Waker::noop());
            let wait = ready_or_evicted(host.evictable(), &deadline, LONG, |_| Poll::Pending);
            let mut wait = Box::pin(wait);
            assert_eq!(
                host.connections.close_idle_clients(),
                Eviction::NothingIdle,
                "the wait has not begun"
            );
            assert_eq!(wait.as_mut().poll(&mut cx), Poll::Pending);
            assert_eq!(host.connections.close_idle_clients(), Eviction::Done);
            assert_eq!(wait.as_mut().poll(&mut cx), Poll::Ready(Err(WaitError::Evicted)));
            drop(wait);
            assert_eq!(host.connections.close_idle_clients(), Eviction::NothingIdle, "the wait is over");
        });
    }
}
