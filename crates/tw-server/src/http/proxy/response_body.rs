//! The body of a response as it comes from an upstream server: pulled by whoever writes to the client, and, if buffering is on,
//! read ahead of a client that is slower than the server.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_base::memory::{self, MemoryHolder};
use tw_connect::failure::{AttemptStage, UpstreamFailure};
use tw_connect::group::now_ms;
use tw_connect::read_rate::ReadRate;
use tw_connect::reading::{READ_SIZE, read_some};
use tw_connect::upstream_connection::ReadOutcome;
use tw_log::Level;
use tw_rt::Deadline;
use tw_upstream::PeerOutcome;

use super::codec::{Codec, Event};
use super::exchange::Exchange;
use super::response_buffer::{Capacity, ResponseBuffer, SpillTarget};
use super::send_request::ReturnedBody;
use super::warnings::log_warnings;
use crate::event_loop::Loop;
use crate::http::body::{AlreadyLogged, Pull};
use crate::http::cache::{BodyOrigin, BodyReport};
use crate::http::memory_share::{Hold, MemoryShare};
use crate::http::plan::{LocalFuture, boxed};
use crate::http::request::Request;
use crate::http::upstream_response::{UpstreamResponse, Warning};

/// A response that is still coming.
pub(super) struct ResponseBody<C: Codec> {
    /// Set while a reader without a request at hand waits for the next piece.
    is_awaited: bool,
    /// Set if it ends when the client goes away.
    is_for_client: bool,
    event_loop: Rc<Loop>,
    /// `None` once the server has nothing more to say.
    exchange: Option<Exchange<C>>,
    /// Outcome of the exchange, until the request has been told.
    ended: Option<ExchangeEnd>,
    remaining: Option<u64>,
    read_timeout: Duration,
    /// Rate limit of reading.
    rate: Option<ReadRate>,
    ahead: Option<ReadAhead>,
    /// Time of the next look at the memory, while nothing is read for want of it.
    next_look: Deadline,
    /// Begin of that time.
    paused_since: Option<Instant>,
    /// Memory of a response that goes into a cache.
    fill: Option<FillMemory>,
    trailers: UpstreamResponse,
}

/// Outcome of an exchange.
struct ExchangeEnd {
    result: Result<(), UpstreamFailure>,
    sent: u64,
    received: u64,
    took: Option<Duration>,
    /// Bytes came behind the end.
    excess: bool,
    /// Rest of the request body.
    body: Option<ReturnedBody>,
}

/// Time between two looks at the memory while nothing is read for want of it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest time without a read for want of memory.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Bytes of one read while memory is tight.
const READ_TIGHT: usize = 16 << 10;
/// Bytes of one read while it is less than that.
const READ_SCARCE: usize = 4 << 10;

/// Bytes of one read that fills a buffer, however little room is left in it.
const READ_MIN: usize = 4 << 10;

/// Memory of a response that goes into a cache: the pieces that are read, written, and on their way to clients.
const FILL_SIZE: isize = 64 << 10;

/// Counts a response that goes into a cache as long as it lives.
struct FillMemory;

impl FillMemory {
    fn new() -> Self {
        memory::count_held(MemoryHolder::Cache, FILL_SIZE);
        Self
    }
}

impl Drop for FillMemory {
    fn drop(&mut self) {
        memory::count_held(MemoryHolder::Cache, -FILL_SIZE);
    }
}

/// State of reading ahead of the client.
struct ReadAhead {
    backlog: ResponseBuffer,
    memory_max: usize,
    /// Memory of the bytes that wait, since the client was late.
    memory: Hold,
    /// Bytes of the last piece, which the client may not have taken.
    last_piece: usize,
    room: Option<SpillTarget>,
    /// For the request, which is not at hand while the body is read ahead.
    warnings: Vec<String>,
    has_spilled: bool,
    /// Nothing was read for want of room since the last read: the server is not late.
    has_rested: bool,
}

