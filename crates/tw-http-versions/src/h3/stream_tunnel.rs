//! A stream that belongs to another protocol (RFC 9220, RFC 9114 section 4.4): the contents of its data frames are the bytes of a
//! connection.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tw_connect::ReadOutcome;
use tw_connect::relay::RelayEnd;
use tw_core::event_loop::Buffers;

use super::stream::Http3Stream;
use crate::streams::{RequestStream, TunnelInput, tunnel_error};

/// Bytes of one data frame, and of those that the transport has not taken.
const WRITE_MAX: usize = 32 << 10;

/// A stream as a connection.
pub(crate) struct Http3StreamTunnel {
    stream: Rc<Http3Stream>,
    input: TunnelInput,
}

impl Http3StreamTunnel {
    /// A tunnel without received bytes.
    pub(super) fn new(stream: &Rc<Http3Stream>) -> Self {
        Self { stream: stream.clone(), input: TunnelInput::default() }
    }
}

impl RelayEnd for Http3StreamTunnel {
    fn read(&self, _: &Buffers, _: usize) -> io::Result<(ReadOutcome, Bytes)> {
        self.input.read(&*self.stream)
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.poll_readable(&*self.stream, cx)
    }

    /// Frames bytes once the transport has taken the ones before.
    fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        if self.poll_writable(&mut cx)?.is_pending() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let size = bytes.len().min(WRITE_MAX);
        self.stream.send_data(bytes.slice(..size), WRITE_MAX, false).map_err(tunnel_error)?;
        if let Poll::Ready(flushed) = self.stream.poll_flush(&mut cx) {
            flushed.map_err(tunnel_error)?;
        }
        Ok(size)
    }

    /// Ready when the transport has taken everything. The caller waits here after each write.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_flush(cx).map_err(tunnel_error)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.stream.send_data(Bytes::new(), WRITE_MAX, true).map_err(tunnel_error)?;
        match self.stream.poll_flush(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(flushed) => flushed.map_err(tunnel_error),
            // The rest leaves when the request ends.
            Poll::Pending => Ok(()),
        }
    }
}
