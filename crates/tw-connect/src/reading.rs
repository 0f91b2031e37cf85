//! Reads from connections to upstream servers.

use std::io;

use bytes::Bytes;
use tw_core::event_loop::{Buffers, INPUT_SIZE, copy_received};
use tw_net::Transport;

use crate::failure::UpstreamFailure;
use crate::upstream_connection::{ReadOutcome, UpstreamConnection};

/// Bytes read from a connection at once.
pub const READ_SIZE: usize = INPUT_SIZE;

/// Reads the available bytes, about `max` of them at most.
///
/// # Errors
/// The connection is broken.
pub fn read_some(
    buffers: &Buffers,
    connection: &UpstreamConnection,
    max: usize,
) -> Result<(ReadOutcome, Bytes), UpstreamFailure> {
    connection.read_by(|transport| {
        read_bytes(buffers, transport, max).map_err(|error| match error.kind() {
            // The connection was cut: it ended without a close_notify.
            // DIFF(nginx): that is no end of a response without a length.
            io::ErrorKind::UnexpectedEof => UpstreamFailure::Closed,
            _ => UpstreamFailure::Receive(error),
        })
    })
}

/// Reads the available bytes of a transport.
///
/// # Errors
/// The transport is broken.
pub fn read_bytes(buffers: &Buffers, from: &Transport, max: usize) -> io::Result<(ReadOutcome, Bytes)> {
    let is_limited = max < READ_SIZE;
    let mut buffer = if is_limited { Vec::with_capacity(max) } else { buffers.take_input() };
    let read = read_into(&mut buffer, from);
    if !is_limited {
        buffers.give_back_input(buffer);
    }
    read
}

/// Reads the available bytes of a transport, as part of a large transfer: at most `size` bytes, more than usual.
///
/// # Errors
/// The transport is broken.
pub fn read_bulk(from: &Transport, size: usize) -> io::Result<(ReadOutcome, Bytes)> {
    read_into(&mut Vec::with_capacity(size), from)
}

fn read_into(buffer: &mut Vec<u8>, from: &Transport) -> io::Result<(ReadOutcome, Bytes)> {
    let read = tw_rt::watch::operation("reading from an upstream server", || from.try_read(buffer));
    let bytes = take_read(buffer);
    match read {
        Ok(0) => Ok((ReadOutcome::Closed, bytes)),
        Ok(_) => Ok((ReadOutcome::Some, bytes)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok((ReadOutcome::Nothing, bytes)),
        Err(error) => Err(error),
    }
}

/// Takes the bytes read: with the buffer if that is half full or more, else as a copy, because a few bytes would keep the whole
/// buffer alive.
fn take_read(buffer: &mut Vec<u8>) -> Bytes {
    if buffer.len() < buffer.capacity() / 2 {
        return copy_received(buffer);
    }
    std::mem::take(buffer).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_reads_do_not_keep_their_buffer() {
        for (len, goes) in [(0, false), (1, false), (8193, false), (READ_SIZE / 2, true), (READ_SIZE, true)] {
            let mut buffer = vec![b'x'; len];
            buffer.reserve_exact(READ_SIZE - len);
            assert_eq!(take_read(&mut buffer), vec![b'x'; len], "{len}");
            assert_eq!(buffer.capacity() == 0, goes, "{len}");
        }
    }
}
