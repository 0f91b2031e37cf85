//! One side of a tunnel: bytes in both directions, by a connection of their own or by one stream of many.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_connect::ReadOutcome;
use tw_connect::relay::RelayEnd;
use tw_core::event_loop::Buffers;
use tw_net::Transport;

use super::h2::Http2StreamTunnel;
use super::h3::Http3StreamTunnel;

/// One side of a tunnel.
#[derive(Clone, Copy)]
pub enum TunnelEnd<'a> {
    /// A connection.
    Transport(&'a Transport),
    /// A stream of HTTP/2.
    Http2(&'a Http2StreamTunnel),
    /// A stream of HTTP/3.
    Http3(&'a Http3StreamTunnel),
}

impl<'a> From<&'a Http2StreamTunnel> for TunnelEnd<'a> {
    fn from(tunnel: &'a Http2StreamTunnel) -> Self {
        Self::Http2(tunnel)
    }
}

impl<'a> From<&'a Http3StreamTunnel> for TunnelEnd<'a> {
    fn from(tunnel: &'a Http3StreamTunnel) -> Self {
        Self::Http3(tunnel)
    }
}

impl RelayEnd for TunnelEnd<'_> {
    fn read(&self, buffers: &Buffers, max: usize) -> io::Result<(ReadOutcome, Bytes)> {
        match self {
            Self::Transport(transport) => transport.read(buffers, max),
            Self::Http2(stream) => stream.read_now().map(outcome),
            Self::Http3(stream) => stream.read_now().map(outcome),
        }
    }

    fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        match self {
            Self::Transport(transport) => transport.try_write(bytes),
            Self::Http2(stream) => stream.try_write(bytes),
            Self::Http3(stream) => stream.try_write(bytes),
        }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Transport(transport) => transport.poll_writable(cx),
            Self::Http2(stream) => stream.poll_writable(cx),
            Self::Http3(stream) => stream.poll_writable(cx),
        }
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Transport(transport) => transport.poll_readable(cx),
            Self::Http2(stream) => stream.poll_readable(cx),
            Self::Http3(stream) => stream.poll_readable(cx),
        }
    }

    fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Self::Transport(transport) => transport.shutdown_write(),
            Self::Http2(stream) => stream.shutdown_write(),
            Self::Http3(stream) => stream.shutdown_write(),
        }
    }
}

/// Outcome of a read of a stream, for which an empty piece is the end.
fn outcome(read: Option<Bytes>) -> (ReadOutcome, Bytes) {
    match read {
        Some(bytes) if bytes.is_empty() => (ReadOutcome::Closed, bytes),
        Some(bytes) => (ReadOutcome::Some, bytes),
        None => (ReadOutcome::Nothing, Bytes::new()),
    }
}
