//! A request on its way to an upstream server: its head, and its body piece by piece, be it while the response comes.

use std::cell::RefCell;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tw_connect::failure::UpstreamFailure;
use tw_connect::h2_pool::{StreamEnd, UpstreamStream};
use tw_connect::upstream_connection::UpstreamConnection;
use tw_core::event_loop::INPUT_SIZE;

use super::codec::BodyFraming;
use tw_request::event_loop::Loop;
use tw_request::file_reads::Pieces;
use tw_request::local_future::boxed;
use tw_request::plan::LocalFuture;
use tw_request::request::Request;
use tw_request::request_body::{self, BodyError, BodyLimits, Source};

/// Size of one read of a body; the last read may return as many bytes more than are written.
const PIECE_SIZE: usize = INPUT_SIZE;

/// Size below which a piece is joined with the next one, if that is at hand.
const GATHERED_MAX: usize = 4 << 10;

/// Pieces written by one system call.
const SLICES: usize = 16;

/// Terms on which a request is sent.
pub(super) struct SendTerms<'a> {
    /// The loop whose time it costs.
    pub(super) event_loop: &'a Rc<Loop>,
    /// Framing of the body.
    pub(super) framing: BodyFraming,
    /// Limits for the client, if the body is still being received from it.
    pub(super) client: BodyLimits,
    /// Bytes of a body that are kept while it is sent, so that others can have it, too.
    pub(super) kept_max: usize,
    /// Longest time for which the server may take nothing.
    pub(super) timeout: Duration,
}

/// A body on its way to a server.
struct OutgoingBody {
    event_loop: Rc<Loop>,
    body: BorrowedBody,
    framing: BodyFraming,
    client: BodyLimits,
    kept_max: usize,
    timeout: Duration,
}

impl OutgoingBody {
    /// Lends `body` to the exchange; it comes back to the place returned.
    fn lend(body: Source, terms: &SendTerms<'_>) -> (Self, BodyReturn) {
        let SendTerms { event_loop, framing, client, kept_max, timeout } = *terms;
        let owner = BodyReturn::begin();
        let borrowed_body = BorrowedBody { body, pieces: Pieces::default(), owner: owner.clone() };
        (
            Self { event_loop: event_loop.clone(), body: borrowed_body, framing, client, kept_max, timeout },
            owner,
        )
    }
}

/// Reason why a request was not sent completely.
#[derive(Debug)]
pub(super) enum SendError {
    /// The server.
    Upstream(UpstreamFailure),
    /// The client, whose body ended early.
    Client(BodyError),
}

impl From<UpstreamFailure> for SendError {
    fn from(failure: UpstreamFailure) -> Self {
        Self::Upstream(failure)
    }
}

/// A body that somebody borrows: it comes back whatever becomes of that.
struct BorrowedBody {
    body: Source,
    pieces: Pieces,
    owner: BodyReturn,
}

impl Drop for BorrowedBody {
    fn drop(&mut self) {
        let source = std::mem::take(&mut self.body);
        let pieces = std::mem::take(&mut self.pieces);
        if let Some(event_loop) = &self.owner.0 {
            *event_loop.borrow_mut() = Some(ReturnedBody { source, pieces, error: None });
        }
    }
}

/// Place to which a borrowed body returns; empty if there is none.
#[derive(Clone, Default)]
pub(super) struct BodyReturn(Option<Rc<RefCell<Option<ReturnedBody>>>>);

impl BodyReturn {
    fn begin() -> Self {
        Self(Some(Rc::default()))
    }

    /// The body, once it is back.
    pub(super) fn take(&self) -> Option<ReturnedBody> {
        self.0.as_ref()?.take()
    }
}

/// A body that was sent, or a part of it.
pub(super) struct ReturnedBody {
    source: Source,
    /// Bytes received from the client meanwhile, unless there were too many to keep.
    pieces: Pieces,
    /// Error of the client's body during the response, not reported yet.
    error: Option<BodyError>,
}

impl ReturnedBody {
    /// Returns the body to its request with its error, which decides about the client's connection.
    pub(super) fn give_back(self, r: &mut Request) {
        r.body.give_back(self.source);
        r.body.keep(self.pieces);
        if let Some(error) = self.error {
            // The response has begun, so that its status is not this one.
            request_body::read::failed(r, error);
        }
    }
}

/// A request that is being sent.
pub(super) struct RequestSender {
    stage: SendStage,
    body: BodyReturn,
    /// Error of the client's body during the response.
    error: Option<BodyError>,
}

