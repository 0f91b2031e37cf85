//! A stream that belongs to another protocol (RFC 8441): what is in its frames of data are the bytes of a connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use ::h2::RecvStream;
use bytes::Bytes;

use super::Exchange;
use crate::http::failure::Failure;

/// A stream as a connection.
pub struct Other {
    exchange: Rc<Exchange>,
    /// What the client says.
    input: RefCell<Input>,
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

struct Input {
    stream: RecvStream,
    /// What came and was not taken; empty at the end.
    came: Option<Bytes>,
}

impl Other {
    pub(super) fn new(exchange: &Rc<Exchange>, stream: RecvStream, chunk_size: usize) -> Self {
        let input = RefCell::new(Input { stream, came: None });
        Self { exchange: exchange.clone(), input, chunk_size, turn: Cell::new(Turn::Wanted) }
    }

    /// What the client has said, if there is something: no bytes are its end.
    pub(crate) fn read_now(&self) -> io::Result<Option<Bytes>> {
        let mut input = self.input.borrow_mut();
        match input.poll(&mut Context::from_waker(Waker::noop()))? {
            Poll::Pending => Ok(None),
            Poll::Ready(()) => {
                let came = input.came.take().unwrap_or_default();
                // What is taken may be sent anew. That a stream which is closed has no window matters to nobody.
                let _ = input.stream.flow_control().release_capacity(came.len());
                self.exchange.conn.count_worth(came.len());
                Ok(Some(came))
            }
        }
    }

    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.input.borrow_mut().poll(cx) {
            Ok(polled) => polled.map(Ok),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// As much as the windows of the client have room for, when it is the turn of this stream.
    pub(crate) fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        let turns = &self.exchange.conn.turns;
        let want = bytes.len().min(self.chunk_size);
        let room = self.exchange.room_now(want).map_err(gone)?.min(want);
        if room == 0 || self.poll_turn(&mut Context::from_waker(Waker::noop())).is_pending() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.turn.set(Turn::Wanted);
        self.exchange.data(bytes.slice(..room), false).map_err(gone)?;
        turns.call();
        Ok(room)
    }

    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.exchange.room_now(1).map_err(gone)? == 0 {
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
        self.exchange.data(Bytes::new(), true).map_err(gone)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.exchange.conn.turns.leave(self.exchange.share().id);
    }
}

impl Input {
    /// Ready when something is there, be it the end.
    fn poll(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        while self.came.is_none() {
            match self.stream.poll_data(cx) {
                Poll::Pending => return Ok(Poll::Pending),
                // An empty frame is not the end.
                Poll::Ready(Some(Ok(bytes))) => self.came = Some(bytes).filter(|bytes| !bytes.is_empty()),
                Poll::Ready(Some(Err(error))) => return Err(io::Error::other(error)),
                Poll::Ready(None) => self.came = Some(Bytes::new()),
            }
        }
        Ok(Poll::Ready(()))
    }
}

fn gone(failure: Failure) -> io::Error {
    match failure {
        Failure::Gone(error) | Failure::Body(error) => error,
        Failure::Timeout => io::ErrorKind::TimedOut.into(),
    }
}
