//! A request on its way to an upstream server: its head, and its body piece by piece, be it while the response comes.

use std::cell::RefCell;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};

use super::codec::Framing;
use super::failure::UpstreamFailure;
use super::h2_pool::{End, Stream};
use super::upstream_connection::UpstreamConnection;
use crate::event_loop::Loop;
use crate::http::application::INPUT_SIZE;
use crate::http::file_reads::Pieces;
use crate::http::plan::LocalFuture;
use crate::http::request::Request;
use crate::http::request_body::{self, BodyError, BodyLimits, Source};

/// Bytes asked of a body at once, of which the last may be as many more than that are written.
const PIECE_SIZE: usize = INPUT_SIZE;

/// What is less than this is put together with what follows it, if that is there.
const GATHERED_MAX: usize = 4 << 10;

/// Pieces written by one system call.
const SLICES: usize = 16;

/// What is sent.
pub(super) struct Outgoing {
    /// The loop whose time it costs.
    pub(super) home: Rc<Loop>,
    /// The head.
    pub(super) head: Bytes,
    /// The body.
    pub(super) body: Source,
    /// How the body is framed.
    pub(super) framing: Framing,
    /// What the client is granted, if the body is still coming from it.
    pub(super) terms: BodyLimits,
    /// Bytes of a body that are kept while it is sent, so that others can have it, too.
    pub(super) kept_max: usize,
    /// How long the server may keep us waiting.
    pub(super) timeout: Duration,
}

/// Why a request was not sent to its end.
#[derive(Debug)]
pub(super) enum Unsent {
    /// The server.
    Upstream(UpstreamFailure),
    /// The client, whose body ended early.
    Client(BodyError),
}

impl From<UpstreamFailure> for Unsent {
    fn from(failure: UpstreamFailure) -> Self {
        Self::Upstream(failure)
    }
}

/// A body that somebody borrows: it comes back whatever becomes of that.
struct Lent {
    body: Source,
    seen: Pieces,
    owner: Lending,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (source, seen) = (std::mem::take(&mut self.body), std::mem::take(&mut self.seen));
        if let Some(home) = &self.owner.0 {
            *home.borrow_mut() = Some(Returned { source, seen, error: None });
        }
    }
}

/// Where a body comes back to that was lent, if there is one.
#[derive(Clone, Default)]
pub(super) struct Lending(Option<Rc<RefCell<Option<Returned>>>>);

impl Lending {
    fn begin() -> Self {
        Self(Some(Rc::default()))
    }

    /// The body, once it is back.
    pub(super) fn take(&self) -> Option<Returned> {
        self.0.as_ref()?.take()
    }
}

/// A body that was sent, or a part of it.
pub(super) struct Returned {
    source: Source,
    /// What came from the client meanwhile, unless that was too much.
    seen: Pieces,
    /// What the client did wrong while the response came, which has not been said yet.
    error: Option<BodyError>,
}

impl Returned {
    /// Gives it back to its request, and says what was wrong with it: that decides what becomes of the client's connection.
    pub(super) fn give_back(self, r: &mut Request) {
        r.body.give_back(self.source);
        r.body.keep(self.seen);
        if let Some(error) = self.error {
            // The response has begun, so that its status is not this one.
            request_body::failed(r, error);
        }
    }
}

/// A request that is being sent.
pub(super) struct Sending {
    stage: Stage,
    body: Lending,
    /// What the client did wrong while the response came.
    error: Option<BodyError>,
}

