//! HTTP/2 as an upstream server speaks it (RFC 9113). Frames were taken apart before: content comes as bytes, everything else as news
//! of the stream.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use tw_connect::failure::UpstreamFailure;
use tw_connect::h2_pool::{StreamEvent, UpstreamStream};
use tw_http::fields::{Name, Value};
use tw_http::origin::{FIELDS_MAX, INTERIM_MAX, is_single};
use tw_http::{Fields, HeaderName, Method, hop, num};
use tw_http2::FieldSection;
use tw_log::Text;

use super::{Codec, Event};
use tw_request::upstream_response::{UpstreamResponse, Warning};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a response in HTTP/2 of an upstream server that are gathered to see whether it is all there.
    const WHOLE_MAX: usize = 64 << 10, bytes, "the response goes on as it comes";
}

/// Reads one response.
pub struct Http2Codec {
    /// The method of the request as it was sent.
    method: Method,
    head_size: usize,
    trailers: Trailers,
    stream: Option<Rc<UpstreamStream>>,
    /// Heads in front of the one that counts.
    interims: u32,
    /// Bytes of the body that were announced and did not come yet.
    remaining: Option<u64>,
    /// Received content that was not taken yet.
    pieces: VecDeque<Bytes>,
    /// Failure behind the bytes held.
    failure: Option<UpstreamFailure>,
    stage: ResponseStage,
}

/// Treatment of trailer fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trailers {
    /// The client gets them.
    Forwarded,
    /// Dropped.
    Dropped,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ResponseStage {
    Head,
    Body,
    Over,
}

impl Http2Codec {
    /// Reads the response to a request with this method, whose head has at most `head_size` bytes.
    pub fn new(method: Method, head_size: usize, trailers: Trailers) -> Self {
        Self {
            method,
            head_size,
            trailers,
            stream: None,
            interims: 0,
            remaining: None,
            pieces: VecDeque::new(),
            failure: None,
            stage: ResponseStage::Head,
        }
    }

    fn head(&mut self, list: &FieldSection, answer: &mut UpstreamResponse) -> Result<Event, UpstreamFailure> {
        self.copy_head(list, answer)?;
        answer.content_length = length(&answer.fields)?;
        let has_body = self.method != Method::Head && !matches!(answer.status, 204 | 304);
        if !list.ends() {
            (self.stage, self.remaining) = (ResponseStage::Body, answer.content_length.filter(|_| has_body));
            return Ok(Event::Head);
        }
        if has_body && answer.content_length.is_some_and(|length| length > 0) {
            return Err(cut_short());
        }
        if has_body {
            // As in nginx, the body is known to be empty.
            answer.content_length = Some(0);
        }
        (self.stage, self.remaining) = (ResponseStage::Over, Some(0));
        Ok(Event::Head)
    }

    fn interim(
        &mut self,
        list: &FieldSection,
        answer: &mut UpstreamResponse,
    ) -> Result<Event, UpstreamFailure> {
        self.interims += 1;
        if self.interims > INTERIM_MAX {
            return Err(UpstreamFailure::Invalid("upstream sent too many interim responses".into()));
        }
        self.copy_head(list, answer)?;
        if list.ends() {
            return Err(cut_short());
        }
        // There are no other protocols in HTTP/2 (RFC 9113 section 8.6).
        if answer.status == 101 {
            return Err(UpstreamFailure::Invalid("upstream sent unexpected :status \"101\"".into()));
        }
        Ok(Event::Interim)
    }

