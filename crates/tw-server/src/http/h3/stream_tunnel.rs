//! A stream that belongs to another protocol (RFC 9220, RFC 9114 section 4.4): the contents of its data frames are the bytes of a
//! connection.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tw_http3::Incoming;

use super::Http3StreamHandle;
use crate::http::send_error::SendError;

/// Bytes of one data frame, and of those that the transport has not taken.
const WRITE_MAX: usize = 32 << 10;

/// A stream as a connection.
pub struct Http3StreamTunnel {
    handle: Rc<Http3StreamHandle>,
    /// Bytes received and not taken; empty at the end.
    came: RefCell<Option<Bytes>>,
}

impl Http3StreamTunnel {
    pub(super) fn new(handle: &Rc<Http3StreamHandle>) -> Self {
        Self { handle: handle.clone(), came: RefCell::default() }
    }

    /// Received bytes, if there are any; an empty piece is the end.
    pub(crate) fn read_now(&self) -> io::Result<Option<Bytes>> {
        match self.poll_readable(&mut Context::from_waker(Waker::noop()))? {
            Poll::Pending => Ok(None),
            Poll::Ready(()) => Ok(Some(self.came.take().unwrap_or_default())),
        }
    }

    /// Ready when something is there, be it the end.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut came = self.came.borrow_mut();
        while came.is_none() {
            match ready!(self.handle.poll_came(cx)) {
                // An empty frame is not the end.
                Ok(Some(Incoming::Data(bytes))) => *came = Some(bytes).filter(|bytes| !bytes.is_empty()),
                Ok(Some(Incoming::Head(_) | Incoming::Trailers(_))) => {}
                Ok(None) => *came = Some(Bytes::new()),
                Err(cut) => return Poll::Ready(Err(io::Error::other(cut))),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Frames bytes once the transport has taken the ones before.
    pub(crate) fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        if self.poll_writable(&mut cx)?.is_pending() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let size = bytes.len().min(WRITE_MAX);
        self.handle.data(bytes.slice(..size), false).map_err(gone)?;
        if let Poll::Ready(flushed) = self.handle.poll_flush(&mut cx) {
            flushed.map_err(gone)?;
        }
        Ok(size)
    }

    /// Ready when the transport has taken everything. The caller waits here after each write.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.handle.poll_flush(cx).map_err(gone)
    }

    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        self.handle.data(Bytes::new(), true).map_err(gone)?;
        match self.handle.poll_flush(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(flushed) => flushed.map_err(gone),
            // The rest leaves when the request ends.
            Poll::Pending => Ok(()),
        }
    }
}

fn gone(failure: SendError) -> io::Error {
    match failure {
        SendError::Gone(error) | SendError::Body(error) => error,
        SendError::Timeout => io::ErrorKind::TimedOut.into(),
    }
}
