//! FastCGI as an application speaks it (version 1): records of output, of what is for the error log, and one that ends it.
//!
//! ```text
//! Header ─► Content ─► Padding ─► Header …        of the record that ends the request: ─► Ended
//! ```
//! One request at a time has a connection, and its number is 1.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use tw_connect::failure::UpstreamFailure;
use tw_http::head::Progress;
use tw_http::origin::{HeadStart, OriginHead, OriginLimits, other_protocol};
use tw_http::{Method, status};
use tw_log::Level;

use super::{Codec, Event, http1};
use tw_request::upstream_response::{UpstreamResponse, Warning};

/// Bytes of content in one record of ours: the most that needs no padding and whose length is written in 16 bits.
pub(super) const RECORD_MAX: usize = 65_528;
/// Bytes of the head of a record.
const RECORD_HEAD: usize = 8;

/// Begin of a request, in the role of a responder. The flag tells whether the connection stays open.
const BEGIN: [u8; 16] = [VERSION, 1, 0, 1, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
/// Position of the flag.
const BEGIN_FLAGS: usize = 10;
/// End of the parameters.
const PARAMS_END: [u8; RECORD_HEAD] = [VERSION, PARAMS, 0, 1, 0, 0, 0, 0];
/// End of the body of a request.
pub(super) const STDIN_END: &[u8] = &[VERSION, STDIN, 0, 1, 0, 0, 0, 0];

const VERSION: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of what an application says in FastCGI's stderr in one line of the error log.
    const STDERR_LINE_MAX: usize = 2048, bytes, "the rest is in the next line";
    /// Bytes of what an application says in FastCGI's stderr during one response.
    // DIFF(nginx): what an application says beside its response has a limit.
    const STDERR_MAX: usize = 64 << 10, bytes, "the rest is counted and not logged";
}

/// The head of a record of the body of a request.
pub(super) fn record_head(len: usize) -> Bytes {
    Bytes::copy_from_slice(&head_of(STDIN, len))
}

/// Padding of a record, so that the next one is aligned.
pub(super) fn record_padding(len: usize) -> Bytes {
    Bytes::from_static(&[0; RECORD_HEAD][..padding_of(len)])
}

fn padding_of(len: usize) -> usize {
    len.next_multiple_of(RECORD_HEAD) - len
}

fn head_of(kind: u8, len: usize) -> [u8; RECORD_HEAD] {
    let [high, low] = u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    [VERSION, kind, 0, 1, high, low, padding_of(len) as u8, 0]
}

/// Writes what comes before the body of a request: its beginning and its parameters.
pub struct FastCgiRequest {
    out: Vec<u8>,
}

impl FastCgiRequest {
    /// Begins. With `keeps_open`, the application is to keep the connection for another request.
    pub fn begin(capacity: usize, keeps_open: bool) -> Self {
        let mut out = Vec::with_capacity(capacity);
        out.extend_from_slice(&BEGIN);
        out[BEGIN_FLAGS] = u8::from(keeps_open);
        out.extend_from_slice(&head_of(PARAMS, 0));
        Self { out }
    }

    /// Begins a parameter, and gives the place of its value's length: what is appended to [`out`](Self::out) is the value.
    pub fn begin_param(&mut self, name: &[u8]) -> usize {
        match short_len(name.len()) {
            Some(short) => self.out.push(short),
            None => self.out.extend_from_slice(&long_len(name.len())),
        }
        let room = self.out.len();
        self.out.push(0);
        self.out.extend_from_slice(name);
        room
    }

    /// Ends a parameter whose value begins at `value_at`.
    pub fn end_param(&mut self, room: usize, value_at: usize) {
        let len = self.out.len() - value_at;
        match short_len(len) {
            Some(short) => self.out[room] = short,
            None => drop(self.out.splice(room..=room, long_len(len))),
        }
    }