impl<C: Codec> ResponseBody<C> {
    /// The body of `exchange`. With `buffers`, bytes of memory and where more may go, it is read ahead of a slow client.
    pub(super) fn new(
        event_loop: Rc<Loop>,
        exchange: Exchange<C>,
        read_timeout: Duration,
        rate: Option<ReadRate>,
        buffers: Option<(usize, Option<SpillTarget>)>,
        memory_share: Option<&Rc<MemoryShare>>,
    ) -> Self {
        let remaining = exchange.codec.remaining();
        let ahead = buffers.map(|(memory_max, room)| ReadAhead {
            backlog: ResponseBuffer::default(),
            memory_max,
            memory: Hold::new(memory_share, 0),
            last_piece: 0,
            room,
            warnings: Vec::new(),
            has_spilled: false,
            has_rested: false,
        });
        let trailers = UpstreamResponse::default();
        Self {
            is_awaited: false,
            is_for_client: false,
            event_loop,
            exchange: Some(exchange),
            ended: None,
            remaining,
            read_timeout,
            rate,
            ahead,
            next_look: Deadline::new(),
            paused_since: None,
            fill: None,
            trailers,
        }
    }

    /// Ends the response when the client goes away.
    #[must_use]
    pub(super) fn for_client(mut self) -> Self {
        self.is_for_client = true;
        self
    }

    async fn piece(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        let waited = match &mut self.ahead {
            Some(ahead) => {
                for warning in ahead.warnings.drain(..) {
                    r.log(Level::Warn, format_args!("{warning}"));
                }
                ahead.backlog.pop(want).await
            }
            None => Ok(None),
        };
        let next = match waited {
            Ok(Some(piece)) => Some(piece),
            Ok(None) => {
                if let Some(exchange) = &self.exchange {
                    exchange.connection.begin_reading(self.read_timeout);
                }
                let is_for_client = self.is_for_client;
                let next = pin!(poll_fn(|cx| self.poll_next(read_max(), cx)));
                if !is_for_client {
                    next.await
                } else {
                    match r.wire().clone().unless_gone(next).await {
                        Ok(next) => next,
                        Err(gone) => {
                            let message = format_args!("{gone}, so upstream connection is closed too");
                            r.log(Level::Info, message);
                            return Err(io::Error::other(AlreadyLogged));
                        }
                    }
                }
            }
            Err(error) => {
                r.log(Level::Crit, format_args!("{error} while reading upstream"));
                return Err(io::Error::other(AlreadyLogged));
            }
        };
        log_warnings(r, self.warnings(), AttemptStage::ReadingBody);
        // Bytes received before a failure are passed to the client first; the failure is reported when the next piece
        // is asked for.
        let is_whole = self.ended.as_ref().is_none_or(|ended| ended.result.is_ok());
        if next.is_none() || is_whole {
            self.report(r)?;
        }
        if let Some(piece) = &next {
            if let Some(ahead) = &mut self.ahead {
                ahead.backlog.taken(piece.len());
                ahead.last_piece = piece.len();
                // The backlog has shrunk, so the client may have caught up.
                ahead.memory.set(ahead.backlog.len());
            }
            self.remaining = self.remaining.map(|left| left.saturating_sub(piece.len() as u64));
            if let Some(attempt) = r.upstream.current() {
                attempt.length += piece.len() as u64;
                if let Some(exchange) = &self.exchange {
                    (attempt.sent, attempt.received) = exchange.connection.traffic();
                }
            }
        }
        Ok(next)
    }

    /// The next piece, for which at most `max` bytes are read at once; `None` when the server has nothing more to say, however that
    /// came.
    fn poll_next(&mut self, max: usize, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(exchange) = &mut self.exchange else { return Poll::Ready(None) };
        let reading = Reading { max, timeout: self.read_timeout, rate: self.rate.as_mut() };
        match ready!(poll_exchange(exchange, &self.event_loop, &mut self.trailers, reading, cx)) {
            Ok(Some(piece)) => {
                // The end is noted with the last piece, because the next one may never be asked for.
                if exchange.codec.ends(&mut exchange.input, &mut self.trailers) {
                    self.end(Ok(()));
                }
                Poll::Ready(Some(piece))
            }
            Ok(None) => {
                self.end(Ok(()));
                Poll::Ready(None)
            }
            Err(failure) => {
                self.end(Err(failure));
                Poll::Ready(None)
            }
        }
    }