    /// Copies a head into the answer.
    fn copy_head(&self, list: &FieldSection, answer: &mut UpstreamResponse) -> Result<(), UpstreamFailure> {
        answer.clear();
        check(list, "header")?;
        answer.status = list.status();
        let mut count = 0;
        let mut size = 0;
        for (name, value) in list.iter() {
            (count, size) = (count + 1, size + name.len() + value.len());
            if count > FIELDS_MAX {
                return Err(UpstreamFailure::Invalid("upstream sent too many headers".into()));
            }
            if size > self.head_size {
                return Err(UpstreamFailure::Invalid("upstream sent too big header".into()));
            }
            let known_name = HeaderName::find(name);
            if let Some(known_name) = known_name
                && is_single(known_name)
                && answer.fields.has(known_name)
            {
                let first = answer.fields.get_known(known_name).unwrap_or_default();
                let line = format!("{}, ignored", duplicate(name, value, first));
                answer.warnings.push(Warning::odd(line));
                continue;
            }
            answer.fields.append(Name::CopyKnown(name, known_name), Value::Copy(value));
        }
        Ok(())
    }

    fn end(
        &mut self,
        trailers: Option<Box<FieldSection>>,
        answer: &mut UpstreamResponse,
    ) -> Result<Event, UpstreamFailure> {
        self.stage = ResponseStage::Over;
        if self.remaining.is_some_and(|remaining| remaining > 0) {
            return Err(cut_short());
        }
        if let Some(trailers) = trailers {
            check(&trailers, "trailer")?;
            if self.trailers == Trailers::Forwarded {
                answer.trailers = trailing(&trailers);
            }
        }
        Ok(Event::End)
    }

    /// Counts content that came.
    fn count(&mut self, content: &Bytes) -> Result<(), UpstreamFailure> {
        if let Some(remaining) = &mut self.remaining {
            *remaining = remaining.checked_sub(content.len() as u64).ok_or_else(|| {
                UpstreamFailure::Invalid(
                    "upstream sent response body larger than indicated content length".into(),
                )
            })?;
        }
        Ok(())
    }

    fn held_len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Takes received content of up to about `max` bytes, to see if the end of the body is among it. A failure is
    /// reported after the content that arrived before it.
    fn look_ahead(&mut self, max: usize, answer: &mut UpstreamResponse) {
        while self.stage == ResponseStage::Body && self.failure.is_none() && self.held_len() <= max {
            match self.take(answer) {
                Ok(Taken::Something) => {}
                Ok(Taken::Nothing) => return,
                Err(failure) => self.failure = Some(failure),
            }
        }
    }

    fn take(&mut self, answer: &mut UpstreamResponse) -> Result<Taken, UpstreamFailure> {
        let Some(stream) = &self.stream else { return Ok(Taken::Nothing) };
        let Some(content) = stream.take()? else { return Ok(Taken::Nothing) };
        if let Some(StreamEvent::End(trailers)) = stream.take_event() {
            self.end(trailers, answer)?;
        } else {
            self.count(&content)?;
            self.pieces.push_back(content);
        }
        Ok(Taken::Something)
    }
}

/// Result of taking the next event of the stream.
enum Taken {
    Something,
    Nothing,
}

/// Checks a list of fields against the rules for responses.
fn check(list: &FieldSection, what: &str) -> Result<(), UpstreamFailure> {
    if list.is_truncated() {
        return Err(UpstreamFailure::Invalid(format!("upstream sent too big {what}").into()));
    }
    match list.malformed() {
        Some(failure) => Err(UpstreamFailure::Invalid(format!("upstream {failure}").into())),
        None => Ok(()),
    }
}

/// Length of the body according to the head (RFC 9113 section 8.1.1).
fn length(fields: &Fields) -> Result<Option<u64>, UpstreamFailure> {
    const NAME: &[u8] = b"content-length";
    if !fields.has(HeaderName::ContentLength) {
        return Ok(None);
    }
    let mut values = fields.get_all(NAME);
    let first = values.next().unwrap_or_default();
    if let Some(second) = values.next() {
        return Err(UpstreamFailure::Invalid(duplicate(NAME, second, first).into()));
    }
    match num::parse_length(first) {
        Some(length) => Ok(Some(length)),
        None => {
            let name = Text(NAME);
            let value = Text(first);
            let text = format!("upstream sent invalid \"Content-Length\" header: \"{name}: {value}\"");
            Err(UpstreamFailure::Invalid(text.into()))
        }
    }
}

