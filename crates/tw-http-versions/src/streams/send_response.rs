//! Sending of responses as frames of a stream. The next piece of a body is made when the stream has its turn and the client can take the
//! piece, which is the back-pressure.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tw_core::event_loop::BodySize;
use tw_http::Method;

use super::pieces::{BodyPiece, PieceReader, ahead, poll_once, read_now, response_body};
use super::{Intent, RequestStream, response_head};
use crate::send_rate::SendRate;
use tw_phases::prepare_response;
use tw_phases::send_error_log::log_send_error;
use tw_request::body::{Body, Upgraded};
use tw_request::client_wait::{ClientWait, WaitLimits, Waiting};
use tw_request::request::{After, Request};
use tw_request::send_error::SendError;

/// Status in the access log of a request whose connection was cut before a head was sent. As in nginx, a stream counts as closed by its
/// client.
pub(crate) const CLIENT_CLOSED_REQUEST: u16 = 499;
/// RFC 8297.
const EARLY_HINTS: u16 = 103;

/// Sends the response whose head is `r.response`, or switches to another protocol.
pub(crate) async fn send_response<S: RequestStream>(stream: Rc<S>, r: &mut Request, body: Body) {
    match Sending::new(stream, r).send(r, body).await {
        Ok(Sent::Whole) => r.costs.sent.complete = true,
        Ok(Sent::Tunnel) => {}
        Err(failure) => {
            r.state.after = After::Abort;
            log_send_error(r, &failure);
        }
    }
}

/// Sends early hints.
pub(crate) fn send_early_hints<S: RequestStream>(stream: &S, r: &Request) {
    let hints = &r.upstream.answer.fields;
    if response_head::has_any(hints) {
        stream.send_interim_head(|fields| {
            fields.status(EARLY_HINTS);
            response_head::push_all(fields, hints);
        });
    }
}

/// Response while it is sent.
struct Sending<S> {
    stream: Rc<S>,
    /// Limits of a wait for the client.
    limits: WaitLimits,
    waits: ClientWait,
    /// Size of the content of one frame.
    frame_size: usize,
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

impl<S: RequestStream> Sending<S> {
    fn new(stream: Rc<S>, r: &Request) -> Self {
        let plan = r.plan();
        Self {
            stream,
            limits: WaitLimits { timeout: plan.core.send.timeout, min_rate: plan.core.send.min_rate },
            waits: ClientWait::default(),
            frame_size: plan.chunk_size,
            pieces: PieceReader::new(plan.core.files.output_buffers.size),
            promised: None,
            sent: 0,
            pace: None,
        }
    }

