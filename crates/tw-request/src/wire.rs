//! Access of a request to its client. Each protocol implements it for the connection or the stream by which a request came.
//!
//! Phases, plans, filters, logs and modules do not depend on the protocol. A subrequest shares the wire of its client, to learn
//! when the client is gone; its response is pulled by its parent instead of being sent. Background requests have no wire.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_base::memory::MemoryHolder;
use tw_net::{Addr, TcpInfo};
use tw_rt::Deadline;

pub use super::client_gone::ClientGone;
use super::local_future::LocalFuture;

/// Access of requests of the type `R`, whose responses have bodies of the type `B`, to their client.
pub trait Wire<R, B> {
    /// Ready when the client is gone: it has closed its side or reset its stream, or the connection has failed.
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<ClientGone>;

    /// Begins a sleep, such as that of `limit_rate`; it replaces an earlier one.
    fn begin_sleep(&self, span: Duration);

    /// Ready at the end of the sleep.
    fn poll_sleep(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Sends the response to `r` with this body. Returns `None` if nothing has to be waited for any more, else the rest of the work.
    /// The request notes the result.
    fn send<'r>(self: Rc<Self>, r: &'r mut R, body: B) -> Option<LocalFuture<'r, ()>>;

    /// Sends the fields of the last upstream response as `103 Early Hints`, unless the client does not know such responses or its
    /// socket is full.
    fn inform(&self, r: &mut R);

    /// Transfer coding of the response to `r`; `None` if there is none.
    fn transfer_coding(&self, _r: &R) -> Option<&'static str> {
        None
    }

    /// Makes the close of the connection a reset, if the request has it for itself. Streams are reset anyway.
    fn reset_on_close(&self) {}

    /// Status in the access log of a request whose connection was cut before a head was sent.
    fn status_if_cut(&self) -> u16;

    /// Protocol for the account of memory.
    fn holder(&self) -> MemoryHolder;

    /// Address that the client connected to; `None` if it was recorded when the connection was accepted, or is unknown. One system call.
    fn local_addr(&self) -> Option<Addr>;

    /// Kernel data about a TCP connection, for `$tcpinfo_*`. One system call.
    fn tcp_info(&self) -> Option<TcpInfo>;
}

/// Wire of a request, or none: a background request, or `post_action` after the response.
pub struct OptionalWire<R, B>(Option<Rc<dyn Wire<R, B>>>);

impl<R, B> Clone for OptionalWire<R, B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R, B> OptionalWire<R, B> {
    /// No client.
    pub const NONE: Self = Self(None);

    /// Wire of a client's request.
    pub fn new(wire: Rc<dyn Wire<R, B>>) -> Self {
        Self(Some(wire))
    }

    /// The wire, if there is a client.
    pub fn get(&self) -> Option<&dyn Wire<R, B>> {
        self.0.as_deref()
    }

    /// Waits for `future`, unless the client goes away first: then the future is dropped.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn unless_gone<F: Future>(&self, future: F) -> Result<F::Output, ClientGone> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_gone(cx).map(Err),
        })
        .await
    }

    /// Sleeps, unless the client goes away meanwhile.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn sleep(&self, span: Duration) -> Result<(), ClientGone> {
        let Some(wire) = &self.0 else {
            let mut deadline = Deadline::new();
            deadline.set(span);
            deadline.elapsed().await;
            return Ok(());
        };
        wire.begin_sleep(span);
        poll_fn(|cx| match wire.poll_sleep(cx) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => wire.poll_gone(cx).map(Err),
        })
        .await
    }

    /// Sends the response to `r` with this body, or nothing without a client. The request notes the result.
    pub async fn send(self, r: &mut R, body: B) {
        if let Some(wire) = self.0
            && let Some(rest) = wire.send(r, body)
        {
            rest.await;
        }
    }

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<ClientGone> {
        match &self.0 {
            Some(wire) => wire.poll_gone(cx),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::io;
    use std::task::Waker;

    use super::*;

    /// Wire of requests that are the lists of what was done with them.
    #[derive(Default)]
    struct ScriptedWire {
        is_gone: Cell<bool>,
        sleeps: RefCell<Vec<Duration>>,
    }

    impl Wire<Vec<&'static str>, &'static str> for ScriptedWire {
        fn poll_gone(&self, _: &mut Context<'_>) -> Poll<ClientGone> {
            match self.is_gone.get() {
                true => Poll::Ready(ClientGone::new(io::ErrorKind::ConnectionReset.into())),
                false => Poll::Pending,
            }
        }

        fn begin_sleep(&self, span: Duration) {
            self.sleeps.borrow_mut().push(span);
        }

        fn poll_sleep(&self, _: &mut Context<'_>) -> Poll<()> {
            if self.sleeps.borrow().len() > 1 { Poll::Ready(()) } else { Poll::Pending }
        }

        fn send<'r>(
            self: Rc<Self>,
            r: &'r mut Vec<&'static str>,
            body: &'static str,
        ) -> Option<LocalFuture<'r, ()>> {
            r.push("head");
            (!body.is_empty()).then(|| Box::pin(async move { r.push(body) }) as LocalFuture<'r, ()>)
        }

        fn inform(&self, r: &mut Vec<&'static str>) {
            r.push("hints");
        }

        fn status_if_cut(&self) -> u16 {
            499
        }

        fn holder(&self) -> MemoryHolder {
            MemoryHolder::Http1
        }

        fn local_addr(&self) -> Option<Addr> {
            None
        }

        fn tcp_info(&self) -> Option<TcpInfo> {
            None
        }
    }

    fn poll<F: Future>(future: F) -> Poll<F::Output> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn future_is_dropped_when_the_client_is_gone() {
        let scripted = Rc::new(ScriptedWire::default());
        let wire = OptionalWire::new(scripted.clone());
        assert!(poll(wire.unless_gone(std::future::pending::<()>())).is_pending());
        scripted.is_gone.set(true);
        assert!(matches!(poll(wire.unless_gone(std::future::pending::<()>())), Poll::Ready(Err(_))));
        // A result that is ready wins.
        assert!(matches!(poll(wire.unless_gone(std::future::ready(5))), Poll::Ready(Ok(5))));
        let none = OptionalWire::<Vec<&'static str>, &'static str>::NONE;
        assert!(poll(none.unless_gone(std::future::pending::<()>())).is_pending());
    }

    #[test]
    fn sleep_ends_early_when_the_client_is_gone() {
        let scripted = Rc::new(ScriptedWire::default());
        let wire = OptionalWire::new(scripted.clone());
        assert!(poll(wire.sleep(Duration::from_secs(1))).is_pending());
        assert!(matches!(poll(wire.sleep(Duration::from_secs(2))), Poll::Ready(Ok(()))));
        assert_eq!(*scripted.sleeps.borrow(), [1, 2].map(Duration::from_secs));
        scripted.sleeps.borrow_mut().clear();
        scripted.is_gone.set(true);
        assert!(matches!(poll(wire.sleep(Duration::from_secs(3))), Poll::Ready(Err(_))));
    }

    #[test]
    fn response_is_sent_by_the_wire_or_not_at_all() {
        let mut r = Vec::new();
        let wire = OptionalWire::new(Rc::new(ScriptedWire::default()));
        assert!(poll(wire.clone().send(&mut r, "")).is_ready());
        assert!(poll(wire.send(&mut r, "body")).is_ready());
        assert!(poll(OptionalWire::NONE.send(&mut r, "body")).is_ready());
        assert_eq!(r, ["head", "head", "body"]);
    }
}
