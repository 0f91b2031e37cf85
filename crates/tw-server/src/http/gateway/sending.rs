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
use crate::http::request_body::{BodyError, Source, Terms};

/// Bytes asked of a body at once.
const PIECE_SIZE: usize = 64 << 10;

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
    home: Rc<RefCell<Option<Source>>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.home.borrow_mut() = Some(std::mem::take(&mut self.body));
    }
}

/// A request that is being sent.
pub(super) struct Sending {
    future: Option<LocalFuture<'static, Result<(), Unsent>>>,
    body: Rc<RefCell<Option<Source>>>,
}

impl Sending {
    /// Begins: what the socket takes of a request without a body leaves at once.
    ///
    /// # Errors
    /// The server does not take it.
    pub(super) fn begin(link: &Rc<Link>, mut outgoing: Outgoing) -> Result<Self, Fault> {
        let has_body = !matches!(outgoing.body, Source::None);
        let home = Rc::new(RefCell::new(None));
        if !has_body {
            let written = link.write_now(&outgoing.head)?;
            if written == outgoing.head.len() {
                return Ok(Self { future: None, body: home });
            }
            outgoing.head.advance(written);
        }
        let body = std::mem::take(&mut outgoing.body);
        let lent = has_body.then(|| Lent { body, home: home.clone() });
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

    /// Ends it, and gives the body back with what was not taken of it.
    pub(super) fn end(mut self) -> Option<Source> {
        self.future = None;
        self.body.take()
    }
}

async fn send(link: Rc<Link>, outgoing: Outgoing, lent: Option<Lent>) -> Result<(), Unsent> {
    let Outgoing { head, framing, terms, timeout, .. } = outgoing;
    let Some(mut lent) = lent else {
        return Ok(write(&link, &mut [head], timeout).await?);
    };
    let mut head = Some(head);
    loop {
        let piece = match poll_once(&mut lent.body, terms).await {
            Some(piece) => piece,
            None => {
                // The client takes its time: the server may begin meanwhile.
                if let Some(head) = head.take() {
                    write(&link, &mut [head], timeout).await?;
                }
                lent.body.next(PIECE_SIZE, terms).await
            }
        };
        let Some(piece) = piece.map_err(Unsent::Client)? else { break };
        let (before, behind) = framing.around(piece.len());
        write(&link, &mut [head.take().unwrap_or_default(), before, piece, behind], timeout).await?;
    }
    write(&link, &mut [head.take().unwrap_or_default(), framing.end()], timeout).await?;
    Ok(())
}

/// The next piece, if nobody has to be waited for.
async fn poll_once(body: &mut Source, terms: Terms) -> Option<Result<Option<Bytes>, BodyError>> {
    let mut next = std::pin::pin!(body.next(PIECE_SIZE, terms));
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
        let mut slices = [IoSlice::new(&[]); 4];
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
