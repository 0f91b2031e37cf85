//! A response as frames of its stream. The next piece of a body is asked for when the client may take some of it (its windows)
//! and the last one is not held up by the socket; it goes into frames as it is.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Response, StatusCode};
use tw_base::Limit;
use tw_http::{Method, status};
use tw_log::Level;

use super::{Exchange, head_out};
use crate::http::body::Body;
use crate::http::failure::Failure;
use crate::http::pace::Pace;
use crate::http::request::{After, Request};
use crate::http::respond;

/// Bytes of a response that may wait for the socket.
pub(super) const WAITING_MAX: usize = 64 << 10;
/// Small pieces that are there at once are put together up to so many bytes.
const GATHER_MAX: usize = 4 << 10;

pub(super) const LIMITS: &[Limit] = &[Limit::bytes(
    "WAITING_MAX",
    WAITING_MAX as u64,
    "Bytes of one response in HTTP/2 that wait for the socket of its connection",
    "no more of its body is made",
)];

/// Sends the response whose head is `r.out`.
pub(crate) async fn send(exchange: &Rc<Exchange>, r: &mut Request, body: Body) {
    match Box::pin(Sending::new(exchange, r).all(r, body)).await {
        Ok(()) => r.costs.sent.complete = true,
        Err(failure) => {
            r.course.after = After::Abort;
            failure.tell(r);
        }
    }
}

/// Sends early hints.
pub(crate) fn inform(exchange: &Exchange, r: &Request) {
    let Some(fields) = head_out::fields(&r.facts.upstream.answer.fields) else { return };
    let mut hints = Response::new(());
    *hints.status_mut() = StatusCode::EARLY_HINTS;
    *hints.headers_mut() = fields;
    exchange.inform(hints);
}

/// How a response is sent.
struct Sending {
    exchange: Rc<Exchange>,
    /// How long the client may take nothing.
    timeout: Duration,
    /// Content of one frame.
    chunk_size: usize,
    /// Bytes asked of a body at once.
    want: usize,
    /// What the head says of the length.
    promised: Option<u64>,
    sent: u64,
    pace: Option<Pace>,
    /// What went wrong with the body behind what was made of it.
    failed: Option<io::Error>,
}

/// A piece of a body, and whether it is the last one.
struct Piece {
    bytes: Bytes,
    is_last: bool,
}

impl Sending {
    fn new(exchange: &Rc<Exchange>, r: &Request) -> Self {
        let plan = r.plan();
        Self {
            exchange: exchange.clone(),
            timeout: plan.core.send.timeout,
            chunk_size: plan.chunk_size,
            want: plan.core.files.output_buffers.size.max(1),
            promised: None,
            sent: 0,
            pace: None,
            failed: None,
        }
    }

    async fn all(mut self, r: &mut Request, mut body: Body) -> Result<(), Failure> {
        if let Body::Upgraded(_) = body {
            // A stream cannot become another protocol (RFC 9113 section 8.6).
            r.log(Level::Error, format_args!("protocols cannot be switched in HTTP/2"));
            return Err(Failure::Body(io::Error::other(crate::http::body::Told)));
        }
        if status::has_no_body(r.out.status) {
            r.out.content_length = None;
            body = Body::Empty;
        }
        let is_head = r.method() == Method::Head;
        let mut first = None;
        if is_head {
            body = Body::Empty;
        } else if body.holds_head() {
            first = self.next(r, &mut body).await?;
            if first.is_none() {
                body = Body::Empty;
            }
        }
        let has_trailers = r.out.trailers.is_some() && !is_head;
        let ends = first.is_none() && body.is_empty() && !has_trailers;
        let Some((head, size)) = head_out::encode(r) else {
            let status = r.out.status;
            return Err(Failure::Body(io::Error::other(format!("a response cannot have status {status}"))));
        };
        r.debug(format_args!("http2 response: {}, {:?}", r.out.status, r.out.content_length));
        // DIFF(nginx): a head counts as it is before it is compressed, and frames have no heads of their own.
        r.costs.sent.head = size as u64;
        self.promised = r.out.content_length.filter(|_| !is_head);
        self.exchange.conn.count_worth(size);
        self.exchange.begin(head, ends)?;
        r.count_sent(size);
        if ends {
            return Ok(());
        }
        self.pace = Pace::new(r);
        let mut is_ended = false;
        if let Some(piece) = first {
            is_ended = piece.is_last && !has_trailers;
            self.piece(r, &mut body, piece.bytes, is_ended).await?;
        }
        while !is_ended {
            // Nothing is made that the client cannot take.
            ahead(&mut body, self.exchange.room(1, self.timeout)).await?;
            let Some(piece) = self.next(r, &mut body).await? else { break };
            is_ended = piece.is_last && !has_trailers;
            r.client().home.budget.spend(piece.bytes.len()).await;
            self.piece(r, &mut body, piece.bytes, is_ended).await?;
        }
        if self.promised.is_some_and(|length| length != self.sent) {
            return Err(Failure::Body(io::ErrorKind::UnexpectedEof.into()));
        }
        if is_ended {
            return Ok(());
        }
        if has_trailers {
            respond::fill_trailers(r);
            if let Some(trailers) = r.out.trailers.as_ref().and_then(head_out::fields) {
                return self.exchange.trailers(trailers);
            }
        }
        self.exchange.data(Bytes::new(), true)
    }

