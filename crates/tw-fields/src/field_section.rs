//! Received field sections.

use std::ops::ControlFlow;

use crate::rules::{self, MalformedReason, Message, Pseudo};

/// Bytes that a field counts in addition to its name and value (RFC 9113 section 6.5.2, RFC 9114 section 4.2.2).
const FIELD_OVERHEAD: usize = 32;
/// Usual number of bytes and fields of a section, for allocation.
const BYTES_USUAL: usize = 512;
const FIELDS_USUAL: usize = 16;

/// Received field section.
#[derive(Debug, Default)]
pub struct FieldSection {
    bytes: Vec<u8>,
    fields: Vec<Span>,
    pseudo: [Option<Span>; Pseudo::COUNT],
    malformed: Option<MalformedReason>,
    /// Size as `SETTINGS_MAX_HEADER_LIST_SIZE` and `SETTINGS_MAX_FIELD_SECTION_SIZE` count it.
    size: usize,
    /// Bytes of names and values, pseudo-fields included.
    text_len: usize,
    /// Size of the longest encoded name or value, in bytes.
    longest: usize,
    is_truncated: bool,
    block_len: usize,
    ends: bool,
}

/// Position of a field: its name, followed by its value.
#[derive(Debug, Clone, Copy)]
struct Span {
    at: u32,
    name: u32,
    value: u32,
}

impl FieldSection {
    /// Creates an empty section that came in `block_len` bytes of frames; `ends` tells that the message ends with it.
    #[must_use]
    pub fn new(block_len: usize, ends: bool) -> Self {
        Self {
            bytes: Vec::with_capacity(BYTES_USUAL),
            fields: Vec::with_capacity(FIELDS_USUAL),
            block_len,
            ends,
            ..Self::default()
        }
    }

    /// Appends a field. Breaks if the section has become too large.
    pub fn push(&mut self, name: &[u8], value: &[u8], message: Message, max: usize) -> ControlFlow<()> {
        self.text_len += name.len() + value.len();
        self.size += name.len() + value.len() + FIELD_OVERHEAD;
        if self.size > max {
            self.is_truncated = true;
            return ControlFlow::Break(());
        }
        if let Err(malformed) = self.take(name, value, message) {
            self.malformed.get_or_insert(malformed);
        }
        ControlFlow::Continue(())
    }

    fn take(&mut self, name: &[u8], value: &[u8], message: Message) -> Result<(), MalformedReason> {
        let which = rules::pseudo(name, message)?;
        match which {
            Some(_) if !self.fields.is_empty() => return Err(MalformedReason::PseudoBehind),
            Some(_) => rules::value(value)?,
            None => rules::field(name, value)?,
        }
        // Both lengths are within `list_max`, which has 32 bits.
        let span = Span { at: self.bytes.len() as u32, name: name.len() as u32, value: value.len() as u32 };
        match which {
            None => self.fields.push(span),
            Some(which) => match self.pseudo.get_mut(which as usize) {
                Some(place @ None) => *place = Some(span),
                _ => return Err(MalformedReason::PseudoTwice(which)),
            },
        }
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    /// Checks the complete section. `longest` is the decoder's count for the section, as [`longest`](Self::longest) returns it.
    pub fn finish(&mut self, message: Message, longest: usize) {
        self.longest = longest;
        if self.malformed.is_none() && !self.is_truncated {
            self.malformed = match message {
                Message::Trailers if !self.ends => Some(MalformedReason::TrailersNotLast),
                _ => rules::all(message, |which| self.pseudo(which)).err(),
            };
        }
    }

    fn get_span(&self, span: Span) -> (&[u8], &[u8]) {
        let at = span.at as usize;
        let name_end = at + span.name as usize;
        let name = self.bytes.get(at..name_end).unwrap_or_default();
        (name, self.bytes.get(name_end..name_end + span.value as usize).unwrap_or_default())
    }

    /// Names and values in their order, without pseudo-fields.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|span| self.get_span(*span))
    }

    /// The first value of the field with this name, which is in lower case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// The value of a pseudo-field.
    pub fn pseudo(&self, which: Pseudo) -> Option<&[u8]> {
        let span = self.pseudo.get(which as usize).copied().flatten()?;
        Some(self.get_span(span).1)
    }

    /// The status of a response; 0 if it has none.
    pub fn status(&self) -> u16 {
        let digits = self.pseudo(Pseudo::Status).unwrap_or_default();
        digits.iter().take(3).fold(0, |status, digit| status * 10 + u16::from(digit.wrapping_sub(b'0') % 10))
    }

