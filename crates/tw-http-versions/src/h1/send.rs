//! Head and body to the socket.
//!
//! Most responses leave in one call: head and body together. A future continues only with bytes that the socket did
//! not take at once. A file is read into the loop's one buffer and written from it; bytes that the socket did not
//! take are read again later, so a slow reader holds no memory. Bytes that are not in memory are read by a pool,
//! never here.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tw_core::event_loop::BodySize;
use tw_http::chunked::{BODY_END, CHUNK_END, ChunkHead, LAST_CHUNK};
use tw_http::{Method, Version, response};

use super::Http1Connection;
use super::body::end_body;
use super::response_head::{self, Delimiter};
use super::send_file::{begin_file, gather, send_file};
use super::write::{accept, write_all, write_now, write_parts_now};
use crate::send_rate::SendRate;
use tw_phases::prepare_response;
use tw_phases::send_error_log::log_send_error;
use tw_request::body::{Body, Upgraded};
use tw_request::local_future::{LocalFuture, boxed};
use tw_request::request::{After, Request};
use tw_request::send_error::SendError;

/// Largest body that is copied behind the head for `send()`, which beats `sendmsg()` with two pieces up to there.
const COPY_MAX: usize = 4 << 10;

/// Bytes of small parts that are sent together.
const GATHER_MAX: usize = 32 << 10;

/// Sends the response whose head is `r.response`. Returns the rest of the work, unless everything has left at once.
pub(super) fn send(conn: Rc<Http1Connection>, r: &mut Request, body: Body) -> Option<LocalFuture<'_, ()>> {
    let body = match body {
        Body::Upgraded(upgraded) => return Some(Box::pin(run_tunnel(conn, r, upgraded))),
        body => body,
    };
    let (delimiter, body) = response_head::frame(r, body);
    let (delimiter, head_len) = if r.head.version() == Version::HTTP_09 {
        r.state.after = After::Close;
        (delimiter, 0)
    } else {
        r.debug(format_args!("http response: {}, {delimiter:?}", r.response.status));
        let head_len = response_head::encode(&conn, r, delimiter);
        (if r.method() == Method::Head { Delimiter::None } else { delimiter }, head_len)
    };
    r.costs.sent.head = head_len as u64;
    // Closing a connection sends the remaining bytes at once, whatever the options of the socket are.
    if r.state.after == After::KeepAlive {
        conn.send_at_once(&r.plan().core);
    }
    match first(&conn, r, body, delimiter) {
        Ok(None) => {
            r.costs.sent.complete = true;
            None
        }
        Ok(Some(rest)) => {
            conn.send_at_once(&r.plan().core);
            Some(boxed(move || rest.send(conn, r)))
        }
        Err(failure) => {
            failed(&conn, r, &failure);
            None
        }
    }
}

/// Sends the head of a switch to another protocol, which then has the connection until it is over.
async fn run_tunnel(conn: Rc<Http1Connection>, r: &mut Request, upgraded: Box<dyn Upgraded>) {
    // Boxed, so that the tunnel does not carry its size.
    if let Some(early) = Box::pin(send_upgrade(&conn, r)).await {
        conn.drop_timers();
        upgraded.run(r, &conn.transport, early).await;
    }
}

/// Sends a head after which the connection belongs to another protocol. Returns what the client has sent behind its request,
/// unless sending failed. The memory that the request does not need for its log line is given back.
async fn send_upgrade(conn: &Rc<Http1Connection>, r: &mut Request) -> Option<Bytes> {
    r.response.content_length = None;
    let head_len = response_head::encode(conn, r, Delimiter::None);
    r.costs.sent.head = head_len as u64;
    r.state.after = After::Abort;
    conn.send_at_once(&r.plan().core);
    let head = Bytes::copy_from_slice(&conn.client.event_loop.buffers.head_out.borrow()[..head_len]);
    let timeout = r.plan().core.send.timeout;
    if let Err(failure) = write_all(r, conn, head, timeout, None).await {
        failed(conn, r, &failure);
        return None;
    }
    end_body(r);
    let early = Bytes::copy_from_slice(r.head.rest());
    r.head.consume(early.len());
    r.head.shrink();
    r.response.fields.shrink();
    r.bindings.shrink();
    r.upstream.answer.fields.shrink();
    r.upstream.spare_head.take();
    Some(early)
}

