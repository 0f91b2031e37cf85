//! One side of a tunnel: bytes in both directions, by a connection of their own or by one stream of many.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_net::Transport;

use super::h2::StreamTunnel;

/// One side of a tunnel.
#[derive(Clone, Copy)]
pub enum TunnelEnd<'a> {
    /// A connection.
    Transport(&'a Transport),
    /// A stream of HTTP/2.
    Stream(&'a StreamTunnel),
}

impl TunnelEnd<'_> {
    /// Sends a part of `bytes`, if anything can be sent now: `WouldBlock` otherwise.
    ///
    /// # Errors
    /// Errors of the transport or the stream.
    pub fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        match self {
            Self::Transport(transport) => transport.try_write(bytes),
            Self::Stream(stream) => stream.try_write(bytes),
        }
    }

    /// Ready when [`try_write`](Self::try_write) is worth being tried.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Transport(transport) => transport.poll_writable(cx),
            Self::Stream(stream) => stream.poll_writable(cx),
        }
    }

    /// Ready when there is something to be read.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Transport(transport) => transport.poll_readable(cx),
            Self::Stream(stream) => stream.poll_readable(cx),
        }
    }

    /// Says that nothing more will be sent.
    ///
    /// # Errors
    /// The side is gone.
    pub fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Self::Transport(transport) => transport.shutdown_write(),
            Self::Stream(stream) => stream.shutdown_write(),
        }
    }
}