/// Progress of the request.
enum SendStage {
    /// Something is still to be sent.
    UnderWay(LocalFuture<'static, Result<(), SendError>>),
    /// Everything was.
    Sent,
    /// Something was not, and will not be: the server cannot know where another request would begin.
    Broken,
}

impl RequestSender {
    /// Begins: what the socket takes of a request without a body leaves at once.
    ///
    /// # Errors
    /// The server does not take it.
    pub(super) fn begin(
        connection: &Rc<UpstreamConnection>,
        head: &[u8],
        body: Source,
        terms: SendTerms<'_>,
    ) -> Result<Self, UpstreamFailure> {
        if let Some(stream) = connection.stream() {
            return Self::begin_stream(connection, stream, head, body, &terms);
        }
        if let Source::None = body {
            return Self::begin_without_body(connection, head, &terms);
        }
        let (body, owner) = OutgoingBody::lend(body, &terms);
        let future = boxed(|| send(connection.clone(), Bytes::copy_from_slice(head), body));
        Ok(Self { stage: SendStage::UnderWay(future), body: owner, error: None })
    }

    /// A request of no bytes.
    pub(super) fn nothing() -> Self {
        Self { stage: SendStage::Sent, body: BodyReturn::default(), error: None }
    }

    fn begin_without_body(
        connection: &Rc<UpstreamConnection>,
        head: &[u8],
        terms: &SendTerms<'_>,
    ) -> Result<Self, UpstreamFailure> {
        // In some protocols even an empty body has an end mark.
        let end = terms.framing.end();
        let written_len = if end.is_empty() {
            connection.write_now(head)?
        } else {
            connection.write_parts_now(&[IoSlice::new(head), IoSlice::new(&end)])?
        };
        if written_len == head.len() + end.len() {
            return Ok(Self::nothing());
        }
        let mut rest = [Bytes::copy_from_slice(head), end];
        advance(&mut rest, written_len);
        let connection = connection.clone();
        let timeout = terms.timeout;
        let future = Box::pin(async move { Ok(write(&connection, &mut rest, timeout).await?) });
        Ok(Self { stage: SendStage::UnderWay(future), body: BodyReturn::default(), error: None })
    }

    fn begin_stream(
        connection: &Rc<UpstreamConnection>,
        stream: &Rc<UpstreamStream>,
        head: &[u8],
        body: Source,
        terms: &SendTerms<'_>,
    ) -> Result<Self, UpstreamFailure> {
        // The head waits for the part of the body that is at hand, so that their frames leave together.
        let end = if matches!(body, Source::None) { StreamEnd::WithThis } else { StreamEnd::NotYet };
        stream.send_request(head, end)?;
        connection.sent.set(connection.sent.get() + head.len() as u64);
        if end == StreamEnd::WithThis {
            return Ok(Self::nothing());
        }
        let (body, owner) = OutgoingBody::lend(body, terms);
        let future = boxed(|| send_content(connection.clone(), stream.clone(), body));
        Ok(Self { stage: SendStage::UnderWay(future), body: owner, error: None })
    }

    /// Goes on. Ready when nothing more will be sent; why something was not is said once.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let SendStage::UnderWay(future) = &mut self.stage else { return Poll::Ready(Ok(())) };
        let polled = future.as_mut().poll(cx);
        match &polled {
            Poll::Ready(Ok(())) => self.stage = SendStage::Sent,
            Poll::Ready(Err(_)) => self.stage = SendStage::Broken,
            Poll::Pending => {}
        }
        polled
    }

    /// Continues while the response arrives; the response tells more than a failure of the server to take the
    /// request. An error of the client is kept for the end: [`has_failed`](Self::has_failed).
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Poll::Ready(Err(SendError::Client(error))) = self.poll(cx) {
            self.error = Some(error);
        }
    }

    /// Returns true if nothing more will be sent, because everything was or because it failed.
    pub(super) fn is_over(&self) -> bool {
        !matches!(self.stage, SendStage::UnderWay(_))
    }

    /// Returns true if the body of the request has failed: the server waits for an end that will not come.
    pub(super) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Returns true if everything was sent.
    pub(super) fn is_sent(&self) -> bool {
        matches!(self.stage, SendStage::Sent)
    }

    /// The body, if all of it was sent and nobody has it back yet.
    pub(super) fn returned(&mut self) -> Option<ReturnedBody> {
        if self.is_sent() { self.body.take() } else { None }
    }

    /// Ends it, and gives the body back to the request, with the part that was not sent.
    pub(super) fn give_back(self, r: &mut Request) {
        if let Some(body) = self.end() {
            body.give_back(r);
        }
    }

    /// Ends it, and gives the body back with what was not taken of it.
    pub(super) fn end(self) -> Option<ReturnedBody> {
        drop(self.stage);
        let returned = self.body.take()?;
        Some(ReturnedBody { error: self.error, ..returned })
    }
}

