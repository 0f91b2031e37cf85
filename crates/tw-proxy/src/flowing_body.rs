//! Third stage of a response: its body as it comes from an upstream server, pulled by whoever writes to the client or to a cache, and, if
//! buffering is on, read ahead of a client that is slower than the server.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_base::memory::{self, MemoryHolder};
use tw_connect::failure::{AttemptStage, UpstreamFailure};
use tw_connect::read_rate::ReadRate;
use tw_connect::reading::READ_SIZE;
use tw_log::Level;
use tw_rt::Deadline;

use super::codec::Codec;
use super::exchange::{EndedExchange, Exchange, record_traffic};
use super::read_ahead::{ReadAhead, ReadAheadTerms};
use super::read_piece::{Reading, poll_piece};
use super::warnings::log_warnings;
use tw_http_cache::{BodyOrigin, BodyReport};
use tw_request::body::{AlreadyLogged, Pull};
use tw_request::event_loop::Loop;
use tw_request::memory_share::MemoryShare;
use tw_request::plan::{LocalFuture, boxed};
use tw_request::request::Request;
use tw_request::upstream_response::{UpstreamResponse, Warning};

/// Terms on which a body is read.
pub(super) struct FlowTerms {
    /// Longest time for which the server may send nothing.
    pub(super) read_timeout: Duration,
    /// Bytes that are read in a second; `None` is no limit.
    pub(super) rate: Option<u64>,
    /// Size of the buffer, with which the body is read ahead of a slow client.
    pub(super) ahead: Option<ReadAheadTerms>,
    /// Set if the body ends when the client goes away.
    pub(super) is_for_client: bool,
}

/// A body that is still received.
pub(super) struct FlowingBody<C: Codec> {
    /// Set while a reader without a request at hand waits for the next piece.
    is_awaited: bool,
    /// Set if it ends when the client goes away.
    is_for_client: bool,
    event_loop: Rc<Loop>,
    /// `None` once the server has nothing more to send.
    exchange: Option<Exchange<C>>,
    /// Outcome of the exchange, until it is reported to the request.
    ended: Option<EndedExchange>,
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

/// Time between two looks at the memory while nothing is read for want of it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest time without a read for want of memory.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Bytes of one read while memory is tight.
const READ_TIGHT: usize = 16 << 10;
/// Bytes of one read while it is less than that.
const READ_SCARCE: usize = 4 << 10;

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

impl<C: Codec> FlowingBody<C> {
    /// The body of `exchange`.
    pub(super) fn new(
        event_loop: Rc<Loop>,
        exchange: Exchange<C>,
        terms: FlowTerms,
        memory_share: Option<&Rc<MemoryShare>>,
    ) -> Self {
        Self {
            is_awaited: false,
            is_for_client: terms.is_for_client,
            event_loop,
            remaining: exchange.codec.remaining(),
            ended: None,
            read_timeout: terms.read_timeout,
            rate: terms.rate.map(|rate| ReadRate::new(rate, exchange.input.len())),
            ahead: terms.ahead.map(|terms| ReadAhead::new(terms, memory_share)),
            exchange: Some(exchange),
            next_look: Deadline::new(),
            paused_since: None,
            fill: None,
            trailers: UpstreamResponse::default(),
        }
    }

    async fn piece(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        let buffered = match &mut self.ahead {
            Some(ahead) => ahead.pop(want, r).await,
            None => Ok(None),
        };
        let next = match buffered {
            Ok(Some(piece)) => Some(piece),
            Ok(None) => self.receive(r).await?,
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
                ahead.taken(piece.len());
            }
            self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(piece.len() as u64));
            if let Some(attempt) = r.upstream.current() {
                attempt.length += piece.len() as u64;
            }
            if let Some(exchange) = &self.exchange {
                record_traffic(r, &exchange.connection);
            }
        }
        Ok(next)
    }

    /// Waits for the next piece from the server. `None` if it has nothing more to send.
    async fn receive(&mut self, r: &mut Request) -> io::Result<Option<Bytes>> {
        if let Some(exchange) = &self.exchange {
            exchange.connection.begin_reading(self.read_timeout);
        }
        let is_for_client = self.is_for_client;
        let next = pin!(poll_fn(|cx| self.poll_next(read_max(), cx)));
        if !is_for_client {
            return Ok(next.await);
        }
        r.wire().clone().unless_gone(next).await.map_err(|client_gone| {
            r.log(Level::Info, format_args!("{client_gone}, so upstream connection is closed too"));
            io::Error::other(AlreadyLogged)
        })
    }

    /// The next piece, for which at most `max` bytes are read at once; `None` when the server has nothing more to say, however that
    /// came.
    fn poll_next(&mut self, max: usize, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(exchange) = &mut self.exchange else { return Poll::Ready(None) };
        let reading = Reading { max, timeout: self.read_timeout, rate: self.rate.as_mut() };
        match ready!(poll_piece(exchange, &self.event_loop, &mut self.trailers, reading, cx)) {
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
            self.ended = Some(exchange.end(&self.event_loop, result));
        }
    }

    /// Tells the request how the exchange has ended, once its client has what came before.
    fn report(&mut self, r: &mut Request) -> io::Result<()> {
        let is_told = self.ahead.as_ref().is_none_or(|ahead| ahead.is_empty());
        let Some(ended) = self.ended.take_if(|_| is_told) else { return Ok(()) };
        std::mem::swap(&mut r.upstream.answer.trailers, &mut self.trailers.trailers);
        ended.report(r).map_err(|_| io::Error::other(AlreadyLogged))
    }
}

/// Counts the traffic of a response that is abandoned.
impl<C: Codec> Drop for FlowingBody<C> {
    fn drop(&mut self) {
        if let Some(exchange) = &self.exchange {
            let (sent, received) = exchange.connection.traffic();
            exchange.lease.sent(sent);
            exchange.lease.received(received);
        }
    }
}

impl<C: Codec> Pull for FlowingBody<C> {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        boxed(|| self.piece(want, r))
    }

    fn remaining(&self) -> Option<u64> {
        // Once all of it is known to be complete, the caller of the last piece need not ask for the end.
        let is_told = self.exchange.is_none() && self.ended.is_none();
        match &self.ahead {
            Some(ahead) if !ahead.is_empty() => self.remaining,
            _ if is_told => Some(0),
            _ => self.remaining,
        }
    }

    fn flushes(&self) -> bool {
        self.ahead.is_none()
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        if let Some(exchange) = &mut self.exchange {
            // The upstream server gets the rest of its request even if its response is not read, or learns that there is
            // none.
            exchange.sending.drive(cx);
            if exchange.sending.has_failed() {
                return self.end(Err(UpstreamFailure::Unsent));
            }
        }
        loop {
            let Some(ahead) = &mut self.ahead else { return };
            let permit = ahead.poll_room(cx);
            let (Some(permit), Some(exchange)) = (permit, &self.exchange) else { return };
            if permit.is_after_rest {
                exchange.connection.begin_reading(self.read_timeout);
            }
            if !self.event_loop.budget.may_copy(0) {
                return cx.waker().wake_by_ref();
            }
            match self.poll_next(permit.max, cx) {
                Poll::Ready(Some(piece)) => {
                    let _ = self.event_loop.budget.may_copy(piece.len());
                    if let Some(ahead) = &mut self.ahead {
                        ahead.push(piece);
                    }
                }
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }
}

impl<C: Codec> BodyOrigin for FlowingBody<C> {
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
        BodyReport { result, warnings, sent: ended.sent, received: ended.received, took: Some(ended.took) }
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
