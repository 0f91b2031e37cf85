//! memcached as its text protocol has it: one value, or none.
//!
//! ```text
//! Line ─ VALUE ─► Body ─► Trailer ─► Done
//!   └─── END ────────────────────────► Done
//! ```

use bytes::{Buf, Bytes};
use tw_connect::failure::UpstreamFailure;
use tw_http::fields::{Name, Value};
use tw_http::num;
use tw_log::{Level, Text};

use super::{Codec, Event};
use tw_request::upstream_response::{UpstreamResponse, Warning};

/// End mark behind a value.
const END: &[u8] = b"\r\nEND\r\n";

/// Reads one response.
pub struct MemcachedCodec {
    /// The key as it was sent.
    key: Bytes,
    line_size: usize,
    /// Bits of a value's flags that say that it is compressed with gzip.
    gzip_flag: u64,
    is_head: bool,
    stage: ReplyStage,
}

#[derive(Debug, PartialEq, Eq)]
enum ReplyStage {
    /// The first line, as far as it is there.
    Line(Vec<u8>),
    /// So many bytes of the value are still to come.
    Body(u64),
    /// So many bytes of [`END`] were seen.
    Trailer(usize),
    Done,
    /// The value was followed by something else than the end mark.
    Broken,
}

impl MemcachedCodec {
    /// Creates a parser of the response to `get key`, whose first line has at most `line_size` bytes. With `is_head`
    /// the value is discarded.
    pub fn new(key: Bytes, line_size: usize, gzip_flag: u64, is_head: bool) -> Self {
        Self { key, line_size, gzip_flag, is_head, stage: ReplyStage::Line(Vec::new()) }
    }

    fn line(
        &mut self,
        input: &mut Bytes,
        answer: &mut UpstreamResponse,
    ) -> Result<Option<Event>, UpstreamFailure> {
        let ReplyStage::Line(line) = &mut self.stage else { return Ok(None) };
        let end = input.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let taken = input.split_to(end.unwrap_or(input.len()));
        if line.len() + taken.len() > self.line_size {
            return Err(UpstreamFailure::Invalid("upstream sent too big header".into()));
        }
        line.extend_from_slice(&taken);
        if end.is_none() {
            return Ok(None);
        }
        let line = std::mem::take(line);
        let remaining = self.parse_line(&line, answer)?;
        self.stage = match remaining {
            Some(len) => ReplyStage::Body(len),
            None => ReplyStage::Done,
        };
        Ok(Some(Event::Head))
    }

    /// Parses the first line; returns the length of the value, if there is one.
    fn parse_line(&self, line: &[u8], answer: &mut UpstreamResponse) -> Result<Option<u64>, UpstreamFailure> {
        let shown = line.strip_suffix(b"\n").unwrap_or(line);
        let shown = shown.strip_suffix(b"\r").unwrap_or(shown);
        let invalid = || {
            UpstreamFailure::Invalid(format!("memcached sent invalid response: \"{}\"", Text(shown)).into())
        };
        let wrong = |what: &str| {
            let line = Text(shown);
            let key = Text(&self.key);
            UpstreamFailure::Invalid(
                format!("memcached sent invalid {what} in response \"{line}\" for key \"{key}\"").into(),
            )
        };
        let line = line.strip_suffix(b"\r\n").ok_or_else(invalid)?;
        answer.clear();
        if line == b"END" {
            let text = format!("key: \"{}\" was not found by memcached", Text(&self.key));
            answer.warnings.push(Warning { level: Level::Info, text: text.into() });
            (answer.status, answer.content_length) = (404, Some(0));
            return Ok(None);
        }
        let rest = line.strip_prefix(b"VALUE ").ok_or_else(invalid)?;
        let rest = rest.strip_prefix(&*self.key).ok_or_else(|| wrong("key"))?;
        let rest = rest.strip_prefix(b" ").ok_or_else(invalid)?;
        let space = rest.iter().position(|byte| *byte == b' ').ok_or_else(invalid)?;
        let flags = &rest[..space];
        let len = &rest[space + 1..];
        if self.gzip_flag != 0 {
            let flags = num::parse(flags).ok_or_else(|| wrong("flags"))?;
            if flags & self.gzip_flag != 0 {
                answer.fields.append(Name::Copy(b"Content-Encoding"), Value::Copy(b"gzip"));
            }
        }
        let len = num::parse_length(len).ok_or_else(|| wrong("length"))?;
        (answer.status, answer.content_length) = (200, Some(len));
        Ok(Some(len))
    }