/// Sends a request with its body.
async fn send(
    connection: Rc<UpstreamConnection>,
    head: Bytes,
    outgoing: OutgoingBody,
) -> Result<(), SendError> {
    let OutgoingBody { event_loop, body: mut borrowed_body, framing, client: terms, kept_max, timeout } =
        outgoing;
    let mut head = Some(head);
    // A body that was read in advance stays in its buffer; only a body that still arrives is copied for another
    // attempt.
    let mut is_kept = borrowed_body.body.is_coming();
    let mut is_over = false;
    while !is_over {
        // All body bytes at hand leave at once, as one chunk, together with the end of the body if it was reached.
        let mut pieces = Vec::new();
        let mut size = 0;
        while size < PIECE_SIZE {
            // As much as is at hand, because a partly taken buffer has to be copied.
            let piece = match borrowed_body.body.at_hand(PIECE_SIZE, terms) {
                Some(piece) => piece,
                None if size > 0 => break,
                None => {
                    // The client is slow, so the server gets the head and may begin meanwhile.
                    if let Some(head) = head.take() {
                        write(&connection, &mut [head], timeout).await?;
                    }
                    borrowed_body.body.next(PIECE_SIZE, terms).await
                }
            };
            let Some(piece) = piece.map_err(SendError::Client)? else {
                is_over = true;
                break;
            };
            if is_kept && borrowed_body.pieces.len() + piece.len() <= kept_max {
                // The buffer of the piece is reused, so the piece is copied.
                borrowed_body.pieces.push_copy(&piece);
            } else {
                (is_kept, borrowed_body.pieces) = (false, Pieces::default());
            }
            size += piece.len();
            pieces.push(piece);
        }
        let mut parts = Vec::with_capacity(pieces.len() + 4);
        parts.extend(head.take());
        if size > 0 {
            framing.push(pieces, size, &mut parts);
        }
        if is_over {
            parts.push(framing.end());
        }
        write(&connection, &mut parts, timeout).await?;
        // The buffers are reused.
        parts.into_iter().for_each(|part| event_loop.buffers.give_back_bytes(part));
        // Other tasks run first, after which more of the body is at hand. Once this turn has copied enough, sending
        // goes on in the next one.
        match event_loop.budget.may_copy(size) {
            _ if is_over => {}
            true => tw_rt::requeue().await,
            false => tw_rt::yield_now().await,
        }
    }
    Ok(())
}

/// Sends the body of a request whose head has left by a stream.
async fn send_content(
    connection: Rc<UpstreamConnection>,
    stream: Rc<UpstreamStream>,
    outgoing: OutgoingBody,
) -> Result<(), SendError> {
    let OutgoingBody { event_loop, body: mut borrowed_body, client: terms, kept_max, timeout, .. } = outgoing;
    let mut is_kept = borrowed_body.body.is_coming();
    let mut at_hand = borrowed_body.body.at_hand(PIECE_SIZE, terms);
    loop {
        let piece = match at_hand.take() {
            Some(piece) => piece,
            None => borrowed_body.body.next(PIECE_SIZE, terms).await,
        };
        let Some(mut piece) = piece.map_err(SendError::Client)? else {
            return Ok(stream.send(Bytes::new(), StreamEnd::WithThis)?);
        };
        // Small pieces at hand leave as one frame, which also has the end of the body if that is known by now.
        at_hand = borrowed_body.body.at_hand(PIECE_SIZE, terms);
        while piece.len() < GATHERED_MAX
            && let Some(Ok(Some(more))) = &at_hand
        {
            piece = [&piece[..], more].concat().into();
            at_hand = borrowed_body.body.at_hand(PIECE_SIZE, terms);
        }
        if is_kept && borrowed_body.pieces.len() + piece.len() <= kept_max {
            borrowed_body.pieces.push(piece.clone());
        } else {
            (is_kept, borrowed_body.pieces) = (false, Pieces::default());
        }
        let is_last = matches!(at_hand, Some(Ok(None)));
        let size = piece.len();
        while !piece.is_empty() {
            let room = stream.wait_for_capacity(piece.len(), timeout).await?;
            let now = piece.split_to(room.min(piece.len()));
            connection.sent.set(connection.sent.get() + now.len() as u64);
            stream.send(
                now,
                if is_last && piece.is_empty() { StreamEnd::WithThis } else { StreamEnd::NotYet },
            )?;
        }
        if is_last && size > 0 {
            return Ok(());
        }
        if !event_loop.budget.may_copy(size) {
            tw_rt::yield_now().await;
        }
    }
}

/// Writes all of `parts`.
async fn write(
    connection: &UpstreamConnection,
    parts: &mut [Bytes],
    timeout: Duration,
) -> Result<(), UpstreamFailure> {
    loop {
        let wanted_number: usize = parts.iter().map(Bytes::len).sum();
        if wanted_number == 0 {
            return Ok(());
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let filled = parts.iter().filter(|part| !part.is_empty());
        let count = slices.iter_mut().zip(filled).map(|(slice, part)| *slice = IoSlice::new(part)).count();
        let written_len = connection.write_parts_now(&slices[..count])?;
        if written_len == wanted_number {
            return Ok(());
        }
        advance(parts, written_len);
        connection.writable(timeout).await?;
    }
}

/// Takes the first `written_len` bytes off `parts`.
fn advance(parts: &mut [Bytes], mut written_len: usize) {
    for part in parts {
        let taken = written_len.min(part.len());
        part.advance(taken);
        written_len -= taken;
    }
}
