//! One side of a tunnel: bytes in both directions, by a connection of their own or by one stream of many.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_connect::ReadOutcome;
use tw_connect::relay::RelayEnd;
use tw_core::event_loop::Buffers;
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

impl RelayEnd for TunnelEnd<'_> {
    fn read(&self, buffers: &Buffers, max: usize) -> io::Result<(ReadOutcome, Bytes)> {
        match self {
            Self::Transport(transport) => transport.read(buffers, max),
            Self::Stream(stream) => Ok(match stream.read_now()? {
                Some(bytes) if bytes.is_empty() => (ReadOutcome::Closed, bytes),
                Some(bytes) => (ReadOutcome::Some, bytes),
                None => (ReadOutcome::Nothing, Bytes::new()),
            }),
        }
    }

    fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        match self {
            Self::Transport(transport) => transport.try_write(bytes),
            Self::Stream(stream) => stream.try_write(bytes),
        }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Transport(transport) => transport.poll_writable(cx),
            Self::Stream(stream) => stream.poll_writable(cx),
        }
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Transport(transport) => transport.poll_readable(cx),
            Self::Stream(stream) => stream.poll_readable(cx),
        }
    }

    fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Self::Transport(transport) => transport.shutdown_write(),
            Self::Stream(stream) => stream.shutdown_write(),
        }
    }
}
