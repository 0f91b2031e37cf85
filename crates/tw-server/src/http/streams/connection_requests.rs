//! Requests of one connection, and the time between them, in which the connection is idle.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_core::event_loop::{EvictableConnection, LevelGuard, LoopCounter};
use tw_rt::watch::Subject;
use tw_rt::{Deadline, Panicked, TaskSet};

use super::{BodyStream, ConnectionSettings, ReceivedHead, RequestStream, serve_request};
use crate::http::client::Client;
use crate::http::lifecycle;
use crate::http::wire::Wire;
use crate::metrics::HttpVersion;

/// Requests of a connection. One that has to wait is a task of its own.
pub(crate) struct ConnectionRequests<'c> {
    client: &'c Client,
    settings: &'c ConnectionSettings,
    tasks: TaskSet<(), ()>,
    idle: Option<Idle<'c>>,
    /// Time until which the connection may be idle.
    deadline: Deadline,
}

/// A connection that could be closed to make room, and is counted as waiting.
struct Idle<'c> {
    evictable: EvictableConnection<'c>,
    _waiting: LevelGuard<'c>,
}

/// End of the idle time of a connection without a new request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleEnd {
    /// The time is over.
    TimedOut,
    /// Other connections need the place.
    Evicted,
}

impl<'c> ConnectionRequests<'c> {
    /// No requests yet.
    pub(crate) fn new(client: &'c Client, settings: &'c ConnectionSettings) -> Self {
        Self { client, settings, tasks: TaskSet::default(), idle: None, deadline: Deadline::new() }
    }

    /// Counts a request that begins. Returns true if it is the last one that the connection may have.
    pub(crate) fn count_request(&mut self, version: HttpVersion) -> bool {
        self.end_idle();
        let (client, keepalive) = (self.client, &self.settings.keepalive);
        lifecycle::count_request(client, version);
        keepalive.timeout.is_zero()
            || client.requests.get() >= keepalive.requests
            || tw_rt::clock::now().saturating_duration_since(client.accepted) > keepalive.time
    }

    /// Begins to answer a request.
    pub(crate) fn serve<S>(&mut self, stream: Rc<S>, head: ReceivedHead, cx: &mut Context<'_>)
    where
        S: RequestStream + 'static,
        Wire: From<Rc<S>>,
        BodyStream: From<Rc<S>>,
    {
        let client = self.client;
        let mut answering: Pin<Box<dyn Future<Output = ()>>> = Box::pin(serve_request(stream, head));
        // Most requests never wait: they need no task. But the requests of one client do not go ahead of those of all others.
        if client.home.budget.may_copy(0) && answering.as_mut().poll(cx).is_ready() {
            return;
        }
        self.tasks.spawn((), Subject { kind: "request of connection", id: client.id }, answering);
    }

    /// Removes requests that have ended. Ready if one has panicked.
    pub(crate) fn poll_panicked(&mut self, cx: &mut Context<'_>) -> Poll<Panicked> {
        while let Poll::Ready(((), outcome)) = self.tasks.poll_ended(cx) {
            if let Err(panicked) = outcome {
                return Poll::Ready(panicked);
            }
        }
        Poll::Pending
    }

    /// Returns true if no request is a task.
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns true while the connection is idle.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle.is_some()
    }

    /// Time that the connection may be idle: until its first request, or for the next one.
    pub(crate) fn idle_timeout(&self) -> Duration {
        match self.client.requests.get() {
            0 => self.settings.header_timeout,
            _ => self.settings.keepalive.timeout,
        }
    }

    /// Makes the connection idle.
    pub(crate) fn begin_idle(&mut self, timeout: Duration) {
        let home = &self.client.home;
        let waiting: &'c LoopCounter = &home.tally.waiting;
        self.deadline.set(timeout);
        self.tasks.shrink();
        self.idle = Some(Idle {
            evictable: EvictableConnection::new(&home.connections, &self.client.slot),
            _waiting: LevelGuard::new(waiting),
        });
    }

    /// Ready when the connection has been idle for too long.
    pub(crate) fn poll_idle_end(&mut self, cx: &mut Context<'_>) -> Poll<IdleEnd> {
        let Some(idle) = &mut self.idle else { return Poll::Pending };
        let is_evicted = idle.evictable.poll_evicted(cx).is_ready();
        match self.deadline.poll_elapsed(cx) {
            Poll::Ready(()) => Poll::Ready(IdleEnd::TimedOut),
            Poll::Pending if is_evicted => Poll::Ready(IdleEnd::Evicted),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Ends the idle time.
    pub(crate) fn end_idle(&mut self) {
        self.idle = None;
    }

    /// Waits for the requests of a connection that has ended: each finds that its client is gone, and writes its line in the access
    /// log.
    pub(crate) async fn finish(&mut self) {
        while !self.is_empty() {
            let _ = poll_fn(|cx| self.tasks.poll_ended(cx)).await;
        }
    }
}
