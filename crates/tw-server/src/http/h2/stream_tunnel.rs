//! A stream that belongs to another protocol (RFC 8441, RFC 9113 section 8.5): the contents of its data frames are the bytes of a
//! connection.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;

use super::Http2Stream;
use crate::http::streams::{RequestStream, StreamTunnel, TunnelInput, tunnel_error};

/// A stream as a connection.
pub struct Http2StreamTunnel {
    stream: Rc<Http2Stream>,
    input: TunnelInput,
    /// Content of one frame.
    frame_size: usize,
    turn: Cell<Turn>,
}

/// State of the sending side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Wanted,
    Given,
}

impl StreamTunnel<Http2Stream> for Http2StreamTunnel {
    fn new(stream: &Rc<Http2Stream>, frame_size: usize) -> Self {
        stream.widen();
        Self {
            stream: stream.clone(),
            input: TunnelInput::default(),
            frame_size,
            turn: Cell::new(Turn::Wanted),
        }
    }
}

impl Http2StreamTunnel {
    /// Received bytes, if there are any; an empty piece is the end.
    pub(crate) fn read_now(&self) -> io::Result<Option<Bytes>> {
        let read = self.input.read_now(&*self.stream)?;
        self.stream.release(read.as_ref().map_or(0, Bytes::len));
        Ok(read)
    }

    /// Ready when something is there, be it the end.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.poll_readable(&*self.stream, cx)
    }

    /// Writes as much as the windows of the client have room for, when it is the turn of this stream.
    pub(crate) fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        let room = self.stream.room_now(bytes.len());
        if room == 0 || self.poll_turn(&mut Context::from_waker(Waker::noop())).is_pending() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.turn.set(Turn::Wanted);
        self.stream.send_data(bytes.slice(..room), self.frame_size, false).map_err(tunnel_error)?;
        self.stream.conn.scheduler.wake_next();
        Ok(room)
    }

    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stream.room_now(1) == 0 {
            // A stream that waits for a window holds up no other one.
            self.stream.conn.scheduler.stop_waiting(self.stream.priority().id);
            ready!(self.stream.poll_room(cx)).map_err(tunnel_error)?;
        }
        self.poll_turn(cx).map(Ok)
    }

    /// Ready from the beginning of a turn until something is written in it.
    fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.turn.get() == Turn::Wanted {
            let conn = &self.stream.conn;
            ready!(conn.scheduler.poll(self.stream.priority(), conn.made(), cx));
            self.turn.set(Turn::Given);
        }
        Poll::Ready(())
    }

    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        self.stream.send_data(Bytes::new(), self.frame_size, true).map_err(tunnel_error).map(drop)
    }
}

impl Drop for Http2StreamTunnel {
    fn drop(&mut self) {
        self.stream.conn.scheduler.stop_waiting(self.stream.priority().id);
    }
}
