//! An exchange with an upstream server, from its connection to the end of its response, and the ways in which it ends.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_connect::failure::{AttemptStage, UpstreamFailure};
use tw_connect::group::now_ms;
use tw_connect::keepalive_pool::{KeepaliveSettings, PoolKey};
use tw_connect::upstream_connection::UpstreamConnection;
use tw_log::Level;
use tw_upstream::{Lease, PeerOutcome, RetryPermit};

use super::codec::Codec;
use super::send_request::{RequestSender, ReturnedBody};
use super::warnings::log_warnings;
use tw_request::event_loop::Loop;
use tw_request::request::Request;
use tw_request::sticky::PendingSession;

/// An exchange of one attempt. It stays in one place until its response is made: whoever cancels the attempt finds it there.
pub(super) struct Exchange<C> {
    pub(super) connection: Rc<UpstreamConnection>,
    pub(super) lease: Lease,
    pub(super) codec: C,
    /// Bytes read behind the head and not parsed yet.
    pub(super) input: Bytes,
    /// The request, which may still be under way.
    pub(super) sending: RequestSender,
    /// Key under which the connection is kept once the exchange is over.
    pub(super) pool_key: PoolKey,
    pub(super) keepalive: KeepaliveSettings,
    /// Time at which the server was chosen.
    pub(super) begun: Instant,
    /// Session of `sticky learn` to be stored when the exchange ends.
    pub(super) session: Option<Box<PendingSession>>,
    /// Permit of a retry, which lasts as long as the exchange.
    pub(super) retry: Option<RetryPermit>,
}

/// An exchange that is over. The request learns its outcome by [`report`](Self::report).
pub(super) struct EndedExchange {
    pub(super) result: Result<(), UpstreamFailure>,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Time since the server was chosen.
    pub(super) took: Duration,
    /// Bytes came behind the end.
    has_excess: bool,
    /// Rest of the request body.
    body: Option<ReturnedBody>,
}

impl<C> Exchange<C> {
    /// Cancels the exchange of a client that is gone: records its traffic and gives the body back.
    pub(super) fn cancel(self, r: &mut Request) {
        let Self { connection, lease, sending, .. } = self;
        record_traffic(r, &connection);
        let (sent, received) = connection.traffic();
        lease.sent(sent);
        lease.received(received);
        sending.give_back(r);
    }
}

impl<C: Codec> Exchange<C> {
    /// Takes the body if all of it is at hand.
    pub(super) fn take_whole(&mut self, r: &mut Request) -> Result<Option<Bytes>, UpstreamFailure> {
        let answer = &mut r.upstream.answer;
        let whole = self.codec.whole(&mut self.input, answer);
        let warnings = std::mem::take(&mut answer.warnings);
        log_warnings(r, warnings, AttemptStage::ReadingBody);
        whole
    }

    /// Ends the exchange after a complete response, and records its statistics in the request.
    pub(super) fn finish(self, r: &mut Request) {
        let event_loop = r.client().event_loop.clone();
        self.lease.status(r.upstream.answer.status);
        let warnings = std::mem::take(&mut r.upstream.answer.warnings);
        log_warnings(r, warnings, AttemptStage::ReadingBody);
        // The report of a complete exchange is never an error.
        let _ = self.end(&event_loop, Ok(())).report(r);
    }

    /// Ends the exchange without its body: closes the connection unless the whole body is at hand.
    pub(super) fn abandon(mut self, r: &mut Request) {
        if matches!(self.take_whole(r), Ok(Some(_))) {
            return self.finish(r);
        }
        let Self { connection, lease, sending, .. } = self;
        let (sent, received) = connection.traffic();
        lease.status(r.upstream.answer.status);
        lease.sent(sent);
        lease.received(received);
        let _ = lease.done(PeerOutcome::Success, now_ms());
        sending.give_back(r);
        if let Some(attempt) = r.upstream.current() {
            attempt.end();
            (attempt.sent, attempt.received) = (sent, received);
        }
    }

    /// Ends the exchange: if its response is complete, its connection may serve the next one.
    pub(super) fn end(self, event_loop: &Rc<Loop>, result: Result<(), UpstreamFailure>) -> EndedExchange {
        let Self { connection, lease, codec, input, sending, pool_key, keepalive, begun, session, retry } =
            self;
        let (sent, received) = connection.traffic();
        lease.sent(sent);
        lease.received(received);
        let peer = lease.peer().id();
        let has_failed = result.as_ref().is_err_and(|failure| !failure.is_local());
        let outcome = if has_failed { PeerOutcome::Failed } else { PeerOutcome::Success };
        let _ = lease.done(outcome, now_ms());
        drop(retry);
        let is_sent = sending.is_sent();
        let has_excess = result.is_ok() && !input.is_empty();
        let body = sending.end();
        if result.is_err()
            && let Some(session) = session
        {
            session.forget();
        }
        if result.is_ok() && !has_excess && is_sent && codec.keeps_alive() {
            connection.requests.set(connection.requests.get() + 1);
            event_loop.upstreams.keep(&pool_key, peer, connection, &keepalive);
        }
        let took = tw_rt::clock::now().saturating_duration_since(begun);
        EndedExchange { result, sent, received, took, has_excess, body }
    }
}

impl EndedExchange {
    /// Records the outcome in the request; the error log has the failure then.
    pub(super) fn report(self, r: &mut Request) -> Result<(), ()> {
        if let Some(body) = self.body {
            body.give_back(r);
        }
        if let Some(attempt) = r.upstream.current() {
            attempt.ended = Some(self.took);
            (attempt.sent, attempt.received) = (self.sent, self.received);
        }
        if self.has_excess {
            let stage = AttemptStage::ReadingBody;
            r.log(
                Level::Warn,
                format_args!("upstream sent more data than specified in \"Content-Length\" header {stage}"),
            );
        }
        self.result.map_err(|failure| {
            if let Some(level) = failure.level() {
                r.log(level, format_args!("{}", failure.line(AttemptStage::ReadingBody)));
            }
            r.upstream.record_failure(failure.cause());
        })
    }
}

/// Records the bytes sent and received so far for the variables and the log.
pub(super) fn record_traffic(r: &mut Request, connection: &UpstreamConnection) {
    if let Some(attempt) = r.upstream.current() {
        (attempt.sent, attempt.received) = connection.traffic();
    }
}
