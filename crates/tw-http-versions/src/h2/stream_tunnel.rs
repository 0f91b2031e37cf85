//! A stream that belongs to another protocol (RFC 8441, RFC 9113 section 8.5): the contents of its data frames are the bytes of a
//! connection.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tw_connect::ReadOutcome;
use tw_connect::relay::RelayEnd;
use tw_core::event_loop::Buffers;

use super::stream::Http2Stream;
use crate::streams::{RequestStream, TunnelInput, tunnel_error};

/// A stream as a connection.
pub(crate) struct Http2StreamTunnel {
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

impl Http2StreamTunnel {
    /// A tunnel whose bytes are sent in frames of at most `frame_size`.
    pub(super) fn new(stream: &Rc<Http2Stream>, frame_size: usize) -> Self {
        stream.widen();
        Self {
            stream: stream.clone(),
            input: TunnelInput::default(),
            frame_size,
            turn: Cell::new(Turn::Wanted),
        }
    }

    /// Ready from the beginning of a turn until something is written in it.
    fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.turn.get() == Turn::Wanted {
            let conn = &self.stream.conn;
            ready!(conn.scheduler.poll(&self.stream.priority, conn.made(), cx));
            self.turn.set(Turn::Given);
        }
        Poll::Ready(())
    }
}

impl RelayEnd for Http2StreamTunnel {
    fn read(&self, _: &Buffers, _: usize) -> io::Result<(ReadOutcome, Bytes)> {
        let (outcome, bytes) = self.input.read(&*self.stream)?;
        self.stream.release(bytes.len());
        Ok((outcome, bytes))
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.poll_readable(&*self.stream, cx)
    }

    /// Writes as much as the windows of the client have room for, when it is the turn of this stream.
    fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        let room = self.stream.room_now(bytes.len());
        if room == 0 || self.poll_turn(&mut Context::from_waker(Waker::noop())).is_pending() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.turn.set(Turn::Wanted);
        self.stream.send_data(bytes.slice(..room), self.frame_size, false).map_err(tunnel_error)?;
        self.stream.conn.scheduler.wake_next();
        Ok(room)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stream.room_now(1) == 0 {
            // A stream that waits for a window holds up no other one.
            self.stream.conn.scheduler.stop_waiting(self.stream.priority.id);
            ready!(self.stream.poll_room(cx)).map_err(tunnel_error)?;
        }
        self.poll_turn(cx).map(Ok)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.stream.send_data(Bytes::new(), self.frame_size, true).map_err(tunnel_error).map(drop)
    }
}

impl Drop for Http2StreamTunnel {
    fn drop(&mut self) {
        self.stream.conn.scheduler.stop_waiting(self.stream.priority.id);
    }
}
