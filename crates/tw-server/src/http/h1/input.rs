//! The body of a request as HTTP/1 brings it: the bytes that follow the head, without their framing (RFC 9112 section 6).
//!
//! It owns what it needs, so that a body can be read while the response to it is being sent. Bytes that came behind the
//! body are the next request's: [`Http1Body::take_rest`].

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tw_core::event_loop::{INPUT_SIZE, copy_received};
use tw_http::Framing;
use tw_http::chunked::{Chunk, ChunkedDecoder, OVERHEAD_MAX, Trailers};
use tw_http::response::CONTINUE;

use super::Http1Connection;
use super::conn::SocketWaitError;
use crate::http::client_wait::{ClientWait, WaitLimits};
use crate::http::request_body::{BodyLimits, BodyProgress, Drained, InputError};
use crate::http::request_deadline::RequestDeadline;

/// Size of one read of a chunked body. A body of known length has no framing, so larger reads pass on without a copy.
const READ_SIZE: usize = 16 << 10;

/// The body of a request, as far as it was not taken yet.
pub struct Http1Body {
    conn: Rc<Http1Connection>,
    /// Bytes received, framing included.
    buffer: Vec<u8>,
    /// Number of them that were taken.
    taken: usize,
    stage: Stage,
    hundred: ContinueState,
    received: u64,
    /// Takes over `received` after each piece.
    progress: Option<BodyProgress>,
    wire: u64,
    waits: ClientWait,
    /// Learns when the body waits for the client.
    deadline: Option<Rc<RequestDeadline>>,
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

/// Result of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    Some,
    Nothing,
}

/// Piece of the body that needs no wait.
pub(crate) enum Piece {
    /// Bytes of the body.
    Data(Bytes),
    /// All bytes received were taken.
    NeedMore,
    /// The body is complete.
    End,
}

impl Http1Body {
    /// The body that follows a head with this framing, of which `buffer` came already; `None` if there is none.
    pub(crate) fn new(
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
        Some(Self {
            conn: conn.clone(),
            buffer,
            taken: 0,
            stage,
            hundred,
            received: 0,
            progress: None,
            wire: 0,
            waits: ClientWait::default(),
            deadline: None,
        })
    }

    /// Bytes of the body that were taken.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Notes the bytes that are taken from now on in `progress`, too.
    pub(crate) fn note_progress(&mut self, progress: BodyProgress) {
        progress.set(self.received);
        self.progress = Some(progress);
    }

    /// Notes in `deadline` from now on whether the body waits for the client.
    pub(crate) fn note_waits(&mut self, deadline: Rc<RequestDeadline>) {
        self.deadline = Some(deadline);
    }

    /// Bytes received, with the framing of a chunked body.
    pub(crate) fn wire(&self) -> u64 {
        self.wire
    }

    /// Number of body bytes known so far: those received and those announced.
    pub(crate) fn announced(&self) -> u64 {
        match &self.stage {
            Stage::Length(left) => self.received + left,
            Stage::Chunked(decoder) => self.received.saturating_add(decoder.chunk_left()),
            Stage::Done | Stage::Broken => self.received,
        }
    }

    /// Returns true if a part was not taken and may still be.
    pub(crate) fn is_pending(&self) -> bool {
        matches!(self.stage, Stage::Length(_) | Stage::Chunked(_))
    }

