//! The body of a request as HTTP/1 brings it: the bytes that follow the head, without their framing (RFC 9112 section 6).
//!
//! It owns what it needs, so that a body can be read while the response to it is being sent. Bytes that came behind the
//! body are the next request's: [`BodyInput::take_rest`].

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tw_core::event_loop::{INPUT_SIZE, copy_received};
use tw_http::Framing;
use tw_http::chunked::{Chunk, ChunkedDecoder, OVERHEAD_MAX, Trailers};
use tw_http::response::CONTINUE;

use super::Http1Connection;
use tw_request::request_body::{BodyInput, InputError, Piece, Received};

/// Size of one read of a chunked body. A body of known length has no framing, so larger reads pass on without a copy.
const READ_SIZE: usize = 16 << 10;

/// The body of a request, as far as it was not taken yet.
pub(super) struct Http1Body {
    conn: Rc<Http1Connection>,
    /// Bytes received, framing included.
    buffer: Vec<u8>,
    /// Number of them that were taken.
    taken: usize,
    stage: Stage,
    hundred: ContinueState,
    received: u64,
    wire: u64,
}

enum Stage {
    /// All of it was taken.
    Done,
    /// So many bytes are still to come.
    Length(u64),
    /// The decoder will tell.
    Chunked(Box<ChunkedDecoder>),
    /// The end of the body is unknown.
    Broken,
}

/// State of `100 Continue`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ContinueState {
    /// The client waits for `100 Continue`.
    Awaited,
    /// Sent, or not expected.
    Settled,
}

impl Http1Body {
    /// The body that follows a head with this framing, of which `buffer` came already; `None` if there is none.
    pub(super) fn new(
        conn: &Rc<Http1Connection>,
        framing: Framing,
        is_awaited: bool,
        buffer: Vec<u8>,
    ) -> Option<Self> {
        let stage = match framing {
            Framing::None => return None,
            // A client that sent `Expect: 100-continue` waits for an interim response even if the body is empty.
            Framing::Length(0) if is_awaited && buffer.is_empty() => Stage::Done,
            Framing::Length(0) => return None,
            Framing::Length(n) => Stage::Length(n),
            Framing::Chunked => Stage::Chunked(Box::new(ChunkedDecoder::new(Trailers::Skip, OVERHEAD_MAX))),
        };
        let hundred =
            if is_awaited && buffer.is_empty() { ContinueState::Awaited } else { ContinueState::Settled };
        Some(Self { conn: conn.clone(), buffer, taken: 0, stage, hundred, received: 0, wire: 0 })
    }

    /// Looks at `want` bytes of what is at hand.
    fn take_of(&mut self, want: usize) -> Result<Piece, InputError> {
        let input = self.buffer.get(self.taken..).unwrap_or_default();
        let input = input.get(..want).unwrap_or(input);
        let (used, range) = match &mut self.stage {
            Stage::Done | Stage::Broken => return Ok(Piece::End),
            Stage::Length(_) if input.is_empty() => return Ok(Piece::NeedMore),
            Stage::Length(remaining) => {
                let len = input.len().min(usize::try_from(*remaining).unwrap_or(usize::MAX));
                *remaining -= len as u64;
                if *remaining == 0 {
                    self.stage = Stage::Done;
                }
                (len, 0..len)
            }
            Stage::Chunked(decoder) => match decoder.decode(input) {
                Ok((used, Chunk::Data(range))) => (used, range),
                Ok((used, Chunk::NeedMore)) => {
                    self.consume(used);
                    return Ok(Piece::NeedMore);
                }
                Ok((used, Chunk::End)) => {
                    self.consume(used);
                    self.stage = Stage::Done;
                    return Ok(Piece::End);
                }
                Err(error) => {
                    self.stage = Stage::Broken;
                    self.buffer = Vec::new();
                    self.taken = 0;
                    return Err(InputError::Malformed(error));
                }
            },
        };
        self.received += range.len() as u64;
        let is_full = self.buffer.len() >= self.buffer.capacity() / 2;
        if self.taken == 0 && range == (0..self.buffer.len()) && is_full {
            // The whole buffer belongs to the body, so it is handed over without a copy, unless that wastes memory.
            self.wire += used as u64;
            return Ok(Piece::Data(std::mem::take(&mut self.buffer).into()));
        }
        let data = copy_received(input.get(range).unwrap_or_default());
        self.consume(used);
        Ok(Piece::Data(data))
    }