    /// Buffer of the parameters written so far.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    // DIFF(nginx): nginx refuses requests whose parameters do not fit into one record.
    /// The bytes, with the end of the parameters.
    pub fn end(self) -> Vec<u8> {
        const PARAMS_AT: usize = BEGIN.len() + RECORD_HEAD;
        let mut out = self.out;
        let len = out.len() - PARAMS_AT;
        if len > RECORD_MAX {
            let params = out.split_off(PARAMS_AT);
            out.truncate(BEGIN.len());
            for piece in params.chunks(RECORD_MAX) {
                out.extend_from_slice(&head_of(PARAMS, piece.len()));
                out.extend_from_slice(piece);
                out.resize(out.len() + padding_of(piece.len()), 0);
            }
        } else if len > 0 {
            out[BEGIN.len()..PARAMS_AT].copy_from_slice(&head_of(PARAMS, len));
            out.resize(out.len() + padding_of(len), 0);
        } else {
            out.truncate(BEGIN.len());
        }
        out.extend_from_slice(&PARAMS_END);
        out
    }
}

/// A length of one byte.
fn short_len(len: usize) -> Option<u8> {
    u8::try_from(len).ok().filter(|len| *len < 128)
}

/// A length of four bytes.
fn long_len(len: usize) -> [u8; 4] {
    (u32::try_from(len).unwrap_or(u32::MAX) | 1 << 31).to_be_bytes()
}

/// Settings of a location about applications and their responses.
#[derive(Clone, Debug, Default)]
pub struct FastCgiSettings {
    /// `fastcgi_keep_conn`: connections stay open.
    pub keeps_open: bool,
    /// Texts in stderr that make a response invalid.
    pub caught: Arc<[Box<[u8]>]>,
}

/// Reads one response.
pub struct FastCgiCodec {
    method: Method,
    limits: OriginLimits,
    settings: FastCgiSettings,
    /// While it comes.
    head: Option<Box<OriginHead>>,
    has_head: bool,
    /// Set if the head has no body.
    is_bodiless: bool,
    /// Bytes of the body that were announced and have not come.
    remaining: Option<u64>,
    /// Set once the application has ended its output.
    is_closed: bool,
    stage: RecordStage,
    stderr: Stderr,
}

/// Progress within a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordStage {
    /// Record head, of which so many bytes have been read.
    Header([u8; RECORD_HEAD], usize),
    /// Content of a record, with the bytes left.
    Content(Record),
    /// Padding of a record, with the bytes left.
    Padding(Record),
    /// There is nothing more, and the connection may have another request.
    Ended,
    /// The rest of the input is discarded.
    Discarding,
}

