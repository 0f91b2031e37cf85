//! One HTTP/2 connection to an upstream server as its streams and the pool see it: state, permits and counters.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tw_http2::Connection;
use tw_net::{Addr, ConnectOptions};
use tw_upstream::PeerId;

use crate::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use crate::keepalive_settings::KeepaliveSettings;

/// Flow-control window of a connection: the sum of the windows of its streams, so that no stream waits for the reader of
/// another.
pub(super) const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS_MAX as u32;

/// Factor between the allowed size of a head and the limit on field lists, which counts more than names and values (RFC 9113
/// section 6.5.2).
pub(super) const FIELD_LIST_FACTOR: u32 = 2;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Requests that one connection of HTTP/2 to an upstream server carries at once, if the server allows as many.
    const STREAMS_MAX: usize = 100, count, "another connection is opened";
    /// Requests on one connection of HTTP/2 to an upstream server that clients abandon, beyond as many as are answered.
    ///
    /// Most resets on one connection beyond the number of its complete responses. After half of them, it takes no more
    /// requests.
    const RESETS_MAX: u64 = 100, count, "new requests use another connection from half of them on";
    /// Bytes of one response in HTTP/2 of an upstream server that were not taken yet.
    pub(super) const STREAM_WINDOW: u32 = 128 << 10, bytes, "the upstream server has to wait (flow control)";
    /// Bytes for an upstream server in HTTP/2 that wait for the socket.
    pub(super) const GATHERED_MAX: usize = 256 << 10, bytes, "no more of the bodies of requests is taken for it until some have left";
}

// DIFF(nginx): requests in HTTP/2 share connections.
/// One connection that carries many requests.
pub(crate) struct H2Connection {
    pub(super) peer: PeerId,
    pub(super) to: Addr,
    pub(super) options: ConnectOptions,
    /// Bytes of a head that its server was told.
    pub(super) list_size: u32,
    pub(super) is_secured: bool,
    pub(super) keepalive: KeepaliveSettings,
    pub(super) state: RefCell<ConnectionState>,
    pub(super) fate: Cell<Availability>,
    /// Permits that are leased.
    pub(super) permits: Cell<usize>,
    /// Requests that were sent.
    pub(super) requests: Cell<u64>,
    /// Requests that were answered.
    pub(super) answered: Cell<u64>,
    /// Requests that were reset before the end of their responses, less those with complete responses; 0 at least.
    pub(super) resets: Cell<u64>,
    /// Bytes that may have come of responses that nobody waited for any more.
    pub(super) unwanted: Cell<u64>,
    pub(super) opened: Instant,
    /// Tasks waiting until it is open.
    pub(super) waiting: RefCell<Vec<Waker>>,
    /// Waker of the connection task, to be woken when a permit is returned.
    pub(super) life: RefCell<Option<Waker>>,
}

/// State of a connection.
pub(super) enum ConnectionState {
    Opening,
    Open(Rc<Connection>),
    /// Could not be opened.
    Failed(Rc<UpstreamFailure>, AttemptStage),
    /// Closed, for this reason if it is known.
    Closed(Option<&'static str>),
}

/// Further use of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Availability {
    /// Takes requests.
    Useful,
    /// Takes no more requests, and is closed after the last one.
    Retired,
}

impl H2Connection {
    /// Most permits at once.
    pub(super) fn capacity(&self) -> usize {
        if self.fate.get() == Availability::Retired {
            return 0;
        }
        match &*self.state.borrow() {
            // The limits of the server are not known before its SETTINGS arrive; a request that it refuses is sent
            // again.
            ConnectionState::Opening => STREAMS_MAX,
            ConnectionState::Open(connection) if connection.is_open() => {
                let resets_left = RESETS_MAX.saturating_sub(self.resets.get());
                connection
                    .streams_max()
                    .min(usize::try_from(resets_left).unwrap_or(usize::MAX))
                    .min(STREAMS_MAX)
            }
            ConnectionState::Open(_) => 0,
            ConnectionState::Failed(..) | ConnectionState::Closed(_) => 0,
        }
    }

    /// Leases a permit, of which one must be free.
    pub(super) fn lease(self: &Rc<Self>) -> StreamPermit {
        self.permits.set(self.permits.get() + 1);
        self.requests.set(self.requests.get() + 1);
        let age = tw_rt::clock::now().saturating_duration_since(self.opened);
        if self.requests.get() >= self.keepalive.requests || age >= self.keepalive.time {
            self.retire();
        }
        StreamPermit(self.clone())
    }

    /// Counts the end of a request. Servers close connections with many resets, and with those the requests of other clients.
    pub(super) fn count_end(&self, response: ResponseState) {
        let resets = self.resets.get();
        self.resets.set(match response {
            ResponseState::Coming => resets + 1,
            ResponseState::Over => resets.saturating_sub(1),
        });
        if self.resets.get() >= RESETS_MAX / 2 {
            self.retire();
        }
    }

