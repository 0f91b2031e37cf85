//! Streams that belong to another protocol, and their received bytes.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tw_connect::ReadOutcome;
use tw_fields::Incoming;

use super::RequestStream;
use tw_request::send_error::SendError;

/// Bytes received and not taken; empty at the end.
#[derive(Default)]
pub(crate) struct TunnelInput(RefCell<Option<Bytes>>);

impl TunnelInput {
    /// Takes received bytes, if there are any.
    pub(crate) fn read<S: RequestStream>(&self, stream: &S) -> io::Result<(ReadOutcome, Bytes)> {
        match self.poll_readable(stream, &mut Context::from_waker(Waker::noop()))? {
            Poll::Pending => Ok((ReadOutcome::Nothing, Bytes::new())),
            Poll::Ready(()) => {
                let bytes = self.0.take().unwrap_or_default();
                let outcome = if bytes.is_empty() { ReadOutcome::Closed } else { ReadOutcome::Some };
                Ok((outcome, bytes))
            }
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
