//! Streams that belong to another protocol, and their received bytes.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tw_fields::Incoming;

use super::RequestStream;
use crate::http::send_error::SendError;

/// Stream of the type `S` as a connection.
pub(crate) trait StreamTunnel<S> {
    /// A tunnel whose bytes are sent in frames of at most `frame_size`.
    fn new(stream: &Rc<S>, frame_size: usize) -> Self;
}

/// Bytes received and not taken; empty at the end.
#[derive(Default)]
pub(crate) struct TunnelInput(RefCell<Option<Bytes>>);

impl TunnelInput {
    /// Takes received bytes, if there are any; an empty piece is the end.
    pub(crate) fn read_now<S: RequestStream>(&self, stream: &S) -> io::Result<Option<Bytes>> {
        match self.poll_readable(stream, &mut Context::from_waker(Waker::noop()))? {
            Poll::Pending => Ok(None),
            Poll::Ready(()) => Ok(Some(self.0.take().unwrap_or_default())),
        }
    }

    /// Ready when something is there, be it the end.
    pub(crate) fn poll_readable<S: RequestStream>(
        &self,
        stream: &S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = self.0.borrow_mut();
        while bytes.is_none() {
            match ready!(stream.poll_incoming(cx)) {
                // An empty frame is not the end.
                Ok(Some(Incoming::Data(data))) => *bytes = Some(data).filter(|data| !data.is_empty()),
                Ok(Some(Incoming::Head(_) | Incoming::Trailers(_))) => {}
                Ok(None) => *bytes = Some(Bytes::new()),
                Err(error) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Error of a tunnel whose stream cannot be written.
pub(crate) fn tunnel_error(error: SendError) -> io::Error {
    match error {
        SendError::Gone(error) | SendError::Body(error) => error,
        SendError::Timeout | SendError::TooSlow => io::ErrorKind::TimedOut.into(),
    }
}