    /// Takes received bytes, at most `want`, as large as the body is.
    fn take_any(&mut self, want: usize) -> Result<Piece, InputError> {
        loop {
            let piece = self.take_of(want.max(1))?;
            // So few bytes may be framing only, although there are more.
            if !matches!(piece, Piece::NeedMore) || self.buffer.is_empty() {
                return Ok(piece);
            }
        }
    }

    /// Says that the body is wanted (RFC 9110 10.1.1), if the client waits for that, be it a body of no bytes.
    fn invite(&mut self) -> Result<(), InputError> {
        if std::mem::replace(&mut self.hundred, ContinueState::Settled) == ContinueState::Awaited {
            // A client that gets none of it sends the body all the same; half a line would be part of the response.
            let sent = self.conn.transport.try_write(CONTINUE).unwrap_or(0);
            if sent > 0 && sent < CONTINUE.len() {
                self.stage = Stage::Broken;
                return Err(InputError::Failed);
            }
        }
        Ok(())
    }

    /// Reads once.
    fn read(&mut self) -> Result<Received, InputError> {
        self.invite()?;
        match self.stage {
            Stage::Length(remaining) if remaining >= INPUT_SIZE as u64 && self.buffer.is_empty() => {
                self.let_go();
                self.buffer = self.conn.client.event_loop.buffers.take_input();
            }
            Stage::Length(remaining) => {
                self.buffer.reserve(usize::try_from(remaining).unwrap_or(INPUT_SIZE).min(INPUT_SIZE))
            }
            Stage::Chunked(_) | Stage::Done | Stage::Broken => self.buffer.reserve(READ_SIZE),
        }
        match self.conn.transport.try_read(&mut self.buffer) {
            Ok(0) => Err(InputError::Closed),
            Ok(_) => Ok(Received::Some),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if self.buffer.is_empty() {
                    // A client that makes us wait holds no buffer.
                    self.let_go();
                }
                Ok(Received::Nothing)
            }
            Err(_) => Err(InputError::Failed),
        }
    }

    /// Gives the buffer back, of which all was taken.
    fn let_go(&mut self) {
        self.taken = 0;
        self.conn.client.event_loop.buffers.give_back_input(std::mem::take(&mut self.buffer));
    }

    /// Takes `count` bytes out of the buffer.
    fn consume(&mut self, count: usize) {
        self.wire += count as u64;
        self.taken += count;
        if self.taken >= self.buffer.len() {
            self.buffer.clear();
            self.taken = 0;
        }
    }
}

impl BodyInput for Http1Body {
    fn take(&mut self, want: usize, max_size: u64) -> Result<Piece, InputError> {
        let received = self.received;
        let piece = self.take_any(want)?;
        // A chunk is refused at its size line, before any of it is there.
        if max_size > 0 && self.announced() > max_size {
            return Err(InputError::TooLarge { received, coming: self.announced() - received });
        }
        if matches!(piece, Piece::End) {
            self.invite()?;
        }
        Ok(piece)
    }

    fn receive(&mut self, _: usize) -> Result<Received, InputError> {
        self.read()
    }

