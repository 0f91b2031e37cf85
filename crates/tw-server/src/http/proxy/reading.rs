//! Reads from connections to upstream servers.

use std::io;

use bytes::Bytes;
use tw_core::event_loop::INPUT_SIZE;
use tw_net::Transport;

use super::failure::{AttemptStage, UpstreamFailure};
use super::upstream_connection::{ReadOutcome, UpstreamConnection};
use crate::event_loop::Loop;
use crate::http::request::Request;
use crate::http::upstream_response::Warning;

/// Bytes read from a connection at once.
pub(super) const READ_SIZE: usize = INPUT_SIZE;

/// Reads the available bytes, about `max` of them at most.
pub(super) fn read_some(
    home: &Loop,
    connection: &UpstreamConnection,
    max: usize,
) -> Result<(ReadOutcome, Bytes), UpstreamFailure> {
    connection.read_by(|transport| {
        read_bytes(home, transport, max).map_err(|error| match error.kind() {
            // The connection was cut, which TLS tells from its end.
            // DIFF(nginx): that is no end of a response without a length.
            io::ErrorKind::UnexpectedEof => UpstreamFailure::Closed,
            _ => UpstreamFailure::Receive(error),
        })
    })
}

/// Reads the available bytes of a transport.
pub(super) fn read_bytes(home: &Loop, from: &Transport, max: usize) -> io::Result<(ReadOutcome, Bytes)> {
    let is_limited = max < READ_SIZE;
    let mut buffer = if is_limited { Vec::with_capacity(max) } else { home.buffers.take_input() };
    let read = tw_rt::watch::operation("reading from an upstream server", || from.try_read(&mut buffer));
    let bytes = take_read(&mut buffer);
    if !is_limited {
        home.buffers.give_back_input(buffer);
    }
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
        return Bytes::copy_from_slice(buffer);
    }
    std::mem::take(buffer).into()
}

/// Writes the warnings of a codec to the error log.
pub(super) fn log_warnings(r: &Request, warnings: Vec<Warning>, stage: AttemptStage) {
    for Warning { level, text } in warnings {
        r.log(level, format_args!("{text} {stage}"));
    }
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
