//! One connection of HTTP/1: its transport, how long it waits for either direction, and whether its client is still there.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_disk::SocketFd;
use tw_net::Transport;
use tw_rt::Deadline;

use tw_request::client::Client;
use tw_request::config::location::Location;

/// A connection of HTTP/1.
pub struct Http1Connection {
    /// Client of the connection.
    pub(crate) client: Rc<Client>,
    /// Transport.
    pub(crate) transport: Transport,
    /// Longest wait for the next request.
    pub(super) keepalive_timeout: IdleTime,
    /// Least wait for the next request while the loop stops.
    pub(super) keepalive_min_timeout: IdleTime,
    /// Until when the client may keep us waiting for bytes of it.
    pub(super) read_deadline: RefCell<Deadline>,
    /// Until when it may keep us waiting before it takes bytes. Boxed: most clients never do.
    write_deadline: Cell<Option<Box<Deadline>>>,
    fd: OnceCell<Option<SocketFd>>,
}

/// Time in whole milliseconds, 49 days at most: half the size of a cell with a [`Duration`] in every idle connection.
#[derive(Debug, Default)]
pub(super) struct IdleTime(Cell<u32>);

impl IdleTime {
    /// Sets the time. A part of a millisecond counts as a whole one.
    pub(super) fn set(&self, time: Duration) {
        let ms = time
            .as_secs()
            .saturating_mul(1_000)
            .saturating_add(time.subsec_nanos().div_ceil(1_000_000).into());
        self.0.set(u32::try_from(ms).unwrap_or(u32::MAX));
    }

    /// The time.
    pub(super) fn get(&self) -> Duration {
        Duration::from_millis(self.0.get().into())
    }
}

/// Failure to wait for a connection.
#[derive(Debug)]
pub(crate) enum SocketWaitError {
    /// The time was over.
    Timeout,
    /// The connection failed.
    Io(io::Error),
}

impl Http1Connection {
    /// The connection of a client.
    pub fn new(client: Rc<Client>, transport: Transport) -> Rc<Self> {
        Rc::new(Self {
            client,
            transport,
            keepalive_timeout: IdleTime::default(),
            keepalive_min_timeout: IdleTime::default(),
            read_deadline: RefCell::new(Deadline::new()),
            write_deadline: Cell::new(None),
            fd: OnceCell::new(),
        })
    }

    /// A second descriptor that takes the bytes of the connection, for a pool thread to write to; `None` if there is none.
    pub(super) fn fd(&self) -> Option<&SocketFd> {
        self.fd.get_or_init(|| self.transport.try_clone().map(Arc::new)).as_ref()
    }

    /// Waits until bytes of the client may be there, at most `timeout`.
    pub(crate) async fn readable(&self, timeout: Duration) -> Result<(), SocketWaitError> {
        self.read_deadline.borrow_mut().set(timeout);
        let elapsed = |cx: &mut Context<'_>| self.read_deadline.borrow_mut().poll_elapsed(cx);
        within(elapsed, |cx| self.transport.poll_readable(cx)).await
    }

    /// Waits until the client may take bytes, at most `timeout`.
    pub(crate) async fn writable(&self, timeout: Duration) -> Result<(), SocketWaitError> {
        self.set_write_deadline(timeout);
        within(|cx| self.poll_write_elapsed(cx), |cx| self.transport.poll_writable(cx)).await
    }

    /// Sets the time that [`poll_write_elapsed`](Self::poll_write_elapsed) waits for.
    pub(super) fn set_write_deadline(&self, span: Duration) {
        let mut deadline = self.write_deadline.take().unwrap_or_default();
        deadline.set(span);
        self.write_deadline.set(Some(deadline));
    }

    /// Ready when the time has elapsed.
    pub(super) fn poll_write_elapsed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(mut deadline) = self.write_deadline.take() else { return Poll::Pending };
        let polled = deadline.poll_elapsed(cx);
        self.write_deadline.set(Some(deadline));
        polled
    }

    /// Gives back the timers of both directions: a tunnel has its own.
    pub(super) fn drop_timers(&self) {
        self.read_deadline.take();
        self.write_deadline.take();
    }

    /// Lets small writes leave at once, if the location asks for that (`tcp_nodelay`).
    pub(super) fn send_at_once(&self, core: &Location) {
        if core.send.tcp_nodelay {
            self.transport.socket().set_nodelay();
        }
    }

    /// Makes the close a reset, if the location asks for that (`reset_timedout_connection`).
    pub(super) fn set_reset_on_close(&self, core: &Location) {
        if core.send.reset_timedout_connection {
            // A plain close does as well, only later.
            let _ = self.transport.socket().reset_on_close();
        }
    }
}

/// Waits for `ready`, unless the time is over first.
async fn within(
    mut elapsed: impl FnMut(&mut Context<'_>) -> Poll<()>,
    mut ready: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
) -> Result<(), SocketWaitError> {
    poll_fn(|cx| {
        if let Poll::Ready(ready) = ready(cx) {
            return Poll::Ready(ready.map_err(SocketWaitError::Io));
        }
        elapsed(cx).map(|()| Err(SocketWaitError::Timeout))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_times_are_whole_milliseconds() {
        let time = IdleTime::default();
        assert_eq!(time.get(), Duration::ZERO);
        for (set, expected) in [
            (Duration::from_secs(75), Duration::from_secs(75)),
            (Duration::from_millis(1), Duration::from_millis(1)),
            (Duration::from_nanos(1), Duration::from_millis(1)),
            (Duration::MAX, Duration::from_millis(u32::MAX.into())),
        ] {
            time.set(set);
            assert_eq!(time.get(), expected, "{set:?}");
        }
    }

    /// A quarter of what an idle connection costs: 176 bytes with the counters of its `Rc`, in a block of 192. The timer of its deadline is in
    /// it and has no block of its own.
    #[test]
    fn connection_is_small() {
        assert!(size_of::<Http1Connection>() <= 160, "{}", size_of::<Http1Connection>());
    }
}
