//! A request on its way to an upstream server: its head, and its body piece by piece, be it while the response comes.

use std::cell::RefCell;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};

use super::codec::Framing;
use super::fault::Fault;
use super::link::Link;
use crate::http::plan::LocalFuture;
use crate::http::request::Request;
use crate::http::request_body::{BodyError, Source, Terms};

/// Bytes asked of a body at once.
const PIECE_SIZE: usize = 64 << 10;

/// Pieces written by one system call.
const SLICES: usize = 16;

/// What is sent.
pub(super) struct Outgoing {
    /// The head.
    pub(super) head: Bytes,
    /// The body.
    pub(super) body: Source,
    /// How the body is framed.
    pub(super) framing: Framing,
    /// What the client is granted, if the body is still coming from it.
    pub(super) terms: Terms,
    /// Bytes of a body that are kept while it is sent, so that others can have it, too.
    pub(super) kept_max: usize,
    /// How long the server may keep us waiting.
    pub(super) timeout: Duration,
}

/// Why a request was not sent to its end.
#[derive(Debug)]
pub(super) enum Unsent {
    /// The server.
    Upstream(Fault),
    /// The client, whose body ended early.
    Client(BodyError),
}

impl From<Fault> for Unsent {
    fn from(fault: Fault) -> Self {
        Self::Upstream(fault)
    }
}

/// A body that somebody borrows: it comes back whatever becomes of that.
struct Lent {
    body: Source,
    seen: Vec<u8>,
    home: Rc<RefCell<Option<Returned>>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (source, seen) = (std::mem::take(&mut self.body), std::mem::take(&mut self.seen));
        *self.home.borrow_mut() = Some(Returned { source, seen });
    }
}

/// A body that was sent, or a part of it.
pub(super) struct Returned {
    source: Source,
    /// What came from the client meanwhile, unless that was too much.
    seen: Vec<u8>,
}

impl Returned {
    /// Gives it back to its request.
    pub(super) fn give_back(self, r: &mut Request) {
        r.body.give_back(self.source);
        r.body.keep(&self.seen);
    }
}

/// A request that is being sent.
pub(super) struct Sending {
    future: Option<LocalFuture<'static, Result<(), Unsent>>>,
    /// Where the body comes back to, if there is one.
    body: Option<Rc<RefCell<Option<Returned>>>>,
}

impl Sending {
    /// Begins: what the socket takes of a request without a body leaves at once.
    ///
    /// # Errors
    /// The server does not take it.
    pub(super) fn begin(link: &Rc<Link>, mut outgoing: Outgoing) -> Result<Self, Fault> {
        let (home, lent) = match std::mem::take(&mut outgoing.body) {
            Source::None => {
                let written = link.write_now(&outgoing.head)?;
                if written == outgoing.head.len() {
                    return Ok(Self { future: None, body: None });
                }
                outgoing.head.advance(written);
                (None, None)
            }
            body => {
                let home = Rc::default();
                (Some(Rc::clone(&home)), Some(Lent { body, seen: Vec::new(), home }))
            }
        };
        Ok(Self { future: Some(Box::pin(send(link.clone(), outgoing, lent))), body: home })
    }

    /// Goes on. Ready when everything was sent.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Unsent>> {
        let Some(future) = &mut self.future else { return Poll::Ready(Ok(())) };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }

    /// Whether everything was sent.
    pub(super) fn is_done(&self) -> bool {
        self.future.is_none()
    }

    /// The body, if all of it was sent and nobody has it back yet.
    pub(super) fn returned(&mut self) -> Option<Returned> {
        if self.is_done() { self.body.as_ref()?.take() } else { None }
    }

    /// Ends it, and gives the body back with what was not taken of it.
    pub(super) fn end(mut self) -> Option<Returned> {
        self.future = None;
        self.body?.take()
    }
}

async fn send(link: Rc<Link>, outgoing: Outgoing, lent: Option<Lent>) -> Result<(), Unsent> {
    let Outgoing { head, framing, terms, kept_max, timeout, .. } = outgoing;
    let Some(mut lent) = lent else {
        return Ok(write(&link, &mut [head], timeout).await?);
    };
    let mut head = Some(head);
    // One that was read before is kept where it is.
    let mut is_kept = matches!(lent.body, Source::H1(_));
    let mut is_over = false;
    while !is_over {
        // What is at hand leaves at once, as one chunk, and the end of the body with it.
        let (mut pieces, mut size) = (Vec::new(), 0);
        while size < PIECE_SIZE {
            let piece = match poll_once(&mut lent.body, PIECE_SIZE - size, terms).await {
                Some(piece) => piece,
                None if size > 0 => break,
                None => {
                    // The client takes its time: the server may begin meanwhile.
                    if let Some(head) = head.take() {
                        write(&link, &mut [head], timeout).await?;
                    }
                    lent.body.next(PIECE_SIZE, terms).await
                }
            };
            let Some(piece) = piece.map_err(Unsent::Client)? else {
                is_over = true;
                break;
            };
            if is_kept && lent.seen.len() + piece.len() <= kept_max {
                lent.seen.extend_from_slice(&piece);
            } else {
                (is_kept, lent.seen) = (false, Vec::new());
            }
            size += piece.len();
            pieces.push(piece);
        }
        let mut parts = Vec::with_capacity(pieces.len() + 4);
        parts.extend(head.take());
        if size > 0 {
            let (before, behind) = framing.around(size);
            parts.push(before);
            parts.append(&mut pieces);
            parts.push(behind);
        }
        if is_over {
            parts.push(framing.end());
        }
        write(&link, &mut parts, timeout).await?;
    }
    Ok(())
}

/// The next piece, if nobody has to be waited for.
async fn poll_once(body: &mut Source, want: usize, terms: Terms) -> Option<Result<Option<Bytes>, BodyError>> {
    let mut next = std::pin::pin!(body.next(want, terms));
    std::future::poll_fn(|cx| match next.as_mut().poll(cx) {
        Poll::Ready(piece) => Poll::Ready(Some(piece)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Writes all of `parts`.
async fn write(link: &Link, parts: &mut [Bytes], timeout: Duration) -> Result<(), Fault> {
    loop {
        let wanted: usize = parts.iter().map(Bytes::len).sum();
        if wanted == 0 {
            return Ok(());
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let filled = parts.iter().filter(|part| !part.is_empty());
        let count = slices.iter_mut().zip(filled).map(|(slice, part)| *slice = IoSlice::new(part)).count();
        let mut written = link.write_parts_now(&slices[..count])?;
        if written == wanted {
            return Ok(());
        }
        for part in parts.iter_mut() {
            let taken = written.min(part.len());
            part.advance(taken);
            written -= taken;
        }
        link.writable(timeout).await?;
    }
}