    /// Ready unless memory is exhausted. After some time it is ready all the same: a response without progress would never give its
    /// memory back.
    fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = tw_rt::clock::now();
        let since = *self.paused_since.get_or_insert(now);
        let is_over = now.saturating_duration_since(since) >= PAUSE_MAX;
        if is_over || memory::level() < memory::MemoryLevel::Exhausted {
            self.paused_since = None;
            return Poll::Ready(());
        }
        self.next_look.set(LOOK_EVERY);
        // The deadline has just been set, and this poll lets it wake the task.
        let _ = self.next_look.poll_elapsed(cx);
        Poll::Pending
    }

    /// Takes the warnings collected since the last call.
    fn warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.trailers.warnings)
    }

    fn end(&mut self, result: Result<(), UpstreamFailure>) {
        if let Some(exchange) = self.exchange.take() {
            self.ended = Some(end(exchange, &self.event_loop, result));
        }
    }

    /// Tells the request how the exchange has ended, once its client has what came before.
    fn report(&mut self, r: &mut Request) -> io::Result<()> {
        let is_told = self.ahead.as_ref().is_none_or(|ahead| ahead.backlog.is_empty());
        let Some(ended) = self.ended.take_if(|_| is_told) else { return Ok(()) };
        std::mem::swap(&mut r.upstream.answer.trailers, &mut self.trailers.trailers);
        ended.report(r).map_err(|_| io::Error::other(AlreadyLogged))
    }
}

/// Counts the traffic of a response that is abandoned.
impl<C: Codec> Drop for ResponseBody<C> {
    fn drop(&mut self) {
        if let Some(exchange) = &self.exchange {
            let (sent, received) = exchange.connection.traffic();
            exchange.lease.sent(sent);
            exchange.lease.received(received);
        }
    }
}