    /// Takes as much of the trailer as there is. The value is good whatever it is.
    fn trailer(&mut self, input: &mut Bytes, answer: &mut UpstreamResponse) {
        let ReplyStage::Trailer(seen_count) = self.stage else { return };
        let len = input.len().min(END.len() - seen_count);
        let is_right = input[..len] == END[seen_count..seen_count + len];
        input.advance(len);
        if !is_right {
            input.clear();
            let text = "memcached sent invalid trailer";
            answer.warnings.push(Warning { level: Level::Error, text: text.into() });
        }
        self.stage = match seen_count + len {
            _ if !is_right => ReplyStage::Broken,
            seen_count if seen_count == END.len() => ReplyStage::Done,
            seen_count => ReplyStage::Trailer(seen_count),
        };
    }
}

/// For another server: nothing of what was read.
impl Clone for MemcachedCodec {
    fn clone(&self) -> Self {
        Self::new(self.key.clone(), self.line_size, self.gzip_flag, self.is_head)
    }
}

impl Codec for MemcachedCodec {
    fn read(&mut self, input: &mut Bytes, answer: &mut UpstreamResponse) -> Result<Event, UpstreamFailure> {
        loop {
            match &mut self.stage {
                ReplyStage::Done => return Ok(Event::End),
                ReplyStage::Broken => return Ok(Event::End),
                ReplyStage::Body(0) => self.stage = ReplyStage::Trailer(0),
                _ if input.is_empty() => return Ok(Event::NeedMore),
                ReplyStage::Line(_) => {
                    if let Some(event) = self.line(input, answer)? {
                        return Ok(event);
                    }
                }
                ReplyStage::Body(remaining) => {
                    let len = usize::try_from(*remaining).unwrap_or(usize::MAX).min(input.len());
                    *remaining -= len as u64;
                    let piece = input.split_to(len);
                    if !self.is_head {
                        return Ok(Event::Body(piece));
                    }
                }
                ReplyStage::Trailer(_) => self.trailer(input, answer),
            }
        }
    }

    fn closed(&mut self) -> Result<(), UpstreamFailure> {
        match self.stage {
            ReplyStage::Done | ReplyStage::Broken | ReplyStage::Body(0) | ReplyStage::Trailer(_) => Ok(()),
            ReplyStage::Line(_) | ReplyStage::Body(_) => Err(UpstreamFailure::Closed),
        }
    }

    fn remaining(&self) -> Option<u64> {
        match self.stage {
            ReplyStage::Body(remaining_len) if !self.is_head => Some(remaining_len),
            _ => Some(0),
        }
    }

    fn ends(&mut self, input: &mut Bytes, answer: &mut UpstreamResponse) -> bool {
        if self.stage == ReplyStage::Body(0) {
            self.stage = ReplyStage::Trailer(0);
        }
        self.trailer(input, answer);
        matches!(self.stage, ReplyStage::Done | ReplyStage::Broken)
    }

    fn whole(
        &mut self,
        input: &mut Bytes,
        answer: &mut UpstreamResponse,
    ) -> Result<Option<Bytes>, UpstreamFailure> {
        let ReplyStage::Body(remaining) = self.stage else {
            return Ok((self.stage == ReplyStage::Done).then(Bytes::new));
        };
        let len = usize::try_from(remaining).unwrap_or(usize::MAX);
        if input.len() < len.saturating_add(END.len()) {
            return Ok(None);
        }
        let value = input.split_to(len);
        self.stage = ReplyStage::Trailer(0);
        self.trailer(input, answer);
        Ok(Some(if self.is_head { Bytes::new() } else { value }))
    }

