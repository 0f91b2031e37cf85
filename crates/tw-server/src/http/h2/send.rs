//! A response as frames of its stream. The next piece of a body is asked for when the client may take some of it (its windows)
//! and it is the turn of the stream ([`Turns`](super::stream_scheduler::StreamScheduler)); it goes into frames as it is.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_core::event_loop::BodySize;
use tw_disk::Now;
use tw_http::{Method, status};
use tw_log::Level;

use super::stream_handle::{Intent, Turn};
use super::stream_scheduler::WAITING_MAX;
use super::{StreamHandle, StreamTunnel, response_head, write_buffer};
use crate::http::body::{Body, FileSpan};
use crate::http::file_error::FileError;
use crate::http::request::{After, Request};
use crate::http::send_rate::SendRate;
use crate::http::send_response;
use crate::http::tunnel_end::TunnelEnd;

/// Small pieces that are there at once are put together up to so many bytes.
const GATHER_MAX: usize = 4 << 10;

/// RFC 8297.
const EARLY_HINTS: u16 = 103;
/// What nobody here can switch to (RFC 9220 section 3 has it for such a request).
const NOT_IMPLEMENTED: u16 = 501;

/// Sends the response whose head is `r.out`.
pub(crate) async fn send(exchange: &Rc<StreamHandle>, r: &mut Request, body: Body) {
    match Box::pin(Sending::new(exchange, r).all(r, body)).await {
        Ok(Sent::Whole) => r.costs.sent.complete = true,
        Ok(Sent::Tunnel) => {}
        Err(failure) => {
            r.state.after = After::Abort;
            failure.tell(r);
        }
    }
}

/// Sends early hints.
pub(crate) fn inform(exchange: &StreamHandle, r: &Request) {
    let hints = &r.facts.upstream.answer.fields;
    if response_head::has_any(hints) {
        exchange.inform(|written| {
            written.status(EARLY_HINTS);
            response_head::push_all(written, hints);
        });
    }
}

/// How a response is sent.
struct Sending {
    exchange: Rc<StreamHandle>,
    /// How long the client may take nothing.
    timeout: Duration,
    /// Content of one frame.
    chunk_size: usize,
    /// Bytes asked of a body at once.
    want: usize,
    /// What the head says of the length.
    promised: Option<u64>,
    sent: u64,
    pace: Option<SendRate>,
    /// What went wrong with the body behind what was made of it.
    failed: Option<io::Error>,
}

/// What was sent.
enum Sent {
    /// All of the response.
    Whole,
    /// Its head, after which the stream belonged to another protocol. How that has ended, its tunnel has said.
    Tunnel,
}

/// A piece of a body, and whether it is the last one.
struct Piece {
    bytes: Bytes,
    is_last: bool,
}

