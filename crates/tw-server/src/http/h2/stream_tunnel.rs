//! A stream that belongs to another protocol (RFC 8441, RFC 9113 section 8.5): what is in its frames of data are the bytes of a
//! connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tw_http2::Incoming;

use super::StreamHandle;
use super::input::WANTED_WINDOW;
use crate::http::file_error::FileError;

/// A stream as a connection.
pub struct StreamTunnel {
    exchange: Rc<StreamHandle>,
    /// What the client has said and nobody has taken; empty at the end.
    came: RefCell<Option<Bytes>>,
    /// Content of one frame.
    chunk_size: usize,
    turn: Cell<Turn>,
}

/// Whether it may send something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Wanted,
    Given,
}

impl StreamTunnel {
    pub(super) fn new(exchange: &Rc<StreamHandle>, chunk_size: usize) -> Self {
        exchange.widen(WANTED_WINDOW);
        Self {
            exchange: exchange.clone(),
            came: RefCell::default(),
            chunk_size,
            turn: Cell::new(Turn::Wanted),
        }
    }

    /// What the client has said, if there is something: no bytes are its end.
    pub(crate) fn read_now(&self) -> io::Result<Option<Bytes>> {
        match self.poll_readable(&mut Context::from_waker(Waker::noop()))? {
            Poll::Pending => Ok(None),
            Poll::Ready(()) => {
                let came = self.came.take().unwrap_or_default();
                self.exchange.taken(came.len());
                Ok(Some(came))
            }
        }
    }

    /// Ready when something is there, be it the end.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut came = self.came.borrow_mut();
        while came.is_none() {
            match ready!(self.exchange.poll_came(cx)) {
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
        let room = self.exchange.room_now(bytes.len());
        if room == 0 || self.poll_turn(&mut Context::from_waker(Waker::noop())).is_pending() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.turn.set(Turn::Wanted);
        self.exchange.data(bytes.slice(..room), self.chunk_size, false).map_err(gone)?;
        self.exchange.conn.turns.call();
        Ok(room)
    }

    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.exchange.room_now(1) == 0 {
            // Who waits for a window keeps nobody waiting.
            self.exchange.conn.turns.leave(self.exchange.share().id);
            ready!(self.exchange.poll_room(cx)).map_err(gone)?;
        }
        self.poll_turn(cx).map(Ok)
    }

    /// Ready from the beginning of a turn until something is written in it.
    fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.turn.get() == Turn::Wanted {
            let conn = &self.exchange.conn;
            ready!(conn.turns.poll(self.exchange.share(), conn.made(), cx));
            self.turn.set(Turn::Given);
        }
        Poll::Ready(())
    }

    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        self.exchange.data(Bytes::new(), self.chunk_size, true).map_err(gone).map(drop)
    }
}

impl Drop for StreamTunnel {
    fn drop(&mut self) {
        self.exchange.conn.turns.leave(self.exchange.share().id);
    }
}

fn gone(failure: FileError) -> io::Error {
    match failure {
        FileError::Gone(error) | FileError::Body(error) => error,
        FileError::Timeout => io::ErrorKind::TimedOut.into(),
    }
}