/// How far it is.
enum Stage {
    /// Something is still to be sent.
    UnderWay(LocalFuture<'static, Result<(), Unsent>>),
    /// Everything was.
    Sent,
    /// Something was not, and will not be: the server cannot know where another request would begin.
    Broken,
}

impl Sending {
    /// Begins: what the socket takes of a request without a body leaves at once.
    ///
    /// # Errors
    /// The server does not take it.
    pub(super) fn begin(
        connection: &Rc<UpstreamConnection>,
        mut outgoing: Outgoing,
    ) -> Result<Self, UpstreamFailure> {
        if let Some(stream) = connection.stream() {
            return Self::begin_stream(connection, stream, outgoing);
        }
        let (lending, lent) = match std::mem::take(&mut outgoing.body) {
            Source::None => {
                // In some languages nothing has an end, too.
                let end = outgoing.framing.end();
                let written = match end.is_empty() {
                    true => connection.write_now(&outgoing.head)?,
                    false => {
                        connection.write_parts_now(&[IoSlice::new(&outgoing.head), IoSlice::new(&end)])?
                    }
                };
                if written == outgoing.head.len() + end.len() {
                    return Ok(Self::nothing());
                }
                let of_head = written.min(outgoing.head.len());
                outgoing.head.advance(of_head);
                (Lending::default(), Err(end.slice(written - of_head..)))
            }
            body => {
                let lending = Lending::begin();
                (lending.clone(), Ok(Lent { body, seen: Pieces::default(), owner: lending }))
            }
        };
        let future = Box::pin(send(connection.clone(), outgoing, lent));
        Ok(Self { stage: Stage::UnderWay(future), body: lending, error: None })
    }

    /// A request of no bytes.
    pub(super) fn nothing() -> Self {
        Self { stage: Stage::Sent, body: Lending::default(), error: None }
    }

    fn begin_stream(
        connection: &Rc<UpstreamConnection>,
        stream: &Rc<Stream>,
        mut outgoing: Outgoing,
    ) -> Result<Self, UpstreamFailure> {
        // What the body has at hand is gathered with the head: frames leave together.
        let body = std::mem::take(&mut outgoing.body);
        let end = if matches!(body, Source::None) { End::Here } else { End::NotYet };
        stream.ask(&outgoing.head, end)?;
        connection.sent.set(connection.sent.get() + outgoing.head.len() as u64);
        if end == End::Here {
            return Ok(Self::nothing());
        }
        let lending = Lending::begin();
        let lent = Lent { body, seen: Pieces::default(), owner: lending.clone() };
        let future = Box::pin(send_content(connection.clone(), stream.clone(), outgoing, lent));
        Ok(Self { stage: Stage::UnderWay(future), body: lending, error: None })
    }

    /// Goes on. Ready when nothing more will be sent; why something was not is said once.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Unsent>> {
        let Stage::UnderWay(future) = &mut self.stage else { return Poll::Ready(Ok(())) };
        let polled = future.as_mut().poll(cx);
        match &polled {
            Poll::Ready(Ok(())) => self.stage = Stage::Sent,
            Poll::Ready(Err(_)) => self.stage = Stage::Broken,
            Poll::Pending => {}
        }
        polled
    }

    /// Goes on while the response comes, which tells more than a failure of the server to take the request. What the client
    /// does wrong is kept for the end: [`has_failed`](Self::has_failed).
    pub(super) fn go_on(&mut self, cx: &mut Context<'_>) {
        if let Poll::Ready(Err(Unsent::Client(error))) = self.poll(cx) {
            self.error = Some(error);
        }
    }

    /// Whether nothing more will be sent, be it that everything was or that it cannot be.
    pub(super) fn is_over(&self) -> bool {
        !matches!(self.stage, Stage::UnderWay(_))
    }

    /// Returns true if the body of the request has failed: the server waits for an end that will not come.
    pub(super) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Whether everything was sent.
    pub(super) fn is_sent(&self) -> bool {
        matches!(self.stage, Stage::Sent)
    }

    /// The body, if all of it was sent and nobody has it back yet.
    pub(super) fn returned(&mut self) -> Option<Returned> {
        if self.is_sent() { self.body.take() } else { None }
    }

    /// Where the body comes back to.
    pub(super) fn lending(&self) -> Lending {
        self.body.clone()
    }

    /// Ends it, and gives the body back with what was not taken of it.
    pub(super) fn end(self) -> Option<Returned> {
        drop(self.stage);
        let returned = self.body.take()?;
        Some(Returned { error: self.error, ..returned })
    }
}