    /// No more requests are sent on it.
    pub(super) fn retire(&self) {
        self.fate.set(Availability::Retired);
        self.wake();
    }

    /// Registers the waker of the connection task.
    pub(super) fn set_waker(&self, waker: &Waker) {
        let mut life = self.life.borrow_mut();
        if !life.as_ref().is_some_and(|life| life.will_wake(waker)) {
            *life = Some(waker.clone());
        }
    }

    pub(super) fn wake(&self) {
        if let Some(life) = self.life.take() {
            life.wake();
        }
    }

    /// Returns true if a request with a permit can be sent now.
    pub(super) fn can_send(&self) -> bool {
        match &*self.state.borrow() {
            ConnectionState::Open(connection) => {
                connection.is_open() && connection.streams() < connection.streams_max()
            }
            _ => false,
        }
    }

    /// Marks it closed, for this reason if it is known.
    pub(super) fn close(&self, why: Option<&'static str>) {
        if matches!(*self.state.borrow(), ConnectionState::Opening | ConnectionState::Open(_)) {
            self.set_state(ConnectionState::Closed(why));
        }
    }

    /// Changes the state and wakes the tasks that wait for it.
    pub(super) fn set_state(&self, state: ConnectionState) {
        *self.state.borrow_mut() = state;
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Waits until it is open.
    pub(super) fn poll_open(&self, cx: &mut Context<'_>) -> Poll<Result<(), AttemptFailure>> {
        match &*self.state.borrow() {
            ConnectionState::Open(_) => Poll::Ready(Ok(())),
            ConnectionState::Failed(failure, stage) => {
                Poll::Ready(Err(UpstreamFailure::Shared(failure.clone()).at(*stage)))
            }
            ConnectionState::Closed(_) => {
                Poll::Ready(Err(UpstreamFailure::Closed.at(AttemptStage::Connecting)))
            }
            ConnectionState::Opening => {
                let mut waiting = self.waiting.borrow_mut();
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Reason for which the server closed it, if known.
    pub(super) fn close_reason(&self) -> Option<&'static str> {
        match &*self.state.borrow() {
            ConnectionState::Closed(why) => *why,
            _ => None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.permits.get() == 0
    }
}

/// Permit for one stream of a connection; dropping it returns it.
pub(crate) struct StreamPermit(pub(super) Rc<H2Connection>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let Self(h2_connection) = self;
        h2_connection.permits.set(h2_connection.permits.get().saturating_sub(1));
        if h2_connection.is_idle() {
            h2_connection.wake();
        }
    }
}

/// Progress of the response.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseState {
    Coming,
    Over,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(keepalive: KeepaliveSettings) -> Rc<H2Connection> {
        Rc::new(H2Connection {
            peer: PeerId(1),
            to: Addr::Unix(None),
            options: ConnectOptions::default(),
            list_size: 4096,
            is_secured: false,
            keepalive,
            state: RefCell::new(ConnectionState::Opening),
            fate: Availability::Useful.into(),
            permits: 0.into(),
            requests: 0.into(),
            answered: 0.into(),
            resets: 0.into(),
            unwanted: 0.into(),
            opened: tw_rt::clock::now(),
            waiting: RefCell::default(),
            life: RefCell::default(),
        })
    }

    #[test]
    fn half_of_the_allowed_resets_retire_a_connection() {
        let connection = connection(KeepaliveSettings::USUAL);
        (1..RESETS_MAX / 2).for_each(|_| connection.count_end(ResponseState::Coming));
        assert_eq!(connection.capacity(), STREAMS_MAX);
        // A complete response makes up for one that was reset.
        connection.count_end(ResponseState::Over);
        connection.count_end(ResponseState::Coming);
        assert_eq!(connection.capacity(), STREAMS_MAX);
        connection.count_end(ResponseState::Coming);
        assert_eq!(connection.capacity(), 0);
    }

    #[test]
    fn last_request_of_a_connection_retires_it() {
        let connection = connection(KeepaliveSettings { requests: 2, ..KeepaliveSettings::USUAL });
        let first = connection.lease();
        assert_eq!((connection.capacity(), connection.permits.get()), (STREAMS_MAX, 1));
        let second = connection.lease();
        assert_eq!((connection.capacity(), connection.permits.get()), (0, 2));
        drop(first);
        assert!(!connection.is_idle());
        drop(second);
        assert!(connection.is_idle());
    }

    #[test]
    fn closed_connection_has_no_room_and_keeps_the_first_reason() {
        let connection = connection(KeepaliveSettings::USUAL);
        connection.close(Some("shutdown"));
        connection.close(None);
        assert_eq!((connection.capacity(), connection.close_reason()), (0, Some("shutdown")));
        assert!(!connection.can_send());
    }
}
