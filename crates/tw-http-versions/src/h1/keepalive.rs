//! Waiting for the next request, and being asked to close meanwhile.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_core::event_loop::{EvictableConnection, LevelGuard};

use super::Http1Connection;
use crate::lingering_close::LAST_WAIT;

/// End of the wait of an idle connection.
pub(super) enum Woken {
    Readable,
    Close,
}

impl Http1Connection {
    /// Waits for the next request, or until the connection is asked to close.
    ///
    /// An idle connection is little more than this future. Blocks end what the next wait does not need.
    #[expect(clippy::manual_async_fn, reason = "an async fn has its arguments twice")]
    pub(super) fn idle(&self, mut timeout: Duration) -> impl Future<Output = Woken> {
        async move {
            {
                let protected = timeout.min(self.keepalive_min_timeout.get());
                if !protected.is_zero() {
                    timeout -= protected;
                    if let Some(woken) = self.protected(protected).await {
                        return woken;
                    }
                    if timeout.is_zero() {
                        return Woken::Close;
                    }
                }
            }
            let _waiting = LevelGuard::new(&self.client.event_loop.tally.waiting);
            self.read_deadline.borrow_mut().set(timeout);
            let woken = {
                let connections = &self.client.event_loop.connections;
                let mut evictable = EvictableConnection::new(connections, &self.client.slot);
                poll_fn(|cx| self.poll_woken(&mut evictable, cx)).await
            };
            match woken {
                // DIFF(nginx): a request that was sent before its client could know is answered, not reset.
                Woken::Close if self.client.event_loop.connections.is_stopping() => {
                    self.protected(timeout.min(LAST_WAIT)).await.unwrap_or(Woken::Close)
                }
                woken => woken,
            }
        }
    }

    fn poll_woken(&self, evictable: &mut EvictableConnection<'_>, cx: &mut Context<'_>) -> Poll<Woken> {
        if let Poll::Ready(ready) = self.transport.poll_readable(cx) {
            return Poll::Ready(if ready.is_ok() { Woken::Readable } else { Woken::Close });
        }
        // The first request of a client that has just connected is on its way.
        if self.client.event_loop.connections.is_stopping() && self.client.requests.get() > 0 {
            return Poll::Ready(Woken::Close);
        }
        if evictable.poll_evicted(cx).is_ready() {
            return Poll::Ready(Woken::Close);
        }
        self.read_deadline.borrow_mut().poll_elapsed(cx).map(|()| Woken::Close)
    }

    /// Waits for the next request, and for nothing else; `None` when the time is over.
    fn protected(&self, time: Duration) -> impl Future<Output = Option<Woken>> {
        self.read_deadline.borrow_mut().set(time);
        poll_fn(|cx| {
            if let Poll::Ready(ready) = self.transport.poll_readable(cx) {
                return Poll::Ready(Some(if ready.is_ok() { Woken::Readable } else { Woken::Close }));
            }
            self.read_deadline.borrow_mut().poll_elapsed(cx).map(|()| None)
        })
    }
}