impl<C: Codec> Pull for ResponseBody<C> {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        boxed(|| self.piece(want, r))
    }

    fn remaining(&self) -> Option<u64> {
        // Once all of it is known to be complete, the caller of the last piece need not ask for the end.
        let is_told = self.exchange.is_none() && self.ended.is_none();
        match &self.ahead {
            Some(ahead) if !ahead.backlog.is_empty() => self.remaining,
            _ if is_told => Some(0),
            _ => self.remaining,
        }
    }

    fn flushes(&self) -> bool {
        self.ahead.is_none()
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        if let Some(exchange) = &mut self.exchange {
            // Whether or not the response is read, the server gets the rest of its request, or learns that there is
            // none.
            exchange.sending.drive(cx);
            if exchange.sending.has_failed() {
                return self.end(Err(UpstreamFailure::Unsent));
            }
        }
        loop {
            let Some(ahead) = &mut self.ahead else { return };
            ahead.memory.set(ahead.last_piece + ahead.backlog.len());
            // While memory is tight nothing is read ahead into memory, and the backlog goes to the temporary file.
            let memory_max =
                if memory::level() == memory::MemoryLevel::Plenty { ahead.memory_max } else { 0 };
            let has_room = match &ahead.room {
                Some(room) => match ahead.backlog.poll_room(memory_max, room, cx) {
                    Ok(Capacity::Room) => true,
                    Ok(Capacity::Full) => false,
                    Err(error) => {
                        // Without a file the client gets the response as fast as it can take it, which is what happens
                        // from now on.
                        ahead.warnings.push(format!(
                            "{error} while buffering upstream response, which goes on unbuffered"
                        ));
                        ahead.room = None;
                        false
                    }
                },
                None => ahead.backlog.len() < memory_max,
            };
            let max = memory_max.saturating_sub(ahead.backlog.len()).clamp(READ_MIN, READ_SIZE);
            if !ahead.has_spilled && ahead.backlog.has_file() {
                ahead.has_spilled = true;
                ahead.warnings.push("an upstream response is buffered to a temporary file".to_owned());
            }
            let Some(exchange) = &self.exchange else { return };
            if !has_room {
                ahead.has_rested = true;
                return;
            }
            if std::mem::take(&mut ahead.has_rested) {
                exchange.connection.begin_reading(self.read_timeout);
            }
            if !self.event_loop.budget.may_copy(0) {
                return cx.waker().wake_by_ref();
            }
            match self.poll_next(max, cx) {
                Poll::Ready(Some(piece)) => {
                    let _ = self.event_loop.budget.may_copy(piece.len());
                    if let Some(ahead) = &mut self.ahead {
                        ahead.backlog.push(piece);
                    }
                }
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }
}

impl<C: Codec> BodyOrigin for ResponseBody<C> {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.fill.get_or_insert_with(FillMemory::new);
        // Reads for a cache are ahead of its clients.
        if self.exchange.is_some() && self.poll_memory(cx).is_pending() {
            // The server is not late meanwhile.
            self.is_awaited = false;
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.is_awaited, true)
            && let Some(exchange) = &self.exchange
        {
            exchange.connection.begin_reading(self.read_timeout);
        }
        let piece = ready!(self.poll_next(read_max(), cx));
        self.is_awaited = false;
        Poll::Ready(piece)
    }

    fn end(&mut self) -> BodyReport {
        let warnings = self.warnings().into_iter();
        let warnings = warnings
            .map(|said| (said.level, format!("{} {}", said.text, AttemptStage::ReadingBody)))
            .collect();
        let Some(ended) = self.ended.take() else {
            return BodyReport { result: Ok(()), warnings, sent: 0, received: 0, took: None };
        };
        let result = match ended.result {
            Ok(()) => Ok(()),
            // For a request that has ended by now, only this message says that the response was cut.
            Err(failure) => {
                let level = failure.level().unwrap_or(Level::Info);
                Err((level, failure.line(AttemptStage::ReadingBody).to_string()))
            }
        };
        BodyReport { result, warnings, sent: ended.sent, received: ended.received, took: ended.took }
    }
}

/// Bytes read at once for a client that takes them.
fn read_max() -> usize {
    match memory::level() {
        memory::MemoryLevel::Plenty => READ_SIZE,
        memory::MemoryLevel::Tight => READ_TIGHT,
        memory::MemoryLevel::Scarce | memory::MemoryLevel::Exhausted => READ_SCARCE,
    }
}

/// Limits of reading from an upstream server.
struct Reading<'a> {
    /// Bytes of one read.
    max: usize,
    timeout: Duration,
    rate: Option<&'a mut ReadRate>,
}

/// The next piece of a body; `None` at the end. Sends on what is left of the request meanwhile.
fn poll_exchange<C: Codec>(
    exchange: &mut Exchange<C>,
    event_loop: &Loop,
    answer: &mut UpstreamResponse,
    reading: Reading<'_>,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Bytes>, UpstreamFailure>> {
    let Reading { max, timeout, mut rate } = reading;
    let Exchange { connection, codec, input, sending, .. } = exchange;
    sending.drive(cx);
    if sending.has_failed() {
        return Poll::Ready(Err(UpstreamFailure::Unsent));
    }
    let mut read_len = 0;
    loop {
        match codec.read(input, answer)? {
            Event::Body(piece) => return Poll::Ready(Ok(Some(piece))),
            Event::End => return Poll::Ready(Ok(None)),
            Event::NeedMore | Event::Interim | Event::Head => {}
        }
        // The bytes read held nothing of the body, such as chunk framing. An upstream server may send any number of
        // them, so other tasks get their turn.
        if read_len > 0 && !event_loop.budget.may_copy(read_len) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let room = match &mut rate {
            Some(rate) => {
                let room = ready!(rate.poll_room(cx));
                // The server is not late while the rate limit stops reading.
                if rate.has_paused() {
                    connection.begin_reading(timeout);
                }
                room.min(max)
            }
            None => max,
        };
        let (read, came) = read_some(&event_loop.buffers, connection, room)?;
        if let Some(rate) = &mut rate {
            rate.count(came.len());
        }
        match read {
            ReadOutcome::Some => {
                read_len = came.len();
                *input = came;
                connection.begin_reading(timeout);
            }
            ReadOutcome::Nothing => ready!(connection.poll_readable(cx))?,
            ReadOutcome::Closed => return Poll::Ready(codec.closed().map(|()| None)),
        }
    }
}