    /// Returns true if the end of the body is unknown.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.stage, Stage::Broken)
    }

    /// Returns true if the client awaits `100 Continue` and may not send the body: the begin of its next request is unknown.
    pub(crate) fn may_not_come(&self) -> bool {
        self.is_pending() && self.hundred == ContinueState::Awaited
    }

    /// Takes the bytes behind the body.
    pub(crate) fn take_rest(&mut self) -> Vec<u8> {
        let taken = std::mem::take(&mut self.taken);
        let mut rest = std::mem::take(&mut self.buffer);
        rest.drain(..taken);
        rest
    }

    /// Ignores what is at hand of the body.
    pub(crate) fn skip(&mut self) -> Result<(), InputError> {
        while let Piece::Data(_) = self.take(usize::MAX)? {}
        Ok(())
    }

    /// Reads and ignores the rest of the body: for `time` in all, at most `timeout` between two reads.
    pub(crate) async fn drain(&mut self, time: Duration, timeout: Duration) -> Drained {
        let until = tw_rt::clock::now() + time;
        // The rest of the body is discarded, so `100 Continue` is not sent for it any more.
        self.hundred = ContinueState::Settled;
        loop {
            match self.skip() {
                Ok(()) if !self.is_pending() => return Drained::Yes,
                Ok(()) => {}
                Err(_) => return Drained::No,
            }
            let left = until.saturating_duration_since(tw_rt::clock::now()).min(timeout);
            let limits = WaitLimits { timeout: left, min_rate: None };
            if left.is_zero() || self.fill(limits).await.is_err() {
                return Drained::No;
            }
            tw_rt::yield_now().await;
        }
    }

    /// Takes what is at hand of the body, at most `want` bytes.
    pub(crate) fn take(&mut self, want: usize) -> Result<Piece, InputError> {
        loop {
            let piece = self.take_of(want.max(1))?;
            // So few bytes may be framing only, although there are more.
            if !matches!(piece, Piece::NeedMore) || self.buffer.is_empty() {
                return Ok(piece);
            }
        }
    }

    /// Looks at `want` bytes of what is at hand.
    fn take_of(&mut self, want: usize) -> Result<Piece, InputError> {
        let input = self.buffer.get(self.taken..).unwrap_or_default();
        let input = input.get(..want).unwrap_or(input);
        let (used, range) = match &mut self.stage {
            Stage::Done | Stage::Broken => return Ok(Piece::End),
            Stage::Length(_) if input.is_empty() => return Ok(Piece::NeedMore),
            Stage::Length(left) => {
                let len = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= len as u64;
                if *left == 0 {
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
        if let Some(progress) = &self.progress {
            progress.set(self.received);
        }
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

    /// Waits for the next bytes of the body as long as `terms` grant, and takes at most `want` of them; `None` at the end.
    pub(crate) async fn next(&mut self, want: usize, terms: BodyLimits) -> Result<Option<Bytes>, InputError> {
        loop {
            match self.take_granted(want, terms)? {
                Piece::Data(data) => return Ok(Some(data)),
                Piece::End => return Ok(None),
                Piece::NeedMore => self.fill(terms.wait()).await?,
            }
            // A client that sends faster than we read does not keep the loop.
            self.conn.client.event_loop.budget.spend(self.buffer.len() - self.taken).await;
        }
    }

    /// Returns the next piece without waiting, else `None`. Reads once from the connection if all bytes received were taken.
    pub(crate) fn at_hand(
        &mut self,
        want: usize,
        terms: BodyLimits,
    ) -> Option<Result<Option<Bytes>, InputError>> {
        let mut has_read = false;
        loop {
            match self.take_granted(want, terms) {
                Ok(Piece::Data(data)) => return Some(Ok(Some(data))),
                Ok(Piece::End) => return Some(Ok(None)),
                // One read per call: the bytes received held only chunk framing.
                Ok(Piece::NeedMore) if has_read => return None,
                Ok(Piece::NeedMore) => {}
                Err(error) => return Some(Err(error)),
            }
            match self.read() {
                Ok(Read::Some) => has_read = true,
                Ok(Read::Nothing) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Takes what is at hand, as far as `terms` grant it.
    fn take_granted(&mut self, want: usize, terms: BodyLimits) -> Result<Piece, InputError> {
        let received = self.received;
        let piece = self.take(want)?;
        // A chunk is refused at its size line, before any of it is there.
        if terms.max_size > 0 && self.announced() > terms.max_size {
            return Err(InputError::TooLarge { received, coming: self.announced() - received });
        }
        if matches!(piece, Piece::End) {
            self.invite()?;
        }
        Ok(piece)
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

    /// Reads more from the connection, for which it waits within `limits`.
    async fn fill(&mut self, limits: WaitLimits) -> Result<(), InputError> {
        while self.read()? == Read::Nothing {
            let came = self.wire + (self.buffer.len() - self.taken) as u64;
            let waiting = self.waits.begin(limits, came)?;
            self.note_wait(true);
            let ready = self.conn.readable(waiting.timeout()).await;
            self.note_wait(false);
            match ready {
                Ok(()) => {}
                Err(SocketWaitError::Timeout) => return Err(waiting.end().into()),
                Err(SocketWaitError::Io(_)) => return Err(InputError::Failed),
            }
        }
        Ok(())
    }

    fn note_wait(&self, waits: bool) {
        if let Some(deadline) = &self.deadline {
            deadline.set_awaits_body(waits);
        }
    }

    /// Reads once.
    fn read(&mut self) -> Result<Read, InputError> {
        self.invite()?;
        match self.stage {
            Stage::Length(left) if left >= INPUT_SIZE as u64 && self.buffer.is_empty() => {
                self.let_go();
                self.buffer = self.conn.client.event_loop.buffers.take_input();
            }
            Stage::Length(left) => {
                self.buffer.reserve(usize::try_from(left).unwrap_or(INPUT_SIZE).min(INPUT_SIZE))
            }
            Stage::Chunked(_) | Stage::Done | Stage::Broken => self.buffer.reserve(READ_SIZE),
        }
        match self.conn.transport.try_read(&mut self.buffer) {
            Ok(0) => Err(InputError::Closed),
            Ok(_) => Ok(Read::Some),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if self.buffer.is_empty() {
                    // A client that makes us wait holds no buffer.
                    self.let_go();
                }
                Ok(Read::Nothing)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::request_body::{self, Source};

    #[test]
    fn received_bytes_can_be_read_in_pieces_of_any_size() {
        const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        const NEXT: &str = "GET /next HTTP/1.1\r\n";
        let body = "5;name=value\r\nhello\r\n1\r\n,\r\n006\r\n world\r\n0\r\nX: y\r\n\r\n";
        for want in [0, 1, 2, 3, 4, 7, 100, usize::MAX] {
            let request = format!("{HEAD}{body}{NEXT}");
            let (pieces, rest) = crate::testing::with_request("server { }", &request, move |r| {
                let Source::H1(mut input) = r.body.take() else { panic!("there is a body") };
                let mut pieces = Vec::new();
                loop {
                    match input.take(want).unwrap() {
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
        let (is_known, is_pending) = crate::testing::with_request("server { }", request, |r| {
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
            let seen = crate::testing::with_request("server { }", &request, |r| {
                let Source::H1(mut input) = r.body.take() else { panic!("there is a body") };
                let mut seen = String::new();
                loop {
                    match input.at_hand(4, TERMS) {
                        Some(Ok(Some(piece))) => seen.push_str(std::str::from_utf8(&piece).unwrap()),
                        Some(Ok(None)) => return seen + ".",
                        Some(Err(InputError::TooLarge { .. })) => return seen + " too large",
                        Some(Err(_)) => return seen + " malformed",
                        None => return seen + " …",
                    }
                }
            });
            assert_eq!(seen, expected, "{framing} {body:?}");
        }
    }

    #[test]
    fn a_body_that_is_cut_is_waited_for() {
        for body in ["", "5", "5\r\nhel", "5\r\nhello\r\n0\r\n\r"] {
            let request = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
            let ended = crate::testing::with_request("server { }", &request, |r| {
                let Source::H1(mut input) = r.body.take() else { panic!("there is a body") };
                while let Piece::Data(_) = input.take(2).unwrap() {}
                matches!(input.take(2), Ok(Piece::NeedMore)) && input.is_pending()
            });
            assert!(ended, "{body:?}");
        }
    }
}
