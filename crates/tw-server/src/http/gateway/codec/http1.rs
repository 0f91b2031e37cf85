//! HTTP/1 as an upstream server speaks it (RFC 9112).

use bytes::Bytes;
use tw_http::fields::{Name, Value};
use tw_http::head::Progress;
use tw_http::origin::{BodyDecoder, OriginHead, OriginLimits, ResponseFraming};
use tw_http::{Method, status};

use super::{Answer, Codec, Event};
use crate::http::gateway::fault::Fault;

/// Reads one response.
pub struct Http1 {
    /// The method of the request as it was sent.
    method: Method,
    limits: OriginLimits,
    /// Whether fields behind the body are kept.
    keeps_trailers: bool,
    /// Apart, because what reads is handed on and a head is large.
    head: Box<OriginHead>,
    body: Option<BodyDecoder>,
    framing: ResponseFraming,
    keeps_alive: bool,
}

impl Http1 {
    /// Reads the response to a request with this method, whose head has at most `head_size` bytes.
    pub fn new(method: Method, head_size: usize, keeps_trailers: bool) -> Self {
        Self {
            method,
            limits: OriginLimits::of_size(head_size),
            keeps_trailers,
            head: Box::new(OriginHead::new()),
            body: None,
            framing: ResponseFraming::None,
            keeps_alive: false,
        }
    }

    fn head(&mut self, input: &mut Bytes, answer: &mut Answer) -> Result<Event, Fault> {
        loop {
            match self.head.feed(input, &self.limits) {
                Err(error) => return Err(Fault::Invalid(self.head.error_text(error).to_string().into())),
                Ok(Progress::NeedMore) if input.is_empty() => return Ok(Event::NeedMore),
                Ok(Progress::NeedMore) => {}
                Ok(Progress::Complete) => break,
            }
        }
        self.tell(answer);
        if self.head.is_interim() {
            self.head.next_response();
            return Ok(Event::Interim);
        }
        self.framing = self.head.framing(self.method);
        self.keeps_alive = self.head.keeps_alive(self.method);
        let trailers_size = self.keeps_trailers.then_some(self.limits.head_size);
        self.body = Some(BodyDecoder::new(self.framing, trailers_size));
        Ok(Event::Head)
    }

    /// Copies the head into the answer.
    fn tell(&self, answer: &mut Answer) {
        answer.clear();
        answer.status = self.head.status();
        answer.content_length = self.head.content_length();
        let line = self.head.status_line();
        if status::line(answer.status).is_none_or(|usual| usual.as_bytes() != line) {
            answer.status_line = Bytes::copy_from_slice(line);
        }
        for field in self.head.fields() {
            let name = match field.known {
                Some(known) if known.as_str().as_bytes() == field.name => Name::Known(known),
                _ => Name::Copy(field.name),
            };
            answer.fields.append(name, Value::Copy(field.value));
        }
    }
}

/// For another server: nothing of what was read.
impl Clone for Http1 {
    fn clone(&self) -> Self {
        Self::new(self.method, self.limits.head_size, self.keeps_trailers)
    }
}

impl Codec for Http1 {
    fn read(&mut self, input: &mut Bytes, answer: &mut Answer) -> Result<Event, Fault> {
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
            Err(error) => Err(Fault::Invalid(body.error_text(error).to_string().into())),
        }
    }

    fn closed(&mut self) -> Result<(), Fault> {
        match &mut self.body {
            None => Err(Fault::Closed),
            Some(body) => body.close().map_err(|_| Fault::Closed),
        }
    }

    fn remaining(&self) -> Option<u64> {
        match self.framing {
            ResponseFraming::None => Some(0),
            ResponseFraming::Length(_) => self.body.as_ref().map(BodyDecoder::left),
            ResponseFraming::Chunked | ResponseFraming::Close | ResponseFraming::Tunnel => None,
        }
    }

    fn keeps_alive(&self) -> bool {
        self.keeps_alive && self.body.as_ref().is_some_and(BodyDecoder::is_done)
    }

    fn is_tunnel(&self) -> bool {
        self.framing == ResponseFraming::Tunnel
    }
}