/// Returns the body if all of it is at hand.
pub(super) fn take_whole<C: Codec>(
    exchange: &mut Exchange<C>,
    r: &mut Request,
) -> Result<Option<Bytes>, UpstreamFailure> {
    let answer = &mut r.upstream.answer;
    let whole = exchange.codec.whole(&mut exchange.input, answer);
    let warnings = std::mem::take(&mut answer.warnings);
    log_warnings(r, warnings, AttemptStage::ReadingBody);
    whole
}

/// Ends an exchange whose response is complete, and notes its statistics in the request.
pub(super) fn finish<C: Codec>(exchange: Exchange<C>, r: &mut Request) {
    let event_loop = r.client().event_loop.clone();
    let status = r.upstream.answer.status;
    exchange.lease.status(status);
    let warnings = std::mem::take(&mut r.upstream.answer.warnings);
    log_warnings(r, warnings, AttemptStage::ReadingBody);
    // The report of a complete exchange is never an error.
    let _ = end(exchange, &event_loop, Ok(())).report(r);
}

/// Ends an exchange whose body is not needed: closes the connection unless the whole body is at hand.
pub(super) fn abandon<C: Codec>(mut exchange: Exchange<C>, r: &mut Request) {
    if matches!(take_whole(&mut exchange, r), Ok(Some(_))) {
        return finish(exchange, r);
    }
    let status = r.upstream.answer.status;
    exchange.lease.status(status);
    let sent = exchange.connection.sent.get();
    let received = exchange.connection.received.get();
    exchange.lease.sent(sent);
    exchange.lease.received(received);
    let Exchange { lease, sending, .. } = exchange;
    let _ = lease.done(PeerOutcome::Success, now_ms());
    sending.give_back(r);
    if let Some(attempt) = r.upstream.current() {
        attempt.end();
        (attempt.sent, attempt.received) = (sent, received);
    }
}

/// Ends an exchange: if its response is complete, its connection may serve the next one.
fn end<C: Codec>(
    exchange: Exchange<C>,
    event_loop: &Rc<Loop>,
    result: Result<(), UpstreamFailure>,
) -> ExchangeEnd {
    let Exchange { connection, lease, codec, input, sending, pool_key, keepalive, begun, session, retry } =
        exchange;
    let sent = connection.sent.get();
    let received = connection.received.get();
    lease.sent(sent);
    lease.received(received);
    let peer = lease.peer().id();
    let has_failed = result.as_ref().is_err_and(|failure| !failure.is_local());
    let _ = lease.done(if has_failed { PeerOutcome::Failed } else { PeerOutcome::Success }, now_ms());
    drop(retry);
    let is_sent = sending.is_sent();
    let excess = result.is_ok() && !input.is_empty();
    let body = sending.end();
    if result.is_err()
        && let Some(session) = session
    {
        session.forget();
    }
    if result.is_ok() && !excess && is_sent && codec.keeps_alive() {
        connection.requests.set(connection.requests.get() + 1);
        event_loop.upstreams.keep(&pool_key, peer, connection, &keepalive);
    }
    let took = Some(tw_rt::clock::now().saturating_duration_since(begun));
    ExchangeEnd { result, sent, received, took, excess, body }
}

impl ExchangeEnd {
    fn report(self, r: &mut Request) -> Result<(), ()> {
        if let Some(body) = self.body {
            body.give_back(r);
        }
        if let Some(attempt) = r.upstream.current() {
            attempt.ended = self.took;
            (attempt.sent, attempt.received) = (self.sent, self.received);
        }
        if self.excess {
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