    /// Sends a piece, in frames of at most the size that is configured, as the client has room.
    async fn piece(
        &mut self,
        r: &mut Request,
        body: &mut Body,
        mut bytes: Bytes,
        ends: bool,
    ) -> Result<(), Failure> {
        self.sent += bytes.len() as u64;
        if self.promised.is_some_and(|length| self.sent > length) {
            return Err(Failure::Body(io::Error::other("the response is longer than announced")));
        }
        let is_cut = ends && self.promised.is_some_and(|length| self.sent < length);
        while !bytes.is_empty() {
            let mut want = bytes.len();
            if let Some(pace) = &mut self.pace {
                want = want.min(pace.allowance(r).await?);
            }
            let room = ahead(body, self.exchange.room(want, self.timeout)).await?;
            let mut now = bytes.split_to(room.min(want));
            while !now.is_empty() {
                let frame = now.split_to(self.chunk_size.min(now.len()));
                r.count_sent(frame.len());
                self.exchange.data(frame, ends && !is_cut && now.is_empty() && bytes.is_empty())?;
            }
        }
        Ok(())
    }

    /// The next piece of the body; `None` at the end. Small ones that are there at once are put together, and the end is told
    /// with the last one if it is known by then.
    async fn next(&mut self, r: &mut Request, body: &mut Body) -> Result<Option<Piece>, Failure> {
        if let Some(error) = self.failed.take() {
            return Err(Failure::Body(error));
        }
        let mut bytes = loop {
            match charged(body, self.want, r).await.map_err(Failure::Body)? {
                None => return Ok(None),
                Some(bytes) if bytes.is_empty() => tw_rt::yield_now().await,
                Some(bytes) => break bytes,
            }
        };
        if matches!(body, Body::Empty | Body::Bytes(_) | Body::File(_)) {
            return Ok(Some(Piece { bytes, is_last: body.is_empty() }));
        }
        let mut gathered = None;
        // Whoever makes a body may have something to do at its end.
        while bytes.len() + gathered.as_ref().map_or(0, Vec::len) < GATHER_MAX || body.is_empty() {
            match poll_once(body.next(GATHER_MAX, r)).await {
                // None yet.
                Poll::Ready(Ok(Some(more))) if more.is_empty() => break,
                Poll::Ready(Ok(Some(more))) => {
                    gathered
                        .get_or_insert_with(|| Vec::from(std::mem::take(&mut bytes)))
                        .extend_from_slice(&more);
                }
                Poll::Ready(Ok(None)) => {
                    let bytes = gathered.map_or(bytes, Bytes::from);
                    return Ok(Some(Piece { bytes, is_last: true }));
                }
                Poll::Ready(Err(error)) => {
                    // What was made before it failed is the client's.
                    self.failed = Some(error);
                    break;
                }
                Poll::Pending => break,
            }
        }
        Ok(Some(Piece { bytes: gathered.map_or(bytes, Bytes::from), is_last: false }))
    }
}

/// The next piece of a body. A body can be made faster than it is needed for as long as its client is fast: what that takes is
/// charged to the turn.
async fn charged(body: &mut Body, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
    if !matches!(body, Body::Pull(_)) {
        return body.next(want, r).await;
    }
    let home = r.client().home.clone();
    while !home.budget.may_copy(0) {
        tw_rt::yield_now().await;
    }
    let mut next = body.next(want, r);
    poll_fn(|cx| {
        let begun = Instant::now();
        let polled = next.as_mut().poll(cx);
        home.budget.charge(begun.elapsed());
        polled
    })
    .await
}

/// Asks a future once.
async fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Waits for the client, and lets the body go on meanwhile.
async fn ahead<F: Future>(body: &mut Body, waiting: F) -> F::Output {
    let mut waiting = pin!(waiting);
    poll_fn(|cx| {
        let polled = waiting.as_mut().poll(cx);
        if polled.is_pending() {
            body.run_ahead(cx);
        }
        polled
    })
    .await
}