/// Sends early hints, if the client takes them at once: it can do without.
pub(super) fn inform(conn: &Http1Connection, r: &mut Request) {
    if r.head.version() < Version::HTTP_11 {
        return;
    }
    let mut hints = Vec::new();
    response::encode_early_hints(&r.upstream.answer.fields, &mut hints);
    if let Ok(written_len) = write_now(conn, &hints) {
        r.count_sent(written_len);
        if written_len < hints.len() {
            // Half a head cannot be taken back.
            r.state.after = After::Abort;
        }
    }
}

fn failed(conn: &Http1Connection, r: &mut Request, failure: &SendError) {
    // Request bytes that nobody reads would make the kernel reset the connection, and the client would lose what it has
    // not read yet; hence the lingering close. A TLS connection is aborted, because a `close_notify` would make the
    // truncated response look complete.
    let lingers = matches!(failure, SendError::Body(_)) && conn.transport.is_plain();
    r.state.after = if lingers { After::Close } else { After::Abort };
    log_send_error(r, failure);
    if let SendError::Timeout | SendError::TooSlow = failure {
        conn.set_reset_on_close(&r.plan().core);
    }
}

/// Rest of a response after the first write.
struct Rest {
    /// Bytes of the head that the socket did not take.
    head: Bytes,
    body: Body,
    delimiter: Delimiter,
}

/// Writes as much as the socket takes at once; `None` when that was all.
fn first(
    conn: &Http1Connection,
    r: &mut Request,
    mut body: Body,
    delimiter: Delimiter,
) -> Result<Option<Rest>, SendError> {
    let event_loop = &conn.client.event_loop;
    let mut head = event_loop.buffers.head_out.borrow_mut();
    let head_len = r.costs.sent.head as usize;
    head.truncate(head_len);
    let is_limited = SendRate::limits(r);
    let written_len = match &mut body {
        _ if is_limited || delimiter == Delimiter::Chunked => 0,
        Body::Empty => accept(write_now(conn, &head))?,
        Body::Bytes(bytes) if BodySize::of(0, bytes.len() as u64) == BodySize::Large => 0,
        Body::Bytes(bytes) => {
            let result = if bytes.len() <= COPY_MAX {
                head.extend_from_slice(bytes);
                write_now(conn, &head)
            } else {
                write_parts_now(conn, &[IoSlice::new(&head), IoSlice::new(bytes)])
            };
            let written_len = accept(result)?;
            bytes.advance(written_len.saturating_sub(head_len));
            written_len
        }
        Body::File(span) => {
            let Some(disk) = r.disk() else { return Err(SendError::Body(io::ErrorKind::NotFound.into())) };
            let written_len = begin_file(r, conn, disk, &head, span)?;
            span.advance(written_len.saturating_sub(head_len));
            written_len
        }
        Body::Parts(_) | Body::Pull(_) | Body::Upgraded(_) => 0,
    };
    r.count_sent(written_len);
    let head = &head[written_len.min(head_len)..head_len];
    if head.is_empty() && body.is_empty() && delimiter != Delimiter::Chunked {
        return Ok(None);
    }
    Ok(Some(Rest { head: Bytes::copy_from_slice(head), body, delimiter }))
}

impl Rest {
    /// Sends the rest. The request notes the result.
    async fn send(mut self, conn: Rc<Http1Connection>, r: &mut Request) {
        let has_pieces = !self.head.is_empty() || matches!(self.body, Body::File(_));
        let cork = r.plan().core.send.tcp_nopush && has_pieces;
        if cork {
            // An error is harmless: the option only decides how bytes are packed.
            let _ = conn.transport.socket().set_nopush(true);
        }
        let sent = self.send_all(r, &conn).await;
        if cork {
            let _ = conn.transport.socket().set_nopush(false);
        }
        match sent {
            Ok(()) => r.costs.sent.complete = true,
            Err(failure) => failed(&conn, r, &failure),
        }
    }