const BEGINNING: RecordStage = RecordStage::Header([0; RECORD_HEAD], 0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    kind: RecordKind,
    content: usize,
    padding: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordKind {
    Stdout,
    Stderr,
    End,
}

/// Text for the error log, up to the next complete record of it.
#[derive(Default)]
struct Stderr {
    line: Vec<u8>,
    logged: usize,
    /// Bytes that were not logged.
    lost: u64,
}

impl FastCgiCodec {
    /// Reads the response to a request with this method, whose head has at most `head_size` bytes.
    pub fn new(method: Method, head_size: usize, settings: FastCgiSettings) -> Self {
        Self {
            method,
            limits: OriginLimits::of_size(head_size),
            settings,
            head: None,
            has_head: false,
            is_bodiless: false,
            remaining: None,
            is_closed: false,
            stage: BEGINNING,
            stderr: Stderr::default(),
        }
    }

    /// A record whose head is complete.
    fn begin_record(&mut self, bytes: [u8; RECORD_HEAD]) -> Result<(), UpstreamFailure> {
        let record = Record::read(bytes).map_err(|text| UpstreamFailure::Invalid(text.into()))?;
        let invalid = |text: &str| Err(UpstreamFailure::Invalid(text.into()));
        self.stage = RecordStage::Content(record);
        match record.kind {
            RecordKind::End if !self.has_head => {
                return Err(UpstreamFailure::Invalid(
                    format!("upstream sent unexpected FastCGI record: {END_REQUEST}").into(),
                ));
            }
            RecordKind::End if self.lacks() => return invalid("upstream prematurely closed FastCGI request"),
            RecordKind::Stdout if record.content == 0 => {
                if !self.has_head || self.lacks() {
                    return invalid("upstream prematurely closed FastCGI stdout");
                }
                self.is_closed = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns true if bytes of the body are missing.
    fn lacks(&self) -> bool {
        !self.is_bodiless && self.remaining.is_some_and(|remaining| remaining > 0)
    }

    /// Content of a record of output: the head, or a piece of the body.
    fn output(
        &mut self,
        input: &mut Bytes,
        len: usize,
        answer: &mut UpstreamResponse,
    ) -> Result<(usize, Option<Event>), UpstreamFailure> {
        if self.has_head {
            return Ok((len, self.body(input.split_to(len), answer)));
        }
        let head = self.head.get_or_insert_with(|| http1::spare_head(HeadStart::Fields));
        let mut content = input.slice(..len);
        let progress = loop {
            match head.feed(&mut content, &self.limits) {
                Err(error) => {
                    return Err(UpstreamFailure::Invalid(head.error_text(error).to_string().into()));
                }
                Ok(Progress::NeedMore) if !content.is_empty() => {}
                Ok(progress) => break progress,
            }
        };
        let taken = len - content.len();
        input.advance(taken);
        if progress == Progress::NeedMore {
            return Ok((taken, None));
        }
        // A FastCGI connection cannot become a tunnel, because it consists of records.
        if head.status() == 101 {
            return Err(UpstreamFailure::Invalid("upstream sent invalid status \"101\"".into()));
        }
        let said = std::mem::take(&mut answer.warnings);
        http1::copy_head(head, answer);
        answer.warnings.splice(0..0, said);
        self.has_head = true;
        self.is_bodiless = self.method.is_head() || status::has_no_body(answer.status);
        self.remaining = answer.content_length;
        if let Some(head) = self.head.take() {
            http1::give_head_back(head);
        }
        Ok((taken, Some(Event::Head)))
    }

    fn body(&mut self, mut piece: Bytes, answer: &mut UpstreamResponse) -> Option<Event> {
        if self.is_bodiless {
            return None;
        }
        if let Some(remaining) = &mut self.remaining {
            let room = usize::try_from(*remaining).unwrap_or(usize::MAX);
            if piece.len() > room {
                let text = "upstream sent more data than specified in \"Content-Length\" header";
                answer.warnings.push(Warning::odd(text));
                piece.truncate(room);
                self.stage = RecordStage::Discarding;
            }
            *remaining -= piece.len() as u64;
        }
        (!piece.is_empty()).then_some(Event::Body(piece))
    }

    /// Position of the content of the only output record in `input`, and the length of all of `input` that belongs to it, if
    /// that is the rest of the response and nothing else is in it.
    fn rest(&self, input: &[u8]) -> Option<(std::ops::Range<usize>, usize)> {
        let mut body = 0..0;
        let mut at = 0;
        let mut stage = self.stage;
        loop {
            match stage {
                RecordStage::Header(_, seen_count) if seen_count > 0 => return None,
                RecordStage::Header(..) => {
                    let head = input.get(at..)?.first_chunk()?;
                    let record = Record::read(*head).ok()?;
                    at += RECORD_HEAD;
                    stage = RecordStage::Content(record);
                }
                RecordStage::Content(record) => {
                    let content = at..at + record.content;
                    input.get(content.clone())?;
                    at = content.end;
                    match record.kind {
                        RecordKind::Stdout if body.is_empty() => body = content,
                        RecordKind::Stdout | RecordKind::Stderr if !content.is_empty() => return None,
                        _ => {}
                    }
                    stage = RecordStage::Padding(record);
                }
                RecordStage::Padding(record) => {
                    at += record.padding;
                    if at > input.len() {
                        return None;
                    }
                    stage = if record.kind == RecordKind::End { RecordStage::Ended } else { BEGINNING };
                }
                RecordStage::Ended => return Some((body, at)),
                RecordStage::Discarding => return Some((body, input.len())),
            }
        }
    }

    /// Takes the rest of the response out of `input`.
    fn finish(&mut self, input: &mut Bytes, len: usize, answer: &mut UpstreamResponse) {
        self.stderr.end(answer);
        self.stage = if self.settings.keeps_open { RecordStage::Ended } else { RecordStage::Discarding };
        input.advance(len);
        if !self.settings.keeps_open {
            input.clear();
        }
    }
}

impl Record {
    /// Reads the head of a record; the error is nginx's.
    fn read(bytes: [u8; RECORD_HEAD]) -> Result<Self, String> {
        let [version, kind, id_high, id_low, high, low, padding, _] = bytes;
        if version != VERSION {
            let words = other_protocol(&bytes).map(|words| format!(": {words}")).unwrap_or_default();
            return Err(format!("upstream sent unsupported FastCGI protocol version: {version}{words}"));
        }
        let kind = match kind {
            STDOUT => RecordKind::Stdout,
            STDERR => RecordKind::Stderr,
            END_REQUEST => RecordKind::End,
            other => return Err(format!("upstream sent invalid FastCGI record type: {other}")),
        };
        if id_high != 0 {
            return Err(format!("upstream sent unexpected FastCGI request id high byte: {id_high}"));
        }
        if id_low != 1 {
            return Err(format!("upstream sent unexpected FastCGI request id low byte: {id_low}"));
        }
        let content = usize::from(u16::from_be_bytes([high, low]));
        Ok(Self { kind, content, padding: padding.into() })
    }
}

impl Stderr {
    /// Takes bytes of a record of stderr, of which `remaining` more are to come. Whether one of the texts was in a line.
    fn take(
        &mut self,
        mut bytes: &[u8],
        remaining: usize,
        caught: &[Box<[u8]>],
        answer: &mut UpstreamResponse,
    ) -> bool {
        let mut is_caught = false;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(STDERR_LINE_MAX - self.line.len()));
            self.line.extend_from_slice(now);
            bytes = later;
            if self.line.len() == STDERR_LINE_MAX || later.is_empty() && remaining == 0 {
                is_caught |= self.flush(caught, answer);
            }
        }
        is_caught
    }

    fn flush(&mut self, caught: &[Box<[u8]>], answer: &mut UpstreamResponse) -> bool {
        let end = self.line.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n' | b'.' | b' '));
        let line = &self.line[..end.map_or(0, |end| end + 1)];
        if self.logged + line.len() <= STDERR_MAX {
            self.logged += line.len();
            let text = format!("FastCGI sent in stderr: \"{}\"", String::from_utf8_lossy(line));
            answer.warnings.push(Warning { level: Level::Error, text: text.into() });
        } else {
            self.lost += line.len() as u64;
        }
        let has = |text: &[u8]| line.windows(text.len().max(1)).any(|window| window == text);
        let is_caught = caught.iter().any(|text| has(text));
        self.line.clear();
        is_caught
    }

    /// Logs that further output to stderr was not logged.
    fn end(&mut self, answer: &mut UpstreamResponse) {
        if std::mem::take(&mut self.lost) > 0 {
            let text = format!("FastCGI sent more than {STDERR_MAX} bytes in stderr, the rest is not logged");
            answer.warnings.push(Warning { level: Level::Error, text: text.into() });
        }
    }
}

/// For another server: nothing of what was read.
impl Clone for FastCgiCodec {
    fn clone(&self) -> Self {
        Self::new(self.method, self.limits.head_size, self.settings.clone())
    }
}

impl Codec for FastCgiCodec {
    fn read(&mut self, input: &mut Bytes, answer: &mut UpstreamResponse) -> Result<Event, UpstreamFailure> {
        loop {
            match self.stage {
                RecordStage::Ended => {
                    self.stderr.end(answer);
                    return Ok(Event::End);
                }
                RecordStage::Discarding => {
                    self.stderr.end(answer);
                    input.clear();
                    return Ok(Event::End);
                }
                _ => {}
            }
            if input.is_empty() && !self.moves_on_by_itself() {
                return Ok(Event::NeedMore);
            }
            match self.stage {
                RecordStage::Header(mut bytes, seen_count) => {
                    let taken = input.split_to(input.len().min(RECORD_HEAD - seen_count));
                    bytes[seen_count..seen_count + taken.len()].copy_from_slice(&taken);
                    let seen_count = seen_count + taken.len();
                    if seen_count == RECORD_HEAD {
                        self.begin_record(bytes)?
                    } else {
                        self.stage = RecordStage::Header(bytes, seen_count)
                    }
                }
                RecordStage::Content(record) if record.content == 0 => {
                    self.stage = RecordStage::Padding(record)
                }
                RecordStage::Content(record) => {
                    let len = record.content.min(input.len());
                    let rest =
                        |taken| RecordStage::Content(Record { content: record.content - taken, ..record });
                    match record.kind {
                        RecordKind::Stdout => {
                            // Content that is more than was announced changes where this goes on.
                            let before = self.stage;
                            let (taken, event) = self.output(input, len, answer)?;
                            if self.stage == before {
                                self.stage = rest(taken);
                            }
                            if let Some(event) = event {
                                return Ok(event);
                            }
                        }
                        RecordKind::Stderr => {
                            let caught = if self.has_head { &[][..] } else { &self.settings.caught[..] };
                            let bytes = input.split_to(len);
                            self.stage = rest(len);
                            if self.stderr.take(&bytes, record.content - len, caught, answer) {
                                let text = "upstream said in stderr what \"fastcgi_catch_stderr\" names";
                                return Err(UpstreamFailure::Invalid(text.into()));
                            }
                        }
                        RecordKind::End => {
                            input.advance(len);
                            self.stage = rest(len);
                        }
                    }
                }
                RecordStage::Padding(record) => {
                    let len = record.padding.min(input.len());
                    input.advance(len);
                    self.stage = match record.padding - len {
                        0 if record.kind == RecordKind::End => {
                            if self.settings.keeps_open {
                                RecordStage::Ended
                            } else {
                                RecordStage::Discarding
                            }
                        }
                        0 => BEGINNING,
                        padding => RecordStage::Padding(Record { padding, ..record }),
                    };
                }
                RecordStage::Ended | RecordStage::Discarding => {}
            }
        }
    }

    // DIFF(nginx): a response that nothing has ended is not complete, whether its connection was to be kept or not.
    fn closed(&mut self) -> Result<(), UpstreamFailure> {
        let is_whole = self.is_closed || self.remaining.is_some() || self.is_bodiless;
        if self.has_head && !self.lacks() && is_whole { Ok(()) } else { Err(UpstreamFailure::Closed) }
    }

    fn remaining(&self) -> Option<u64> {
        if self.is_bodiless { Some(0) } else { self.remaining }
    }

    fn ends(&mut self, input: &mut Bytes, answer: &mut UpstreamResponse) -> bool {
        if matches!(self.stage, RecordStage::Ended | RecordStage::Discarding) {
            return true;
        }
        match self.rest(input) {
            Some((body, len)) if body.is_empty() && !self.lacks() => {
                self.finish(input, len, answer);
                true
            }
            _ => false,
        }
    }

    fn whole(
        &mut self,
        input: &mut Bytes,
        answer: &mut UpstreamResponse,
    ) -> Result<Option<Bytes>, UpstreamFailure> {
        let Some((body, len)) = self.rest(input) else { return Ok(None) };
        let fits = self.remaining.is_none_or(|remaining| remaining == body.len() as u64);
        let body = match self.is_bodiless {
            true => Bytes::new(),
            false if fits => input.slice(body),
            false => return Ok(None),
        };
        self.remaining = self.remaining.map(|_| 0);
        self.finish(input, len, answer);
        Ok(Some(body))
    }

    fn keeps_alive(&self) -> bool {
        self.stage == RecordStage::Ended
    }
}

impl FastCgiCodec {
    /// Returns true if the stage ends without further input.
    fn moves_on_by_itself(&self) -> bool {
        match self.stage {
            RecordStage::Content(record) => record.content == 0,
            RecordStage::Padding(record) => record.padding == 0,
            RecordStage::Header(..) => false,
            RecordStage::Ended | RecordStage::Discarding => true,
        }
    }
}

#[cfg(test)]
mod tests;
