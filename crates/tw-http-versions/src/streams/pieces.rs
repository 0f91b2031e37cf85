//! Pieces of response bodies for streams, however these send them.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use tw_disk::Now;
use tw_http::status;
use tw_log::Level;

use super::{Intent, StreamProtocol, write_buffer};
use tw_request::body::{Body, FileSpan};
use tw_request::request::Request;
use tw_request::send_error::SendError;

/// Size up to which small pieces that are available at once are joined.
const GATHER_MAX: usize = 4 << 10;
/// Status for a protocol that no handler switches to (RFC 9220 section 3).
const NOT_IMPLEMENTED: u16 = 501;

/// BodyPiece of a body.
pub(crate) struct BodyPiece {
    pub(crate) bytes: Bytes,
    pub(crate) is_last: bool,
}

/// Reader of a response body.
pub(crate) struct PieceReader {
    /// Bytes asked of the body at once.
    pub(crate) want: usize,
    /// Failure of the body behind its last piece.
    failed: Option<io::Error>,
}

impl PieceReader {
    /// Reader that asks for `want` bytes at once.
    pub(crate) fn new(want: usize) -> Self {
        Self { want: want.max(1), failed: None }
    }

    /// Returns the next piece of the body; `None` at the end. Small pieces that are available at once are joined, and the last one
    /// is marked if the end is known by then.
    pub(crate) async fn next_piece(
        &mut self,
        r: &mut Request,
        body: &mut Body,
    ) -> Result<Option<BodyPiece>, SendError> {
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
            return Ok(Some(BodyPiece { bytes, is_last: body.is_empty() }));
        }
        let mut gathered = None;
        // The source of the body may have work to do at its end.
        while bytes.len() + gathered.as_ref().map_or(0, Vec::len) < GATHER_MAX || body.is_empty() {
            match poll_once(body.next(GATHER_MAX, r)).await {
                // No bytes are ready yet.
                Poll::Ready(Ok(Some(more))) if more.is_empty() => break,
                Poll::Ready(Ok(Some(more))) => {
                    gathered
                        .get_or_insert_with(|| Vec::from(std::mem::take(&mut bytes)))
                        .extend_from_slice(&more);
                }
                Poll::Ready(Ok(None)) => {
                    let bytes = gathered.map_or(bytes, Bytes::from);
                    return Ok(Some(BodyPiece { bytes, is_last: true }));
                }
                Poll::Ready(Err(error)) => {
                    // The client gets the pieces made before the failure.
                    self.failed = Some(error);
                    break;
                }
                Poll::Pending => break,
            }
        }
        Ok(Some(BodyPiece { bytes: gathered.map_or(bytes, Bytes::from), is_last: false }))
    }
}

/// Returns the body that is sent for `body`, if the stream does not become a tunnel.
pub(crate) fn response_body(
    r: &mut Request,
    intent: Intent,
    protocol: &StreamProtocol,
    mut body: Body,
) -> Result<Body, SendError> {
    if matches!(body, Body::Upgraded(_)) {
        // A stream becomes another protocol only if its client has asked for that (RFC 9113 section 8.6).
        r.log(Level::Error, format_args!("protocols cannot be switched in {protocol}"));
        return Err(SendError::Body(io::Error::other(tw_request::body::AlreadyLogged)));
    }
    // A 2xx response would tell a client that requested a tunnel that it has one.
    if intent == Intent::Tunnel && (200..300).contains(&r.response.status) {
        r.log(Level::Info, format_args!("no handler has switched to the protocol that the client requested"));
        r.response.reset(NOT_IMPLEMENTED);
        r.response.content_length = Some(0);
        body = Body::Empty;
    }
    if status::has_no_body(r.response.status) {
        r.response.content_length = None;
        body = Body::Empty;
    }
    Ok(body)
}

/// Reads the next piece of a file that is in memory into a buffer of the loop. Returns `None` if the disk has to be waited for, or
/// nothing is to be read.
pub(crate) fn read_now(r: &Request, span: &mut FileSpan, want: usize) -> Result<Option<Bytes>, SendError> {
    let want = want.min(usize::try_from(span.verified_len()).unwrap_or(usize::MAX));
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
    let event_loop = r.client().event_loop.clone();
    while !event_loop.budget.may_copy(0) {
        tw_rt::yield_now().await;
    }
    let mut next = body.next(want, r);
    poll_fn(|cx| {
        let begun = Instant::now();
        let polled = next.as_mut().poll(cx);
        event_loop.budget.charge(begun.elapsed());
        polled
    })
    .await
}

/// Polls a future once.
pub(crate) async fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Waits for the client while the body runs ahead.
pub(crate) async fn ahead<F: Future>(body: &mut Body, waiting: F) -> F::Output {
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
