//! Trailer section of a chunked body (RFC 9112 section 7.1.2): fields, as strict as those of a head; only those that
//! are permitted in trailers are kept.

use super::FIELDS_MAX;
use crate::fields::{Fields, Name};
use crate::head::Span;
use crate::head::field_line::{FieldEvent, FieldParser, FieldRules};
use crate::hop;

/// Why a trailer section is refused.
#[derive(Clone, Copy, Debug)]
pub(super) enum TrailerError {
    Invalid,
    TooBig,
}

/// Collects one section.
#[derive(Debug)]
pub(super) struct TrailerParser {
    /// Text of the kept fields.
    text: Vec<u8>,
    size_max: usize,
    parser: FieldParser,
    count: usize,
    fields: Fields,
    fault: Span,
}

impl TrailerParser {
    /// A parser of a section of at most `size_max` bytes.
    pub(super) fn new(size_max: usize) -> Self {
        TrailerParser {
            text: Vec::new(),
            size_max,
            parser: FieldParser::at(0),
            count: 0,
            fields: Fields::new(),
            fault: Span::NOTHING,
        }
    }

    /// Takes its part of `input`: how many bytes, and whether the section ends with them.
    pub(super) fn advance(&mut self, input: &[u8]) -> Result<(usize, bool), TrailerError> {
        let before = self.text.len();
        let room = self.size_max.saturating_sub(before);
        self.text.extend_from_slice(input.get(..room).unwrap_or(input));
        loop {
            match self.parser.advance(&self.text, FieldRules::Origin) {
                FieldEvent::Field { name, value, known: known_name, .. } => {
                    if self.count >= FIELDS_MAX {
                        return Err(TrailerError::TooBig);
                    }
                    self.count += 1;
                    let name = name.of(&self.text);
                    if hop::may_be_trailer(name, known_name) {
                        self.fields.append_copy(Name::Copy(name), value.of(&self.text));
                    }
                }
                FieldEvent::NeedMore if self.text.len() >= self.size_max => return Err(TrailerError::TooBig),
                FieldEvent::NeedMore => return Ok((self.text.len() - before, false)),
                FieldEvent::Invalid => {
                    self.fault = Span::new(self.parser.line_start, self.parser.value_end);
                    return Err(TrailerError::Invalid);
                }
                FieldEvent::End => return Ok((self.parser.pos.saturating_sub(before), true)),
            }
        }
    }

    /// Bytes read of a malformed line, and the first invalid byte.
    pub(super) fn fault(&self) -> (&[u8], u8) {
        (self.fault.of(&self.text), self.text.get(self.fault.end()).copied().unwrap_or(0))
    }

    pub(super) fn into_fields(self) -> Fields {
        self.fields
    }
}
