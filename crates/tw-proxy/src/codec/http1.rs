//! HTTP/1 as an upstream server speaks it (RFC 9112), and what applications behind uwsgi and SCGI answer: the same, or fields
//! alone (RFC 3875 section 6).

use std::cell::Cell;

use bytes::Bytes;
use tw_connect::failure::UpstreamFailure;
use tw_http::head::Progress;
use tw_http::origin::{BodyDecoder, HeadStart, OriginHead, OriginLimits, ResponseFraming};
use tw_http::{Method, status};

use super::{Codec, Event};
use tw_request::upstream_response::{UpstreamResponse, Warning};

/// Memory that the unused list of fields may keep, so that it is not allocated for each response.
const SPARE_SIZE_MAX: usize = 16 << 10;

thread_local! {
    /// A head is read in one go unless the server is slow: a loop seldom needs two.
    static SPARE: Cell<Option<Box<OriginHead>>> = const { Cell::new(None) };
}

/// Reads one response.
pub struct Http1Codec {
    /// The method of the request as it was sent.
    method: Method,
    limits: OriginLimits,
    start: HeadStart,
    /// Set if trailer fields are kept.
    keeps_trailers: bool,
    /// While it comes.
    head: Option<Box<OriginHead>>,
    body: Option<BodyDecoder>,
    framing: ResponseFraming,
    keeps_alive: bool,
}

impl Http1Codec {
    /// Reads the response to a request with this method, whose head has at most `head_size` bytes.
    pub fn new(method: Method, head_size: usize, keeps_trailers: bool) -> Self {
        Self {
            method,
            limits: OriginLimits::of_size(head_size),
            start: HeadStart::StatusLine,
            keeps_trailers,
            head: None,
            body: None,
            framing: ResponseFraming::None,
            keeps_alive: false,
        }
    }

    /// Creates the codec of an application (SCGI, uwsgi), whose response may begin with fields and ends with the connection.
    pub fn of_application(method: Method, head_size: usize) -> Self {
        Self { start: HeadStart::Either, ..Self::new(method, head_size, false) }
    }

    /// Method of the request as it was sent.
    pub fn method(&self) -> Method {
        self.method
    }

    fn head(&mut self, input: &mut Bytes, answer: &mut UpstreamResponse) -> Result<Event, UpstreamFailure> {
        let start = self.start;
        let head = self.head.get_or_insert_with(|| spare_head(start));
        loop {
            match head.feed(input, &self.limits) {
                Err(error) => {
                    return Err(UpstreamFailure::Invalid(head.error_text(error).to_string().into()));
                }
                Ok(Progress::NeedMore) if input.is_empty() => return Ok(Event::NeedMore),
                Ok(Progress::NeedMore) => {}
                Ok(Progress::Complete) => break,
            }
        }
        copy_head(head, answer);
        if head.is_interim() {
            head.next_response();
            return Ok(Event::Interim);
        }
        self.framing = head.framing(self.method);
        self.keeps_alive = self.start == HeadStart::StatusLine && head.keeps_alive(self.method);
        let trailers_size = self.keeps_trailers.then_some(self.limits.head_size);
        self.body = Some(BodyDecoder::new(self.framing, trailers_size));
        if let Some(head) = self.head.take() {
            give_head_back(head);
        }
        Ok(Event::Head)
    }
}

/// Head that is discarded, for an interim response.
pub(super) fn spare_head(start: HeadStart) -> Box<OriginHead> {
    let mut head = SPARE.take().unwrap_or_default();
    head.begin_with(start);
    head
}

/// Keeps its memory for the next response.
pub(super) fn give_head_back(mut head: Box<OriginHead>) {
    if head.capacity() <= SPARE_SIZE_MAX {
        head.clear();
        SPARE.set(Some(head));
    }
}

/// Copies the head into the answer.
pub(super) fn copy_head(head: &OriginHead, answer: &mut UpstreamResponse) {
    answer.clear();
    answer.status = head.status();
    answer.content_length = head.content_length();
    let line = head.status_line();
    let is_usual = status::line(answer.status).is_some_and(|usual| usual.as_bytes() == line);
    // The line of a 204 says that its type is that of the upstream server, which the client gets.
    if !line.is_empty() && (!is_usual || answer.status == 204) {
        answer.status_line = Bytes::copy_from_slice(line);
    }
    answer.warnings.extend(head.duplicates().map(|text| Warning::odd(text.to_string())));
    head.copy_fields(&mut answer.fields);
}

/// For another server: nothing of what was read.
impl Clone for Http1Codec {
    fn clone(&self) -> Self {
        Self { start: self.start, ..Self::new(self.method, self.limits.head_size, self.keeps_trailers) }
    }
}

impl Codec for Http1Codec {
    fn read(&mut self, input: &mut Bytes, answer: &mut UpstreamResponse) -> Result<Event, UpstreamFailure> {
        let Some(body) = &mut self.body else { return self.head(input, answer) };
        match body.take(input) {
            Ok(Some(piece)) => Ok(Event::Body(piece)),
            Ok(None) if body.is_done() => {
                if let Some(trailers) = body.take_trailers() {
                    answer.trailers = trailers;
                }
                Ok(Event::End)
            }
            Ok(None) => Ok(Event::NeedMore),
            Err(error) => Err(UpstreamFailure::Invalid(body.error_text(error).to_string().into())),
        }
    }

    fn closed(&mut self) -> Result<(), UpstreamFailure> {
        match &mut self.body {
            None => Err(UpstreamFailure::Closed),
            Some(body) => body.close().map_err(|_| UpstreamFailure::Closed),
        }
    }

    fn remaining(&self) -> Option<u64> {
        match self.framing {
            ResponseFraming::None => Some(0),
            ResponseFraming::Length(_) => self.body.as_ref().map(BodyDecoder::remaining),
            ResponseFraming::Chunked | ResponseFraming::Close | ResponseFraming::Tunnel => None,
        }
    }

    fn keeps_alive(&self) -> bool {
        self.keeps_alive && self.body.as_ref().is_some_and(BodyDecoder::is_done)
    }

    fn is_tunnel(&self) -> bool {
        self.framing == ResponseFraming::Tunnel
    }

    fn passes_trailers(&self) -> bool {
        self.keeps_trailers && self.framing == ResponseFraming::Chunked
    }
}
