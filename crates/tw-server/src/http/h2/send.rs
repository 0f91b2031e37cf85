//! Sending of responses as frames of a stream. The next piece of a body is made when the windows of the client have room and the
//! [`StreamScheduler`](super::stream_scheduler::StreamScheduler) gives the stream its turn; frames take it without a copy.

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

use super::stream_handle::{Intent, SendPermit};
use super::stream_scheduler::WAITING_MAX;
use super::{StreamHandle, StreamTunnel, response_head, write_buffer};
use crate::http::body::{Body, FileSpan};
use crate::http::prepare_response;
use crate::http::request::{After, Request};
use crate::http::send_error::SendError;
use crate::http::send_rate::SendRate;
use crate::http::tunnel_end::TunnelEnd;

/// Size up to which small pieces that are available at once are joined.
const GATHER_MAX: usize = 4 << 10;

/// RFC 8297.
const EARLY_HINTS: u16 = 103;
/// Status for a protocol that no handler switches to (RFC 9220 section 3).
const NOT_IMPLEMENTED: u16 = 501;

/// Sends the response whose head is `r.out`.
pub(crate) async fn send(stream: &Rc<StreamHandle>, r: &mut Request, body: Body) {
    match Box::pin(Sending::new(stream, r).send(r, body)).await {
        Ok(Sent::Whole) => r.costs.sent.complete = true,
        Ok(Sent::Tunnel) => {}
        Err(failure) => {
            r.state.after = After::Abort;
            failure.log(r);
        }
    }
}

/// Sends early hints.
pub(crate) fn inform(stream: &StreamHandle, r: &Request) {
    let hints = &r.facts.upstream.answer.fields;
    if response_head::has_any(hints) {
        stream.inform(|written| {
            written.status(EARLY_HINTS);
            response_head::push_all(written, hints);
        });
    }
}

/// Response while it is sent.
struct Sending {
    stream: Rc<StreamHandle>,
    /// Longest time without room in the windows of the client.
    timeout: Duration,
    /// Size of the content of one frame.
    chunk_size: usize,
    /// Bytes asked of the body at once.
    want: usize,
    /// Length announced in the head.
    promised: Option<u64>,
    /// Bytes of the body sent.
    sent: u64,
    pace: Option<SendRate>,
    /// Failure of the body behind its last piece.
    failed: Option<io::Error>,
}

/// Result of sending a response.
enum Sent {
    /// The whole response was sent.
    Whole,
    /// The head was sent, and then the stream was a tunnel, which has logged its end.
    Tunnel,
}

/// Piece of a body.
struct Piece {
    bytes: Bytes,
    is_last: bool,
}

impl Sending {
    fn new(stream: &Rc<StreamHandle>, r: &Request) -> Self {
        let plan = r.plan();
        Self {
            stream: stream.clone(),
            timeout: plan.core.send.timeout,
            chunk_size: plan.chunk_size,
            want: plan.core.files.output_buffers.size.max(1),
            promised: None,
            sent: 0,
            pace: None,
            failed: None,
        }
    }

    async fn send(mut self, r: &mut Request, body: Body) -> Result<Sent, SendError> {
        let mut body = match (self.stream.take_intent(), body) {
            (Intent::Tunnel, Body::Upgraded(upgraded)) => {
                self.send_switch_head(r)?;
                let tunnel = StreamTunnel::new(&self.stream, self.chunk_size);
                upgraded.run(r, TunnelEnd::Stream(&tunnel), Bytes::new()).await;
                return Ok(Sent::Tunnel);
            }
            (intent, body) => response_body(r, intent, body)?,
        };
        let is_head = r.method() == Method::Head;
        let mut first = None;
        if is_head {
            body = Body::Empty;
        } else if body.holds_head() {
            first = self.next_piece(r, &mut body).await?;
            if first.is_none() {
                body = Body::Empty;
            }
        }
        let has_trailers = r.out.trailers.is_some() && !is_head;
        let ends = first.is_none() && body.is_empty() && !has_trailers;
        self.promised = r.out.content_length.filter(|_| !is_head);
        self.send_head(r, ends)?;
        if ends {
            return Ok(Sent::Whole);
        }
        self.pace = SendRate::new(r);
        let mut is_last = false;
        if let Some(piece) = first {
            is_last = piece.is_last;
            let turn = ahead(&mut body, self.stream.turn(self.size())).await?;
            self.send_piece(r, &mut body, (piece.bytes, turn), is_last && !has_trailers).await?;
        }
        // Trailers need no turn: they leave with the last piece.
        while !is_last {
            // Nothing is made that the client cannot take.
            ahead(&mut body, self.stream.room(1, self.timeout)).await?;
            if self.size() == BodySize::Small {
                r.client().home.budget.spend(0).await;
            }
            let Some((piece, turn)) = self.next_piece_in_turn(r, &mut body).await? else { break };
            is_last = piece.is_last;
            r.client().home.budget.spent(piece.bytes.len());
            self.send_piece(r, &mut body, (piece.bytes, turn), is_last && !has_trailers).await?;
        }
        if self.promised.is_some_and(|length| length != self.sent) {
            return Err(SendError::Body(io::ErrorKind::UnexpectedEof.into()));
        }
        if !is_last || has_trailers {
            self.send_end(r, has_trailers)?;
        }
        Ok(Sent::Whole)
    }

