//! HTTP/0.9 over QUIC (ALPN `hq-interop`), which tests of interoperability use: a stream brings a request line, and the response is
//! a body that ends with the stream. There is no other stream.
//!
//! ```text
//!   GET /path CRLF ─► receive_line ─► Connection::next
//!   what follows   ─► discarded
//! ```

use std::rc::Rc;

use crate::ErrorCode;
use crate::entry::{Entry, ReceiveState};
use crate::error::ConnectionError;
use crate::state::{PendingEvent, State};

impl State {
    /// Moves received bytes to the request line until it is complete. Nothing that follows is part of the request.
    pub(crate) fn receive_line(&mut self, entry: &Rc<Entry>) -> Result<(), ConnectionError> {
        let bytes = entry.raw.take();
        if entry.incoming.get() == ReceiveState::Head {
            let mut block = entry.block.borrow_mut();
            let room = (self.config.list_max as usize).saturating_sub(block.bytes.len());
            let len = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1).min(room);
            let line = bytes.get(..len).unwrap_or_default();
            block.bytes.extend_from_slice(line);
            self.payload_bytes += len as u64;
            if len == room || line.ends_with(b"\n") {
                let line = std::mem::take(&mut block.bytes).into();
                entry.incoming.set(ReceiveState::Body);
                self.events.push_back(PendingEvent::RequestLine(entry.clone(), line));
            }
        }
        match entry.incoming.get() {
            _ if !entry.has_fin.get() => {}
            ReceiveState::Head => {
                let words = "ended hq stream without a request line";
                self.stream_error(entry, ErrorCode::REQUEST_INCOMPLETE, words)?;
            }
            _ => {
                entry.close_incoming();
                self.settle(entry);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;

    use super::*;
    use crate::{Config, Connection, Event, LocalStream, Signal, Stream, StreamError};

    const LINE_MAX: u32 = 32;

    fn server() -> Connection {
        Connection::hq_server(Config { list_max: LINE_MAX })
    }

    fn receive(server: &Connection, id: u64, bytes: &[u8], fin: bool) -> Result<(), ConnectionError> {
        server.receive(id, Bytes::copy_from_slice(bytes), fin)
    }

    fn request(server: &Connection) -> Option<(Stream, Bytes)> {
        match server.next()? {
            Event::RequestLine(stream, line) => Some((stream, line)),
            _ => None,
        }
    }

    fn signals(server: &Connection) -> Vec<Signal> {
        std::iter::from_fn(|| server.next_signal()).collect()
    }

    #[test]
    fn line_is_read_in_any_split() {
        for (bytes, expected) in [
            (&b"GET /a\r\n"[..], &b"GET /a\r\n"[..]),
            (b"GET /a\n", b"GET /a\n"),
            (b"GET /a\r\nGET /b\r\n", b"GET /a\r\n"),
            (b"\n", b"\n"),
            (b"GET /0123456789012345678901234\r\n", b"GET /0123456789012345678901234\r\n"),
            (b"GET /01234567890123456789012345\r\n", b"GET /01234567890123456789012345\r"),
        ] {
            for size in 1..=bytes.len() {
                let server = server();
                for piece in bytes.chunks(size) {
                    receive(&server, 0, piece, false).unwrap();
                }
                receive(&server, 0, b"", true).unwrap();
                let (stream, line) = request(&server).unwrap();
                assert_eq!(&line[..], expected, "in pieces of {size}");
                assert!(request(&server).is_none() && stream.has_ended());
            }
        }
    }

    #[test]
    fn response_is_its_body() {
        let server = server();
        receive(&server, 4, b"GET /a\r\n", true).unwrap();
        let (stream, _) = request(&server).unwrap();
        stream.send_head(|fields| fields.status(103), false).unwrap();
        stream.send_head(|fields| fields.status(200), false).unwrap();
        assert_eq!(stream.output(), None);
        stream.send_data(Bytes::from_static(b"hello"), false).unwrap();
        assert_eq!(stream.output().as_deref(), Some(&b"hello"[..]));
        stream.consume(5);
        stream.send_head(|fields| fields.push(b"x", b"a trailer"), true).unwrap();
        assert!(stream.output().is_none() && stream.is_finished());
        assert_eq!((server.streams(), signals(&server)), (0, vec![]));
    }

    #[test]
    fn rest_of_a_stream_is_not_wanted_after_the_response() {
        let server = server();
        receive(&server, 0, b"GET /a\r\nmore", false).unwrap();
        let (stream, _) = request(&server).unwrap();
        assert!(stream.poll_incoming(&Context::from_waker(Waker::noop())).is_pending());
        stream.send_head(|fields| fields.status(204), true).unwrap();
        assert!(stream.is_finished());
        drop(stream);
        assert_eq!(signals(&server), [Signal::StopSending { stream: 0, code: ErrorCode::NO_ERROR }]);
        assert_eq!(server.streams(), 0);
    }

    #[test]
    fn stream_without_a_line_is_reset() {
        let server = server();
        receive(&server, 0, b"GET /a", true).unwrap();
        assert!(request(&server).is_none());
        let code = ErrorCode::REQUEST_INCOMPLETE;
        assert_eq!(signals(&server), [Signal::Reset { stream: 0, code }]);
        receive(&server, 4, b"GET /a\n", false).unwrap();
        let (stream, _) = request(&server).unwrap();
        server.receive_reset(4, ErrorCode::REQUEST_CANCELLED).unwrap();
        let lost = Poll::Ready(StreamError::Reset(ErrorCode::REQUEST_CANCELLED));
        assert_eq!(stream.poll_error(&Context::from_waker(Waker::noop())), lost);
    }

    #[test]
    fn no_other_stream_is_used() {
        let server = server();
        receive(&server, 0, b"GET /a\n", true).unwrap();
        server.receive_reset(4, ErrorCode::REQUEST_CANCELLED).unwrap();
        server.send_goaway();
        assert!(!server.is_open());
        server.settle_goaway();
        for which in [LocalStream::Control, LocalStream::QpackDecoder] {
            assert_eq!(server.out_len(which), 0, "{which:?}");
        }
        signals(&server);
        receive(&server, 8, b"GET /b\n", true).unwrap();
        let code = ErrorCode::REQUEST_REJECTED;
        let rejected = [Signal::StopSending { stream: 8, code }, Signal::Reset { stream: 8, code }];
        assert_eq!(signals(&server), rejected);
        let opened = receive(&server, 2, b"\0", false);
        assert!(matches!(opened, Err(ConnectionError::Local(ErrorCode::STREAM_CREATION_ERROR, _))));
    }
}
