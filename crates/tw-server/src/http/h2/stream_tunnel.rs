//! A stream that belongs to another protocol (RFC 8441, RFC 9113 section 8.5): what is in its frames of data are the bytes of a
//! connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tw_http2::Incoming;

use super::StreamHandle;
use crate::http::send_error::SendError;

/// A stream as a connection.
pub struct StreamTunnel {
    handle: Rc<StreamHandle>,
    /// Bytes received and not taken; empty at the end.
    came: RefCell<Option<Bytes>>,
    /// Content of one frame.
    chunk_size: usize,
    turn: Cell<Turn>,
}

/// State of the sending side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Wanted,
    Given,
}

impl StreamTunnel {
    pub(super) fn new(handle: &Rc<StreamHandle>, chunk_size: usize) -> Self {
        handle.widen();
        Self { handle: handle.clone(), came: RefCell::default(), chunk_size, turn: Cell::new(Turn::Wanted) }
    }

    /// Received bytes, if there are any; an empty piece is the end.
    pub(crate) fn read_now(&self) -> io::Result<Option<Bytes>> {
        match self.poll_readable(&mut Context::from_waker(Waker::noop()))? {
            Poll::Pending => Ok(None),
            Poll::Ready(()) => {
                let came = self.came.take().unwrap_or_default();
                self.handle.taken(came.len());
                Ok(Some(came))
            }
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

    /// As much as the windows of the client have room for, when it is the turn of this stream.
    pub(crate) fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        let room = self.handle.room_now(bytes.len());
        if room == 0 || self.poll_turn(&mut Context::from_waker(Waker::noop())).is_pending() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.turn.set(Turn::Wanted);
        self.handle.data(bytes.slice(..room), self.chunk_size, false).map_err(gone)?;
        self.handle.conn.turns.call();
        Ok(room)
    }

    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.handle.room_now(1) == 0 {
            // Who waits for a window keeps nobody waiting.
            self.handle.conn.turns.leave(self.handle.priority().id);
            ready!(self.handle.poll_room(cx)).map_err(gone)?;
        }
        self.poll_turn(cx).map(Ok)
    }

    /// Ready from the beginning of a turn until something is written in it.
    fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.turn.get() == Turn::Wanted {
            let conn = &self.handle.conn;
            ready!(conn.turns.poll(self.handle.priority(), conn.made(), cx));
            self.turn.set(Turn::Given);
        }
        Poll::Ready(())
    }

    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        self.handle.data(Bytes::new(), self.chunk_size, true).map_err(gone).map(drop)
    }
}

impl Drop for StreamTunnel {
    fn drop(&mut self) {
        self.handle.conn.turns.leave(self.handle.priority().id);
    }
}

fn gone(failure: SendError) -> io::Error {
    match failure {
        SendError::Gone(error) | SendError::Body(error) => error,
        SendError::Timeout => io::ErrorKind::TimedOut.into(),
    }
}