    fn keeps_alive(&self) -> bool {
        self.stage == ReplyStage::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status, value, warnings, and reuse of the connection or the error.
    type Read = (u16, String, Vec<String>, Result<bool, String>);

    fn read_of(pieces: &[&[u8]], gzip_flag: u64) -> (Read, bool) {
        let mut codec = MemcachedCodec::new(Bytes::from_static(b"key"), 100, gzip_flag, false);
        let mut answer = UpstreamResponse::default();
        let mut body = Vec::new();
        let mut said = Vec::new();
        let mut is_gzip = false;
        let mut end = None;
        'pieces: for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            loop {
                let event = codec.read(&mut input, &mut answer);
                said.extend(answer.warnings.drain(..).map(|said| String::from(said.text)));
                match event {
                    Ok(Event::NeedMore) => break,
                    Ok(Event::Body(piece)) => body.extend_from_slice(&piece),
                    Ok(Event::Head | Event::Interim) => is_gzip = answer.fields.iter().next().is_some(),
                    Ok(Event::End) => {
                        end = Some(Ok(codec.keeps_alive() && input.is_empty()));
                        break 'pieces;
                    }
                    Err(failure) => {
                        end = Some(Err(failure.cause().unwrap().to_string()));
                        break 'pieces;
                    }
                }
            }
        }
        let end = end.unwrap_or_else(|| {
            codec.closed().map(|()| false).map_err(|failure| failure.cause().unwrap().to_string())
        });
        ((answer.status, String::from_utf8(body).unwrap(), said, end), is_gzip)
    }

    fn read(text: &str) -> Read {
        let bytes = text.as_bytes();
        let whole = read_of(&[bytes], 0).0;
        for at in 0..bytes.len() {
            let (first, second) = bytes.split_at(at);
            let (split, _) = read_of(&[first, second], 0);
            assert_eq!(
                (&split.0, &split.1, &split.3),
                (&whole.0, &whole.1, &whole.3),
                "{text} split at {at}"
            );
        }
        whole
    }

    #[test]
    fn values() {
        assert_eq!(read("VALUE key 0 5\r\nhello\r\nEND\r\n"), (200, "hello".into(), vec![], Ok(true)));
        assert_eq!(read("VALUE key 0 0\r\n\r\nEND\r\n"), (200, String::new(), vec![], Ok(true)));
        let (status, value, said, end) = read("END\r\n");
        assert_eq!((status, &*value, end), (404, "", Ok(true)));
        assert_eq!(said, ["key: \"key\" was not found by memcached"]);
        // A second value follows that was not requested.
        let (_, value, said, end) = read("VALUE key 0 5\r\nhello\r\nVALUE key 0 1\r\n");
        assert_eq!((&*value, end), ("hello", Ok(false)));
        assert_eq!(said, ["memcached sent invalid trailer"]);
    }

    #[test]
    fn flags() {
        for (flags, flag, expected) in [("2", 2, true), ("3", 2, true), ("1", 2, false), ("2", 0, false)] {
            let text = format!("VALUE key {flags} 1\r\nx\r\nEND\r\n");
            assert_eq!(read_of(&[text.as_bytes()], flag).1, expected, "{flags} {flag}");
        }
        let wrong = read_of(&[b"VALUE key x 1\r\n"], 2).0;
        assert_eq!(
            wrong.3,
            Err("memcached sent invalid flags in response \"VALUE key x 1\" for key \"key\"".into())
        );
    }

    #[test]
    fn lies() {
        let long = "x".repeat(200);
        for (text, expected) in [
            ("VALUE kex 0 5\r\n", "memcached sent invalid key in response \"VALUE kex 0 5\" for key \"key\""),
            ("VALUE keys 0 5\r\n", "memcached sent invalid response: \"VALUE keys 0 5\""),
            (
                "VALUE key 0 5x\r\n",
                "memcached sent invalid length in response \"VALUE key 0 5x\" for key \"key\"",
            ),
            (
                "VALUE key 0 -5\r\n",
                "memcached sent invalid length in response \"VALUE key 0 -5\" for key \"key\"",
            ),
            ("VALUE key 0\r\n", "memcached sent invalid response: \"VALUE key 0\""),
            ("ERROR\r\n", "memcached sent invalid response: \"ERROR\""),
            ("END\n", "memcached sent invalid response: \"END\""),
            ("\n", "memcached sent invalid response: \"\""),
            ("VALUE key 0 5\r\nhel", "connection closed before the answer was complete"),
            ("VALUE", "connection closed before the answer was complete"),
            (&long, "upstream sent too big header"),
        ] {
            assert_eq!(read(text).3, Err(expected.to_owned()), "{text}");
        }
    }
}