    /// Ends the response behind its last piece: with trailers, or with an empty frame.
    fn send_end(&self, r: &mut Request, has_trailers: bool) -> Result<(), SendError> {
        if has_trailers {
            prepare_response::fill_trailers(r);
        }
        let trailers =
            r.out.trailers.as_ref().filter(|fields| has_trailers && response_head::has_any(fields));
        let Some(trailers) = trailers else { return self.send_data(r, Bytes::new(), true) };
        let size = self.stream.trailers(|written| response_head::push_all(written, trailers))?;
        r.costs.sent.head += size as u64;
        r.count_sent(size);
        Ok(())
    }

    /// Sends the head; `ends` if the response has no body.
    fn send_head(&self, r: &mut Request, ends: bool) -> Result<(), SendError> {
        r.debug(format_args!("http2 response: {}, {:?}", r.out.status, r.out.content_length));
        if !matches!(r.out.status, 200..=999) {
            let wrong = format!("a response cannot have status {}", r.out.status);
            return Err(SendError::Body(io::Error::other(wrong)));
        }
        if let Some(priority) = r.out.fields.get(b"Priority") {
            self.stream.priority().set_from_response(priority);
        }
        let size = response_head::send(&self.stream, r, ends)?;
        r.costs.sent.head = size as u64;
        r.count_sent(size);
        Ok(())
    }

    /// Sends bytes for which the windows have room; `ends` with the last ones. As in nginx, frame headers count as head of the
    /// response.
    fn send_data(&self, r: &mut Request, bytes: Bytes, ends: bool) -> Result<(), SendError> {
        let size = bytes.len();
        let heads = self.stream.data(bytes, self.chunk_size, ends)?;
        r.costs.sent.head += heads as u64;
        r.count_sent(heads + size);
        Ok(())
    }

    /// Sends the head of a switch to another protocol: 200 instead of the 101 of HTTP/1.1 (RFC 8441 section 5).
    fn send_switch_head(&self, r: &mut Request) -> Result<(), SendError> {
        r.out.status = 200;
        r.out.content_length = None;
        for of_connection in [&b"Connection"[..], b"Upgrade", b"Sec-WebSocket-Accept"] {
            r.out.fields.remove(of_connection);
        }
        r.state.after = After::Abort;
        self.send_head(r, false)
    }

    /// Waits for the turn of the stream, and returns the next piece with the permit to send it; `None` at the end.
    async fn next_piece_in_turn(
        &mut self,
        r: &mut Request,
        body: &mut Body,
    ) -> Result<Option<(Piece, SendPermit)>, SendError> {
        let turn = ahead(body, self.stream.turn(self.size())).await?;
        if let Body::File(span) = body
            && let Some(bytes) = read_now(r, span, self.room_now())?
        {
            return Ok(Some((Piece { bytes, is_last: span.len == 0 }, turn)));
        }
        let piece = {
            let mut next = pin!(self.next_piece(r, body));
            match poll_once(next.as_mut()).await {
                Poll::Ready(piece) => return Ok(piece?.map(|piece| (piece, turn))),
                Poll::Pending => {
                    // Other streams have their turn while this one waits for its body.
                    drop(turn);
                    next.await?
                }
            }
        };
        let Some(piece) = piece else { return Ok(None) };
        let turn = ahead(body, self.stream.turn(self.size())).await?;
        Ok(Some((piece, turn)))
    }