    async fn send_all(&mut self, r: &mut Request, conn: &Rc<Http1Connection>) -> Result<(), SendError> {
        let timeout = r.plan().core.send.timeout;
        let mut pace = SendRate::new(r);
        let head = std::mem::take(&mut self.head);
        if matches!(self.body, Body::Pull(_)) || self.delimiter == Delimiter::Chunked && !self.body.is_empty()
        {
            return pull(r, conn, head.into(), &mut self.body, self.delimiter, timeout, pace.as_mut()).await;
        }
        write_all(r, conn, head, timeout, None).await?;
        match (&mut self.body, self.delimiter) {
            (Body::Empty, Delimiter::Chunked) => {
                let mut end = Vec::new();
                push_end(r, &mut end);
                write_all(r, conn, end.into(), timeout, None).await
            }
            (Body::Empty, _) => Ok(()),
            (Body::Bytes(bytes), Delimiter::Length | Delimiter::Close) => {
                let bytes = std::mem::take(bytes);
                write_all(r, conn, bytes, timeout, pace.as_mut()).await
            }
            (Body::File(span), Delimiter::Length | Delimiter::Close) => {
                send_file(r, conn, span, timeout, pace.as_mut()).await
            }
            (Body::Parts(parts), Delimiter::Length | Delimiter::Close) => {
                send_parts(r, conn, parts, timeout, pace.as_mut()).await
            }
            (body, delimiter) => pull(r, conn, Vec::new(), body, delimiter, timeout, pace.as_mut()).await,
        }
    }
}

/// Pulls a body piece by piece, behind what `out` holds already. Small pieces leave together, large ones are not copied,
/// and nothing waits for a piece that is not there yet.
async fn pull(
    r: &mut Request,
    conn: &Rc<Http1Connection>,
    mut out: Vec<u8>,
    body: &mut Body,
    delimiter: Delimiter,
    timeout: Duration,
    mut pace: Option<&mut SendRate>,
) -> Result<(), SendError> {
    let promised = if delimiter == Delimiter::Length { r.response.content_length } else { None };
    let mut sent = 0;
    let want = r.plan().core.files.output_buffers.size;
    let mut holds = body.holds_head();
    loop {
        if !holds && (pace.is_some() || out.len() >= GATHER_MAX) {
            let bytes = std::mem::take(&mut out).into();
            ahead(body, write_all(r, conn, bytes, timeout, pace.as_deref_mut())).await?;
        }
        // A body can be made faster than it is needed for as long as its client is fast.
        let remaining = promised.map_or(0, |length: u64| length.saturating_sub(sent));
        conn.client.event_loop.budget.turn(BodySize::of(r.costs.sent.bytes, remaining)).await;
        let mut nothing = Vec::new();
        let meanwhile = if holds { &mut nothing } else { &mut out };
        let mut next = next_piece(r, conn, meanwhile, body, want).await;
        if let Ok(Some(piece)) = &next {
            if piece.is_empty() {
                tw_rt::yield_now().await;
                continue;
            }
            sent += piece.len() as u64;
            if promised.is_some_and(|length| sent > length) {
                next = Err(SendError::Body(io::Error::other("the response is longer than announced")));
            }
        }
        let piece = match next {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(failure @ SendError::Body(_)) if !holds => {
                // Bytes made before the failure are still sent, at the pace of the client; the missing end of the body
                // tells it that the response is truncated.
                return write_all(r, conn, out.into(), timeout, pace).await.and(Err(failure));
            }
            Err(failure) => return Err(failure),
        };
        holds = false;
        if delimiter != Delimiter::Chunked && out.is_empty() && piece.len() >= GATHER_MAX {
            ahead(body, write_all(r, conn, piece, timeout, pace.as_deref_mut())).await?;
            continue;
        }
        if delimiter == Delimiter::Chunked {
            out.extend_from_slice(ChunkHead::new(piece.len() as u64).as_bytes());
        }
        out.extend_from_slice(&piece);
        if delimiter == Delimiter::Chunked {
            out.extend_from_slice(CHUNK_END);
        }
    }
    if delimiter == Delimiter::Chunked {
        push_end(r, &mut out);
    }
    write_all(r, conn, out.into(), timeout, pace).await?;
    match promised {
        Some(length) if sent != length => Err(SendError::Body(io::ErrorKind::UnexpectedEof.into())),
        _ => Ok(()),
    }
}