    fn poll_receive(&mut self, _: usize, cx: &mut Context<'_>) -> Poll<Result<(), InputError>> {
        loop {
            if ready!(self.conn.transport.poll_readable(cx)).is_err() {
                return Poll::Ready(Err(InputError::Failed));
            }
            match self.read() {
                Ok(Received::Some) => return Poll::Ready(Ok(())),
                Ok(Received::Nothing) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// The read before has told the client that the body is wanted.
    fn begin_wait(&mut self, timeout: Duration) {
        self.conn.read_deadline.borrow_mut().set(timeout);
    }

    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.conn.read_deadline.borrow_mut().poll_elapsed(cx)
    }

    fn charge_turn(&self) -> bool {
        self.conn.client.event_loop.budget.may_copy(self.buffer.len() - self.taken)
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn wire(&self) -> u64 {
        self.wire
    }

    fn arrived(&self) -> u64 {
        self.wire + (self.buffer.len() - self.taken) as u64
    }

    fn announced(&self) -> u64 {
        match &self.stage {
            Stage::Length(remaining) => self.received + remaining,
            Stage::Chunked(decoder) => self.received.saturating_add(decoder.chunk_left()),
            Stage::Done | Stage::Broken => self.received,
        }
    }

    fn is_pending(&self) -> bool {
        matches!(self.stage, Stage::Length(_) | Stage::Chunked(_))
    }

    fn precedes_next_request(&self) -> bool {
        true
    }

    fn is_broken(&self) -> bool {
        matches!(self.stage, Stage::Broken)
    }

    fn may_not_come(&self) -> bool {
        self.is_pending() && self.hundred == ContinueState::Awaited
    }

    fn discard(&mut self) -> Result<(), InputError> {
        while let Piece::Data(_) = self.take_any(usize::MAX)? {}
        Ok(())
    }

    fn decline(&mut self) {
        self.hundred = ContinueState::Settled;
    }

    fn take_rest(&mut self) -> Vec<u8> {
        let taken = std::mem::take(&mut self.taken);
        let mut rest = std::mem::take(&mut self.buffer);
        rest.drain(..taken);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_request::request_body::{self, BodyLimits, Source};

    #[test]
    fn received_bytes_can_be_read_in_pieces_of_any_size() {
        const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        const NEXT: &str = "GET /next HTTP/1.1\r\n";
        let body = "5;name=value\r\nhello\r\n1\r\n,\r\n006\r\n world\r\n0\r\nX: y\r\n\r\n";
        for want in [0, 1, 2, 3, 4, 7, 100, usize::MAX] {
            let request = format!("{HEAD}{body}{NEXT}");
            let (pieces, rest) = tw_http_testkit::with_request("server { }", &request, move |r| {
                let Source::Client(mut input) = r.body.take() else { panic!("there is a body") };
                let mut pieces = Vec::new();
                loop {
                    match input.input_mut().take(want, 0).unwrap() {
                        Piece::Data(data) => pieces.push(data),
                        Piece::NeedMore => panic!("all of it is at hand: {want}"),
                        Piece::End => return (pieces, input.take_rest()),
                    }
                }
            });
            assert_eq!(pieces.concat(), b"hello, world", "{want}");
            assert!(pieces.iter().all(|piece| piece.len() <= want.max(1)), "{want}");
            assert_eq!(rest, NEXT.as_bytes(), "{want}");
        }
    }

    #[test]
    fn invalid_body_has_no_known_end() {
        let request =
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\nGET / HTTP/1.1\r\n";
        let (is_known, is_pending) = tw_http_testkit::with_request("server { }", request, |r| {
            assert_eq!(request_body::read::discard(r), Err(400));
            (r.body.finished().is_some(), r.body.is_pending())
        });
        assert_eq!((is_known, is_pending), (false, false));
    }

    #[test]
    fn received_bytes_need_no_wait() {
        const TERMS: BodyLimits = BodyLimits { max_size: 10, timeout: Duration::ZERO, min_rate: None };
        for (framing, body, expected) in [
            ("Content-Length: 7", "hello", "hello …"),
            ("Content-Length: 5", "hello", "hello."),
            ("Transfer-Encoding: chunked", "3\r\nhel\r\n2\r\nlo\r\n", "hello …"),
            ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n", "hello."),
            ("Transfer-Encoding: chunked", "5\r\nhello\r\nb\r\n", "hello too large"),
            ("Transfer-Encoding: chunked", "5\r\nhello\r\nx", "hello malformed"),
        ] {
            let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{body}");
            let outcome = tw_http_testkit::with_request("server { }", &request, |r| {
                let Source::Client(mut input) = r.body.take() else { panic!("there is a body") };
                let mut text = String::new();
                loop {
                    match input.at_hand(4, TERMS) {
                        Some(Ok(Some(piece))) => text.push_str(std::str::from_utf8(&piece).unwrap()),
                        Some(Ok(None)) => return text + ".",
                        Some(Err(InputError::TooLarge { .. })) => return text + " too large",
                        Some(Err(_)) => return text + " malformed",
                        None => return text + " …",
                    }
                }
            });
            assert_eq!(outcome, expected, "{framing} {body:?}");
        }
    }

    #[test]
    fn a_body_that_is_cut_is_waited_for() {
        for body in ["", "5", "5\r\nhel", "5\r\nhello\r\n0\r\n\r"] {
            let request = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
            let ended = tw_http_testkit::with_request("server { }", &request, |r| {
                let Source::Client(mut input) = r.body.take() else { panic!("there is a body") };
                let input = input.input_mut();
                while let Piece::Data(_) = input.take(2, 0).unwrap() {}
                matches!(input.take(2, 0), Ok(Piece::NeedMore)) && input.is_pending()
            });
            assert!(ended, "{body:?}");
        }
    }
}