/// Sends a request with its body, or with the end of none.
async fn send(
    connection: Rc<UpstreamConnection>,
    outgoing: Outgoing,
    body: Result<Lent, Bytes>,
) -> Result<(), Unsent> {
    let Outgoing { home, head, framing, terms, kept_max, timeout, .. } = outgoing;
    let mut lent = match body {
        Ok(lent) => lent,
        Err(end) => return Ok(write(&connection, &mut [head, end], timeout).await?),
    };
    let mut head = Some(head);
    // One that was read before is kept where it is.
    let mut is_kept = lent.body.is_coming();
    let mut is_over = false;
    while !is_over {
        // What is at hand leaves at once, as one chunk, and the end of the body with it.
        let (mut pieces, mut size) = (Vec::new(), 0);
        while size < PIECE_SIZE {
            // As much as there is: what is left of a buffer has to be copied.
            let piece = match lent.body.at_hand(PIECE_SIZE, terms) {
                Some(piece) => piece,
                None if size > 0 => break,
                None => {
                    // The client takes its time: the server may begin meanwhile.
                    if let Some(head) = head.take() {
                        write(&connection, &mut [head], timeout).await?;
                    }
                    lent.body.next(PIECE_SIZE, terms).await
                }
            };
            let Some(piece) = piece.map_err(Unsent::Client)? else {
                is_over = true;
                break;
            };
            if is_kept && lent.seen.len() + piece.len() <= kept_max {
                // Its buffer serves whoever reads next.
                lent.seen.push_copy(&piece);
            } else {
                (is_kept, lent.seen) = (false, Pieces::default());
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
        // The buffer serves whoever reads next.
        parts.into_iter().for_each(|part| home.app.give_back_bytes(part));
        // Others go first, and this one has more at hand then. Once a turn has copied enough, that is the next one.
        match home.budget.may_copy(size) {
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
    stream: Rc<Stream>,
    outgoing: Outgoing,
    mut lent: Lent,
) -> Result<(), Unsent> {
    let Outgoing { home, terms, kept_max, timeout, .. } = outgoing;
    let mut is_kept = lent.body.is_coming();
    let mut at_hand = lent.body.at_hand(PIECE_SIZE, terms);
    loop {
        let piece = match at_hand.take() {
            Some(piece) => piece,
            None => lent.body.next(PIECE_SIZE, terms).await,
        };
        let Some(mut piece) = piece.map_err(Unsent::Client)? else {
            return Ok(stream.send(Bytes::new(), End::Here)?);
        };
        // Small pieces that are there go as one frame, and the last one says that it is, if that is known by now.
        at_hand = lent.body.at_hand(PIECE_SIZE, terms);
        while piece.len() < GATHERED_MAX
            && let Some(Ok(Some(more))) = &at_hand
        {
            piece = [&piece[..], more].concat().into();
            at_hand = lent.body.at_hand(PIECE_SIZE, terms);
        }
        if is_kept && lent.seen.len() + piece.len() <= kept_max {
            lent.seen.push(piece.clone());
        } else {
            (is_kept, lent.seen) = (false, Pieces::default());
        }
        let is_last = matches!(at_hand, Some(Ok(None)));
        let size = piece.len();
        while !piece.is_empty() {
            let room = stream.room(piece.len(), timeout).await?;
            let now = piece.split_to(room.min(piece.len()));
            connection.sent.set(connection.sent.get() + now.len() as u64);
            stream.send(now, if is_last && piece.is_empty() { End::Here } else { End::NotYet })?;
        }
        if is_last && size > 0 {
            return Ok(());
        }
        if !home.budget.may_copy(size) {
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
        let wanted: usize = parts.iter().map(Bytes::len).sum();
        if wanted == 0 {
            return Ok(());
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let filled = parts.iter().filter(|part| !part.is_empty());
        let count = slices.iter_mut().zip(filled).map(|(slice, part)| *slice = IoSlice::new(part)).count();
        let mut written = connection.write_parts_now(&slices[..count])?;
        if written == wanted {
            return Ok(());
        }
        for part in parts.iter_mut() {
            let taken = written.min(part.len());
            part.advance(taken);
            written -= taken;
        }
        connection.writable(timeout).await?;
    }
}
