//! Requests of one connection, and the time between them, in which the connection is idle.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tw_base::memory::MemoryHolder;
use tw_core::event_loop::{EvictableConnection, LevelGuard, LoopCounter};
use tw_rt::watch::Subject;
use tw_rt::{Deadline, Panicked, TaskSet};

use super::serve_request::serve_request;
use super::stream_end::refuse;
use super::{ConnectionSettings, ReceivedHead, RequestStream, StreamProtocol};
use crate::admission::{self, Admission, LOOK_EVERY, Verdict};
use tw_phases::lifecycle;
use tw_request::client::Client;
use tw_request::local_future::{LocalFuture, boxed};

/// Requests of a connection. One that has to wait is a task of its own.
pub(crate) struct ConnectionRequests<'c> {
    client: &'c Client,
    settings: &'c ConnectionSettings,
    tasks: TaskSet<(), ()>,
    /// Requests that wait for memory, the oldest first.
    held_back: VecDeque<HeldBack<'c>>,
    /// Time of the next look at the memory.
    next_look: Deadline,
    idle: Option<Idle<'c>>,
    /// Time until which the connection may be idle.
    deadline: Deadline,
}

/// A request that waits for memory, of which nothing was done.
struct HeldBack<'c> {
    since: Instant,
    protocol: MemoryHolder,
    /// Begins to serve it, or refuses it.
    decide: Box<dyn FnOnce(Admission) -> Option<LocalFuture<'static, ()>>>,
    _waiting: LevelGuard<'c>,
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
        Self {
            client,
            settings,
            tasks: TaskSet::default(),
            held_back: VecDeque::new(),
            next_look: Deadline::new(),
            idle: None,
            deadline: Deadline::new(),
        }
    }

    /// Counts a request that begins. Returns true if it is the last one that the connection may have.
    pub(crate) fn count_request(&mut self, protocol: &StreamProtocol) -> bool {
        self.end_idle();
        let client = self.client;
        let keepalive = &self.settings.keepalive;
        lifecycle::count_request(client, protocol.counted_as);
        keepalive.timeout.is_zero()
            || client.requests.get() >= keepalive.requests
            || tw_rt::clock::now().saturating_duration_since(client.accepted) > keepalive.time
    }

    /// Begins to answer a request, once there is memory for it and for those before it.
    pub(crate) fn serve<S>(&mut self, stream: Rc<S>, head: ReceivedHead, cx: &mut Context<'_>)
    where
        S: RequestStream + 'static,
    {
        let client = self.client;
        let protocol = S::PROTOCOL.holder;
        match admission::verdict(client, protocol) {
            Verdict::Begin if self.held_back.is_empty() => {
                let memory = admission::hold_request(client, protocol);
                self.begin(boxed(|| serve_request(stream, head, memory)), cx);
            }
            Verdict::Begin | Verdict::Wait => {
                let memory_share = client.memory_share(protocol).cloned();
                let decide = move |admission| match admission {
                    Admission::Admitted => {
                        let memory = admission::hold_of(memory_share.as_ref());
                        Some(boxed(|| serve_request(stream, head, memory)) as LocalFuture<'static, ()>)
                    }
                    Admission::Refused => {
                        refuse(&*stream);
                        None
                    }
                };
                let waiting: &'c LoopCounter = &client.event_loop.tally.memory_waiting;
                self.held_back.push_back(HeldBack {
                    since: tw_rt::clock::now(),
                    protocol,
                    decide: Box::new(decide),
                    _waiting: LevelGuard::new(waiting),
                });
            }
            Verdict::Refuse => {
                admission::count_refused(client);
                refuse(&*stream);
            }
        }
    }

    /// Serves or refuses requests that wait for memory, in their order. Called in each turn of the connection, after its requests
    /// have begun.
    pub(crate) fn serve_held_back(&mut self, cx: &mut Context<'_>) {
        while let Some(first) = self.held_back.front() {
            let admission = match admission::verdict_after(self.client, first.protocol, first.since) {
                Verdict::Begin => Admission::Admitted,
                Verdict::Refuse => Admission::Refused,
                Verdict::Wait => {
                    self.next_look.set(LOOK_EVERY);
                    // The deadline has just been set, and this poll lets it wake the task.
                    let _ = self.next_look.poll_elapsed(cx);
                    return;
                }
            };
            let Some(HeldBack { decide, .. }) = self.held_back.pop_front() else { return };
            match decide(admission) {
                Some(answering) => self.begin(answering, cx),
                None => admission::count_refused(self.client),
            }
        }
    }

    fn begin(&mut self, mut answering: LocalFuture<'static, ()>, cx: &mut Context<'_>) {
        let client = self.client;
        // Most requests never wait and need no task. But the requests of one client must not precede those of all
        // others.
        if client.event_loop.budget.may_copy(0) && answering.as_mut().poll(cx).is_ready() {
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

    /// Returns true if no request is a task, or waits to become one.
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.held_back.is_empty()
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
        let event_loop = &self.client.event_loop;
        let waiting: &'c LoopCounter = &event_loop.tally.waiting;
        self.deadline.set(timeout);
        self.tasks.shrink();
        self.held_back.shrink_to_fit();
        self.idle = Some(Idle {
            evictable: EvictableConnection::new(&event_loop.connections, &self.client.slot),
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
        self.held_back.clear();
        while !self.is_empty() {
            let _ = poll_fn(|cx| self.tasks.poll_ended(cx)).await;
        }
    }
}