/// Waits for a write, and lets the body go on meanwhile.
async fn ahead<F: Future>(body: &mut Body, writing: F) -> F::Output {
    let mut writing = pin!(writing);
    poll_fn(|cx| {
        let polled = writing.as_mut().poll(cx);
        if polled.is_pending() {
            body.run_ahead(cx);
        }
        polled
    })
    .await
}

/// Ends a chunked body: the last chunk, and the trailers.
fn push_end(r: &mut Request, out: &mut Vec<u8>) {
    if r.response.trailers.is_none() {
        return out.extend_from_slice(BODY_END);
    }
    prepare_response::fill_trailers(r);
    out.extend_from_slice(LAST_CHUNK);
    if let Some(trailers) = &r.response.trailers {
        response::push_fields(trailers, out);
    }
}

/// Returns the next piece of a body. While that has to be waited for, the socket gets the bytes in `out`.
async fn next_piece(
    r: &mut Request,
    conn: &Http1Connection,
    out: &mut Vec<u8>,
    body: &mut Body,
    want: usize,
) -> Result<Option<Bytes>, SendError> {
    let mut written_len = 0;
    let next = {
        let mut next = body.next(want, r);
        poll_fn(|cx| {
            let begun = Instant::now();
            let polled = next.as_mut().poll(cx);
            conn.client.event_loop.budget.charge(begun.elapsed());
            if let Poll::Ready(piece) = polled {
                return Poll::Ready(piece.map_err(SendError::Body));
            }
            match write_meanwhile(conn, out, &mut written_len, cx) {
                Ok(()) => Poll::Pending,
                Err(failure) => Poll::Ready(Err(failure)),
            }
        })
        .await
    };
    r.count_sent(written_len);
    next
}

/// Writes the bytes in `out` as far as the socket takes them, and counts them in `written_len`. The task is woken when it takes more.
fn write_meanwhile(
    conn: &Http1Connection,
    out: &mut Vec<u8>,
    written_len: &mut usize,
    cx: &mut Context<'_>,
) -> Result<(), SendError> {
    while !out.is_empty() {
        let n = accept(write_now(conn, out))?;
        *written_len += n;
        out.drain(..n);
        if n == 0 {
            match conn.transport.poll_writable(cx) {
                Poll::Ready(ready) => ready.map_err(SendError::Gone)?,
                Poll::Pending => break,
            }
        }
    }
    Ok(())
}

/// Sends the parts of a multipart response. Small ones that are in memory are gathered: thousands of tiny ranges cost
/// few writes.
async fn send_parts(
    r: &mut Request,
    conn: &Rc<Http1Connection>,
    parts: &mut VecDeque<Body>,
    timeout: Duration,
    mut pace: Option<&mut SendRate>,
) -> Result<(), SendError> {
    let Some(disk) = r.disk().cloned() else { return Err(SendError::Body(io::ErrorKind::NotFound.into())) };
    let mut gathered = Vec::new();
    while let Some(part) = parts.pop_front() {
        match part {
            Body::Bytes(bytes) if bytes.len() <= GATHER_MAX => gathered.extend_from_slice(&bytes),
            Body::File(span) if span.len <= GATHER_MAX as u64 && gather(&disk, &span, &mut gathered) => {}
            Body::Empty | Body::Upgraded(_) => {}
            large => {
                let bytes = Bytes::from(std::mem::take(&mut gathered));
                write_all(r, conn, bytes, timeout, pace.as_deref_mut()).await?;
                match large {
                    Body::File(mut span) => {
                        send_file(r, conn, &mut span, timeout, pace.as_deref_mut()).await?
                    }
                    Body::Bytes(bytes) => write_all(r, conn, bytes, timeout, pace.as_deref_mut()).await?,
                    Body::Empty | Body::Upgraded(_) => {}
                    mut other @ (Body::Parts(_) | Body::Pull(_)) => {
                        let pace = pace.as_deref_mut();
                        Box::pin(pull(r, conn, Vec::new(), &mut other, Delimiter::Close, timeout, pace))
                            .await?;
                    }
                }
            }
        }
        if gathered.len() >= GATHER_MAX {
            let bytes = Bytes::from(std::mem::take(&mut gathered));
            write_all(r, conn, bytes, timeout, pace.as_deref_mut()).await?;
            tw_rt::yield_now().await;
        }
    }
    write_all(r, conn, gathered.into(), timeout, pace).await
}