    /// Size of the response, as far as it is known.
    fn size(&self) -> BodySize {
        BodySize::of(self.sent, self.promised.map_or(0, |length| length.saturating_sub(self.sent)))
    }

    /// Bytes that can be sent at once.
    fn room_now(&self) -> usize {
        self.stream.room_now(if self.pace.is_some() { self.want } else { WAITING_MAX })
    }

    /// Sends a piece in frames of at most the configured size, as the windows have room.
    async fn send_piece(
        &mut self,
        r: &mut Request,
        body: &mut Body,
        (mut bytes, turn): (Bytes, SendPermit),
        ends: bool,
    ) -> Result<(), SendError> {
        self.sent += bytes.len() as u64;
        if self.promised.is_some_and(|length| self.sent > length) {
            return Err(SendError::Body(io::Error::other("the response is longer than announced")));
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
                turn = Some(ahead(body, self.stream.turn(self.size())).await?);
            }
            let room = self.stream.room_now(want);
            if room == 0 {
                turn = None;
                ahead(body, self.stream.room(1, self.timeout)).await?;
                continue;
            }
            let now = bytes.split_to(room);
            self.send_data(r, now, ends && !is_cut && bytes.is_empty())?;
        }
        Ok(())
    }

    /// Returns the next piece of the body; `None` at the end. Small pieces that are available at once are joined, and the last one
    /// is marked if the end is known by then.
    async fn next_piece(&mut self, r: &mut Request, body: &mut Body) -> Result<Option<Piece>, SendError> {
        if let Some(error) = self.failed.take() {
            return Err(SendError::Body(error));
        }
        let mut bytes = loop {
            match charged(body, self.want, r).await.map_err(SendError::Body)? {
                None => return Ok(None),
                Some(bytes) if bytes.is_empty() => tw_rt::yield_now().await,
                Some(bytes) => break bytes,
            }
        };
        if matches!(body, Body::Empty | Body::Bytes(_) | Body::File(_)) {
            return Ok(Some(Piece { bytes, is_last: body.is_empty() }));
        }
        let mut gathered = None;
        // The source of the body may have work to do at its end.
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
                    // The client gets the pieces made before the failure.
                    self.failed = Some(error);
                    break;
                }
                Poll::Pending => break,
            }
        }
        Ok(Some(Piece { bytes: gathered.map_or(bytes, Bytes::from), is_last: false }))
    }
}

/// Returns the body that is sent for `body`, if the stream does not become a tunnel.
fn response_body(r: &mut Request, intent: Intent, mut body: Body) -> Result<Body, SendError> {
    if matches!(body, Body::Upgraded(_)) {
        // A stream becomes another protocol only if its client has asked for that (RFC 9113 section 8.6).
        r.log(Level::Error, format_args!("protocols cannot be switched in HTTP/2"));
        return Err(SendError::Body(io::Error::other(crate::http::body::AlreadyLogged)));
    }
    // To a client that has asked for another protocol, a 2xx would mean that this is one.
    if intent == Intent::Tunnel && (200..300).contains(&r.out.status) {
        r.log(Level::Info, format_args!("nobody has switched to the protocol that the client has asked for"));
        r.out.reset(NOT_IMPLEMENTED);
        r.out.content_length = Some(0);
        body = Body::Empty;
    }
    if status::has_no_body(r.out.status) {
        r.out.content_length = None;
        body = Body::Empty;
    }
    Ok(body)
}

/// Reads the next piece of a file that is in memory into a buffer of the loop. Returns `None` if the disk has to be waited for, or
/// nothing is to be read.
fn read_now(r: &Request, span: &mut FileSpan, want: usize) -> Result<Option<Bytes>, SendError> {
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
        Err(Some(error)) => Err(SendError::Body(error)),
    }
}

/// Returns the next piece of a body. The time of making it is charged to the turn, as a fast client could keep the loop busy.
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

/// Polls a future once.
async fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Waits for the client while the body runs ahead.
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