impl Sending {
    fn new(exchange: &Rc<StreamHandle>, r: &Request) -> Self {
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

    async fn all(mut self, r: &mut Request, mut body: Body) -> Result<Sent, FileError> {
        match (self.exchange.take_wish(), body) {
            (Intent::Other, Body::Upgraded(upgraded)) => {
                self.switch(r)?;
                let other = StreamTunnel::new(&self.exchange, self.chunk_size);
                upgraded.run(r, TunnelEnd::Stream(&other), Bytes::new()).await;
                return Ok(Sent::Tunnel);
            }
            (Intent::Answer, Body::Upgraded(_)) => {
                // A stream becomes another protocol only if its client has asked for that (RFC 9113 section 8.6).
                r.log(Level::Error, format_args!("protocols cannot be switched in HTTP/2"));
                return Err(FileError::Body(io::Error::other(crate::http::body::AlreadyLogged)));
            }
            // To who has asked for another protocol, it would mean that this is one.
            (Intent::Other, _) if (200..300).contains(&r.out.status) => {
                r.log(
                    Level::Info,
                    format_args!("nobody has switched to the protocol that the client has asked for"),
                );
                r.out.reset(NOT_IMPLEMENTED);
                r.out.content_length = Some(0);
                body = Body::Empty;
            }
            (_, other) => body = other,
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
        self.promised = r.out.content_length.filter(|_| !is_head);
        self.head(r, ends)?;
        if ends {
            return Ok(Sent::Whole);
        }
        self.pace = SendRate::new(r);
        let mut is_last = false;
        if let Some(piece) = first {
            is_last = piece.is_last;
            let turn = ahead(&mut body, self.exchange.turn(self.size())).await?;
            self.piece(r, &mut body, (piece.bytes, turn), is_last && !has_trailers).await?;
        }
        // Trailers need no turn: they leave with the last piece.
        while !is_last {
            // Nothing is made that the client cannot take.
            ahead(&mut body, self.exchange.room(1, self.timeout)).await?;
            if self.size() == BodySize::Small {
                r.client().home.budget.spend(0).await;
            }
            let Some((piece, turn)) = self.made(r, &mut body).await? else { break };
            is_last = piece.is_last;
            r.client().home.budget.spent(piece.bytes.len());
            self.piece(r, &mut body, (piece.bytes, turn), is_last && !has_trailers).await?;
        }
        if self.promised.is_some_and(|length| length != self.sent) {
            return Err(FileError::Body(io::ErrorKind::UnexpectedEof.into()));
        }
        if is_last && !has_trailers {
            return Ok(Sent::Whole);
        }
        if has_trailers {
            send_response::fill_trailers(r);
            if let Some(trailers) =
                r.out.trailers.as_ref().filter(|trailers| response_head::has_any(trailers))
            {
                let size = self.exchange.trailers(|written| response_head::push_all(written, trailers))?;
                r.costs.sent.head += size as u64;
                r.count_sent(size);
                return Ok(Sent::Whole);
            }
        }
        self.data(r, Bytes::new(), true)?;
        Ok(Sent::Whole)
    }

    /// Sends a head, with which the response ends or does not.
    fn head(&self, r: &mut Request, ends: bool) -> Result<(), FileError> {
        r.debug(format_args!("http2 response: {}, {:?}", r.out.status, r.out.content_length));
        if !matches!(r.out.status, 200..=999) {
            let wrong = format!("a response cannot have status {}", r.out.status);
            return Err(FileError::Body(io::Error::other(wrong)));
        }
        if let Some(priority) = r.out.fields.get(b"Priority") {
            self.exchange.share().know_better(priority);
        }
        let size = response_head::send(&self.exchange, r, ends)?;
        r.costs.sent.head = size as u64;
        r.count_sent(size);
        Ok(())
    }

    /// Sends bytes for which there is room, with which the response ends or does not. As in nginx, heads of frames belong to the
    /// head of the response.
    fn data(&self, r: &mut Request, bytes: Bytes, ends: bool) -> Result<(), FileError> {
        let size = bytes.len();
        let heads = self.exchange.data(bytes, self.chunk_size, ends)?;
        r.costs.sent.head += heads as u64;
        r.count_sent(heads + size);
        Ok(())
    }

    /// Says that the stream belongs to another protocol from now on: what HTTP/1.1 calls 101 is 200 here (RFC 8441 section 5).
    fn switch(&self, r: &mut Request) -> Result<(), FileError> {
        r.out.status = 200;
        r.out.content_length = None;
        for of_connection in [&b"Connection"[..], b"Upgrade", b"Sec-WebSocket-Accept"] {
            r.out.fields.remove(of_connection);
        }
        r.state.after = After::Abort;
        self.head(r, false)
    }

    /// The next piece, when it is the turn of this stream, and the permit to send it; `None` at the end.
    async fn made(&mut self, r: &mut Request, body: &mut Body) -> Result<Option<(Piece, Turn)>, FileError> {
        let turn = ahead(body, self.exchange.turn(self.size())).await?;
        if let Body::File(span) = body
            && let Some(bytes) = read_now(r, span, self.room_now())?
        {
            return Ok(Some((Piece { bytes, is_last: span.len == 0 }, turn)));
        }
        let piece = {
            let mut next = pin!(self.next(r, body));
            match poll_once(next.as_mut()).await {
                Poll::Ready(piece) => return Ok(piece?.map(|piece| (piece, turn))),
                Poll::Pending => {
                    // Who waits for what it is to send keeps nobody waiting.
                    drop(turn);
                    next.await?
                }
            }
        };
        let Some(piece) = piece else { return Ok(None) };
        let turn = ahead(body, self.exchange.turn(self.size())).await?;
        Ok(Some((piece, turn)))
    }

    /// The size of the response, as far as it is known.
    fn size(&self) -> BodySize {
        BodySize::of(self.sent, self.promised.map_or(0, |length| length.saturating_sub(self.sent)))
    }

    /// Bytes that are worth being read, because they can be sent at once.
    fn room_now(&self) -> usize {
        self.exchange.room_now(if self.pace.is_some() { self.want } else { WAITING_MAX })
    }

    /// Sends a piece, in frames of at most the size that is configured, as the client has room.
    async fn piece(
        &mut self,
        r: &mut Request,
        body: &mut Body,
        (mut bytes, turn): (Bytes, Turn),
        ends: bool,
    ) -> Result<(), FileError> {
        self.sent += bytes.len() as u64;
        if self.promised.is_some_and(|length| self.sent > length) {
            return Err(FileError::Body(io::Error::other("the response is longer than announced")));
        }
        let is_cut = ends && self.promised.is_some_and(|length| self.sent < length);
        let mut turn = Some(turn);
        while !bytes.is_empty() {
            let mut want = bytes.len();
            if let Some(pace) = &mut self.pace {
                turn = None;
                want = want.min(pace.allowance(r).await?);
            }
            if turn.is_none() {
                turn = Some(ahead(body, self.exchange.turn(self.size())).await?);
            }
            let room = self.exchange.room_now(want);
            if room == 0 {
                turn = None;
                ahead(body, self.exchange.room(1, self.timeout)).await?;
                continue;
            }
            let now = bytes.split_to(room);
            self.data(r, now, ends && !is_cut && bytes.is_empty())?;
        }
        Ok(())
    }

    /// The next piece of the body; `None` at the end. Small ones that are there at once are put together, and the end is told
    /// with the last one if it is known by then.
    async fn next(&mut self, r: &mut Request, body: &mut Body) -> Result<Option<Piece>, FileError> {
        if let Some(error) = self.failed.take() {
            return Err(FileError::Body(error));
        }
        let mut bytes = loop {
            match charged(body, self.want, r).await.map_err(FileError::Body)? {
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

/// The next piece of a file that is in memory, in a buffer of the loop's; `None` if the disk has to be waited for, or nothing is
/// to be read.
fn read_now(r: &Request, span: &mut FileSpan, want: usize) -> Result<Option<Bytes>, FileError> {
    let want = want.min(usize::try_from(span.len).unwrap_or(usize::MAX));
    let Some(disk) = r.disk().filter(|_| want > 0 && span.content().is_none()) else { return Ok(None) };
    let read = write_buffer::filled(want, |room| {
        let read = || disk.read_now(span.file.file(), span.offset, room);
        match tw_rt::watch::operation("reading a file", read) {
            Now::Ready(Ok(0)) => Err(Some(io::ErrorKind::UnexpectedEof.into())),
            Now::Ready(Ok(n)) => Ok(n),
            Now::Ready(Err(errno)) => Err(Some(errno.into())),
            Now::Cold => Err(None),
        }
    });
    match read {
        Ok(bytes) => {
            span.advance(bytes.len());
            Ok(Some(bytes))
        }
        Err(None) => Ok(None),
        Err(Some(error)) => Err(FileError::Body(error)),
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
