//! Sending of responses as frames of a stream. The next piece of a body is made when the windows of the client have room and the
//! [`StreamScheduler`](super::stream_scheduler::StreamScheduler) gives the stream its turn; frames take it without a copy.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tw_core::event_loop::BodySize;
use tw_http::Method;

use super::stream_handle::SendPermit;
use super::stream_scheduler::WAITING_MAX;
use super::{StreamHandle, StreamTunnel};
use crate::http::body::Body;
use crate::http::prepare_response;
use crate::http::request::{After, Request};
use crate::http::send_error::SendError;
use crate::http::send_rate::SendRate;
use crate::http::streams::pieces::{BodyPiece, PieceReader, ahead, poll_once, read_now, response_body};
use crate::http::streams::{Intent, StreamProtocol, response_head};
use crate::http::tunnel_end::TunnelEnd;

/// RFC 8297.
const EARLY_HINTS: u16 = 103;

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
    pieces: PieceReader,
    /// Length announced in the head.
    promised: Option<u64>,
    /// Bytes of the body sent.
    sent: u64,
    pace: Option<SendRate>,
}

/// Result of sending a response.
enum Sent {
    /// The whole response was sent.
    Whole,
    /// The head was sent, and then the stream was a tunnel, which has logged its end.
    Tunnel,
}

impl Sending {
    fn new(stream: &Rc<StreamHandle>, r: &Request) -> Self {
        let plan = r.plan();
        Self {
            stream: stream.clone(),
            timeout: plan.core.send.timeout,
            chunk_size: plan.chunk_size,
            pieces: PieceReader::new(plan.core.files.output_buffers.size),
            promised: None,
            sent: 0,
            pace: None,
        }
    }

    async fn send(mut self, r: &mut Request, body: Body) -> Result<Sent, SendError> {
        let mut body = match (self.stream.take_intent(), body) {
            (Intent::Tunnel, Body::Upgraded(upgraded)) => {
                self.send_switch_head(r)?;
                let tunnel = StreamTunnel::new(&self.stream, self.chunk_size);
                upgraded.run(r, TunnelEnd::Http2(&tunnel), Bytes::new()).await;
                return Ok(Sent::Tunnel);
            }
            (intent, body) => response_body(r, intent, StreamProtocol::H2, body)?,
        };
        let is_head = r.method() == Method::Head;
        let mut first = None;
        if is_head {
            body = Body::Empty;
        } else if body.holds_head() {
            first = self.pieces.next_piece(r, &mut body).await?;
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
        let size = self.stream.begin(|written| response_head::write(r, written), ends)?;
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
    ) -> Result<Option<(BodyPiece, SendPermit)>, SendError> {
        let turn = ahead(body, self.stream.turn(self.size())).await?;
        if let Body::File(span) = body
            && let Some(bytes) = read_now(r, span, self.room_now())?
        {
            return Ok(Some((BodyPiece { bytes, is_last: span.len == 0 }, turn)));
        }
        let piece = {
            let mut next = pin!(self.pieces.next_piece(r, body));
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
        self.stream.room_now(if self.pace.is_some() { self.pieces.want } else { WAITING_MAX })
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
}