fn duplicate(name: &[u8], value: &[u8], first: &[u8]) -> String {
    let name = Text(name);
    let value = Text(value);
    let first = Text(first);
    format!("upstream sent duplicate header line: \"{name}: {value}\", previous value: \"{name}: {first}\"")
}

/// The response has ended in front of what it has announced.
fn cut_short() -> UpstreamFailure {
    UpstreamFailure::Invalid("upstream prematurely closed stream".into())
}

/// Fields behind a body that may be there.
fn trailing(trailers: &FieldSection) -> Fields {
    let mut fields = Fields::default();
    for (name, value) in trailers.iter() {
        let known_name = HeaderName::find(name);
        if hop::may_be_trailer(name, known_name) {
            fields.append(Name::CopyKnown(name, known_name), Value::Copy(value));
        }
    }
    fields
}

/// For another server: nothing of what was read.
impl Clone for Http2Codec {
    fn clone(&self) -> Self {
        Self::new(self.method, self.head_size, self.trailers)
    }
}

impl Codec for Http2Codec {
    fn is_multiplexed(&self) -> bool {
        true
    }

    fn attach(&mut self, stream: &Rc<UpstreamStream>) {
        self.stream = Some(stream.clone());
    }

    fn read(&mut self, input: &mut Bytes, answer: &mut UpstreamResponse) -> Result<Event, UpstreamFailure> {
        if let Some(content) = self.pieces.pop_front() {
            return Ok(Event::Body(content));
        }
        if let Some(failure) = self.failure.take() {
            self.stage = ResponseStage::Over;
            return Err(failure);
        }
        if self.stage == ResponseStage::Over {
            return Ok(Event::End);
        }
        if !input.is_empty() {
            let content = std::mem::take(input);
            self.count(&content)?;
            return Ok(Event::Body(content));
        }
        match self.stream.as_ref().and_then(|stream| stream.take_event()) {
            None => Ok(Event::NeedMore),
            Some(StreamEvent::Interim(list)) => self.interim(&list, answer),
            Some(StreamEvent::Head(list)) => self.head(&list, answer),
            Some(StreamEvent::End(trailers)) => self.end(trailers, answer),
        }
    }

    fn closed(&mut self) -> Result<(), UpstreamFailure> {
        Err(UpstreamFailure::Closed)
    }

    fn remaining(&self) -> Option<u64> {
        self.remaining.map(|remaining_len| remaining_len + self.held_len() as u64)
    }

    fn ends(&mut self, _: &mut Bytes, answer: &mut UpstreamResponse) -> bool {
        self.look_ahead(0, answer);
        self.stage == ResponseStage::Over && self.pieces.is_empty() && self.failure.is_none()
    }

    fn whole(
        &mut self,
        _: &mut Bytes,
        answer: &mut UpstreamResponse,
    ) -> Result<Option<Bytes>, UpstreamFailure> {
        self.look_ahead(WHOLE_MAX, answer);
        if self.stage != ResponseStage::Over || self.failure.is_some() {
            return Ok(None);
        }
        let first = self.pieces.pop_front().unwrap_or_default();
        if self.pieces.is_empty() {
            return Ok(Some(first));
        }
        let mut whole = Vec::with_capacity(first.len() + self.held_len());
        whole.extend_from_slice(&first);
        self.pieces.drain(..).for_each(|piece| whole.extend_from_slice(&piece));
        Ok(Some(whole.into()))
    }

    /// The pool keeps the connection.
    fn keeps_alive(&self) -> bool {
        false
    }

    fn passes_trailers(&self) -> bool {
        self.trailers == Trailers::Forwarded && self.stage != ResponseStage::Over
    }
}