    /// Value of `content-length`, if it is a number.
    pub fn content_length(&self) -> Option<u64> {
        let digits = self.get(b"content-length")?.trim_ascii();
        digits.iter().all(u8::is_ascii_digit).then_some(())?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Bytes of names and values, pseudo-fields included.
    pub fn text_len(&self) -> usize {
        self.text_len
    }

    /// Size of the longest encoded name or value, in bytes; entries of a table do not count.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the first reason for which the message is malformed.
    pub fn malformed(&self) -> Option<MalformedReason> {
        self.malformed
    }

    /// Returns true if the list exceeded its limit, so that fields are missing.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Marks the section as too large: fields are missing.
    pub fn set_truncated(&mut self) {
        self.is_truncated = true;
    }

    /// Notes that the message ends with this list.
    pub fn set_ends(&mut self) {
        self.ends = true;
    }

    /// Size of the encoded section, in bytes.
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// Returns true if the message ends with this list.
    pub fn ends(&self) -> bool {
        self.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(message: Message, ends: bool, fields: &str) -> FieldSection {
        let mut list = FieldSection::new(0, ends);
        for field in fields.split_terminator('\n') {
            let (name, value) = field.split_at(field[1..].find(':').unwrap() + 1);
            assert!(list.push(name.as_bytes(), &value.as_bytes()[1..], message, 1000).is_continue());
        }
        list.finish(message, 0);
        list
    }

    const GET: &str = ":method:GET\n:scheme:http\n:path:/\n:authority:a\n";

    #[test]
    fn fields_are_found() {
        let list = list(Message::Request, false, &format!("{GET}x-one:1\nx-two:\nx-one:3\n"));
        let fields: Vec<_> = list.iter().collect();
        assert_eq!(fields, [(&b"x-one"[..], &b"1"[..]), (b"x-two", b""), (b"x-one", b"3")]);
        assert_eq!((list.get(b"x-one"), list.get(b"x-three")), (Some(&b"1"[..]), None));
        assert_eq!((list.pseudo(Pseudo::Path), list.pseudo(Pseudo::Status)), (Some(&b"/"[..]), None));
        assert_eq!((list.malformed(), list.is_truncated()), (None, false));
    }

    #[test]
    fn malformed_requests() {
        for (fields, malformed) in [
            ("", MalformedReason::NoPseudo(Pseudo::Method)),
            (":method:GET\n", MalformedReason::NoPseudo(Pseudo::Scheme)),
            (":method:GET\n:scheme:http\n", MalformedReason::NoPseudo(Pseudo::Path)),
            (":method:GET\n:scheme:http\n:path:\n", MalformedReason::InvalidPseudo(Pseudo::Path)),
            (":method:GET\n:scheme:1http\n:path:/\n", MalformedReason::InvalidPseudo(Pseudo::Scheme)),
            (":method:GET\n:scheme:ht tp\n:path:/\n", MalformedReason::InvalidPseudo(Pseudo::Scheme)),
            (":method:GET\n:method:GET\n", MalformedReason::PseudoTwice(Pseudo::Method)),
            (":method:GET\n:what:x\n", MalformedReason::UnknownPseudo),
            (":status:200\n", MalformedReason::UnknownPseudo),
            ("x:y\n:method:GET\n", MalformedReason::PseudoBehind),
            (":method:CONNECT\n", MalformedReason::NoPseudo(Pseudo::Authority)),
            (":method:GET\n:protocol:websocket\n", MalformedReason::InvalidPseudo(Pseudo::Protocol)),
            (":method:CONNECT\n:protocol:websocket\n", MalformedReason::NoPseudo(Pseudo::Authority)),
        ] {
            assert_eq!(list(Message::Request, true, fields).malformed(), Some(malformed), "{fields}");
        }
        for fields in [":method:CONNECT\n:authority:a:1\n", ":method:OPTIONS\n:scheme:http\n:path:*\n"] {
            assert_eq!(list(Message::Request, true, fields).malformed(), None, "{fields}");
        }
    }

    #[test]
    fn malformed_fields() {
        for (field, malformed) in [
            ("X-Capital:1\n", Some(MalformedReason::InvalidName)),
            ("x y:1\n", Some(MalformedReason::InvalidName)),
            ("x\u{7f}:1\n", Some(MalformedReason::InvalidName)),
            ("x\u{80}:1\n", Some(MalformedReason::InvalidName)),
            ("x\u{e9}:1\n", Some(MalformedReason::InvalidName)),
            ("x:a\r\u{0}\n", Some(MalformedReason::InvalidValue)),
            ("connection:close\n", Some(MalformedReason::OfConnection)),
            ("transfer-encoding:chunked\n", Some(MalformedReason::OfConnection)),
            ("te:gzip\n", Some(MalformedReason::OfConnection)),
            ("te:trailers\n", None),
            ("x_y:\t caf\u{e9}\n", None),
        ] {
            assert_eq!(
                list(Message::Request, true, &format!("{GET}{field}")).malformed(),
                malformed,
                "{field:?}"
            );
        }
    }

    #[test]
    fn malformed_responses_and_trailers() {
        for (message, ends, fields, malformed) in [
            (Message::Response, false, ":status:200\n", None),
            (Message::Response, false, "", Some(MalformedReason::NoPseudo(Pseudo::Status))),
            (Message::Response, false, ":status:20\n", Some(MalformedReason::InvalidPseudo(Pseudo::Status))),
            (Message::Response, false, ":status:2x0\n", Some(MalformedReason::InvalidPseudo(Pseudo::Status))),
            (Message::Response, false, ":path:/\n", Some(MalformedReason::UnknownPseudo)),
            (Message::Trailers, true, "x:1\n", None),
            (Message::Trailers, true, ":status:200\n", Some(MalformedReason::UnknownPseudo)),
            (Message::Trailers, false, "x:1\n", Some(MalformedReason::TrailersNotLast)),
        ] {
            assert_eq!(list(message, ends, fields).malformed(), malformed, "{message:?} {fields}");
        }
        assert_eq!(list(Message::Response, false, ":status:418\n").status(), 418);
    }

    #[test]
    fn section_size_is_limited() {
        let mut list = FieldSection::new(0, true);
        let mut taken = 0;
        while list.push(b"name", b"value", Message::Trailers, 1000).is_continue() {
            taken += 1;
        }
        list.finish(Message::Trailers, 0);
        assert_eq!((taken, list.is_truncated(), list.malformed()), (1000 / 41, true, None));
    }
}