    async fn send(mut self, r: &mut Request, body: Body) -> Result<Sent, SendError> {
        let mut body = match (self.stream.state().take_intent(), body) {
            (Intent::Tunnel, Body::Upgraded(upgraded)) => {
                self.run_tunnel(r, upgraded).await?;
                return Ok(Sent::Tunnel);
            }
            (intent, body) => response_body(r, intent, S::PROTOCOL, body)?,
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
        let has_trailers = r.response.trailers.is_some() && !is_head;
        let ends = first.is_none() && body.is_empty() && !has_trailers;
        self.promised = r.response.content_length.filter(|_| !is_head);
        self.send_head(r, ends)?;
        if ends {
            self.flush(r).await?;
            return Ok(Sent::Whole);
        }
        self.pace = SendRate::new(r);
        let mut is_last = false;
        if let Some(piece) = first {
            is_last = piece.is_last;
            let permit = ahead(&mut body, self.stream.wait_for_turn(self.size())).await?;
            self.send_piece(r, &mut body, piece.bytes, permit, is_last && !has_trailers).await?;
        }
        // Trailers need no turn: they leave with the last piece.
        while !is_last {
            ahead(&mut body, self.wait_for_client(r)).await?;
            self.stream.wait_for_loop(self.size()).await;
            if self.stream.room_now(1) == 0 {
                // Another stream has taken the room meanwhile.
                continue;
            }
            let Some((piece, permit)) = self.next_piece(r, &mut body).await? else { break };
            is_last = piece.is_last;
            r.client().event_loop.budget.spent(piece.bytes.len());
            self.send_piece(r, &mut body, piece.bytes, permit, is_last && !has_trailers).await?;
        }
        if self.promised.is_some_and(|length| length != self.sent) {
            return Err(SendError::Body(io::ErrorKind::UnexpectedEof.into()));
        }
        if !is_last || has_trailers {
            self.send_end(r, has_trailers)?;
            self.flush(r).await?;
        }
        Ok(Sent::Whole)
    }

    /// Runs another protocol on the stream until it is over.
    async fn run_tunnel(&self, r: &mut Request, upgraded: Box<dyn Upgraded>) -> Result<(), SendError> {
        self.send_switch_head(r)?;
        self.flush(r).await?;
        let tunnel = self.stream.tunnel(self.frame_size);
        upgraded.run(r, &tunnel, Bytes::new()).await;
        // The last bytes, if the transport had no room for them.
        if self.stream.unsent() > 0 {
            self.flush(r).await?;
        }
        Ok(())
    }

    /// Sends the head of a switch to another protocol: 200 instead of the 101 of HTTP/1.1 (RFC 8441 section 5, RFC 9220 section 3).
    fn send_switch_head(&self, r: &mut Request) -> Result<(), SendError> {
        r.response.status = 200;
        r.response.content_length = None;
        for of_connection in [&b"Connection"[..], b"Upgrade", b"Sec-WebSocket-Accept"] {
            r.response.fields.remove(of_connection);
        }
        r.state.after = After::Abort;
        self.send_head(r, false)
    }

    /// Sends the head; `ends` if the response has no body.
    fn send_head(&self, r: &mut Request, ends: bool) -> Result<(), SendError> {
        let name = S::PROTOCOL.debug_name;
        let status = r.response.status;
        r.debug(format_args!("{name} response: {status}, {:?}", r.response.content_length));
        if !matches!(status, 200..=999) {
            let wrong = format!("a response cannot have status {status}");
            return Err(SendError::Body(io::Error::other(wrong)));
        }
        if let Some(priority) = r.response.fields.get(b"Priority") {
            self.stream.set_response_priority(priority);
        }
        let size = self.stream.begin(|fields| response_head::write(r, fields), ends)?;
        r.costs.sent.head = size as u64;
        r.count_sent(size);
        Ok(())
    }

    /// Sends bytes for which there is room; `ends` with the last ones. As in nginx, frame headers count as head of the response.
    fn send_data(&self, r: &mut Request, bytes: Bytes, ends: bool) -> Result<(), SendError> {
        let size = bytes.len();
        let heads = self.stream.send_data(bytes, self.frame_size, ends)?;
        r.costs.sent.head += heads as u64;
        r.count_sent(heads + size);
        Ok(())
    }

    /// Ends the response behind its last piece: with trailers, or with an empty frame.
    fn send_end(&self, r: &mut Request, has_trailers: bool) -> Result<(), SendError> {
        if has_trailers {
            prepare_response::fill_trailers(r);
        }
        let trailers =
            r.response.trailers.as_ref().filter(|fields| has_trailers && response_head::has_any(fields));
        let Some(trailers) = trailers else { return self.send_data(r, Bytes::new(), true) };
        let size = self
            .stream
            .send_fields(|written_fields| response_head::push_all(written_fields, trailers), true)?;
        r.costs.sent.head += size as u64;
        r.count_sent(size);
        Ok(())
    }

    /// Waits for the turn of the stream, and returns the next piece with the permit to send it; `None` at the end.
    async fn next_piece(
        &mut self,
        r: &mut Request,
        body: &mut Body,
    ) -> Result<Option<(BodyPiece, S::Permit)>, SendError> {
        let permit = ahead(body, self.stream.wait_for_turn(self.size())).await?;
        if let Body::File(span) = body
            && let Some(bytes) = read_now(r, span, self.file_piece())?
        {
            return Ok(Some((BodyPiece { bytes, is_last: span.len == 0 }, permit)));
        }
        let piece = {
            let sent = r.costs.sent.bytes;
            let mut next = pin!(self.pieces.next_piece(r, body));
            match poll_once(next.as_mut()).await {
                Poll::Ready(piece) => return Ok(piece?.map(|piece| (piece, permit))),
                Poll::Pending => {
                    // Other streams have their turn while this one waits for its body, and all frames made so far are
                    // sent.
                    drop(permit);
                    flush(&*self.stream, &self.waits, self.limits, sent).await?;
                    next.await?
                }
            }
        };
        let Some(piece) = piece else { return Ok(None) };
        let permit = ahead(body, self.stream.wait_for_turn(self.size())).await?;
        Ok(Some((piece, permit)))
    }

    /// Waits until the client can take a part of the next piece.
    async fn wait_for_client(&self, r: &Request) -> Result<(), SendError> {
        if self.stream.room_now(1) > 0 {
            return Ok(());
        }
        let waiting = self.waits.begin(self.limits, r.costs.sent.bytes)?;
        self.stream.wait_for_client(waiting.timeout()).await.map_err(|error| ended(error, &waiting))
    }

    /// Waits until the transport has taken everything framed, as far as the stream has to wait for that.
    async fn flush(&self, r: &Request) -> Result<(), SendError> {
        flush(&*self.stream, &self.waits, self.limits, r.costs.sent.bytes).await
    }

    /// Size of the response, as far as it is known.
    fn size(&self) -> BodySize {
        BodySize::of(self.sent, self.promised.map_or(0, |length| length.saturating_sub(self.sent)))
    }

    /// Bytes of a file that are read at once.
    fn file_piece(&self) -> usize {
        self.stream.room_now(if self.pace.is_some() { self.pieces.want } else { S::FILE_PIECE_MAX })
    }

    /// Sends a piece as there is room for it.
    async fn send_piece(
        &mut self,
        r: &mut Request,
        body: &mut Body,
        mut bytes: Bytes,
        permit: S::Permit,
        ends: bool,
    ) -> Result<(), SendError> {
        self.sent += bytes.len() as u64;
        if self.promised.is_some_and(|length| self.sent > length) {
            return Err(SendError::Body(io::Error::other("the response is longer than announced")));
        }
        let is_cut = ends && self.promised.is_some_and(|length| self.sent < length);
        let mut permit = Some(permit);
        let size = self.size();
        while !bytes.is_empty() {
            let mut want = bytes.len();
            if let Some(pace) = &mut self.pace {
                permit = None;
                want = pace.allowance(r, want).await?;
            }
            let room = ahead(body, self.stream.wait_for_room(&mut permit, want, size)).await?;
            if room == 0 {
                ahead(body, self.wait_for_client(r)).await?;
                continue;
            }
            let now = bytes.split_to(room);
            self.send_data(r, now, ends && !is_cut && bytes.is_empty())?;
            ahead(body, self.flush(r)).await?;
        }
        Ok(())
    }
}

/// Waits until the transport has taken everything framed, as far as the stream has to wait for that; `sent` bytes of the response
/// were framed.
async fn flush<S: RequestStream>(
    stream: &S,
    waits: &ClientWait,
    limits: WaitLimits,
    sent: u64,
) -> Result<(), SendError> {
    if let Poll::Ready(flushed) = stream.poll_flush(&mut Context::from_waker(Waker::noop())) {
        return flushed;
    }
    loop {
        let waiting = waits.begin(limits, sent.saturating_sub(stream.unsent() as u64))?;
        let flushed = stream.flush_part(waiting.timeout()).await;
        if flushed.map_err(|error| ended(error, &waiting))? {
            return Ok(());
        }
    }
}

/// Error of a wait: a client that took nothing for the time of the wait was given that for one of two reasons.
fn ended(error: SendError, waiting: &Waiting) -> SendError {
    match error {
        SendError::Timeout => waiting.end().into(),
        other => other,
    }
}
